"""What the fault tests share: undisturbed runs, and the table of what was observed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from reliability import note
from runs import Started, checksums


@pytest.fixture(scope="session")
def volume(phantom: Path) -> list[object]:
    """Arguments of a run on one volume: PREFLIGHT, N4 and PYRAMID alone."""
    return [
        *("-profile", "test", "--phantom", "false", "--skip_resample", "--skip_report"),
        *("--n4_iterations", "3", "--input", phantom / "truth" / "tissue.ome.zarr"),
    ]


@pytest.fixture(scope="session")
def mosaics(phantom: Path) -> list[object]:
    """Arguments of a run on two mosaics: all steps but the report."""
    return [
        *("-profile", "test", "--phantom", "false", "--skip_report"),
        *("--n4_iterations", "3", "--input", phantom / "mosaics"),
    ]


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing disturbed: where it was launched, its results, and N4's own output."""

    folder: Path
    sums: dict[str, str]
    n4: Path


def _undisturbed(succeeding, folder, arguments):
    sums = checksums(succeeding(folder, *arguments).outdir)
    assert len({name.partition("/")[0] for name in sums}) == 2, sums
    (made,) = (p for p in folder.glob("work/??/*/*_n4.ome.zarr") if not p.is_symlink())
    return Undisturbed(folder, sums, made)


@pytest.fixture(scope="session")
def undisturbed(succeeding, volume, tmp_path_factory) -> Undisturbed:
    """What :func:`volume` gives."""
    return _undisturbed(succeeding, tmp_path_factory.mktemp("undisturbed"), volume)


@pytest.fixture(scope="session")
def undisturbed_mosaics(succeeding, mosaics, tmp_path_factory) -> Undisturbed:
    """What :func:`mosaics` gives."""
    return _undisturbed(succeeding, tmp_path_factory.mktemp("undisturbed"), mosaics)


@pytest.fixture
def started(start_nextflow) -> Iterator[Callable[..., Started]]:
    """Start the workflow and let it run; whatever is left of it after the test is killed."""
    begun: list[Started] = []

    def start(*arguments: object, **options: object) -> Started:
        begun.append(start_nextflow(*arguments, **options))
        return begun[-1]

    yield start
    for run in begun:
        run.kill_all()


@pytest.fixture
def observed(request) -> Callable[..., None]:
    """Tell what was observed of a fault, for its row in the table.

    The test names places by ``plain``, so that its words do not change from run to run.
    """
    name = f"{request.path.name}::{request.node.name}"
    return lambda *words: note(name, " ".join(words[-1].split()))


@pytest.fixture
def plain(tmp_path, phantom, project) -> Callable[..., str]:
    """Words of a run with names in place of this machine's folders."""

    def spelled(text: str, **places: Path) -> str:
        named = {**places, "INPUT": phantom, "PROJECT": project, "LAUNCH": tmp_path}
        for name, place in sorted(named.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(str(place), name)
        return text

    return spelled
