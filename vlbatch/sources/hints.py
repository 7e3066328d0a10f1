"""What to say of an INPUT that can't be used: near names, and what is allowed."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from itertools import islice

from vlbatch.errors import UsageError

#: Names of a folder that are looked through for a near one.
_NAMES = 10_000

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|data:|javascript:")


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the word nearest to `word`, or empty if none is near."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def no_such_file(path: str) -> UsageError:
    """The error of a path that is not there: names the part that is missing, and a near name."""
    try:
        os.stat(path)
    except PermissionError:
        return UsageError(f"{path!r}: can't be read: permission denied")
    except (OSError, ValueError):
        pass
    folder, name = os.path.split(path.rstrip("/") or path)
    while folder and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    missing = f"{folder}/{name}" if folder else name
    what = "no such file or folder" if missing == path.rstrip("/") else f"no folder {missing!r}"
    return UsageError(f"{path!r}: {what}{nearest(name, _names(folder))}")


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder or ".") as entries:
            return [entry.name for entry in islice(entries, _NAMES)]
    except OSError:
        return []


def unknown_scheme(given: str) -> UsageError | None:
    """The error of something like `s3://…`, or None if `given` has no scheme."""
    match = _SCHEME.match(given)
    if match is None:
        return None
    return UsageError(f"{match[0]}… can't be fetched: INPUT is a path, a file: URI or http(s) URL")
