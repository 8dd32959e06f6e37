"""Companions of a volume, which lie on its grid: a mask, weights, the truth of a phantom."""

from pathlib import Path

import numpy as np

from octane.core.errors import InputError
from octane.core.geometry import Grid, spelled
from octane.store.itk_files import FileVolume
from octane.store.tiff_files import TiffVolume
from octane.store.volumes import Volume, open_volume

TOLERANCE = 1e-4
"""Part of a voxel that two grids may differ by: what is lost in float32 and TIFF's fractions."""

RESAMPLE_IT = (
    "resample it onto the volume with SimpleITK.Resample, or correct its header where that is "
    "wrong, as docs/n4.md shows"
)


def open_companions(
    volume: Volume, mask: Path | None = None, weights: Path | None = None, truth: Path | None = None
) -> dict[str, Volume]:
    """Open what is given of ``mask``, ``weights``, and ``tissue`` and ``bias`` of a truth folder.

    One that does not lie on the volume's grid, as far as both files state one, is an error.
    """
    paths = {"mask": mask, "weights": weights}
    found = {name: _on_grid(path, volume, RESAMPLE_IT) for name, path in paths.items() if path}
    if truth is not None:
        remedy = "make the phantom with --truth_resolution as the run's --resolution"
        for name in ("tissue", "bias"):
            found[name] = _on_grid(truth / f"{name}.ome.zarr", volume, remedy)
    return found


def _on_grid(path: Path, volume: Volume, remedy: str) -> Volume:
    """One companion; an error where it does not lie on the volume's grid."""
    companion = open_volume(path, None, volume.grid)
    ours, theirs = companion.grid, volume.grid
    # A TIFF states no origin, and axes in space are stated by ITK's formats alone.
    is_placed = not isinstance(companion, TiffVolume) and not isinstance(volume, TiffVolume)
    turned = ""
    if isinstance(companion, FileVolume) and isinstance(volume, FileVolume):
        directions = companion.frame.GetDirection(), volume.frame.GetDirection()
        if not np.allclose(*directions, rtol=0, atol=TOLERANCE):
            turned = f" with the directions {spelled(directions[0])} and {spelled(directions[1])}"
    off = TOLERANCE * np.array(theirs.spacing)
    # NIfTI keeps an origin in float32.
    near = off + np.finfo(np.float32).eps * np.abs(theirs.origin)
    if (
        ours.shape != theirs.shape
        or (np.abs(np.subtract(ours.spacing, theirs.spacing)) > off).any()
        or (is_placed and (np.abs(np.subtract(ours.origin, theirs.origin)) > near).any())
        or turned
    ):
        raise InputError(
            f"{path} lies on another grid than {volume.path}: {_described(ours)} and "
            f"{_described(theirs)}{turned} (z y x); {remedy}."
        )
    return companion


def _described(grid: Grid) -> str:
    origin = ", ".join(f"{n:g}" for n in grid.origin)
    return f"{spelled(grid.shape)} voxels of {spelled(grid.spacing)} um from {origin}"
