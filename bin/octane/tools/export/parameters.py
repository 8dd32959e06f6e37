"""Parameters of exported volumes."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator

from octane.config.parameters import StepParameters, parameter
from octane.config.types import OME_ZARR, Lengths3, OmeZarrVersion, Text, Texts, as_assignments
from octane.core.orientation import read_orientation

# fmt: off
Modality = Literal[
    "BF", "CARS", "CONF", "DF", "DIC", "FLUO", "MPE", "NLO", "OCT", "PC", "PLI", "SEM", "SPIM",
    "SR", "TEM", "XPCT", "uCT", "2PE",
]
"""Suffixes of BIDS for microscopy."""
# fmt: on


def _spans(words: tuple[str, ...]) -> tuple[str, ...]:
    """Check parts of axes such as ``z=100:400``; either end may be missing."""
    number = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?"
    matches = [re.fullmatch(rf"([zyx])=({number})?:({number})?", w, re.IGNORECASE) for w in words]
    ends = [(m[1].lower(), m[2], m[3]) for m in matches if m]
    if (
        len({axis for axis, _, _ in ends}) < len(words)
        or not all(a or b for _, a, b in ends)
        or any(a and b and float(a) >= float(b) for _, a, b in ends)
    ):
        raise ValueError(
            "give from:to in micrometres for each axis once, such as 'z=100:400 y=:2000'"
        )
    return words


def _code(value: str | None) -> str | None:
    """Check the code of an orientation."""
    if value is not None:
        if len(value) != 3:
            raise ValueError("give the letters of where z, y and x run to, such as SAR")
        read_orientation([value])
    return value


class ExportParameters(StepParameters):
    """Part and format of a volume for other programs."""

    title: ClassVar[str] = "Export"
    resolution: Lengths3 | None = parameter(
        None,
        "Voxel size of the finest level to write: one number, or three in the order z y x. "
        "Unset: the finest.",
        unit="micrometer",
        workflow=False,
    )
    region: Annotated[Texts, BeforeValidator(as_assignments), AfterValidator(_spans)] = parameter(
        (),
        "Part to write, in micrometres along the axes of the store, such as 'z=100:400 y=:2000': "
        "the voxels whose centres lie in it. An axis left out is whole.",
        workflow=False,
    )
    reorient: Annotated[str | None, AfterValidator(_code)] = parameter(
        None,
        "Permute and flip the axes so that z, y and x run to these: 'SAR' is superior, anterior, "
        "right, which nibabel calls RAS. The voxels keep their places in the subject.",
        workflow=False,
    )
    channels: Text | None = parameter(
        None,
        "Channels to write, in place of --channel: all, or numbers or names, such as '0 2'. Unset, "
        "as is --channel: all, if the format holds several.",
        workflow=False,
    )
    ome_zarr_version: OmeZarrVersion = parameter(
        OME_ZARR, "Version of OME-Zarr; 0.4 for programs without zarr 3.", workflow=False
    )


class BidsParameters(StepParameters):
    """Names of a volume in a BIDS derivative."""

    title: ClassVar[str] = "BIDS"
    bids_subject: str | None = parameter(
        None,
        "Label of the subject, letters and digits. Unset: the name of the store.",
        workflow=False,
    )
    bids_sample: str = parameter("01", "Label of the sample, letters and digits.", workflow=False)
    bids_suffix: Modality = parameter("OCT", "Modality.", workflow=False)
