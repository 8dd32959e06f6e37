"""Common parts of the commands in ``bin/``: flags from models, one-sentence errors, logging."""

import atexit
import errno
import gc
import logging
import os
import re
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

try:
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is missing in {sys.executable}; source tools/env.sh first.")

from octane.config.flags import Parser
from octane.core.errors import NO_SPACE, GpuLostError, InputError, NoSpaceError, OctaneError
from octane.core.files import require_free

RESULTS = ("destination", "save_bias_field", "save_flat_field", "displacements")
RECORDS = ("metrics", "preview")
"""Parameters of commands that name what is written; records replace what is there."""
FILES = (*RECORDS, "save_flat_field", "displacements", "config", "samplesheet")

REFUSED = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
"""Words of Python and of the loader where memory, address space or threads are lacking."""


def run(step: Callable[..., None], *, problems: str | None = None) -> None:
    """Run a script of ``bin/``: a function with the words that `Parser` takes.

    ``problems`` names the output of a check that is to end well and say there what is wrong: of a
    task that fails Nextflow shows more.

    An error is one sentence on standard error and exit code 1. The code is 28 (the system's ENOSPC)
    without space, 137 without memory, and 104 where a GPU failed: there the workflow can try again.
    ``OCTANE_DEBUG=1`` shows the traceback.
    """
    _prepare()
    try:
        _call(step, problems)
    except OctaneError as error:
        _fail(str(error), error, error.code)
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if _lacks_memory(error):
            # The code of a process that was killed for its memory, which the workflow tries again.
            remedy = "give a smaller --memory or fewer --workers, or run where there is more"
            _fail(f"Not enough memory or threads; {remedy}.", error, 137)
        if not isinstance(error, OSError):
            raise
        # A full disk or a lost mount can show itself at any write.
        _fail(
            f"{error.filename or 'A file'}: {error.strerror or error}; check the disk, its space "
            "and your rights.",
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
        # numpy comes with it, which gpu_slot.py does without.
        from octane.core.metrics import write_json

        write_json(given.arguments[problems], {"problems": str(error).splitlines()})


def _require_outputs(arguments: Mapping[str, object]) -> None:
    """Raise where an output of a command cannot be written, or would replace what it reads."""
    values: dict[str, object] = {}
    for name, value in arguments.items():
        values |= dict(value) if isinstance(value, BaseModel) else {name: value}
    # These are words or files.
    named = [
        (name, Path(path))
        for name, value in values.items()
        for path in (value if isinstance(value, list) else [value])
        if isinstance(path, Path)
        or (name in ("mask", "weights", "flat_field") and isinstance(path, str))
    ]
    for index, (name, output) in enumerate(named):
        if name in FILES and output.is_dir():
            raise InputError(f"{output} is a folder; give the name of a file.")
        if name in RECORDS and not output.parent.is_dir():
            raise InputError(f"{output}: the folder is not there; make it, or correct the name.")
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
    """Tell whether an output is another path, holds it, or lies in the store that it is."""
    if output.exists() and other.exists() and output.samefile(other):
        return True
    place, found = output.resolve(), other.resolve()
    holds = found.suffix == ".zarr" and found in place.parents
    return place == found or place in found.parents or holds


def _prepare() -> None:
    """Set up logging, signals, and the environment of libraries."""
    if sys.stderr is None:
        # Closed by the caller (2>&-): the first file that is opened would get its number.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    # zarr's event loop logs its unfinished reads when a corrupt chunk ends the command, below the
    # one sentence that names the chunk.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # Before NumPy is imported: workers are threads already, and the threads of OpenBLAS would wait
    # for work on cores that these need. Not in os.environ, which the command of gpu_slot.py gets.
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    # As it ends, the interpreter would look through all objects of all modules for garbage.
    atexit.register(gc.freeze)
    # A task that is cancelled still removes what it has written in part.
    for number in (signal.SIGTERM, signal.SIGINT):
        # A shell that puts a command in the background has it ignore SIGINT.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, _: FrameType | None) -> None:
    # A second one would break off what the first one clears up.
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, lambda *_: None)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def installed() -> None:
    """Run the command that pip installed under another name: octane-gpu-slot is gpu_slot.py."""
    name = Path(sys.argv[0]).name.removeprefix("octane-").removesuffix(".exe").replace("-", "_")
    runpy.run_module(f"octane.commands.{name}", run_name="__main__")


def _lacks_memory(error: BaseException | None) -> bool:
    """Tell whether memory, address space or threads were refused, which libraries wrap."""
    while error is not None:
        refused = getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        if refused or isinstance(error, MemoryError) or any(w in str(error) for w in REFUSED):
            return True
        error = error.__cause__ or error.__context__
    return False


def _fail(sentence: str, error: BaseException, code: int = 1) -> None:
    if os.environ.get("OCTANE_DEBUG"):
        raise error
    # The tile or block of the error.
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    sys.stderr.write(f"error: {_unstaged(sentence + notes)}\n")
    if isinstance(error, GpuLostError):
        # CuPy would free what it has on the GPU as the interpreter ends: an error for each object,
        # or a crash of the driver.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code) from None


def _unstaged(sentence: str) -> str:
    """Name the inputs of a task by their own places, to which Nextflow's links in it lead."""
    for argument in sys.argv[1:]:
        # Path.is_symlink raises where an argument is too long for a name.
        if "/" not in argument or not os.path.islink(argument):  # noqa: PTH114
            continue
        target = Path(argument).parent / Path(argument).readlink()
        if target.name == Path(argument).name:
            pattern = rf"(?<![\w./-]){re.escape(argument)}(?![\w-])"
            sentence = re.sub(pattern, lambda _, target=target: str(target), sentence)
    return sentence
