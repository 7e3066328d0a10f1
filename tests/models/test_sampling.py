from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.config import Config
from vlbatch.models.sampling import GumbelNoise, StepWatch, logits_processors, row_seed

IDS = torch.zeros(1, 1, dtype=torch.long)


def test_noise_draws_from_the_softmax() -> None:
    """4,000 draws of 4 tokens: each share within 4 standard deviations."""
    logits = torch.tensor([2.0, 1.0, 0.0, -torch.inf])
    seeds = [row_seed(0, str(key), "") for key in range(4000)]
    drawn = GumbelNoise(seeds)(IDS, logits.expand(4000, 4)).argmax(dim=1)
    shares = torch.bincount(drawn, minlength=4) / 4000
    expected = logits.softmax(dim=0)
    assert ((shares - expected).abs() <= 4 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_steps_of_a_row_differ() -> None:
    noise = GumbelNoise([5])
    first, second = (noise(IDS, torch.zeros(1, 64)) for _ in range(2))
    assert not torch.equal(first, second)


@given(st.integers(0), st.text(st.characters(codec="utf-8")), st.text(max_size=5))
def test_row_seed_fits_torch(seed: int, key: str, name: str) -> None:
    value = row_seed(seed, key, name)
    assert 0 <= value < 2**63
    assert value == row_seed(seed, key, name)
    assert value != row_seed(seed + 1, key, name)


def test_key_that_is_not_utf8_has_a_seed() -> None:
    assert row_seed(0, "caf\udce9.jpg", "") != row_seed(0, "café.jpg", "")


def test_watch_remembers_the_first_broken_step() -> None:
    watch = StepWatch()
    assert watch.broken_steps() == []
    sound = [0.0, -torch.inf]
    for row in ([torch.nan, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]):
        watch(IDS, torch.tensor([sound, sound]))
        watch(IDS, torch.tensor([sound, row]))
    assert watch.num_steps == 6
    assert watch.broken_steps() == [None, 1]


def test_whole_numbers_are_taken() -> None:
    _, processors = logits_processors(Config(temperature=1, top_p=1, top_k=5), [1])
    assert len(processors) == 4
    _, greedy = logits_processors(Config(), [1])
    assert len(greedy) == 1
