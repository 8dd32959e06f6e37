"""What a run will take is decided before it, and the memory is not exceeded by what is chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octane.config.params import ExecutionParameters, N4Parameters, bytes_of
from octane.core.errors import OctaneError
from octane.core.geometry import Grid
from octane.n4.plan import plan_n4
from octane.store.sections import Section
from octane.store.volumes import ArrayVolume


def plan(tmp_path, shape, memory="4GB", sections=(), *, dtype="float32", **settings):
    parameters = N4Parameters.model_validate(
        {"shrink_factor": "auto", "iterations": "auto", **settings}
    )
    execution = ExecutionParameters(backend="cpu", workers=2, memory=memory)
    # A plan reads no voxel.
    voxels, grid = np.broadcast_to(np.zeros((), dtype), shape), Grid(shape, (10.0, 10.0, 10.0))
    volume = ArrayVolume(tmp_path / "v.ome.zarr", voxels, grid, {})
    return plan_n4(volume, sections, parameters, execution, whole_files=0)


@given(
    st.tuples(*[st.integers(40, 6000)] * 3),
    st.sampled_from(["1200MB", "2GB", "8GB"]),
    st.sampled_from(["uint8", "uint16", "float32", "float64"]),
)
def test_what_is_derived_fits_the_memory(tmp_path_factory, shape, memory, dtype):
    found = plan(tmp_path_factory.getbasetemp(), shape, memory, dtype=dtype)
    assert found.predicted_bytes <= bytes_of(memory)


def test_what_is_given_is_not_changed_to_fit(tmp_path):
    with pytest.raises(OctaneError, match=r"--memory allows 2\.0 GB"):
        plan(tmp_path, (4000, 3000, 3000), "2GB", shrink_factor=4)


SECTIONS = [Section(str(k), k, 20 * k, 20 * k + 20) for k in range(10)]


def test_thin_sections_keep_their_planes_and_their_mesh_is_not_refined_along_them(tmp_path):
    found = plan(tmp_path, (200, 300, 300), sections=SECTIONS, mode="two_pass")
    assert found.keep[0].step == 1
    assert found.sections[0].mesh.fitting_levels[0] == 1


@pytest.mark.parametrize("settings", [{"z_profile_gain": True}, {"histogram_matching": "plane"}])
def test_planes_that_are_levelled_are_all_seen(tmp_path, settings):
    assert plan(tmp_path, (800, 900, 900), **settings).keep[0].step == 1
