"""What tests share that run the workflow: a copy of it, a small phantom, and real Nextflow runs."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

PROJECT = Path(__file__).resolve().parents[1]
CODE = (
    *("main.nf", "nextflow.config", "nextflow_schema.json"),
    *("modules", "subworkflows", "lib", "conf", "bin"),
)
"""What a run reads."""

SMALL = (
    *("--sections", "2", "--tiles", "2", "2", "--tile-shape", "24", "64", "64"),
    *("--section-thickness", "70"),
)
"""A phantom whose tasks take little longer than Python's start."""


@dataclass(frozen=True)
class Run:
    """A run of Nextflow that has ended.

    Attributes
    ----------
    folder
        Where it was launched.
    outdir
        Its results.
    code
        Exit code.
    output
        Standard output and error.
    """

    folder: Path
    outdir: Path
    code: int
    output: str

    @property
    def trace(self) -> list[dict[str, str]]:
        """Nextflow's record of the tasks; none when it did not get that far."""
        path = self.outdir / "pipeline_info" / "trace.txt"
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream, delimiter="\t"))

    def tasks(self, status: str | None = None) -> list[str]:
        """Names of the tasks, ``N4 (sub-01)``, of one status or all."""
        return sorted(
            re.sub(r"^[A-Z0-9:]*:", "", row["name"])
            for row in self.trace
            if status in (None, row["status"])
        )

    def processes(self, status: str | None = None) -> set[str]:
        """Names of the processes, of one status or all."""
        return {task.split(" ", maxsplit=1)[0] for task in self.tasks(status)}

    def task_file(self, task: str, name: str) -> Path:
        """A file in a task's work directory."""
        (digest,) = (row["hash"] for row in self.trace if task in row["name"])
        (found,) = (self.folder / "work").glob(f"{digest}*/{name}")
        return found


@dataclass(frozen=True)
class Started:
    """A run of Nextflow that goes on.

    Attributes
    ----------
    folder
        Where it was launched.
    outdir
        Its results.
    process
        Nextflow itself.
    stream
        Takes standard output and error.
    """

    folder: Path
    outdir: Path
    process: subprocess.Popen[bytes]
    stream: IO[str]

    def wait(self) -> Run:
        """The run when it has ended."""
        with self.stream:
            try:
                code = self.process.wait(300)
            finally:
                self.process.kill()
                self.process.wait()
            self.stream.seek(0)
            return Run(self.folder, self.outdir, code, self.stream.read())


Nextflow = Callable[..., Run]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The tests' own Python and a Nextflow on the PATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTANE_")}
    places = [str(Path(sys.executable).parent), env["PATH"]]
    if shutil.which("nextflow") is None:
        places.append(str(PROJECT / "tools" / "nextflow"))
    return {**env, "PATH": os.pathsep.join(places), "NXF_ANSI_LOG": "false"}


@pytest.fixture(scope="session")
def copy_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copy what a run reads into a folder of its own."""

    def copy(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        for part in CODE:
            source = PROJECT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        return folder

    return copy


@pytest.fixture(scope="session")
def project(copy_project: Callable[[str], Path]) -> Path:
    """A copy of the project: runs must not see what is edited while they last."""
    return copy_project("project")


@pytest.fixture(scope="session")
def start_nextflow(project: Path, environment: dict[str, str]) -> Callable[..., Started]:
    """Start a run of the workflow, from ``folder`` into ``folder/out``, and go on."""

    def start(
        folder: Path,
        *arguments: object,
        outdir: Path | None = None,
        give_outdir: bool = True,
        code: Path = project,
        env: dict[str, str] | None = None,
        script: str = "main.nf",
    ) -> Started:
        outdir = outdir or folder / "out"
        given = ["--outdir", str(outdir)] if give_outdir else []
        # A file and no pipe, which tasks that outlive a killed run would keep open.
        output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - Started closes it
        process = subprocess.Popen(
            ["nextflow", "run", str(code / script), *given, *map(str, arguments)],
            cwd=folder,
            env={**environment, **(env or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        return Started(folder, outdir, process, output)

    return start


@pytest.fixture(scope="session")
def nextflow(start_nextflow: Callable[..., Started]) -> Nextflow:
    """Run the workflow to its end, from ``folder`` into ``folder/out``."""

    def run(*arguments: object, **options: object) -> Run:
        return start_nextflow(*arguments, **options).wait()

    return run


@pytest.fixture
def stand_in_slurm(tmp_path: Path, environment: dict[str, str]) -> Callable[..., dict[str, str]]:
    """Put a Slurm on the PATH that does what a line of shell does, and knows of no job.

    ``fast.config`` has Nextflow look at it often, with more settings of its executor as given.
    """

    def put(submit: str, settings: str = "") -> dict[str, str]:
        folder = tmp_path / "slurm"
        folder.mkdir()
        for name, script in (("sbatch", submit), ("squeue", "true"), ("scancel", "true")):
            command = folder / name
            command.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
            command.chmod(0o755)
        (tmp_path / "fast.config").write_text(
            "executor { pollInterval = '200ms'\nqueueStatInterval = '200ms'\n" + settings + " }\n",
            encoding="utf-8",
        )
        return {"PATH": f"{folder}{os.pathsep}{environment['PATH']}"}

    return put


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of ``bin/`` as a person would."""

    def run(
        name: str, *arguments: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROJECT / "bin" / f"{name}.py"), *map(str, arguments)],
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def phantom(
    tmp_path_factory: pytest.TempPathFactory,
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> Path:
    """A small subject: ``mosaics/``, ``truth/`` and ``positions.csv``."""
    folder = tmp_path_factory.mktemp("phantom") / "subject"
    made = command("phantom", folder, *SMALL)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def quick() -> list[str]:
    """Nextflow's arguments for a run on given data that takes few seconds."""
    return [
        *("-profile", "test", "--phantom", "false"),
        *("--n4_iterations", "3", "--save_bias_field", "false"),
    ]
