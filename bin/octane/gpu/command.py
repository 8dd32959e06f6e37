"""Run a command on a share of a GPU, or show who holds and who awaits one."""

import sys
from typing import Literal

from octane.config.cli import command
from octane.config.parameters import LeaseParameters, StepParameters, parameter
from octane.core.errors import OctaneError
from octane.gpu.lease import parse_memory
from octane.gpu.status import run_on_share
from octane.gpu.status import status as shown


class Request(StepParameters):
    """Requested share of a GPU."""

    memory: str | None = parameter(None, "Total GPU memory that the command will use, such as 4GB.")
    backend: Literal["auto", "gpu", "cpu"] = parameter(
        "auto", "If no GPU is free in time: auto runs without one, gpu fails. cpu uses none."
    )
    subject: str = parameter("", "Purpose shown to other users; unset: the command's name.")


@command()
def main(
    command: list[str] | None = None,
    /,
    *,
    request: Request,
    sharing: LeaseParameters,
    status: bool = False,
) -> None:
    """Wait for a share of a GPU, and run a command on it.

    The command replaces this process and sees only that GPU (CUDA_VISIBLE_DEVICES is its UUID), or
    none if it must use the CPU. The share is released when the command and all processes that
    inherited its files have ended.

    Parameters
    ----------
    command
        The command and its arguments, after --.
    status
        Show GPUs, slots, holders and waiters.
    """
    if status:
        sys.stdout.write(shown())
        return
    if request.memory is None:
        raise OctaneError("--memory is missing; give the command's GPU memory, such as 4GB.")
    if not command:
        raise OctaneError("The command is missing; write it after --.")
    required = parse_memory(request.memory)
    run_on_share(command, required, request.backend, request.subject, sharing)
