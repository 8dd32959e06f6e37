"""Companions of a volume, on its grid: a mask, weights, a phantom's ground truth."""

from pathlib import Path

import numpy as np

from octane.core.errors import InputError
from octane.core.geometry import Grid, spelled
from octane.core.orientation import contradict, spelled_orientation
from octane.store.stated import stated_orientation
from octane.store.volumes import Volume, is_oblique, open_volume

GRID_TOLERANCE = 1e-4
"""Tolerance in voxels for equal grids: the rounding of float32 and of TIFF's rationals."""

RESAMPLE_REMEDY = (
    "resample it onto the volume with SimpleITK.Resample, or correct its header if that is wrong "
    "(see docs/n4.md)"
)


def open_companions(
    volume: Volume, mask: Path | None = None, weights: Path | None = None, truth: Path | None = None
) -> dict[str, Volume]:
    """Open ``mask``, ``weights``, and ``tissue`` and ``bias`` in the folder ``truth``, if given.

    An InputError says that one is on a different grid than the volume; origins and orientations are
    compared only if both state them.
    """
    paths = {"mask": mask, "weights": weights}
    companions = {
        name: _on_grid(path, volume, RESAMPLE_REMEDY) for name, path in paths.items() if path
    }
    if truth is not None:
        remedy = "make the phantom with --truth_resolution equal to the run's --resolution"
        for name in ("tissue", "bias"):
            companions[name] = _on_grid(truth / f"{name}.ome.zarr", volume, remedy)
    return companions


def _on_grid(path: Path, volume: Volume, remedy: str) -> Volume:
    """Open one companion; an InputError if it is on a different grid than the volume."""
    companion = open_volume(path, None, volume.grid)
    require_same_grid(companion, volume, remedy)
    return companion


def require_same_grid(companion: Volume, volume: Volume, remedy: str) -> None:
    """Raise an InputError with a remedy unless a companion is on the grid of the volume."""
    ours, theirs = companion.grid, volume.grid
    has_place = companion.has_place and volume.has_place
    rotated = ""
    stated = [stated_orientation(image.attributes) for image in (companion, volume)]
    if contradict(*stated):
        rotated = f" oriented {spelled_orientation(stated[0])} and {spelled_orientation(stated[1])}"
        remedy = f"correct the orientation of one of them, or {remedy}"
    elif companion.geometry is not None and volume.geometry is not None:
        directions = companion.geometry.directions, volume.geometry.directions
        are_stated = all(
            is_oblique(image) or any(orientation)
            for image, orientation in zip((companion, volume), stated, strict=True)
        )
        if are_stated and not np.allclose(*directions, rtol=0, atol=GRID_TOLERANCE):
            rotated = f" with directions {spelled(directions[0])} and {spelled(directions[1])}"
    off = GRID_TOLERANCE * np.array(theirs.spacing)
    # NIfTI stores the origin in float32.
    near = off + np.finfo(np.float32).eps * np.abs(theirs.origin)
    if (
        ours.shape != theirs.shape
        or (np.abs(np.subtract(ours.spacing, theirs.spacing)) > off).any()
        or (has_place and (np.abs(np.subtract(ours.origin, theirs.origin)) > near).any())
        or rotated
    ):
        raise InputError(
            f"{companion.path} is on a different grid than {volume.path}: {_grid_text(ours)} and "
            f"{_grid_text(theirs)}{rotated} (z y x); {remedy}."
        )


def _grid_text(grid: Grid) -> str:
    origin = ", ".join(f"{n:g}" for n in grid.origin)
    return f"{spelled(grid.shape)} voxels of {spelled(grid.spacing)} um from {origin}"
