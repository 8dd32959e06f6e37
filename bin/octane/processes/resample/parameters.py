"""Parameters of RESAMPLE."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from octane.config.parameters import StepParameters, parameter
from octane.config.types import INTERMEDIATE, Codec, DType, Lengths3, only


def _read_target(value: object) -> object:
    """Read 'none' as None; empty text, as of an unset variable, stays an error."""
    return None if str(only(value)).strip().lower() == "none" else value


class ResampleParameters(StepParameters):
    """RESAMPLE: tiles (or a volume) resampled to the target resolution."""

    title: ClassVar[str] = "Resampling"
    needed: ClassVar[str] = "If the results are to be coarser than the data."
    prefix: ClassVar[str] = "resample_"
    resolution: Annotated[Lengths3 | None, BeforeValidator(_read_target)] = parameter(
        None,
        "Target voxel size: one number, or three in the order z y x. Unset or 'none': RESAMPLE is "
        "skipped and the data keep their voxel size.",
        unit="micrometer",
        workflow="resolution",
        shown=True,
    )
    scale: Lengths3 | None = parameter(
        None,
        "Scale factor, output voxels per input voxel, instead of a resolution: one number, or "
        "three in the order z y x; 0.5 halves the number of voxels along an axis.",
        workflow=False,
    )
    layout: Literal["mosaic", "volume"] = parameter(
        "mosaic",
        "mosaic: each tile is a separate acquisition and is resampled separately; volume: one "
        "continuous image. The workflow derives it from the input.",
        workflow=False,
    )
    allow_upsampling: bool = parameter(
        False,
        "Allow a target finer than the source; it adds voxels but no information.",
        workflow="allow_upsampling",
    )
    dtype: DType = parameter("input", "Type of the output; integers are rounded and clipped.")
    codec: Codec = parameter(INTERMEDIATE, "Compression of the output.", workflow=False)
