"""Voxels of every type, operators and reference results for the tests of resampling."""

import numpy as np
from scipy import ndimage

from octane.core.arrays import working_type
from octane.resample.operator import resampler


def voxels(shape, dtype, seed=5):
    """Noise of a type, in either byte order; integers span the type's full range."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind in "iu":
        limits = np.iinfo(str(dtype))
        native = dtype.newbyteorder("=")
        return rng.integers(limits.min, limits.max, shape, native, endpoint=True).astype(dtype)
    values = rng.normal(0.5, 1.0, shape)
    if dtype.kind == "b":
        return values > 0.5
    return (values + 1j * rng.normal(size=shape) if dtype.kind == "c" else values).astype(dtype)


def operators_of(shape, factors):
    """One operator per axis."""
    return [resampler(n, 1.0, f) for n, f in zip(shape, factors, strict=True)]


def apply(operator, array, axis):
    """Apply an operator along an axis as a sum of shifted arrays, in order, in the array's type."""
    if operator.identity(array.shape[axis]):
        # A complex product would change the sign of zeros, as the loops do not.
        return array
    shape = [1] * array.ndim
    shape[axis] = operator.size
    weight = operator.weight.astype(array.real.dtype)
    total, *terms = (
        np.take(array, operator.start + tap, axis=axis) * weight[:, tap].reshape(shape)
        for tap in range(operator.taps)
    )
    for term in terms:
        total += term
    return total


def resample_arrays(array, operators):
    """Resample by sums of shifted arrays: the reference for the loops and kernels."""
    values = array.astype(working_type(array.dtype), copy=False)
    for axis in (1, 0, 2):
        values = apply(operators[axis], values, axis)
    return values


def pushed(own, array, operators, dtype=None, batch=100):
    """Push an array through the buffer in batches of planes; return the result."""
    own.begin(operators, array.shape[1:], array.dtype, dtype or array.dtype)
    for first in range(0, len(array), batch):
        planes = array[first : first + batch]
        buffer = own.buffer(len(planes))
        buffer[...] = planes
        own.push(buffer)
    return own.finish().copy()


def resampled_by_scipy(array, spacing, target, shape):
    """Resample by definition, in float64: Gaussian, then linear interpolation, both mirrored."""
    values = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    where = []
    for axis, (n, s, t, m) in enumerate(zip(array.shape, spacing, target, shape, strict=True)):
        if t > s:
            values = ndimage.gaussian_filter1d(values, (t / s - 1) / 2, axis=axis, mode="reflect")
        # Both grids have their centre at n * s / 2; source sample k is at (k + 0.5) * s.
        physical = n * s / 2 + (np.arange(m) - (m - 1) / 2) * t
        where.append(physical / s - 0.5)
    at = np.meshgrid(*where, indexing="ij")
    return ndimage.map_coordinates(values, at, order=1, mode="reflect")
