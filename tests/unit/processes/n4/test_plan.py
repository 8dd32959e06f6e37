"""Resources are planned before a run, and derived parameters stay within the memory."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from n4_volumes import planned
from pydantic import ValidationError
from refusals import refused

from octane.core.errors import OctaneError
from octane.core.units import bytes_of
from octane.layout.sections import Section
from octane.processes.n4.parameters import N4Parameters
from octane.processes.n4.plan import Mesh, plan_mesh, shrink_factors


@given(
    st.tuples(*[st.integers(40, 6000)] * 3),
    st.sampled_from(["1200MB", "2GB", "8GB"]),
    st.sampled_from(["uint8", "uint16", "float32", "float64"]),
)
def test_what_is_derived_fits_the_memory(tmp_path_factory, shape, memory, dtype):
    found = planned(tmp_path_factory.getbasetemp(), shape, memory, dtype=dtype)
    assert found.predicted_bytes <= bytes_of(memory)


def test_what_is_given_is_not_changed_to_fit(tmp_path):
    with refused("--memory", "2.0"):
        planned(tmp_path, (4000, 3000, 3000), "2GB", shrink_factor=4)


SECTIONS = [Section(str(k), k, 20 * k, 20 * k + 20) for k in range(10)]


def test_thin_sections_keep_their_planes_and_their_mesh_is_not_refined_along_them(tmp_path):
    found = planned(tmp_path, (200, 300, 300), sections=SECTIONS, mode="two_pass")
    assert found.keep[0].step == 1
    assert found.sections[0].mesh.fitting_levels[0] == 1


@pytest.mark.parametrize("settings", [{"z_profile_gain": True}, {"histogram_matching": "plane"}])
def test_planes_that_are_levelled_are_all_seen(tmp_path, settings):
    assert planned(tmp_path, (800, 900, 900), **settings).keep[0].step == 1


# Meshes and shrink factors: as given, or derived from the volume

PATH = Path("volume.ome.zarr")


def mesh(shape, spacing=(10.0, 10.0, 10.0), *, section=False, **settings):
    parameters = N4Parameters.model_validate({"iterations": "auto", **settings})
    return plan_mesh(shape, spacing, parameters, PATH, section=section)


@pytest.mark.parametrize(
    ("shape", "spacing", "levels"),
    [
        # A head of 1 mm voxels has ITK's four levels.
        ((200, 240, 220), (1000.0, 1000.0, 1000.0), (4, 4, 4)),
        # A mouse brain at 10 um too, an axis of half a millimetre one.
        ((50, 1100, 1000), (10.0, 10.0, 10.0), (1, 4, 4)),
        ((1, 123, 123), (10.0, 10.0, 10.0), (1, 2, 2)),
        # Anisotropic: finer voxels do not make the mesh finer in micrometres.
        ((20, 400, 400), (100.0, 10.0, 10.0), (1, 4, 4)),
        # Knots are 25 voxels and half a millimetre apart.
        ((99,) * 3, (100.0,) * 3, (2, 2, 2)),
        ((100,) * 3, (100.0,) * 3, (3, 3, 3)),
        ((199,) * 3, (10.0,) * 3, (2, 2, 2)),
        ((200,) * 3, (10.0,) * 3, (3, 3, 3)),
    ],
)
def test_levels_follow_from_extent_and_voxel_size(shape, spacing, levels):
    found = mesh(shape, spacing)
    assert found.fitting_levels == levels
    assert found.iterations == (50,) * max(levels)


@pytest.mark.parametrize(
    ("settings", "iterations"),
    [
        ({"levels": 3}, (50, 50, 50)),
        ({"levels": "3", "iterations": "30 20"}, (30, 20, 20)),
        ({"levels": 1, "iterations": "30 20"}, (30,)),
        ({"levels": 0}, ()),
        ({"levels": "none", "iterations": "30 20"}, (30, 20)),
        # Judged after the fit, of those given.
        ({"levels": "Auto", "iterations": "30 20"}, (30, 20)),
    ],
)
def test_a_number_of_levels_holds_for_every_axis(settings, iterations):
    found = mesh((99, 200, 200), **settings)
    assert found.iterations == iterations
    assert found.fitting_levels == (max(1, len(iterations)),) * 3


def test_a_spline_distance_sets_the_spans_of_each_axis():
    # 0.6, 1 and 2 mm along z, y and x.
    found = mesh((61, 101, 201), spline_distance_mm=(0.5, 0.3, 0.2), iterations=(5,))
    assert found.control_points == (3 + 3, 4 + 3, 4 + 3)


def test_a_spline_distance_beyond_the_volume_is_refused_but_for_a_thin_section():
    words = r"volume\.ome\.zarr.*1 mm along z.*0\.6 mm long; give at most '1 1 0\.6' \(x y z\)"
    with pytest.raises(OctaneError, match=words):
        mesh((61, 201, 201), spline_distance_mm=1)
    # Voxels of 0.7 mm in float32: the extent of 26 is slightly below 17.5 mm.
    fine = (float(np.float32(0.7)) * 1000,) * 3
    assert mesh((26, 26, 26), fine, spline_distance_mm=17.5).control_points == (4, 4, 4)
    assert mesh((61, 201, 201), spline_distance_mm=1, section=True).control_points == (4, 5, 5)
    assert mesh((1, 201, 201), spline_distance_mm=1).control_points == (4, 5, 5)


COARSE = Mesh((4, 4, 4), (50,), (1, 1, 1))
FINE = Mesh((4, 4, 4), (50,) * 4, (4, 4, 4))
MUCH = 10**12


@pytest.mark.parametrize(
    ("shape", "mesh", "depth", "most", "given", "factors"),
    [
        ((10, 10, 10), FINE, 10, 1, (5, 6, 7), (5, 6, 7)),
        ((800, 900, 1000), FINE, 800, MUCH, None, (4, 4, 4)),
        ((20, 30, 30), COARSE, 20, MUCH, None, (1, 1, 1)),
        # Small volumes are shrunk less: factors of 2 would leave 113,460 voxels here.
        ((60, 123, 123), COARSE, 60, MUCH, None, (1, 1, 1)),
        # Thin sections keep their planes.
        ((1000, 900, 900), COARSE, 20, MUCH, None, (1, 4, 4)),
        ((1000, 900, 900), COARSE, 20, 10**6, None, (1, 29, 28)),
    ],
)
def test_factors_are_as_given_or_follow_from_size_and_mesh(
    shape, mesh, depth, most, given, factors
):
    assert shrink_factors(shape, [mesh], depth, most, given) == factors


def test_voxels_times_iterations_count_every_fit_and_plane(tmp_path):
    shape = (200, 60, 80)
    plan = partial(planned, tmp_path, shape, iterations=(30, 10), shrink_factor=(2, 2, 1))
    once = plan().voxel_iterations
    assert once == 200 * 30 * 40 * (30 + 10)
    assert plan(sections=SECTIONS, mode="two_pass").voxel_iterations == 2 * once


@pytest.mark.parametrize("levels", [7, "7", -1, 1.5, "many"])
def test_a_wrong_number_of_levels_is_one_problem(levels):
    with pytest.raises(ValidationError) as found:
        N4Parameters(levels=levels)
    assert [problem["loc"] for problem in found.value.errors()] == [("levels",)]


def test_a_number_of_levels_may_be_a_number_of_a_config():
    assert [N4Parameters(levels=own).levels for own in (2, 2.0, "2", "AUTO", "none")] == [
        *(2, 2, 2, "auto", None)
    ]
