"""The CUDA kernel of resampling compiles for every generation of GPUs and every type of voxel."""

import pytest

from octane.core.arrays import working_type
from octane.resample.gpu import SOURCE, TYPES, band_options

FLOATS = [t for t in TYPES if t.kind == "f" and t.itemsize > 2]


def fits(nvrtc, found, at_once=1536):
    """As many threads at once as the kernel is written for."""
    assert list(found) == ["band"]
    registers, shared = found["band"]
    assert registers * at_once <= nvrtc.REGISTERS
    assert shared == 0


@pytest.mark.parametrize("work", FLOATS, ids=str)
def test_the_kernel_compiles_without_warnings_and_leaves_room_for_many_threads(
    nvrtc, generation, work
):
    # Turing's multiprocessors hold no more.
    at_once = 1024 if generation == 75 else 1536
    fits(nvrtc, nvrtc.needs(SOURCE, band_options(work, work, work), generation), at_once)


@pytest.mark.parametrize("voxel", [t for t in TYPES if t.kind != "c"], ids=str)
def test_it_compiles_for_all_types(nvrtc, voxel):
    work = working_type(voxel)
    fits(nvrtc, nvrtc.needs(SOURCE, band_options(voxel, work, work), 80))
    for source in FLOATS:
        nvrtc.needs(SOURCE, band_options(source, voxel, source), 80)
