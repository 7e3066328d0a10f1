"""Rows of a list: txt, csv, tsv or jsonl, plain or gzip, a file or standard input.

Streamed: at most one block and one row are held. A row that can't be used is a `BadRow`; a list
that can't be read to its end raises VlbatchError, so that none is ever silently short.
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any, Literal, cast

import orjson

from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import field_text
from vlbatch.sources.hints import nearest

ListFormat = Literal["txt", "csv", "tsv", "jsonl"]

#: The format of a list by its suffix (before `.gz`).
LIST_SUFFIXES: Mapping[str, ListFormat] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}

#: Columns taken for the image when none is named, in any case, the first of these that is there.
IMAGE_COLUMNS = (
    "image", "image_path", "path", "file", "file_name", "filename", "url", "image_url", "uri",
)  # fmt: skip

#: The longest line or cell, in bytes.
MAX_LINE = 1 << 20

#: Lines of a jsonl file in which the first object is looked for.
_HEAD_LINES = 100

_NO_FIELDS: Mapping[str, Any] = {}

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row of a list that names no image: `line` counts from 1."""

    line: int
    code: str
    message: str
    fields: Mapping[str, Any]


#: (key, uri, fields) of an image, or why a row has none.
Row = tuple[str, str, Mapping[str, Any]] | BadRow


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a list that hold the image and the row's key (None: the image as given)."""

    image: str
    key: str | None


def open_list(path: str) -> IO[bytes]:
    """The bytes of a list, unpacked if its name ends in `.gz`."""
    if path.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return open(path, "rb")


def read_lines(stream: IO[bytes], name: str) -> Iterator[bytes | None]:
    """Lines of `stream` without their line feed; None for one over `MAX_LINE` bytes.

    A byte order mark is dropped. Raises VlbatchError naming `name` if the stream breaks off.
    """
    rest = b""
    too_long = False
    first = True
    while block := _read_block(stream, name):
        if first and block[:1] == b"\xef":
            block = (block + stream.read(max(0, 3 - len(block)))).removeprefix(b"\xef\xbb\xbf")
        first = False
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield None if too_long or len(line) > MAX_LINE else line
            too_long = False
        if len(rest) > MAX_LINE:
            rest, too_long = b"", True
    if rest or too_long:
        yield None if too_long else rest


def _read_block(stream: IO[bytes], name: str) -> bytes:
    """What can be read now of `stream` (a pipe's lines are not held back); empty at the end."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    try:
        return read(MAX_LINE)
    except (OSError, EOFError, zlib.error) as error:
        raise VlbatchError(f"{name}: can't be read to its end: {error}") from error


def text_rows(lines: Iterator[bytes | None]) -> Iterator[Row]:
    """A path or URL a line; blank lines are skipped."""
    for number, line in enumerate(lines, 1):
        if line is None:
            yield _too_long(number)
        elif uri := line.decode("utf-8", "surrogateescape").strip():
            yield (uri, uri, _NO_FIELDS)


def jsonl_rows(lines: Iterator[bytes | None], columns: Columns) -> Iterator[Row]:
    """An object a line; blank lines are skipped."""
    for number, line in enumerate(lines, 1):
        if line is None:
            yield _too_long(number)
        elif line and not line.isspace():
            yield _jsonl_row(line, number, columns)


def _jsonl_row(line: bytes, number: int, columns: Columns) -> Row:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return BadRow(number, "bad_json", f"line {number} is not JSON: {error.msg}", _NO_FIELDS)
    if not isinstance(values, dict):
        return BadRow(number, "bad_json", f"line {number} is not a JSON object", _NO_FIELDS)
    fields = {k: v.strip() if type(v) is str else v for k, v in values.items()}
    if columns.image not in values:
        message = f"line {number} has no column {columns.image!r}"
        return BadRow(number, "missing_column", message, fields)
    if not isinstance(values[columns.image], str | None):
        message = f"line {number}: column {columns.image!r} is not text"
        return BadRow(number, "not_text", message, fields)
    return _row(fields, columns, number)


def table_rows(
    lines: Iterator[bytes | None], delimiter: str, name: str, choose: Callable[[list[str]], Columns]
) -> Iterator[Row]:
    """Rows of a csv or tsv; `choose` gets the header. Missing cells are empty, extra ones ignored.

    Raises VlbatchError where a quote is never closed: what follows it can't be told apart.
    """
    feed = _TableLines(lines)
    reader = csv.reader(feed, delimiter=delimiter)
    header = [cell.strip() for cell in next(reader, [])]
    columns = choose(header)
    width = len(header)
    unique = len(set(header)) == width
    while (cells := _next_cells(reader, feed, name)) is not None:
        number = reader.line_num
        if isinstance(cells, BadRow):
            yield cells
        elif not cells:
            feed.quotes = 0
        elif cells == [_TOO_LONG]:
            yield _too_long(number)
        else:
            cells = [cell.strip() for cell in cells]
            cells += [""] * (width - len(cells))
            pairs = zip(header, cells, strict=False)
            fields = dict(pairs) if unique else dict(reversed(list(pairs)))
            feed.check_quotes(name)
            yield _row(fields, columns, number)


def _next_cells(reader: Any, feed: _TableLines, name: str) -> list[str] | BadRow | None:
    """The cells of the next row; None at the end.

    A carriage return within a line spoils that line alone. A cell over the limit may have been
    quoted over many lines: what follows can't be told apart, and VlbatchError ends the list.
    """
    try:
        cells: list[str] | None = next(reader, None)
    except csv.Error as error:
        if "new-line character" not in str(error):
            raise VlbatchError(f"{name}: line {reader.line_num}: {error}") from error
        feed.quotes = 0
        message = f"line {reader.line_num} has a carriage return within it"
        return BadRow(reader.line_num, "bad_csv", message, _NO_FIELDS)
    return cells


def csv_delimiter(lines: Iterator[bytes | None]) -> tuple[str, Iterator[bytes | None]]:
    """What separates the cells of a csv by its header, and all lines: a comma, or what Excel
    writes where the comma is the decimal sign, a semicolon, if only that is there."""
    header = next(lines, b"")
    only_semicolons = header is not None and b";" in header and b"," not in header
    return ";" if only_semicolons else ",", chain([header], lines)


#: Stands for a line that is too long; no list holds it, since lines end at line feeds.
_TOO_LONG = "\nline too long"


class _TableLines:
    """Lines for the csv reader, which counts the quotes of the row being read."""

    def __init__(self, lines: Iterator[bytes | None]) -> None:
        self.lines = lines
        self.quotes = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            if line is None:
                yield f'"{_TOO_LONG}"'
            else:
                self.quotes += line.count(b'"')
                yield line.decode("utf-8", "surrogateescape") + "\n"
        self.ended = True

    def check_quotes(self, name: str) -> None:
        """Called after each row: the reader met the end inside a row only if a quote is open."""
        if self.ended and self.quotes % 2:
            raise VlbatchError(f"{name}: a quote in its last row is never closed")
        self.quotes = 0


def _row(fields: Mapping[str, Any], columns: Columns, number: int) -> Row:
    uri = fields[columns.image]
    if not uri:
        message = f"line {number}: column {columns.image!r} is empty"
        return BadRow(number, "empty_cell", message, fields)
    key = field_text(fields.get(columns.key)) if columns.key is not None else ""
    return (key or uri, uri, fields)


def _too_long(number: int) -> BadRow:
    return BadRow(number, "line_too_long", f"line {number} is over {MAX_LINE} bytes", _NO_FIELDS)


def choose_columns(
    names: Sequence[str], name: str, image_col: str | None, key_col: str | None
) -> Columns:
    """The columns to use of those in a list. Raises UsageError, naming them, if one is missing."""
    found = ", ".join(repr(n) for n in names[:20]) or "none"
    for option, column in (("--image-col", image_col), ("--key-col", key_col)):
        if column is not None and names.count(column) != 1:
            trouble = "comes twice" if column in names else "is not there" + nearest(column, names)
            raise UsageError(f"{name}: column {column!r} ({option}) {trouble}. Columns: {found}")
    lowered = {n.lower(): n for n in reversed(names)}
    image = image_col or next((lowered[n] for n in IMAGE_COLUMNS if n in lowered), None)
    if image is None:
        raise UsageError(
            f"{name}: no column is known to hold images. Columns: {found} (a header row is "
            "needed). Name it with --image-col (or --url-col)"
        )
    return Columns(image, key_col)


def jsonl_head(
    lines: Iterator[bytes | None],
) -> tuple[list[bytes | None], Iterator[bytes | None]]:
    """The lines up to the first object, at most 100, and all lines."""
    head: list[bytes | None] = []
    for line in islice(lines, _HEAD_LINES):
        head.append(line)
        if line is not None and line.lstrip().startswith(b"{"):
            break
    return head, chain(head, lines)


def jsonl_names(head: Sequence[bytes | None], name: str) -> list[str]:
    """The column names of the first object in `head`. Raises UsageError if there is none."""
    trouble = "has no rows"
    for line in head:
        if line is None or not line or line.isspace():
            continue
        try:
            values = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            trouble = f"is not JSON lines: {error.msg}"
            continue
        if isinstance(values, dict):
            return list(values)
        trouble = "is not JSON lines of objects"
    raise UsageError(f"{name} {trouble}")


def sniff(lines: Iterator[bytes | None]) -> tuple[ListFormat, Iterator[bytes | None]]:
    """The format of a stream without a name, and all its lines."""
    head: list[bytes | None] = []
    for line in lines:
        head.append(line)
        if line is None or line.strip():
            break
    is_json = bool(head) and (head[-1] or b"").lstrip().startswith(b"{")
    return "jsonl" if is_json else "txt", chain(head, lines)


def list_format(path: str) -> ListFormat | None:
    """The format that the name of a file tells, or None."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix == ".gz":
        suffix = os.path.splitext(stem)[1]
    return LIST_SUFFIXES.get(suffix)
