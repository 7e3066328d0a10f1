"""On an NVIDIA GPU: right captions, and whether they depend on the batch.

`pytest -m gpu -n 0 -s` prints the figures.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from vlbatch import Captioner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SCENES = Path(__file__).parent / "demo" / "scenes"
ROWS = [
    json.loads(line) for line in (SCENES.parent / "scenes.jsonl").read_text("utf-8").splitlines()
]


def caption_all(**options: object) -> dict[int, str | None]:
    with Captioner(device="cuda", **options) as captioner:
        start = time.monotonic()
        records = list(captioner([SCENES / Path(row["file"]).name for row in ROWS]))
        seconds = time.monotonic() - start
    print(f"\n{options}: {len(records) / seconds:.1f} images/s")  # noqa: T201
    return {record.index: record.caption for record in records}


@pytest.mark.parametrize(("dtype", "may_differ"), [("float32", 0), ("bfloat16", 10)])
def test_same_right_captions_in_any_batch(dtype: str, may_differ: int) -> None:
    """bfloat16 rounds by the shape of the batch, so that a few of 200 captions may differ."""
    base = caption_all(dtype=dtype)
    exact = sum(base[n] == row["caption"] for n, row in enumerate(ROWS))
    print(f"{dtype}: {exact} of {len(ROWS)} exactly right")  # noqa: T201
    assert exact >= 0.93 * len(ROWS)
    for chunk_size, vision_batch_size in [(1, 1), (7, 3), (64, 64)]:
        found = caption_all(dtype=dtype, chunk_size=chunk_size, vision_batch_size=vision_batch_size)
        differ = sum(found[n] != caption for n, caption in base.items())
        print(f"{dtype}, chunk {chunk_size}: {differ} differ")  # noqa: T201
        assert differ <= may_differ


def test_sampling_is_the_row_s_own() -> None:
    found = [caption_all(dtype="float32", temperature=0.7, seed=3, chunk_size=n) for n in (5, 32)]
    assert found[0] == found[1]
