"""Appends whole lines to an output: a file that lasts, or a stream that is read as it comes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from vlbatch.errors import OutputError

FSYNC_ROWS = 512
FSYNC_SECONDS = 5.0
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_CANT_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


class LineFile:
    """Appends to an open file (O_APPEND), which it owns; BrokenPipeError of a FIFO is passed on.

    Laws: lines are written whole, or the part that was written is cut off again; at most
    FSYNC_ROWS rows, or those of FSYNC_SECONDS, are lost to a power cut, none to a kill.
    rows_written, rows_durable: rows of this run, handed to the system and known to be on disk.
    """

    def __init__(self, fd: int, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._path = path
        self._clock = clock
        self._synced_at = clock()
        self.rows_written = 0
        self.rows_durable = 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Writes the lines (each ends in a newline) in one call. Raises OutputError."""
        data = b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except BrokenPipeError:
            raise
        except OSError as error:
            self._cut_partial(data[:written])
            raise _output_error(self._path, error) from error
        self.rows_written += len(lines)
        self.tick()

    def truncate(self) -> None:
        """Empties the file, on disk before anything follows. Raises OutputError."""
        cut(self._fd, 0, self._path)

    def tick(self) -> None:
        """Syncs if it is time to; for a caller that has nothing to write. Raises OutputError."""
        pending = self.rows_written - self.rows_durable
        if not pending:
            self._synced_at = self._clock()
        elif pending >= FSYNC_ROWS or self._clock() - self._synced_at >= FSYNC_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Brings every row to disk. Raises OutputError, also if the file is not there any more."""
        self._check_still_there()
        if self.rows_durable < self.rows_written:
            try:
                os.fsync(self._fd)
            except OSError as error:
                if error.errno not in _CANT_SYNC:
                    last = self.rows_written - self.rows_durable
                    state = f"its last {last:,} rows may not be on disk"
                    raise _output_error(self._path, error, state) from error
        self.rows_durable = self.rows_written
        self._synced_at = self._clock()

    def close(self) -> None:
        """Flushes and closes the file, closed also when OutputError is raised."""
        if self._fd < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._fd)
            self._fd = -1

    def _check_still_there(self) -> None:
        """Rows written to a file that has lost its name can't be found again."""
        here = os.fstat(self._fd)
        if not stat.S_ISREG(here.st_mode):
            return
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            raise OutputError(
                f"{self._path} was removed or replaced during the run; the rows in it are gone. "
                "The same command makes them again"
            )

    def _cut_partial(self, written: bytes) -> None:
        """Keeps the whole lines of a failed write and cuts the rest off."""
        whole = written.rfind(b"\n") + 1
        self.rows_written += written.count(b"\n")
        with contextlib.suppress(OSError):  # else the next run cuts it
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - (len(written) - whole))


class LineStream:
    """Writes to stdout, flushed at once.

    BrokenPipeError is passed on: the reader has enough.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self.rows_written = 0

    @property
    def rows_durable(self) -> int:
        """Rows handed over: all that were written."""
        return self.rows_written

    def append(self, lines: Sequence[bytes]) -> None:
        """Writes the lines. Raises OutputError, BrokenPipeError."""
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _output_error(self._path, error) from error
        self.rows_written += len(lines)

    def tick(self) -> None:
        """Nothing is ever due."""

    def flush(self) -> None:
        """Nothing is ever held back."""

    def close(self) -> None:
        """Leaves the stream open: it is its opener's."""


def cut(fd: int, size: int, path: str) -> None:
    """Cuts a file to `size` bytes, on disk before anything follows. Raises OutputError."""
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    except OSError as error:
        raise OutputError(f"can't cut {path} to its whole rows: {error.strerror}") from error


def _output_error(
    path: str, error: OSError, state: str = "the rows written so far are intact"
) -> OutputError:
    when = "there is room" if error.errno in _NO_ROOM else "it can be written again"
    return OutputError(
        f"can't write {path}: {error.strerror}; {state}; the same command goes on once {when}"
    )
