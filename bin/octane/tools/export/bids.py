"""A volume as a BIDS derivative (microscopy): its store, its sidecar and the dataset's tables.

Source: the Brain Imaging Data Structure, https://bids-specification.readthedocs.io, "Microscopy"
and "BIDS derivatives".
"""

import fcntl
import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from octane import __version__
from octane.core.errors import InputError, OctaneError
from octane.core.files import bring_to_disk, link_or_copy, require_free, writing
from octane.core.metrics import write_json
from octane.core.records import ORDER, read_record
from octane.layout.sections import distances
from octane.store.image import open_levels
from octane.store.ngff import Metadata, read_json, read_metadata
from octane.store.reading import AS_STATED
from octane.tools.export.parameters import BidsParameters
from octane.tools.export.source import files_of, require_outside

logger = logging.getLogger(__name__)

VERSION = "1.11.1"
"""Version of BIDS, the newest that its validator knows."""
DESCRIPTION = "dataset_description.json"
README = """\
Volumes that octane reconstructed from serial-section or tiled 3-D microscopy.

sub-X/micr/sub-X_sample-Y_SUFFIX.ome.zarr is a volume with its levels; the .json next to it states
its voxel size and how it was made.
"""


def write_derivative(store: Path, dataset: Path, named: BidsParameters, *, overwrite: bool) -> Path:
    """Add an OME-Zarr image to a BIDS derivative, which is created if it is missing.

    The store's chunks are hard-linked; across file systems they are copied. Rows of tables and
    files of the dataset that exist already are kept as they are.

    Parameters
    ----------
    store
        OME-Zarr image (folder), such as the result of a run: the records in ``metrics/`` next to it
        go into the sidecar.
    dataset
        Folder of the dataset.
    named
        Labels, alphanumeric, and the modality.
    overwrite
        Replace the volume of this name.

    Returns
    -------
    Path
        The volume in the dataset.

    Raises
    ------
    OctaneError
        If a label is not alphanumeric, the store is not an OME-Zarr folder, lacks chunks or has
        links out of it, the dataset lies in it, is another one, or has such a volume.
    """
    if not store.exists():
        raise InputError(f"{store} does not exist; check the path.")
    if not store.is_dir():
        raise InputError(
            f"{store} is not an OME-Zarr folder, as BIDS takes it; write one with bin/export.py "
            "first, and give that."
        )
    metadata = read_metadata(store, AS_STATED)
    if (metadata.octane or {}).get("kind") == "mosaic":
        raise InputError(f"{store} is a mosaic grid; give a volume, or a section of STITCH.")
    sample = _label("bids_sample", named.bids_sample)
    labels = f"sub-{_subject(store, named.bids_subject)}", f"sample-{sample}"
    stem = "_".join((*labels, named.bids_suffix))
    volume = dataset / labels[0] / "micr" / f"{stem}.ome.zarr"
    participant, rows = {"participant_id": labels[0]}, {"sample_type": "tissue"}
    tables = {
        dataset / "participants.tsv": (participant, {}),
        dataset / "samples.tsv": ({"sample_id": labels[1], **participant}, rows),
    }
    require_outside(volume, store)
    _require_derivative(dataset)
    for table, (keys, _) in tables.items():
        if table.exists():
            _parse_table(table, table.read_bytes(), keys)
    require_free(volume, overwrite=overwrite)
    for image in open_levels(store, AS_STATED):
        image.require_chunks(image.whole)
    sidecar = sidecar_of(store, metadata)
    if "ProcessingSteps" not in sidecar:
        logger.warning(
            "%s: no records in metrics/ next to it, so the sidecar does not say how it was made.",
            store,
        )
    try:
        with writing(volume, overwrite=overwrite) as partial:
            _link_store(store, partial)
            bring_to_disk(partial)
            write_json(volume.parent / f"{stem}.json", sidecar)
    except BaseException:
        for folder in (volume.parent, volume.parent.parent, dataset):
            # Those that are not empty hold more than this volume.
            with suppress(OSError):
                folder.rmdir()
        raise
    _describe(dataset)
    for table, (keys, rest) in tables.items():
        add_row(table, keys, rest)
    return volume


def _link_store(store: Path, copy: Path) -> None:
    """Link a store's chunks, and copy its metadata, so that an edit leaves the original alone."""
    for name in files_of(store):
        place = copy / name
        place.parent.mkdir(parents=True, exist_ok=True)
        file = (store / name).resolve()
        if place.name == "zarr.json" or place.name.startswith(".z"):
            shutil.copyfile(file, place)
        else:
            link_or_copy(file, place)


def sidecar_of(store: Path, metadata: Metadata) -> dict[str, object]:
    """Contents of the sidecar: x, y, z where BIDS orders axes, lengths in micrometres."""
    sidecar: dict[str, object] = {
        "Description": "Volume reconstructed from microscopy, at several resolutions.",
        "PixelSize": metadata.spacing[::-1],
        "PixelSizeUnits": "um",
    }
    if thickness := _thickness((metadata.octane or {}).get("sections", [])):
        sidecar["SliceThickness"] = thickness
    # BIDS has no term for it.
    if any(metadata.orientation):
        axes = zip("zyx", metadata.orientation, strict=True)
        sidecar["AxisOrientation"] = {axis: value for axis, value in axes if value}
    if steps := _steps(store, metadata.labels):
        sidecar["ProcessingSteps"] = steps
    return sidecar


def _thickness(sections: object) -> float | None:
    """Mean distance of a volume's sections along z, micrometres; None if it does not state it."""
    stated = cast("list[dict[str, float]]", sections)
    imaged = [section for section in stated if not section.get("missing") and "top" in section]
    steps = distances({int(section["number"]): section["top"] for section in imaged})
    return steps and steps.mean


def _steps(store: Path, channels: Sequence[str]) -> list[dict[str, object]]:
    """Steps that made a volume, in order, with the parameters of each channel's first task."""
    paths = sorted(store.parent.glob("metrics/*_metrics.json"))
    # Records of other channels may be those of an earlier run.
    records_of_channels = [r for r in map(read_record, paths) if r.channel in ("", *channels)]
    records = [record for record in records_of_channels if record.step in ORDER]
    first = {(record.step, record.channel): record for record in reversed(records)}
    return [
        {
            "Name": step,
            **({"Channel": channel} if channel else {}),
            "Software": f"octane {record.versions.get('octane', '')}".strip(),
            "Parameters": {k: v for k, v in record.settings.items() if v is not None},
        }
        for (step, channel), record in sorted(
            first.items(), key=lambda item: (ORDER.index(item[0][0]), item[0][1])
        )
    ]


def _subject(store: Path, given: str | None) -> str:
    if given is not None:
        return _label("bids_subject", given)
    name = store.name.removesuffix(".zarr").removesuffix(".ome").removeprefix("sub-")
    if not _is_label(name):
        raise InputError(
            f"{store.name} is not a name that BIDS allows for a subject, of letters and digits; "
            "give --bids_subject."
        )
    return name


def _label(name: str, text: str) -> str:
    if not _is_label(text):
        raise InputError(f"--{name} is {text!r}; BIDS allows letters and digits only.")
    return text


def _is_label(text: str) -> bool:
    return re.fullmatch("[A-Za-z0-9]+", text) is not None


def _require_derivative(dataset: Path) -> None:
    """Raise unless a folder is a BIDS derivative, empty or missing."""
    description = read_json(dataset, DESCRIPTION)
    if description is None:
        # Hidden files are the system's.
        if dataset.exists() and any(p for p in dataset.glob("*") if not p.name.startswith(".")):
            raise InputError(
                f"{dataset} has files but no {DESCRIPTION}; give a BIDS derivative, or a new "
                "folder."
            )
    elif description.get("DatasetType") != "derivative":
        raise InputError(
            f"{dataset} is not a BIDS derivative; give a new folder, such as "
            f"{dataset / 'derivatives' / 'octane'}."
        )


def _describe(dataset: Path) -> None:
    """Write the description and the README of a new dataset."""
    if not (dataset / "README").exists() and not (dataset / DESCRIPTION).exists():
        (dataset / "README").write_text(README, encoding="utf-8")
    if not (dataset / DESCRIPTION).exists():
        content = {
            "Name": "octane",
            "BIDSVersion": VERSION,
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": "octane", "Version": __version__}],
        }
        write_json(dataset / DESCRIPTION, content)


def add_row(table: Path, keys: Mapping[str, str], rest: Mapping[str, str] | None = None) -> None:
    """Append a row to a table (TSV) unless it has one with these keys; create it if missing.

    Other columns of an existing table get n/a. Several processes may append at once.
    """
    values = {**keys, **(rest or {})}
    # Unbuffered, so that the row is in the file before the lock is given back.
    with table.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = file.read()
        if not content:
            file.write((_line([*values]) + _line([*values.values()])).encode())
            return
        head, rows = _parse_table(table, content, keys)
        if any(dict(zip(head, row, strict=False)).items() >= keys.items() for row in rows):
            return
        end = "" if content.endswith(b"\n") else "\n"
        file.write((end + _line([values.get(column, "n/a") for column in head])).encode())


def _parse_table(
    table: Path, content: bytes, keys: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table; an OctaneError if it lacks one of the ``keys``."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OctaneError(f"{table} is not in UTF-8; save it in this encoding.") from error
    head, *rows = [line.split("\t") for line in text.splitlines() if line.strip()] or [[]]
    if lacking := keys.keys() - {*head}:
        raise OctaneError(f"{table} lacks the column {sorted(lacking)[0]}; add it.")
    return head, rows


def _line(cells: Sequence[str]) -> str:
    return "\t".join(cells) + "\n"
