#!/usr/bin/env bash
# `make release`: runs all tests, then builds the wheel, the source archive and the image into dist/, and
# prints the commands that publish them. It neither tags nor uploads.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

stop() {
    echo "release: $*" >&2
    exit 1
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' bin/octane/__init__.py)
heading="## $version - "
image=octane:$version

check() {
    [[ -z $(git status --porcelain) ]] || stop "the folder differs from its commit; commit what git status lists"
    [[ -z $(git tag --list "v$version") ]] ||
        stop "v$version is tagged already; raise __version__ in bin/octane/__init__.py"
    grep -qx -- "$heading[0-9-]*" CHANGELOG.md ||
        stop "CHANGELOG.md lacks the section '## $version - DATE'; write it and run make generate"
    docker version >/dev/null 2>&1 || stop "Docker does not answer; install and start it"
}

check
commit=$(git rev-parse HEAD)
make soak PYTEST=
# The tests took an hour.
check
[[ $(git rev-parse HEAD) == "$commit" ]] || stop "the commit changed while the tests ran; run make release again"

rm -rf dist
mkdir dist
# From the commit's files alone: hatchling may disregard .gitignore.
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive "$commit" | tar -x -C "$source"
(cd "$source" && python -m hatchling build --directory "$OLDPWD/dist")
make image CUDA=
docker save "$image" --output "dist/octane-$version-image.tar"
awk -v heading="$heading" '/^## / {inside = index($0, heading) == 1; next} inside' CHANGELOG.md >dist/notes.md
packages=(dist/*.tar.gz dist/*.whl)
(cd dist && sha256sum -- *.tar* *.whl >SHA256SUMS)

cat <<COMMANDS

dist/ holds octane $version, built from $commit. To publish it:

  git tag --annotate v$version --message 'octane $version' $commit
  git push origin v$version
  python -m twine upload ${packages[*]}
  gh release create v$version --verify-tag --title 'octane $version' --notes-file dist/notes.md \\
      ${packages[*]} dist/octane-$version-image.tar dist/SHA256SUMS
  docker tag $image "\${REGISTRY:?}/$image"
  docker push "\${REGISTRY:?}/$image"
COMMANDS
