#!/usr/bin/env python3
"""Run a command on a share of a GPU, or show who holds and who waits."""

import sys
from typing import Literal

from octane.config.cli import run
from octane.config.params import LeaseParameters, StepParameters, parameter
from octane.core.errors import OctaneError
from octane.gpu.lease import parse_memory
from octane.gpu.status import run_on_share
from octane.gpu.status import status as shown


class Request(StepParameters):
    """Share of a GPU that is asked for."""

    memory: str | None = parameter(
        None, "GPU memory that the command will use in all, such as 4GB."
    )
    backend: Literal["auto", "gpu", "cpu"] = parameter(
        "auto", "auto: without a GPU in time it runs with none; gpu: an error; cpu: none."
    )
    timeout: float | None = parameter(
        None, "Seconds to wait, in place of --auto_timeout and --gpu_timeout."
    )
    subject: str = parameter("", "What it is for, shown to others; unset: the command's name.")


def main(
    command: list[str] | None = None,
    /,
    *,
    request: Request,
    sharing: LeaseParameters,
    status: bool = False,
) -> None:
    """Wait for a share of a GPU, and run a command on it.

    The command takes the place of this process, and sees the GPU as the only one
    (CUDA_VISIBLE_DEVICES is the UUID), or none where it is to use the CPU. The share is given back
    when the command and all that has its files have ended.

    Parameters
    ----------
    command
        The command and its arguments, after --.
    status
        Show GPUs, slots, holders and waiters.
    """
    if status:
        sys.stdout.write(shown(sharing))
        return
    if request.memory is None:
        raise OctaneError("--memory is missing; give what the command uses on a GPU, such as 4GB.")
    if not command:
        raise OctaneError("A command is missing; write it after --.")
    required = parse_memory(request.memory)
    run_on_share(command, required, request.backend, request.timeout, request.subject, sharing)


if __name__ == "__main__":
    run(main)
