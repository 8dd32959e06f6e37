"""Faults of a section that was just stitched, by the report's own checks."""

import logging
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from zipfile import BadZipFile

import numpy as np

from octane.config.types import AUTO
from octane.core.errors import OctaneError
from octane.core.files import remove
from octane.core.records import Record, read_record
from octane.processes.report.check import Check, Settings
from octane.processes.report.gallery import Gallery
from octane.processes.report.sections import sections_of
from octane.processes.report.summary import section_qualities, title_of
from octane.processes.report.tasks import TaskRecord
from octane.processes.report.verdict import check_subject
from octane.processes.stack.parameters import StackParameters
from octane.processes.stack.record import SectionFigures, StackFigures
from octane.processes.stitch.record import StitchFigures
from octane.tools.watch.state import UNMATCHED, Fault, SectionEntry

logger = logging.getLogger(__name__)

SURFACE = "Surface"
COMPARISONS = (
    *("Seams of a section", "Shading of a section", "Shading of tiles"),
    *("Section boundaries", "Section thickness", "Planes not imaged"),
)
"""Checks that compare all sections, or tell what the workflow can mend: no fault of a section."""
LEAST_SURFACES = 3
"""Sections whose surface tells where the next one's lies."""
SURFACE_CHANGE = 0.1
"""Largest change of a surface's depth, fraction of the imaged depth."""
CUT_CHANGE = 0.15
"""Largest change of a cut's thickness, fraction of the usual one, and at least a plane."""
MOST_MISSING = 99
"""Numbers that may lie between two sections that are compared."""


@dataclass(frozen=True)
class StitchedSection:
    """A stitched section: its number, its image, its record and its figures."""

    number: int
    image: Path
    record: Record
    figures: StitchFigures
    preview: Path

    @classmethod
    def read(cls, number: int, name: str, task: Path) -> "StitchedSection":
        """Read what STITCH left in the folder of its task."""
        record = read_record(task / f"{name}_stitch_metrics.json")
        figures = StitchFigures.model_validate(record.figures)
        parts = (task / f"{name}.ome.zarr", record, figures, task / f"{name}_stitch_preview.npz")
        return cls(number, *parts)

    @property
    def title(self) -> str:
        """The section as checks name it."""
        return title_of(self.image.name, self.figures.section)

    @property
    def surface(self) -> float | None:
        """Depth of its surface in micrometres."""
        return self.figures.surface.depth if self.figures.surface else None


def compare_sections(
    before: StitchedSection, section: StitchedSection, parameters: StackParameters, scratch: Path
) -> tuple[StackFigures, Record] | None:
    """Compare a section with the one before; None if STACK cannot, which is said."""
    try:
        return stack_pair(before.image, section.image, parameters, scratch)
    except OctaneError as error:
        logger.warning("%s was not compared with the section before: %s", section.title, error)
        return None


def stack_pair(
    before: Path, section: Path, parameters: StackParameters, scratch: Path
) -> tuple[StackFigures, Record]:
    """Compare a section with the one before as STACK does; the volume is removed again.

    Raises an OctaneError if STACK cannot.
    """
    changes: dict[str, object] = {"align": "none", "blend": 0.0, "excluded_sections": None}
    changes |= {
        "section_level": False,
        "allow_missing_sections": MOST_MISSING,
        "flip_sections": None,
    }
    if parameters.section_thickness is None:
        changes["section_thickness"] = AUTO
    flags = parameters.model_copy(update=changes).flags()
    volume, record = scratch / "pair.ome.zarr", scratch / "pair.json"
    script = Path(__file__).resolve().parents[3] / "stack.py"
    command = [sys.executable, str(script), str(volume), str(before), str(section), *flags]
    try:
        done = subprocess.run(
            [*command, "--overwrite", "--metrics", str(record)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    finally:
        remove(volume)
    if done.returncode:
        raise OctaneError((done.stderr.strip().splitlines() or ["STACK failed"])[-1])
    read = read_record(record)
    return StackFigures.model_validate(read.figures), read


def thickness_of(pair: tuple[StackFigures, Record] | None) -> float | None:
    """Thickness of the cut before a section, as STACK measured it on two sections; micrometres."""
    imaged = [] if pair is None else [s for s in pair[0].sections if not s.missing]
    return imaged[0].measured_thickness if imaged else None


def faults_of(
    section: StitchedSection,
    others: Sequence[StitchedSection],
    pair: tuple[StackFigures, Record] | None,
    earlier: Sequence[SectionEntry] = (),
) -> list[Fault]:
    """Faults of a section, by checks of the report.

    ``others`` are sections of the same run, and ``earlier`` those taken before. ``pair`` is what
    STACK says of this one and the one before.
    """
    by_title = {title_of("", other.number): other for other in (*others, section)}
    stack, record = pair or (None, None)
    if stack is not None:
        # Of two sections STACK cannot tell which one is odd, and the one before was judged.
        comparable = [
            _without_comparisons(s) if s.number != section.number else s for s in stack.sections
        ]
        stack = stack.model_copy(update={"sections": comparable})
    settings = Settings(section.record.settings, record.settings if record else {}, {})
    figures = {other.image.name: other.figures for other in by_title.values()}
    checks = check_subject(
        section_qualities(figures, stack, None), figures, stack, None, settings=settings
    )
    faults = [Fault(c.name, c.sentence) for c in checks if _is_fault(c, section.title)]
    if stack is not None:
        faults += _unlike_faults(stack, section)
    faults += _surface_faults(section, [entry.surface for entry in earlier])
    return faults + _cut_faults(section, thickness_of(pair), [entry.thickness for entry in earlier])


def _without_comparisons(section: SectionFigures) -> SectionFigures:
    changes = dict.fromkeys(("brightness", "step", "flipped", "shift"))
    return section.model_copy(update=changes)


def _is_fault(check: Check, title: str) -> bool:
    is_own = check.state == "warning" and title in check.sections
    return is_own and check.name not in COMPARISONS


def _unlike_faults(stack: StackFigures, section: StitchedSection) -> list[Fault]:
    pairs = [pair for pair in stack.unlike if section.number in pair]
    text = "{} and {} have no structure in common; look at their pictures."
    return [Fault(UNMATCHED, text.format(f"Sections {a}", b)) for a, b in pairs]


def _surface_faults(section: StitchedSection, before: Sequence[float | None]) -> list[Fault]:
    """A surface that is lost, or lies elsewhere than in the sections before."""
    known = [depth for depth in before if depth is not None]
    surface, voxel = section.figures.surface, section.figures.voxel_size
    if surface is None or len(known) < max(LEAST_SURFACES, len(before) - len(known) + 1):
        return []
    usual = median(known)
    if surface.depth is None:
        why = f" ({surface.reason})" if surface.reason else ""
        text = (
            f"{section.title}: no surface was found{why}, but those before lie {usual:.0f} µm deep"
        )
        return [Fault(SURFACE, f"{text}; look at the focus and the water above.")]
    limit = SURFACE_CHANGE * section.figures.shape[0] * (voxel[0] if voxel else 1.0)
    if abs(surface.depth - usual) <= limit:
        return []
    text = (
        f"{section.title}: the surface lies {surface.depth:.0f} µm deep, and {usual:.0f} µm before"
    )
    return [Fault(SURFACE, f"{text}; look at the stage's height.")]


def _cut_faults(
    section: StitchedSection, thickness: float | None, before: Sequence[float | None]
) -> list[Fault]:
    """A cut that is thinner or thicker than those before."""
    known = [other for other in before if other is not None]
    if thickness is None or len(known) < LEAST_SURFACES:
        return []
    usual, plane = (
        median(known),
        section.figures.voxel_size[0] if section.figures.voxel_size else 0.0,
    )
    if abs(thickness - usual) <= max(plane, CUT_CHANGE * usual):
        return []
    text = f"{section.title}: the cut before it took {thickness:.0f} µm, usually {usual:.0f} µm"
    return [Fault("Depth of the cut", f"{text}; look at the blade and the stage.")]


def draw(section: StitchedSection) -> Mapping[str, bytes]:
    """Pictures of a section, as the report draws them, by the end of their names."""
    try:
        with section.preview.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zlib.error, BadZipFile) as error:
        logger.warning("%s cannot be drawn: %s", section.title, error)
        return {}
    gallery = Gallery()
    entry = TaskRecord("section", section.record, arrays)
    quality = section_qualities({"section": section.figures}, None, None)
    sections_of([(entry, section.figures)], None, quality, gallery)
    return {name.removeprefix("section"): data for name, data in gallery.files.items()}
