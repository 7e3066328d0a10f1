"""What an earlier run left in the output: its whole rows, and where they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import orjson

from vlbatch.errors import ResumeRefused
from vlbatch.sink.marks import IndexMarks, KeyMarks, row_identity

_INDEX_LIMIT = 1 << 33  # an index beyond it is damage; the bitmap up to it is 1 GiB


def read_rows(file: BinaryIO, path: str) -> Iterator[tuple[int, int, str]]:
    """Each whole row as (offset of its end in bytes, index, `row_identity`); stops before a torn
    last line.

    Raises ResumeRefused at a damaged line with others after it: no stopped write leaves one.
    """
    end = 0
    for number, line in enumerate(file, start=1):
        row = _parse(line)
        if row is None:
            if not file.read(1):
                return
            raise ResumeRefused(
                f"{path}: line {number} is not a row; `head -n {number - 1} {path}` keeps the rows "
                "before it, --overwrite starts again"
            )
        end += len(line)
        yield end, *row


def load_marks(
    file: BinaryIO, path: str, indices: IndexMarks, keys: KeyMarks | None
) -> tuple[int, int, int]:
    """Marks every whole row of the output, its key too if `keys` is given.

    Returns (end of the last whole row in bytes, rows, rows whose index an earlier one had).
    Raises ResumeRefused as `read_rows`.
    """
    end = num_rows = num_repeats = 0
    for end, index, key in read_rows(file, path):  # noqa: B007
        num_rows += 1
        num_repeats += not indices.add(index)
        if keys is not None:
            keys.add(key)
    return end, num_rows, num_repeats


def _parse(line: bytes) -> tuple[int, str] | None:
    """Index and `row_identity` of a whole line, or None if it is not a row."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = orjson.loads(line)
        index, key, image = row["index"], row["key"], row["image"]
    except (ValueError, KeyError, TypeError):
        return None
    whole = type(index) is int and 0 <= index < _INDEX_LIMIT and isinstance(key, str)
    return (index, row_identity(key, str(image))) if whole else None
