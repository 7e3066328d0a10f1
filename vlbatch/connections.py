"""HTTP connections that end at a deadline, whatever they are doing then.

Timeouts of sockets alone never end a server that sends a byte now and then: in its headers, between
chunks, in trailers. Here a timer shuts the socket, which wakes whoever reads from it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_current = threading.local()


class Watch:
    """The sockets of one thread's requests; `is_cut` once their time was up."""

    def __init__(self) -> None:
        self.is_cut = False
        self._sockets: list[Any] = []
        self._lock = threading.Lock()

    def add(self, sock: Any) -> None:
        """A socket that an answer is awaited from."""
        with self._lock:
            self._sockets.append(sock)
            if self.is_cut:
                self._shut()

    def cut(self) -> None:
        """The time is up."""
        with self._lock:
            self.is_cut = True
            self._shut()

    def _shut(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS has nothing to say goodbye to


@contextmanager
def cut_off(seconds: float) -> Iterator[Watch]:
    """Within it, what this thread's watched connections wait for ends after `seconds`."""
    watch = Watch()
    timer = threading.Timer(max(seconds, 0.0), watch.cut)
    timer.daemon = True
    timer.start()
    _current.watch = watch
    try:
        yield watch
    finally:
        timer.cancel()
        _current.watch = None


def watched_session(user_agent: str, *, num_hosts: int) -> requests.Session:
    """A session without cookies whose connections `cut_off` ends; `num_hosts` are kept open."""
    session = requests.Session()
    session.headers["User-Agent"] = user_agent
    session.headers["Accept"] = "image/*,*/*;q=0.8"
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(pool_connections=num_hosts, pool_maxsize=1))
    return session


class _Watched:
    sock: Any

    def getresponse(self, *args: Any, **kwargs: Any) -> Any:
        watch: Watch | None = getattr(_current, "watch", None)
        if watch is not None and self.sock is not None:
            watch.add(self.sock)
        return super().getresponse(*args, **kwargs)  # type: ignore[misc]


class _Connection(_Watched, HTTPConnection):
    pass


class _SecureConnection(_Watched, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
        return manager
