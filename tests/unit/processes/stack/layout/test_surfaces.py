"""The surface of each section: as given, as measured, or as that of the others."""

import numpy as np
import pytest
from refusals import refused

from octane.processes.stack.layout.surfaces import cut_surfaces, require_surfaces
from octane.processes.stack.parameters import StackParameters
from octane.store.image import open_image

AUTO = StackParameters(section_surface="auto")
LEVEL = StackParameters(section_surface="auto", section_level=True)
EXTENT = (80.0, 600.0, 800.0)


@pytest.fixture
def sections(write_image):
    """Sections with these surfaces in their metadata; None: without."""

    def write(*noted):
        made = []
        for number, surface in enumerate(noted, start=1):
            section = {"number": number} | ({} if surface is None else {"surface": surface})
            path = write_image(
                f"section_{number}.ome.zarr",
                np.ones((2, 3, 4), np.float32),
                attributes={"kind": "section", "section": section},
            )
            made.append(open_image(path))
        return made

    return write


def found(images, parameters):
    return [tuple(own) for own in cut_surfaces(images, [EXTENT] * len(images), 10.0, parameters)]


def test_a_constant_is_that_of_all_sections(sections):
    images = sections({"depth": 30.0, "tilt": [1.0, 2.0]}, {"reason": "two interfaces"}, None)
    expected = (12.5, (0.0, 0.0), "as given")
    assert found(images, StackParameters(section_surface=12.5)) == [expected] * 3


def test_a_section_without_a_surface_gets_the_median_of_the_others(sections):
    images = sections(
        {"depth": 30.0, "tilt": [1.0, 2.0]},
        {"reason": "two interfaces"},
        {"depth": 50.0, "tilt": [0.0, 0.0]},
        {"depth": 31.0, "tilt": [0.5, -0.5]},
    )
    depths = [(30.0, "measured"), (31.0, "of the other sections"), (50.0, "measured")]
    depths.append((31.0, "measured"))
    assert found(images, AUTO) == [(depth, (0.0, 0.0), source) for depth, source in depths]
    tilts = [own[1] for own in found(images, LEVEL)]
    assert tilts == [(1.0, 2.0), (0.0, 0.0), (0.0, 0.0), (0.5, -0.5)]


@pytest.mark.parametrize(
    ("noted", "depths"),
    [
        (({"depth": 30.0, "tilt": [0.0, 0.0]}, {"reason": "no rise"}, None), [30.0, 0.0, 0.0]),
        # 75 would leave no plane of the second.
        (({"depth": 75.0, "tilt": [0.0, 0.0]}, {"reason": "no rise"}), [75.0, 0.0]),
    ],
)
def test_most_sections_decide_for_the_others(sections, noted, depths):
    assert [own[0] for own in found(sections(*noted), AUTO)] == depths


@pytest.mark.parametrize(("tilt", "is_levelled"), [(1.0, True), (8.0, False)])
def test_auto_levels_no_section_of_which_no_plane_would_be_whole(sections, tilt, is_levelled):
    auto = StackParameters(section_surface="auto", section_level="auto")
    images = sections({"depth": 30.0, "tilt": [tilt, 0.0]})
    assert found(images, LEVEL)[0][1] == (tilt, 0.0)
    assert found(images, auto)[0][1] == ((tilt, 0.0) if is_levelled else (0.0, 0.0))


def test_nothing_is_cropped_where_no_surface_was_measured(sections):
    images = sections({"reason": "no rise"}, None)
    assert found(images, LEVEL) == [(0.0, (0.0, 0.0), "none measured")] * 2


@pytest.mark.parametrize(
    ("tilt", "noise", "removed"),
    [
        # It rises by 2.4 micrometre at the border, less than a quarter of a voxel, and by 2.6.
        ([0.46, 0.0], None, False),
        ([0.50, 0.0], None, True),
        ([0.0, 0.38], None, True),
        ([-0.24, 0.2], None, True),
        ([0.5, 0.4], [0.3, 0.3], False),
        ([0.5, 0.4], [0.3, 0.1], True),
    ],
)
def test_only_a_tilt_that_exceeds_noise_is_removed(sections, tilt, noise, removed):
    noted = {"depth": 20.0, "tilt": tilt} | ({} if noise is None else {"tilt_std": noise})
    ((_, own, _),) = found(sections(noted), LEVEL)
    assert own == (tuple(tilt) if removed else (0.0, 0.0))


@pytest.mark.parametrize(
    ("noted", "parameters", "words"),
    [
        ({"depth": 1.0}, StackParameters(section_level=True), ("--section_level",)),
        ({"depth": "deep"}, AUTO, ("section_1.ome.zarr",)),
        (
            [20.0],
            AUTO,
            (
                "section_1.ome.zarr",
                "[20.0]",
            ),
        ),
    ],
)
def test_what_no_surface_can_come_from_is_refused(sections, noted, parameters, words):
    with refused(*words):
        require_surfaces(sections(noted), parameters)


def test_a_section_in_which_no_surface_was_found_is_accepted(sections):
    require_surfaces(sections({"reason": "no rise"}), LEVEL)
