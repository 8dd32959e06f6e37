"""Correct a volume's bias field with N4, ITK's algorithm and options."""

import sys
from pathlib import Path

from octane.config.cli import command
from octane.config.parameters import (
    ExecutionParameters,
    InputParameters,
    LeaseParameters,
    StepParameters,
    parameter,
)
from octane.config.types import Text
from octane.processes.n4.parameters import N4Parameters


class Files(StepParameters):
    """Channels and additional files of N4."""

    channels: Text | None = parameter(
        None,
        "Channels to correct, one after the other: all, or numbers or names, such as '0 2'. The "
        "tissue mask is made from --channel. Unset: only --channel.",
    )
    reference: Path | None = parameter(
        None,
        "Volume of the reference channel, on the same grid: --n4_mask tissue is made from it in "
        "place of the volume itself.",
    )
    reference_channel: Text | None = parameter(
        None, "Channel of --reference, if that has several: its number from 0, or its name."
    )
    save_bias_field: Path | None = parameter(
        None, "Where to write the multiplicative bias field at full resolution."
    )
    truth: Path | None = parameter(None, "A phantom's truth folder; the record compares with it.")
    metrics: Path | None = parameter(None, "Where to write the step's record, as JSON.")
    preview: Path | None = parameter(None, "Where to write slices for the report, as NPZ.")


@command()
def main(
    source: Path,
    destination: Path,
    /,
    *,
    parameters: N4Parameters,
    reading: InputParameters,
    execution: ExecutionParameters,
    sharing: LeaseParameters,
    files: Files,
    dry_run: bool = False,
) -> None:
    """Correct a volume's bias field with N4, ITK's algorithm and options.

    Parameters
    ----------
    source
        OME-Zarr, NIfTI, MHA, NRRD or TIFF.
    destination
        The corrected volume, in any of these formats; OME-Zarr (c, z, y, x) for several channels.
    dry_run
        Only print the plan of the fit, its resolution and the memory it needs.
    """
    from octane.processes.n4.step import correct_channels, prepare_channels

    given = (source, destination, parameters, reading, execution, files.channels)
    beside = (files.save_bias_field, files.truth, files.reference, files.reference_channel)
    runs = prepare_channels(*given, *beside)
    if dry_run:
        names = ", ".join(run.metrics.channel for run in runs)
        named = [f"channels {names}"] if len(runs) > 1 else []
        lines = dict.fromkeys([*named, *(line for run in runs for line in run.plan.lines())])
        sys.stdout.write("\n".join(lines) + "\n")
        return
    correct_channels(runs, sharing, files.metrics, files.preview)
