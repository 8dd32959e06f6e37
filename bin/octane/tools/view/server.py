"""Results served on 127.0.0.1 to viewers in a browser, which read them in parts."""

import errno
import logging
import os
import re
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from pathlib import Path
from socket import SHUT_RDWR, socket
from socketserver import BaseServer
from threading import RLock
from urllib.parse import quote, unquote

from octane.core.errors import InputError
from octane.core.files import IrregularFileError, open_regular

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
IDLE_SECONDS = 30
"""Seconds after which a connection is closed that neither asks nor reads on; viewers open another
one when they need it."""
MOST_CONNECTIONS = 64
"""Most connections at once: a browser opens six for each viewer. Each takes a thread and up to
three open files, of which some systems allow a process 256."""
NEW, KNOWN, BUSY = range(3)
"""Connections that never gave the token, that gave it and wait, and that are being answered."""
RANGE_HEADER = re.compile("bytes=([0-9]{0,18})-([0-9]{0,18})")
"""One range of bytes: from, to, or the last ones."""
HEADERS = {
    "Accept-Ranges": "bytes",
    # Viewers come from another origin. The token keeps other pages out.
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Range",
    "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS",
    "Access-Control-Expose-Headers": "Accept-Ranges, Content-Length, Content-Range",
    # A later run may replace a result.
    "Cache-Control": "no-store",
    # Links in a report would pass the token on.
    "Referrer-Policy": "no-referrer",
}
"""Headers of every response, errors included: without them, viewers cannot tell a 404."""


class ResultsServer(ThreadingHTTPServer):
    """Server of some results and nothing else, at an address with a secret token.

    Of too many connections, one that waits is closed, those without the token first.

    Parameters
    ----------
    results
        Files and folders by their names in addresses. Links to and within them are followed, but
        not out of a folder.
    port
        0 for a free one.

    Raises
    ------
    InputError
        If the port cannot be opened.
    """

    # Of more that arrive at once, the system would have viewers try again after a second.
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, results: Mapping[str, Path], port: int = 0) -> None:
        self.redirects: dict[str, str] = {}
        """Addresses of other servers, by the names under which they are given."""
        token = secrets.token_urlsafe(16)
        real = {name: path.resolve() for name, path in results.items()}
        self._states: dict[socket, int] = {}
        self._lock = RLock()
        handler = partial(
            _Handler, token, partial(_find, real), self.redirects.get, self._answering
        )
        with name_port_errors(port):
            super().__init__((HOST, port), handler)
        self.root = f"http://{HOST}:{self.server_port}/{token}"
        """Address of all results."""

    def process_request(
        self, request: socket | tuple[bytes, socket], client_address: tuple[str, int]
    ) -> None:
        """Answer a connection in a thread of its own, and close another one if there are many."""
        assert isinstance(request, socket)
        with self._lock:
            if len(self._states) >= MOST_CONNECTIONS:
                # The oldest of those that matter least.
                first = min(self._states, key=self._states.__getitem__)
                if self._states[first] == BUSY:
                    self.shutdown_request(request)
                    return
                del self._states[first]
                with suppress(OSError):
                    # Its thread ends as it reads on.
                    first.shutdown(SHUT_RDWR)
            self._states[request] = NEW
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket | tuple[bytes, socket]) -> None:
        """Close a connection."""
        assert isinstance(request, socket)
        with self._lock:
            self._states.pop(request, None)
        super().shutdown_request(request)

    @contextmanager
    def _answering(self, request: socket) -> Generator[None]:
        """Keep a connection open within a block."""
        with self._lock:
            self._states.update({request: BUSY} if request in self._states else {})
        yield
        with self._lock:
            self._states.update({request: KNOWN} if request in self._states else {})

    def address(self, name: str) -> str:
        """Address of a result, of a file in it, or of a redirect."""
        return f"{self.root}/{quote(name)}"


@contextmanager
def name_port_errors(port: int) -> Generator[None]:
    """Turn the system's errors on opening a port into an InputError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise InputError(
            f"Port {port} cannot be opened ({error.strerror}); give another --port."
        ) from error


def byte_range(header: str, size: int) -> range | None:
    """Bytes of a file of ``size`` that a Range header asks for; None if it does not ask for one.

    Several ranges and invalid ones count as none, as HTTP allows. An empty range lies outside the
    file.
    """
    match = RANGE_HEADER.fullmatch(header)
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size) if last else size)


def _find(results: Mapping[str, Path], name: str) -> Path | None:
    """Path of a served file by its name; None for any other, also if a link leads to it."""
    for result, path in results.items():
        if name == result:
            return path
        if name.startswith(f"{result}/") and "\0" not in name:
            # Path.resolve would raise for a link to itself.
            real = Path(os.path.realpath(path / name.removeprefix(f"{result}/")))
            if real.is_relative_to(path):
                return real
    return None


class _Handler(BaseHTTPRequestHandler):
    """One connection: GET, HEAD and OPTIONS; http.server refuses other methods."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def __init__(
        self,
        token: str,
        find: Callable[[str], Path | None],
        redirect: Callable[[str], str | None],
        answering: Callable[[socket], AbstractContextManager[None]],
        request: socket,
        client: tuple[str, int],
        server: BaseServer,
    ) -> None:
        self._token, self._find, self._redirect = token, find, redirect
        self._answering = answering
        super().__init__(request, client, server)

    def handle(self) -> None:
        """Answer requests until the viewer closes the connection, maybe in the middle of one."""
        with suppress(ConnectionError):
            super().handle()

    def end_headers(self) -> None:
        """Add the headers that every response has."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *values: object) -> None:
        """Do not list the requests."""

    def do_OPTIONS(self) -> None:
        """Allow requests with a range from any origin."""
        self._answer(HTTPStatus.NO_CONTENT)

    def do_HEAD(self) -> None:
        """Answer as GET does, without content."""
        self.do_GET()

    def do_GET(self) -> None:
        """Send a file or a part of it, or redirect."""
        token, _, name = unquote(self.path.partition("?")[0]).removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            self._answer(HTTPStatus.NOT_FOUND, {"Connection": "close"})
            return
        with self._answering(self.connection):
            self._find_and_send(name)

    def _find_and_send(self, name: str) -> None:
        if address := self._redirect(name):
            self._answer(HTTPStatus.FOUND, {"Location": address})
        elif path := self._find(name):
            self._send(path)
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _send(self, path: Path) -> None:
        try:
            file = os.fdopen(open_regular(path), "rb")
        except (FileNotFoundError, NotADirectoryError, IrregularFileError):
            self._answer(HTTPStatus.NOT_FOUND)
            return
        except OSError as error:
            # Not 404: viewers show a missing chunk as empty.
            logger.warning("%s cannot be read (%s)", path, error.strerror)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            part = byte_range(self.headers.get("Range", ""), size)
            if part is None:
                part, status, headers = range(size), HTTPStatus.OK, {}
            elif part:
                status = HTTPStatus.PARTIAL_CONTENT
                headers = {"Content-Range": f"bytes {part[0]}-{part[-1]}/{size}"}
            else:
                status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                headers = {"Content-Range": f"bytes */{size}"}
            headers["Content-Type"] = guess_type(path)[0] or "application/octet-stream"
            self._answer(status, headers, len(part))
            if part and self.command == "GET":
                # By the kernel: a shard may be larger than the memory.
                sent = self.connection.sendfile(file, part[0], len(part))
                # The viewer would wait for the rest of a file that has become shorter.
                self.close_connection |= sent < len(part)

    def _answer(
        self, status: HTTPStatus, headers: Mapping[str, str] | None = None, length: int = 0
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(length))
        self.end_headers()
