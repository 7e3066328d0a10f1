"""Lists: one row of a list is one ref or one Failure, whatever is in it."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import Failure, ImageRef
from vlbatch.sources import SourceOptions, open_inputs
from vlbatch.sources.lists import MAX_LINE, read_lines

DEFAULTS = SourceOptions()


def rows_of(
    path: Path, text: str | bytes, options: SourceOptions = DEFAULTS
) -> list[ImageRef | Failure]:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return list(open_inputs([str(path)], options))


def summary(rows: Sequence[ImageRef | Failure]) -> list[str]:
    assert [row.index if isinstance(row, ImageRef) else row.ref.index for row in rows] == list(
        range(len(rows))
    )
    return [row.uri if isinstance(row, ImageRef) else row.code for row in rows]


@pytest.mark.parametrize("name", ["l.txt", "l.TXT", "l.txt.gz"])
def test_text(tmp_path: Path, name: str) -> None:
    rows = rows_of(tmp_path / name, "\ufeff a b.jpg \r\n\r\n\t\nhttp://h/#x\n# no comment\nlast")
    assert summary(rows) == ["a b.jpg", "http://h/#x", "# no comment", "last"]
    assert isinstance(rows[0], ImageRef)
    assert rows[0].base == str(tmp_path)
    assert rows[0].fields == {}


def test_text_keeps_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    assert summary(rows_of(tmp_path / "l.txt", b"caf\xe9.jpg\n\xff\n")) == [
        "caf\udce9.jpg",
        "\udcff",
    ]


def test_csv(tmp_path: Path) -> None:
    text = '\ufeffid, url ,caption\r\n7, http://h/a.jpg ,"one, ""two""\r\nthree"\r\n8,b.jpg\r\n'
    rows = rows_of(tmp_path / "l.csv", text)
    assert summary(rows) == ["http://h/a.jpg", "b.jpg"]
    assert isinstance(rows[0], ImageRef)
    assert isinstance(rows[1], ImageRef)
    assert rows[0].fields["caption"] == 'one, "two"\r\nthree'
    assert rows[1].fields == {"id": "8", "url": "b.jpg", "caption": ""}


def test_cells_with_blanks_and_letters_are_kept_as_given(tmp_path: Path) -> None:
    """B14: blanks stripped, the rest untouched."""
    cells = ["http://h/naïve.png", "http://h/a b.png", "http://h/na%C3%AFve.png"]
    rows = rows_of(tmp_path / "l.csv", "url\n" + "".join(f'" {cell} "\n' for cell in cells))
    assert summary(rows) == cells


def test_odd_rows_of_a_table(tmp_path: Path) -> None:
    text = "url,id\na,1\n,2\nb,3,extra,more\n\n  ,4\nc\n"
    rows = rows_of(tmp_path / "l.csv", text, SourceOptions(key_col="id"))
    assert summary(rows) == ["a", "empty_cell", "b", "empty_cell", "c"]
    assert [r.key for r in rows if isinstance(r, ImageRef)] == ["1", "3", "c"]
    failure = rows[1]
    assert isinstance(failure, Failure)
    assert failure.stage == "source"
    assert failure.ref.fields == {"url": "", "id": "2"}
    assert failure.ref.key == f"{tmp_path}/l.csv:3"


def test_tsv_and_preferred_column(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "l.tsv", "url\timage\thash\nu\ti, j\th\n")
    assert summary(rows) == ["i, j"]
    rows = rows_of(tmp_path / "l.tsv", "url\timage\nu\ti\n", SourceOptions(image_col="url"))
    assert summary(rows) == ["u"]


@pytest.mark.parametrize("quoted", ['"a', 'a\nb\n"c', 'a\n"c\nd\ne'])
def test_quote_that_is_never_closed_ends_the_run(tmp_path: Path, quoted: str) -> None:
    with pytest.raises(VlbatchError, match="never closed"):
        rows_of(tmp_path / "l.csv", f"url\n{quoted}\nz\n")


def test_quoted_line_feeds_and_stray_quotes_are_fine(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "l.csv", 'url,c\na,5" x 7\nb,"l1\nl2"\nc,8"\nd,"x"\n')
    assert summary(rows) == ["a", "b", "c", "d"]


def test_endless_cell_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(VlbatchError, match="field limit"):
        rows_of(tmp_path / "l.csv", 'url\n"' + ("x" * 1000 + "\n") * 1100 + '"\nb\n')


def test_a_carriage_return_spoils_its_line_alone(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "l.csv", "url,c\na,1\nb,x\ry\nc,3\n")
    assert summary(rows) == ["a", "bad_csv", "c"]
    assert [row.ref.index if isinstance(row, Failure) else row.index for row in rows] == [0, 1, 2]


def test_jsonl_nested_beyond_reason(tmp_path: Path) -> None:
    deep = '{"url": "b", "x": ' + "[" * 300 + "]" * 300 + "}"
    rows = rows_of(tmp_path / "l.jsonl", f'{{"url": "a"}}\n{deep}\n{{"url": "c"}}\n')
    assert summary(rows) == ["a", "b", "c"]


def test_jsonl(tmp_path: Path) -> None:
    lines = ['{"image": "a.jpg", "n": 7, "tags": ["x", "é"], "none": null}', "", "nonsense", "[1]",
             '{"other": 1}', '{"image": 5}', '{"image": null}', '{"image": " "}',
             '{"image": "nul\\u0000byte"}', '{"image": "\\ud800"}', '{"image": "b"}']  # fmt: skip
    rows = rows_of(tmp_path / "l.jsonl", "\r\n".join(lines))
    assert summary(rows) == ["a.jpg", "bad_json", "bad_json", "missing_column", "not_text",
                             "empty_cell", "empty_cell", "nul\0byte", "bad_json", "b"]  # fmt: skip
    assert isinstance(rows[0], ImageRef)
    fields = {"image": "a.jpg", "n": 7, "tags": ["x", "é"], "none": None}
    assert rows[0].fields == fields


def test_known_columns_in_any_case(tmp_path: Path) -> None:
    assert summary(rows_of(tmp_path / "l.csv", "TEXT,URL\nt,u\n")) == ["u"]


def test_jsonl_key_column(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path / "l.ndjson", '{"id": 3, "url": "u"}\n{"url": "v"}\n', SourceOptions(key_col="id")
    )
    assert [row.key for row in rows if isinstance(row, ImageRef)] == ["3", "v"]


@pytest.mark.parametrize(
    ("name", "head", "row"), [("l.txt", "", "{}\n"), ("l.csv", "url\n", "{}\n"),
                              ("l.jsonl", "", '{{"url": "{}"}}\n')],
)  # fmt: skip
def test_line_that_is_too_long_is_one_failure(
    tmp_path: Path, name: str, head: str, row: str
) -> None:
    text = head + row.format("a") + row.format("x" * (3 * MAX_LINE)) + row.format("b")
    assert summary(rows_of(tmp_path / name, text)) == ["a", "line_too_long", "b"]


def test_damaged_gzip_gives_its_rows_then_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "l.txt.gz"
    lines = "".join(f"{n * 7919 % 1000003}.jpg\n" for n in range(40_000))
    data = gzip.compress(lines.encode())
    path.write_bytes(data[:-1000])
    rows = iter(open_inputs([str(path)], SourceOptions()))
    assert next(rows)
    with pytest.raises(VlbatchError, match=r"l\.txt\.gz"):
        list(rows)


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 50))
def test_lines_do_not_depend_on_blocks(lines: list[bytes], size: int) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]

    class Slow(io.BytesIO):
        def read1(self, limit: int | None = -1) -> bytes:
            return self.read(size)

    data = b"\n".join(lines)
    due = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if due[-1] == b"":
        due.pop()
    assert list(read_lines(Slow(data), "name")) == due


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@given(
    names=st.lists(NAMES.map(str.strip).filter(bool), min_size=1, max_size=4, unique=True),
    table=st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=1, max_size=6),
    delimiter=st.sampled_from([",", "\t"]),
)
def test_tables_written_by_others_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    table: list[list[str]],
    delimiter: str,
) -> None:
    header = ["my image", *(f"c{name}" for name in names)]
    path = tmp_path_factory.getbasetemp() / ("l.csv" if delimiter == "," else "l.tsv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([header, *(row[: len(header)] for row in table)])
    rows = list(open_inputs([str(path)], SourceOptions(image_col="my image")))
    assert len(rows) == len(table)
    for row, cells in zip(rows, table, strict=True):
        ref = row if isinstance(row, ImageRef) else row.ref
        assert list(ref.fields.values()) == [cell.strip() for cell in cells[: len(header)]]
        assert isinstance(row, ImageRef) == bool(cells[0].strip())


@given(st.lists(st.dictionaries(NAMES, CELLS | st.integers(-9, 9) | st.none(), max_size=3)))
def test_jsonl_gives_a_row_for_each_object(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, str | int | None]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "h.jsonl"
    path.write_text("".join(json.dumps(o | {"url": f"u{n}"}) + "\n" for n, o in enumerate(objects)))
    if not objects:
        with pytest.raises(UsageError, match="no rows"):
            open_inputs([str(path)], SourceOptions())
        return
    rows = list(open_inputs([str(path)], SourceOptions(image_col="url")))
    assert summary(rows) == [f"u{n}" for n in range(len(objects))]
