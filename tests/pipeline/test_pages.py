"""README and docs/: commands and examples run, and numbers are those that were measured.

The blocks of a page run in order, in a copy of the project with data named as on the pages. `make`
and `nextflow` are stand-ins that record their arguments, which are checked against the Makefile,
the profiles and the parameters. Real runs of the same commands are in test_settings.py (a config),
test_cohort.py (a samplesheet), test_stub.py (--input), test_containers.py and tests/slurm; the
tutorial runs here. WHY_NOT lists blocks that do not run. Numbers equal the JSON of the benchmarks.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import SimpleITK as sitk
from runs import voxels
from tile_writers import tiles_of, write_ome_tiff

from octane import __version__
from octane.processes.mosaic.names import NamedFile, NamePattern, find_pattern
from octane.processes.preflight.schema import WorkflowModel
from octane.store.image import open_image

PROJECT = Path(__file__).resolve().parents[2]
sys.path += [str(PROJECT / "benchmarks"), str(PROJECT / "tools")]

import pictures  # noqa: E402
from _common import RESULTS  # noqa: E402
from _tables import PAGE, TABLES, fill_tables  # noqa: E402

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
SHOWN = {"text", "csv", "groovy", "json"}
"""Languages of blocks that are neither commands nor Python examples."""

WHY_NOT = {
    ("python.md", "import cupy"): "needs a GPU: tests/gpu/test_n4_gpu.py",
    ("benchmarks.md", "source tools/env.sh"): "measures for an hour",
    ("faq.md", "aws s3 cp --recursive s3://bucket/brain.ome.zarr brain.ome.zarr"): "needs S3",
    (
        "faq.md",
        "rclone mount lab:bucket /mnt/bucket --read-only --vfs-cache-mode full --daemon",
    ): "needs S3",
    (
        "gpu.md",
        ".venv/bin/pip install 'cupy-cuda12x[ctk]>=13'     # CUDA 12, and Volta",
    ): "needs a GPU",
    (
        "gpu.md",
        "tools/first_run.sh pack first_run_pack            "
        "# at most 60 MiB; default: --python 3.12 --platform x86_64",
    ): "needs a GPU: tests/gpu/test_first_run.py",
    ("hpc.md", "cd /shared/octane          # a clone of the project"): "needs a shared file system",
    ("hpc.md", "#!/bin/bash"): "needs Slurm: tests/slurm",
    (
        "hpc.md",
        f"docker save octane:{__version__} --output octane.tar",
    ): "needs Docker and Apptainer",
    (
        "watch.md",
        "bin/watch.py /data/brain_07 --outdir results/brain_07 --last 240 --resolution 10 "
        "--on_alert 'mail -s octane me@lab.org'",
    ): "watches for weeks: test_watch.py",
    ("output.md", "bin/view.py results"): "serves until Ctrl-C: tests/unit/tools/view/test_step.py",
    ("output.md", "python -m pip install 'neuroglancer>=2.41'"): "needs a network",
    ("output.md", "python -m pip install 'napari[all]' napari-ome-zarr"): "needs a display",
}

STAND_IN = """#!/bin/bash
{ printf '%s\\0' "${0##*/}" "$@"; echo; } >> "$NOTED"
"""


def blocks(page):
    """Language, name (page and first line) and text of each fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    for indent, language, block in re.findall(r"(?ms)^( *)```(\w*)\n(.*?)^\1```$", text):
        block = re.sub(f"(?m)^{indent}", "", block)
        yield language, (page.name, block.partition("\n")[0]), block


def script_of(page):
    """Shell script of all blocks of a page that run; empty if none does."""
    script = ""
    for language, name, block in blocks(page):
        if language not in SHOWN and name not in WHY_NOT:
            script += {"bash": block, "python": f"python - <<'PYTHON'\n{block}PYTHON\n"}[language]
    # Examples without a command between them are one program.
    return script.replace("PYTHON\npython - <<'PYTHON'\n", "")


def test_blocks_that_do_not_run_are_in_the_pages():
    assert {name for page in PAGES for _, name, _ in blocks(page)} >= WHY_NOT.keys()


@pytest.fixture(scope="module")
def place(copy_project, phantom):
    """A copy of the project, with data named as on the pages."""
    folder = copy_project("pages")
    for name in ("tools", "requirements"):
        shutil.copytree(PROJECT / name, folder / name)
    # The tests' environment is on the PATH already.
    (folder / "tools" / "env.sh").write_text("", encoding="utf-8")
    shutil.copytree(phantom / "mosaics", folder / "mosaics")
    (folder / "tiles").mkdir()
    image = open_image(phantom / "mosaics" / "section_01.ome.zarr")
    for (row, column), tile in tiles_of(image).items():
        name = folder / "tiles" / f"section_01_r{row}_c{column}"
        write_ome_tiff(name, tile, image.grid.spacing)
    (folder / "lightsheet").mkdir()
    for (row, column), tile in tiles_of(image).items():
        for channel in ("488", "561"):
            name = folder / "lightsheet" / f"r{row}_c{column}_{channel}"
            write_ome_tiff(name, tile, image.grid.spacing)
    stained = np.stack([tile, tile])
    write_ome_tiff(folder / "stained", stained, image.grid.spacing, channels=("DAPI", "GFP"))
    shutil.copytree(phantom / "truth" / "tissue.ome.zarr", folder / "volume.ome.zarr")
    volume = sitk.GetImageFromArray(voxels(folder / "volume.ome.zarr"))
    sitk.WriteImage(volume, str(folder / "volume.nii.gz"))
    sitk.WriteImage(volume > 100, str(folder / "mask.nii.gz"))
    (folder / "cohort.csv").write_text("subject,input\n01,mosaics\n", encoding="utf-8")
    (folder / "train.py").write_text("", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run_page(place, environment, tmp_path_factory):
    """Run a page with stand-ins for some commands; return the output and their arguments."""

    def run(name, *stand_ins):
        folder = tmp_path_factory.mktemp(name)
        for stand_in in stand_ins:
            (folder / stand_in).write_text(STAND_IN, encoding="utf-8")
            (folder / stand_in).chmod(0o755)
        (noted := folder / "noted").touch()
        (page,) = (page for page in PAGES if page.stem == name)
        env = environment | {"NOTED": str(noted), "MPLBACKEND": "agg"}
        for variable, first in (("PATH", folder), ("PYTHONPATH", place / "bin")):
            env[variable] = f"{first}{os.pathsep}{env.get(variable, '')}"
        made = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script_of(page)],
            cwd=place, env=env, capture_output=True, text=True, check=False, timeout=540,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        lines = noted.read_text(encoding="utf-8").splitlines()
        return made.stdout, [line.split("\0")[:-1] for line in lines]

    return run


@pytest.fixture(scope="module")
def tutorial(run_page):
    """Output of the tutorial, whose results other pages use."""
    output, noted = run_page("tutorial", "make")
    assert noted == [["make", "setup"]]
    return output


def check_run(words, place):
    """Check that a run's parameters, profiles and files exist, and that each has one value."""
    assert words[:2] == ["run", "main.nf"]
    # A value that begins with a dash follows an equals sign.
    words = [part for word in words for part in re.split(r"^(--\w+)=", word) if part]
    given = dict(zip_longest(words[2::2], words[3::2], fillvalue="true"))
    profiles = re.findall(r"(?m)^    (\w+) \{$", (place / "nextflow.config").read_text("utf-8"))
    assert {*given.pop("-profile", "standard").split(",")} <= {*profiles}
    for name in {"-c", "--input", "--samplesheet"} & given.keys():
        assert (place / given[name]).exists()
    known = given.keys() - {"-c", "-resume", "-work-dir"}
    WorkflowModel.model_validate({name.removeprefix("--"): given[name] for name in known})


@pytest.mark.slow
@pytest.mark.parametrize("page", [p.stem for p in PAGES if script_of(p) and p.stem != "tutorial"])
def test_the_commands_of_a_page_work(run_page, place, page, request):
    if page == "output":
        request.getfixturevalue("tutorial")
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.M)
    for command, *words in run_page(page, "make", "nextflow")[1]:
        if command == "make":
            assert {word for word in words if "=" not in word} <= set(targets)
        else:
            check_run(words, place)


@pytest.mark.slow
def test_the_tutorial_gives_what_it_shows(tutorial, place):
    (page,) = (page for page in PAGES if page.stem == "tutorial")
    (shown,) = (block for language, _, block in blocks(page) if language == "text")
    assert shown in tutorial
    assert "warn" not in tutorial.lower()
    made, expected = (plt.imread(p) for p in (place / "comparison.png", page.with_suffix(".png")))
    assert np.abs(made - expected).mean() < 0.01


def test_the_patterns_of_microscopes_fit_their_names():
    page = (PROJECT / "docs" / "microscopes.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\|.*?\| `(.+?)` \| `(.+?)` \| (give|found)", page)
    assert len(rows) >= 15
    for name, text, how in rows:
        pattern = NamePattern.of(text)
        read = NamedFile.read(name, pattern)
        # The tile of each example, which may be numbered in steps.
        assert (read.number, read.row, read.column) in [
            *((3, None, None), (7, None, None), (None, 1, 3), (None, -720, 21600))
        ]
        assert read.plane in (None, 12, 120)
        if how == "found":
            fields = [{field: str(n) for field in pattern.fields} for n in (1, 2, 3)]
            if read.channel is not None and read.channel.isalpha():
                fields = [{**own, "channel": n} for own, n in zip(fields, "ABC", strict=True)]
            assert find_pattern([text.format(**own) for own in fields]).text == text


def test_the_explained_errors_are_those_of_the_code():
    files = [*(PROJECT / "bin" / "octane").rglob("*.py"), *(PROJECT / "subworkflows").glob("*.nf")]
    known = "\n".join(path.read_text(encoding="utf-8") for path in files)
    # Join sentences that are split over lines, and replace inserted values by ….
    for pattern, text in ((r"""["'](\s*\+)?\s+f?["']""", ""), (r"\$?\{[^{}]*\}", "…"), ("…+", "…")):
        known = re.sub(pattern, text, known)
    text = (PROJECT / "docs" / "faq.md").read_text(encoding="utf-8")
    quoted = re.findall(r"(?m)^\*\*`([^`]*…[^`]*)`\*\*", text)
    assert len(quoted) > 10
    assert [q for q in quoted if q not in known] == []


# Figures and pictures


def results(subject, part):
    return json.loads((RESULTS / f"{subject}.json").read_text(encoding="utf-8"))[part]


def test_every_table_is_in_the_page_and_what_its_benchmark_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert fill_tables(text) == text
    assert sorted(re.findall(r"<!-- figures: (\S+) -->", text)) == sorted(TABLES)


def test_pictures_are_small_and_what_their_script_draws():
    names = {path.name for path in (PROJECT / "docs").glob("*.png")}
    assert {"n4.png", "tutorial.png", "stitching.png", "mosaic.png", "orders.png"} <= names
    assert all((PROJECT / "docs" / name).stat().st_size < 150_000 for name in names)
    for name, content in (pictures.mosaic() | pictures.orders()).items():
        drawn = plt.imread(BytesIO(content))
        np.testing.assert_allclose(plt.imread(PROJECT / "docs" / name), drawn, atol=0.01)


def test_a_table_is_replaced_up_to_the_empty_line_and_follows_its_figures(tmp_path):
    shutil.copy(RESULTS / "n4.json", tmp_path)
    record = json.loads((tmp_path / "n4.json").read_text())
    record["speed"]["cases"][0]["ratio"] = 1234
    (tmp_path / "n4.json").write_text(json.dumps(record))
    text = "before\n\n<!-- figures: n4-speed -->\n| old |\n\nafter\n"
    made = fill_tables(text, tmp_path)
    assert made.startswith("before\n\n<!-- figures: n4-speed -->\n| volume |")
    assert "| 1234 |" in made
    assert made.endswith(" |\n\nafter\n")
    assert "old" not in made
    assert fill_tables(made, tmp_path) == made


def test_readme_compares_by_measured_ratios():
    faster = [case["ratio"] for case in results("n4", "speed")["cases"]]
    programs = [case["programs"] for case in results("resample", "end_to_end")["cases"]]
    longer = [
        own["linumpy"]["command_seconds"] / own["octane"]["command_seconds"]
        for own in programs
        if "linumpy" in own
    ]
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert f"| {min(faster):.0f} to {max(faster):.0f} on 2 cores |" in text
    assert f"| 1 | {min(longer):.0f} to {max(longer):.0f} |" in text


def test_figures_are_within_their_bounds_in_every_case():
    record = results("n4", "agreement")
    assert record["bounds"] == {"one_minus_r": 1e-8, "median": 1e-5, "max": 2e-4}
    for case in record["cases"]:
        nearest = case["itk_iterations"][str(case["nearest_threads"])]
        assert nearest == case["iterations"], case["name"]
        for figure, bound in record["bounds"].items():
            assert case[figure] <= bound, (case["name"], figure)
    # Memory is close to the prediction, and within the limit.
    fitted, resampled = results("n4", "memory")["cases"], results("resample", "memory")["cases"]
    assert max(case["bytes"] for case in fitted) >= 12e9
    assert {16, 64, 144, 400} <= {case["tiles"] for case in resampled}
    for case in (*fitted, *resampled):
        assert case["peak_bytes"] / case["predicted_bytes"] == pytest.approx(1, abs=0.2)
    limit = results("n4", "memory")["limit_bytes"]
    assert max(case["peak_bytes"] for case in fitted) <= limit
    # Resampling is exact, and the same from every store.
    for case in results("resample", "kernel")["cases"]:
        assert case["methods"]["octane"]["error"] <= 1e-6
    checksums = {}
    for case in results("resample", "end_to_end")["cases"]:
        checksums.setdefault(tuple(case["tile"]), set()).add(case["octane_checksum"])
    assert {len(found) for found in checksums.values()} == {1}
    # Blending lowers the error of speckle and of steps at borders, and changes nothing else.
    for row in results("stitch", "blend")["rows"]:
        assert row["changed_elsewhere"] == 0
        if row["looks"] or row["attenuation"]:
            assert row["lower"] == row["seeds"]
        if row["looks"]:
            assert row["lower_gain"] == row["seeds"]


def test_every_result_says_when_where_and_of_which_commit():
    for path in sorted(RESULTS.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        for name, part in json.loads(text).items():
            known = {"date", "commit", "processor", "cores", "versions"}
            assert known <= part.keys(), (path.name, name)
            # Nobody can repeat a measurement of an unknown or changed commit, and timings of an
            # emulated GPU say nothing.
            assert part["commit"] != "unknown"
        assert "-dirty" not in text
        assert "Emulated GPU" not in text
