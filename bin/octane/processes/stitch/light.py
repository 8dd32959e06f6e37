"""The light of a section's tiles: its flat field as measured, and the one that is applied."""

from dataclasses import dataclass

from octane.config.types import AUTO
from octane.layout.placement import TilePlacement
from octane.processes.stitch.blending import Projections
from octane.processes.stitch.flat_field import FlatField, Image, estimate_flat_field, shading_of
from octane.processes.stitch.gains import judge_flat_field
from octane.processes.stitch.parameters import ESTIMATE, StitchParameters
from octane.processes.stitch.record import HeldOutFigures


@dataclass(frozen=True)
class Light:
    """Flat fields of a section, ``measured`` in its overlaps and ``applied`` to its tiles.

    Either may be None; ``is_given`` tells whether the latter is from a file. ``held_out`` are seams
    that the measured one was not fitted to, None if that is not judged.
    """

    measured: FlatField | None = None
    applied: FlatField | None = None
    is_given: bool = False
    held_out: HeldOutFigures | None = None

    def even_out(self, projections: Projections) -> Projections:
        """Projections evened out by the applied flat field, if any."""
        flat = self.applied
        return {t: flat.correct(image) for t, image in projections.items()} if flat else projections

    def remaining_flat_field(
        self, evened: Projections, placement: TilePlacement
    ) -> FlatField | None:
        """Flat field that evened projections still show; None if unknown."""
        if self.is_given:
            return estimate_flat_field(evened, placement)
        return None if self.applied else self.measured

    def shading(self, left: FlatField | None) -> tuple[float | None, float | None]:
        """Shading before and after, None if unknown; ``left`` judges a given flat field."""
        if self.measured is None:
            return None, None
        after = self.measured.error if self.applied else None
        if self.is_given:
            after = shading_of(left.profile) if left else None
        return shading_of(self.measured.profile), after


def light_of(
    projections: Projections,
    placement: TilePlacement,
    given: Image | None,
    parameters: StitchParameters,
) -> Light:
    """Measure the flat field in overlaps, and choose which to apply: given, measured or none.

    By itself, it is applied only where it lowers seams that it was not fitted to.
    """
    dark = parameters.dark_offset
    measured = estimate_flat_field(projections, placement, dark=dark)
    if given is not None:
        return Light(measured, FlatField(given, dark), is_given=True)
    if parameters.flat_field not in (ESTIMATE, AUTO):
        return Light(measured)
    judged = judge_flat_field(projections, placement, dark=dark)
    is_kept = parameters.flat_field == ESTIMATE or (judged is not None and judged.lowers_seams)
    return Light(measured, measured if is_kept else None, held_out=judged)
