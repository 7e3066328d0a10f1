from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sink_helpers import RUN, caption_all, indices, open_sink, read_manifest, refs

import vlbatch
from vlbatch.errors import OutputError, ResumeRefused
from vlbatch.sink import sink as sink_module

FOLDERS = [{"input": "a/"}, {"input": "b/"}]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output with two rows of RUN."""
    path = tmp_path / "out.jsonl"
    with open_sink(path) as sink:
        caption_all(sink, refs(2))
    return path


def test_the_manifest_is_there_before_the_first_row(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out):
        manifest = read_manifest(out)
        assert out.read_bytes() == b""
    assert manifest["vlbatch"] == vlbatch.__version__
    assert manifest["format"] == 1
    assert {name: manifest[name] for name in RUN} == RUN
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.run.json"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"settings": RUN["settings"] | {"prompt": "B"}}, "--prompt was 'A', is 'B'"),
        ({"settings": RUN["settings"] | {"max_new_tokens": 8}}, "--max-new-tokens was 64, is 8"),
        ({"settings": RUN["settings"] | {"top_p": 0.5}}, "--top-p was not given, is 0.5"),
        ({"inputs": [{"input": "list.txt", "sha256": "cd" * 32}]},
         "list.txt changed since (sha256 abababababab…, now cdcdcdcdcdcd…)"),
        ({"inputs": FOLDERS}, "no longer among the INPUTs: list.txt; "
         "not among the INPUTs before: a/, b/"),
        ({"inputs": FOLDERS, "resume_by": "key"}, "no longer among the INPUTs: list.txt"),
        ({"inputs": [{"input": f"{i}/"} for i in range(1005)]}, "0/, 1/, 2/ and 1,002 more"),
    ],
)  # fmt: skip
def test_rows_of_another_run_are_refused_by_name(
    out: Path, changes: dict[str, Any], text: str
) -> None:
    rows, manifest = out.read_bytes(), read_manifest(out)
    with pytest.raises(ResumeRefused) as refusal:
        open_sink(out, **changes)
    assert text in str(refusal.value)
    assert (out.read_bytes(), read_manifest(out)) == (rows, manifest)


def test_all_differences_are_named_at_once(out: Path) -> None:
    with pytest.raises(ResumeRefused, match=r"--max-new-tokens .*; --prompt .*; list\.txt changed"):
        open_sink(
            out,
            settings={"prompt": "B", "max_new_tokens": 1},
            inputs=[{"input": "list.txt", "sha256": "00"}],
        )


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out, inputs=FOLDERS, resume_by="key") as sink:
        caption_all(sink, refs(1))
    with pytest.raises(ResumeRefused, match="another order"):
        open_sink(out, inputs=FOLDERS[::-1], resume_by="key")


def test_values_are_compared_as_json_holds_them(tmp_path: Path) -> None:
    settings = {"stop": ("a", "b"), "folder": Path("x"), "prompt": "\ud800"}
    for _ in range(2):
        with open_sink(tmp_path / "out.jsonl", settings=settings) as sink:
            caption_all(sink, refs(1))


def test_facts_beside_the_digest_are_not_compared(out: Path) -> None:
    with open_sink(out, inputs=[RUN["inputs"][0] | {"bytes": 5}]) as sink:
        assert sink.rows_before == 2


def test_a_list_that_grew_goes_on_by_key_and_from_then_on_only_by_key(out: Path) -> None:
    grown: dict[str, Any] = {"inputs": [{"input": "list.txt", "sha256": "cd" * 32}]}
    with open_sink(out, resume_by="key", **grown) as sink:
        assert ["list.txt changed since" in notice for notice in sink.notices] == [True]
        assert caption_all(sink, refs(4)) == [2, 3]
    with open_sink(out, resume_by="key", **grown) as sink:
        assert sink.notices == []
    with pytest.raises(ResumeRefused, match="give --resume-by key"):
        open_sink(out, **grown)


def test_other_versions_are_told_once_and_kept(out: Path) -> None:
    newer = {"torch": "2.12.0", "cuda": "13.0"}
    with open_sink(out, versions=newer) as sink:
        (notice,) = sink.notices
    assert notice.endswith("earlier rows are of cuda absent → 13.0, torch 2.11.0 → 2.12.0")
    with open_sink(out, versions=newer) as sink:
        assert sink.notices == []
    manifest = read_manifest(out)
    assert manifest["versions"] == newer
    assert manifest["earlier_versions"] == [{"torch": "2.11.0", "vlbatch": vlbatch.__version__}]


def test_rows_without_a_manifest_are_refused(out: Path) -> None:
    Path(f"{out}.run.json").unlink()
    with pytest.raises(ResumeRefused, match=r"its manifest .*jsonl\.run\.json.*--overwrite"):
        open_sink(out)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 9}', b'{"format": 1, "vlbatch": "0"}',
                b'{"format":1,"vlbatch":"0","versions":{},"settings":[],"inputs":[],'
                b'"resume_by":"key","created":""}'],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused(out: Path, content: bytes) -> None:
    Path(f"{out}.run.json").write_bytes(content)
    with pytest.raises(ResumeRefused, match=r"run\.json.*--overwrite starts again"):
        open_sink(out)


@pytest.mark.parametrize("left", [b"", b'{"index":0,"ke'])
def test_without_rows_there_is_nothing_to_protect(out: Path, left: bytes) -> None:
    out.write_bytes(left)
    with open_sink(out, settings={"prompt": "B"}) as sink:
        assert caption_all(sink, refs(1)) == [0]
    assert read_manifest(out)["settings"] == {"prompt": "B"}
    assert indices(out) == [0]


def test_a_file_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes")
    with pytest.raises(ResumeRefused):
        open_sink(notes)
    assert notes.read_text() == "my notes"


def test_overwrite_starts_again(out: Path) -> None:
    with open_sink(out, settings={"prompt": "B"}, overwrite=True) as sink:
        assert (sink.rows_before, caption_all(sink, refs(1))) == (0, [0])
    assert indices(out) == [0]
    assert read_manifest(out)["settings"] == {"prompt": "B"}


def test_overwrite_stopped_half_way_leaves_no_row_unexplained(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sink_module, "write_manifest", stop)
    with open_sink(out, settings={"prompt": "B"}, overwrite=True) as sink:
        assert indices(out) == [0, 1]  # nothing is dropped before there is a row
        with pytest.raises(KeyboardInterrupt):
            caption_all(sink, refs(1))
    assert out.read_bytes() == b""
    assert read_manifest(out)["settings"] == RUN["settings"]


def test_a_manifest_is_replaced_whole_or_not_at_all(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(out)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(OutputError, match=r"manifest .*No space left"):
        open_sink(out, versions={"torch": "9"})
    assert read_manifest(out) == before


def test_secrets_of_an_input_are_not_written(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with open_sink(out, inputs=[{"input": "https://u:secret@h/a.jpg"}]):
        assert "secret" not in Path(f"{out}.run.json").read_text()
