"""N4 on an NVIDIA GPU: the kernels against the CPU and against arrays on the same GPU."""

import functools

import numpy as np
import pytest
from n4_volumes import biased_ball

from octane.core.arrays import to_host
from octane.n4 import bspline
from octane.n4 import fit as n4
from octane.n4.apply import divide
from octane.n4.cuda import APPLIED, CudaSteps, apply_rows
from octane.n4.grid import FitVoxels
from octane.n4.iteration import Sharpening, Steps

pytestmark = pytest.mark.gpu

SHAPE = (48, 64, 80)


def inputs(name):
    image = biased_ball(SHAPE)
    weights = np.random.default_rng(1).uniform(0.1, 1, SHAPE).astype(np.float32)
    return {
        "whole": (image, None, None),
        "masked": (image, image > 50, None),
        "weighted": (image, image > 50, weights),
    }[name]


def fit(image, mask, weights, move=np.asarray, **options):
    image, mask, weights = (a if a is None else move(a) for a in (image, mask, weights))
    return n4.fit_bias_field(image, mask, weights=weights, **options)


def iterate(steps, lattice):
    done = steps.iterate(lattice)
    assert done is not None
    return done


def near(a, b):
    fields = [n4.log_field(found, SHAPE) for found in (a, b)]
    np.testing.assert_allclose(fields[0], fields[1], atol=1e-5)


@pytest.mark.parametrize("name", ["whole", "masked", "weighted"])
def test_the_fit_is_that_of_the_cpu_and_of_arrays_on_the_gpu(cupy, name, monkeypatch):
    options = {"iterations": (10, 8, 6), "convergence_threshold": 0.0}
    kernels = fit(*inputs(name), cupy.asarray, **options)
    near(kernels, fit(*inputs(name), **options))
    monkeypatch.setattr(n4, "steps_for", lambda *_: Steps)
    near(kernels, fit(*inputs(name), cupy.asarray, **options))


def test_the_levels_end_where_they_do_on_the_cpu(cupy):
    expected = fit(*inputs("masked"))
    found = fit(*inputs("masked"), cupy.asarray)
    assert [level.iterations for level in found.levels] == [
        level.iterations for level in expected.levels
    ]
    near(found, expected)


@pytest.mark.parametrize("name", ["whole", "masked", "weighted"])
def test_a_repeated_fit_has_the_same_bits(cupy, name):
    first = fit(*inputs(name), cupy.asarray, iterations=(20, 20))
    for _ in range(4):
        again = fit(*inputs(name), cupy.asarray, iterations=(20, 20))
        np.testing.assert_array_equal(again.lattice, first.lattice)
        assert again.levels == first.levels


def test_a_constant_image_has_no_bias(cupy):
    found = n4.fit_bias_field(cupy.full((8, 9, 10), 7.0))
    assert (found.lattice == 0).all()
    assert [level.iterations for level in found.levels] == [0, 0, 0, 0]


def test_an_iteration_copies_to_the_host_once_and_allocates_nothing(cupy, monkeypatch):
    image = cupy.asarray(biased_ball(SHAPE))
    assert n4.steps_for(cupy, image.shape, 200) is CudaSteps
    steps = CudaSteps(FitVoxels(image, None, None, 1, CudaSteps.SLAB), Sharpening(200, 0.15, 0.01))
    steps.begin_level((4, 4, 4))
    lattice, moments = iterate(steps, cupy.zeros((4, 4, 4), cupy.float32))

    copied = []
    asnumpy = cupy.asnumpy
    monkeypatch.setattr(cupy, "asnumpy", lambda a: (copied.append(a.nbytes), asnumpy(a))[1])
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes(), pool.total_bytes()
    for _ in range(5):
        lattice, moments = iterate(steps, lattice)
    assert (pool.used_bytes(), pool.total_bytes()) == before
    assert copied == [32] * 5
    steps.running_variation(moments)
    assert len(copied) == 6


@pytest.mark.parametrize("source", APPLIED, ids=str)
@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_the_correction_is_that_of_the_cpu_however_it_is_cut(cupy, source, strength):
    rng = np.random.default_rng(2)
    lattice = rng.normal(0, 0.3, (5, 6, 7)).astype(np.float32)
    floor = 0 if source.kind == "u" else -100
    image = rng.uniform(floor, 200, SHAPE).astype(source)
    whole_grid = tuple(slice(0, n) for n in SHAPE)
    rows, _ = bspline.region_rows(cupy.asarray(lattice), SHAPE, whole_grid)
    axis = functools.partial(bspline.axis_weights, SHAPE[2], lattice.shape[2])
    field = cupy.empty(SHAPE, np.float32)
    whole = apply_rows(cupy.asarray(image), rows, axis(), strength, None, field)
    on_host = to_host(field)
    np.testing.assert_allclose(on_host, bspline.evaluate_region(lattice, SHAPE), atol=1e-6)
    expected = divide(image, on_host, strength, source, image)
    if source.kind == "f":
        np.testing.assert_allclose(
            to_host(whole), expected, rtol=1e-6 if source.itemsize == 4 else 1e-14
        )
    else:
        assert abs(to_host(whole).astype(int) - expected).max() <= 1
    for begin, end in ((0, 1), (1, 33), (33, 80)):
        part = apply_rows(cupy.asarray(image[:, :, begin:end]), rows, axis(begin, end), strength)
        np.testing.assert_array_equal(to_host(part), to_host(whole[:, :, begin:end]))
