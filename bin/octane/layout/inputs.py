"""Inputs: the stores or files that a path stands for, their kind, and sizes to be doubted."""

from collections.abc import Sequence
from pathlib import Path

from octane.core.errors import InputError
from octane.core.units import format_lengths
from octane.store.chunks import is_store
from octane.store.image import Image
from octane.store.itk_files import MILLIMETER, READ, FileVolume
from octane.store.volumes import Volume

VOXELS, SECTIONS = (0.01, 1e3), (100.0, 1e6)
"""Finest and coarsest voxels, and smallest and largest sections, that are not doubted,
micrometres."""


def find_inputs(source: Path) -> list[Path]:
    """Stores or files of ``source``: itself, or a folder's stores; an error without any."""
    if not source.exists():
        raise InputError(f"{source} does not exist; check --input.")
    if not source.is_dir() or is_store(source) or source.name.endswith(".zarr"):
        return [source]
    found = sorted(
        p
        for p in source.iterdir()
        # What begins with a dot is the left-over of a killed run, or a Mac's own.
        if not p.name.startswith(".") and (p.name.endswith(".zarr") or (p.is_dir() and is_store(p)))
    )
    if not found:
        raise InputError(
            f"{source.resolve()} holds no OME-Zarr store; give a folder of mosaics, one store, or "
            f"a volume in one file ({', '.join(READ)})."
        )
    return found


def as_given(source: Path, path: Path) -> Path:
    """One of the inputs by the name that its owner gave it.

    Nextflow's link to ``source`` is followed; links of the owner's are not, as the number of a
    section may stand in the name of one.
    """
    staged = source.is_symlink() and source.readlink().name == source.name
    return (source.parent / source.readlink() if staged else source) / path.relative_to(source)


def kind_of(volumes: list[Volume], asked: str) -> str:
    """Kind of an input: ``mosaic``, ``section`` or ``volume``; an error where it is several."""
    kind = _kind(volumes) if asked == "auto" else asked
    if kind == "volume" and len(volumes) > 1:
        folder = volumes[0].path.parent
        raise InputError(f"{folder} holds {len(volumes)} volumes; give one of them.")
    return kind


def _kind(volumes: list[Volume]) -> str:
    noted = {str(v.attributes["kind"]) for v in volumes if "kind" in v.attributes}
    if len(noted) == 1:
        return noted.pop()
    if len(noted) > 1:
        raise InputError(
            f"{volumes[0].path.parent} mixes {' and '.join(sorted(noted))} stores; separate them."
        )
    first = volumes[0]
    if len(volumes) > 1:
        return "mosaic"
    if not isinstance(first, Image):
        return "volume"
    chunks, shape = first.chunks, first.grid.shape
    cut = chunks[0] >= shape[0] and (chunks[1] < shape[1] or chunks[2] < shape[2])
    return "mosaic" if cut else "volume"


def doubted_sizes(volumes: Sequence[Volume]) -> list[str]:
    """Warning for voxels and extents that no microscope gives, as where a unit is wrong."""

    def is_odd(volume: Volume) -> bool:
        spacing, edge = volume.grid.spacing, max(volume.grid.extent[1:])
        # The size of voxels in a file of ITK that states none.
        if isinstance(volume, FileVolume) and min(spacing) == MILLIMETER:
            return True
        return (
            max(spacing) < VOXELS[0]
            or min(spacing) > VOXELS[1]
            or not SECTIONS[0] <= edge <= SECTIONS[1]
        )

    odd = [volume for volume in volumes if is_odd(volume)]
    more = f" (and {len(odd) - 1} more)" if odd[1:] else ""
    texts = []
    for volume in odd[:1]:
        remedy = (
            "Its unit may be wrong by 1000; check it and the scale in its metadata, or give "
            "--input_unit, which overrules a stated one."
            if isinstance(volume, Image)
            else "Files that state no size, or micrometres as millimetres, look like this; if that "
            "is so, correct the header."
        )
        voxels, whole = (format_lengths(n) for n in (volume.grid.spacing, volume.grid.extent))
        texts.append(f"{volume.path.name}{more} is {whole} (z y x) in voxels of {voxels}. {remedy}")
    return texts
