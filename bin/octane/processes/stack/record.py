"""Figures of STACK that the report reads."""

from octane.core.geometry import Vector
from octane.core.records import Figures, JumpFigures, Shape, Sizes

AS_GIVEN, MEASURED, MEDIAN = "as given", "measured", "the median of the others"
BY_DEPTH = "the imaged depth"
"""Sources of a surface's depth or a section's thickness that the verdict tells apart."""
CERTAIN_LENGTH = 3.0
"""Standard deviations beyond which a measured length contradicts another."""


class SectionFigures(Figures):
    """One section of a stack.

    ``edge`` and ``extent`` are those of its image in micrometres, None for a gap. ``thickness`` is
    in micrometres, and ``thickness_from`` describes its source;
    ``measured_thickness`` and ``thickness_std`` are what the planes that it shares with the next
    section show, and ``thickness_reason`` says why nothing was found although the thickness should
    be measured. ``surface`` is the depth of its surface in its image in micrometres,
    ``surface_from`` the source of it, and ``levelled`` the tilt (y, x) in degrees that STACK
    removed. ``blended`` is the depth over which it is blended with the section above, micrometres.
    ``brightness`` is the ratio of its tissue's brightness to its neighbours', ``step`` that to the
    previous section;
    ``flip`` names the axes along which the user flipped it, and ``flipped`` those along which it
    must be mirrored, after that, to fit them. ``shift`` (y, x) in
    micrometres and ``rotation`` in degrees about the volume's centre are its displacement, measured
    or ``given`` by the user; ``moved`` tells whether STACK undid it. Values that could not be
    measured are None.
    """

    name: str = ""
    number: int
    start: int
    stop: int
    missing: bool = False
    edge: Vector | None = None
    extent: Sizes | None = None
    thickness: float | None = None
    thickness_from: str | None = None
    measured_thickness: float | None = None
    thickness_std: float | None = None
    thickness_reason: str = ""
    surface: float | None = None
    surface_from: str | None = None
    levelled: tuple[float, float] | None = None
    blended: float = 0.0
    brightness: float | None = None
    step: float | None = None
    flip: str = ""
    flipped: str | None = None
    shift: tuple[float, float] | None = None
    rotation: float | None = None
    moved: bool = False
    given: bool = False


class DistanceFigures(Figures):
    """Distance of sections as ``taken``, and as their shared depth shows it; micrometres.

    ``by_table`` if a table of displacements states the one that is taken.
    """

    measured: float
    std: float
    taken: float
    by_table: bool = False

    def differs(self, plane: float) -> bool:
        """Tell whether they differ by more than a plane and than the measured one is uncertain."""
        return abs(self.measured - self.taken) > max(plane, CERTAIN_LENGTH * self.std)

    @property
    def sentence(self) -> str:
        """The difference in words, with a remedy."""
        happens = "repeated" if self.measured < self.taken else "lost"
        remedy = f"Give --section_thickness {self.measured:.4g}, or auto to measure all of them."
        if self.by_table:
            remedy = "Correct or empty the thickness in the table that --displacements gives."
        return (
            f"Sections show the same tissue {self.measured:.4g} µm apart, but {self.taken:.4g} is "
            f"taken: tissue is {happens} at each boundary. {remedy}"
        )


class OrderFigures(Figures):
    """What neighbours that share depth say about the order of sections, by their numbers.

    ``compared`` counts the neighbours, ``exchanged`` are two in each other's place, and of
    ``repeated`` two the second shows the tissue of the first again. ``unmatched`` neighbours do
    not match, although most others do.
    """

    compared: int
    exchanged: list[tuple[int, int]] = []
    repeated: list[tuple[int, int]] = []
    unmatched: list[tuple[int, int]] = []


class StackFigures(Figures):
    """A stack.

    ``boundaries`` maps a section's number to the factor by which brightness jumps at its start;
    ``compensated`` are the jumps before and after ``--stitch_attenuation``, if that was given;
    ``unlike`` lists neighbours, by number, without common structure. ``excluded_sections`` are
    those that the user left out; the others without an image are ``missing_sections``. ``blend`` is
    the depth in micrometres over which sections were to be blended at their borders. ``aligned``
    tells whether sections were to be moved. ``order`` is None if neighbours share no depth.
    ``distance`` is that of few neighbours, if they share
    depth and their thickness was not to be measured.
    """

    sections: list[SectionFigures]
    boundaries: dict[int, float] = {}
    compensated: JumpFigures | None = None
    missing_sections: list[int] = []
    excluded_sections: list[int] = []
    distance: DistanceFigures | None = None
    unlike: list[tuple[int, int]] = []
    planes_not_imaged: int = 0
    order: OrderFigures | None = None
    blend: float = 0.0
    align: str | None = None
    aligned: bool = False
    shape: Shape
    voxel_size: Sizes

    @property
    def flips(self) -> dict[int, str]:
        """Axes along which the user flipped sections, by number."""
        return {section.number: section.flip for section in self.sections if section.flip}
