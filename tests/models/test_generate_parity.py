"""Law: each image gets the caption that plain transformers gives it alone, whatever the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import (
    FAMILIES,
    FEATURE_FAMILIES,
    NUM_TOKENS,
    Oracle,
    Ours,
    assert_same,
    middle_token,
    rows,
    set_stop_id,
)
from tiny import tiny_folder

from vlbatch.models import features
from vlbatch.models.generate import ReferenceGenerator
from vlbatch.records import Generation

__all__ = ["tiny_folder"]  # a fixture

# PaliGemmaProcessor makes labels with np.array(tensor), which NumPy 2 has a new protocol for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROWS = rows()


class Family:
    """One class: our rows, and what its own `generate` gives each of them alone."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        oracle = Oracle(name, folder)
        self.ours = Ours(name, folder)
        set_stop_id(oracle.model, -1)
        token = middle_token([oracle.caption(row) for row in ROWS])
        set_stop_id(oracle.model, token)
        set_stop_id(self.ours.loaded.model, token)
        self.expected = {i: oracle.caption(row) for i, row in enumerate(ROWS)}
        self.items = self.ours.inputs(ROWS)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Iterator[Family]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Family(request.param, tiny_folder(request.param))
    torch.set_num_threads(threads)


def test_test_can_fail(family: Family) -> None:
    """Images change captions, captions end early and late, prompts have several lengths."""
    captions = [caption.token_ids for caption in family.expected.values()]
    assert len(set(captions)) > len(captions) // 2
    lengths = {len(ids) for ids in captions}
    assert min(lengths) < NUM_TOKENS - 2
    assert max(lengths) >= NUM_TOKENS - 1
    assert len({len(item.input_ids) for item in family.items}) >= 2
    first = torch.stack([caption.logits[0] for caption in family.expected.values()])
    spread = (first[::2] - first[0]).abs().amax(dim=1)[1:] / first.abs().max()
    assert spread.min() > 1e-3, "some image does not change the logits"


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7])
@pytest.mark.parametrize("vision_batch_size", [1, 2, 64])
def test_same_tokens_in_any_batch(family: Family, chunk_size: int, vision_batch_size: int) -> None:
    outcomes, generator = family.ours.captions(
        family.items, chunk_size=chunk_size, vision_batch_size=vision_batch_size
    )
    assert len(outcomes) == len(ROWS)
    for index, caption in family.expected.items():
        outcome = outcomes[index]
        assert isinstance(outcome, Generation)
        assert outcome.token_ids == caption.token_ids
        is_cut = len(caption.token_ids) == NUM_TOKENS
        assert outcome.finish_reason == ("length" if is_cut else "stop")
    sizes = generator.vision_batches
    assert sum(sizes) == len(ROWS)
    assert max(sizes) == min(chunk_size, vision_batch_size, _largest_group(family))


def _largest_group(family: Family) -> int:
    generator = family.ours.generator()
    keys = [generator.batch_key(item) for item in family.items]
    return max(keys.count(key) for key in keys)


def test_options_change_the_batches(family: Family) -> None:
    def counters(**options: int) -> tuple[int, int]:
        _, generator = family.ours.captions(family.items, **options)
        return generator.num_batches, len(generator.vision_batches)

    alone = counters(chunk_size=1, vision_batch_size=1)
    assert alone == (len(ROWS), len(ROWS))
    wide, narrow = (counters(chunk_size=7, vision_batch_size=size) for size in (64, 2))
    assert wide[0] < len(ROWS)
    assert wide[1] < narrow[1] < len(ROWS)
    if family.name in FEATURE_FAMILIES:
        assert wide[0] == narrow[0], "the vision batch must not cut the language model's"


@pytest.mark.parametrize(("chunk_size", "vision_batch_size"), [(7, 2), (3, 64)])
def test_same_logits(
    family: Family, chunk_size: int, vision_batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaVA-NeXT's tiles are padded here (see test_tiles_are_padded)."""
    ours = family.ours.with_logits(
        family.items, monkeypatch, chunk_size=chunk_size, vision_batch_size=vision_batch_size
    )
    assert_same(ours, family.expected)


def test_tiles_are_padded(family: Family) -> None:
    if family.name != "llava_next":  # alone in having equal prompt lengths with unequal tiles
        return
    generator = family.ours.generator()
    tiles: dict[Any, set[int]] = {}
    for item in family.items:
        tiles.setdefault(generator.batch_key(item), set()).add(
            item.tensors["pixel_values"].shape[1]
        )
    assert any(len(counts) > 1 for counts in tiles.values())


def _rolled(inputs: dict[str, Any]) -> dict[str, Any]:
    """Each row's image goes to the next row."""
    if "mm_encoder_outputs" not in inputs:
        return inputs | {"pixel_values": inputs["pixel_values"].roll(1, dims=0)}
    output = inputs["mm_encoder_outputs"]["image"]
    rows = output.pooler_output
    if torch.is_tensor(rows):
        shift = len(rows) // len(inputs["input_ids"])
        output.pooler_output = rows.roll(shift, dims=0)
    else:
        output.pooler_output = [*rows[-1:], *rows[:-1]]
    return inputs


def test_rolled_images_are_caught(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = ReferenceGenerator._inputs
    monkeypatch.setattr(
        ReferenceGenerator, "_inputs", lambda self, batch: _rolled(inputs(self, batch))
    )
    _assert_caught(family, monkeypatch, vision_batch_size=64)


def test_reused_features_are_caught(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """The features of a vision batch stand in for the next one's: the fault of a reused buffer."""
    if family.name not in FEATURE_FAMILIES:  # the others' towers run inside generate
        return
    encode = features.ImageEncoder._encode
    last: list[Any] = []

    def stale(self: Any, images: Any) -> Any:
        output = encode(self, images)
        stale_output = last[0] if last and _like(last[0], output) else output
        last[:] = [output]
        return stale_output

    monkeypatch.setattr(features.ImageEncoder, "_encode", stale)
    _assert_caught(family, monkeypatch, vision_batch_size=1)


def _like(a: Any, b: Any) -> bool:
    return [len(x) for x in a.pooler_output] == [len(x) for x in b.pooler_output]


def _assert_caught(family: Family, patch: pytest.MonkeyPatch, *, vision_batch_size: int) -> None:
    ours = family.ours.with_logits(
        family.items, patch, chunk_size=7, vision_batch_size=vision_batch_size
    )
    with pytest.raises(AssertionError, match="row"):
        assert_same(ours, family.expected)
