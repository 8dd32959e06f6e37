"""Parameters of a new subject."""

from pathlib import Path
from typing import Literal

from octane.config.parameters import InputParameters, parameter
from octane.config.types import Fractions2, Lengths3, PositiveFloat


class SubjectOverrides(InputParameters):
    """Parameters of a new subject that the user sets; None: taken from the data."""

    outdir: Path | None = parameter(
        None, "Folder for the results; unset: ./results, or next to data that contain this folder."
    )
    resolution: Lengths3 | None = parameter(None, "Target voxel size in micrometres.")
    overlap: Fractions2 | None = parameter(
        None, "Overlap of neighbouring tiles as a fraction of a tile."
    )
    section_thickness: PositiveFloat | None = parameter(
        None, "Distance between the surfaces of consecutive sections in micrometres."
    )
    input_kind: Literal["auto", "mosaic", "section", "volume"] = parameter(
        "auto", "Kind of the data, if their metadata do not state it."
    )
