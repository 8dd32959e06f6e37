"""View results in a browser: a server on this machine, and addresses that open in neuroglancer."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from octane.core.errors import InputError
from octane.core.files import lost_target
from octane.store.chunks import is_store
from octane.store.formats.archive import is_archive
from octane.store.ngff import read_metadata
from octane.tools.view.neuroglancer import DEMO, Source, Viewer, local_viewer, show_state, state_of
from octane.tools.view.server import ResultsServer

INSTALL = "python -m pip install 'neuroglancer>=2.41'"
REWRITE = "bin/export.py writes it as 0.5."


class Subject(NamedTuple):
    """Results of a subject: its images, the finished one first, and its report if it has one."""

    name: str
    images: list[Path]
    reports: list[Path]

    @property
    def files_by_name(self) -> dict[str, Path]:
        """Results by their names in addresses."""
        return {f"{self.name}/{path.name}": path for path in (*self.images, *self.reports)}


def find_subjects(results: Path) -> list[Subject]:
    """Subjects in the outdir of a run, the one of a subject's folder, or a store as a subject.

    Raises an InputError if there are none, or if the work directory of an image is gone.
    """
    if not (results.is_dir() or is_archive(results)):
        raise InputError(
            f"{results} is neither a folder nor a store in one file; give the --outdir of "
            "a run, or a store."
        )
    # Links are not followed: results have the names of the links.
    folder = Path(os.path.abspath(results))  # noqa: PTH100
    if is_store(folder):
        return [Subject(folder.name.split(".")[0], [folder], [])]
    subjects = [_subject(folder)]
    if not subjects[0].images:
        subjects = [_subject(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    with_images = [subject for subject in subjects if subject.images]
    if not with_images:
        raise InputError(
            f"{results} does not hold a store; give the --outdir of a run, a subject's folder in "
            "it, or a store."
        )
    return with_images


def _subject(folder: Path) -> Subject:
    inner = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    images = [path for path in inner if is_store(path)]
    for path in images:
        if not path.exists():
            raise InputError(lost_target(path))
    # The corrected volume, or the last one before it, and not the bias field.
    images.sort(key=lambda path: (path.name.split(".")[0] != folder.name, "_bias." in path.name))
    reports = [path for path in inner if path.name.endswith("_report.html") and path.is_file()]
    return Subject(folder.name, images, reports)


def view(results: Path, port: int = 0) -> None:
    """Serve results until Ctrl-C, and print their addresses, at which neuroglancer shows them.

    ``port`` is that of the results, and the next one that of neuroglancer; 0 chooses free ones.
    """
    subjects = find_subjects(results)
    served = {name: path for subject in subjects for name, path in subject.files_by_name.items()}
    # Kept until the end, for a viewer lives as long as its object.
    viewers = [local_viewer(port and port + 1) for _ in subjects]
    with ResultsServer(served, port) as server, suppress(KeyboardInterrupt):
        lines = [
            line
            for s, v in zip(subjects, viewers, strict=True)
            for line in _show_subject(s, v, server)
        ]
        addresses = [server.root, *(viewer.get_viewer_url() for viewer in viewers if viewer)]
        lines += forwarding_lines(os.environ.get("SSH_CONNECTION", ""), addresses)
        if None in viewers:
            lines.append(
                f"Neuroglancer comes from {DEMO}; without a network, install it: {INSTALL}"
            )
        sys.stdout.write("\n".join([*lines, "Press Ctrl-C to stop.\n"]))
        sys.stdout.flush()
        server.serve_forever()


def _show_subject(subject: Subject, viewer: Viewer | None, server: ResultsServer) -> list[str]:
    """Show a subject in a viewer; return lines with its addresses, and on what it may not draw."""
    name = subject.name
    sources = [Source(path, server.address(f"{name}/{path.name}")) for path in subject.images]
    # A short address for a long one, which terminals would break.
    server.redirects[name] = show_state(viewer, state_of(sources))
    reports = [server.address(f"{name}/{path.name}") for path in subject.reports]
    newer = [path for path in subject.images if read_metadata(path, None).version == "0.6"]
    return [
        f"{name}: {server.address(name)}",
        *(f"report: {address}" for address in reports),
        *(
            f"{path.name} is OME-Zarr 0.6, which neuroglancer 2.41 does not show; {REWRITE}"
            for path in newer
        ),
    ]


def forwarding_lines(connection: str, addresses: Sequence[str]) -> list[str]:
    """Line to type on the computer from which one is connected by ssh; none without a connection.

    ``connection`` is SSH_CONNECTION: client, its port, this machine, its port.
    """
    if not connection:
        return []
    *_, machine, ssh_port = connection.split()
    places = dict.fromkeys(urlsplit(address).netloc for address in addresses)
    words = [f"-L {place.rpartition(':')[2]}:{place}" for place in places]
    words += [f"-p {ssh_port}"] * (ssh_port != "22")
    return [f"First, on your own computer: ssh -N {' '.join(words)} {getuser()}@{machine}"]
