#!/usr/bin/env python3
"""Make real files of results that are links into a work directory, or verify results."""

from pathlib import Path

from octane.config.cli import command, launch
from octane.core.errors import OctaneError
from octane.steps.materialize import materialize
from octane.steps.verifying import accept, verify_stores

app = command(__doc__)


@app.default
def main(
    outdir: Path, /, *, dry_run: bool = False, verify: bool = False, accept_changes: bool = False
) -> None:
    """Make real files of the links that a run published, by reflink or verified copy.

    A second call finds nothing to do. The work directory is only read, and not needed any more.

    Parameters
    ----------
    outdir
        The run's --outdir, or a part of it.
    dry_run
        Say what would be made real and how many bytes it takes, and do nothing.
    verify
        Read all stores in OUTDIR and compare them with the lists of their files instead.
    accept_changes
        OUTDIR is one store that was changed on purpose: write the list of its files anew.
    """
    if dry_run + verify + accept_changes > 1:
        raise OctaneError("--dry-run, --verify and --accept-changes exclude each other; give one.")
    if verify:
        verify_stores(outdir)
    elif accept_changes:
        accept(outdir)
    else:
        materialize(outdir, dry_run=dry_run)


if __name__ == "__main__":
    launch(app)
