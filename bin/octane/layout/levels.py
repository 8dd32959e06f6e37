"""Grids of other voxel sizes: of a resampled volume, and of the levels of a pyramid."""

from octane.core.errors import InputError
from octane.core.geometry import Grid, Vector, vector

DEFAULT_RESOLUTIONS = (10.0, 25.0, 50.0, 100.0)
"""Voxel sizes of atlases and of quick looks, micrometres."""


def steps_of(spacing: Vector, resolutions: tuple[float, ...] | None) -> list[Vector]:
    """Voxel size of each level of a volume; arguments and errors as for :func:`level_grids`."""
    coarsest = max(spacing)
    if resolutions is None:
        coarser = [t for t in DEFAULT_RESOLUTIONS if t > coarsest * (1 + 1e-6)]
        return [spacing, *(vector(t, t, t) for t in coarser)]
    if list(resolutions) != sorted(set(resolutions)):
        raise InputError(
            f"--pyramid_resolutions {' '.join(f'{t:g}' for t in resolutions)} do not ascend; "
            "give each once, finest first."
        )
    if resolutions and resolutions[0] < coarsest * (1 - 1e-6):
        raise InputError(
            f"--pyramid_resolutions asks for {resolutions[0]:g} micrometre, finer than the "
            f"volume's {coarsest:g}; remove the finer ones."
        )
    return [vector(t, t, t) for t in resolutions]


def level_grids(grid: Grid, resolutions: tuple[float, ...] | None) -> list[Grid]:
    """Grid of each level of a volume.

    ``grid`` is the volume's own. Without ``resolutions`` (micrometres, finest first) the levels are
    its own and the coarser ones of :data:`DEFAULT_RESOLUTIONS`. All levels begin at the same edge
    and end within half of their own voxel of the volume's end. Along an axis thinner than half a
    voxel, a level's voxel is as thick as the volume or as the previous level's voxel, whichever is
    thicker. A level that repeats the previous one ends the list.

    Raises
    ------
    OctaneError
        If a resolution is finer than the volume, or if they do not ascend.
    """
    levels: list[Grid] = []
    before, edge, extent = grid, grid.edge, grid.extent
    for step in steps_of(grid.spacing, resolutions):
        axes = zip(step, extent, before.spacing, strict=True)
        target = vector(*(t if n >= t / 2 else max(n, s) for t, n, s in axes))
        if levels and target == before.spacing:
            break
        if levels:
            before = Grid.covering(edge, extent, target)
        else:
            before = grid.resampled(target)
            edge = before.edge
            far = zip(grid.edge, grid.extent, edge, strict=True)
            extent = vector(*(a + n - e for a, n, e in far))
        levels.append(before)
    return levels
