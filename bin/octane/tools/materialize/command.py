"""Replace links in published results by real files, or verify the results."""

from pathlib import Path

from octane.config.cli import command
from octane.core.errors import OctaneError


@command()
def main(outdir: Path, /, *, dry_run: bool = False, verify: bool = False) -> None:
    """Replace the links that a run published by real files, as reflinks if the file system can.

    A second call finds nothing to do. The work directory is only read, and not needed afterwards.

    Parameters
    ----------
    outdir
        The run's --outdir, or a part of it.
    dry_run
        Only print which links would be replaced, and how many bytes that takes.
    verify
        Decode every chunk of all stores in OUTDIR instead.
    """
    from octane.tools.materialize.step import materialize
    from octane.tools.materialize.step import verify as verify_stores

    if dry_run and verify:
        raise OctaneError("--dry_run and --verify exclude each other; give one of them.")
    if verify:
        verify_stores(outdir)
    else:
        materialize(outdir, dry_run=dry_run)
