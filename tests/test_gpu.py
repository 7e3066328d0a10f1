"""On an NVIDIA GPU: the same right captions, in any batch. `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from vlbatch import Captioner
from vlbatch.demo import IMAGES_DIR, samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("chunk_size", "vision_batch_size"), [(1, 1), (5, 2), (16, 16)])
def test_sample_captions_are_right(dtype: str, chunk_size: int, vision_batch_size: int) -> None:
    right = samples()
    with Captioner(
        device="cuda", dtype=dtype, chunk_size=chunk_size, vision_batch_size=vision_batch_size
    ) as captioner:
        records = list(captioner([IMAGES_DIR / name for name in right]))
    captions = {record.index: record.caption for record in records}
    wrong = [name for n, name in enumerate(right) if captions[n] != right[name]]
    # bfloat16 is not what the model was checked with: one picture in twelve may differ
    assert len(wrong) <= (0 if dtype == "float32" else 1), wrong


def test_sampling_is_the_rows_own() -> None:
    names = sorted(samples())
    found = []
    for chunk_size in (1, 16):
        with Captioner(device="cuda", temperature=0.7, seed=3, chunk_size=chunk_size) as captioner:
            records = captioner([IMAGES_DIR / name for name in names])
            found.append({record.index: record.caption for record in records})
    assert found[0] == found[1]
