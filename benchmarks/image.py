"""Size of the container's image: its layers, and the largest packages in it.

Stored in benchmarks/results/image.json. It asks Docker for the image that `make image` built.
``--quick`` measures the same, and writes to the scratch folder (OCTANE_BENCH_DIR, else work/bench)
instead.
"""

import shutil
import subprocess
import sys

from _common import command_line, run_parts

from octane import __version__

PARTS = ("layers",)
LAYERS = ("Debian", "Python, ps", "Python packages")
"""The layers of the Dockerfile's last stage, from the lowest."""

LARGEST = 6
"""Number of packages that are listed."""


def docker(*words: str) -> str:
    """Run a command of docker and return its output."""
    return subprocess.run(["docker", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def layers(image: str) -> dict[str, object]:
    """Return the size of each layer, and that of the largest packages, in bytes."""
    asked = ("history", "--human=false", "--format", "{{.Size}}", image)
    sizes = [size for size in map(int, docker(*asked).split()) if size][::-1]
    script = "cd /opt/octane/lib/python3*/site-packages && du --apparent-size -sb -- */"
    lines = docker("run", "--rm", image, "bash", "-c", script).splitlines()
    packages = {name.rstrip("/"): int(size) for size, name in map(str.split, lines)}
    largest = sorted(packages.items(), key=lambda item: -item[1])[:LARGEST]
    return {
        "cases": [
            *({"part": part, "bytes": n} for part, n in zip(LAYERS, sizes, strict=True)),
            *({"part": f"of these `{name}`", "bytes": n} for name, n in largest),
            {"part": "whole", "bytes": sum(sizes)},
        ]
    }


if __name__ == "__main__":
    parser = command_line(__doc__, PARTS)
    parser.add_argument("--image", default=f"octane:{__version__}", help="name of the image")
    chosen = parser.parse_args()
    found = ["docker", "image", "inspect", chosen.image]
    if shutil.which("docker") is None or subprocess.run(found, capture_output=True).returncode:
        sys.stderr.write(f"Image {chosen.image} is missing; run: make image\n")
        sys.exit(3)
    run_parts("image", {"layers": lambda: layers(chosen.image)}, chosen)
