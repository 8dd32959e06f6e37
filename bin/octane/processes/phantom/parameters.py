"""Parameters of PHANTOM."""

from typing import ClassVar, Literal

from octane.config.parameters import StepParameters, parameter
from octane.config.types import Counts2, Counts3, Fraction, Fractions2, Lengths3, PositiveFloat


class PhantomParameters(StepParameters):
    """PHANTOM: a synthetic serial-section OCT subject with its ground truth."""

    title: ClassVar[str] = "Phantom"
    sections: int = parameter(4, "Number of sections.", ge=1)
    seed: int = parameter(1, "Seed; the same seed makes the same subject.", ge=0)
    channels: int = parameter(
        1,
        "Channels of the mosaics, contrasts of one tissue: reflectance, retardance, attenuation, "
        "birefringence. The last of three or more is axis, angles of 0 to 180 degrees.",
        ge=1,
        le=5,
    )
    tiles: Counts2 = parameter((3, 3), "Tiles per section, in the order y x.")
    tile_shape: Counts3 = parameter((48, 128, 128), "Voxels of a full tile, in the order z y x.")
    edge_fraction: Fraction = parameter(
        0.25,
        "Fraction of a tile cropped from the last row and column; 0: all tiles are full. The rest "
        "must exceed the overlap.",
    )
    voxel_size: Lengths3 = parameter(
        (3.5, 4.0, 4.0), "Voxel size, in the order z y x.", unit="micrometer"
    )
    overlap: Fractions2 = parameter(
        (0.2, 0.2), "Overlap of neighbouring tiles as a fraction of a tile, in the order y x."
    )
    section_thickness: PositiveFloat = parameter(
        150.0,
        "Thickness of each cut; tissue imaged below it appears again in the next section.",
        unit="micrometer",
    )
    speckle_looks: float = parameter(
        16.0, "Independent looks averaged in the speckle; 0: no speckle.", ge=0
    )
    attenuation: float = parameter(
        1.0, "Attenuation with depth in a section.", unit="1/millimeter", ge=0
    )
    shading: Fraction = parameter(0.1, "Fraction of the intensity lost at the corners of a tile.")
    bias: float = parameter(0.5, "Half range of the log bias field over the subject.", ge=0)
    section_steps: float = parameter(
        0.0, "Half range of the log brightness differences between sections.", ge=0
    )
    position_error: float = parameter(
        0.0,
        "Maximum stage error of a tile in y and x; positions.csv has the true positions.",
        unit="micrometer",
        ge=0,
    )
    shift: float = parameter(
        0.0,
        "Maximum displacement of a section in y and x; the truth records each one.",
        unit="micrometer",
        ge=0,
    )
    rotation: float = parameter(
        0.0, "Maximum rotation of a section about its centre.", unit="degree", ge=0
    )
    surface: float = parameter(
        0.0,
        "Depth of the sections' surface below their first plane; water lies above it.",
        unit="micrometer",
        ge=0,
    )
    dtype: Literal["uint16", "float32"] = parameter("float32", "Type of the mosaics.")
    truth_resolution: PositiveFloat = parameter(
        10.0,
        "Voxel size of the truth; N4 compares with it if the run has the same --resolution.",
        unit="micrometer",
    )
