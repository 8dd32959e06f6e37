"""A run's tables fed back, rows changed by hand, and sections left out by number."""

import csv
import json
import shutil

import numpy as np
import pytest
from runs import Run, checksums, last_words, voxels

STACK = "brain/brain_stack.ome.zarr"
POSITIONS, DISPLACEMENTS = "positions_given.csv", "displacements_given.csv"


@pytest.fixture(scope="module")
def folder(command, tmp_path_factory):
    """Launch folder of these runs: four displaced sections, imaged by an inexact stage."""
    folder = tmp_path_factory.mktemp("corrections") / "subject"
    made = command(
        *("phantom", folder, "--sections", 4, "--tiles", 2, 2, "--tile_shape", 24, 96, 96),
        *("--section_thickness", 70, "--position_error", 12, "--shift", 30, "--overlap", 0.3),
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def resumed(nextflow, folder):
    """Resume with more arguments, without N4, into a folder named after the run."""

    def run(name, *arguments, mosaics="mosaics", code=0):
        given = ("--input", mosaics, "--subject", "brain", "--skip_n4", "--skip_pyramid")
        made = nextflow(folder, *given, *arguments, "-resume", outdir=folder / name)
        assert made.code == code, made.output
        return made

    return run


@pytest.fixture(scope="module")
def first(resumed, folder):
    """A refined and aligned run; its tables are copied into the launch folder."""
    run = resumed("first", "--stitch_refine", "true", "--stack_align", "translation")
    for name in (POSITIONS, DISPLACEMENTS):
        own = f"brain_{name.replace('_given', '')}"
        shutil.copy(run.outdir / "brain" / own, folder / name)
    return run


@pytest.fixture(scope="module")
def fed_back(resumed, first):
    """The first run's tables fed back, without refinement and alignment."""
    return resumed("fed_back", *tables())


def tables(positions=POSITIONS, displacements=DISPLACEMENTS):
    """Arguments that give both tables."""
    return ("--positions", positions, "--displacements", displacements)


def figures(run: Run, name):
    """Figures of a task."""
    record = run.outdir / "brain" / "metrics" / f"{name}_metrics.json"
    return json.loads(record.read_text(encoding="utf-8"))["figures"]


def rows(path):
    """Rows of a table of numbers, by name."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write_rows(path, table):
    """Write such a table."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, table[0])
        writer.writeheader()
        writer.writerows(table)


def test_tables_fed_back_give_the_same_bits(first, fed_back):
    assert checksums(fed_back.outdir) == checksums(first.outdir)
    # Tiles and sections were moved.
    assert figures(first, "section_01_stitch")["refinement_micrometer"]["max"] > 1
    assert any(section["moved"] for section in figures(first, "stack")["sections"])
    own, other = (run.outdir / "brain" / "brain_positions.csv" for run in (first, fed_back))
    assert own.read_bytes() == other.read_bytes()
    page = (fed_back.outdir / "brain" / "brain_report.html").read_text(encoding="utf-8")
    assert page.count("as given by the user") == 4


@pytest.mark.soak
def test_a_row_that_is_changed_moves_a_section_or_a_tile_alone(resumed, folder, fed_back):
    positions, displacements = (rows(folder / name) for name in (POSITIONS, DISPLACEMENTS))
    outer, inner = sorted(
        (tile for tile in positions if (tile["section"], tile["column"]) == ("2", "0")),
        key=lambda tile: float(tile["x"]),
    )
    # Half way to the outermost tile: the volume stays where it is.
    step = (float(inner["x"]) - float(outer["x"])) / 2
    inner["x"] = float(inner["x"]) - step
    displacements[2]["x"] = float(displacements[2]["x"]) + 8
    write_rows(folder / "p.csv", positions)
    write_rows(folder / "d.csv", displacements)
    run = resumed("changed", *tables("p.csv", "d.csv"))
    assert run.tasks("COMPLETED") == [
        *("PREFLIGHT (run)", "REPORT (brain)", "STACK (brain)", "STITCH (brain:section_02)")
    ]
    before, after = (figures(of, "section_02_stitch")["positions"] for of in (fed_back, run))
    assert after == before | {f"{inner['row']},0": [float(inner["y"]), inner["x"]]}
    assert step > 1
    before, after = (figures(of, "stack")["sections"] for of in (fed_back, run))
    moves = [np.subtract(b["shift"], a["shift"]) for a, b in zip(before, after, strict=True)]
    np.testing.assert_allclose(moves, [[0, 0], [0, 0], [0, 8], [0, 0]], atol=1e-9)
    old, new = (voxels(of.outdir / STACK) for of in (fed_back, run))
    planes = [slice(section["start"], section["stop"]) for section in before]
    assert old.shape == new.shape
    for own in (planes[0], planes[3]):
        np.testing.assert_array_equal(new[own], old[own])
    # What is shown at a place was imaged 2 voxels to the right.
    np.testing.assert_allclose(new[planes[2], :, 2:-4], old[planes[2], :, 4:-2], rtol=1e-4)


@pytest.mark.soak
def test_a_flipped_section_alone_is_read_the_other_way_round(resumed, fed_back):
    run = resumed("flipped", *tables(), "--flip_sections", "2: yx, 4: y")
    assert run.tasks("COMPLETED") == ["PREFLIGHT (run)", "REPORT (brain)", "STACK (brain)"]
    sections = figures(run, "stack")["sections"]
    assert [section["flip"] for section in sections] == ["", "yx", "", "y"]
    # Neither lies outermost along a flipped axis: the volume begins where it did.
    old, new = (voxels(of.outdir / STACK) for of in (fed_back, run))
    changed = {
        section["number"]
        for section in sections
        if (old != new)[section["start"] : section["stop"]].any()
    }
    assert changed == {2, 4}


@pytest.mark.soak
def test_blending_changes_the_planes_below_borders_alone(resumed, fed_back):
    run = resumed("blended", *tables(), "--stack_blend", "14")
    assert run.processes("COMPLETED") == {"PREFLIGHT", "STACK", "REPORT"}
    sections = figures(run, "stack")["sections"]
    assert [section["blended"] for section in sections] == [0, 14, 14, 14]
    (z, _, _) = figures(run, "stack")["voxel_size"]
    old, new = (voxels(of.outdir / STACK) for of in (fed_back, run))
    changed = np.flatnonzero((new != old).any(axis=(1, 2)))
    starts = [section["start"] for section in sections[1:]]
    assert changed.tolist() == [start + k for start in starts for k in range(round(14 / z))]


@pytest.mark.soak
def test_sections_that_are_left_out_are_as_if_moved_away(resumed, folder, fed_back):
    run = resumed("left_out", *tables(), "--exclude_sections", "1,3")
    assert run.processes("COMPLETED") == {"PREFLIGHT", "STACK", "REPORT"}
    assert run.tasks("CACHED") == ["STITCH (brain:section_02)", "STITCH (brain:section_04)"]
    assert "Excluded sections: 1 3." in run.output
    for number in (2, 4):
        name = f"section_{number:02d}.ome.zarr"
        shutil.copytree(folder / "mosaics" / name, folder / "moved" / name)
    for name in (POSITIONS, DISPLACEMENTS):
        kept = [row for row in rows(folder / name) if row["section"] in ("2", "4")]
        write_rows(folder / f"kept_{name}", kept)
    given = tables(f"kept_{POSITIONS}", f"kept_{DISPLACEMENTS}")
    by_hand = resumed("moved_away", *given, "--allow_missing_sections", "1", mosaics="moved")
    assert checksums(run.outdir) == checksums(by_hand.outdir)
    report = run.outdir / "brain" / "brain_report.json"
    twin = json.loads(report.read_text(encoding="utf-8"))
    assert (twin["summary"]["excluded"], twin["summary"]["missing"]) == (2, 0)
    (check,) = (check for check in twin["checks"] if check["name"] == "Missing sections")
    assert check["state"] == "good"
    assert check["value"] == "0 of 2; excluded by the user: 1 3"
    page = report.with_suffix(".html").read_text(encoding="utf-8")
    for title in ("Section 1", "Section 3"):
        assert f"{title}, excluded by the user" in page


@pytest.mark.soak
def test_a_result_in_its_place_and_a_wrong_row_are_refused(resumed, first, folder):
    table = first.outdir / "brain" / "brain_displacements.csv"
    run = resumed("first", "-stub", "--displacements", table, code=1)
    assert f"{table} is a result, which this run replaces; copy it" in last_words(run.output)
    (folder / "wrong.csv").write_text("section,y,x,rotation\n2,0,0,0\n7,0,0,0\n")
    run = resumed("wrong", "--displacements", "wrong.csv", code=1)
    assert last_words(run.output) == (
        f"{folder}/wrong.csv, line 3: the input has no section 7; remove the row, or correct it."
    )
