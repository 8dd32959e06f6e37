"""The N4 bias field correction of ITK, on arrays (NumPy or CuPy).

In short: the log image u is sharpened (its histogram is deconvolved with a narrow Gaussian, and
each intensity is mapped to its expected value under the sharpened histogram); the difference is
fitted with a cubic B-spline lattice; the fit is added to the bias field and subtracted from u; this
is repeated until the field changes little, at one lattice resolution after another.

- The points of the fit form a grid, so the fit and the evaluation are small matrix products, and
  the fit's denominator depends only on the mask (it is computed once per level).
- Included voxels are compacted in raster order and processed in slabs that stay in the cache (one
  slab on a GPU), on several threads if requested; results do not depend on their number.
- On a CPU the loops are compiled (:mod:`octane.processes.n4.cpu`), on a GPU they are CUDA kernels
  (:mod:`cuda`); the array code of :mod:`iteration` defines the result of both.
- Data are float32 as in ITK. float64 is used where the result depends on it: the histogram and its
  transform, and the two short axes of the fit.

Sources: Tustison et al. 2010, "N4ITK: improved N3 bias correction", IEEE TMI 29(6); Sled, Zijdenbos
and Evans 1998, "A nonparametric method for automatic correction of intensity nonuniformity in MRI
data", IEEE TMI 17(1); Lee, Wolberg and Shin 1997, "Scattered data interpolation with multilevel
B-splines", IEEE TVCG 3(3).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Integral
from types import ModuleType
from typing import cast

import numpy as np
import numpy.typing as npt

from octane.core.arrays import namespace, to_host
from octane.core.errors import InputError
from octane.core.geometry import Region, blocks
from octane.core.timing import span
from octane.pipeline.workers import run_tiles
from octane.processes.n4 import bspline
from octane.processes.n4.apply import FieldPart, correct_block
from octane.processes.n4.cuda import MAX_BINS, MAX_ROW, CudaSteps
from octane.processes.n4.grid import FitVoxels, check_arrays, included, require_varied
from octane.processes.n4.inclusion import voxels_to_fit
from octane.processes.n4.iteration import Steps
from octane.processes.n4.sharpening import Sharpening

log = logging.getLogger(__name__)

# Voxels corrected at a time on a CPU: enough to outweigh the overhead of threads, few enough for
# the field and other temporary arrays to need little memory.
BLOCK = 1 << 20

# The same on a GPU, where launching the kernels takes longer than correcting a small block.
GPU_BLOCK = 1 << 24

# Memory per shrunk voxel during the fit: image, mask and N4's own arrays. Weights need 4 more.
FIT_BYTES = 36


@dataclass(frozen=True)
class LevelReport:
    """One level: the stopping measure after each iteration, whether it converged, its lattice."""

    convergence: tuple[float, ...]
    converged: bool
    lattice: np.ndarray = field(compare=False)

    @property
    def iterations(self) -> int:
        """Iterations done."""
        return len(self.convergence)


@dataclass(frozen=True)
class BiasFit:
    """A fitted bias field.

    Attributes
    ----------
    lattice
        Control points of its logarithm, float32, (z, y, x), on the host.
    levels
        The levels, with their own lattices; that of the last is the field's.
    relative_entropy
        If the number of levels was judged: that of the histogram with 0, 1, ... levels, nats, also
        of the levels that were left out.
    """

    lattice: np.ndarray
    levels: tuple[LevelReport, ...]
    relative_entropy: tuple[float, ...] = ()


def shrink_slices(shape: Sequence[int], factors: Sequence[int]) -> tuple[slice, ...]:
    """Return the voxels that ``sitk.Shrink`` keeps, as slices, so that only they are read.

    A factor larger than the axis leaves one voxel, as in ITK; one below 1 raises an OctaneError.
    """
    slices = []
    for n, factor in zip(shape, factors, strict=True):
        if factor < 1:
            raise InputError(f"The shrink factor is {factor}: give 1 or more for every axis.")
        size = max(1, n // factor)
        offset = max(0, math.floor((n - 1 - (size - 1) * factor) / 2 + 0.5))
        slices.append(slice(offset, offset + (size - 1) * factor + 1, factor))
    return tuple(slices)


def _per_axis(name: str, given: int | Sequence[int]) -> list[int]:
    """Return an integer for each of z, y and x, from three or from one for all."""
    values = list(cast("Sequence[int]", given)) if np.ndim(given) else [cast("int", given)] * 3
    if len(values) != 3 or not all(isinstance(value, Integral) for value in values):
        raise InputError(f"{name} is {given}: give one integer, or three in the order z, y, x.")
    return values


def n4_bias_field_correction(
    image: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    weights: np.ndarray | None = None,
    shrink_factor: int | Sequence[int] = (4, 4, 4),
    iterations: Sequence[int] = (50, 50, 50, 50),
    convergence_threshold: float = 1e-3,
    bias_field_fwhm: float = 0.15,
    wiener_filter_noise: float = 0.01,
    number_of_histogram_bins: int = 200,
    control_points: int | Sequence[int] = (4, 4, 4),
    on_iteration: Callable[[int, int, float], None] | None = None,
    use_all_voxels: bool = False,
    strength: float = 1.0,
    workers: int = 1,
    xp: ModuleType = np,
) -> tuple[np.ndarray, BiasFit]:
    """Correct the bias field of a volume, as SimpleITK's N4 does: shrink, fit, divide.

    Parameters
    ----------
    image : array, (z, y, x)
        Real intensities of any dtype, NumPy or CuPy; a CuPy volume is corrected on its device, in
        the current stream. NaN, infinity, values <= 0, which lack a logarithm, and outliers are
        not fitted (:func:`octane.processes.n4.inclusion.voxels_to_fit`); their number is logged.
    mask : ndarray, (z, y, x), optional
        Bool, or 0 and 1: the voxels to fit. By default all. The whole volume is corrected.
    weights : ndarray, (z, y, x), optional
        Weight of every voxel in the fit (ITK's confidence image); voxels <= 0 are excluded.
    shrink_factor : int or sequence of three int
        Per axis, z, y, x, at least 1: the fit uses every n-th voxel, as after ``sitk.Shrink``.
    control_points : int or sequence of three int
        Of the first level, for z, y and x; at least 4.
    iterations, convergence_threshold, bias_field_fwhm, wiener_filter_noise, \
number_of_histogram_bins, on_iteration
        See :func:`fit_bias_field`.
    use_all_voxels : bool
        Fit all voxels as ITK does, values <= 0 without taking their logarithm.
    strength : float
        0 returns the input's values, 1 the full correction, values between them a linear blend.
    workers : int
        Threads, on a CPU. The result does not depend on their number.
    xp : module
        Where a NumPy volume is computed: on the host, or with ``cupy`` on the current GPU, to and
        from which it is copied block by block.

    Returns
    -------
    corrected : array, (z, y, x)
        A new array on the device of `image`, of its dtype; integers are rounded and clipped.
    fit : BiasFit
        The field, for :func:`log_field`, and the iterations done.

    Raises
    ------
    OctaneError
        For errors of :func:`fit_bias_field`, a shrink factor below 1, a strength outside 0 to 1,
        and an image that is constant, or nowhere above 0, over the voxels to fit.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> shading = np.exp(np.linspace(-0.3, 0.3, 32))
    >>> image = (100 * shading * rng.normal(1, 0.05, (32, 32, 32))).astype(np.float32)
    >>> corrected, fit = n4_bias_field_correction(image, shrink_factor=(2, 2, 2))
    >>> corrected.shape, corrected.dtype.name, fit.lattice.shape
    ((32, 32, 32), 'float32', (11, 11, 11))
    """
    if not 0 <= strength <= 1:
        raise InputError(f"The N4 strength is {strength}: give a value from 0 to 1.")
    check_arrays(image, mask, weights)
    points = _per_axis("control_points", control_points)
    keep = shrink_slices(image.shape, _per_axis("shrink_factor", shrink_factor))
    own = namespace(image)
    where = xp if own is np else own

    # CUDA's current device is set per thread, whatever device the array is on.
    with nullcontext() if own is np else own.cuda.Device(image.device):
        shrunk, inside = image[keep], None if mask is None else mask[keep]
        weight = None if weights is None else weights[keep]
        if not use_all_voxels:
            inside = _usable(shrunk, inside, weight)
        fit = fit_bias_field(
            shrunk,
            inside,
            weights=weight,
            iterations=iterations,
            convergence_threshold=convergence_threshold,
            bias_field_fwhm=bias_field_fwhm,
            wiener_filter_noise=wiener_filter_noise,
            number_of_histogram_bins=number_of_histogram_bins,
            control_points=points,
            on_iteration=on_iteration,
            workers=workers,
            xp=xp,
        )
        if not any(level.iterations for level in fit.levels):
            fitted = slice(None) if inside is None else to_host(inside) == 1
            require_varied("The volume", to_host(shrunk)[fitted])
        return _corrected(image, fit, strength, workers, where), fit


def _usable(
    shrunk: np.ndarray, mask: np.ndarray | None, weights: np.ndarray | None
) -> npt.NDArray[np.bool_]:
    """Leave the voxels that N4 cannot fit out of a mask, on the host, and log their number."""
    # Kernels of a GPU are compiled, so only those are used that the fit needs too.
    inside = included(mask, None if weights is None else to_host(weights))
    if inside is None:
        inside = np.ones(shrunk.shape, np.bool_)
    with np.errstate(over="ignore"):
        values = to_host(shrunk.astype(np.float32, order="C", copy=False))
    inside, left_out = voxels_to_fit(values, inside, "The volume")
    if any(left_out):
        unexpected = left_out.nonfinite or left_out.outliers
        level = logging.WARNING if unexpected else logging.INFO
        log.log(level, "N4: excluded from the fit: %s", left_out)
    return inside


def _corrected(
    image: np.ndarray, fit: BiasFit, strength: float, workers: int, xp: ModuleType
) -> np.ndarray:
    """Divide a volume by its field in blocks of whole planes, computed with `xp`."""
    own = namespace(image)
    corrected = own.empty_like(image)

    def work(region: Region) -> None:
        part = FieldPart(fit.lattice, image.shape, region)
        if xp is own:
            correct_block(image[region], [part], strength=strength, out=corrected[region])
        else:
            block = xp.asarray(image[region], image.dtype.newbyteorder("="))
            corrected[region] = to_host(correct_block(block, [part], strength=strength)[0])

    size = BLOCK if xp is np else GPU_BLOCK
    planes = max(1, size // max(1, math.prod(image.shape[1:])))
    regions = blocks(image.shape, (planes, *image.shape[1:]))
    if xp is np:
        run_tiles(regions, work, workers=workers, describe=lambda r: f"plane {r[0].start}")
    else:
        # In this thread: others have another current device and stream.
        for region in regions:
            work(region)
    return corrected


def fit_bias_field(
    image: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    weights: np.ndarray | None = None,
    iterations: Sequence[int] = (50, 50, 50, 50),
    convergence_threshold: float = 1e-3,
    bias_field_fwhm: float = 0.15,
    wiener_filter_noise: float = 0.01,
    number_of_histogram_bins: int = 200,
    control_points: Sequence[int] = (4, 4, 4),
    fitting_levels: Sequence[int] | None = None,
    on_iteration: Callable[[int, int, float], None] | None = None,
    workers: int = 1,
    xp: ModuleType = np,
) -> BiasFit:
    """Fit the bias field of an (already shrunk) image.

    Parameters
    ----------
    image : array, (z, y, x)
        Intensities, NumPy or CuPy, converted to float32. Values <= 0 are used without logarithm, as
        in ITK. A CuPy image is fitted on its device, which must be current.
    mask : array, (z, y, x), optional
        Bool, or 0 and 1: the voxels to fit. By default all, zeros too.
    weights : array, (z, y, x), optional
        Weight of every voxel in the fit (ITK's confidence image); voxels <= 0 are excluded.
    iterations : sequence of int
        Maximum number of iterations, per level.
    convergence_threshold : float
        A level ends when the coefficient of variation of the field's change is at or below this.
        It is measured with ITK's float32 running mean, to reproduce ITK's number of iterations.
        ITK's value is never below the true one, which is reported while above the threshold.
    bias_field_fwhm : float
        Width of the Gaussian that is deconvolved, in units of the log intensity.
    wiener_filter_noise : float
        Noise term of the deconvolution.
    number_of_histogram_bins : int
        Bins of the log intensity.
    control_points : sequence of three int
        Of the first level, for z, y and x (SimpleITK has x, y, z); at least 4.
    fitting_levels : sequence of three int, optional
        Levels over which the mesh of an axis (z, y, x) is doubled, after which it stays the same.
        By default all, as in SimpleITK; give fewer for an axis too short for a fine mesh.
    on_iteration : callable, optional
        Called after each iteration with the level, the iteration (both from 0) and the measure.
    workers : int
        Threads, on a CPU. The result does not depend on their number.
    xp : module
        Device of the fit of a NumPy image: ``numpy`` for the CPU, ``cupy`` for the current GPU.

    Returns
    -------
    BiasFit
        The lattice is on the host. It is zero, with a logged warning, for a constant image, and
        constant along an axis of a single voxel, which ITK refuses.

    Raises
    ------
    OctaneError
        For options out of their range, an empty mask, a mask with values other than 0 and 1, a mask
        or weights of another shape, and NaN or infinity in included voxels.
    """
    if number_of_histogram_bins < 2:
        raise InputError("The N4 histogram needs at least 2 bins: raise the number of bins.")
    if not (bias_field_fwhm > 0 and wiener_filter_noise > 0):
        raise InputError(
            f"bias_field_fwhm is {bias_field_fwhm} and wiener_filter_noise {wiener_filter_noise}: "
            "give both above 0."
        )
    if not np.iterable(iterations) or min(iterations, default=0) < 0:
        raise InputError(
            f"iterations is {iterations}: give a list with the maximum for each level, 0 or more."
        )
    per_axis = [len(iterations)] * 3 if fitting_levels is None else fitting_levels
    reports = []
    own = namespace(image)
    xp = xp if own is np else own
    kind = steps_for(xp, image.shape, number_of_histogram_bins)
    with FitVoxels(image, mask, weights, workers, kind.SLAB, xp) as grid:
        single = [axis for axis, n in enumerate(grid.shape) if n == 1]
        sharpening = Sharpening(number_of_histogram_bins, bias_field_fwhm, wiener_filter_noise)
        steps = kind(grid, sharpening)
        lattice = np.zeros(tuple(control_points), np.float32)
        for level, most in enumerate(iterations):
            if level:
                finer = [axis for axis in range(3) if level < per_axis[axis]]
                lattice = bspline.refine(to_host(lattice), finer)
            lattice = xp.asarray(lattice)
            with span(f"begin level {level + 1}", counted=False):
                steps.begin_level(lattice.shape)
            history: list[float] = []
            converged = False
            while len(history) < most and not converged:
                with span(f"iteration of level {level + 1}", counted=False):
                    done = steps.iterate(lattice)
                if done is None:
                    if not reports and not history:
                        log.warning("N4: all voxels to fit have the same value; no bias is found")
                    converged = True
                    break
                lattice, moments = done
                measure = moments.variation(grid.size)
                # The true value is a lower bound of ITK's, up to a rounding of 7e-4. ITK's takes
                # longer, so it is computed only if it can decide.
                if measure <= 1.02 * convergence_threshold:
                    measure = steps.running_variation(moments)
                converged = measure <= convergence_threshold
                history.append(measure)
                if on_iteration is not None:
                    on_iteration(level, len(history) - 1, measure)
            found = to_host(lattice)
            for axis in single:
                found = bspline.held_constant(found, axis)
            reports.append(LevelReport(tuple(history), converged, found))
    return BiasFit(reports[-1].lattice if reports else lattice, tuple(reports))


def steps_for(xp: ModuleType, shape: Sequence[int], bins: int) -> type[Steps] | type[CudaSteps]:
    """Return the class of iterations: compiled loops for NumPy, CUDA kernels for CuPy."""
    if xp is np:
        # Not at module level: importing numba takes a third of a second.
        from octane.processes.n4.cpu import CompiledSteps

        return CompiledSteps
    if bins > MAX_BINS or shape[-1] > MAX_ROW:
        log.info(
            "N4 uses array operations: its GPU kernels support at most %d bins and rows of %d",
            *(MAX_BINS, MAX_ROW),
        )
        return Steps
    return CudaSteps


def log_field(
    fit: BiasFit, shape: Sequence[int], region: Sequence[slice] | None = None, xp: ModuleType = np
) -> np.ndarray:
    """Evaluate the log bias field on a grid of any size: float32, of the region's shape.

    Parameters
    ----------
    fit : BiasFit
        From :func:`fit_bias_field`.
    shape : sequence of three int
        The entire grid, usually at full resolution. Its first and last voxels are the ends of the
        field, as in ITK, which stretches a field fitted on a shrunk grid by up to half a step.
    region : sequence of three slices, optional
        The part wanted; equal to that part of the entire grid, bit for bit.
    xp : module
        The namespace of the result, ``numpy`` or ``cupy``.
    """
    return bspline.evaluate_region(fit.lattice, shape, region, xp)
