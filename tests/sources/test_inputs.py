"""INPUTs as the user names them: kinds, keys, what is refused before a fetch."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import Failure, ImageRef
from vlbatch.sources import Inputs, SourceOptions, open_inputs
from vlbatch.sources.keys import Keys

DEFAULTS = SourceOptions()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/a.jpg", "photos/b/c.PNG", "photos/notes.txt", "one.dat"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    Path("list.txt").write_text("photos/a.jpg\nhttp://h/x.jpg\n")
    Path("list.csv").write_text("url,id\nhttp://h/x.jpg,7\n")
    return tmp_path


def keys(inputs: Inputs) -> list[str]:
    return [row.key if isinstance(row, ImageRef) else row.ref.key for row in inputs]


def uris(inputs: Inputs) -> list[str]:
    return [row.uri if isinstance(row, ImageRef) else row.ref.uri for row in inputs]


def refusal(*inputs: str, options: SourceOptions = DEFAULTS) -> str:
    with pytest.raises(UsageError) as caught:
        open_inputs(inputs, options)
    return str(caught.value)


@pytest.mark.parametrize("given_", ["photos", "photos/", "./photos", "file:photos"])
def test_folder(here: Path, given_: str) -> None:
    inputs = open_inputs([given_], DEFAULTS)
    assert keys(inputs) == ["a.jpg", "b/c.PNG"]
    path = given_.removeprefix("file:").rstrip("/")
    assert uris(inputs) == [f"{path}/a.jpg", f"{path}/b/c.PNG"]
    assert (inputs.resume_by, inputs.columns, inputs.has_stdin) == ("key", frozenset(), False)
    assert inputs.left_out == 1
    assert inputs.left_out_suffixes == {".txt": 1}


def test_left_out_is_of_the_latest_iteration(here: Path) -> None:
    inputs = open_inputs(["photos", "photos/"], DEFAULTS)
    assert inputs.left_out == 0
    list(inputs)
    list(inputs)
    inputs.count(threading.Event())
    assert inputs.left_out == 2


def test_not_recursive(here: Path) -> None:
    assert keys(open_inputs(["photos"], SourceOptions(recursive=False))) == ["a.jpg"]


def test_keys_of_several_inputs_begin_with_the_input(here: Path) -> None:
    inputs = open_inputs(["photos/", "list.txt", "photos/b", "photos/a.jpg", "photos"], DEFAULTS)
    assert keys(inputs) == [
        "photos/a.jpg", "photos/b/c.PNG", "photos/a.jpg#2", "http://h/x.jpg", "photos/b/c.PNG#2",
        "photos/a.jpg#3", "photos/a.jpg#4", "photos/b/c.PNG#3",
    ]  # fmt: skip
    refs = [row for row in inputs if isinstance(row, ImageRef)]
    assert [ref.index for ref in refs] == list(range(8))
    assert refs[6].seed_key == "photos/a.jpg"
    assert keys(inputs) == [ref.key for ref in refs]  # and again


def test_columns_are_those_of_every_row(here: Path) -> None:
    assert open_inputs(["list.csv"], DEFAULTS).columns == {"url", "id"}
    Path("more.jsonl").write_text('{"url": "u", "alt": "x"}\n')
    assert open_inputs(["list.csv", "more.jsonl"], DEFAULTS).columns == {"url"}
    assert open_inputs(["list.csv", "list.txt"], DEFAULTS).columns == frozenset()


def test_lists_resume_by_index(here: Path) -> None:
    assert open_inputs(["list.csv", "list.txt"], DEFAULTS).resume_by == "index"
    assert open_inputs(["list.csv", "photos"], DEFAULTS).resume_by == "key"
    assert open_inputs(["http://h/a.jpg"], DEFAULTS).resume_by == "key"


def test_files_urls_and_globs(here: Path) -> None:
    given_ = ["photos/a.jpg", "file:one.dat", "HTTP://h/b.jpg", "photos/**/*.PNG", "photos/*"]
    inputs = open_inputs(given_, DEFAULTS)
    assert keys(inputs) == [*given_[:3], "photos/b/c.PNG", "photos/a.jpg#2"]
    kinds = [entry["kind"] for entry in inputs.describe()]
    assert kinds == ["file", "file", "url", "glob", "glob"]


def test_file_with_glob_characters_comes_before_the_glob(here: Path) -> None:
    Path("[a]*.jpg").touch()
    Path("abc.jpg").touch()
    assert keys(open_inputs(["[a]*.jpg"], DEFAULTS)) == ["[a]*.jpg"]


def test_name_that_is_not_utf8(here: Path) -> None:
    path = os.fsdecode(b"photos/caf\xe9.jpg")
    Path(path).touch()
    assert os.fsdecode(b"caf\xe9.jpg") in keys(open_inputs(["photos"], DEFAULTS))
    inputs = open_inputs(["file:photos/caf%E9.jpg"], DEFAULTS)
    assert inputs.describe() == [{"input": "file:photos/caf%E9.jpg", "kind": "file"}]
    assert open_inputs([path], DEFAULTS).describe()[0]["input"] == "file:photos/caf%E9.jpg"


def test_describe_lists_with_their_digest(here: Path) -> None:
    data = Path("list.csv").read_bytes()
    assert open_inputs(["list.csv", "photos"], DEFAULTS).describe() == [
        {
            "input": "list.csv",
            "kind": "list",
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        },
        {"input": "photos", "kind": "directory"},
    ]
    secret = open_inputs(["http://user:s3cr3t@h/a.jpg"], DEFAULTS).describe()
    assert secret == [{"input": "http://h/a.jpg", "kind": "url"}]


def test_count(here: Path) -> None:
    inputs = open_inputs(["photos", "list.txt", "http://h/x"], DEFAULTS)
    assert inputs.count(threading.Event()) == 5
    stop = threading.Event()
    stop.set()
    assert inputs.count(stop) is None


def test_input_that_vanishes_ends_the_run(here: Path) -> None:
    for name in ("list.txt", "photos/b"):
        inputs = open_inputs([name], DEFAULTS)
        Path(name).rename("gone")
        with pytest.raises(VlbatchError, match=name):
            list(inputs)
        assert inputs.count(threading.Event()) is None
        Path("gone").rename(name)


def test_what_is_not_there_is_named_with_a_near_name(here: Path) -> None:
    assert "'fotos'" in refusal("fotos")
    assert "did you mean 'photos'" in refusal("fotos")
    assert "did you mean 'list.csv'" in refusal("lst.csv")
    text = refusal("phots/a/b.jpg")
    assert "no folder 'phots'" in text
    assert "'photos'" in text
    assert "glob" in refusal("photos/*.webp")
    assert "s3://" in refusal("s3://bucket/key")
    assert "another host" in refusal("file://elsewhere/a.jpg")
    assert "no INPUT" in refusal()


def test_lists_that_can_not_be_used(here: Path) -> None:
    for name, text, due in [
        ("empty.txt", "", "no rows"),
        ("blank.txt", "\n \r\n", "no rows"),
        ("header.csv", "url,id\n", "no rows"),
        ("empty.csv", "", "Columns: none"),
        ("none.csv", "a.jpg,cat\nb.jpg,dog\n", "--image-col"),
        ("none.jsonl", '{"picture": 1}\n', "'picture'"),
        ("bad.jsonl", "nonsense\nmore\n", "not JSON"),
        ("x.parquet", "PAR1", ".jsonl"),
        ("x.tar", "x", ".csv"),
        ("x.json", "[]", "--input-format"),
    ]:
        Path(name).write_text(text)
        message = refusal(name)
        assert due in message, (name, message)
        assert name in message


def test_unknown_columns(here: Path) -> None:
    message = refusal("list.csv", options=SourceOptions(image_col="ulr"))
    assert "'ulr'" in message
    assert "did you mean 'url'" in message
    assert "'id'" in message
    assert "--key-col" in refusal("list.csv", options=SourceOptions(key_col="key"))
    assert "no INPUT is a list" in refusal("photos", options=SourceOptions(key_col="id"))
    assert "no INPUT is a list" in refusal("list.txt", options=SourceOptions(image_col="url"))
    Path("twice.csv").write_text("url,url,x,x\na,b,c,d\n")
    assert "twice" in refusal("twice.csv", options=SourceOptions(image_col="url"))


def test_folder_without_images_says_what_it_left_out(here: Path) -> None:
    Path("docs").mkdir()
    assert "no images" in refusal("docs")
    Path("docs/a.heic").touch()
    Path("docs/b.heic").touch()
    Path("docs/c.pdf").touch()
    message = refusal("docs")
    assert "3 files" in message
    assert "2 of .heic" in message


def test_input_format_overrides_the_suffix(here: Path) -> None:
    Path("list.dat").write_text("url,id\nu,1\n")
    assert uris(open_inputs(["list.dat"], SourceOptions(input_format="csv"))) == ["u"]
    photos = open_inputs(["photos/a.jpg"], SourceOptions(input_format="csv"))
    assert uris(photos) == ["photos/a.jpg"]
    assert "did you mean 'jsonl'" in refusal("x", options=SourceOptions(input_format="json"))


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("data", "fmt"),
    [
        (b"\n a.jpg\nb.jpg\n", None),
        (b'\n{"url": "a.jpg"}\n{"url": "b.jpg"}\n', None),
        (b"url\na.jpg\nb.jpg\n", "csv"),
        (b"n\turl\n1\ta.jpg\n2\tb.jpg", "tsv"),
    ],
)
def test_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes, fmt: str | None) -> None:
    stdin(monkeypatch, data)
    inputs = open_inputs(["-"], SourceOptions(input_format=fmt))
    assert inputs.has_stdin
    assert inputs.columns is None
    assert inputs.count(threading.Event()) is None
    assert inputs.describe() == [{"input": "-", "kind": "stdin"}]
    assert uris(inputs) == ["a.jpg", "b.jpg"]
    with pytest.raises(VlbatchError, match="already"):
        iter(inputs)


def test_stdin_that_can_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "only once" in refusal("-", "-")
    stdin(monkeypatch, b"\n")
    with pytest.raises(UsageError, match="no rows"):
        list(open_inputs(["-"], DEFAULTS))
    stdin(monkeypatch, b'{"picture": "a"}\n')
    with pytest.raises(UsageError, match="--image-col"):
        list(open_inputs(["-"], DEFAULTS))


@given(st.lists(st.text("ab#123", max_size=4), max_size=200))
def test_keys_are_unique(given_keys: list[str]) -> None:
    table = Keys()
    made = [table.unique(key) for key in given_keys]
    assert len({key for key, _ in made}) == len(given_keys)
    for given_key, (key, repeat) in zip(given_keys, made, strict=True):
        assert ImageRef(0, key, "", repeat=repeat).seed_key == given_key
    first = {}
    for given_key, (_, repeat) in zip(given_keys, made, strict=True):
        assert repeat > first.get(given_key, 0)
        first[given_key] = repeat


def test_many_keys() -> None:
    table = Keys()
    assert all(table.unique(str(n)) == (str(n), 1) for n in range(50_000))
    assert all(table.unique(str(n)) == (f"{n}#2", 2) for n in range(0, 50_000, 997))


def test_bad_rows_have_indices_of_their_own(here: Path) -> None:
    Path("l.jsonl").write_text('{"url": "a"}\nbad\n{"url": "a"}\n')
    rows = list(open_inputs(["l.jsonl", "l.jsonl"], DEFAULTS))
    assert [r.index if isinstance(r, ImageRef) else r.ref.index for r in rows] == list(range(6))
    assert keys(open_inputs(["l.jsonl", "l.jsonl"], DEFAULTS)) == [
        "a", "l.jsonl:2", "a#2", "a#3", "l.jsonl:2#2", "a#4",
    ]  # fmt: skip
    assert [isinstance(row, Failure) for row in rows] == [False, True, False] * 2
