"""The server of results: parts of files, from any origin, and nothing but the results."""

import os
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, IncompleteRead
from urllib.parse import urlsplit

import pytest
from refusals import refused

from octane.core.errors import InputError
from octane.tools.view.server import MOST_CONNECTIONS, ResultsServer, byte_range


@pytest.fixture
def folder(tmp_path):
    """A store that links to itself and out of itself, next to a secret, and a link to the store."""
    store = tmp_path / "work" / "a.ome.zarr"
    (store / "0").mkdir(parents=True)
    (store / "zarr.json").write_bytes(b"0123456789")
    (store / "0" / "same").symlink_to("../zarr.json")
    (store / "out").symlink_to(tmp_path / "work" / "secret")
    (store / "up").symlink_to("..")
    os.mkfifo(store / "fifo")
    (tmp_path / "work" / "secret").write_text("secret")
    (tmp_path / "work" / "a.ome.zarr.txt").write_text("secret")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.ome.zarr").symlink_to(store)
    (tmp_path / "s" / "s report.html").write_text("<p>")
    return tmp_path / "s"


@pytest.fixture
def server(folder):
    """A server of the store and the report, which runs during the test."""
    results = {f"s/{name}": folder / name for name in ("a.ome.zarr", "s report.html")}
    with ResultsServer(results) as made:
        made.redirects["s"] = "https://example.org/#!%7B%7D"
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """Send one request, by default for a name below the token; return the response and its body."""

    def send(name, method="GET", *, path=None, **headers):
        own = urlsplit(server.address("")).path
        with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=20)) as connection:
            connection.request(method, own + name if path is None else path, headers=headers)
            response = connection.getresponse()
            return response, response.read()

    return send


def test_files_are_sent_entirely_or_in_part(ask):
    whole, body = ask("s/a.ome.zarr/zarr.json")
    assert (whole.status, body) == (200, b"0123456789")
    assert whole.headers["Content-Type"] == "application/json"
    for asked, status, part, stated in (
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=1-2,4-5", 200, body, None),
    ):
        response, found = ask("s/a.ome.zarr/zarr.json", Range=asked)
        shown = response.status, found, response.headers["Content-Range"]
        assert shown == (status, part, stated), asked
    head, nothing = ask("s/a.ome.zarr/zarr.json", "HEAD", Range="bytes=2-4")
    assert (head.status, head.headers["Content-Length"], nothing) == (206, "3", b"")
    report, _ = ask("s/s%20report.html?x=1")
    assert (report.status, report.headers["Content-Type"]) == (200, "text/html")


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("", None),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("lines=1-2", None),
        ("bytes=" + 5000 * "9" + "-", None),
        ("bytes=-0", range(10, 10)),
        ("bytes=-99", range(10)),
        ("bytes=0-0", range(1)),
    ],
)
def test_a_range_is_read_or_ignored(header, part):
    assert byte_range(header, 10) == part


def test_viewers_from_any_origin_may_read_even_what_is_missing(ask):
    for response, _ in (
        ask("s/a.ome.zarr/zarr.json", Origin="https://example.org"),
        ask("s/a.ome.zarr/0/c/0/0/0", Origin="https://example.org"),
        ask("", "OPTIONS", Origin="https://example.org"),
    ):
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert response.headers["Access-Control-Allow-Headers"] == "Range"
    assert ask("", "OPTIONS")[0].status == 204
    assert ask("s/a.ome.zarr/0/c/0/0/0")[0].status == 404
    assert ask("s/a.ome.zarr/zarr.json/c")[0].status == 404


def test_a_short_address_leads_to_the_viewer(ask):
    response, _ = ask("s")
    assert response.status == 302
    assert response.headers["Location"] == "https://example.org/#!%7B%7D"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_can_be_written(ask, folder, method):
    assert ask("s/a.ome.zarr/zarr.json", method)[0].status == 501
    assert (folder / "a.ome.zarr" / "zarr.json").read_bytes() == b"0123456789"


def test_only_results_are_served_and_only_with_the_token(ask, server):
    token = urlsplit(server.address("")).path.strip("/")
    assert ask("s/a.ome.zarr/0/same")[1] == b"0123456789"
    for name in (
        *("", "s/", "s/a.ome.zarr", "s/a.ome.zarr/", "s/a.ome.zarr/0", "s/a.ome.zarr.txt"),
        *("s/a.ome.zarr/../secret", "s/a.ome.zarr/%2e%2e/secret", "s/a.ome.zarr/..%2fsecret"),
        *("s/a.ome.zarr/out", "s/a.ome.zarr/up/secret", "s/a.ome.zarr/fifo"),
        *("s/a.ome.zarr//etc/passwd", "s/a.ome.zarr/%2fetc%2fpasswd", "s/a.ome.zarr/%00"),
        *("s/../s/a.ome.zarr/zarr.json", "etc/passwd", "../etc/passwd", "%ff"),
    ):
        assert (ask(name)[0].status, ask(name)[1]) == (404, b""), name
    for path in (
        *("/", "/s/a.ome.zarr/zarr.json", f"/{token[:-1]}/s/a.ome.zarr/zarr.json", "//[x/s"),
        *(f"/{token}x/s/a.ome.zarr/zarr.json", "/%ff/s/a.ome.zarr/zarr.json", f"/x/{token}/s"),
    ):
        assert ask("", path=path)[0].status == 404, path


def test_a_file_that_cannot_be_read_is_not_called_missing(ask, denied, caplog):
    # Viewers show missing chunks as empty.
    with denied(os, "open", "zarr.json"):
        assert ask("s/a.ome.zarr/zarr.json")[0].status == 500
    assert "zarr.json cannot be read (Permission denied)" in caplog.text


def test_a_shard_larger_than_the_memory_is_sent_in_part_and_may_be_left(ask, server, folder):
    with (folder / "a.ome.zarr" / "shard").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(-4, os.SEEK_END)
        file.write(b"last")
    response, body = ask("s/a.ome.zarr/shard", Range="bytes=-6")
    assert (response.status, body) == (206, b"\0\0last")
    head, _ = ask("s/a.ome.zarr/shard", "HEAD")
    assert head.headers["Content-Length"] == str(1 << 40)
    # The viewer hangs up in the middle: the server goes on.
    own = urlsplit(server.address("s/a.ome.zarr/shard")).path
    with socket.create_connection(("127.0.0.1", server.server_port)) as viewer:
        viewer.sendall(f"GET {own} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert viewer.recv(12) == b"HTTP/1.1 200"
    assert ask("s/a.ome.zarr/zarr.json")[0].status == 200


def test_one_connection_carries_many_requests(server):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    own = urlsplit(server.address("")).path
    first = None
    for name, status in (("s/a.ome.zarr/zarr.json", 200), ("s/none", 404), ("s", 302)) * 2:
        connection.request("GET", own + name)
        response = connection.getresponse()
        response.read()
        assert response.status == status
        first = first or connection.sock
        assert connection.sock is first
    connection.close()


@contextmanager
def connections(server, count):
    """Open connections that ask for nothing."""
    with ExitStack() as stack:
        place = "127.0.0.1", server.server_port
        yield [
            stack.enter_context(socket.create_connection(place, timeout=20)) for _ in range(count)
        ]


@pytest.mark.parametrize(
    "asked",
    [
        b"GET /",
        pytest.param(b"", marks=pytest.mark.soak),
        pytest.param(b"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n", marks=pytest.mark.soak),
    ],
)
def test_idle_connections_of_others_do_not_lock_the_owner_out(server, ask, asked):
    before = threading.active_count()
    own = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    name = urlsplit(server.address("s/a.ome.zarr/zarr.json")).path
    own.request("GET", name)
    assert own.getresponse().read() == b"0123456789"
    with connections(server, 3 * MOST_CONNECTIONS) as idle:
        for one in idle:
            one.sendall(asked)
        # The owner's connection is kept, and others can be opened.
        mine = own.sock
        for _ in range(3):
            assert ask("s/a.ome.zarr/zarr.json")[1] == b"0123456789"
            own.request("GET", name)
            assert own.getresponse().read() == b"0123456789"
        assert own.sock is mine
        deadline = time.monotonic() + 20
        while threading.active_count() > before + MOST_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before + MOST_CONNECTIONS
    own.close()


def test_a_connection_that_is_answered_is_not_closed_for_another(server, ask, folder):
    with (folder / "a.ome.zarr" / "shard").open("wb") as file:
        file.truncate(1 << 40)
    own = urlsplit(server.address("s/a.ome.zarr/shard")).path
    with connections(server, MOST_CONNECTIONS) as viewers:
        for viewer in viewers:
            viewer.sendall(f"GET {own} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert viewer.recv(12) == b"HTTP/1.1 200"
        with refused(error=OSError):
            ask("s/a.ome.zarr/zarr.json")
        assert all(viewer.recv(9) for viewer in viewers)


@pytest.mark.parametrize("asked", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_a_connection_that_asks_for_nothing_is_closed(server, monkeypatch, asked):
    monkeypatch.setattr("octane.tools.view.server._Handler.timeout", 0.2)
    with connections(server, 1) as (one,):
        one.sendall(asked)
        assert one.recv(1) == b""


def test_without_the_token_a_connection_is_closed(server):
    with connections(server, 1) as (one,):
        one.sendall(b"GET /x/y HTTP/1.1\r\nHost: x\r\n\r\n")
        with one.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 404")


def test_a_file_that_becomes_shorter_closes_the_connection(ask, monkeypatch, folder):
    size = os.fstat

    def longer(descriptor):
        state = size(descriptor)
        return os.stat_result((*state[:6], state.st_size + 5, *state[7:10]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", longer)
        with pytest.raises(IncompleteRead) as caught:
            ask("s/a.ome.zarr/zarr.json")
    assert caught.value.partial == b"0123456789"


def test_a_port_in_use_is_named(server):
    with refused(server.server_port, "--port", error=InputError):
        ResultsServer({}, server.server_port)


def test_each_server_has_an_address_of_its_own_on_this_machine():
    with ResultsServer({}) as one, ResultsServer({}) as other:
        assert one.server_address[0] == other.server_address[0] == "127.0.0.1"
        assert urlsplit(one.root).path != urlsplit(other.root).path
