"""Fetching from files and from a server on this machine: bytes, or a Failure with its own code."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlbatch.fetch import Fetcher
from vlbatch.images import decode
from vlbatch.records import DecodedImage, Failure, ImageBytes, ImageRef, public_uri
from vlbatch.uris import clean_url, local_path

BODY = b"picture" * 1000


class Handler(BaseHTTPRequestHandler):
    """Answers by path; counts what was asked and keeps the headers."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        self.server.headers = dict(self.headers.items())
        name, _, argument = self.path.lstrip("/").partition("/")
        answer = getattr(self, f"answer_{name.partition('?')[0]}", self.answer_name)
        answer(argument)

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer_ok(self, argument: str) -> None:
        self.send(200, BODY, Set_Cookie="a=b")

    def answer_name(self, argument: str) -> None:
        self.send(200, self.path.encode())

    def answer_status(self, argument: str) -> None:
        self.send(int(argument))

    def answer_flaky(self, argument: str) -> None:
        first = self.server.asked[self.path] == 1
        self.send(503 if first else 200, BODY, Retry_After="0")

    def answer_wait(self, argument: str) -> None:
        self.send(429, Retry_After=argument)

    def answer_to(self, argument: str) -> None:
        self.send(302, Location=unquote(argument))

    def answer_short(self, argument: str) -> None:
        self.send(200, BODY, Content_Length=str(len(BODY) + 1))
        self.close_connection = True

    def answer_claims(self, argument: str) -> None:
        self.send(200, b"", Content_Length=str(50 << 30))
        self.close_connection = True

    def answer_endless(self, argument: str) -> None:
        self.send(200, b"", Connection="close", Content_Length="", Transfer_Encoding="chunked")
        try:
            while True:
                self.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            self.close_connection = True

    def answer_drip(self, argument: str) -> None:
        self.send(200, b"", Content_Length="100000")
        try:
            for _ in range(200):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            self.close_connection = True

    def answer_stall(self, argument: str) -> None:
        self.server.released.wait(5)
        self.close_connection = True

    def answer_gzip(self, argument: str) -> None:
        plain = bytes(100 << 20) if argument == "bomb" else BODY
        body = plain if argument == "lie" else gzip.compress(plain)
        self.send(200, body, Content_Encoding="gzip")

    def answer_chunks(self, argument: str) -> None:
        self.send(200, b"", Content_Length="", Transfer_Encoding="chunked")
        self.wfile.write(b"7\r\npicture\r\n" + (b"7\r\npic" if argument == "cut" else b"0\r\n\r\n"))
        self.close_connection = True

    def answer_close(self, argument: str) -> None:
        self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    fetcher = Fetcher(deadline=5, retries=1, max_body_bytes=1 << 20, max_file_bytes=1 << 20)
    yield fetcher
    fetcher.close()


def got(fetcher: Fetcher, uri: str, base: str | Path = "") -> bytes:
    outcome = fetcher.fetch(ImageRef(0, uri, uri, str(base)))
    assert isinstance(outcome, ImageBytes), outcome
    return outcome.data


def failed(fetcher: Fetcher, uri: str, base: str | Path = "") -> Failure:
    outcome = fetcher.fetch(ImageRef(0, uri, uri, str(base)))
    assert isinstance(outcome, Failure), outcome
    assert outcome.stage == "fetch"
    return outcome


def test_local_file(fetcher: Fetcher, tmp_path: Path) -> None:
    path = tmp_path / "100% [a].jpg"
    path.write_bytes(BODY)
    assert got(fetcher, str(path)) == BODY
    assert got(fetcher, path.name, tmp_path) == BODY


def test_path_as_given_comes_before_base(
    fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "a.jpg").write_bytes(b"here")
    (tmp_path / "lists" / "a.jpg").write_bytes(b"there")
    (tmp_path / "lists" / "b.jpg").write_bytes(b"b")
    monkeypatch.chdir(tmp_path)
    assert got(fetcher, "a.jpg", "lists") == b"here"
    assert got(fetcher, "b.jpg", "lists") == b"b"


@pytest.mark.parametrize(
    "name", [b"plain.jpg", b"caf\xe9.jpg", b"100%.jpg", b"%41?#&.jpg", b"\n.jpg"]
)
def test_public_uri_opens_the_same_file(
    fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    path = os.fsdecode(name)
    Path(path).write_bytes(name)
    for uri in (path, f"{tmp_path}/{path}"):
        assert got(fetcher, public_uri(uri)) == name


def test_file_uris(tmp_path: Path) -> None:
    assert local_path("file:///a/b%20c.jpg") == "/a/b c.jpg"
    assert local_path("FILE://localhost/a.jpg") == "/a.jpg"
    assert local_path("file:photos/%FF.jpg") == os.fsdecode(b"photos/\xff.jpg")
    assert local_path("100%25.jpg") == "100%25.jpg"
    with pytest.raises(ValueError, match="host"):
        local_path("file://elsewhere/a.jpg")


def test_file_without_usable_bytes(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "dangling.jpg").symlink_to("nowhere.jpg")
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(3 << 30)
    for name, code in {
        "empty.jpg": "empty",
        "loop.jpg": "not_found",
        "dangling.jpg": "not_found",
        "nowhere/x.jpg": "not_found",
        "empty.jpg/x.jpg": "not_found",
        "huge.jpg": "too_large",
        "": "is_a_directory",
        "a\0b.jpg": "invalid_path",
        "x" * 5000: "not_found",
    }.items():
        assert failed(fetcher, f"{tmp_path}/{name}").code == code, name
    assert failed(fetcher, "file:a%00b.jpg").code == "invalid_path"
    assert failed(fetcher, "\ud800.jpg").code == "invalid_path"
    assert failed(fetcher, "").code == "not_found"


def test_what_is_no_file_is_never_waited_for(fetcher: Fetcher, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert failed(fetcher, str(tmp_path / "pipe.jpg")).code == "not_a_file"
    assert failed(fetcher, "/dev/null").code == "not_a_file"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert failed(fetcher, str(tmp_path / "s")).code == "not_a_file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_forbidden_file(fetcher: Fetcher, tmp_path: Path) -> None:
    path = tmp_path / "secret.jpg"
    path.write_bytes(BODY)
    path.chmod(0)
    assert failed(fetcher, str(path)).code == "forbidden"


def test_files_that_tell_no_size(fetcher: Fetcher) -> None:
    assert got(fetcher, "/proc/self/status").startswith(b"Name:")


@pytest.mark.parametrize(
    "uri", ["ftp://h/a.jpg", "javascript:1", "data:image/png;base64,AA", "s3://b/k"]
)
def test_other_schemes(fetcher: Fetcher, uri: str) -> None:
    assert failed(fetcher, uri).code == "unsupported_scheme"


def test_a_file_with_a_colon_is_a_file(
    fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("http:__no_url.jpg").write_bytes(BODY)
    assert got(fetcher, "http:__no_url.jpg") == BODY


def test_no_file_stays_open(fetcher: Fetcher, tmp_path: Path) -> None:
    """B13: pictures decoded lazily keep their files open; ours hold none."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "GIF")
    for n in range(300):
        (tmp_path / f"{n}.gif").write_bytes(buffer.getvalue())
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for n in range(300):
        item = fetcher.fetch(ImageRef(n, str(n), str(tmp_path / f"{n}.gif")))
        assert isinstance(item, ImageBytes)
        held.append(decode(item))
    assert all(isinstance(outcome, DecodedImage) for outcome in held)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_http(fetcher: Fetcher, server: Server) -> None:
    assert got(fetcher, server.url + "/ok") == BODY
    assert server.headers["User-Agent"].startswith("vlbatch/")
    assert "python-requests" not in server.headers["User-Agent"]
    assert got(fetcher, server.url + "/ok") == BODY
    assert "Cookie" not in server.headers


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (404, "not_found", 1), (410, "not_found", 1), (401, "forbidden", 1), (403, "forbidden", 1),
        (451, "forbidden", 1), (429, "rate_limited", 2), (400, "http", 1), (418, "http", 1),
        (500, "http", 2), (503, "http", 2), (304, "redirect", 1),
    ],
)  # fmt: skip
def test_status(fetcher: Fetcher, server: Server, status: int, code: str, tries: int) -> None:
    failure = failed(fetcher, f"{server.url}/status/{status}")
    assert (failure.code, failure.detail) == (code, {"status": status})
    assert server.asked[f"/status/{status}"] == tries


def test_retry_succeeds(fetcher: Fetcher, server: Server) -> None:
    assert got(fetcher, server.url + "/flaky") == BODY


@pytest.mark.parametrize("wait", ["86400", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_long_waits_are_not_waited_for(fetcher: Fetcher, server: Server, wait: str) -> None:
    start = time.monotonic()
    assert failed(fetcher, f"{server.url}/wait/{wait.replace(' ', '%20')}").code == "rate_limited"
    if wait == "86400":
        assert time.monotonic() - start < 1


def test_redirects(fetcher: Fetcher, server: Server) -> None:
    assert got(fetcher, f"{server.url}/to/%2Fok") == BODY
    for target in ("/to/loop", "file:%2F%2F%2Fetc%2Fhostname", "http:%2F%2F[bad", "data:,x"):
        url = f"{server.url}/to/{target}" if target != "/to/loop" else f"{server.url}/to/%2Fto%2F"
        assert failed(fetcher, url).code == "redirect", target
    assert server.asked.total() < 30


def test_bodies(fetcher: Fetcher, server: Server) -> None:
    assert got(fetcher, server.url + "/gzip/ok") == BODY
    assert got(fetcher, server.url + "/chunks/ok") == b"picture"
    for path, code in {
        "/short": "truncated",
        "/chunks/cut": "truncated",
        "/gzip/lie": "truncated",
        "/claims": "too_large",
        "/endless": "too_large",
        "/gzip/bomb": "too_large",
        "/status/200": "empty",
        "/close": "connection",
    }.items():
        assert failed(fetcher, server.url + path).code == code, path


def test_deadline_ends_drip_and_silence(server: Server) -> None:
    fetcher = Fetcher(deadline=0.4)
    for path in ("/drip", "/stall"):
        start = time.monotonic()
        assert failed(fetcher, server.url + path).code == "timeout"
        assert time.monotonic() - start < 2
    fetcher.close()


def test_no_server_and_no_host(fetcher: Fetcher) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x.jpg"
        assert failed(fetcher, url).code == "connection"
    assert failed(fetcher, "http://no-such-host.invalid/x.jpg").code == "dns"


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:/x",
        "http:///x",
        "http://host:99999/",
        "http://[::1",
        "http://a..b/",
        "http://\ud800/",
    ],
)
def test_invalid_urls(fetcher: Fetcher, url: str) -> None:
    assert failed(fetcher, url).code == "invalid_url"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (" /naïve.png\r\n", "/na%C3%AFve.png"),
        ("/a b.png", "/a%20b.png"),
        ("/na%C3%AFve.png", "/na%C3%AFve.png"),
        ("/100%25.png", "/100%25.png"),
        ("/a%2Fb.png?x=1&y=%20z w#part", "/a%2Fb.png?x=1&y=%20z%20w"),
        ("/\udcff.png", "/%FF.png"),
    ],
)
def test_url_is_escaped_once(fetcher: Fetcher, server: Server, given: str, asked: str) -> None:
    """B14."""
    uri = " " + server.url + given.strip(" ")
    assert got(fetcher, uri).decode() == asked


@given(st.text())
def test_cleaning_a_url_twice_changes_nothing(rest: str) -> None:
    try:
        once = clean_url("http://host/" + rest)
    except ValueError:
        return
    assert clean_url(once) == once
    assert once.isascii()
    assert not set(once) & set(" \t\r\n#")


def test_password_is_sent_but_never_told(fetcher: Fetcher, server: Server) -> None:
    url = server.url.replace("//", "//user:s3cr3t@")
    assert got(fetcher, url + "/ok") == BODY
    assert server.headers["Authorization"].startswith("Basic ")
    for path in ("/status/404", "/close", "/to/http:%2F%2F[bad", "/short"):
        assert "s3cr3t" not in failed(fetcher, url + path).message
    assert clean_url("http://u:p@h/a#b") == "http://u:p@h/a"


def test_one_fetcher_serves_many_threads(fetcher: Fetcher, server: Server) -> None:
    urls = [f"{server.url}/n{n}" for n in range(200)]
    with ThreadPoolExecutor(16) as pool:
        bodies = list(pool.map(lambda url: got(fetcher, url), urls))
    assert bodies == [f"/n{n}".encode() for n in range(200)]


def raw_server(answer: Callable[[socket.socket], None]) -> tuple[str, socket.socket]:
    """A server that reads a request and then does what it is told, once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                answer(peer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/a.png", listener


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(piece)
            time.sleep(0.1)

    return answer


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"T: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x"),
    ],
)
def test_a_server_that_drips_ends_at_the_deadline(start: bytes, piece: bytes) -> None:
    """img2dataset#437: the limit must hold for headers, chunks and trailers as for the body."""
    url, listener = raw_server(drip(start, piece))
    begun = time.monotonic()
    with listener:
        outcome = Fetcher(deadline=1.0, retries=0).fetch(ImageRef(0, url, url))
    assert isinstance(outcome, Failure)
    assert outcome.code == "timeout"
    assert 0.9 < time.monotonic() - begun < 3


def test_the_endless_body_of_a_redirect_is_not_read() -> None:
    def flood(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 302 Found\r\nLocation: ftp://elsewhere/\r\n\r\n")
        while True:
            peer.sendall(b"x" * 65536)

    url, listener = raw_server(flood)
    begun = time.monotonic()
    with listener:
        outcome = Fetcher(deadline=20.0, retries=0).fetch(ImageRef(0, url, url))
    assert isinstance(outcome, Failure)
    assert outcome.code == "redirect"
    assert time.monotonic() - begun < 5
