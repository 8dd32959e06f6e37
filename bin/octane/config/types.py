"""Types of parameters, and how the command line's words for them are read."""

import math
import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from octane.config.validation import section_ranges
from octane.core.units import bytes_of, plain_number, without_comma

Unit = Literal["nanometer", "micrometer", "millimeter", "centimeter", "meter"]
DType = Literal["input", "uint8", "uint16", "int16", "float32", "float64"]
Codec = Literal["zstd", "blosc-lz4", "none"]
INTERMEDIATE: Codec = "blosc-lz4"
"""Codec of what the next step reads once: the fastest for its size."""
OmeZarrVersion = Literal["0.5", "0.4"]
OME_ZARR: OmeZarrVersion = "0.5"
"""Version of OME-Zarr that every step writes."""


def as_list(value: object) -> object:
    """Split ``"40 40 40"``, ``"40,40,40"``, a bare number or repeated flags into a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        return value
    return [
        word
        for part in parts
        for word in (re.split(r"[\s,]+(?!%)", part) if isinstance(part, str) else [part])
        if word != ""
    ]


def as_assignments(value: object) -> object:
    """Split ``"x=Stage X [mm] y=Stage Y [mm]"``, or repeated flags, into a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str) for part in parts):
        return value
    return [
        word
        for part in parts
        for word in re.split(r"(?<![\s,])[\s,]+(?=\w+=)", str(part).strip())
        if word
    ]


def _pointed(value: object) -> object:
    """Refuse a fraction with a comma, which would be two numbers, of which the second is none."""
    mended = without_comma(str(only(value)))
    if 0 < float(mended or 0) < 1:
        raise ValueError(f"it has a comma; write {mended}")
    return value


def _per_axis(axes: str) -> Callable[[object], object]:
    """Accept one number per axis in this order, one for all axes, or each by name (``z=4``)."""
    order, example = " ".join(axes), ",".join(f"{axis}=4" for axis in axes)
    count = {2: "two", 3: "three"}[len(axes)]

    def arrange(value: object) -> object:
        values = as_list(value)
        if not isinstance(values, list):
            return values
        named = dict(str(word).lower().partition("=")[::2] for word in values)
        if sorted(named) == sorted(axes) and len(values) == len(axes):
            return [named[axis] for axis in axes]
        if len(values) not in (1, len(axes)) or any("=" in str(word) for word in values):
            raise ValueError(f"give one number, {count} in the order {order}, or {example}")
        return values * (len(axes) // len(values))

    return arrange


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
# Nextflow hands over digits as a number.
Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Texts = tuple[Text, ...]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Integers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_list)]
Lengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(as_list)]
# Of any length, because the command line accepts one number for all axes; the validators expand it.
# ITK's options use ITK's order.
Lengths3 = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("zyx"))]
Counts3 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("zyx"))]
Counts2 = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("yx"))]
Fractions2 = Annotated[
    tuple[Fraction, ...], BeforeValidator(_per_axis("yx")), BeforeValidator(_pointed)
]
ItkLengths = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_per_axis("xyz"))]
ItkCounts = Annotated[tuple[Count, ...], BeforeValidator(_per_axis("xyz"))]
ControlPoints = Annotated[
    tuple[Annotated[int, Field(ge=4)], ...], BeforeValidator(_per_axis("xyz"))
]
AUTO: Literal["auto"] = "auto"
NEAREST: Literal["nearest"] = "nearest"


def _sized(value: str) -> str:
    bytes_of(value)
    return value


def only(value: object) -> object:
    """Unwrap a list of one member."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def or_none(value: object) -> object:
    """Read 'none' and empty text as None."""
    return None if str(only(value)).strip().lower() in ("", "none") else value


def word_or_file(
    words: tuple[str, ...], none: Literal["none"] | None
) -> Callable[[object], str | None]:
    """Accept a file's name or a word, in any case; those from ``none`` on become that.

    If ``none`` is None, only the first word is one.
    """
    kept = words[: words.index(none)] if none else words[:1]

    def read(value: object) -> str | None:
        text = str(only(value)).strip()
        word = text.lower()
        return text if word not in words else word if word in kept else none

    return read


def _switched(value: object) -> object:
    # Like `switched` in lib/functions.nf: Nextflow 26.04 passes command-line values as text.
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _ranged(text: str) -> str:
    section_ranges(text)
    return text


def _measurable(value: object) -> object:
    """Accept a number from 0 on, or 'auto' in any case."""
    text = str(only(value)).strip().lower()
    if text == AUTO:
        return AUTO
    try:
        number = plain_number(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("give a number from 0 on, or auto")
    return number


Size = Annotated[str, BeforeValidator(_sized)]
SectionNumbers = Annotated[
    Annotated[Text, AfterValidator(_ranged)] | None, BeforeValidator(or_none)
]
Switch = Annotated[bool, BeforeValidator(_switched)]
Measurable = Annotated[float | Literal["auto"], BeforeValidator(_measurable)]
"""A number, or ``auto`` where the data show it."""
