"""Inputs: the stores or files in a folder, their names, and their kind."""

from pathlib import Path

from octane.core.errors import OctaneError
from octane.store.chunks import is_store
from octane.store.image import Image
from octane.store.itk_files import FORMATS
from octane.store.volumes import Volume


def find_inputs(source: Path) -> list[Path]:
    """Stores or files that ``source`` stands for: itself, or a folder's OME-Zarr stores.

    Raises
    ------
    OctaneError
        When there is nothing to be read.
    """
    if not source.exists():
        raise OctaneError(f"{source} does not exist; check --input.")
    if not source.is_dir() or is_store(source) or source.name.endswith(".zarr"):
        return [source]
    found = sorted(
        p
        for p in source.iterdir()
        # What begins with a dot is the left-over of a killed run, or a Mac's own.
        if not p.name.startswith(".") and (p.name.endswith(".zarr") or (p.is_dir() and is_store(p)))
    )
    if not found:
        raise OctaneError(
            f"{source.resolve()} holds no OME-Zarr store; give a folder of mosaics, one store, or "
            f"a volume ({', '.join(FORMATS)})."
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
    """Tell the kind of an input: ``mosaic``, ``section`` or ``volume``.

    Raises
    ------
    OctaneError
        When its stores are of several kinds.
    """
    if asked != "auto":
        return asked
    noted = {str(v.attributes["kind"]) for v in volumes if "kind" in v.attributes}
    if len(noted) == 1:
        return noted.pop()
    if len(noted) > 1:
        raise OctaneError(
            f"{volumes[0].path.parent} mixes {' and '.join(sorted(noted))} stores; separate them."
        )
    first = volumes[0]
    if len(volumes) > 1:
        return "mosaic"
    if not isinstance(first, Image):
        return "volume"
    chunks, shape = first.array.chunks, first.grid.shape
    cut = chunks[0] >= shape[0] and (chunks[1] < shape[1] or chunks[2] < shape[2])
    return "mosaic" if cut else "volume"
