"""A volume, or a part of it, in the formats of other programs."""

from pathlib import Path

from octane.config.params import ExecutionParameters, ExportParameters, InputParameters
from octane.core.arrays import require_cpu
from octane.core.errors import InputError
from octane.core.files import writing
from octane.export.archive import write_archive
from octane.store.ngff import read_metadata

SUFFIXES = (".ozx",)
"""Suffixes of the formats."""


def export_volume(
    store: Path,
    destination: Path,
    parameters: ExportParameters,
    reading: InputParameters,
    execution: ExecutionParameters,
) -> None:
    """Write a volume in the format of the suffix of ``destination``.

    Raises an OctaneError that names what is not usable; nothing is left half-written.
    """
    require_cpu(execution.backend, "Export")
    if not destination.name.lower().endswith(SUFFIXES):
        raise InputError(
            f"{destination} has an unsupported format; use one of {', '.join(SUFFIXES)}."
        )
    read_metadata(store, reading)
    with writing(destination, overwrite=execution.overwrite) as partial:
        write_archive(store, partial)
