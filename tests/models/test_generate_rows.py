"""What happens to single rows of a batch: how they end, what they draw, how they fail."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import FAMILIES, FEATURE_FAMILIES, NUM_TOKENS, Oracle, Ours, Row, picture, set_stop_id
from tiny import tiny_folder

from vlbatch.config import Config
from vlbatch.errors import ModelError
from vlbatch.models.generate import ReferenceGenerator
from vlbatch.models.sampling import StepWatch
from vlbatch.records import Failure, Generation, ModelInput

__all__ = ["tiny_folder"]  # a fixture

# PaliGemmaProcessor makes labels with np.array(tensor), which NumPy 2 has a new protocol for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROWS = [Row(picture((60, 44), seed), "a photo of") for seed in range(5)]
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 3}
BAD = 2


@pytest.fixture(scope="module", params=FAMILIES)
def ours(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Ours:
    torch.set_num_threads(1)
    ours = Ours(request.param, tiny_folder(request.param))
    set_stop_id(ours.loaded.model, -1)
    return ours


@pytest.fixture(scope="module")
def llava(tiny_folder: Callable[[str], Path]) -> Ours:
    ours = Ours("llava", tiny_folder("llava"))
    set_stop_id(ours.loaded.model, -1)
    return ours


def captions(ours: Ours, items: list[ModelInput], **options: Any) -> list[Generation | Failure]:
    outcomes, _ = ours.captions(items, **options)
    return [outcomes[item.ref.index] for item in items]


def texts(outcomes: list[Generation | Failure]) -> list[tuple[int, ...]]:
    assert all(isinstance(outcome, Generation) for outcome in outcomes)
    return [o.token_ids for o in outcomes if isinstance(o, Generation)]


def test_stop_token_is_cut_and_named(ours: Ours) -> None:
    items = ours.inputs(ROWS)
    free = texts(captions(ours, items))
    stop = free[0][3]
    set_stop_id(ours.loaded.model, stop)
    try:
        first = captions(ours, items)[0]
    finally:
        set_stop_id(ours.loaded.model, -1)
    assert isinstance(first, Generation)
    assert first.token_ids == free[0][: free[0].index(stop)]
    assert first.finish_reason == "stop"
    assert all(o.finish_reason == "length" for o in captions(ours, items))


def test_generation_tells_its_numbers(ours: Ours) -> None:
    (item,) = ours.inputs(ROWS[:1])
    (outcome,) = captions(ours, [item])
    assert isinstance(outcome, Generation)
    assert (outcome.width, outcome.height) == (60, 44)
    assert outcome.num_prompt_tokens == len(item.input_ids)
    assert outcome.num_image_tokens == item.num_image_tokens
    shown = outcome.token_ids
    if ours.loaded.model_type == "blip":
        assert outcome.text.startswith("a photo of")
        assert item.num_image_tokens == 0
        shown = (*item.input_ids, *shown)
    else:
        assert item.num_image_tokens > 0
    assert outcome.text == ours.loaded.processor.decode(shown, skip_special_tokens=True).strip()


def test_sampling_depends_on_the_row_alone(ours: Ours) -> None:
    items = ours.inputs(ROWS)
    alone = texts(captions(ours, items, chunk_size=1, **SAMPLED))
    for chunk_size, vision_batch_size in ((2, 1), (3, 64), (5, 2)):
        options = SAMPLED | {"chunk_size": chunk_size, "vision_batch_size": vision_batch_size}
        assert texts(captions(ours, items, **options)) == alone
        assert texts(captions(ours, items[::-1], **options)) == alone[::-1]
    assert texts(captions(ours, items, **SAMPLED | {"seed": 4})) != alone
    assert texts(captions(ours, items)) != alone


def test_equal_keys_draw_alike(ours: Ours) -> None:
    (item,) = ours.inputs(ROWS[:1])
    repeat = dataclasses.replace(item.ref, index=1, key=item.ref.key + "#2", repeat=2)
    other = dataclasses.replace(item.ref, index=2, key="another")
    items = [dataclasses.replace(item, ref=ref) for ref in (item.ref, repeat, other)]
    first, second, third = texts(captions(ours, items, **SAMPLED | {"temperature": 2.0}))
    assert first == second
    assert first != third


def test_not_finite_is_a_failure_of_its_row(ours: Ours) -> None:
    items = ours.inputs(ROWS)
    expected = texts(captions(ours, items))
    items[BAD] = _with_tensor(items[BAD], "pixel_values", lambda v: torch.full_like(v, torch.nan))
    outcomes = captions(ours, items)
    failure = outcomes.pop(BAD)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == ("generate", "not_finite")
    assert (failure.width, failure.height) == (60, 44)
    assert texts(outcomes) == expected[:BAD] + expected[BAD + 1 :]


def _with_tensor(item: ModelInput, name: str, change: Callable[[Any], Any]) -> ModelInput:
    return dataclasses.replace(item, tensors={**item.tensors, name: change(item.tensors[name])})


def test_error_in_one_row_leaves_the_others(ours: Ours) -> None:
    items = ours.inputs(ROWS)
    expected = texts(captions(ours, items))
    vocab = ours.loaded.model.config.get_text_config().vocab_size
    ids = items[BAD].input_ids
    items[BAD] = dataclasses.replace(items[BAD], input_ids=(*ids[:-2], vocab + 7, ids[-1]))
    outcomes = captions(ours, items)
    failure = outcomes.pop(BAD)
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == ("generate", "model_error")
    assert texts(outcomes) == expected[:BAD] + expected[BAD + 1 :]


def test_missing_placeholder_never_shifts_the_next_row(ours: Ours) -> None:
    """One row lacks a placeholder and its neighbour has one too many: the sum is right."""
    if ours.loaded.model_type not in FEATURE_FAMILIES:
        return
    items = ours.inputs(ROWS)
    expected = texts(captions(ours, items))
    image_id = ours.loaded.model.config.image_token_id
    at, last = items[1].input_ids.index(image_id), len(items[1].input_ids) - 1
    items[1] = _with_id(items[1], at, items[1].input_ids[last], -1)
    items[2] = _with_id(items[2], last, image_id, +1)
    outcomes = captions(ours, items)
    for index in (1, 2):
        outcome = outcomes[index]
        assert isinstance(outcome, Failure)
        assert outcome.code == "model_error"
    assert texts([outcomes[i] for i in (0, 3, 4)]) == [expected[i] for i in (0, 3, 4)]


def _with_id(item: ModelInput, at: int, token: int, change: int) -> ModelInput:
    ids = (*item.input_ids[:at], token, *item.input_ids[at + 1 :])
    count = item.num_image_tokens + change
    return dataclasses.replace(item, input_ids=ids, num_image_tokens=count)


def test_what_may_go_together(ours: Ours) -> None:
    """Equal lengths and outputs; equal shapes too where the class's tower runs in `generate`."""
    (item,) = ours.inputs(ROWS[:1])
    key = ours.generator().batch_key
    longer = dataclasses.replace(item, input_ids=(*item.input_ids, 1))
    fewer = dataclasses.replace(item, tensors={"pixel_values": item.tensors["pixel_values"]})
    wider = _with_tensor(item, "pixel_values", lambda v: torch.cat([v, v], dim=-1))
    assert key(item) == key(_with_tensor(item, "pixel_values", torch.zeros_like))
    assert len({key(item), key(longer), key(fewer)}) == 3
    assert (key(wider) == key(item)) == (ours.loaded.model_type in FEATURE_FAMILIES)


def test_out_of_memory_halves_the_batch(llava: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    items = llava.inputs(ROWS)
    expected = texts(captions(llava, items))
    generate = llava.loaded.model.generate
    tried = []

    def small(**kwargs: Any) -> Any:
        tried.append(len(kwargs["input_ids"]))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return generate(**kwargs)

    monkeypatch.setattr(llava.loaded.model, "generate", small)
    assert texts(captions(llava, items)) == expected
    first_fit = next(n for n, rows in enumerate(tried) if rows <= 2)
    assert max(tried[first_fit:]) <= 3  # what did not fit is not tried again and again


def test_out_of_memory_alone_is_a_failure(llava: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(llava.loaded.model, "generate", none)
    outcomes = captions(llava, llava.inputs(ROWS))
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["out_of_memory"] * 5


def test_a_prompt_beyond_the_context_is_an_error(llava: Ours) -> None:
    (item,) = llava.inputs(ROWS[:1])
    generator = llava.generator()
    generator._num_positions = len(item.input_ids)
    (outcome,) = generator.generate([item])
    assert isinstance(outcome, Failure)
    assert outcome.code == "too_long"
    generator._num_positions += 2
    (outcome,) = generator.generate([item])
    assert isinstance(outcome, Generation)
    assert len(outcome.token_ids) <= 2


def test_device_fault_is_fatal(llava: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(**_: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)

    monkeypatch.setattr(llava.loaded.model, "generate", fault)
    with pytest.raises(ModelError, match=r"the device failed: .*illegal memory access"):
        captions(llava, llava.inputs(ROWS))


def test_stop_event_ends_the_batch_at_the_next_step(
    ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    generator = ReferenceGenerator(ours.loaded, Config(max_new_tokens=NUM_TOKENS), stop)
    step, steps = StepWatch.__call__, []

    def counted(watch: StepWatch, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 3:
            stop.set()
        return step(watch, input_ids, scores)

    monkeypatch.setattr(StepWatch, "__call__", counted)
    generator.generate(ours.inputs(ROWS))
    assert len(steps) == 3


def test_models_own_settings_are_kept_or_made_greedy(tiny_folder: Callable[[str], Path]) -> None:
    """As real Florence-2 and Qwen2.5-VL have them: beams and sampling go, the rest stays."""
    for name in ("llava", "florence2"):
        oracle, ours = Oracle(name, tiny_folder(name)), Ours(name, tiny_folder(name))
        plain = [oracle.caption(row).token_ids for row in ROWS]
        for model in (oracle.model, ours.loaded.model):
            generation = model.generation_config
            generation.num_beams, generation.early_stopping = 3, True
            generation.do_sample, generation.temperature, generation.top_k = True, 1e-6, 1
            generation.no_repeat_ngram_size = 1
        expected = [oracle.caption(row).token_ids for row in ROWS]
        assert expected != plain
        assert texts(captions(ours, ours.inputs(ROWS))) == expected


def test_repetition_penalty_reaches_the_model(llava: Ours) -> None:
    items = llava.inputs(ROWS)
    assert texts(captions(llava, items, repetition_penalty=5.0)) != texts(captions(llava, items))
