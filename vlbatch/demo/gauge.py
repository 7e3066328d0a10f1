"""Teacher-forced accuracy: an answer counts where every token of it is the model's first choice.

That is greedy exact match without generating, so thousands of held-out scenes take seconds on a
GPU. The figures of the model card come from `evaluate.py`, which goes through files and `generate`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vlbatch.demo import forward, packing, pictures, raster
from vlbatch.demo.batches import BatchMaker, Mix
from vlbatch.demo.grammar import Scene
from vlbatch.demo.questions import KINDS
from vlbatch.demo.sprites import Atlas

Scores = dict[str, tuple[int, int]]  # name -> right, asked


def _tally(
    right: Tensor, labels: Tensor, segments: Tensor, kinds: list[list[int]], mix: Mix,
    scenes: list[Scene], scores: dict[str, list[bool]],
) -> None:  # fmt: skip
    """Add the verdict on every question to `scores`."""
    wrong = (labels >= 0) & ~right
    for place, row_kinds in enumerate(kinds):
        group = "single" if mix.grid(place) == (0, 0) else "split"
        for number, kind in enumerate(row_kinds, 1):
            ok = not bool(wrong[place][segments[place] == number].any())
            scores[f"{group} {KINDS[kind]}"].append(ok)
            if number > 1:
                continue
            scores[f"{group} caption, {scenes[place].layout}"].append(ok)
            if scenes[place].cannot is not None:
                scores[f"{group} caption, cannot describe"].append(ok)
            if scenes[place].num_objects >= 2:
                scores[f"{group} caption, two objects or more"].append(ok)


@torch.no_grad()
def gauge(
    model: Any,
    tokenizer: Tokenizer,
    atlas: Atlas,
    *,
    sets: tuple[str, ...],
    num_batches: int = 4,
    batch_size: int = 512,
    fault: str | None = None,
) -> Scores:
    """Scores on held-out seeds 0.., by group, kind and layout.

    fault: None, "rolled" (each image gets its neighbour's features), "reversed" (local tiles in
    reverse order) or "other" (each whole-picture tile is its neighbour's).
    """
    device = next(model.parameters()).device
    mix = Mix.of(batch_size)
    maker = BatchMaker(mix, atlas, tokenizer, sets, clean=True)
    table = raster.texels(atlas, device)
    rotary = forward.rotary_tables(model, packing.LENGTH, device)
    scores: dict[str, list[bool]] = defaultdict(list)
    for number in range(num_batches):
        batch, kinds, scenes = maker.make(number * batch_size)
        batch = batch.to(device)
        image = pictures.frames(batch, table)
        if fault == "rolled":
            groups = torch.split(image, [mix.square, mix.wide, mix.tall, mix.single])
            image = torch.cat([group.roll(1, 0) for group in groups])
        tiles = pictures.tiles(image, mix, untrusted=False, fault=fault)
        logits = forward.answer_logits(
            model, tiles, batch.ids, batch.slots, batch.positions, batch.segments, rotary,
            packing.PREFIX,
        )  # fmt: skip
        right = logits.argmax(-1) == batch.labels
        segments = batch.segments[:, packing.PREFIX :]
        _tally(right.cpu(), batch.labels.cpu(), segments.cpu(), kinds, mix, scenes, scores)
    return {name: (sum(oks), len(oks)) for name, oks in sorted(scores.items())}
