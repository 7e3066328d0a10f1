"""Sampling that depends on the row alone, as logits processors of plain `generate`.

The noise of a token is a function of (run seed, row key, step), so that a sampled caption is the
same in any batch (Gumbel-max: argmax of logits + Gumbel noise draws from their softmax).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from vlbatch.config import Config


class StepWatch(LogitsProcessor):  # type: ignore[misc]
    """Counts the steps, and remembers for each row the first whose logits no token can be taken
    from: a NaN, a +inf, or nothing but bans (-inf)."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._broken: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.num_steps += 1
        self._broken.append(~scores.amax(dim=-1).isfinite())
        return scores

    def broken_steps(self) -> list[int | None]:
        """The step at which each row of the batch broke first; None for a sound row."""
        if not self._broken:
            return []
        rows = torch.stack(self._broken, dim=1).tolist()
        return [row.index(True) if True in row else None for row in rows]


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Adds each row's own noise: `row_seeds[i]` seeds row i, the step number continues it."""

    def __init__(self, row_seeds: Sequence[int]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in row_seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        vocab = scores.shape[-1]  # scores: [B, vocab]
        # Doubles: with 24 random bits a large vocabulary would meet the ends of the range.
        uniform = torch.stack(
            [torch.rand(vocab, generator=g, dtype=torch.float64) for g in self._generators]
        )
        gumbel = -torch.log(-torch.log(uniform))
        return scores.float() + gumbel.to(scores.device, torch.float32)


def row_seed(seed: int, key: str, prompt_name: str) -> int:
    """The 63-bit seed of one caption."""
    text = f"{seed}\0{key}\0{prompt_name}".encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def logits_processors(
    config: Config, row_seeds: Sequence[int]
) -> tuple[StepWatch, LogitsProcessorList]:
    """The watch, and the list for `generate(logits_processor=…)`: greedy, or the row's sampling."""
    watch = StepWatch()
    processors: list[LogitsProcessor] = []
    if config.temperature > 0:
        processors.append(TemperatureLogitsWarper(float(config.temperature)))
        if config.top_k:
            processors.append(TopKLogitsWarper(config.top_k))
        if config.top_p < 1:
            processors.append(TopPLogitsWarper(float(config.top_p)))
    processors.append(watch)  # after the warpers: a tiny temperature overflows
    if config.temperature > 0:
        processors.append(GumbelNoise(row_seeds))
    return watch, LogitsProcessorList(processors)
