"""INPUT → source, and `Inputs`: the stream of refs over all INPUTs, with their keys."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import Failure, ImageRef, is_url
from vlbatch.sources.hints import nearest, no_such_file, unknown_scheme
from vlbatch.sources.keys import Keys
from vlbatch.sources.kinds import FolderSource, GlobSource, ListSource, OneSource, Source
from vlbatch.sources.lists import LIST_SUFFIXES, BadRow, ListFormat, Row, list_format
from vlbatch.sources.scan import IMAGE_SUFFIXES, LeftOut, has_glob, suffix_of
from vlbatch.uris import local_path

#: Files that hold many images in a form that is not read.
_UNREAD = (
    ".parquet .arrow .feather .avro .json .yaml .yml .xml .xlsx .xls .ods .db .sqlite .pkl .npy "
    ".npz .tar .tgz .zip .7z .rar .bz2 .xz .zst .gz"
)
_FORMATS: Mapping[str, ListFormat] = {
    "txt": "txt", "csv": "csv", "tsv": "tsv", "jsonl": "jsonl",
}  # fmt: skip


@dataclass(frozen=True)
class SourceOptions:
    """How INPUTs are read.

    recursive: whether folders are read with all folders beneath.
    image_col, key_col: columns of a list that hold the image and the row's key; None: a column
        with a known name, and the image as given.
    input_format: txt, csv, tsv or jsonl, for standard input or a list with another suffix.
    """

    recursive: bool = True
    image_col: str | None = None
    key_col: str | None = None
    input_format: str | None = None


def open_inputs(inputs: Sequence[str], options: SourceOptions) -> Inputs:
    """The stream over `inputs`. Raises UsageError for any that can't be used, before a fetch."""
    if not inputs:
        raise UsageError("no INPUT: name a folder, a file, a list, a URL, or - for standard input")
    if inputs.count("-") > 1:
        raise UsageError("standard input (-) can be read only once")
    if options.input_format is not None and options.input_format not in _FORMATS:
        hint = nearest(options.input_format, _FORMATS)
        raise UsageError(
            f"unknown --input-format {options.input_format!r}{hint}. Known: {', '.join(_FORMATS)}"
        )
    sources = [_open(given, options, prefix=len(inputs) > 1) for given in inputs]
    if not any(isinstance(s, ListSource) and s.columns != frozenset() for s in sources):
        for option, column in (("image-col", options.image_col), ("key-col", options.key_col)):
            if column is not None:
                raise UsageError(f"--{option} {column!r}: no INPUT is a list with columns")
    return Inputs(sources)


def _open(given: str, options: SourceOptions, prefix: bool) -> Source:
    if given == "-":
        return ListSource(given, given, _format(options), options.image_col, options.key_col)
    if is_url(given):
        return OneSource(given, "url")
    path = _local(given)
    if os.path.isdir(path):
        return FolderSource(given, path, options.recursive, prefix)
    if os.path.exists(path):
        return _open_file(given, path, options)
    if has_glob(path) and not given.lower().startswith("file:"):
        return _open_glob(given)
    raise unknown_scheme(given) or no_such_file(path)


def _local(given: str) -> str:
    if not given.lower().startswith("file:"):
        return given
    try:
        return local_path(given)
    except ValueError as error:
        raise UsageError(f"{given!r}: {error}") from error


def _format(options: SourceOptions) -> ListFormat | None:
    return None if options.input_format is None else _FORMATS[options.input_format]


def _open_file(given: str, path: str, options: SourceOptions) -> Source:
    suffix = suffix_of(path)
    fmt = list_format(path)
    if suffix not in IMAGE_SUFFIXES:
        fmt = _format(options) or fmt
    if fmt is not None and os.path.isfile(path):
        return ListSource(given, path, fmt, options.image_col, options.key_col)
    if fmt is not None:
        raise UsageError(f"{given!r} is not a regular file: pipe the list in, with INPUT -")
    if suffix in _UNREAD.split():
        raise _not_a_list(given)
    return OneSource(given, "file")


def _not_a_list(given: str) -> UsageError:
    return UsageError(
        f"{given!r}: this kind of file is not read. Lists are {' '.join(LIST_SUFFIXES)} (also with "
        ".gz); for another suffix give --input-format"
    )


def _open_glob(given: str) -> GlobSource:
    suffix = suffix_of(given)
    if suffix in LIST_SUFFIXES:
        raise UsageError(f"{given!r}: a glob names images; name lists one by one, without quotes")
    if suffix in _UNREAD.split():
        raise _not_a_list(given)
    return GlobSource(given)


class Inputs:
    """The refs of all INPUTs in order, as a stream that holds no list of them.

    Each iteration starts anew, except over standard input, which can be read once. `index` counts
    from 0; keys are unique (repeats get `#2`, `#3`, …).

    resume_by: what tells inputs apart between runs: their index if all INPUTs are lists, else
        their key.
    columns: names that every row has as a field; None if unknown before reading.
    left_out, left_out_suffixes: files passed over by the scans of the latest iteration.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._latest = LeftOut()
        self._stdin_read = False
        lists = [s for s in sources if isinstance(s, ListSource)]
        self.has_stdin = any(source.is_stdin for source in lists)
        self.resume_by: Literal["index", "key"] = "index" if len(lists) == len(sources) else "key"
        self.columns = _common_columns(sources)

    @property
    def left_out(self) -> int:
        return self._latest.total

    @property
    def left_out_suffixes(self) -> Counter[str]:
        return self._latest.suffixes

    def __iter__(self) -> Iterator[ImageRef | Failure]:
        if self.has_stdin and self._stdin_read:
            raise VlbatchError("standard input has been read already; it can't be read again")
        self._stdin_read = True
        self._latest = LeftOut()
        return self._refs(self._latest)

    def _refs(self, left_out: LeftOut) -> Iterator[ImageRef | Failure]:
        index = 0
        unique = Keys().unique if self._may_repeat() else _as_it_is
        for source in self._sources:
            base = source.base
            for row in _readable(source, left_out):
                if isinstance(row, BadRow):
                    name = f"{source.given}:{row.line}"
                    key, repeat = unique(name)
                    ref = ImageRef(index, key, name, base, row.fields, repeat)
                    yield Failure(ref, "source", row.code, row.message)
                else:
                    given, uri, fields = row
                    key, repeat = unique(given)
                    yield ImageRef(index, key, uri, base, fields, repeat)
                index += 1

    def _may_repeat(self) -> bool:
        return len(self._sources) > 1 or isinstance(self._sources[0], ListSource)

    def describe(self) -> list[dict[str, Any]]:
        """One entry each INPUT for the run's manifest; lists with their size and SHA-256."""
        return [source.describe() for source in self._sources]

    def count(self, stop: threading.Event) -> int | None:
        """How many inputs there are, by a pass of its own. None if it can't be known: for standard
        input, once `stop` is set, or where an INPUT can't be read to its end.
        """
        if self.has_stdin:
            return None
        total = 0
        rows = chain.from_iterable(_readable(source, LeftOut()) for source in self._sources)
        try:
            while step := sum(1 for _ in islice(rows, 1000)):
                total += step
                if stop.is_set():
                    return None
        except VlbatchError:
            return None
        return total


def _as_it_is(key: str) -> tuple[str, int]:
    return key, 1


def _readable(source: Source, left_out: LeftOut) -> Iterator[Row]:
    """The rows of `source`. Raises VlbatchError if it is gone or can't be read any more."""
    try:
        yield from source.rows(left_out)
    except OSError as error:
        raise VlbatchError(f"{source.given!r}: can't be read: {error.strerror}") from error


def _common_columns(sources: Sequence[Source]) -> frozenset[str] | None:
    """Names that all sources have; of those unknown before reading nothing can be said."""
    columns = [source.columns for source in sources]
    known = [names for names in columns if names is not None]
    if len(known) < len(columns):
        return None
    return frozenset.intersection(*known)
