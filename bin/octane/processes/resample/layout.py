"""Target voxel size of RESAMPLE."""

from octane.core.errors import InputError
from octane.core.geometry import Vector, samples, spelled, vector
from octane.core.units import format_lengths
from octane.processes.resample.parameters import ResampleParameters
from octane.store.volumes import Volume


def target_voxel_size(image: Volume, parameters: ResampleParameters) -> Vector:
    """Return the target voxel size in micrometres.

    Raises
    ------
    OctaneError
        If ``resolution`` and ``scale`` are both given or both missing, if the target is finer than
        the source without ``allow_upsampling``, if it reduces a tile or plane to one voxel, or if
        ``layout`` is mosaic for a section or volume.
    """
    kind = image.attributes.get("kind")
    if parameters.layout == "mosaic" and kind in ("section", "volume"):
        raise InputError(
            f"{image.path} is a {kind}, not a mosaic; give --layout volume (in the workflow, "
            "omit --input_kind)."
        )
    spacing = image.grid.spacing
    if (parameters.resolution is None) == (parameters.scale is None):
        raise InputError(
            f"{image.path}: give the target either as --resolution in micrometres or as --scale."
        )
    if parameters.scale is not None:
        target = vector(*(s / factor for s, factor in zip(spacing, parameters.scale, strict=True)))
    else:
        target = vector(*(parameters.resolution or ()))
    # A stored spacing that went through millimetres may be off in the last digits.
    finer = [t < s * (1 - 1e-6) for t, s in zip(target, spacing, strict=True)]
    if any(finer) and not parameters.allow_upsampling:
        raise InputError(
            f"{image.path} has voxels of {spelled(spacing)} micrometre (z y x), coarser than the "
            f"target {spelled(target)}: give a coarser --resolution, or --allow_upsampling."
        )
    whole = image.chunks if parameters.layout == "mosaic" else image.grid.shape
    # Not along z: one plane of a thin section may be wanted.
    axes = list(zip(whole, image.grid.shape, spacing, target, strict=True))[1:]
    sides = [min(n, most) * s for n, most, s, _ in axes]
    if any(
        min(n, most) > 1 and samples(side, t) == 1
        for side, (n, most, _, t) in zip(sides, axes, strict=True)
    ):
        part = "tiles" if parameters.layout == "mosaic" else "planes"
        raise InputError(
            f"{image.path} has {part} of {format_lengths(sides)} (y x), which voxels of "
            f"{format_lengths(target)} (z y x) reduce to one voxel; check the unit and scale in "
            "its metadata, or give a finer --resolution."
        )
    return target
