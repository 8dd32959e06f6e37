"""A real browser without a window, driven through its own pipe, without a driver or package."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--hide-scrollbars"),
    # The tests may run as root, and the pages are their own.
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 60.0
"""Seconds for an answer, on a machine that has much else to do."""

Message = dict


class Browser:
    """Chromium, spoken to in the DevTools protocol: JSON messages that end with a zero byte."""

    def __init__(self, program: str, folder: Path) -> None:
        child_reads, self._writes = os.pipe()
        self._reads, child_writes = os.pipe()
        self._log = (folder / "browser.log").open("wb")
        # The protocol's pipe is the descriptors 3 and 4, whatever numbers the two have here.
        redirected = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "browser", program, *OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(child_reads)
        os.close(child_writes)
        self._rest = b""
        self._sent = 0
        self.events: list[Message] = []

    def call(self, method: str, session: str | None = None, **params: object) -> Message:
        """Send a command and give its result; what happens meanwhile goes to ``events``."""
        self._sent += 1
        message: Message = {"id": self._sent, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def wait(self, method: str, session: str) -> None:
        """Wait until an event has come."""
        while not any(e["method"] == method and e["sessionId"] == session for e in self.events):
            self.events.append(self._next())

    def _next(self) -> Message:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._reads], [], [], left)[0]:
                piece = os.read(self._reads, 1 << 20)
                assert piece, f"the browser ended; see {self._log.name}"
                self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """End it with all its processes."""
        os.close(self._writes)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._reads)
            self._log.close()


class Shown:
    """A page in the browser, as wide and as light as asked for."""

    def __init__(self, browser: Browser, path: Path, *, width: int, dark: bool) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._target, self._session = target, attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844 if phone else 900,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        browser.wait("Page.loadEventFired", self._session)

    def call(self, method: str, **params: object) -> Message:
        """Send a command to the page."""
        return self._browser.call(method, self._session, **params)

    def evaluate(self, script: str) -> object:
        """The value of an expression."""
        given = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in given, given
        return given["result"].get("value")

    def complaints(self) -> list[Message]:
        """Whatever the console was told: errors, warnings and messages."""
        told = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [e for e in self._events() if e["method"] in told]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, those that carry their data left out."""
        found = [
            e["params"]["request"]["url"]
            for e in self._events()
            if e["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in found if not address.startswith("data:")]

    def roles(self, *wanted: str) -> list[Message]:
        """What a screen reader finds, in the order of the page: name and properties."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node["role"]["value"],
                "name": node.get("name", {}).get("value", ""),
                **{p["name"]: p["value"].get("value") for p in node.get("properties", [])},
            }
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in wanted
        ]

    def screenshot(self, name: str) -> Path:
        """Write the whole page as a picture into test-results/screenshots, to be looked at."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path = PROJECT / "test-results" / "screenshots" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def close(self) -> None:
        """Leave the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)
        self._browser.events.clear()

    def _events(self) -> list[Message]:
        return [e for e in self._browser.events if e.get("sessionId") == self._session]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser; where there is none, what needs it is skipped."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    running = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Shown]]:
    """Open a page; it is left when the test is over."""
    opened: list[Shown] = []

    def open_page(path: Path, *, width: int, dark: bool = False) -> Shown:
        opened.append(Shown(browser, path, width=width, dark=dark))
        return opened[-1]

    yield open_page
    for page in opened:
        page.close()
