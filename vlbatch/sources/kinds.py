"""The kinds of source: each gives the rows of one INPUT, and says what it is."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, Literal, Protocol

from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import public_uri
from vlbatch.sources import lists
from vlbatch.sources.lists import Columns, ListFormat, Row
from vlbatch.sources.scan import LeftOut, expand_glob, scan

_NO_COLUMNS: frozenset[str] = frozenset()


class Source(Protocol):
    """One INPUT.

    given: as the user wrote it.
    base: folder for its relative paths, or empty.
    columns: names of its rows' fields; None if unknown before reading.
    """

    given: str
    base: str
    columns: frozenset[str] | None

    def rows(self, left_out: LeftOut) -> Iterator[Row]:
        """Its rows from the start."""

    def describe(self) -> dict[str, Any]:
        """Its entry in the run's manifest."""


class OneSource:
    """A single file or URL."""

    base = ""
    columns: frozenset[str] | None = _NO_COLUMNS

    def __init__(self, given: str, kind: Literal["file", "url"]) -> None:
        self.given = given
        self._kind = kind

    def rows(self, left_out: LeftOut) -> Iterator[Row]:
        yield (self.given, self.given, {})

    def describe(self) -> dict[str, Any]:
        return {"input": public_uri(self.given), "kind": self._kind}


class FolderSource:
    """The images in a folder. Keys are relative to it, or begin with it where `prefix` is set.

    Raises UsageError if it can't be read or holds no image.
    """

    base = ""
    columns: frozenset[str] | None = _NO_COLUMNS

    def __init__(self, given: str, path: str, recursive: bool, prefix: bool) -> None:
        self.given = given
        self._path = path
        self._recursive = recursive
        self._prefix = given.rstrip("/") + "/" if prefix else ""
        left_out = LeftOut()
        try:
            if next(self.rows(left_out), None) is None:
                raise UsageError(f"{given!r}: no images in this folder{_passed_over(left_out)}")
        except OSError as error:
            raise UsageError(f"{given!r}: can't be read: {error.strerror}") from error

    def rows(self, left_out: LeftOut) -> Iterator[Row]:
        path = self._path.rstrip("/") + "/"
        for name in scan(self._path, self._recursive, left_out):
            yield (self._prefix + name, path + name, {})

    def describe(self) -> dict[str, Any]:
        return {"input": public_uri(self.given.rstrip("/") or "/"), "kind": "directory"}


class GlobSource:
    """The files that match a glob. Raises UsageError if none does."""

    base = ""
    columns: frozenset[str] | None = _NO_COLUMNS

    def __init__(self, given: str) -> None:
        self.given = given
        left_out = LeftOut()
        if next(self.rows(left_out), None) is None:
            raise UsageError(f"{given!r}: no image file matches this glob{_passed_over(left_out)}")

    def rows(self, left_out: LeftOut) -> Iterator[Row]:
        for path in expand_glob(self.given, left_out):
            yield (path, path, {})

    def describe(self) -> dict[str, Any]:
        return {"input": public_uri(self.given), "kind": "glob"}


class ListSource:
    """A list file, or standard input (`-`), whose format is told by its first line if not given.

    Raises UsageError for a list file without rows or with other columns than asked for; for
    standard input this comes when it is read.
    """

    def __init__(
        self, given: str, path: str, fmt: ListFormat | None, image_col: str | None,
        key_col: str | None,
    ) -> None:  # fmt: skip
        self.given = given
        self.is_stdin = given == "-"
        self.base = "" if self.is_stdin else os.path.dirname(path)
        self.columns: frozenset[str] | None = _NO_COLUMNS if fmt == "txt" else None
        self._name = "standard input" if self.is_stdin else repr(given)
        self._path = path
        self._format = fmt
        self._image_col = image_col
        self._key_col = key_col
        if not self.is_stdin:
            self._look()

    def _look(self) -> None:
        """Reads the first row, which learns the columns."""
        try:
            if next(self.rows(LeftOut()), None) is None:
                raise UsageError(f"{self._name}: this list has no rows")
        except OSError as error:
            raise UsageError(f"{self._name}: can't be read: {error.strerror}") from error

    def rows(self, left_out: LeftOut) -> Iterator[Row]:
        if self.is_stdin:
            return self._stdin_rows()
        return self._file_rows()

    def _file_rows(self) -> Iterator[Row]:
        with lists.open_list(self._path) as stream:
            yield from self._rows(stream)

    def _stdin_rows(self) -> Iterator[Row]:
        if sys.stdin is None:  # closed, as with `<&-`
            raise UsageError("standard input is closed; pipe a list into it")
        empty = True
        for row in self._rows(sys.stdin.buffer):
            empty = False
            yield row
        if empty:
            raise UsageError("standard input has no rows")

    def _rows(self, stream: IO[bytes]) -> Iterator[Row]:
        lines = lists.read_lines(stream, self._name)
        fmt = self._format
        if fmt is None:
            fmt, lines = lists.sniff(lines)
        if fmt == "txt":
            return lists.text_rows(lines)
        if fmt == "jsonl":
            return self._jsonl_rows(lines)
        delimiter, lines = ("\t", lines) if fmt == "tsv" else lists.csv_delimiter(lines)
        return lists.table_rows(lines, delimiter, self._name, self._choose)

    def _jsonl_rows(self, lines: Iterator[bytes | None]) -> Iterator[Row]:
        head, lines = lists.jsonl_head(lines)
        columns = self._choose(lists.jsonl_names(head, self._name))
        return lists.jsonl_rows(lines, columns)

    def _choose(self, names: list[str]) -> Columns:
        columns = lists.choose_columns(names, self._name, self._image_col, self._key_col)
        self.columns = frozenset(names)
        return columns

    def describe(self) -> dict[str, Any]:
        if self.is_stdin:
            return {"input": "-", "kind": "stdin"}
        try:
            with open(self._path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise VlbatchError(f"{self._name}: can't be read: {error.strerror}") from error
        return {
            "input": public_uri(self.given), "kind": "list", "bytes": size, "sha256": digest,
        }  # fmt: skip


def _passed_over(left_out: LeftOut) -> str:
    return f" ({left_out.total} files left out: {left_out})" if left_out.total else ""
