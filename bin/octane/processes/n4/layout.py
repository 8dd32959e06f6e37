"""Sections of the volume that N4 corrects."""

from octane.core.errors import InputError
from octane.layout.sections import Section, read_sections
from octane.processes.n4.parameters import N4Parameters
from octane.store.volumes import Volume


def sections_of(volume: Volume, p: N4Parameters, planes: int) -> list[Section]:
    """Imaged sections of a volume of ``planes`` planes; raise if they are needed but unknown.

    Blank slabs of missing sections are left out.
    """
    if (starts := p.section_starts) is not None:
        stops = [*starts[1:], planes]
        if not starts or any(not 0 <= a < b <= planes for a, b in zip(starts, stops, strict=True)):
            raise InputError(
                f"--n4_section_starts is {' '.join(map(str, starts))}; give ascending planes from "
                f"0 to {planes - 1}."
            )
        parts = enumerate(zip(starts, stops, strict=True), start=1)
        return [Section(f"section {k}", k, a, b) for k, (a, b) in parts]
    if not volume.attributes.get("sections"):
        matching = p.histogram_matching == "section" and "--n4_histogram_matching section"
        if asked := f"--n4_mode {p.mode}" if p.mode != "global" else matching:
            raise InputError(
                f"{volume.path} does not state where its sections begin, which {asked} needs; give "
                "--n4_section_starts, such as '0 30 60'."
            )
    return [s for s in read_sections(volume.attributes, planes) if not s.missing]
