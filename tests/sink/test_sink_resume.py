from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_helpers import caption_all, indices, open_sink, read_rows, record, refs

from vlbatch.errors import ResumeRefused
from vlbatch.records import Failure, ImageRef, public_uri


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def run(out: Path, items: Iterator[ImageRef], **changes: object) -> list[int]:
    with open_sink(out, **changes) as sink:
        return caption_all(sink, items)


@pytest.mark.parametrize("by", ["index", "key"])
def test_the_same_command_goes_on(out: Path, by: str) -> None:
    run(out, (ref for ref in refs(9) if ref.index % 2), resume_by=by)
    with open_sink(out, resume_by=by) as sink:
        assert (sink.rows_before, sink.notices) == (4, [])
        assert caption_all(sink, refs(9)) == [0, 2, 4, 6, 8]
        assert (sink.skipped, sink.vanished) == (4, 0)
    assert run(out, refs(9), resume_by=by) == []
    assert sorted(indices(out)) == list(range(9))


@pytest.mark.parametrize("by", ["index", "key"])
def test_a_cut_at_any_byte_loses_no_row_and_repeats_none(out: Path, by: str) -> None:
    run(out, refs(3), resume_by=by)
    whole = out.read_bytes()
    for offset in range(len(whole) + 1):
        out.write_bytes(whole[:offset])
        kept = whole[:offset].count(b"\n")
        with open_sink(out, resume_by=by) as sink:
            torn = not whole[:offset].endswith(b"\n") and offset > 0
            assert [n for n in sink.notices if "torn" in n] == sink.notices
            assert (sink.rows_before, len(sink.notices)) == (kept, int(torn))
            assert caption_all(sink, refs(3)) == list(range(kept, 3))
        assert out.read_bytes() == whole


@settings(max_examples=60, deadline=None)
@given(
    done=st.lists(st.integers(0, 40), unique=True, max_size=20),
    tail=st.sampled_from([b"", b"\0" * 50, b'{"index":1,"ke', b"{}\n", b"\xff\n", b"\n", b"[1]\n"]),
    cut=st.integers(0, 60),
    by=st.sampled_from(["index", "key"]),
)
def test_any_rows_with_any_tail_go_on(done: list[int], tail: bytes, cut: int, by: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        with open_sink(out, resume_by=by) as sink:
            sink.write([record(ref) for ref in refs(41) if ref.index in set(done)])
        data = out.read_bytes()
        out.write_bytes((data if tail else data[: max(0, len(data) - cut)]) + tail)
        run(out, refs(41), resume_by=by)
        rows = read_rows(out)
        assert sorted((r["index"], r["key"]) for r in rows) == [(r.index, r.key) for r in refs(41)]


def test_damage_in_the_middle_is_refused_and_left_alone(out: Path) -> None:
    run(out, refs(5))
    lines = out.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"{]\n", *lines[3:]])
    out.write_bytes(damaged)
    with pytest.raises(ResumeRefused, match="line 3 is not a row; `head -n 2 "):
        open_sink(out)
    assert out.read_bytes() == damaged


@pytest.mark.parametrize(
    "row",
    [b"[]", b"{}", b'{"index":-1,"key":"k"}', b'{"index":true,"key":"k"}', b'{"index":1}',
     b'{"index":1,"key":3}', b'{"index":1e3,"key":"k"}', b'{"index":1099511627776,"key":"k"}'],
)  # fmt: skip
def test_json_that_is_no_row_is_damage(out: Path, row: bytes) -> None:
    run(out, refs(1))
    out.write_bytes(row + b"\n" + out.read_bytes())
    with pytest.raises(ResumeRefused, match="line 1 is not a row"):
        open_sink(out)


def test_rows_that_repeat_an_index_are_told(out: Path) -> None:
    run(out, refs(2))
    out.write_bytes(out.read_bytes() * 2)
    with open_sink(out) as sink:
        assert ["2 rows repeat the index" in notice for notice in sink.notices] == [True]


def test_error_rows_are_done(out: Path) -> None:
    failure = Failure(ImageRef(0, "k", "u"), "source", "not_found", "no file")
    run(out, refs(1))
    with open_sink(out) as sink:
        assert list(sink.pending(iter([failure]))) == []


def names(*keys: str) -> Iterator[ImageRef]:
    return (ImageRef(i, key, key) for i, key in enumerate(keys))


def test_by_key_new_inputs_get_free_indices(out: Path) -> None:
    run(out, names("b", "d", "f"), resume_by="key")
    with open_sink(out, resume_by="key") as sink:
        pending = list(sink.pending(names("a", "b", "c", "d", "e", "f", "g")))
        assert [(r.key, r.index) for r in pending] == [("a", 3), ("c", 4), ("e", 5), ("g", 6)]
        assert (sink.skipped, sink.vanished) == (3, 0)


def test_by_key_indices_given_are_unique_also_against_later_ones(out: Path) -> None:
    run(out, names("x"), resume_by="key")
    with open_sink(out, resume_by="key") as sink:
        given = [r.index for r in sink.pending(names("a", "b", "c", "x"))]
    assert given == [1, 2, 3]  # "a" took 1, so that "b" moved on


def test_by_key_a_failure_gets_its_index_too(out: Path) -> None:
    run(out, names("x"), resume_by="key")
    failure = Failure(ImageRef(0, "gone", "gone"), "source", "not_found", "no file")
    with open_sink(out, resume_by="key") as sink:
        (item,) = sink.pending(iter([failure]))
    assert isinstance(item, Failure)
    assert (item.ref.index, item.ref.key, item.code) == (1, "gone", "not_found")


def test_by_key_vanished_inputs_are_counted(out: Path) -> None:
    run(out, names("a", "b", "c"), resume_by="key")
    with open_sink(out, resume_by="key") as sink:
        assert list(sink.pending(names("b"))) == []
        assert (sink.skipped, sink.vanished) == (1, 2)


def test_by_key_keys_are_compared_as_they_are_written(out: Path) -> None:
    secret = ["https://u:1@h/a.jpg", "https://u:2@h/a.jpg", "p/\udcff.jpg"]
    with open_sink(out, resume_by="key") as sink:
        (first, *_) = sink.pending(names(*secret))
        written = ImageRef(first.index, public_uri(first.key), public_uri(first.uri))
        sink.write([record(written)])
    with open_sink(out, resume_by="key") as sink:  # two inputs, one row: one is left
        assert [r.key for r in sink.pending(names(*secret))] == secret[1:]
