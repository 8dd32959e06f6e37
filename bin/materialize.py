#!/usr/bin/env python3
"""Make real files of results that are links into a work directory, or verify results."""

from pathlib import Path

from octane.config.cli import run
from octane.core.errors import OctaneError


def main(outdir: Path, /, *, dry_run: bool = False, verify: bool = False) -> None:
    """Make real files of the links that a run published, by reflink where the file system can.

    A second call finds nothing to do. The work directory is only read, and not needed any more.

    Parameters
    ----------
    outdir
        The run's --outdir, or a part of it.
    dry_run
        Say what would be made real and how many bytes it takes, and do nothing.
    verify
        Decode every chunk of all stores in OUTDIR instead.
    """
    from octane.steps.materialize import materialize
    from octane.steps.materialize import verify as verify_stores

    if dry_run and verify:
        raise OctaneError("--dry_run and --verify exclude each other; give one of them.")
    if verify:
        verify_stores(outdir)
    else:
        materialize(outdir, dry_run=dry_run)


if __name__ == "__main__":
    run(main)
