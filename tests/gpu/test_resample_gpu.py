"""Resampling on a GPU: the kernel against the host bit for bit, its memory, the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device import taken_from
from foreign_images import foreign_image
from hypothesis import example, given, settings
from hypothesis import strategies as st
from resampling import operators_of, pushed, resample_arrays, voxels
from runs import contents

from octane.core.arrays import as_dtype
from octane.core.metrics import Metrics
from octane.gpu.pinned import HostMemory
from octane.pipeline.lanes import Lane
from octane.resample.gpu import TYPES, CudaResampler, device_bytes
from octane.resample.operator import interpolator

PROJECT = Path(__file__).resolve().parents[2]

SHAPE = (40, 70, 96)
FACTORS = {
    "10 over 3.5": (10 / 3.5,) * 3,
    "each axis its own": (1.0, 2.5, 7.0),
    "finer": (0.7, 0.5, 0.9),
    "coarser than the axis": (100.0, 3.0, 3.0),
}


def lane_of(cupy, memory):
    """Create a lane as the pipeline does."""
    metrics = Metrics("test")
    return Lane(cupy, metrics, memory, metrics.timeline.track("lane"))


@pytest.fixture(scope="module")
def resampler_(cupy):
    """One resampler for all tests: its buffers hold remains of earlier volumes."""
    with HostMemory(cupy) as memory:
        lane = lane_of(cupy, memory)
        with lane.active():
            yield CudaResampler(lane)


def check(resampler, array, operators, dtype=None, **how):
    """Compare the kernel with sums of entire arrays, bit for bit except for NaN."""
    result = pushed(resampler, array, operators, dtype, **how)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = as_dtype(resample_arrays(array, operators), dtype or array.dtype)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(result.real) == np.signbit(expected.real))[numbers].all()


def same(shape):
    """Operators that leave every voxel unchanged."""
    return [interpolator(np.arange(float(n)), n) for n in shape]


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("dtype", [*TYPES, ">u2", ">f4", ">c8"], ids=str)
def test_the_result_has_the_bits_of_the_cpu(resampler_, dtype, factors):
    array = voxels(SHAPE, dtype)
    check(resampler_, array, operators_of(SHAPE, factors), np.dtype(dtype).newbyteorder("="))


# Real and complex values are computed in these types, and written as any type.
WORK = {True: ("c8", "c16"), False: ("f4", "f8")}
WRITTEN = [(work, made) for made in TYPES for work in WORK[made.kind == "c"]]


@pytest.mark.parametrize(("dtype", "made"), WRITTEN, ids=str)
def test_every_type_is_rounded_half_to_even_and_clipped(resampler_, dtype, made):
    line = [*np.arange(-1.5, 3, 0.5), -0.0, 0.49, 254.5, 65519.996, 65520, 1e20, -1e20, np.inf]
    line += [1e39, -1e39]
    if made.kind in "iu":
        line += [np.iinfo(made).min, np.iinfo(made).max]
    if made.kind not in "iu" or made.itemsize < 4:
        # Its conversion to larger integers depends on the processor.
        line += [np.nan]
    with np.errstate(over="ignore"):
        array = np.array(line).astype(dtype).reshape(1, 1, -1)
    check(resampler_, array, same(array.shape), made)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_float16_is_written_to_the_nearest(resampler_, dtype):
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(dtype)
    ties = (halves[1:] + halves[:-1]) / 2
    line = np.concatenate([halves, ties, np.nextafter(ties, 0), np.nextafter(ties, ties * 2)])
    line = np.append(line, [65519.996, 65520, 1e9, np.inf, np.nan, 1e-9])
    array = np.concatenate([line, -line]).astype(dtype)[None, None]
    check(resampler_, array, same(array.shape), "f2")


@pytest.mark.parametrize(("dtype", "made"), [("f4", "f4"), ("f4", "f8"), ("f8", "f4")])
def test_subnormal_values_are_kept(resampler_, dtype, made):
    """CuPy's compiler options would flush them to zero."""
    subnormal = np.arange(1, 1 << 23, 4097, dtype=np.uint32).view(np.float32)
    array = np.concatenate([subnormal, -subnormal]).astype(dtype).reshape(8, 8, 64)
    check(resampler_, array, same(array.shape), made)
    check(resampler_, array, operators_of(array.shape, (2.0, 1.5, 3.0)), made)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 24), st.integers(1, 40)),
    factors=st.tuples(*[st.one_of(st.floats(0.34, 4), st.integers(1, 30).map(float))] * 3),
    dtypes=st.sampled_from([("f4", "f4"), ("f8", "f8"), ("c8", "c8"), (">u2", "f4")]),
    batch=st.integers(1, 13),
    padding=st.tuples(*[st.integers(0, 4)] * 3),
)
@example((1, 1, 1), (0.5, 7.0, 0.34), ("c8", "c8"), 1, (1, 1, 1))
@example((5, 140, 150), (2.0, 30.0, 31.5), ("f4", "f4"), 2, (0, 0, 0))
def test_any_volume_in_any_batches_has_the_bits_and_uses_the_predicted_memory(
    cupy, shape, factors, dtypes, batch, padding
):
    array = voxels(shape, dtypes[0])
    operators = operators_of(shape, factors)
    padded = np.pad(array, [(0, n) for n in padding], mode="maximum", stat_length=1)
    taken = int(operators[0].start.max()) + operators[0].taps
    # Planes beyond those that the operators need are not copied to the device.
    batch = min(batch, taken)
    foreseen = device_bytes(operators, padded.shape[1:], dtypes[0], batch, dtypes[1])
    pool = cupy.cuda.MemoryPool()
    with HostMemory(cupy) as memory, cupy.cuda.using_allocator(pool.malloc):
        lane = lane_of(cupy, memory)
        with lane.active():
            own = CudaResampler(lane)
            # Also for later volumes.
            for _ in range(3):
                result = pushed(own, padded, operators, dtypes[1], batch=batch)
        assert pool.total_bytes() == foreseen.device
        assert taken_from(memory) == foreseen.host
    np.testing.assert_array_equal(result, as_dtype(resample_arrays(array, operators), dtypes[1]))


def test_smaller_volumes_take_no_more_memory(cupy):
    """Such as the cropped tiles at the edges of a mosaic."""
    pool = cupy.cuda.MemoryPool()
    held = []
    with HostMemory(cupy) as memory, cupy.cuda.using_allocator(pool.malloc):
        lane = lane_of(cupy, memory)
        with lane.active():
            own = CudaResampler(lane)
            for shape in [(8, 60, 80), (8, 60, 31), (8, 17, 80), (8, 17, 31), (8, 60, 80)] * 2:
                check(own, voxels(shape, "u2"), operators_of(shape, (2.0, 1.5, 3.0)), batch=3)
                held.append((pool.total_bytes(), taken_from(memory)))
    assert len(set(held)) == 1


@pytest.mark.parametrize("dtype", ["f4", ">f4"])
def test_planes_from_other_arrays_are_copied_and_stay_as_they_are(resampler_, dtype):
    array = voxels((9, 11, 13), dtype)
    operators = operators_of(array.shape, (2.0, 1.5, 3.0))
    expected = pushed(resampler_, array, operators, "f4")
    for layout in (np.copy, lambda planes: planes[::-1].copy()[::-1], np.asfortranarray):
        resampler_.begin(operators, (11, 13), dtype, "f4")
        for first in range(0, 9, 2):
            planes = layout(array[first : first + 2])
            resampler_.push(planes)
            np.testing.assert_array_equal(planes, array[first : first + 2])
            planes[...] = np.nan
        np.testing.assert_array_equal(resampler_.finish(), expected)


def test_a_volume_that_was_not_finished_leaves_nothing_behind(resampler_):
    array = voxels((8, 9, 10), "f4")
    operators = operators_of(array.shape, (2.0, 2.0, 2.0))
    resampler_.begin(operators, (9, 10), "f4", "f4")
    resampler_.push(np.full((5, 9, 10), np.nan, "f4"))
    check(resampler_, array, operators, batch=3)


def test_unsupported_input_is_refused(resampler_):
    operators = operators_of((4, 5, 6), (2.0, 2.0, 2.0))
    for source, target in (("f4", "c8"), ("c8", "f4"), ("U4", "f4"), ("f4", "g"), ("u2", ">u2")):
        with pytest.raises(ValueError, match="the kernel does not convert"):
            resampler_.begin(operators, (5, 6), source, target)
    with pytest.raises(ValueError, match="need 5 x 6 voxels"):
        resampler_.begin(operators, (5, 5), "f4", "f4")


@pytest.mark.parametrize("memory", ["page-locked", "refused"])
def test_copies_are_counted_also_from_memory_that_is_not_locked(cupy, monkeypatch, memory):
    array, warnings = voxels((64, 128, 256), "f4"), []
    if memory == "refused":

        def refuse(*_):
            raise MemoryError("no more of it")

        monkeypatch.setattr(cupy.cuda.runtime, "hostRegister", refuse)
    operators = operators_of(array.shape, FACTORS["10 over 3.5"])
    with HostMemory(cupy, warn=warnings.append) as host:
        lane = lane_of(cupy, host)
        with lane.active():
            check(CudaResampler(lane), array, operators, batch=16)
        assert host.pinned == (memory == "page-locked")
    made = 4 * np.prod([operator.size for operator in operators])
    assert lane.metrics.bytes == {"copy": array.nbytes + made}
    assert len(warnings) == (memory == "refused")


@pytest.fixture
def mosaic(tmp_path):
    """Three by three tiles of uint16, cropped at the edges."""
    size = [{"type": "scale", "scale": [3.5, 4.0, 4.0]}]
    made = {"transforms": size, "chunks": (9, 40, 50), "compressors": None}
    return foreign_image(tmp_path / "mosaic.ome.zarr", voxels((9, 113, 137), "u2"), **made)


def run(command, folder, **variables):
    """Run a command with its own leases; return its output."""
    environment = {**os.environ, "OCTANE_GPU_LOCK_DIR": str(folder / "leases"), **variables}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return done.stdout


def test_the_nearest_voxels_are_taken_without_a_gpu_also_where_one_is_asked_for(tmp_path, mosaic):
    stores = {backend: tmp_path / backend / "result.ome.zarr" for backend in ("cpu", "gpu")}
    for backend, store in stores.items():
        store.parent.mkdir()
        command = [sys.executable, PROJECT / "bin/resample.py", mosaic, store]
        words = f"--resolution 10 --channel_kind 0=nearest --backend {backend}".split()
        run([*command, *words, "--metrics", store.with_name("record.json")], tmp_path)
        record = json.loads(store.with_name("record.json").read_text())
        assert record["device"] == {"backend": "cpu"}
    assert contents(stores["gpu"]) == contents(stores["cpu"])


ORDERS = [
    {"EMU_MODE": "eager", "EMU_ORDER": "backward"},
    {"EMU_MODE": "random", "EMU_SEED": "1", "EMU_ORDER": "mixed"},
    {"EMU_MODE": "random", "EMU_SEED": "2", "EMU_CHECK": "1"},
]


@pytest.mark.parametrize(
    ("layout", "order"),
    [
        ("volume", {}),
        ("mosaic", {}),
        *(pytest.param("mosaic", order, marks=pytest.mark.emulated) for order in ORDERS),
    ],
    ids=str,
)
def test_the_command_writes_the_store_that_the_cpu_writes(tmp_path, mosaic, layout, order):
    """With tiles in four lanes at once, in any order of streams and threads."""
    stores = {backend: tmp_path / backend / "result.ome.zarr" for backend in ("cpu", "gpu")}
    for backend, store in stores.items():
        store.parent.mkdir()
        command = [sys.executable, PROJECT / "bin/resample.py", mosaic, store]
        words = f"--resolution 10 --layout {layout} --backend {backend} --workers 4".split()
        run([*command, *words], tmp_path, **order)
    assert contents(stores["gpu"]) == contents(stores["cpu"])
