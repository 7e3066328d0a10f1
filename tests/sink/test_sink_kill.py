"""Rows through what stops a run: kill -9, a full disk, a second run on the same output."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sink_helpers import caption_all, indices, open_sink, read_rows, record, refs

import vlbatch
from vlbatch.errors import UsageError

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")

NUM_ROWS = 1500

WRITE_SLOWLY = """
import random, sys, time
from pathlib import Path
from sink_helpers import open_sink, record, refs

out, num_rows, seed, by = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = random.Random(seed)
with open_sink(out, resume_by=by) as sink:
    batch = []
    for ref in sink.pending(refs(num_rows)):
        batch.append(record(ref, "é" * rng.choice([1, 100, 20_000])))
        if rng.random() < 0.3:
            sink.write(batch)
            batch = []
            time.sleep(0.002)
    sink.write(batch)
"""

FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from sink_helpers import open_sink, record, refs
from vlbatch.errors import OutputError

resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
with open_sink(Path(sys.argv[1])) as sink:
    items = list(sink.pending(refs(1500)))
    try:
        for start in range(0, len(items), 7):
            sink.write([record(ref) for ref in items[start : start + 7]])
    except OutputError as error:
        print(sink.rows_written, error)
"""


def start(script: str, *args: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(vlbatch.__file__).parents[1]), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *map(str, args)],
        env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_while_it_writes(out: Path, process: subprocess.Popen[str], delay: float) -> bool:
    """Waits for the first new row, and a random moment more; then SIGKILL. Whether that hit."""
    size = out.stat().st_size if out.exists() else 0
    while process.poll() is None and (not out.exists() or out.stat().st_size <= size):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return process.returncode < 0


@posix
@pytest.mark.parametrize("by", ["index", "key"])
def test_a_run_killed_again_and_again_ends_with_each_row_once(tmp_path: Path, by: str) -> None:
    out = tmp_path / "out.jsonl"
    rng = random.Random(by)
    hits = [
        kill_while_it_writes(
            out, start(WRITE_SLOWLY, out, NUM_ROWS, seed, by), rng.uniform(0, 0.04)
        )
        for seed in range(10)
    ]
    assert sum(hits) > 2
    last = start(WRITE_SLOWLY, out, NUM_ROWS, 99, by)
    last.communicate()
    assert last.returncode == 0
    assert sorted((r["index"], r["key"]) for r in read_rows(out)) == [
        (ref.index, ref.key) for ref in refs(NUM_ROWS)
    ]


@posix
def test_a_full_disk_leaves_whole_rows_and_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = start(FILL_THE_DISK, out)
    said, _ = process.communicate()
    num_rows, text = said.split(maxsplit=1)
    assert process.returncode == 0
    assert "the rows written so far are intact" in text
    assert f"can't write {out}: File too large" in text
    assert out.read_bytes().endswith(b"\n")
    assert indices(out) == list(range(int(num_rows)))
    assert 4900 < out.stat().st_size <= 5000, "rows that had room were kept"
    with open_sink(out) as sink:
        assert sink.notices == []
        caption_all(sink, refs(NUM_ROWS), batch=50)
    assert indices(out) == list(range(NUM_ROWS))


@posix
def test_a_second_run_on_the_same_output_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out) as sink:
        sink.write([record(ref) for ref in refs(2)])
        with pytest.raises(UsageError, match=rf"-o/--output {out}: .*process .*is writing to it"):
            open_sink(out, overwrite=True)
        assert indices(out) == [0, 1]
    with open_sink(out) as sink:
        assert sink.rows_before == 2


@posix
def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with open_sink(tmp_path / "out.jsonl") as sink:
        assert ["no locks" in notice for notice in sink.notices] == [True]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")
def test_the_process_that_writes_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out), pytest.raises(UsageError, match=f"process {os.getpid()} is writing"):
        open_sink(out)
