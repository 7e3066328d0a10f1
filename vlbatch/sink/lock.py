"""One run at a time writes an output: an exclusive `flock` on the file, freed with its process."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from vlbatch.errors import UsageError

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


def lock(fd: int, path: str) -> str | None:
    """Takes the lock on the open output `fd` until it is closed.

    Returns a notice where the file system has no locks; None when the lock is held (or, on a
    platform without `fcntl`, when there is nothing to hold). Raises UsageError if another process
    has it.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            return f"{path}: this file system has no locks; run one vlbatch at a time on it"
        pid = _holder(fd)
        other = f"process {pid}" if pid else "another process"
        raise UsageError(
            f"-o/--output {path}: {other} is writing to it; wait for it or give another file"
        ) from None
    return None


def _holder(fd: int) -> int | None:
    """The process that holds the lock, where the kernel tells (Linux, local file systems)."""
    stat = os.fstat(fd)
    file = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 4242 fe:00:1234 0 EOF
        words = line.split()
        if words[1] == "FLOCK" and words[5] == file and int(words[4]) > 0:
            return int(words[4])
    return None
