"""ImageRef → its bytes, or why there are none: local files and http(s).

Every input ends: a file is never waited for, a transfer is bounded in bytes and has a deadline.
"""

from __future__ import annotations

import errno
import http.client
import os
import random
import re
import stat
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3

from vlbatch import __version__
from vlbatch.connections import cut_off, watched_session
from vlbatch.records import Failure, ImageBytes, ImageRef, is_url
from vlbatch.uris import clean_url, local_path

MAX_FILE_BYTES = 512 << 20
MAX_BODY_BYTES = 64 << 20
USER_AGENT = f"vlbatch/{__version__} (+image captioning in bulk)"

#: Seconds for connecting, and between two reads.
_SOCKET_TIMEOUT = 10.0
_MAX_REDIRECTS = 10
#: The longest wait that a server may ask for, in seconds.
_MAX_RETRY_AFTER = 30.0
_CHUNK = 1 << 16
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

_STATUS_CODES = {404: "not_found", 410: "not_found", 401: "forbidden", 403: "forbidden"}
_STATUS_CODES |= {451: "forbidden", 429: "rate_limited"}
_RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
_RETRIED_CODES = frozenset({"connection", "truncated"})

_ERRNO_CODES = {
    errno.ENOENT: "not_found", errno.ENOTDIR: "not_found", errno.ELOOP: "not_found",
    errno.ENAMETOOLONG: "not_found", errno.EACCES: "forbidden", errno.EPERM: "forbidden",
    errno.EISDIR: "is_a_directory", errno.ENXIO: "not_a_file", errno.ENODEV: "not_a_file",
}  # fmt: skip


class FetchError(Exception):
    """Ends one attempt; `retry_after` is what the server asked for, in seconds."""

    def __init__(self, code: str, message: str, status: int = 0, retry_after: float = -1) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.worth_retrying = status in _RETRIED_STATUSES or code in _RETRIED_CODES


class Fetcher:
    """Gets the bytes of refs; one is shared by all threads, each with connections of its own.

    deadline: seconds for one input over http(s), all attempts and waits together.
    retries: further attempts after a failure that may pass (429, 5xx, broken connections).
    """

    def __init__(
        self, *, deadline: float = 60.0, retries: int = 3, max_body_bytes: int = MAX_BODY_BYTES,
        max_file_bytes: int = MAX_FILE_BYTES, user_agent: str = USER_AGENT,
    ) -> None:  # fmt: skip
        self._deadline = deadline
        self._retries = retries
        self._max_body_bytes = max_body_bytes
        self._max_file_bytes = max_file_bytes
        self._user_agent = user_agent
        self._local = threading.local()
        self._sessions: list[requests.Session] = []
        self._lock = threading.Lock()

    def fetch(self, ref: ImageRef) -> ImageBytes | Failure:
        """The bytes of `ref`, or a Failure of stage `fetch`; never raises for a bad input."""
        try:
            data = self._remote(ref.uri.strip()) if is_url(ref.uri.strip()) else self._file(ref)
            if not data:
                raise FetchError("empty", "no bytes")
        except FetchError as error:
            detail = {"status": error.status} if error.status else {}
            return Failure(ref, "fetch", error.code, str(error), detail=detail)
        return ImageBytes(ref, data)

    def close(self) -> None:
        """Closes the connections of all threads."""
        with self._lock:
            for session in self._sessions:
                session.close()
            self._sessions.clear()
            self._local = threading.local()

    def _file(self, ref: ImageRef) -> bytes:
        try:
            path = local_path(ref.uri)
        except ValueError as error:
            raise FetchError("invalid_url", str(error)) from error
        paths = [path]
        if ref.base and not os.path.isabs(path):
            paths.append(f"{ref.base}/{path}")
        for candidate in paths:
            try:
                return read_file(candidate, self._max_file_bytes)
            except FetchError as error:
                failure = error
                if error.code != "not_found":
                    break
        raise (failure.code == "not_found" and _other_scheme(ref.uri)) or failure

    def _remote(self, url: str) -> bytes:
        try:
            url = clean_url(url)
        except ValueError as error:
            raise FetchError("invalid_url", str(error)) from error
        end = time.monotonic() + self._deadline
        for attempt in range(self._retries + 1):
            try:
                return self._attempt(url, end)
            except FetchError as error:
                backoff = 0.5 * 2**attempt + random.uniform(0, 0.5)
                wait = backoff if error.retry_after < 0 else error.retry_after
                late = time.monotonic() + wait >= end or wait > _MAX_RETRY_AFTER
                if not error.worth_retrying or attempt == self._retries or late:
                    raise
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str, end: float) -> bytes:
        data = b""
        with cut_off(end - time.monotonic()) as watch:
            try:
                with self._get(url) as response:
                    _check_status(response)
                    data = self._body(response)
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                if not watch.is_cut:
                    code, message = _explain(error)
                    raise FetchError(code, message) from error
            if watch.is_cut:
                raise FetchError("timeout", f"not finished within {self._deadline:g} s")
            return data

    def _get(self, url: str) -> requests.Response:
        """The response at the end of the redirects.

        The adapter is asked, since a session reads the bodies on the way, and some never end.
        """
        session = self._session()
        request = session.prepare_request(requests.Request("GET", url))
        for _ in range(_MAX_REDIRECTS + 1):
            here = request.url or ""
            settings: Any = session.merge_environment_settings(here, {}, True, None, None)
            response = session.get_adapter(here).send(request, timeout=_SOCKET_TIMEOUT, **settings)
            target = session.get_redirect_target(response)
            if target is None:
                return response
            response.close()
            request = request.copy()
            request.url = _redirected(here, target)
            session.rebuild_auth(request, response)  # type: ignore[no-untyped-call]
        raise requests.TooManyRedirects

    def _body(self, response: requests.Response) -> bytes:
        """The decoded body."""
        limit = self._max_body_bytes
        too_large = FetchError("too_large", f"the body is over {limit} bytes")
        if _number(response.headers.get("Content-Length", "")) > limit:
            raise too_large
        data = bytearray()
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            data += chunk
            if len(data) > limit:
                raise too_large
        return bytes(data)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = watched_session(self._user_agent, num_hosts=8)
            with self._lock:
                self._sessions.append(session)
        return session


def read_file(path: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; opening never waits (a FIFO would)."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            _check_regular(status, limit)
            data = file.read(status.st_size + 1)
            if len(data) > status.st_size:  # it grew, or is one of those that tell no size
                data += file.read(limit + 1 - len(data))
    except OSError as error:
        code = _ERRNO_CODES.get(error.errno or 0, "io_error")
        raise FetchError(code, (error.strerror or "can't be read").lower()) from error
    except ValueError as error:
        raise FetchError("invalid_path", "no file can have this name") from error
    if len(data) > limit:
        raise FetchError("too_large", f"the file is over {limit} bytes")
    return data


def _check_regular(status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FetchError("is_a_directory", "this is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise FetchError("not_a_file", "not a regular file")
    if status.st_size > limit:
        raise FetchError("too_large", f"the file is over {limit} bytes")


def _other_scheme(uri: str) -> FetchError | None:
    """The error of a URI that is neither a path nor a valid `file:` or http(s) URI."""
    match = _SCHEME.match(uri)
    scheme = match[0].lower() if match else "file:"
    if scheme == "file:":
        return None
    if scheme in ("http:", "https:"):
        return FetchError("invalid_url", "not a valid URL")
    return FetchError("unsupported_scheme", f"{scheme} can't be fetched")


def _redirected(url: str, target: str) -> str:
    """Where a Location leads from `url`. Raises FetchError unless that is an http(s) URL."""
    try:
        there = urljoin(url, target)
        if is_url(there):
            return clean_url(there)
    except ValueError as error:
        raise FetchError("redirect", "the server redirects to an invalid URL") from error
    raise FetchError("redirect", "redirected to what is not http(s)")


def _check_status(response: requests.Response) -> None:
    status = response.status_code
    if status < 300:
        return
    code = "redirect" if status < 400 else _STATUS_CODES.get(status, "http")
    wait = _retry_after(response.headers.get("Retry-After", ""))
    raise FetchError(code, f"the server answers {status}", status, wait)


def _retry_after(value: str) -> float:
    """Seconds to wait that a Retry-After header asks for; -1 if it says nothing sensible."""
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return _number(value)


def _number(value: str) -> float:
    """What a header of digits says; -1 for anything else."""
    return float(value) if value.isascii() and value.isdigit() else -1.0


#: What a failed request is called: the first that is among its causes.
_CAUSES: tuple[tuple[type[BaseException], str, str], ...] = (
    (urllib3.exceptions.NameResolutionError, "dns", "the host name can't be resolved"),
    (urllib3.exceptions.SSLError, "tls", "no secure connection: certificate or protocol"),
    (requests.TooManyRedirects, "redirect", f"over {_MAX_REDIRECTS} redirects"),
    (requests.exceptions.InvalidSchema, "redirect", "redirected to what is not http(s)"),
    (requests.exceptions.InvalidURL, "invalid_url", "not a valid URL"),
    (urllib3.exceptions.LocationValueError, "invalid_url", "not a valid URL"),
    (urllib3.exceptions.NewConnectionError, "connection", "the connection is refused"),
    (urllib3.exceptions.TimeoutError, "timeout", "the server does not answer in time"),
    (TimeoutError, "timeout", "the server does not answer in time"),
    (http.client.IncompleteRead, "truncated", "the body breaks off"),
    (urllib3.exceptions.DecodeError, "truncated", "the body's compression is broken"),
)


def _explain(error: BaseException) -> tuple[str, str]:
    """Code and message of a failed request; what the libraries say may hold the URL's password."""
    chain: list[BaseException] = []
    queue: list[Any] = [error]
    while queue and len(chain) < 16:
        cause = queue.pop(0)
        if isinstance(cause, BaseException) and cause not in chain:
            chain.append(cause)
            queue += [cause.__cause__, cause.__context__, getattr(cause, "reason", None)]
            queue += cause.args
    for kind, code, message in _CAUSES:
        if any(isinstance(cause, kind) for cause in chain):
            return code, message
    return "connection", "the connection fails or breaks off"
