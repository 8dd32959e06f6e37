"""STACK with --section_thickness auto, on sections of a phantom imaged deeper than they are cut."""

import csv
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from uneven_sections import UnevenParameters, render_tile, thicknesses

from octane.config.parameters import ExecutionParameters, InputParameters
from octane.core.errors import InputError
from octane.core.geometry import Grid, vector
from octane.processes.report.summary import section_qualities
from octane.processes.report.verdict import check_subject
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import StackFigures
from octane.processes.stack.step import stack_sections
from octane.store.image import open_image
from octane.store.writer import Level, create_image


def phantom(**given):
    """Parameters of sections 24 planes of 10 um deep, and about 16 thick."""
    made = {
        "tiles": (1, 1),
        "edge_fraction": 0,
        "tile_shape": (24, 100, 144),
        "voxel_size": 10,
        "section_thickness": 160,
        "thickness_jitter": 30,
        "speckle_looks": 16,
        "seed": 5,
        "shift": 20,
    }
    return UnevenParameters.model_validate({**made, **given})


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Write the sections of a phantom as STITCH does; they state 160 um, or another thickness."""

    def run(p, left_out=(), surface=None, thickness: float | None = 160.0, changes=()):
        folder, paths = tmp_path_factory.mktemp("sections"), []
        extent = vector(*(10.0 * n for n in p.tile_shape))
        grid = Grid.covering(vector(0, 0, 0), extent, vector(10, 10, 10))
        for number in {*range(1, p.sections + 1)} - {*left_out}:
            path = folder / f"section_{number:02d}.ome.zarr"
            section: dict[str, object] = {"number": number}
            if thickness is not None:
                section["thickness"] = thickness
            if surface is not None:
                section["surface"] = surface(number)
            noted: dict[str, object] = {"kind": "section", "section": section}
            image = [Level.volume(grid)], np.dtype(np.float32)
            with create_image(path, *image, codec="zstd", attributes=noted) as (writer,):
                voxels = render_tile(p, number - 1, (0, 0), p.tile_shape, (0, 0))
                if number in changes:
                    voxels = changes[number](voxels)
                writer[tuple(slice(n) for n in p.tile_shape)] = voxels
            paths.append(path)
        return paths

    return run


@pytest.fixture
def stack(tmp_path):
    """Stack into a new store; returns the voxels, the figures of the sections and the metrics."""
    runs = iter(range(99))

    def run(sources, thickness="auto", *, given=None, table=None, workers=2, **settings):
        destination = tmp_path / f"stack_{next(runs)}.ome.zarr"
        settings = {"section_thickness": thickness, "align": "translation", **settings}
        parameters = StackParameters.model_validate(settings)
        execution = ExecutionParameters(backend="cpu", workers=workers)
        reading = InputParameters()
        metrics = stack_sections(sources, destination, parameters, reading, execution, given, table)
        return open_image(destination).array.opened[:], metrics.figures["sections"], metrics

    return run


def stack_checks(metrics):
    """The checks of a stack by name."""
    figures = StackFigures.model_validate(metrics.figures)
    return {
        own.name: own
        for own in check_subject(section_qualities({}, figures, None), {}, figures, None)
    }


@pytest.fixture(scope="module")
def sources(write):
    """Sections of other thickness than they state."""
    return write(phantom())


def test_measured_thicknesses_lay_sections_where_they_were_cut(sources, stack, tmp_path):
    table, true = tmp_path / "moves.csv", thicknesses(phantom())
    voxels, sections, metrics = stack(sources, table=table)
    assert metrics.warnings == []
    for section, cut in zip(sections[:3], true, strict=False):
        assert section["thickness"] == section["measured_thickness"] == pytest.approx(cut, abs=4)
        assert section["thickness_from"] == "measured"
        assert section["thickness_std"] < 5
    # Nothing shows how thick the last one is.
    assert (sections[3]["thickness"], sections[3]["measured_thickness"]) == (160, None)
    assert not sections[3]["thickness_reason"]
    starts = np.cumsum([0, *true[:3]]) / 10
    assert [section["start"] for section in sections] == pytest.approx(starts, abs=0.8)
    # On one thread, and with the table fed back, the result is the same.
    np.testing.assert_array_equal(stack(sources, workers=1)[0], voxels)
    with table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["thickness"] for row in rows] == [
        *(str(section["thickness"]) for section in sections[:3]),
        "",
    ]
    again, fed, _ = stack(sources, None, given=table, align="none")
    np.testing.assert_array_equal(again, voxels)
    assert [s["thickness_from"] for s in fed] == ["from the table"] * 3 + ["from the metadata"]


def test_right_thicknesses_stay_and_the_result_is_the_same(write, stack):
    sources = write(phantom(thickness_jitter=0))
    voxels, sections, metrics = stack(sources)
    assert metrics.warnings == []
    assert all(section["thickness_from"] == "from the metadata" for section in sections)
    assert all(section["measured_thickness"] for section in sections[:3])
    np.testing.assert_array_equal(voxels, stack(sources, None)[0])


def test_without_shared_depth_nothing_moves_and_a_warning_says_why(write, stack):
    sources = write(phantom(tile_shape=(16, 100, 144)))
    voxels, sections, metrics = stack(sources)
    np.testing.assert_array_equal(voxels, stack(sources, None)[0])
    (warning,) = metrics.warnings
    assert "The thickness of sections 1 (the next section shows fewer" in warning
    assert [bool(section["thickness_reason"]) for section in sections] == [True] * 3 + [False]


def test_one_pair_of_many_decides_nothing(write, stack):
    p = phantom(sections=6)
    other = {
        n: lambda _, n=n: render_tile(phantom(seed=90 + n), 0, (0, 0), p.tile_shape, (0, 0))
        for n in (1, 2, 5, 6)
    }
    sources = write(p, changes=other)
    _, sections, _ = stack(sources)
    assert {section["thickness"] for section in sections} == {160}
    assert all(section["thickness_reason"] for section in sections[:-1])
    *_, metrics = stack(sources, thickness=130.0)
    assert metrics.figures["distance"] is None
    # Two sections have no other pair.
    *_, metrics = stack(sources[2:4], thickness=130.0)
    assert metrics.figures["distance"] is not None


def test_nothing_is_measured_across_a_missing_section(write, stack):
    sources = write(phantom(), left_out=[2])
    _, sections, _ = stack(sources, allow_missing_sections=1)
    assert [section["measured_thickness"] is not None for section in sections] == [
        *(False, False, True, False)
    ]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("9", "line 3: the thickness of section 2 is 9; give micrometres from 10, a voxel, to 240"),
        ("241", "line 3: the thickness of section 2 is 241; give"),
        ("thin", "line 3: the thickness of section 2 is thin; give"),
    ],
)
def test_a_thickness_that_was_not_imaged_is_refused(sources, stack, tmp_path, cell, words):
    table = Path(tmp_path / "moves.csv")
    table.write_text(f"section,y,x,rotation,thickness\n1,,,,\n2,,,,{cell}\n")
    with pytest.raises(InputError, match=words):
        stack(sources, None, given=table)


@pytest.mark.parametrize(("tilt", "is_measured"), [(0.2, True), (1.0, False)])
def test_sections_tilted_against_each_other_are_not_measured_unlevelled(
    write, stack, tilt, is_measured
):
    # Over 100 pixels of 10 um, one degree rises by almost two planes.
    sources = write(phantom(sections=2), surface=lambda n: {"depth": 0.0, "tilt": (n * tilt, 0.0)})
    _, (first, _), metrics = stack(sources)
    assert (first["measured_thickness"] is not None) == is_measured
    assert any("--section_level true" in text for text in metrics.warnings) != is_measured


CAUSES = {
    "excluded": ({"left_out": [3]}, {"excluded_sections": "3"}),
    "missing": ({"left_out": [3]}, {"allow_missing_sections": 1}),
    "blank": ({"changes": {3: np.zeros_like}}, {}),
    "without texture": ({"changes": {3: np.ones_like}}, {}),
}


@pytest.mark.parametrize(
    ("cause", "stated"),
    [
        ("excluded", None),
        ("without texture", 200.0),
        pytest.param("excluded", 200.0, marks=pytest.mark.soak),
        pytest.param("without texture", None, marks=pytest.mark.soak),
        *(
            pytest.param(cause, stated, marks=pytest.mark.soak)
            for cause in ("missing", "blank")
            for stated in (None, 200.0)
        ),
    ],
)
def test_what_cannot_be_measured_is_as_thick_as_the_others(write, stack, tmp_path, cause, stated):
    written, settings = CAUSES[cause]
    p, table = phantom(sections=7, thickness_jitter=0, shift=0), tmp_path / "moves.csv"
    sources = write(p, thickness=stated, **written)
    voxels, sections, metrics = stack(sources, table=table, align="none", **settings)
    assert [s["start"] for s in sections] == pytest.approx(16 * np.arange(7), abs=1)
    reasons = {section["number"]: section["thickness_reason"] for section in sections}
    assert all(reasons[number] for number in (2, 3))
    assert not any(reasons[number] for number in (1, 4, 5, 6, 7))
    (warning,) = [text for text in metrics.warnings if "The thickness of" in text]
    assert re.search(r"sections 2 \(.*\), 3 \(.*\) was not", warning)
    judged = stack_checks(metrics)["Section thickness"]
    assert (judged.state, judged.sections) == ("warning", ("Section 2", "Section 3"))
    # Without a stated one, the last is as thick as the others; its imaged depth proves nothing.
    assert sections[6]["thickness"] == (stated or pytest.approx(160, abs=5))
    again, *_ = stack(sources, None, given=table, align="none", **settings)
    np.testing.assert_array_equal(again, voxels)


FEW = ((None, "none", 1), (240.0, "translation", 16), (140.0, "translation", 1))
"""Cases that are not left to soak."""


@pytest.mark.parametrize(
    ("stated", "align", "looks"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.soak)
        for case in product((None, 240.0, 140.0), ("none", "translation"), (1, 16))
    ],
)
def test_sections_that_lie_elsewhere_than_stated_are_noticed(write, stack, stated, align, looks):
    p = phantom(thickness_jitter=0, section_thickness=180, speckle_looks=looks)
    _, _, metrics = stack(write(p, thickness=stated), None, align=align)
    check = stack_checks(metrics)["Section thickness"]
    assert check.state == "warning"
    assert check.sentence in metrics.warnings
    assert ("repeated" in check.sentence) == (stated != 140)
    (thickness,) = re.findall(r"--section_thickness ([\d.]+)", check.sentence)
    assert float(thickness) == pytest.approx(180, abs=4)


@pytest.mark.parametrize("looks", [1, pytest.param(16, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("depth", "thickness"), [(16, None), (24, 160.0), (17, None)])
def test_sections_that_lie_as_stated_or_share_nothing_are_not_blamed(
    write, stack, depth, thickness, looks
):
    p = phantom(thickness_jitter=0, tile_shape=(depth, 100, 144), speckle_looks=looks)
    _, _, metrics = stack(write(p, thickness=thickness), None)
    assert not any("--section_thickness" in text for text in metrics.warnings)
    check = stack_checks(metrics).get("Section thickness")
    assert check is None or check.state == "good"


@pytest.mark.parametrize(
    "seed", [4, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 6))]
)
@pytest.mark.parametrize("align", ["translation", "rigid"])
def test_sound_sections_are_not_moved_by_the_noise_of_their_own_tissue(write, stack, align, seed):
    # Without shared depth, what tissue moves by from plane to plane is measured in speckle.
    given = {"tile_shape": (8, 160, 150), "section_thickness": 80, "thickness_jitter": 0}
    sources = write(phantom(**given, sections=3, shift=0, speckle_looks=1, seed=seed), thickness=80)
    voxels, sections, metrics = stack(sources, None, align=align)
    assert not any(section["moved"] for section in sections)
    np.testing.assert_array_equal(voxels, stack(sources, None, align="none")[0])
    assert metrics.warnings == []
