"""A hub id as `--model`: what is said, and how soon, whatever the hub answers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

HUB_ID = "HuggingFaceTB/SmolVLM-256M-Instruct"
ASK_HUB = """
import sys, time
from vlbatch.config import Config
from vlbatch.errors import UsageError
from vlbatch.models.loading import find_model
start = time.monotonic()
try:
    source = find_model(Config(model=sys.argv[1], revision=sys.argv[2] or None))
    print(source.name, source.location, source.model_type)
except UsageError as error:
    print(error)
print(time.monotonic() - start)
"""


class _Hub(BaseHTTPRequestHandler):
    """Answers each HEAD with `answer`: (status, headers)."""

    answer: tuple[int, dict[str, str]] = (404, {})

    def do_HEAD(self) -> None:
        status, headers = self.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask_hub(home: Path, endpoint: str, *, revision: str = "", **env: str) -> tuple[str, float]:
    """What `find_model` says of a hub id in a process of its own, and the seconds it took."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **env}
    command = [sys.executable, "-c", ASK_HUB, HUB_ID, revision]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    *lines, seconds = done.stdout.splitlines()
    return "\n".join(lines), float(seconds)


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def assert_no_hub(message: str) -> None:
    assert (
        f"--model {HUB_ID}: not in the local cache, and the model hub can't be reached" in message
    )
    assert "--model /path/to/model" in message
    assert "HF_HOME" in message


def test_hub_that_refuses(tmp_path: Path) -> None:
    message, seconds = ask_hub(tmp_path, closed_port())
    assert_no_hub(message)
    assert seconds < 5


def test_hub_that_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message, seconds = ask_hub(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert_no_hub(message)
    assert seconds < 15


def test_offline_is_said_at_once(tmp_path: Path, hub: HTTPServer) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    message, seconds = ask_hub(tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert_no_hub(message)
    assert seconds < 2


def test_cached_model_without_a_hub_is_a_folder(tmp_path: Path) -> None:
    """All further files then come from the snapshot: none is asked for on the network."""
    repo = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "idefics3"}')
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        message, seconds = ask_hub(tmp_path, closed_port(), **env)
        assert message == f"{HUB_ID} {snapshot} idefics3"
        assert seconds < 5


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"X-Error-Code": "RepoNotFound"}), "the hub has no such model"),
        ((403, {"X-Error-Code": "GatedRepo"}), "accept its terms on the hub"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), "--revision v9: .* has no such revision"),
        ((404, {"X-Error-Code": "EntryNotFound"}), "no config.json"),
    ],
)
def test_answers_of_the_hub(
    tmp_path: Path,
    hub: HTTPServer,
    answer: tuple[int, dict[str, str]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Hub, "answer", answer)
    said, seconds = ask_hub(tmp_path, f"http://127.0.0.1:{hub.server_port}", revision="v9")
    assert re.search(message, said), said
    assert seconds < 5
