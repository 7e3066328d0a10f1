from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sink_helpers import caption_all, open_sink, read_rows, record, refs

from vlbatch.errors import OutputError, UsageError
from vlbatch.records import CaptionRecord, ImageRef
from vlbatch.sink.encode import encode, encode_row
from vlbatch.sink.writer import FSYNC_ROWS, FSYNC_SECONDS, LineFile

UNSTORABLE = [
    ("\ud83d half", "\ufffd half"),
    (2**64, "0x10000000000000000"),
    (1 << 20_000, hex(1 << 20_000)),
    (float("nan"), None),
    ({1: ("a", {"b"})}, {"1": ["a", ["b"]]}),
    (Path("x"), "x"),
]


def test_rows_are_written_whole_and_in_order(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out) as sink:
        caption_all(sink, refs(10), batch=4)
        assert sink.rows_written == 10
    assert sink.rows_durable == 10
    assert read_rows(out) == [record(ref).to_dict() for ref in refs(10)]


@pytest.mark.parametrize(("value", "stored"), UNSTORABLE, ids=range(len(UNSTORABLE)))
def test_no_row_is_lost_to_a_value_json_cant_hold(value: object, stored: object) -> None:
    row = CaptionRecord(7, "k\udcff", "u", error={"stage": "s", "code": "c", "detail": [value]})
    read = orjson.loads(encode_row(row))
    assert read["index"] == 7
    assert read["error"]["detail"] == [stored]


def test_a_value_nested_without_end_is_cut() -> None:
    value: list[object] = []
    value.append(value)
    assert encode(value).count(b"[") == 100


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_JSON)
def test_whatever_is_encoded_is_one_line_of_json(value: object) -> None:
    line = encode(value)
    assert b"\n" not in line
    orjson.loads(line)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts `os.write` and `os.fsync`."""
    counted = {"write": 0, "fsync": 0}

    def count(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object) -> object:
            counted[name] += 1
            return real(*args)

        monkeypatch.setattr(os, name, call)

    count("write")
    count("fsync")
    return counted


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def line_file(path: Path, clock: Clock) -> LineFile:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return LineFile(os.open(path, flags), str(path), clock=clock)


def test_a_batch_is_one_write(tmp_path: Path, calls: dict[str, int]) -> None:
    file = line_file(tmp_path / "f", Clock())
    file.append([b"a\n"] * 100)
    assert calls == {"write": 1, "fsync": 0}
    file.close()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    file = line_file(tmp_path / "f", Clock())
    file.append([b"0123456789\n", b"abc\n"])
    file.close()
    assert (tmp_path / "f").read_bytes() == b"0123456789\nabc\n"


def test_rows_are_synced_by_number_by_time_and_at_close(
    tmp_path: Path, calls: dict[str, int]
) -> None:
    clock = Clock()
    file = line_file(tmp_path / "f", clock)
    file.append([b"x\n"] * (FSYNC_ROWS - 1))
    assert file.rows_durable == 0
    file.append([b"x\n"])
    assert file.rows_durable == FSYNC_ROWS
    clock.now += 100 * FSYNC_SECONDS
    file.tick()  # nothing to sync: the time runs from the next row
    file.append([b"x\n"])
    assert calls["fsync"] == 1
    clock.now += FSYNC_SECONDS
    file.tick()
    assert (calls["fsync"], file.rows_durable) == (2, FSYNC_ROWS + 1)
    file.append([b"x\n"])
    file.close()
    file.close()
    assert (calls["fsync"], file.rows_durable) == (3, FSYNC_ROWS + 2)


def test_rows_that_cant_be_synced_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    sink = open_sink(tmp_path / "out.jsonl")
    sink.write([record(ref) for ref in refs(2)])
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="Input/output error; its last 2 rows may not be on disk"):
        sink.close()
    sink.close()  # closed all the same


def test_a_file_system_without_fsync_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    file = line_file(tmp_path / "f", Clock())
    monkeypatch.setattr(os, "fsync", unsupported)
    file.append([b"x\n"])
    file.close()
    assert file.rows_durable == 1


def test_the_first_error_is_the_one_that_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    sink = open_sink(tmp_path / "out.jsonl")
    sink.write([record(ref) for ref in refs(2)])
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyError), sink:
        raise KeyError


def test_stdout_takes_rows_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_sink(Path("-")) as sink:
        assert caption_all(sink, refs(3)) == [0, 1, 2]
        assert (sink.rows_written, sink.rows_durable) == (3, 3)
        assert len(capfdbinary.readouterr().out.splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_process_without_stdout_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError, match="no stdout"):
        open_sink(Path("-"))


def test_a_fifo_is_a_stream_whose_reader_may_leave(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines: list[bytes] = []

    def read_one() -> None:
        with fifo.open("rb") as file:
            lines.append(file.readline())

    reader = threading.Thread(target=read_one)
    reader.start()
    with open_sink(fifo) as sink:
        sink.write([record(ref) for ref in refs(1)])
        reader.join()
        with pytest.raises(BrokenPipeError):
            sink.write([record(ref) for ref in refs(1)])
    assert orjson.loads(lines[0])["index"] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["fifo"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_named_with_what_to_do() -> None:
    with (
        pytest.raises(OutputError, match=r"/dev/full: No space left.*same command goes on"),
        open_sink(Path("/dev/full")) as sink,
    ):
        sink.write([record(ImageRef(0, "k", "u"))])
    assert not Path("/dev/full.run.json").exists()


def test_outputs_that_cant_be_opened_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"-o/--output .* is a folder"):
        open_sink(tmp_path)
    with pytest.raises(UsageError, match=r"-o/--output .* there is no folder"):
        open_sink(tmp_path / "gone" / "out.jsonl")
    with pytest.raises(UsageError, match=r"-o/--output .* can't be written"):
        open_sink(tmp_path / ("x" * 300))
