"""What the tests of the sink share: a run of N inputs, and reading back its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlbatch.records import CaptionRecord, ImageRef
from vlbatch.sink import Sink

RUN: dict[str, Any] = {
    "settings": {"prompt": "A", "max_new_tokens": 64, "top_p": None},
    "versions": {"torch": "2.11.0"},
    "inputs": [{"input": "list.txt", "sha256": "ab" * 32}],
    "resume_by": "index",
}


def open_sink(path: Path, **changes: Any) -> Sink:
    return Sink(str(path), **(RUN | changes))


def refs(count: int, start: int = 0) -> Iterator[ImageRef]:
    return (ImageRef(i, f"k{i}.jpg", f"photos/k{i}.jpg") for i in range(start, count))


def record(ref: ImageRef, caption: str = "ä cat") -> CaptionRecord:
    return CaptionRecord(ref.index, ref.key, ref.uri, caption=caption, finish_reason="stop")


def caption_all(sink: Sink, items: Iterator[ImageRef], batch: int = 1) -> list[int]:
    """Writes a row for each pending item; the indices written."""
    records = [record(ref) for ref in sink.pending(items)]
    for start in range(0, len(records), batch):
        sink.write(records[start : start + batch])
    return [r.index for r in records]


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def indices(path: Path) -> list[int]:
    return [row["index"] for row in read_rows(path)]


def read_manifest(path: Path) -> dict[str, Any]:
    return json.loads(Path(f"{path}.run.json").read_text())
