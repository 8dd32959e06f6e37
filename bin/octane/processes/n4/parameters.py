"""Parameters of N4."""

from contextlib import suppress
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from octane.config.parameters import StepParameters, parameter
from octane.config.types import (
    AUTO,
    Codec,
    ControlPoints,
    DType,
    Integers,
    ItkCounts,
    ItkLengths,
    PositiveFloat,
    only,
    or_none,
    word_or_file,
)
from octane.core.units import plain_number

MOST_LEVELS = 6
"""Most fitting levels: each doubles the mesh."""
MASK_WORDS = ("tissue", "none", "null", "")
"""Values of ``n4_mask`` that are not files; all but the first mean none."""


_mask = word_or_file(MASK_WORDS, None)


def _auto(value: object) -> object:
    """Read 'auto' as None: the step derives the value from the data."""
    return None if str(only(value)).strip().lower() == AUTO else value


def _levels(value: object) -> object:
    """Read a number of levels, 'auto' in any case, and 'none' and empty text as None."""
    given = or_none(only(value))
    if given is None:
        return None
    if str(given).strip().lower() == AUTO:
        return AUTO
    with suppress(ValueError):
        if (number := plain_number(str(given))) in range(MOST_LEVELS + 1):
            return int(number)
    raise ValueError(f"give a whole number from 0 to {MOST_LEVELS}, or auto")


class N4Parameters(StepParameters):
    """N4: bias field fitted on the shrunk volume and applied chunk by chunk."""

    title: ClassVar[str] = "N4 bias field correction"
    needed: ClassVar[str] = (
        "If the correction is too strong, too weak, or spoiled by the background."
    )
    prefix: ClassVar[str] = "n4_"
    mask: Annotated[str | None, BeforeValidator(_mask)] = parameter(
        None,
        "Voxels that the field is fitted to: a file of 0 and 1 on the volume's grid, 'tissue' for "
        "a mask computed from the data (Otsu per section), unset or 'none' for every voxel.",
        workflow_default="tissue",
        shown=True,
    )
    use_all_voxels: bool = parameter(
        False,
        "Fit every finite voxel of the mask, as ITK does: also values <= 0, without their "
        "logarithm, and outliers, which may leave the field flat.",
        workflow=False,
    )
    weights: Annotated[str | None, BeforeValidator(or_none)] = parameter(
        None,
        "Weight image on the volume's grid (ITK's confidence image): how much each voxel counts "
        "in the fit; 0 leaves it out.",
        workflow=False,
    )
    mode: Literal["global", "per_section", "two_pass"] = parameter(
        "global",
        "global: one field over the volume; per_section: one field per section, which keeps the "
        "section's brightness; two_pass: per section, then one field over the result.",
    )
    section_starts: Annotated[Integers | None, BeforeValidator(or_none)] = parameter(
        None,
        "First plane of every section, such as '0 30 60', for a volume without section metadata. "
        "Planes before the first belong to no section.",
    )
    histogram_matching: Literal["none", "section", "plane"] = parameter(
        "none",
        "Before the fit, match the tissue histogram of each section (or plane) to that of the "
        "volume: for sections that differ in brightness or contrast.",
    )
    z_profile_gain: bool = parameter(
        False,
        "Before the fit, scale the planes of a section to one mean intensity: for attenuation "
        "with depth.",
    )
    shrink_factor: Annotated[ItkCounts | None, BeforeValidator(_auto)] = parameter(
        (4, 4, 4),
        "Fit to every n-th voxel: one number, or three in ITK's order x y z; auto: up to 4 while "
        "the mesh keeps enough voxels, more if --memory requires it. Lower it for small volumes "
        "or fine fields.",
        workflow_default=AUTO,
    )
    iterations: Annotated[Integers | None, BeforeValidator(_auto)] = parameter(
        (50, 50, 50, 50),
        "Maximum iterations at each fitting level, one number per level. auto: 50 at each of up to "
        "four levels, with fewer levels along axes too short for the finest mesh.",
        workflow_default=AUTO,
    )
    levels: Annotated[
        Annotated[int, Field(ge=0, le=MOST_LEVELS)] | Literal["auto"] | None,
        BeforeValidator(_levels),
    ] = parameter(
        None,
        "Fitting levels, 0 to 6; the last number of the iterations holds for those without one. "
        "auto: of the levels that the iterations give, as many as correct bias rather than remove "
        "tissue, judged by the histogram; 0 if N4 does not help. Unset: as the iterations give.",
    )
    convergence_threshold: float = parameter(
        0.001, "A level ends when the field changes by less than this.", ge=0
    )
    bias_field_fwhm: PositiveFloat = parameter(
        0.15, "Full width at half maximum of the field's histogram, in log intensity."
    )
    wiener_filter_noise: PositiveFloat = parameter(
        0.01, "Noise term of the Wiener filter that sharpens the histogram.", workflow=False
    )
    number_of_histogram_bins: int = parameter(
        200, "Bins of the log intensity histogram.", workflow=False, ge=2
    )
    control_points: ControlPoints = parameter(
        (4, 4, 4),
        "Control points of the first level, one number or three in ITK's order x y z; each level "
        "doubles the mesh. More points follow a finer field.",
    )
    spline_distance_mm: Annotated[ItkLengths | None, BeforeValidator(or_none)] = parameter(
        None,
        "Maximum knot spacing of the first level: one number, or three in ITK's order x y z. "
        "Replaces the control points.",
        unit="millimeter",
    )
    strength: float = parameter(
        1.0,
        "Degree of correction: 0 leaves the input unchanged, 1 corrects fully.",
        ge=0,
        le=1,
        shown=True,
    )
    nonfinite: Literal["error", "mask"] = parameter(
        "error", "NaN and Inf in the volume: stop with an error, or mask them out of the fit."
    )
    dtype: DType = parameter(
        "input", "Type of the corrected volume; integers are rounded and clipped."
    )
    codec: Codec = parameter("zstd", "Compression of the corrected volume.", workflow=False)
