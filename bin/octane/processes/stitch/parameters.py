"""Parameters of STITCH, and of the overlap of tiles."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from octane.config.parameters import StepParameters, parameter
from octane.config.types import AUTO, Fractions2, PositiveFloat, word_or_file

ESTIMATE: Literal["estimate"] = "estimate"
NO_LIGHT = ("none", "null", "")
GAIN_WORDS = (ESTIMATE, *NO_LIGHT)
FLAT_WORDS = (ESTIMATE, AUTO, *NO_LIGHT)
"""Values of ``stitch_gain`` and ``stitch_flat_field`` that are not files."""


class OverlapParameters(StepParameters):
    """Overlap of the tiles of a mosaic."""

    title: ClassVar[str] = "Overlap of tiles"
    overlap: Fractions2 | None = parameter(
        None,
        "Overlap of neighbouring tiles as a fraction of a tile: one number, or two in the order y "
        "x. Unset: as the data state it, or measured by the workflow. 0: tiles abut.",
        workflow="overlap",
        shown=True,
    )
    check_overlap: Literal["error", "warning"] = parameter(
        "error",
        "What to do if most tiles fit their neighbours only at another overlap, or with rows or "
        "columns reversed. error: stop and name what fits; warning: go on. A doubtful case only "
        "warns.",
        workflow="stitch_check_overlap",
    )


class StitchParameters(OverlapParameters):
    """STITCH: tiles of one section placed and blended."""

    title: ClassVar[str] = "Stitching"
    needed: ClassVar[str] = "If sections consist of tiles."
    prefix: ClassVar[str] = "stitch_"
    refine: bool | Literal["auto"] = parameter(
        False,
        "Refine the tile positions by cross-correlation of the overlaps, and move tiles in z by "
        "whole planes. A section whose halves of overlaps disagree stays as it is. auto: unless "
        "--positions states where tiles lie.",
        workflow_default=AUTO,
    )
    max_shift: PositiveFloat = parameter(
        50.0, "Largest correction that refinement may make to a tile.", unit="micrometer"
    )
    flat_field: Annotated[str, BeforeValidator(word_or_file(FLAT_WORDS, "none"))] = parameter(
        "none",
        "Flat-field correction of tiles that darken towards their edges. estimate: from the "
        "overlaps of a section's tiles; auto: the same, where it lowers seams not used for the "
        "fit; FILE: a TIFF or .npy of the illumination of a full tile (octane's own, or "
        "BaSiC's); none: no correction. The report measures the shading.",
        workflow_default=AUTO,
        shown=True,
    )
    gain: Annotated[str, BeforeValidator(word_or_file(GAIN_WORDS, "none"))] = parameter(
        "none",
        "Correction of tiles that are brighter or darker than others, by one factor each. "
        "estimate: from the overlaps, if that lowers seams not used for the fit; FILE: a CSV with "
        "the columns section, row, column and gain, which divides voxels, such as an earlier "
        "run's SUBJECT_gains.csv; none: no correction.",
    )
    dark_offset: Annotated[float, Field(ge=0, allow_inf_nan=False)] = parameter(
        0.0,
        "Grey level of an unlit pixel, subtracted before --stitch_flat_field, --stitch_gain and "
        "--stitch_attenuation are applied. Set it for cameras, where it is often 100.",
    )
    attenuation: Literal["none", "compensate", "coefficient"] = parameter(
        "none",
        "Attenuation of light with depth, by a depth-resolved model of each column. compensate: "
        "undo it; coefficient: write the attenuation coefficient, in 1/mm. It needs "
        "floating-point intensities, not logarithms.",
    )
