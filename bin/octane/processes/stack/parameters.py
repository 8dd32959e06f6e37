"""Parameters of STACK."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from octane.config.parameters import StepParameters, parameter
from octane.config.types import AUTO, Codec, Measurable, SectionNumbers, Text, or_none
from octane.config.validation import as_flips, section_flips, section_ranges


def _flips(text: str) -> str:
    # However they are written, tasks of the same flips stay cached.
    return as_flips(section_flips(text))


SectionFlips = Annotated[Annotated[Text, AfterValidator(_flips)] | None, BeforeValidator(or_none)]


class StackParameters(StepParameters):
    """STACK: sections stacked into one volume."""

    title: ClassVar[str] = "Stacking"
    needed: ClassVar[str] = "If the input consists of sections."
    prefix: ClassVar[str] = "stack_"
    align: Literal["auto", "none", "translation", "rigid"] = parameter(
        "none",
        "Align sections to their neighbours. none: keep the imaged positions and report the "
        "displacements; translation: shift sections; rigid: rotate them as well; auto: what is "
        "needed, if one certainly lies more than a voxel aside and neighbours show the same "
        "tissue. Only sections that are moved are interpolated once more.",
        workflow_default=AUTO,
    )
    section_thickness: Measurable | None = parameter(
        None,
        "Distance between the surfaces of consecutive sections. Unset: read from the section's "
        "metadata, else from the sections' positions along z, else the full imaged depth. auto: "
        "measured where the next section shows a section's deep planes as well, else as if unset.",
        unit="micrometer",
        workflow="section_thickness",
        shown=True,
    )
    section_surface: Measurable = parameter(
        0.0,
        "Depth of a section's surface in its image; what is above, such as water, is cropped. "
        "auto: as STITCH measures it in each section; others take the median, if most have one, "
        "else 0.",
        unit="micrometer",
        workflow="section_surface",
        workflow_default=AUTO,
    )
    section_level: bool | Literal["auto"] = parameter(
        False,
        "Level each section: remove the tilt of its surface that STITCH measured. Needs "
        "--section_surface auto. auto: if that is auto.",
        workflow="section_level",
        workflow_default=AUTO,
    )
    blend: Annotated[float, Field(ge=0, allow_inf_nan=False)] = parameter(
        0.0,
        "Depth below a section's surface over which it is blended with the section above, where "
        "both show the tissue; 0: not blended.",
        unit="micrometer",
    )
    allow_missing_sections: int = parameter(
        0,
        "How many missing section numbers to accept; each becomes a blank slab and is listed in "
        "the report.",
        workflow="allow_missing_sections",
        ge=0,
    )
    excluded_sections: SectionNumbers = parameter(
        None,
        "Numbers of sections that are left out, such as '7 12-14'. Those between others become "
        "blank slabs without --allow_missing_sections. The workflow derives them from "
        "--exclude_sections and --only_sections.",
        workflow=False,
    )
    flip_sections: SectionFlips = parameter(
        None,
        "Sections that lay the other way round on their slides, with the axes along which STACK "
        "flips them, such as '3: x, 7-9: yx'; yx turns by 180 degrees. The report proposes it.",
        workflow="flip_sections",
    )
    codec: Codec = parameter(
        "zstd",
        "Compression of the volume. The workflow uses blosc-lz4 if only N4 reads the volume.",
        workflow=False,
    )

    @property
    def excluded(self) -> list[int]:
        """Numbers of the sections that the user left out, in order."""
        ranges = section_ranges(self.excluded_sections) if self.excluded_sections else []
        return sorted({number for numbers in ranges for number in numbers})

    @property
    def flips(self) -> dict[int, str]:
        """Axes (y, x) along which sections are flipped, by number."""
        return section_flips(self.flip_sections) if self.flip_sections else {}
