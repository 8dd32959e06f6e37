"""The folders that results lie in, those that a link leads to included.

A subject's folder may lie on another disk, with a link to it: what is in there is as much a result
as what lies beside the link.
"""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from octane.core.manifests import is_task_folder, task_folder

__all__ = ["walk"]


def walk(
    top: Path, unread: list[OSError], *, tasks: bool = False
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folders below one with the names in them, as :func:`os.walk` gives them top down.

    Links to folders are followed, each folder is entered once, and those of tasks never are: a work
    directory may lie in here as well.

    Parameters
    ----------
    top
        Where to begin.
    unread
        Takes an error for each folder that cannot be read.
    tasks
        Follow also links into the folders of tasks.

    Yields
    ------
    folder, folders, files
        A folder by its name below ``top``, and the names in it, links among them. What the caller
        takes out of ``folders`` is not entered.
    """
    # A link to a folder above leads to everything, and back here.
    known = {_identity(folder) for folder in top.resolve().parents}
    waiting = deque([top])
    while waiting:
        for name, folders, files in os.walk(waiting.popleft(), onerror=unread.append):
            folder = Path(name)
            identity = _identity(folder)
            if identity in known:
                folders.clear()
                continue
            known.add(identity)
            real = folder.resolve()
            folders[:] = sorted(n for n in folders if not is_task_folder(real / n))
            yield folder, folders, files
            # After all that lies here itself, which so is named by where it lies.
            links = (folder / n for n in folders if (folder / n).is_symlink())
            waiting += [link for link in links if tasks or task_folder(link) is None]


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
