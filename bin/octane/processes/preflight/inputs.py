"""Inputs: the stores or files at a path, their kind, and implausible sizes."""

import os
from collections.abc import Sequence
from pathlib import Path

from octane.config.validation import as_ranges, section_ranges
from octane.core.errors import InputError
from octane.core.units import format_lengths
from octane.layout.sections import list_numbers, section_number
from octane.processes.preflight.parameters import WorkflowParameters
from octane.store.chunks import is_store
from octane.store.formats.itk_files import MILLIMETER, READ_SUFFIXES
from octane.store.image import Image
from octane.store.volumes import Volume

PLAUSIBLE_VOXELS = (0.01, 1e3)
"""Finest and coarsest plausible voxels, micrometres."""
PLAUSIBLE_SECTIONS = (100.0, 1e6)
"""Smallest and largest plausible sections, micrometres."""
SEARCH_DEPTH = 2
"""Levels of folders that are searched for data, as in ``subject/mosaics``."""
MOST_FOLDERS = 10
"""Most folders that a sentence lists."""


def find_inputs(source: Path) -> list[Path]:
    """Return ``source`` itself, or the stores in it if it is a plain folder; raise if none."""
    if not source.exists():
        raise InputError(f"{source} does not exist; check --input.")
    if not source.is_dir() or is_store(source):
        return [source]
    stores = sorted(
        p
        for p in source.iterdir()
        # Dot files are leftovers of killed runs, or macOS's own.
        if not p.name.startswith(".") and is_store(p)
    )
    if not stores and (folders := _data_folders(source)):
        first = ", ".join(folders[:MOST_FOLDERS])
        more = f" and {len(folders) - MOST_FOLDERS} more" if len(folders) > MOST_FOLDERS else ""
        raise InputError(
            f"{source.resolve()} holds folders of data, not data: {first}{more}; give one of them, "
            "or all in a --samplesheet."
        )
    if not stores:
        raise InputError(
            f"{source.resolve()} holds no OME-Zarr store and no tiles; give a folder of either, "
            f"one store, or a volume in one file ({', '.join(READ_SUFFIXES)})."
        )
    return stores


def _data_folders(source: Path) -> list[str]:
    """Subfolders, and folders in them, that hold stores or images; those of hidden ones are not."""
    names: list[str] = []
    for depth in range(1, SEARCH_DEPTH + 1):
        for path in sorted(source.glob("/".join("*" * depth))):
            name = path.relative_to(source).as_posix()
            if (
                not path.is_dir()
                or is_store(path)
                or f"/{name}".count("/.")
                or not _is_readable(path)
            ):
                continue
            inside = [part for part in path.iterdir() if not part.name.startswith(".")]
            if any(is_store(part) or part.name.lower().endswith(READ_SUFFIXES) for part in inside):
                names.append(name)
        if names:
            break
    return names


def _is_readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def choose_sections(
    source: Path, paths: list[Path], parameters: WorkflowParameters
) -> tuple[list[Path], list[int]]:
    """Choose inputs in a folder by --only_sections and --exclude_sections.

    Returns the paths of the sections to use, and the numbers of the others. Sections are chosen by
    their names, so that one that is left out need not be readable. Excluded sections are left out
    even if --only_sections names them. Raises an InputError if numbers are unknown, or leave no
    section.
    """
    texts = {
        name: text
        for name in ("only_sections", "exclude_sections")
        if (text := getattr(parameters, name)) is not None
    }
    if not texts:
        return paths, []
    (name, text), *_ = texts.items()
    if paths == [source]:
        raise InputError(
            f"--{name} {text} chooses among the sections of a folder, but the input is one image; "
            "omit it."
        )
    numbers = {path: section_number(path.name) for path in paths}
    if unnamed := [path.name for path, number in numbers.items() if number is None]:
        raise InputError(
            f"--{name} {text} chooses sections by the numbers in their names, which {unnamed[0]} "
            "lacks; name sections like section_01.ome.zarr."
        )
    known = {number for number in numbers.values() if number is not None}
    numbers_by_flag = {name: _numbers_in(name, text, known) for name, text in texts.items()}
    only, excluded = (
        numbers_by_flag.get("only_sections", known),
        numbers_by_flag.get("exclude_sections", set()),
    )
    used = only - excluded
    if not used:
        raise InputError(
            f"--exclude_sections {texts['exclude_sections']} leaves no section; keep at least one."
        )
    return [path for path in paths if numbers[path] in used], sorted(known - used)


def _numbers_in(name: str, text: str, known: set[int]) -> set[int]:
    """Known numbers that a parameter names; raise if it names others."""
    ranges = section_ranges(text)
    # Gaps within a range are for --allow_missing_sections to decide.
    ends = {end for numbers in ranges for end in (numbers[0], numbers[-1])}
    if unknown := sorted(ends - known):
        raise InputError(
            f"--{name} {text} names section {list_numbers(unknown)}, which the input lacks: it has "
            f"{as_ranges(known)}; correct the numbers."
        )
    return {number for number in known for numbers in ranges if number in numbers}


def require_target(path: Path) -> None:
    """Raise an InputError if a path is a link to nothing."""
    if path.is_symlink() and not path.exists():
        raise InputError(
            f"{path} links to a file that does not exist; restore the file, or remove the link."
        )


def kind_of(volumes: list[Volume], asked: str) -> str:
    """Kind of an input: ``mosaic``, ``section`` or ``volume``; raise if kinds are mixed."""
    kind = _guess_kind(volumes) if asked == "auto" else asked
    if kind == "volume" and len(volumes) > 1:
        folder = volumes[0].path.parent
        raise InputError(f"{folder} holds {len(volumes)} volumes; give one of them.")
    other = next((volume for volume in volumes if not isinstance(volume, Image)), None)
    if kind != "volume" and other is not None:
        raise InputError(
            f"{other.path} is not an OME-Zarr image, so it cannot be a {kind}; convert it, or "
            "omit --input_kind."
        )
    return kind


def _guess_kind(volumes: list[Volume]) -> str:
    kinds = {str(v.attributes["kind"]) for v in volumes if "kind" in v.attributes}
    if len(kinds) == 1:
        return kinds.pop()
    if len(kinds) > 1:
        raise InputError(
            f"{volumes[0].path.parent} mixes {' and '.join(sorted(kinds))} stores; separate them."
        )
    first = volumes[0]
    if len(volumes) > 1:
        return "mosaic"
    if not isinstance(first, Image):
        return "volume"
    chunks, shape = first.chunks, first.grid.shape
    cut = chunks[0] >= shape[0] and (chunks[1] < shape[1] or chunks[2] < shape[2])
    return "mosaic" if cut else "volume"


def warn_sizes(volumes: Sequence[Volume]) -> list[str]:
    """Warning about implausible voxel sizes and extents, which suggest a wrong unit."""

    def is_odd(volume: Volume) -> bool:
        spacing, edge = volume.grid.spacing, max(volume.grid.extent[1:])
        # ITK's default for a file without a voxel size.
        if volume.geometry is not None and min(spacing) == MILLIMETER:
            return True
        return (
            max(spacing) < PLAUSIBLE_VOXELS[0]
            or min(spacing) > PLAUSIBLE_VOXELS[1]
            or not PLAUSIBLE_SECTIONS[0] <= edge <= PLAUSIBLE_SECTIONS[1]
        )

    odd = [volume for volume in volumes if is_odd(volume)]
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    texts = []
    for volume in odd[:1]:
        remedy = (
            "Check the unit and scale in its metadata, which may be wrong by a factor of 1000, or "
            "give --input_unit."
            if isinstance(volume, Image)
            else "Check its header, which may lack the voxel size or state micrometres as "
            "millimetres."
        )
        voxels, whole = (format_lengths(n) for n in (volume.grid.spacing, volume.grid.extent))
        texts.append(f"{volume.path.name}{more} is {whole} (z y x) in voxels of {voxels}. {remedy}")
    return texts
