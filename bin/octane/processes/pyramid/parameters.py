"""Parameters of PYRAMID."""

from typing import ClassVar

from octane.config.parameters import StepParameters, parameter
from octane.config.types import Codec, Lengths


class PyramidParameters(StepParameters):
    """PYRAMID: the volume at several resolutions."""

    title: ClassVar[str] = "Pyramid"
    needed: ClassVar[str] = (
        "If the results are to have other resolutions than 10, 25, 50 and 100 micrometre."
    )
    prefix: ClassVar[str] = "pyramid_"
    resolutions: Lengths | None = parameter(
        None,
        "Isotropic voxel sizes of the levels, finest first. Unset: the volume's own, then each of "
        "10, 25, 50 and 100 that is coarser.",
        unit="micrometer",
    )
    codec: Codec = parameter("zstd", "Compression of the pyramid.", workflow=False)
