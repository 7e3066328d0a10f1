"""The sink: where rows end, and what says which inputs have theirs already."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, BinaryIO

from vlbatch.errors import OutputError, ResumeRefused, UsageError
from vlbatch.records import CaptionRecord, Failure, ImageRef, public_uri
from vlbatch.sink.encode import encode_row
from vlbatch.sink.lock import lock
from vlbatch.sink.manifest import (
    Manifest,
    ResumeBy,
    differences,
    list_changes,
    manifest_path,
    new_manifest,
    read_manifest,
    resumed,
    version_changes,
    write_manifest,
)
from vlbatch.sink.marks import IndexMarks, KeyMarks, row_identity
from vlbatch.sink.resume import load_marks, read_rows
from vlbatch.sink.writer import LineFile, LineStream, cut

STDOUT = "-"


class Sink:
    """The JSONL output of a run: goes on after the rows that are there, appends the new ones.

    path: the output, or `-` for stdout, which is never resumed and has no manifest; neither has
        anything that is not a regular file, such as a FIFO.
    settings: what captions depend on, by option name (`max_new_tokens`).
    versions: of the packages and the device that captions depend on, by name.
    inputs: one mapping for each INPUT: `input` as it was given, `sha256` of a list's content;
        whatever else is there is kept in the manifest and not compared.
    resume_by: how inputs find their rows: `index` (the same lists) or `key` (folders, or lists
        that grew).
    overwrite: drop the rows that are there, once there is a first row to take their place.

    Opened by the constructor, which raises UsageError (no such folder, in use by another run) and
    ResumeRefused (rows of another run; the text names the differences).

    notices: lines for the user about what was found; say them once.
    rows_before: rows found in the output, kept.
    skipped: inputs that `pending` left out, so far.

    One thread may go through `pending` while another writes.
    """

    def __init__(
        self,
        path: str,
        *,
        settings: Mapping[str, Any],
        versions: Mapping[str, str],
        inputs: Sequence[Mapping[str, Any]],
        resume_by: ResumeBy,
        overwrite: bool = False,
    ) -> None:
        self.notices: list[str] = []
        self.rows_before = 0
        self.skipped = 0
        self._path = path
        self._replace_by: Manifest | None = None  # the output's rows go before the first write
        self._indices = IndexMarks()
        self._keys = KeyMarks() if resume_by == "key" else None
        if path == STDOUT:
            self._out: LineFile | LineStream = LineStream(_stdout(), "stdout")
            return
        fd = _open(path)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._take_over(
                    fd, new_manifest(settings, versions, inputs, resume_by), overwrite=overwrite
                )
        except BaseException:
            os.close(fd)
            raise
        self._out = LineFile(fd, path)

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # the first error is the one to hear of
            with contextlib.suppress(OutputError):
                self.close()

    def pending(self, items: Iterator[ImageRef | Failure]) -> Iterator[ImageRef | Failure]:
        """The items that have no row yet.

        By key an item keeps its index if that is free; else it gets the next beyond all.
        """
        for item in items:
            ref = item.ref if isinstance(item, Failure) else item
            if self._is_done(ref):
                self.skipped += 1
            elif self._keys is None or self._indices.add(ref.index):
                yield item
            else:
                yield _with_index(item, self._next_index())

    @property
    def vanished(self) -> int:
        """Rows whose input did not come again, once `pending` is through; 0 by index."""
        return 0 if self._keys is None else self._keys.num_left

    def write(self, records: Sequence[CaptionRecord]) -> None:
        """Appends the rows in one write, and syncs when that is due.

        Raises OutputError (disk full, I/O error): rows written before are intact. stdout and
        FIFOs raise BrokenPipeError when their reader is gone.
        """
        if records:
            self._replace()
            self._out.append([encode_row(record) for record in records])

    def _replace(self) -> None:
        """Empties the output that --overwrite is for: a run that fails before has cost nothing."""
        if self._replace_by is not None:
            assert isinstance(self._out, LineFile)
            self._out.truncate()
            write_manifest(self._path, self._replace_by)
            self._replace_by = None

    def tick(self) -> None:
        """Syncs if that is due; to be called while no rows come. Raises OutputError."""
        self._out.tick()

    def flush(self) -> None:
        """Brings all rows to disk. Raises OutputError."""
        self._out.flush()

    def close(self) -> None:
        """Brings all rows to disk and frees the output for other runs. Raises OutputError."""
        self._out.close()

    @property
    def rows_written(self) -> int:
        """Rows of this run that outlive a kill."""
        return self._out.rows_written

    @property
    def rows_durable(self) -> int:
        """Rows of this run that outlive a power cut."""
        return self._out.rows_durable

    def _is_done(self, ref: ImageRef) -> bool:
        if self._keys is None:
            return ref.index in self._indices
        return self._keys.take(row_identity(public_uri(ref.key), public_uri(ref.uri)))

    def _next_index(self) -> int:
        index = self._indices.top
        self._indices.add(index)
        return index

    def _take_over(self, fd: int, new: Manifest, *, overwrite: bool) -> None:
        """Locks the output, and leaves it with a manifest that holds for all of its rows."""
        if notice := lock(fd, self._path):
            self.notices.append(notice)
        if overwrite and os.fstat(fd).st_size > 0:
            self._check_ours(fd)
            self._replace_by = new
            return
        if os.fstat(fd).st_size == 0:
            write_manifest(self._path, new)
            return
        old = read_manifest(self._path)
        if self._has_rows():
            self._check_same_run(old, new)
        self._load_rows(fd)
        current = resumed(old, new) if self.rows_before else new
        if current != old:
            write_manifest(self._path, current)

    def _check_ours(self, fd: int) -> None:
        """--overwrite means rows of an earlier run, not whatever was named by mistake."""
        is_ours = os.fstat(fd).st_size == 0 or os.path.exists(manifest_path(self._path))
        with contextlib.suppress(ResumeRefused):
            is_ours = is_ours or self._has_rows()
        if not is_ours:
            raise UsageError(
                f"-o/--output {self._path} is not an output of vlbatch, so --overwrite leaves it "
                "alone; remove it first, or give another file"
            )

    def _has_rows(self) -> bool:
        with open(self._path, "rb") as file:
            return next(read_rows(file, self._path), None) is not None

    def _check_same_run(self, old: Manifest, new: Manifest) -> None:
        refuse_other_runs(self._path, old, new)
        if changes := version_changes(old, new):
            self.notices.append(f"{self._path}: earlier rows are of {', '.join(changes)}")
        self.notices += [f"{change}; rows are matched by key" for change in list_changes(old, new)]

    def _load_rows(self, fd: int) -> None:
        with open(self._path, "rb") as file:
            end, self.rows_before, num_repeats = load_marks(
                file, self._path, self._indices, self._keys
            )
        if num_repeats:
            self.notices.append(
                f"{self._path}: {num_repeats:,} rows repeat the index of another; "
                "`vlbatch verify` tells which"
            )
        if torn := os.fstat(fd).st_size - end:
            cut(fd, end, self._path)
            self.notices.append(
                f"{self._path}: cut a torn last line of {torn:,} bytes; its row is made again"
            )


def what_is_there(
    path: str,
    *,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    inputs: Sequence[Mapping[str, Any]],
    resume_by: ResumeBy,
) -> int:
    """How many rows a run would go on after in the file `path`, which is left as it is.

    Raises ResumeRefused as `Sink` would.
    """
    if os.path.getsize(path) == 0:
        return 0
    new = new_manifest(settings, versions, inputs, resume_by)
    refuse_other_runs(path, read_manifest(path), new)
    with open(path, "rb") as file:
        return load_marks(file, path, IndexMarks(), None)[1]


def refuse_other_runs(path: str, old: Manifest, new: Manifest) -> None:
    """Raises ResumeRefused, naming each difference, where rows of `old` are not those of `new`."""
    if found := differences(old, new):
        raise ResumeRefused(
            f"{path} holds rows of another run: {'; '.join(found)}. Repeat that run's "
            "options to go on, give another -o/--output, or --overwrite to start again"
        )


def _stdout() -> BinaryIO:
    buffer: BinaryIO | None = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        raise UsageError("-o/--output -: there is no stdout to write to; give a file")
    return buffer


def _open(path: str) -> int:
    """Opens the output for appending, created if need be. Raises UsageError."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"-o/--output {path} is a folder; give a file, such as {path}/out.jsonl")
    if not os.path.isdir(folder):
        raise UsageError(f"-o/--output {path}: there is no folder {folder}; make it first")
    # A FIFO opened for reading too would not wait for its reader.
    flags = os.O_WRONLY if _is_fifo(path) else os.O_RDWR
    flags |= os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise UsageError(f"-o/--output {path} can't be written: {error.strerror}") from None


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _with_index(item: ImageRef | Failure, index: int) -> ImageRef | Failure:
    if isinstance(item, Failure):
        return replace(item, ref=replace(item.ref, index=index))
    return replace(item, index=index)
