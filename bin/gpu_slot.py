#!/usr/bin/env python3
"""Run a command on a share of a GPU, or show who holds and who waits."""

import os
import signal
import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from octane.cli import FLAT, command, launch
from octane.errors import OctaneError
from octane.lease_status import current, preview, table
from octane.leases import default_folder, gpu_source, lease
from octane.params import LeaseParameters
from octane.sizes import bytes_of

app = command(__doc__)


@app.default
def main(
    *words: Annotated[str, cyclopts.Parameter(name="COMMAND", allow_leading_hyphen=True)],
    memory: str | None = None,
    backend: Annotated[
        Literal["auto", "gpu", "cpu"],
        cyclopts.Parameter(show_choices=False, show_default=False),
    ] = "auto",
    timeout: float | None = None,
    subject: Annotated[str, cyclopts.Parameter(show_default=False)] = "",
    sharing: Annotated[LeaseParameters | None, FLAT] = None,
    status: bool = False,
    json: bool = False,
    dry_run: bool = False,
) -> None:
    """Wait for a share of a GPU, and run a command on it.

    The command takes this process's place: its exit code, and every signal, are its own. It sees
    the GPU as the only one (CUDA_VISIBLE_DEVICES is the UUID), or none where it is to use the CPU.
    The share is given back when the command and all that it left running have ended.

    Parameters
    ----------
    words
        The command and its arguments, after --.
    memory
        GPU memory that the command will use in all, such as 4GB.
    backend
        auto (as by default): without a GPU in time it runs with none; gpu: an error; cpu: none.
    timeout
        Seconds to wait, in place of --auto-timeout and --gpu-timeout.
    subject
        What it is for, shown to others; unset: the command's name.
    status
        Show GPUs, slots, holders, waiters and foreign processes.
    json
        With --status: as JSON.
    dry_run
        Show which GPU would be taken and why not the others; exit code 1 where none would be.
    """
    settings = sharing or LeaseParameters()
    folder = settings.gpu_lock_dir or default_folder()
    source = gpu_source()
    if source.simulated:
        sys.stderr.write("These GPUs are simulated (OCTANE_SIMULATED_GPUS).\n")
    if status:
        found = current(source, folder)
        text = dumps(found, indent=2) + "\n" if json else table(found)
        sys.stdout.write(text)
        return
    if memory is None:
        raise OctaneError("--memory is missing; give what the command uses on a GPU, such as 4GB.")
    try:
        required = bytes_of(memory)
    except ValueError as error:
        raise OctaneError(f"--memory: {error}.") from error
    if dry_run:
        gpu, lines = preview(source, folder, required, settings.gpu_slots)
        sys.stdout.write("\n".join(lines) + "\n")
        if gpu is None:
            raise SystemExit(1)
        return
    if not words:
        raise OctaneError("There is no command; write it after --.")
    with lease(
        required,
        backend=backend,
        timeout=settings.timeout(backend) if timeout is None else timeout,
        slots=settings.gpu_slots,
        folder=folder,
        subject=subject or Path(words[0]).name,
        source=source,
    ) as held:
        if held.slot is not None:
            # On purpose: the slot lives as long as the command, whatever becomes of anything else.
            os.set_inheritable(held.slot.fd, True)
        _become(list(words), {**os.environ, **held.environment()})


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Turn this process into the command; a shell's exit codes where that is not possible."""
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


if __name__ == "__main__":
    launch(app)
