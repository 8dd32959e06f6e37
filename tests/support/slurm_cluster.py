"""A temporary Slurm of one node and two simulated GPUs.

It starts the real daemons of the packages slurm-wlm and munge. They listen only on the loopback
interface, write only to one folder, and end with the process that started them. Root is not needed.
Two harmless character devices represent the GPUs.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = (
    *("munged", "slurmctld", "slurmd"),
    *("setpriv", "sbatch", "squeue", "scancel", "scontrol", "sinfo"),
)
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""PATH with the folders of the daemons, which many users' PATH lacks."""

PATIENCE = 30.0
"""Seconds after which waiting for Slurm fails; one or two are usual."""

CONFIGURATION = """\
ClusterName=octane
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed.txt
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=200
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
KillWait=2
ReturnToService=2
SlurmdTimeout=5
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
NodeName={node} NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000 Gres=gpu:fake:2
PartitionName=cpu Nodes={node} Default=YES MaxTime=INFINITE
PartitionName=gpu Nodes={node} MaxTime=INFINITE
"""


def why_not() -> str | None:
    """Reason why a cluster cannot start here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: apt-get install slurm-wlm munge)"
    return None


class SlurmCluster:
    """The daemons, and the operations of tests on them.

    The folder holds all state; with the socket's name its path has at most 108 bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = socket.gethostname().partition(".")[0]
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.configuration = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.configuration)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until the node accepts jobs."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        free = ("127.0.0.1", 0)
        with socket.create_server(free) as a, socket.create_server(free) as b:
            ports = {"controller_port": a.getsockname()[1], "node_port": b.getsockname()[1]}
        text = CONFIGURATION.format(folder=self.folder, node=self.node, user=self.user, **ports)
        self.configuration.write_text(text, encoding="utf-8")
        gpu = f"NodeName={self.node} Name=gpu Type=fake File="
        text = f"{gpu}/dev/null\n{gpu}/dev/zero\n"
        (self.folder / "gres.conf").write_text(text, encoding="utf-8")
        place = f"{self.folder}/munge."
        self._launch(
            *("munged", "--foreground", "--force", "--num-threads=2", f"--socket={place}socket"),
            *(f"--{name}-file={place}{name}" for name in ("key", "pid", "log", "seed")),
        )
        self._wait(Path(f"{place}socket").exists, "munged")
        self._launch("slurmctld", "-D", "-f", str(self.configuration))
        self._launch("slurmd", "-D", "-f", str(self.configuration))
        self._wait(lambda: self.state() == "idle", "the node")

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until they are gone."""
        self.command("scancel", f"--user={self.user}")
        self._wait(lambda: not self.jobs(), "the jobs' end")

    def stop(self) -> None:
        """End all jobs, the daemons, and processes that jobs left running."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(RuntimeError, TimeoutError):
                self.cancel_all()
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._kill_jobs()

    def command(self, *words: str, check: bool = True) -> str:
        """Run one of Slurm's commands and return its output."""
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}")
        return done.stdout

    def state(self) -> str:
        """The node's state, as ``sinfo`` prints it."""
        output = self.command("sinfo", "--noheader", "--partition=cpu", "--format=%t", check=False)
        return output.strip()

    def jobs(self, state: str | None = None) -> dict[str, str]:
        """Names of the jobs in the queue by number, of one state (``RUNNING``) or all."""
        output = self.command("squeue", "--noheader", "--format=%i %T %j")
        rows = [line.split(maxsplit=2) for line in output.splitlines()]
        return {row[0]: row[2] for row in rows if state in (None, row[1])}

    def completed(self) -> list[dict[str, str]]:
        """Slurm's own record of finished jobs."""
        path = self.folder / "completed.txt"
        lines = path.read_text(encoding="utf-8").splitlines()
        return [dict(f.partition("=")[::2] for f in line.split() if "=" in f) for line in lines]

    def set_state(self, state: str) -> None:
        """Set the node's state: ``down`` or ``resume``."""
        self.command("scontrol", "update", f"nodename={self.node}", f"state={state}", "reason=test")

    def lose_node(self) -> None:
        """Kill the node's daemon and all jobs at once, like a power failure."""
        daemon = self._daemons.pop("slurmd")
        daemon.kill()
        daemon.wait()
        self._kill_jobs()
        # The controller would set this state itself after a longer silence of the node.
        self.set_state("down")

    def bring_node_back(self) -> None:
        """Restart the node's daemon."""
        self._launch("slurmd", "-D", "-f", str(self.configuration))
        self.set_state("resume")
        self._wait(lambda: self.state() in ("idle", "mix", "alloc"), "the node")

    def _launch(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            # The daemons must end with this process even if it is killed.
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, "PATH": PATH},
            )

    def _wait(self, there: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not there():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended:
                output = (self.folder / f"{ended[0]}.out").read_text(errors="replace")
                raise RuntimeError(f"{ended[0]} ended: {output[-2000:]}")
            if time.monotonic() > limit:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
            time.sleep(0.1)

    def _kill_jobs(self) -> None:
        # Repeat: a process may start others before it is killed.
        while found := self._of_jobs():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _of_jobs(self) -> list[int]:
        """PIDs of this cluster's jobs: processes with its configuration, except the daemons."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                ended = (folder / "stat").read_bytes().rpartition(b") ")[2][:1] == b"Z"
                ours = f"SLURM_CONF={self.configuration}\0".encode() in environment
                started = b"slurmstepd" in (folder / "comm").read_bytes()
                if ours and not ended and (started or b"\0SLURM_JOB_ID=" in environment):
                    found.append(int(folder.name))
        return sorted({*found} - {daemon.pid for daemon in self._daemons.values()})
