"""Exceptions for problems with the input, a parameter or the machine, not with the code.

* OctaneError
  + InputError: data, a file or a parameter
    - ChunkError
      · MissingChunkError
      · CorruptChunkError
      · UnreadableChunkError
  + GpuLostError
  + NoGpuError
  + NoSpaceError
"""

import errno
import unicodedata
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from octane.core.units import counted

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and an exceeded quota."""
TOO_LARGE = errno.EFBIG
"""Error number of a file larger than the system or ``ulimit -f`` allows; only writes have it."""
HIDDEN = ("Cc", "Cf", "Cs")
"""Categories of characters that are not seen: controls, formats, and surrogates."""
PROBLEMS = 5
"""Most problems that an error lists."""


class OctaneError(Exception):
    """One sentence for the user that names the file or parameter and the remedy."""

    code = 1
    """Exit code of the command."""


class InputError(OctaneError):
    """The given data, file or parameter cannot be used."""


class ChunkError(InputError):
    """A chunk cannot be read.

    ``key`` is its path in the store, and ``reason`` completes the sentence "chunk KEY ...".
    ``sentence`` replaces that sentence by one that also names the store and the remedy.
    """

    def __init__(self, key: str, reason: str, sentence: str = "") -> None:
        super().__init__(sentence or f"chunk {key} {reason}")
        self.key = key
        self.reason = reason


class MissingChunkError(ChunkError):
    """The chunk is missing from the store."""


class CorruptChunkError(ChunkError):
    """The chunk cannot be decoded."""


class UnreadableChunkError(ChunkError):
    """The chunk cannot be read from the system: no permission, or a disk or server failed."""


class GpuLostError(OctaneError):
    """A GPU failed: CUDA is unusable in this process, but a new process may succeed."""

    # The workflow retries this code, the last time on the CPU.
    code = 104


class NoGpuError(OctaneError):
    """No GPU can be used, and the CPU may not replace it."""


class NoSpaceError(OctaneError):
    """No space left: the command may succeed elsewhere, or once some is freed."""

    # The workflow retries this code, unlike errors in the data.
    code = errno.ENOSPC


@contextmanager
def collecting(problems: list[str]) -> Generator[None]:
    """Append an OctaneError of the block to ``problems``, one sentence per line, and go on."""
    try:
        yield
    except OctaneError as error:
        problems += str(error).splitlines()


def told_once(problems: Iterable[tuple[Path, str]]) -> list[str]:
    """Tell a problem that several inputs share once: with the first one's path, and their number.

    Each problem comes with the path of its input.
    """
    alike: dict[str, list[tuple[Path, str]]] = {}
    for path, problem in problems:
        alike.setdefault(problem.replace(str(path), ""), []).append((path, problem))
    lines = []
    for (path, problem), *others in alike.values():
        more = f" (and {len(others)} more)" if others else ""
        lines.append(problem.replace(str(path), f"{path}{more}", 1))
    return lines


def first_lines(problems: Sequence[str]) -> list[str]:
    """Shorten a list of problems: the first ones, and the number of the others."""
    more = len(problems) - PROBLEMS
    return [*problems[:PROBLEMS], *[f"({counted(more, 'more problem')})"] * (more > 0)]


def visible(text: str) -> str:
    """Write control and formatting characters, and bytes that are not UTF-8, as escapes.

    Names from files could otherwise change a terminal. Line breaks and tabs are kept.
    """
    return "".join(
        sign.encode("unicode_escape").decode()
        if unicodedata.category(sign) in HIDDEN and sign not in "\n\t"
        else sign
        for sign in text
    )


def unreadable(error: OSError) -> InputError:
    """Make the error for a file or folder that exists but cannot be read."""
    return InputError(
        f"{error.filename} cannot be read ({error.strerror or error}); check your permissions, the "
        "disk and the network, and run again (a workflow with -resume)."
    )
