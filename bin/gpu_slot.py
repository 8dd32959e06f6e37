#!/usr/bin/env python3
"""Run a command on a share of a GPU, or show who holds and who waits."""

import sys
from json import dumps
from typing import Annotated, Literal

import cyclopts

from octane.config.cli import FLAT, command, launch
from octane.config.params import LeaseParameters
from octane.core.errors import OctaneError
from octane.gpu.lease import parse_memory
from octane.gpu.status import Node, table

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
) -> None:
    """Wait for a share of a GPU, and run a command on it.

    Exit code and signals are the command's own. It sees the GPU as the only one
    (CUDA_VISIBLE_DEVICES is the UUID), or none where it is to use the CPU. This process ends, and
    gives the share back, when the command and all that it left running have ended.

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
    """
    node = Node(sharing or LeaseParameters())
    if status:
        found = node.status()
        sys.stdout.write(dumps(found, indent=2) + "\n" if json else table(found))
        return
    if memory is None:
        raise OctaneError("--memory is missing; give what the command uses on a GPU, such as 4GB.")
    if sys.platform != "linux":
        raise OctaneError("gpu_slot.py runs commands on Linux alone; start the command itself.")
    if not words:
        raise OctaneError("There is no command; write it after --.")
    node.run(list(words), parse_memory(memory), backend, timeout, subject)


if __name__ == "__main__":
    launch(app)
