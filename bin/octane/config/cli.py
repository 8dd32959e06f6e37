"""Shared code of the commands: run a step, one-sentence errors, logging."""

import atexit
import errno
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FrameType

try:
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is missing in {sys.executable}; source tools/env.sh first.")

from octane.config.flags import Parser
from octane.core.errors import (
    NO_SPACE,
    TOO_LARGE,
    GpuLostError,
    InputError,
    NoSpaceError,
    OctaneError,
    visible,
)
from octane.core.files import ATTEMPT, require_free

RESULTS = ("destination", "save_bias_field", "save_flat_field", "save_displacements")
"""Parameters of commands that name results; these replace existing ones only when told to."""
RECORDS = ("metrics", "preview")
"""Parameters of commands that name records; these always replace existing ones."""
FILES = (
    *RECORDS,
    "save_flat_field",
    "displacements",
    "save_displacements",
    "config",
    "samplesheet",
)
"""Parameters of commands that name a file, not a folder."""

REFUSED = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
"""Parts of Python's and the loader's messages when memory, address space or threads run out."""


def command(*, problems: str | None = None) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a command of a function: called without arguments, it reads those of the command line.

    ``problems`` is that of :func:`run`.
    """

    def decorate(step: Callable[..., None]) -> Callable[[], None]:
        @wraps(step)
        def main() -> None:
            run(step, problems=problems)

        return main

    return decorate


def run(step: Callable[..., None], *, problems: str | None = None) -> None:
    """Call ``step`` with the arguments that `Parser` reads.

    ``problems`` names the output of a check that succeeds and writes its errors there, because
    Nextflow would surround the error of a failed task with its own report.

    An error is one sentence on standard error and exit code 1. The workflow can retry the codes 28
    (ENOSPC: no space left), 137 (out of memory) and 104 (GPU lost). ``OCTANE_DEBUG=1`` shows the
    traceback.
    """
    _prepare()
    try:
        _call(step, problems)
    except OctaneError as error:
        _fail(str(error), error, error.code)
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if _lacks_memory(error):
            # As if the kernel had killed it for its memory: the workflow retries this code.
            remedy = "give a smaller --memory or fewer --workers, or use a larger machine"
            _fail(f"Not enough memory or threads; {remedy}.", error, 137)
        if not isinstance(error, OSError):
            raise
        # A full disk or a lost mount can surface at any write.
        remedies = {errno.ENAMETOOLONG: "give shorter names", TOO_LARGE: "raise ulimit -f"}
        other = "check the disk, its free space and your permissions"
        _fail(
            f"{error.filename or 'A file'}: {error.strerror or error}; "
            f"{remedies.get(error.errno or 0, other)}.",
            error,
            NoSpaceError.code if error.errno in NO_SPACE else OctaneError.code,
        )
    except KeyboardInterrupt as error:
        _fail("Interrupted; nothing was left half-written.", error, 130)


def _call(step: Callable[..., None], problems: str | None) -> None:
    given = Parser(step).arguments()
    _require_outputs(given.arguments)
    try:
        step(*given.args, **given.kwargs)
    except OctaneError as error:
        if problems is None or isinstance(error, NoSpaceError):
            raise
        # Imported here because it loads numpy, which gpu_slot.py does not need.
        from octane.core.metrics import write_json

        write_json(given.arguments[problems], {"problems": visible(str(error)).splitlines()})


def _require_outputs(arguments: Mapping[str, object]) -> None:
    """Raise an OctaneError if an output cannot be written or would replace another argument."""
    values: dict[str, object] = {}
    for name, value in arguments.items():
        values |= dict(value) if isinstance(value, BaseModel) else {name: value}
    # The named ones are keywords or files.
    named = [
        (name, Path(path))
        for name, value in values.items()
        for path in (value if isinstance(value, list) else [value])
        if isinstance(path, Path)
        or (name in ("mask", "weights", "flat_field") and isinstance(path, str))
    ]
    for index, (name, output) in enumerate(named):
        if name in FILES and output.is_dir():
            raise InputError(f"{output} is a folder; give a file name.")
        if name in RECORDS and not output.parent.is_dir():
            raise InputError(
                f"{output}: its folder does not exist; create it, or correct the path."
            )
        for other, path in named[:index] + named[index + 1 :]:
            if name in RESULTS + RECORDS and _replaces(output, path):
                raise InputError(
                    f"{output} is given as {name} and would replace {path}, the {other}; choose "
                    "another name."
                )
        if name in RESULTS and not values.get("dry_run"):
            require_free(output, overwrite=bool(values.get("overwrite")))
            folder = next(folder for folder in output.absolute().parents if folder.exists())
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                raise InputError(f"{folder} cannot be written; choose another place.")


def _replaces(output: Path, other: Path) -> bool:
    """Tell whether an output is another path, contains it, or is inside that store."""
    if output.exists() and other.exists() and output.samefile(other):
        return True
    place, found = output.resolve(), other.resolve()
    holds = found.suffix == ".zarr" and found in place.parents
    return place == found or place in found.parents or holds


def _prepare() -> None:
    """Set up logging, signals, and the environment of libraries."""
    if sys.stderr is None:
        # Closed by the caller (2>&-): the next file opened would become standard error.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_show)
    # When a corrupt chunk ends the command, zarr's event loop would log its unfinished reads below
    # the sentence that names the chunk.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # Before NumPy is imported: workers are threads already, and OpenBLAS's would spin on the cores
    # that they need. Not in os.environ, which the command that gpu_slot.py starts would inherit.
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    # Spares the interpreter a garbage collection over all modules at exit: a third of the CPU time
    # of a small task.
    atexit.register(gc.freeze)
    # A cancelled task still removes its partial output.
    for number in (signal.SIGTERM, signal.SIGINT):
        # A shell starts background commands with SIGINT ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _show(record: logging.LogRecord) -> bool:
    """Escape what a terminal would not show in a line of the log."""
    record.msg, record.args = visible(record.getMessage()), ()
    return True


def _stop(number: int, _: FrameType | None) -> None:
    # A second signal would interrupt the clean-up after the first.
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, lambda *_: None)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _lacks_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it wraps, means too little memory or too few threads."""
    while error is not None:
        refused = getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        if refused or isinstance(error, MemoryError) or any(w in str(error) for w in REFUSED):
            return True
        error = error.__cause__ or error.__context__
    return False


def _fail(sentence: str, error: BaseException, code: int = 1) -> None:
    if os.environ.get("OCTANE_DEBUG"):
        raise error
    # They name the tile or block.
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    sys.stderr.write(f"error: {visible(_unstaged(sentence + notes))}\n")
    if isinstance(error, GpuLostError):
        # At exit CuPy would free its GPU memory: one error per object, or a crash of the driver.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code) from None


def _unstaged(sentence: str) -> str:
    """Replace links that Nextflow staged in a task by the paths of the inputs they point to."""
    # Outside of tasks, links are the user's, such as published results.
    if ATTEMPT not in os.environ:
        return sentence
    for argument in sys.argv[1:]:
        # Path.is_symlink raises if an argument is too long for a file name.
        if "/" not in argument or not os.path.islink(argument):  # noqa: PTH114
            continue
        target = Path(argument).parent / Path(argument).readlink()
        if target.name == Path(argument).name:
            pattern = rf"(?<![\w./-]){re.escape(argument)}(?![\w-])"
            sentence = re.sub(pattern, lambda _, target=target: str(target), sentence)
    return sentence
