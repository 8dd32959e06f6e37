"""Figures of RESAMPLE that the report reads."""

from octane.core.records import Figures, Sizes


class ResampleFigures(Figures):
    """A resampled section or volume."""

    voxel_size: Sizes
    source_voxel_size: Sizes
