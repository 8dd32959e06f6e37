"""The verdict: faults made in a phantom are found by the check for them; good subjects pass all."""

from collections.abc import Callable

import numpy as np
import pytest
import zarr

from octane.config.params import PhantomParameters, StackParameters, StitchParameters
from octane.core.errors import OctaneError
from octane.core.records import (
    LevelFigures,
    N4Figures,
    SectionFigures,
    StackFigures,
    StitchFigures,
)
from octane.report.summary import qualities
from octane.report.verdict import Check, checks
from octane.steps.phantom import Subject, render_tile
from octane.steps.stack import stack_sections
from octane.steps.stitch import stitch_section
from octane.store.image import open_image
from octane.store.mosaic_grid import MosaicGrid

PHANTOM = {
    "sections": 3,
    "tiles": (3, 3),
    "tile_shape": (8, 60, 60),
    "voxel_size": (10.0, 10.0, 10.0),
    "overlap": (0.2, 0.25),
    "section_thickness": 60.0,
    "speckle_looks": 16,
    "shading": 0.1,
    "bias": 0.5,
    "attenuation": 1.0,
    "edge_fraction": 0.0,
}
Change = Callable[[np.ndarray, MosaicGrid], np.ndarray]


@pytest.fixture
def judge(tmp_path, write_phantom, reading, execution):
    """Make a phantom, change the voxels of its second section, reconstruct it and judge it."""

    def run(change: Change | None = None, stitching=None, **given) -> list[Check]:
        folder, _ = write_phantom(**{**PHANTOM, **given})
        stitched, sections = {}, []
        for source in sorted((folder / "mosaics").iterdir()):
            image = open_image(source)
            if change is not None and source.name.startswith("section_02"):
                changed = change(np.asarray(image.array[:]), MosaicGrid.of(image))
                zarr.open_array(source / "0")[:] = changed
            sections.append(tmp_path / "out" / source.name)
            own = StitchParameters(**stitching or {})
            metrics = stitch_section(source, sections[-1], own, reading, execution)
            stitched[source.name] = StitchFigures.model_validate(metrics.figures)
        volume = tmp_path / "out" / "stack.ome.zarr"
        metrics = stack_sections(sections, volume, StackParameters(), reading, execution)
        stack = StackFigures.model_validate(metrics.figures)
        return checks(qualities(stitched, stack, None), stitched, stack, None)

    return run


def exchanged(voxels, grid):
    """Put the first two tiles of the second row in each other's place."""
    one, other = grid.region((1, 0)), grid.region((1, 1))
    changed = voxels.copy()
    changed[one], changed[other] = voxels[other], voxels[one]
    return changed


def moved(voxels, grid):
    """Image the middle tile 50 um off its place."""
    parameters = PhantomParameters.model_validate(PHANTOM)
    y, x = Subject.of(parameters).pitch
    changed = voxels.copy()
    shape = tuple(r.stop - r.start for r in grid.region((1, 1)))
    changed[grid.region((1, 1))] = render_tile(parameters, 1, (1, 1), shape, (y + 50, x - 50))
    return changed


def flipped(*axes):
    return lambda voxels, _: np.flip(voxels, axes)


OVERLAPS = ["Overlap along y", "Overlap along x"]
FAULTS = {
    "wrong overlap y": (None, (0.25, 0.25), OVERLAPS[:1], "give --overlap 0.2,0.25,"),
    "wrong overlap x": (None, (0.2, 0.2), OVERLAPS[1:], "give --overlap 0.2,0.25,"),
    "both wrong": (None, (0.25, 0.2), OVERLAPS, "give --overlap 0.2,0.25,"),
    "one shifted": (moved, None, ["Tiles out of place"], "Section 2, row 1, column 1 fits +"),
    "two swapped": (exchanged, None, ["Tiles out of place"], "row 1, column 0 fits in the place"),
    "dark": (lambda v, _: 0.3 * v, None, ["Section brightness"], "Section 2 has 0.3"),
    "flipped in y": (flipped(1), None, ["Section orientation"], "Section 2 fits flipped in y;"),
    "flipped in x": (flipped(2), None, ["Section orientation"], "Section 2 fits flipped in x;"),
    "rotated": (flipped(1, 2), None, ["Section orientation"], "Section 2 fits flipped in yx;"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_check(judge, fault):
    change, overlap, names, words = FAULTS[fault]
    found = judge(change, {"overlap": overlap, "check_overlap": "warning"})
    warned = {check.name: check for check in found if check.state == "warning"}
    # Seams may say it as well.
    assert [name for name in warned if not name.startswith("Seams")] == names
    assert all(words in warned[name].sentence for name in names)


def test_a_small_advantage_on_which_many_pairs_agree_is_enough(judge):
    wrong = {"overlap": (0.1, 0.25), "check_overlap": "warning"}
    found = judge(None, wrong, tile_shape=(8, 69, 51), overlap=(0.1, 0.2))
    (warned,) = [check for check in found if check.name == "Overlap along x"]
    assert warned.state == "warning"
    assert "not 0.25; give --overlap 0.1,0.2" in warned.sentence


def test_an_overlap_at_which_no_tile_fits_stops_the_section(judge, tmp_path):
    words = r"section_01.* by 0\.25 along x, not 0\.1; give --overlap 0\.2,0\.25"
    with pytest.raises(OctaneError, match=words):
        judge(None, {"overlap": (0.2, 0.1)})
    assert not (tmp_path / "out" / "section_01.ome.zarr").exists()


GOOD = [
    {"seed": seed, **size, "speckle_looks": looks, **light}
    for seed, (size, looks, light) in enumerate(
        (size, looks, light)
        for looks in (1, 2, 4, 16, 0)
        for size, light in (
            ({"tiles": (3, 3)}, {"bias": 0.0, "shading": 0.0}),
            ({"tiles": (2, 3), "tile_shape": (8, 48, 72)}, {"bias": 1.0, "shading": 0.3}),
            ({"tiles": (4, 2), "edge_fraction": 0.25}, {"section_steps": 0.2}),
            ({"tiles": (2, 2), "overlap": (0.1, 0.15), "voxel_size": (10.0, 5.0, 5.0)}, {}),
        )
    )
]


ABUTTING = [
    {"seed": seed, "overlap": overlap, "tile_shape": shape, "tiles": (4, 4), "sections": 2}
    for seed, overlap in enumerate([(0.0, 0.0), (0.02, 0.05)])
    for shape in ((8, 26, 26), (8, 64, 64))
]


@pytest.mark.parametrize("subject", ABUTTING)
def test_tiles_that_hardly_overlap_fit_nowhere_else(judge, subject):
    found = judge(**{"voxel_size": (10.0, 4.0, 4.0), **subject})
    assert [check for check in found if check.state == "warning"] == []


@pytest.mark.parametrize("overlap", [(0.0, 0.0), (0.02, 0.25)])
def test_an_overlap_given_as_none_is_found(judge, overlap):
    with pytest.raises(OctaneError, match=r"give --overlap 0\.2"):
        judge(None, {"overlap": overlap})


# More sections have a larger largest seam.
@pytest.mark.parametrize("subject", [*GOOD, {**GOOD[1], "sections": 16}])
def test_a_good_subject_raises_nothing(judge, subject):
    found = judge(**subject)
    assert [check for check in found if check.state == "warning"] == []
    assert sum(check.state == "good" for check in found) >= 7


def n4(**given):
    level = LevelFigures(iterations=50, convergence=[0.1, 0.002])
    known = N4Figures(
        levels=[level],
        cv_before=0.3,
        cv_after=0.1,
        field_min=0.5,
        field_max=2.0,
        mask_fraction=0.5,
        shrunk_shape=(1, 2, 3),
        shrunk_spacing=(1.0, 1.0, 1.0),
    )
    return known.model_copy(update=given)


@pytest.mark.parametrize(
    ("figures", "warned"),
    [
        (n4(), []),
        (n4(levels=[LevelFigures(iterations=50, convergence=[0.02])]), ["N4 convergence"]),
        (n4(field_max=8.0), ["Range of the bias field"]),
        (n4(cv_after=0.31), ["Variation in tissue"]),
    ],
)
def test_the_correction_is_judged(figures, warned):
    found = checks([], {}, None, figures, 0.001)
    assert [check.name for check in found if check.state == "warning"] == warned
    unknown = checks([], {}, None, figures)
    assert {check.name: check.state for check in unknown}["N4 convergence"] == "not checked"


def test_what_cannot_be_compared_is_not_checked_and_says_why():
    tiles = {"s": StitchFigures(section=1, tiles=1, shape=(1, 2, 3))}
    slab = SectionFigures(number=1, start=0, stop=1)
    stack = StackFigures(sections=[slab], shape=(1, 2, 3), voxel_size=(1.0, 1.0, 1.0))
    found = checks(qualities(tiles, stack, None), tiles, stack, None)
    unknown = [check for check in found if check.state == "not checked"]
    assert len(unknown) == 8
    assert all(check.value == "–" and check.sentence for check in unknown)
    assert not [check for check in found if check.state == "warning"]
