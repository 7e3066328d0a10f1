"""What all tests share: the command line as a user calls it, and folders of small pictures."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side; before torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may ask the network

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, output, and the rows of a file."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    def rows(self, name: str = "out.jsonl") -> list[dict[str, Any]]:
        return read_rows(self.folder / name)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an output, sorted by index."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return sorted(rows, key=lambda row: row["index"])


Cli = Callable[..., Ran]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `vlbatch ARGS…` in a process of its own, in tmp_path; never a traceback."""

    def run(*args: str, stdin: str | bytes | None = None, timeout: float = 120, **env: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "vlbatch.cli.main", *args],
            cwd=tmp_path,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            env=os.environ | env,
            check=False,
        )
        stdout, stderr = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in stderr, stderr
        return Ran(done.returncode, stdout, stderr, tmp_path)

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of twelve small pictures of distinct colours and sizes: imgs/0.png … 11.png."""
    return make_pictures(tmp_path / "imgs", 12)


def make_pictures(folder: Path, count: int) -> Path:
    """`count` pictures, number n being n+8 wide and of the colour (n mod 256, n div 256, 90)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        colour = (number % 256, number // 256, 90)
        Image.new("RGB", (number % 50 + 8, 8), colour).save(folder / f"{number}.png")
    return folder


def stub_caption_has(row: dict[str, Any], number: int) -> bool:
    """Whether the stub's caption of a row is that of picture `number`."""
    colour = bytes((number % 256, number // 256, 90)).hex()
    return f"#{colour})" in row["caption"] and row["width"] == number % 50 + 8
