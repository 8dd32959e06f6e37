"""N4 of whole volumes on an NVIDIA GPU: host to host, and on the device."""

import os
import re
import textwrap
from collections import Counter
from functools import partial

import cupyx
import numpy as np
import pytest
from gpu_process import PROJECT, printed
from n4_volumes import biased_ball

from octane.core.arrays import to_host
from octane.core.errors import OctaneError
from octane.n4 import streamed
from octane.n4.fit import n4_bias_field_correction

SHAPE = (48, 40, 80)
correct = partial(n4_bias_field_correction, shrink_factor=4, iterations=(3, 2))


def volume(dtype="f4"):
    return biased_ball(SHAPE).astype(dtype)


@pytest.fixture(params=[None, 6, 9000], ids=["one slab", "planes", "rows"])
def slab(request, monkeypatch):
    """Slabs of all, of some planes, and of some rows of a plane."""
    if request.param is not None:
        monkeypatch.setattr(streamed, "SLAB", {6: 6 * 40 * 80, 9000: 900}[request.param])


@pytest.mark.usefixtures("slab")
@pytest.mark.parametrize("dtype", ["f4", "u2", ">u2", ">f4", "i4"])
def test_host_to_host_has_the_bits_of_the_resident_volume(cupy, dtype):
    image = volume(dtype)
    mask = image > 50
    resident = cupy.asarray(image.astype(image.dtype.newbyteorder("=")))
    expected, fitted = correct(resident, cupy.asarray(mask))
    assert isinstance(expected, cupy.ndarray)
    found, fit = correct(image, mask, xp=cupy)
    assert found.dtype == image.dtype
    np.testing.assert_array_equal(found, to_host(expected))
    np.testing.assert_array_equal(fit.lattice, fitted.lattice)


@pytest.mark.parametrize(("dtype", "strength"), [("f4", 1.0), ("u2", 0.5), ("u1", 1.0), ("i4", 0)])
def test_the_result_is_that_of_the_cpu(cupy, dtype, strength):
    image = volume(dtype)
    expected, fitted = correct(image, strength=strength)
    found, fit = correct(image, strength=strength, xp=cupy)
    np.testing.assert_allclose(fit.lattice, fitted.lattice, atol=1e-5)
    if dtype == "f4":
        np.testing.assert_allclose(found, expected, rtol=2e-5)
    else:
        # A last bit of the field may fall on the other side of a half.
        assert abs(found.astype(int) - expected).max() <= 1
        assert (found == expected).mean() > 0.999


@pytest.mark.parametrize("order", ["reversed", "Fortran's", "a part"])
def test_a_volume_that_is_not_contiguous_is_taken_as_it_is(cupy, order):
    whole = volume()
    image = {
        "reversed": whole[:, ::-1],
        "Fortran's": np.asfortranarray(whole),
        "a part": whole[:, 3:, :70],
    }[order]
    expected, _ = correct(np.ascontiguousarray(image), xp=cupy)
    found, _ = correct(image, xp=cupy)
    np.testing.assert_array_equal(found, expected)


def test_a_volume_larger_than_the_device_goes_through_a_few_slabs(cupy, monkeypatch):
    image = volume()
    expected, _ = correct(image, xp=cupy)
    monkeypatch.setattr(streamed, "SLAB", 2 * 40 * 80)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    limit = image.nbytes * 3 // 4
    pool.set_limit(limit)
    asked = []
    resident = streamed._resident
    monkeypatch.setattr(
        streamed, "_resident", lambda *a: (asked.append((resident(*a), a[3])), asked[-1][0])[1]
    )
    monkeypatch.setattr(streamed, "WORK_BYTES", 16)
    try:
        found, _ = correct(image, xp=cupy)
        assert pool.total_bytes() <= limit
    finally:
        pool.set_limit(0)
    ((slabs, of),) = asked
    assert streamed.STREAMS <= slabs < of
    assert slabs % streamed.STREAMS == 0
    np.testing.assert_array_equal(found, expected)


def test_the_volume_is_on_its_way_while_the_fit_runs(cupy, monkeypatch):
    image = volume()
    monkeypatch.setattr(streamed, "SLAB", 4 * 40 * 80)
    pool = cupy.get_default_memory_pool()
    before, used = pool.used_bytes(), []
    correct(image, xp=cupy, on_iteration=lambda *_: used.append(pool.used_bytes()))
    assert min(used) - before >= image.nbytes
    assert pool.used_bytes() == before


def test_arrays_and_memory_of_the_device_are_kept_from_call_to_call(cupy):
    image, out = (cupyx.empty_pinned(SHAPE, "f4") for _ in range(2))
    image[...] = volume()
    expected, _ = correct(cupy.asarray(image))
    pool = cupy.get_default_memory_pool()
    total = 0
    for call in range(3):
        out[...] = 0
        found, _ = correct(image, xp=cupy, out=out)
        assert found is out
        np.testing.assert_array_equal(out, to_host(expected))
        # The memory of the first call serves the next.
        assert call == 0 or pool.total_bytes() == total
        total = pool.total_bytes()


def test_an_error_waits_for_the_copies_and_leaves_the_result_alone(cupy):
    image, out = (cupyx.zeros_pinned(SHAPE, "f4") for _ in range(2))
    image[...] = volume()
    image[8, 8, 8] = np.nan
    used = cupy.get_default_memory_pool().used_bytes()
    with pytest.raises(OctaneError, match="NaN"):
        correct(image, shrink_factor=1, xp=cupy, out=out)
    for stream in streamed._streams(cupy, cupy.cuda.Device().id):
        assert stream.done  # ty: ignore[missing-attribute]
    assert not out.any()
    assert cupy.get_default_memory_pool().used_bytes() == used


def test_the_volume_is_corrected_in_place(cupy, monkeypatch):
    monkeypatch.setattr(streamed, "SLAB", 5 * 40 * 80)
    for image in (volume(), cupy.asarray(volume())):
        expected, _ = correct(image, xp=cupy)
        found, _ = correct(image, xp=cupy, out=image)
        assert found is image
        assert (found == expected).all()


def test_a_mask_and_weights_may_be_elsewhere_than_the_volume(cupy):
    image = volume()
    weights = np.random.default_rng(0).uniform(0.5, 1, SHAPE).astype(np.float32)
    found = [
        correct(cupy.asarray(image), kind(image > 50), weights=kind(weights))
        for kind in (np.asarray, cupy.asarray)
    ]
    found.append(correct(image, cupy.asarray(image > 50), weights=cupy.asarray(weights), xp=cupy))
    for _, fit in found:
        np.testing.assert_array_equal(fit.lattice, found[0][1].lattice)


@pytest.mark.parametrize("wrong", ["f8", "(48, 40, 79)", "strided", "NumPy"])
def test_an_array_for_the_result_that_does_not_fit_is_refused(cupy, wrong):
    out = {
        "f8": cupy.empty(SHAPE),
        "(48, 40, 79)": cupy.empty((48, 40, 79), "f4"),
        "strided": cupy.empty((48, 40, 160), "f4")[:, :, ::2],
        "NumPy": np.empty(SHAPE, "f4"),
    }[wrong]
    with pytest.raises(OctaneError, match=r"out is not a C-contiguous cupy array of float32"):
        correct(cupy.asarray(volume()), out=out)


def test_the_example_of_the_documents_gives_what_the_cpu_does():
    page = (PROJECT / "docs" / "python.md").read_text(encoding="utf-8")
    on_host, on_gpu = re.findall(r"(?s)```python\n(.*?)```", page)[:2]
    assert "xp=cupy" in on_gpu
    names = {}
    exec(on_host + on_gpu, names)
    np.testing.assert_allclose(names["target"], names["corrected"], rtol=2e-5)


# In a process of its own, with options of the emulation


CODE = """
    import cupy, cupyx
    from n4_volumes import biased_ball
    from octane.n4 import streamed
    from octane.n4.fit import n4_bias_field_correction

    def correct(image, count=2, threshold=-1, **more):
        return n4_bias_field_correction(
            image,
            shrink_factor=4,
            iterations=(count, count),
            convergence_threshold=threshold,
            **more,
        )

    streamed.SLAB = 6 * 40 * 80
    image, out = (cupyx.empty_pinned((48, 40, 80), "f4") for _ in range(2))
    image[...] = biased_ball(image.shape)
"""


def in_process(folder, code, *arguments, **options):
    """Run code behind `CODE`; return what it prints."""
    # Before the emulation's own, which its `run` has put there.
    path = [str(PROJECT / "bin"), str(PROJECT / "tests" / "support"), os.environ["PYTHONPATH"]]
    both = textwrap.dedent(CODE) + textwrap.dedent(code)
    return printed(folder, both, *arguments, PYTHONPATH=os.pathsep.join(path), **options)


@pytest.mark.emulated
@pytest.mark.parametrize("current", [0, 1])
def test_a_volume_on_another_device_is_corrected_there(tmp_path, current):
    """Also where that device is not the thread's own."""
    code = """
    expected, _ = correct(image)
    with cupy.cuda.Device(1):
        there = cupy.asarray(image)
    with cupy.cuda.Device(int(sys.argv[2])):
        found, _ = correct(there)
        device = cupy.cuda.runtime.getDevice()
    print(found.device.id, device, abs(found.get() / expected - 1).max() < 1e-4)
    """
    found = in_process(tmp_path, code, str(current), EMU_DEVICES="2")
    assert found == ["1", str(current), "True"]


@pytest.mark.emulated
def test_streams_and_threads_in_any_order_give_the_same_bits(tmp_path):
    code = """
    import hashlib
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        resident, _ = correct(cupy.asarray(image))
    streamed._resident = lambda *_: 3
    correct(image, out=out, xp=cupy)
    assert (out == resident.get(stream=stream)).all()
    # ITK's stopping measure is computed near the threshold alone.
    _, stopped = correct(image, threshold=1, xp=cupy)
    print(hashlib.sha1(out).hexdigest(), repr(stopped.levels).replace(" ", ""))
    """
    modes = (("late", "forward"), ("eager", "backward"), ("random", "mixed"))
    found = [in_process(tmp_path, code, EMU_MODE=mode, EMU_ORDER=order) for mode, order in modes]
    assert found[0] == found[1] == found[2]


def counts(path, code, *arguments):
    """Counts of the emulation for a process."""
    in_process(path.parent, code, *arguments, EMU_COUNTS=str(path))
    found, launched = Counter(), 0
    for line in path.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "call":
            name, _, number = rest.rpartition(" ")
            found[name] = int(number)
        if kind == "kernel":
            launched += int(rest.split()[1].rstrip(","))
    found["launches"] = launched
    path.unlink()
    return found


@pytest.mark.emulated
@pytest.mark.parametrize("resident", [0, 3], ids=["resident", "ring"])
def test_every_voxel_goes_up_once_and_down_once(tmp_path, resident):
    code = """
    image, out = (cupyx.empty_pinned((64, 128, 160), "f4") for _ in range(2))
    image[...] = biased_ball(image.shape)
    streamed.SLAB = image.size // 8
    if int(sys.argv[2]):
        streamed._resident = lambda *_: int(sys.argv[2])
    correct(image, mask=image > 50, out=out, xp=cupy)
    """
    found = counts(tmp_path / "counts", code, str(resident))
    size = 64 * 128 * 160
    up = size * 4 + size // 64 * (4 + 1)
    # What is more are the tables of the spline.
    assert up <= found["bytes to the device"] < up * 1.02
    assert size * 4 <= found["bytes to the host"] < size * 4 * 1.01
    # Nothing goes through a buffer of the driver, but small figures of the fit; the threads sleep.
    assert found["copy to the device, pageable"] == 0
    assert found["cudaEventSynchronize, asleep"] == 3


@pytest.mark.emulated
def test_an_iteration_is_eight_launches_and_one_wait(tmp_path):
    code = "correct(image, int(sys.argv[2]), out=out, xp=cupy)"
    few, many = (counts(tmp_path / "counts", code, str(n)) for n in (2, 5))
    more = {name: many[name] - few[name] for name in many if many[name] != few[name]}
    assert more["launches"] == 6 * 8
    waits = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
    assert sum(more.get(name, 0) for name in waits) == 6
    assert more["bytes to the host"] == 6 * 32
    assert "bytes to the device" not in more
    assert "cudaMalloc" not in more


@pytest.mark.emulated
def test_the_kernels_need_no_cublas(tmp_path):
    """Nor do an axis of one voxel, types without a kernel, and big-endian ones."""
    code = """
    for dtype in ("f4", "i4", ">u2"):
        n4_bias_field_correction(
            image.astype(dtype), shrink_factor=(48, 4, 4), iterations=(2, 2), xp=cupy
        )
    """
    assert not [name for name in counts(tmp_path / "counts", code) if name.startswith("cublas")]
