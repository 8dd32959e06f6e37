"""A command run on a share of a GPU: this process becomes it, and the share lives as long."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from octane.config.params import LeaseParameters
from octane.core.arrays import Backend
from octane.gpu.inventory import GpuSource
from octane.gpu.lease import default_folder, gpu_source, lease
from octane.gpu.status import current, preview

__all__ = ["Node"]


class Node:
    """The GPUs of this node, and where their leases are.

    Attributes
    ----------
    source, folder, sharing
        What knows the GPUs, the folder of the leases, and how shares are waited for.
    """

    def __init__(self, sharing: LeaseParameters | None) -> None:
        self.sharing = sharing or LeaseParameters()
        self.folder: Path = self.sharing.gpu_lock_dir or default_folder()
        self.source: GpuSource = gpu_source()
        if self.source.simulated:
            sys.stderr.write("These GPUs are simulated (OCTANE_SIMULATED_GPUS).\n")

    def status(self) -> dict[str, object]:
        """GPUs, slots, holders, waiters and foreign processes."""
        return current(self.source, self.folder)

    def preview(self, required: int) -> bool:
        """Show which GPU would be taken, and why not the others; gives whether one would be."""
        gpu, lines = preview(self.source, self.folder, required, self.sharing.gpu_slots)
        sys.stdout.write("\n".join(lines) + "\n")
        return gpu is not None

    def run(
        self,
        words: Sequence[str],
        required: int,
        backend: Backend,
        timeout: float | None,
        subject: str,
    ) -> None:
        """Wait for a share of ``required`` bytes, and become the command.

        Raises
        ------
        OctaneError
            With backend gpu, when no GPU is to be had in time.
        SystemExit
            With a shell's exit codes, when the command cannot be run.
        """
        with lease(
            required,
            backend=backend,
            timeout=self.sharing.timeout(backend) if timeout is None else timeout,
            slots=self.sharing.gpu_slots,
            folder=self.folder,
            subject=subject or Path(words[0]).name,
            source=self.source,
        ) as held:
            if held.slot is not None:
                # On purpose: the slot lives as long as the command, whatever becomes of the rest.
                os.set_inheritable(held.slot.fd, True)
            _become(list(words), {**os.environ, **held.environment()})


def _become(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Turn this process into the command."""
    # Python ignores these, and a program that is started would go on doing so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, environment)
    except FileNotFoundError:
        sys.stderr.write(f"error: {words[0]} was not found; check the command's name.\n")
        raise SystemExit(127) from None
    except OSError as error:
        sys.stderr.write(f"error: {words[0]} cannot be run: {error.strerror}.\n")
        raise SystemExit(126) from None
