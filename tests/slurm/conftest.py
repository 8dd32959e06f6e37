"""A Slurm of one node for tests, the workflow on it, and the record of what was shown."""

import hashlib
import json
import os
import shutil
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from record import COMMIT, stamped, write
from slurm_cluster import SlurmCluster, why_not

RECORD = "OCTANE_RECORD_SLURM"
"""Environment variable that has the tests write ``tests/slurm/slurm.json``."""

QUICK_EXECUTOR = """\
executor {
    queueSize = 8
    pollInterval = '300 ms'
    queueStatInterval = '1 s'
    submitRateLimit = '20/1sec'
    exitReadTimeout = '5 s'
}
"""
"""Nextflow's own times are made for jobs of hours."""

PATIENCE = 200.0
"""Seconds to wait for what a run is to do."""


def checksums_of(outdir: Path) -> dict[str, str]:
    """Every file of the volumes that a run gave, by its place."""
    return {
        str(path.relative_to(outdir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for store in outdir.glob("*/*.ome.zarr")
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def until(there: Callable[[], bool], what: str) -> None:
    """Wait for something that a run or the cluster is to do."""
    limit = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > limit:
            raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)


class OnSlurm:
    """The workflow through the slurm profile, from one folder.

    Attributes
    ----------
    given
        Arguments of each run: the small phantom.
    """

    def __init__(self, cluster: SlurmCluster, folder: Path, start, given: list[object]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.environment = dict(cluster.environment)
        self._start = start
        self._processes: list[subprocess.Popen[bytes]] = []
        self.given = given

    def end(self) -> None:
        """End what still runs, as it does after a test that failed."""
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self, *arguments, config="", profiles="test,slurm", env=None):
        """Start a run; ``config`` is the text of a -c config of its own."""
        path = self.folder / "quick.config"
        path.write_text(QUICK_EXECUTOR + config, encoding="utf-8")
        started = self._start(
            *(self.folder, "-profile", profiles, "-c", path, *self.given, *arguments),
            env={**self.environment, **(env or {})},
        )
        self._processes.append(started.process)
        return started

    def __call__(self, *arguments, **options):
        """Run to the end."""
        return self.start(*arguments, **options).wait()

    def gone(self, job: str) -> None:
        """Wait until a job has ended."""
        until(lambda: job not in self.cluster.jobs(), f"the end of job {job}")

    def waits(self, process: str) -> None:
        """Wait until a job of a process waits in the queue."""
        until(
            lambda: any(f"_{process}_" in name for name in self.cluster.jobs("PENDING").values()),
            f"a job of {process} in the queue",
        )


@dataclass
class Hold:
    """Jobs that wait in the middle of their work.

    Attributes
    ----------
    folder
        A file for each of them, named by its number.
    """

    folder: Path

    def jobs(self, count: int = 1) -> list[str]:
        """Numbers of those that have come so far, waited for until there are so many."""
        until(lambda: len(list(self.folder.glob("[0-9]*"))) >= count, f"{count} jobs to be held")
        return sorted((path.name for path in self.folder.glob("[0-9]*")), key=int)

    def let_one_go(self, job: str) -> None:
        """Let one of them work."""
        (self.folder / f"go-{job}").touch()

    def let_go(self) -> None:
        """Let them, and all that follow, work."""
        shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of one node and two GPUs, for as long as the tests last."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(session_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster with no job on it, and a node that takes jobs again after the test."""
    assert session_cluster.jobs() == {}
    yield session_cluster
    session_cluster.cancel_all()
    if session_cluster.state().startswith(("drain", "drng", "down")):
        session_cluster.set_state("resume")
    assert session_cluster.state() == "idle"


@pytest.fixture
def on_slurm(cluster, start_nextflow, phantom, tmp_path) -> Iterator[OnSlurm]:
    """The workflow on this Slurm."""
    given = ["--phantom", "false", "--n4_iterations", "3", "--save_bias_field", "false"]
    made = OnSlurm(cluster, tmp_path, start_nextflow, [*given, "--input", phantom / "mosaics"])
    yield made
    made.end()


@pytest.fixture
def on_path(on_slurm: OnSlurm, project: Path, environment: dict[str, str]):
    """Put a script in the place of one of the workflow's commands; REAL in it is that command."""
    folder = on_slurm.folder / "first"
    folder.mkdir()
    on_slurm.environment["PATH"] = f"{folder}:{environment['PATH']}"

    def put(name: str, script: str) -> None:
        text = textwrap.dedent(script).replace("REAL", f"'{project}/bin/{name}'")
        (folder / name).write_text(f"#!/bin/bash\nset -e\n{text}", encoding="utf-8")
        (folder / name).chmod(0o755)

    return put


@pytest.fixture
def hold(on_slurm: OnSlurm, on_path) -> Callable[[str], Hold]:
    """Have all jobs of a command wait until they are let go."""

    def held(name: str) -> Hold:
        gate = Hold(on_slurm.folder / "held")
        gate.folder.mkdir()
        on_path(
            name,
            f"""\
            while touch '{gate.folder}/'$SLURM_JOB_ID 2>/dev/null; do
                if [ -e '{gate.folder}/go-'$SLURM_JOB_ID ]; then break; fi
                sleep 0.1
            done
            exec REAL "$@"
            """,
        )
        return gate

    return held


@pytest.fixture(scope="session")
def shown(session_cluster: SlurmCluster) -> Iterator[Callable[[str, str], None]]:
    """Note what a test has shown; at the end it goes into the record, if that is wanted.

    Rows of tests that were not run stay, each with the commit that it is of.
    """
    noted: dict[str, dict[str, str]] = {}

    def note(case: str, outcome: str) -> None:
        noted[case] = {"case": case, "outcome": outcome, "commit": COMMIT}

    yield note
    if os.environ.get(RECORD):
        version = session_cluster.command("sbatch", "--version").split()[-1]
        path = Path(__file__).with_name("slurm.json")
        before = json.loads(path.read_text(encoding="utf-8"))["shown"] if path.exists() else []
        rows = {row["case"]: row for row in before} | noted
        write(path, stamped({"slurm": version, "shown": list(rows.values())}))


@pytest.fixture(scope="session")
def checksums() -> Callable[[Path], dict[str, str]]:
    """Checksums of every file of the volumes that a run gave."""
    return checksums_of


@pytest.fixture(scope="session")
def undisturbed(nextflow, quick, phantom, tmp_path_factory) -> dict[str, str]:
    """Checksums of what a run on this machine makes of the phantom."""
    run = nextflow(tmp_path_factory.mktemp("local"), *quick, "--input", phantom / "mosaics")
    assert run.code == 0, run.output
    return checksums_of(run.outdir)
