"""A Docker daemon for tests, with the image that `make image` builds.

The base, Debian's image in a registry, is made here by debootstrap from Debian's packages.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from runs import waited

PROJECT = Path(__file__).resolve().parents[2]
SUPERVISOR = Path(__file__).with_name("docker_daemon.sh")
BASE = "debian:bookworm-slim"
PROGRAMS = ("dockerd", "docker", "debootstrap", "unshare", "setpriv", "make")
SYSTEM = "/usr/bin:/usr/sbin:/bin:/sbin"
"""Where a distribution installs the daemon, and the client that fits it."""

PIP_CONF = Path("/etc/pip.conf")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

EMPTIED = ("usr/share/info", "usr/share/locale", "usr/share/man")
"""Folders of which Debian's slim images keep no file."""

SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
"""The same for packages that are added later."""


def why_not() -> str | None:
    """Reason why real containers cannot run here, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a Docker daemon of its own needs Linux and root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: apt-get install docker.io debootstrap)"
    return None


class DockerDaemon:
    """The daemon, which ends with this process and then leaves nothing."""

    def __init__(self) -> None:
        # Not in pytest's folders, which are kept, nor in its shared file system in memory.
        self.folder = Path(tempfile.mkdtemp(prefix="octane-docker-", dir="/var/tmp"))
        self.folder.chmod(0o711)
        self.socket = self.folder / "docker.sock"
        # The client next to the daemon: others on the PATH may lack BuildKit.
        client = shutil.which("docker", path=SYSTEM)
        assert client is not None
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "docker").symlink_to(client)
        self._supervisor = subprocess.Popen(
            [str(SUPERVISOR), str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a command uses this daemon."""
        path = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        return {"DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "1", "PATH": path}

    def __call__(self, *words: object, check: bool = True) -> str:
        """Run a command of docker and return its output, as :meth:`run` does."""
        return self.run("docker", *words, check=check)

    def run(self, *words: object, check: bool = True) -> str:
        """Run a program that uses this daemon and return its output.

        Errors follow if it fails, and only then: docker warns there of settings of the machine.
        """
        done = subprocess.run(
            [str(word) for word in words],
            env={**os.environ, **self.environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not done.returncode:
            return done.stdout
        if check:
            raise RuntimeError(f"{words}: {done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout + done.stderr

    def start(self) -> None:
        """Wait until the daemon answers."""
        ended = self._supervisor.poll
        waited(lambda: ended() is not None or "ID: " in self("info", check=False), "the daemon")
        if ended() is not None:
            raise RuntimeError("dockerd ended, see above")

    def make_base(self) -> None:
        """Make Debian's slim image from its packages."""
        root = self.folder / "base"
        # It ends, and its mounts with it, even if this process is killed.
        self.run(
            *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"),
            *("--kill-child", "--mount-proc", "debootstrap", "--variant=minbase", "bookworm", root),
        )
        for name in ("var/lib/apt/lists", "var/cache/apt", *EMPTIED):
            self.run("find", root / name, "-mindepth", "1", "-delete")
        kept = ("!", "-name", "copyright", "!", "-type", "d")
        self.run("find", root / "usr/share/doc", *kept, "-delete")
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(SLIM, encoding="utf-8")
        archive = self.folder / "base.tar"
        self.run("tar", "-C", root, "-cf", archive, ".")
        self("import", archive, BASE)
        shutil.rmtree(root)
        archive.unlink()

    def make_image(self) -> str:
        """Build the image as a user would, with this machine's settings of pip."""
        secrets = {"pip.conf": PIP_CONF, "certificates": CERTIFICATES}
        given = [
            f"--secret id={name},src={path}" for name, path in secrets.items() if path.exists()
        ]
        return self.run("make", "-C", PROJECT, "image", f"BUILD=--network host {' '.join(given)}")

    def running(self) -> list[str]:
        """IDs of running containers."""
        return self("ps", "--quiet").split()

    def processes(self, container: str) -> str:
        """Command lines of a container's processes; empty if it has ended."""
        return self("top", container, "-eo", "pid,args", check=False)

    def stop(self) -> None:
        """End the daemon and its containers, and wait until all is removed."""
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()
        self._supervisor.wait()
