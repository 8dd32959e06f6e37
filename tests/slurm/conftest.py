"""A one-node Slurm for tests, and the workflow on it."""

import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import Started, waited
from slurm_cluster import SlurmCluster, why_not

QUICK_EXECUTOR = """\
executor {
    queueSize = 8
    pollInterval = '300 ms'
    queueStatInterval = '1 s'
    submitRateLimit = '20/1sec'
    exitReadTimeout = '5 s'
}
"""
"""Nextflow's defaults suit jobs that take hours."""


class OnSlurm:
    """Runs of the workflow with the slurm profile, from one folder, on the small phantom."""

    def __init__(self, cluster: SlurmCluster, folder: Path, start, given: list[object]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.environment = dict(cluster.environment)
        self._start = start
        self._started: list[Started] = []
        self.given = given

    def end(self) -> None:
        """End runs that a failed test left."""
        for run in self._started:
            run.kill_all()

    def start(self, *arguments, config="", profiles="test,slurm", env=None):
        """Start a run; ``config`` is added to its -c config."""
        path = self.folder / "quick.config"
        path.write_text(QUICK_EXECUTOR + config, encoding="utf-8")
        started = self._start(
            *(self.folder, "-profile", profiles, "-c", path, *self.given, *arguments),
            env={**self.environment, **(env or {})},
        )
        self._started.append(started)
        return started

    def __call__(self, *arguments, **options):
        """Run to the end, and check that the run succeeds."""
        run = self.start(*arguments, **options).wait()
        assert run.code == 0, run.output
        return run

    def gone(self, job: str) -> None:
        """Wait until a job has ended."""
        waited(lambda: job not in self.cluster.jobs(), f"the end of job {job}")


class Hold:
    """Jobs that wait before their command; each leaves a file named by its number in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def jobs(self, count: int = 1) -> list[str]:
        """Wait until at least ``count`` jobs are held, and return their numbers."""
        waited(lambda: len(list(self.folder.glob("[0-9]*"))) >= count, f"{count} jobs to be held")
        return sorted((path.name for path in self.folder.glob("[0-9]*")), key=int)

    def let_one_go(self, job: str) -> None:
        """Release one job."""
        (self.folder / f"go-{job}").touch()

    def let_go(self) -> None:
        """Release all held and later jobs."""
        shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of one node and two GPUs, shared by all tests."""
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
    """The cluster without jobs; its node accepts jobs again after the test."""
    assert session_cluster.jobs() == {}
    yield session_cluster
    session_cluster.cancel_all()
    if session_cluster.state().startswith("down"):
        session_cluster.set_state("resume")
    assert session_cluster.state() == "idle"


@pytest.fixture
def on_slurm(cluster, start_nextflow, phantom, tmp_path) -> Iterator[OnSlurm]:
    """Runs of the workflow on this Slurm."""
    given = ["--phantom", "false", "--n4_iterations", "3", "--save_bias_field", "false"]
    made = OnSlurm(cluster, tmp_path, start_nextflow, [*given, "--input", phantom / "mosaics"])
    yield made
    made.end()


@pytest.fixture
def on_path(on_slurm: OnSlurm, project: Path, environment: dict[str, str]):
    """Replace one of the workflow's commands by a script, in which REAL is that command."""
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
    """Make all jobs of a command wait until they are released."""

    def held(name: str) -> Hold:
        gate = Hold(on_slurm.folder / "held")
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
