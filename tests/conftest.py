"""What tests share that run the workflow: a copy of it, a small phantom, and real Nextflow runs."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# Before zarr, which imports CuPy.
import octane.core.arrays  # noqa: F401

# isort: split
import pytest
from runs import Run, Started

PROJECT = Path(__file__).resolve().parents[1]
CODE = (
    *("main.nf", "nextflow.config", "nextflow_schema.json"),
    *("modules", "subworkflows", "lib", "conf", "bin"),
)
"""What a run reads."""

Nextflow = Callable[..., Run]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The tests' own Python and a Nextflow on the PATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTANE_")}
    places = [str(Path(sys.executable).parent), env["PATH"]]
    if shutil.which("nextflow") is None:
        places.append(str(PROJECT / "tools" / "nextflow"))
    return {**env, "PATH": os.pathsep.join(places), "NXF_ANSI_LOG": "false"}


def copy_code(source: Path, destination: Path) -> Path:
    """Copy what a run reads, with the machine code that is kept beside it."""
    destination.mkdir(exist_ok=True)
    for part in CODE:
        if (source / part).is_dir():
            # Not what another process is writing just now.
            ignored = shutil.ignore_patterns(".partial-*", "*.pyc.*")
            shutil.copytree(source / part, destination / part, ignore=ignored)
        else:
            shutil.copy2(source / part, destination / part)
    return destination


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, one for all workers: runs must not see edits while they last."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    made = shared / "project"
    with (shared / "project.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            copy_code(PROJECT, shared / "project.partial").rename(made)
    return made


@pytest.fixture(scope="session")
def copy_project(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copy what a run reads into a folder of its own."""
    return lambda name: copy_code(project, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def start_nextflow(project: Path, environment: dict[str, str]) -> Iterator[Callable[..., Started]]:
    """Start a run of the workflow, from ``folder`` into ``folder/out``, and go on."""
    begun: list[Started] = []

    def start(
        folder: Path,
        *arguments: object,
        outdir: Path | None = None,
        give_outdir: bool = True,
        code: Path = project,
        env: dict[str, str] | None = None,
    ) -> Started:
        folder.mkdir(exist_ok=True)
        outdir = outdir or folder / "out"
        given = ["--outdir", str(outdir)] if give_outdir else []
        # A file and no pipe, which tasks that outlive a killed run would keep open.
        output = tempfile.TemporaryFile()  # noqa: SIM115 - read as long as the tests last
        process = subprocess.Popen(
            ["nextflow", "run", str(code / "main.nf"), *given, *map(str, arguments)],
            cwd=folder,
            env={**environment, **(env or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Of a shell's background job, as which tests may run, it would be ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        begun.append(Started(folder, outdir, process, output))
        return begun[-1]

    yield start
    for run in begun:
        if run.process.returncode is None:
            run.kill_all()
        run.stream.close()


@pytest.fixture(scope="session")
def nextflow(start_nextflow: Callable[..., Started]) -> Nextflow:
    """Run the workflow to its end, from ``folder`` into ``folder/out``."""
    return lambda *arguments, **options: start_nextflow(*arguments, **options).wait()


@pytest.fixture(scope="session")
def succeeding(nextflow: Nextflow) -> Nextflow:
    """Run the workflow to its end, and see that it ends well."""

    def run(*arguments: object, **options: object) -> Run:
        made = nextflow(*arguments, **options)
        assert made.code == 0, made.output
        return made

    return run


@pytest.fixture
def host(project: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    """Make somebody else's workflow, in which octane is the folder ``octane``."""

    def make(main: str, config: str = "") -> Path:
        folder = tmp_path / "host"
        folder.mkdir()
        (folder / "octane").symlink_to(project)
        (folder / "main.nf").write_text(main, encoding="utf-8")
        path = "env.PATH = \"${projectDir}/octane/bin:${System.getenv('PATH')}\"\n"
        (folder / "nextflow.config").write_text(path + config, encoding="utf-8")
        return folder

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Mount small file systems, which can be filled; skipped where that is not allowed."""
    mounted: list[Path] = []

    def mount(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"mode=1777,{options}", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
            pytest.skip("a small disk can be mounted by root alone")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Command:
    """Run a command of ``bin/`` as a person would."""

    def run(
        name: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        code: Path = PROJECT,
        preexec_fn: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(code / "bin" / f"{name}.py"), *map(str, arguments)],
            env={**environment, **(env or {})}, cwd=cwd, preexec_fn=preexec_fn,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def make_phantom(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Callable[..., Path]:
    """Make a subject whose tasks take little longer than Python's start.

    It has ``mosaics/``, ``truth/`` and ``positions.csv``.
    """

    def make(sections: int = 2, tiles: int = 2) -> Path:
        folder = tmp_path_factory.mktemp("phantom") / "subject"
        made = command(
            *("phantom", folder, "--sections", sections, "--tiles", tiles, tiles),
            *("--tile_shape", "24", "64", "64", "--section_thickness", "70"),
        )
        assert made.returncode == 0, made.stderr
        return folder

    return make


@pytest.fixture(scope="session")
def phantom(make_phantom: Callable[..., Path]) -> Path:
    """A small subject of two sections."""
    return make_phantom()


@pytest.fixture(scope="session")
def quick() -> list[str]:
    """Nextflow's arguments for a run on given data that takes few seconds."""
    return [
        *("-profile", "test", "--phantom", "false"),
        *("--n4_iterations", "3", "--save_bias_field", "false"),
    ]
