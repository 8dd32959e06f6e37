"""What the fault tests share: undisturbed runs, runs that can be disturbed, and their table."""

import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from reliability import Row, note, rows, writing
from runs import Started, checksums

ROOT = os.geteuid() == 0
PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note for the fixtures of a test whether it passed."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


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


def _undisturbed(nextflow, folder, arguments):
    run = nextflow(folder, *arguments)
    assert run.code == 0, run.output
    sums = checksums(run.outdir)
    assert len({name.partition("/")[0] for name in sums}) == 2, sums
    (made,) = (p for p in folder.glob("work/??/*/*_n4.ome.zarr") if not p.is_symlink())
    return Undisturbed(folder, sums, made)


@pytest.fixture(scope="session")
def undisturbed(nextflow, volume, tmp_path_factory) -> Undisturbed:
    """What :func:`volume` gives."""
    return _undisturbed(nextflow, tmp_path_factory.mktemp("undisturbed"), volume)


@pytest.fixture(scope="session")
def undisturbed_mosaics(nextflow, mosaics, tmp_path_factory) -> Undisturbed:
    """What :func:`mosaics` gives."""
    return _undisturbed(nextflow, tmp_path_factory.mktemp("undisturbed"), mosaics)


@pytest.fixture
def started(project, environment) -> Iterator[Callable[..., Started]]:
    """Start the workflow and let it run; whatever is left of it at the end is killed."""
    begun: list[Started] = []

    def start(folder: Path, *arguments: object, outdir: Path | None = None) -> Started:
        folder.mkdir(exist_ok=True)
        log = folder / f"nextflow-{len(begun)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["nextflow", "run", str(project / "main.nf"), "--outdir", str(outdir or "out")]
                + [str(word) for word in arguments],
                cwd=folder,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun.append(Started(process, folder, log))
        return begun[-1]

    yield start
    for run in begun:
        for pid, _ in run.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait(timeout=60)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[str, str], Path]]:
    """Mount small file systems, which can be filled; skipped where that is not allowed."""
    mounted: list[Path] = []

    def mount(name: str, size: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(place)]
        done = (
            subprocess.run(command, capture_output=True, text=True, check=False) if ROOT else None
        )
        if done is None or done.returncode:
            pytest.skip("a small disk can be mounted by root alone")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def remount() -> Callable[[Path, str], None]:
    """Change the options of what :func:`small_disk` mounted: its size, or ``ro``."""

    def change(place: Path, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)

    return change


@contextmanager
def _read_only(place: Path) -> Generator[None]:
    # The rights of a folder do not hold root back: for root the file system says no.
    if ROOT:
        for command in (["--bind", str(place), str(place)], ["-o", "remount,bind,ro", str(place)]):
            done = subprocess.run(["mount", *command], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    else:
        place.chmod(0o555)
    try:
        yield
    finally:
        if ROOT:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
        else:
            place.chmod(0o755)


@pytest.fixture
def read_only():
    """Make a folder read-only for as long as a block lasts."""
    return _read_only


@pytest.fixture
def told(request) -> Iterator[Callable[..., None]]:
    """Tell what became of a fault: it is compared with the table, or written to it.

    The test names places by ``plain``, so that its words do not change from run to run.
    """
    name = f"{request.path.name}::{request.node.name}"
    done: list[Row] = []

    def tell(group: str, fault: str, does: str, result: str, observed: str) -> None:
        row = Row(group, fault, does, result, " ".join(observed.split()))
        done.append(row)
        if writing():
            note(name, row)
        kept = rows().get(name)
        assert kept is not None, f"{name} has no row; OCTANE_RELIABILITY=write writes it"
        assert (kept.group, kept.fault, kept.does, kept.result) == (group, fault, does, result)

    yield tell
    assert done or not request.node.stash.get(PASSED, False), f"{name} told nothing"


@pytest.fixture
def plain(tmp_path, phantom, project) -> Callable[..., str]:
    """Words of a run with names in place of this machine's folders."""

    def spelled(text: str, **places: Path) -> str:
        named = {**places, "INPUT": phantom, "PROJECT": project, "LAUNCH": tmp_path}
        for name, place in sorted(named.items(), key=lambda item: -len(str(item[1]))):
            text = text.replace(str(place), name)
        return text

    return spelled
