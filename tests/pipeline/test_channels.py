"""Channels: one is measured, the others lie where it does, and one that is added runs alone."""

import csv
import json
import re

import numpy as np
import pytest
from noisy_overlaps import fill_overlaps
from real_channels import cut_image
from runs import Run, voxels

from octane.config.parameters import InputParameters
from octane.store.image import open_image

CHANNELS = ("reflectance", "retardance", "attenuation", "axis")
ADDED = "attenuation"
RESULT = "brain/brain.ome.zarr"
TASKS = (
    *(
        "PREFLIGHT (run)",
        "CHANNELS (brain)",
        "N4 (brain:{0})",
        "PYRAMID (brain:{0})",
        "REPORT (brain)",
    ),
    *("RESAMPLE (brain:section_01_{0})", "RESAMPLE (brain:section_02_{0})"),
    "STACK_OTHERS (brain:{0})",
    *("STITCH_OTHERS (brain:section_01_{0})", "STITCH_OTHERS (brain:section_02_{0})"),
)
"""Tasks of a run to which a channel is added."""


@pytest.fixture(scope="module")
def folder(command, tmp_path_factory):
    """Launch folder: two displaced sections, imaged by an inexact stage, in four channels.

    Where tiles overlap, the second channel is noise.
    """
    folder = tmp_path_factory.mktemp("channels") / "subject"
    made = command(
        *("phantom", folder, "--channels", 4, "--sections", 2, "--tiles", 2, 2),
        *("--tile_shape", 24, 64, 64, "--voxel_size", 10, 10, 10, "--overlap", 0.3, 0.3),
        *("--edge_fraction", 0, "--section_thickness", 160, "--position_error", 25),
        *("--shift", 40, "--shading", 0.1),
    )
    assert made.returncode == 0, made.stderr
    fill_overlaps(folder, CHANNELS.index("retardance"))
    return folder


@pytest.fixture(scope="module")
def given(quick):
    """Arguments of all runs."""
    return (
        *(*quick, "--input", "mosaics", "--subject", "brain", "--overlap", "0.3"),
        *("--channel", "reflectance", "--channel_kind", "axis=nearest", "--resolution", "20"),
        *("--stitch_refine", "true", "--stack_align", "translation"),
    )


@pytest.fixture(scope="module")
def three(succeeding, folder, given):
    """A run on all channels but one."""
    names = " ".join(name for name in CHANNELS if name != ADDED)
    return succeeding(folder, *given, "--channels", names, outdir=folder / "three")


@pytest.fixture(scope="module")
def every(succeeding, folder, given, three):
    """The same with the last channel."""
    assert three.code == 0
    return succeeding(folder, *given, "--channels", "all", "-resume", outdir=folder / "all")


def record(run: Run, *name: str):
    """Record of a task."""
    path = run.outdir / "brain" / "metrics" / f"{'_'.join(name)}_metrics.json"
    return json.loads(path.read_text(encoding="utf-8"))


def displacements(run: Run, *channel: str):
    """Displacement of each section in STACK."""
    sections = record(run, *channel, "stack")["figures"]["sections"]
    return [(*section["shift"], section["rotation"]) for section in sections]


def labels(run: Run) -> list[str]:
    """Names of the channels of the result."""
    noted = json.loads((run.outdir / RESULT / "zarr.json").read_text(encoding="utf-8"))
    return [channel["label"] for channel in noted["attributes"]["ome"]["omero"]["channels"]]


def test_others_lie_where_the_reference_does_though_their_overlaps_are_noise(
    every, folder, command, tmp_path
):
    with (folder / "positions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for section in (1, 2):
        name = f"section_{section:02d}"
        figures = record(every, name, "stitch")["figures"]
        places = figures["positions"]
        for channel in CHANNELS[1:]:
            assert record(every, name, channel, "stitch")["figures"]["positions"] == places
        true = {
            f"{row['row']},{row['column']}": np.array([float(row["y"]), float(row["x"])])
            for row in rows
            if row["section"] == str(section)
        }
        for tile, place in true.items():
            found = np.subtract(places[tile], places["0,0"])
            assert found == pytest.approx(place - true["0,0"], abs=5)
    # Measured on its own, the noise gives other places.
    alone = command(
        *("stitch", folder / "mosaics/section_01.ome.zarr", tmp_path / "alone.ome.zarr"),
        *("--channel", "retardance", "--overlap", 0.3, 0.3, "--stitch_refine"),
        *("--stitch_check_overlap", "warning", "--metrics", tmp_path / "alone.json"),
    )
    assert alone.returncode == 0, alone.stderr
    own = json.loads((tmp_path / "alone.json").read_text())["figures"]["positions"]
    places = record(every, "section_01", "stitch")["figures"]["positions"]
    assert max(np.abs(np.subtract(own[tile], places[tile])).max() for tile in places) > 5


def test_sections_of_others_are_displaced_as_those_of_the_reference(every):
    moves = displacements(every)
    assert max(abs(shift) for move in moves for shift in move[:2]) > 3
    for channel in CHANNELS[1:]:
        assert displacements(every, channel) == moves


def test_a_channel_that_was_added_runs_alone(three, every):
    assert every.tasks("COMPLETED") == sorted(task.format(ADDED) for task in TASKS)
    others = {"STITCH_OTHERS", "STACK_OTHERS"}
    steps = {"RESAMPLE", "STITCH", "STACK", "N4", "PYRAMID", *others}
    assert every.processes("CACHED") == steps
    assert labels(three) == [name for name in CHANNELS if name != ADDED]
    assert labels(every) == list(CHANNELS)
    kept = [CHANNELS.index(name) for name in labels(three)]
    levels = sorted(path.parent.name for path in (every.outdir / RESULT).glob("*/zarr.json"))
    for level in levels:
        np.testing.assert_array_equal(
            voxels(every.outdir / RESULT, level)[kept], voxels(three.outdir / RESULT, level)
        )


@pytest.mark.soak
def test_the_reference_is_that_of_a_run_on_it_alone(succeeding, folder, given, every):
    alone = succeeding(folder, *given, "-resume", outdir=folder / "alone")
    assert alone.processes("COMPLETED") == {"PREFLIGHT", "REPORT"}
    for level in ("0", "1"):
        np.testing.assert_array_equal(
            voxels(alone.outdir / RESULT, level), voxels(every.outdir / RESULT, level)[0]
        )


@pytest.mark.soak
@pytest.mark.parametrize(
    "skipped", [("n4", "pyramid"), ("pyramid",), ()], ids=["stack", "n4", "pyramid"]
)
def test_each_subject_of_a_sheet_has_the_channels_of_its_row(
    succeeding, folder, given, skipped, tmp_path
):
    sheet = tmp_path / "cohort.csv"
    names = " ".join(CHANNELS[:2])
    sheet.write_text(
        f"subject,input,channels\nbrain,{folder}/mosaics,{names}\nother,{folder}/mosaics,\n",
        encoding="utf-8",
    )
    replaced = ("--input", "mosaics", "--subject", "brain", "--resolution", "20")
    words = [word for word in given if word not in replaced]
    run = succeeding(
        *(tmp_path, *words, "--samplesheet", sheet, "--skip_report", "--resolution", "none"),
        *("--save_bias_field", "true", *(f"--skip_{step}" for step in skipped)),
    )
    ending = {"n4": "_stack", "pyramid": "_n4", "": ""}["".join(skipped[:1])]
    fields = [] if "n4" in skipped else ["bias.ome.zarr"]
    stores = {p.name for p in run.outdir.glob("*/*.ome.zarr")}
    assert stores == {
        *("brain.ome.zarr", f"other{ending}.ome.zarr"),
        *(f"{name}_{field}" for name in ("brain", "brain_retardance", "other") for field in fields),
    }
    assert labels(run) == list(CHANNELS[:2])


@pytest.fixture(scope="module")
def planned(copy_project):
    """A copy of the project in which -stub plans as a real run does, and stubs leave results."""
    code = copy_project("planned")
    prepare = code / "subworkflows" / "prepare.nf"
    request, is_stub = prepare.read_text(encoding="utf-8"), "is_stub: workflow.stubRun"
    assert is_stub in request
    prepare.write_text(request.replace(is_stub, "is_stub: false"), encoding="utf-8")
    for path in (code / "modules").glob("*.nf"):
        text = path.read_text(encoding="utf-8")
        made = re.sub(r"(?m)^    mkdir ('.+')$", r"    mkdir \1 && touch \1/zarr.json", text)
        path.write_text(made, encoding="utf-8")
    return code


@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param(own, id="-".join(own), marks=[pytest.mark.soak] * (own != ("n4",)))
        for own in ((), ("n4",), ("pyramid",), ("n4", "pyramid"))
    ],
)
@pytest.mark.parametrize("given_to_all", [pytest.param(True, marks=pytest.mark.soak), False])
def test_results_of_any_steps_and_channels_are_named_as_planned(
    succeeding, folder, planned, given_to_all, skipped, tmp_path
):
    cells = ["", "all", " ".join(CHANNELS[1:3]), CHANNELS[0], CHANNELS[2]]
    flag = ("--channels", "all") if given_to_all else ()
    rows = [f"sub{n},{folder}/mosaics,{cell}\n" for n, cell in enumerate(cells)]
    sheet = tmp_path / "cohort.csv"
    sheet.write_text(f"subject,input,channels\n{''.join(rows)}", encoding="utf-8")
    run = succeeding(
        *(tmp_path, "-stub", "--samplesheet", sheet, "--overlap", "0.3", *flag),
        *("--channel", "reflectance", "--resolution", "20", "--skip_report"),
        *(f"--skip_{step}" for step in skipped),
        code=planned,
    )
    alone = "" if "pyramid" not in skipped else "_stack" if "n4" in skipped else "_n4"
    for n in range(len(cells)):
        ending = "" if given_to_all or n else alone
        found = [path.name for path in (run.outdir / f"sub{n}").glob("*.ome.zarr")]
        assert found == [f"sub{n}{ending}.ome.zarr"]


@pytest.mark.soak
def test_what_all_channels_read_is_emptied_last(succeeding, folder, given, every):
    names = [CHANNELS[1], ADDED]
    run = succeeding(
        *(folder, *given, "--channels", " ".join(names), "--keep_intermediates", "false"),
        outdir=folder / "emptied",
    )
    # Three channels: the reference, whose tissue is fitted, is not written.
    assert len(list(folder.glob("work/??/*/*.ome.zarr/0/emptied.json"))) == 3 * 5
    kept = [CHANNELS.index(name) for name in names]
    np.testing.assert_array_equal(voxels(run.outdir / RESULT), voxels(every.outdir / RESULT)[kept])


def test_angles_are_never_averaged(every, folder):
    reading = InputParameters(channel="axis")
    images = [open_image(store, reading) for store in (folder / "mosaics").iterdir()]
    seen = np.unique([image.read(tuple(map(slice, image.grid.shape))) for image in images])
    result = every.outdir / RESULT
    for level in sorted(path.parent.name for path in result.glob("*/zarr.json")):
        angles = voxels(result, level)[CHANNELS.index("axis")]
        assert np.isin(angles[angles != 0], seen).all()
        assert len(np.unique(angles)) > 100
    assert record(every, "axis", "n4")["figures"]["passed_through"] is True


def test_a_task_of_another_channel_needs_no_more_memory(every):
    for step in ("stitch", "stack", "n4", "pyramid"):
        before = ("section_01",) if step == "stitch" else ()
        reference = record(every, *before, step)["peak_memory_bytes"]
        for channel in CHANNELS[1:]:
            assert record(every, *before, channel, step)["peak_memory_bytes"] < 1.2 * reference


@pytest.mark.soak
def test_real_tiles_with_a_file_for_each_channel_become_the_image(succeeding, tmp_path):
    cut = cut_image("neuron-4Ch", (3, 2))
    cut.write(tmp_path / "tiles", (1.0, 0.5, 0.5), one_file=False)
    run = succeeding(
        tmp_path,
        *("--input", "tiles", "--subject", "brain", "--overlap", cut.overlap),
        *("--tile_pattern", "s{section}_r{row}_c{column}_{channel}.ome.tif"),
        *("--channel", "AF568", "--channels", "all", "--stitch_refine", "true"),
        *("--skip_n4", "--skip_pyramid"),
    )
    found = voxels(run.outdir / RESULT)
    # Files are sorted by the names of their channels.
    assert labels(run) == sorted(cut.channels)
    for name, own in zip(labels(run), found, strict=True):
        whole = cut.voxels[cut.channels.index(name)]
        part = tuple(slice(n) for n in own.shape[1:])
        np.testing.assert_allclose(own[0], whole[part], rtol=1e-6)
