"""Volumes, masks and weights that the N4 benchmarks fit."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk

__all__ = ["MASKS", "confidence", "control_points_of", "tissue_volume"]

Volume = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]


def tissue_volume(
    shape: tuple[int, int, int], extent: tuple[float, float, float] = (0.9, 0.75, 0.8)
) -> Volume:
    """Two tissues in a dark background under a smooth bias, with noise, along (z, y, x).

    The tissue is an ellipsoid whose half axes are these parts of the volume's half edges.
    """
    rng = np.random.default_rng(0)
    z, y, x = (
        np.linspace(-1, 1, n, dtype=np.float32).reshape([-1 if a == axis else 1 for a in range(3)])
        for axis, n in enumerate(shape)
    )
    a, b, c = extent
    tissue = np.where((z / a) ** 2 + (y / b) ** 2 + (x / c) ** 2 < 1, 100.0, 8.0)
    tissue = np.where((x / 0.4) ** 2 + (y / 0.35) ** 2 + (z / 0.5) ** 2 < 1, 160.0, tissue)
    bias = np.exp(0.35 * (0.8 * x - 0.5 * y**2 + 0.4 * z * y + 0.3 * np.sin(2 * x + z)))
    speckle = rng.standard_normal(shape, dtype=np.float32)
    speckle *= np.float32(0.04)
    speckle += 1
    return (tissue * bias).astype(np.float32) * speckle


def _none(_volume: Volume) -> None:
    return None


def _otsu(volume: Volume) -> Mask:
    image = sitk.OtsuThreshold(sitk.GetImageFromArray(volume), 0, 1, 200)
    return sitk.GetArrayFromImage(image).astype(np.uint8)


def _thin(volume: Volume) -> Mask:
    """A slanted sheet: few voxels in each row, a bounding box that is nearly the volume."""
    z, y, x = np.ogrid[tuple(slice(n) for n in volume.shape)]
    nz, ny, nx = volume.shape
    height = z / nz + 0.4 * y / ny + 0.3 * x / nx
    return (np.abs(height - 0.85) < 0.12).astype(np.uint8)


def _border(volume: Volume) -> Mask:
    """A block that touches three borders and runs through the background."""
    mask = np.zeros(volume.shape, np.uint8)
    mask[: volume.shape[0] // 2, :, volume.shape[2] // 3 :] = 1
    return mask


MASKS: dict[str, Callable[[Volume], Mask | None]] = {
    "none": _none,
    "Otsu": _otsu,
    "thin": _thin,
    "border": _border,
}


def confidence(volume: Volume) -> Volume:
    """Weights from 0.1 to 1 that fall off towards the last plane, with a corner left out."""
    weights = np.broadcast_to(
        np.linspace(1, 0.1, volume.shape[0], dtype=np.float32)[:, None, None], volume.shape
    ).copy()
    weights[:, : volume.shape[1] // 6, : volume.shape[2] // 6] = 0
    return weights


def control_points_of(
    shape: tuple[int, ...], spacing: tuple[float, ...], distance: tuple[float, ...]
) -> tuple[int, ...]:
    """Control points for a distance of splines, per axis, as users of ITK set them."""
    return tuple(
        int(np.ceil((n - 1) * s / d)) + 3 for n, s, d in zip(shape, spacing, distance, strict=True)
    )
