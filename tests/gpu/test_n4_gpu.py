"""N4 on an NVIDIA GPU: the kernels against the CPU and against arrays on the same GPU."""

import functools
import re
import textwrap
from collections import Counter

import numpy as np
import pytest
from gpu_process import PROJECT, printed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from n4_volumes import biased_ball
from python_path import python_path

from octane.core.arrays import to_host
from octane.core.errors import OctaneError
from octane.processes.n4 import bspline, cuda
from octane.processes.n4 import fit as n4
from octane.processes.n4.apply import FieldPart, correct_block, divide
from octane.processes.n4.cuda import APPLIED, CudaSteps, apply_rows
from octane.processes.n4.grid import FitVoxels
from octane.processes.n4.iteration import Steps
from octane.processes.n4.sharpening import Sharpening, sharpen

SHAPE = (24, 40, 80)


def fit(image, mask, weights, move=np.asarray, **options):
    image, mask, weights = (a if a is None else move(a) for a in (image, mask, weights))
    return n4.fit_bias_field(image, mask, weights=weights, **options)


def near(a, b, shape):
    fields = [n4.log_field(found, shape) for found in (a, b)]
    np.testing.assert_allclose(fields[0], fields[1], atol=1e-5)


def examples(number):
    """Settings of Hypothesis; all examples of a test share one device."""
    return settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def first_level(cupy, image, mask=None, bins=200):
    """Set up the kernels at the first level."""
    grid = FitVoxels(image, mask, None, 1, CudaSteps.SLAB, cupy)
    steps = CudaSteps(grid, Sharpening(bins, 0.15, 0.01))
    steps.begin_level((4, 4, 4))
    return steps


# In smaller volumes one voxel determines some bins and control points: the CPU's own fit changes by
# 1e-3 if the image changes by a unit in the last place.
@pytest.mark.parametrize(
    ("shape", "bins", "masked", "weighted"),
    [
        ((13, 17, 43), 200, "ball", True),
        ((12, 31, 65), 33, "whole", False),
        ((11, 40, 64), 64, "speckle", False),
        ((17, 29, 70), 150, "speckle", True),
        ((16, 33, 52), 300, "ball", False),
    ],
)
def test_a_fit_of_any_shape_is_that_of_the_cpu(cupy, shape, bins, masked, weighted):
    rng = np.random.default_rng(bins)
    image = biased_ball(shape)
    masks = {"ball": image > np.median(image) * 0.7, "speckle": rng.random(shape) < 0.6}
    mask = masks.get(masked)
    weights = rng.uniform(0, 1, shape).astype(np.float32) if weighted else None
    options = {
        "iterations": (3, 2, 2),
        "convergence_threshold": 0.0,
        "number_of_histogram_bins": bins,
        "control_points": (4, 5, 4),
    }
    expected = fit(image, mask, weights, **options)
    found = fit(image, mask, weights, cupy.asarray, **options)
    near(found, expected, shape)
    for level, reference in zip(found.levels, expected.levels, strict=True):
        np.testing.assert_allclose(level.convergence, reference.convergence, rtol=1e-4)


@pytest.mark.soak
def test_data_that_the_kernels_cannot_hold_are_fitted_on_arrays(cupy):
    image = biased_ball((8, 9, 10))
    options = {"iterations": (2,), "number_of_histogram_bins": 1025}
    assert n4.steps_for(cupy, image.shape, 1025) is Steps
    found = fit(image, None, None, cupy.asarray, **options)
    assert type(found.lattice) is np.ndarray
    np.testing.assert_allclose(found.lattice, fit(image, None, None, **options).lattice, atol=1e-5)


# The kernels


@examples(20)
@given(
    st.lists(st.integers(-3, 6), min_size=2, max_size=90).filter(lambda u: len(set(u)) > 1),
)
@example([0, 1, 2, 3, 4, 5])
@example([0, 1, 2, 1, 4, -1])
@example([3, 2, 1, 0, -1, -2])
def test_the_minimum_is_that_of_itk_s_scan(cupy, values):
    # Values up to 0 are unchanged, so that any order of values is possible.
    values = np.array(values, np.float32)
    image = np.zeros((2, 2, max(2, -(-len(values) // 4))), np.float32)
    image.flat[: len(values)] = np.where(values > 0, np.exp(values), values)
    mask = np.arange(image.size).reshape(image.shape) < len(values)
    steps = first_level(cupy, image, mask)
    steps._expand()
    steps._update()
    lowest, highest = np.inf, -np.inf
    for u in steps.u.tolist():
        if u > highest:
            highest = u
        elif u < lowest:
            lowest = u
    low, slope = steps.state.tolist()
    assert low == (steps.u.tolist()[0] if np.isinf(lowest) else lowest)
    assert slope == (np.float32(highest) - np.float32(low)) / np.float32(199)


@pytest.mark.parametrize(
    ("bins", "crowd"), [(2, 0), (33, 0), (200, 0), (257, 0), (512, 0), (1024, 0), (200, 9000)]
)
def test_bins_are_counted_exactly(cupy, bins, crowd):
    u = np.random.default_rng(bins).normal(0, 1, 20_000).astype(np.float32)
    low, high = np.float32(-1.5), u.max()  # some values are below the minimum that ITK found
    if crowd:  # tiles of 4096 full of one bin do not overflow
        u = np.full(crowd, 6 - 2**-18, np.float32)
        low, high = np.float32(0), np.float32(bins - 1)
    slope = np.float32((high - low) / np.float32(bins - 1))
    c = (u - low) / slope
    c = c[(c >= 0) & (c <= bins - 1)]
    k = c.astype(int)
    share = np.rint((c - k.astype(np.float32)) * 2.0**24).astype(int)
    expected = [np.bincount(k, minlength=bins), [share[k == b].sum() for b in range(bins)]]
    steps = first_level(cupy, biased_ball((6, 8, 20)), bins=bins)
    state = cupy.asarray(np.array([low, slope]))
    for blocks in (1, 3, 7):
        histogram = cupy.zeros(2 * bins, np.uint64)
        steps._run("count_bins", blocks, cupy.asarray(u), len(u), state, bins, histogram)
        np.testing.assert_array_equal(to_host(histogram).reshape(2, bins), expected)


def test_an_iteration_keeps_the_old_field_and_subtracts_the_new_one(cupy):
    image = biased_ball((9, 14, 37))
    mask = image > np.median(image) * 0.7
    steps = first_level(cupy, image, mask)
    lattice = cupy.zeros((4, 4, 4), np.float32)
    kept = []
    for _ in range(2):
        steps.iterate(lattice)
        kept.append(to_host(steps.rows))
    np.testing.assert_array_equal(kept[1][..., 1], kept[0][..., 0])
    assert (kept[1][..., 0] != kept[0][..., 0]).any()
    first, taps = to_host(steps.x.first), to_host(steps.x.evaluate)
    parts = kept[1][:, first[:, None] + np.arange(4), 0] * taps
    field = functools.reduce(np.add, np.moveaxis(parts, -1, 0)).reshape(steps.grid.box_shape)
    included = field[mask[tuple(steps.grid.box)]]
    np.testing.assert_array_equal(to_host(steps.u), to_host(steps.log) - included)


def test_a_fit_is_the_same_on_a_gpu_of_any_size(cupy, monkeypatch):
    """However many blocks run at once: values are split among threads, sums are not."""
    image = cupy.asarray(biased_ball((40, 50, 60)))
    lattices = []
    for at_once in (1, 3, 10_000):
        monkeypatch.setattr(cuda, "blocks_at_once", lambda *_, number=at_once: number)
        fitted = n4.fit_bias_field(image, None, iterations=(2, 2), convergence_threshold=0.0)
        lattices.append(to_host(fitted.lattice))
    np.testing.assert_array_equal(lattices[0], lattices[1])
    np.testing.assert_array_equal(lattices[0], lattices[2])


@examples(12)
@given(
    bins=st.sampled_from([2, 3, 33, 64, 65, 200, 256, 511, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sharpening_is_the_cpu_s(cupy, bins, seed):
    rng = np.random.default_rng(seed)
    # Every bin is filled: in an empty one the expected value is one rounding error divided by
    # another, and transforms disagree on it.
    counts = rng.integers(1000, 2000, bins) + (1e5 * rng.random(bins) ** 8).astype(int)
    shares = (counts * rng.random(bins) * 2**24).astype(np.uint64)
    shares[-1] = 0
    low, slope = np.float32(rng.uniform(-1, 3)), np.float32(rng.uniform(1, 4) / bins)
    given = counts, shares.astype(np.int64), float(low), float(slope)
    expected = sharpen(*given, Sharpening(bins, 0.15, 0.01))[:, 0]

    steps = first_level(cupy, biased_ball((6, 8, 20)), bins=bins)
    steps.state.set(np.array([low, slope]))
    steps.histogram.set(np.concatenate([counts.astype(np.uint64), shares]))
    steps._run(
        "sharpen",
        1,
        *(steps.state, bins, int(counts.sum()), 0.15, 0.01),
        *(steps.roots, steps.histogram, steps.table),
        threads=len(steps.roots),
    )
    assert not to_host(steps.histogram).any()
    table = to_host(steps.table)
    np.testing.assert_allclose(table[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(table[:-1, 1], np.diff(table[:, 0]))
    assert table[-1, 1] == 0


@pytest.mark.parametrize("n", [1, 2, 64, 65, 129, 1500, 30_000])
@pytest.mark.parametrize("spread", [3e-4, 0.3])
def test_the_running_mean_is_itk_s_bit_for_bit(cupy, n, spread):
    rng = np.random.default_rng(n)
    p = 1 + spread * (np.sin(np.arange(n) / 700) + 0.5 * rng.standard_normal(n).clip(-1, 1))
    p = p.astype(np.float32)
    expected = p.copy()
    for i in range(1, n):
        kept = float(expected[i - 1]) * (1 - 1 / (i + 1))
        expected[i] = kept + float(p[i] / np.float32(i + 1))
    steps = first_level(cupy, biased_ball((6, 8, 20)))
    mean = cupy.empty(n, np.float32)
    steps._run("running_mean", 1, cupy.asarray(p), n, mean, threads=1024)
    np.testing.assert_array_equal(to_host(mean), expected)


# The application


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *((kind, kind) for kind in APPLIED),
        (np.dtype("u2"), np.dtype("f4")),
        (np.dtype("f4"), np.dtype("u1")),
    ],
    ids=str,
)
@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_the_correction_is_that_of_the_cpu_however_it_is_cut(cupy, source, target, strength):
    rng = np.random.default_rng(2)
    lattice = rng.normal(0, 0.8, (5, 6, 7)).astype(np.float32)
    ceiling = np.iinfo(str(source)).max if source.kind in "iu" else 300
    image = rng.uniform(0 if source.kind == "u" else -ceiling, ceiling, SHAPE).astype(source)
    whole_grid = tuple(slice(0, n) for n in SHAPE)
    rows, _ = bspline.region_rows(lattice, SHAPE, whole_grid, cupy)
    axis = functools.partial(bspline.axis_weights, SHAPE[2], lattice.shape[2])
    field = cupy.empty(SHAPE, np.float32)
    whole = to_host(apply_rows(cupy.asarray(image), rows, axis(), strength, target, field))
    assert whole.dtype == target
    on_host = to_host(field)
    np.testing.assert_allclose(on_host, bspline.evaluate_region(lattice, SHAPE), atol=1e-6)
    expected = divide(image, on_host, strength, target, image)
    if target.kind == "f":
        np.testing.assert_allclose(whole, expected, rtol=1e-6 if target.itemsize == 4 else 1e-14)
    else:
        # An exponential that differs in its last bit may round differently.
        assert abs(whole.astype(int) - expected).max() <= 1
        assert (whole == expected).mean() > 0.99
    for begin, end in ((0, 1), (1, 33), (33, 80)):
        cut = cupy.asarray(image[:, :, begin:end])
        part = apply_rows(cut, rows, axis(begin, end), strength, target)
        np.testing.assert_array_equal(to_host(part), whole[:, :, begin:end])


# Whole volumes

VOLUME = (48, 40, 80)
correct = functools.partial(n4.n4_bias_field_correction, shrink_factor=4, iterations=(3, 2))


def volume(dtype="f4"):
    return biased_ball(VOLUME).astype(dtype)


@pytest.mark.parametrize("planes", [48, 5])
@pytest.mark.parametrize("dtype", ["f4", "u2", ">u2", ">f4", "i4"])
def test_a_volume_of_the_host_has_the_bits_of_one_on_the_device(cupy, monkeypatch, dtype, planes):
    """And those of the single steps: fit the shrunk volume, and correct the full one."""
    image = volume(dtype)
    mask = image > 50
    resident = cupy.asarray(image, image.dtype.newbyteorder("="))
    keep = n4.shrink_slices(VOLUME, (4, 4, 4))
    fitted = fit(resident[keep], mask[keep], None, cupy.asarray, iterations=(3, 2))
    whole = FieldPart(fitted.lattice, VOLUME, tuple(slice(0, n) for n in VOLUME))
    expected, _ = correct_block(resident, [whole])
    monkeypatch.setattr(n4, "GPU_BLOCK", planes * 40 * 80)
    found, copied = correct(image, mask, xp=cupy)
    assert type(found) is np.ndarray
    assert found.dtype == image.dtype
    on_device, stayed = correct(resident, cupy.asarray(mask))
    assert isinstance(on_device, cupy.ndarray)
    for one, lattice in ((found, copied.lattice), (on_device, stayed.lattice)):
        np.testing.assert_array_equal(to_host(one), to_host(expected))
        np.testing.assert_array_equal(lattice, fitted.lattice)


@pytest.mark.parametrize(("dtype", "strength"), [("f4", 1.0), ("u2", 0.5), ("u1", 1.0), ("i4", 0)])
def test_a_corrected_volume_is_that_of_the_cpu(cupy, dtype, strength):
    image = volume(dtype)
    expected, fitted = correct(image, strength=strength)
    found, copied = correct(image, strength=strength, xp=cupy)
    np.testing.assert_allclose(copied.lattice, fitted.lattice, atol=1e-5)
    if dtype == "f4":
        np.testing.assert_allclose(found, expected, rtol=2e-5)
    else:
        # A field that differs in its last bit may round differently.
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
    for taken in (image, cupy.asarray(image)):
        found, _ = correct(taken, xp=cupy)
        np.testing.assert_array_equal(to_host(found), expected)


def test_a_volume_may_be_larger_than_the_device_s_memory(cupy, monkeypatch):
    image = volume()
    expected, _ = correct(image, xp=cupy)
    monkeypatch.setattr(n4, "GPU_BLOCK", 2 * 40 * 80)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(image.nbytes * 3 // 4)
    try:
        found, _ = correct(image, xp=cupy)
    finally:
        pool.set_limit(0)
    np.testing.assert_array_equal(found, expected)


def test_a_mask_and_weights_may_be_elsewhere_than_the_volume(cupy):
    image = volume()
    weights = np.random.default_rng(0).uniform(0.5, 1, VOLUME).astype(np.float32)
    found = [
        correct(cupy.asarray(image), kind(image > 50), weights=kind(weights))
        for kind in (np.asarray, cupy.asarray)
    ]
    found.append(correct(image, cupy.asarray(image > 50), weights=cupy.asarray(weights), xp=cupy))
    for _, fitted in found:
        np.testing.assert_array_equal(fitted.lattice, found[0][1].lattice)
    # Also on the host.
    on_host = correct(image, cupy.asarray(image > 50), weights=cupy.asarray(weights))[0]
    np.testing.assert_array_equal(on_host, correct(image, image > 50, weights=weights)[0])


@pytest.mark.parametrize("value", [0, -300, 1e-20, 1e12, np.nan])
def test_voxels_that_spoil_the_fit_are_left_out_as_on_the_cpu(cupy, value):
    image = biased_ball((20, 24, 28))
    image[8:12:2, 10:14:2, 12:16:2] = value
    _, expected = correct(image, shrink_factor=1)
    _, fit = correct(cupy.asarray(image), shrink_factor=1)
    np.testing.assert_allclose(fit.lattice, expected.lattice, atol=2e-5)
    # Without these voxels, or the field would be flat or wild.
    assert 0.05 < np.ptp(fit.lattice) < 1.5


def test_a_volume_of_one_value_is_refused(cupy):
    flat = np.full((8, 9, 10), 7, np.float32)
    for image in (flat, cupy.asarray(flat)):
        with pytest.raises(OctaneError, match="the same value, 7, in every voxel"):
            correct(image, xp=cupy)


def test_the_documented_example_matches_the_cpu():
    page = (PROJECT / "docs" / "python.md").read_text(encoding="utf-8")
    on_host, on_gpu = re.findall(r"(?s)```python\n(.*?)```", page)[:2]
    assert "xp=cupy" in on_gpu
    names = {}
    exec(on_host, names)
    expected = names["corrected"]
    exec(on_gpu, names)
    assert names["corrected"] is not expected
    np.testing.assert_allclose(names["corrected"], expected, rtol=2e-5)


# In a separate process, with options of the emulation


CODE = """
    import cupy
    from n4_volumes import biased_ball
    from octane.processes.n4 import fit as n4

    def correct(image, count=2, threshold=-1, **more):
        return n4.n4_bias_field_correction(
            image,
            shrink_factor=4,
            iterations=(count, count),
            convergence_threshold=threshold,
            **more,
        )

    n4.GPU_BLOCK = 6 * 40 * 80
    image = biased_ball((48, 40, 80))
"""


def in_process(folder, code, *arguments, **options):
    """Run code after `CODE`; return its output."""
    path = python_path(PROJECT / "bin", PROJECT / "tests" / "support")
    both = textwrap.dedent(CODE) + textwrap.dedent(code)
    return printed(folder, both, *arguments, **path, **options)


@pytest.mark.emulated
@pytest.mark.parametrize("current", [0, 1])
def test_a_volume_on_another_device_is_corrected_there(tmp_path, current):
    """Even if that device is not current in the thread."""
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
    copied, _ = correct(image, xp=cupy)
    assert (copied == resident.get(stream=stream)).all()
    # ITK's stopping measure is computed only near the threshold.
    _, stopped = correct(image, threshold=1, xp=cupy)
    print(hashlib.sha1(copied).hexdigest(), repr(stopped.levels).replace(" ", ""))
    """
    modes = (("late", "forward"), ("eager", "backward"), ("random", "mixed"))
    found = [in_process(tmp_path, code, EMU_MODE=mode, EMU_ORDER=order) for mode, order in modes]
    assert found[0] == found[1] == found[2]


def counts(path, code, *arguments):
    """Return the emulation's counts for a process."""
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
def test_an_iteration_is_eight_launches_and_one_wait(tmp_path):
    code = "correct(image, int(sys.argv[2]), xp=cupy)"
    few, many = (counts(tmp_path / "counts", code, str(n)) for n in (2, 5))
    more = {name: many[name] - few[name] for name in many if many[name] != few[name]}
    assert more["launches"] == 6 * 8
    waits = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
    assert sum(more.get(name, 0) for name in waits) == 6
    assert more["bytes to the host"] == 6 * 32
    assert "bytes to the device" not in more
    assert "cudaMalloc" not in more


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["f4", "u2"])
@pytest.mark.parametrize("place", ["host", "device"])
def test_a_first_run_compiles_few_modules(tmp_path, dtype, place):
    """CuPy keeps each in a file."""
    code = """
    image = image.astype(sys.argv[2])
    more = {"mask": image > 50, "weights": (image > 60).astype("f4") + 1}
    if sys.argv[3] == "device":
        image, *others = map(cupy.asarray, (image, *more.values()))
        more = dict(zip(more, others))
    corrected, fit = correct(image, **more, xp=cupy)
    assert abs(fit.lattice).max() > 0
    """
    kept = tmp_path / "kernels"
    kept.mkdir()
    in_process(tmp_path, code, dtype, place, CUPY_CACHE_DIR=str(kept))
    assert 2 <= len(list(kept.iterdir())) <= (9 if place == "host" else 14)


@pytest.mark.emulated
def test_the_kernels_need_no_cublas(tmp_path):
    """Nor do an axis of one voxel, types without a kernel, or big-endian types."""
    code = """
    for dtype in ("f4", "i4", ">u2"):
        n4.n4_bias_field_correction(
            image.astype(dtype), shrink_factor=(48, 4, 4), iterations=(2, 2), xp=cupy
        )
    """
    assert not [name for name in counts(tmp_path / "counts", code) if name.startswith("cublas")]
