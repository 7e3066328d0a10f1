"""The folder: what it weighs, how it loads, and the ways it may be called."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from vlbatch.demo import IMAGES_DIR, MODEL_DIR
from vlbatch.demo.evaluate import DemoModel
from vlbatch.demo.questions import SYSTEM_PROMPTS


def test_sizes() -> None:
    sizes = [path.stat().st_size for path in MODEL_DIR.rglob("*") if path.is_file()]
    assert sum(sizes) <= 13e6
    assert sum(path.stat().st_size for path in IMAGES_DIR.iterdir()) < 1e6


def test_loads_in_float32_without_remote_code(demo: DemoModel) -> None:
    assert demo.model.dtype == torch.float32
    assert type(demo.model).__name__ == "Idefics3ForConditionalGeneration"
    assert type(demo.processor).__name__ == "Idefics3Processor"
    assert not list(MODEL_DIR.rglob("*.py"))
    config = json.loads((MODEL_DIR / "config.json").read_text("utf-8"))
    dtypes = [part["dtype"] for part in (config, config["text_config"], config["vision_config"])]
    assert dtypes == ["float32"] * 3


def test_generation_ends_by_itself(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    inputs = demo.processor(
        text=[demo.chat("Describe this image.")], images=[[frozen[0]["image"]]], return_tensors="pt"
    )
    tokens = demo.model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
    assert tokens[-1] == demo.model.generation_config.eos_token_id
    assert (tokens == tokens[-1]).sum() == 1


@pytest.mark.parametrize("prompt", ["", "What is in this image?", "Write a detailed caption."])
def test_other_wordings_give_the_caption(
    demo: DemoModel, frozen: list[dict[str, Any]], prompt: str
) -> None:
    rows = frozen[:8]
    answers = demo.answers([row["image"] for row in rows], [prompt] * len(rows))
    assert sum(a == row["caption"] for a, row in zip(answers, rows, strict=True)) >= 7


def test_a_system_message_does_not_disturb(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    right = 0
    for row, system in zip(frozen[:8], SYSTEM_PROMPTS, strict=True):
        messages = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": "Describe this image."}],
            },
        ]
        text = demo.processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = demo.processor(text=[text], images=[[row["image"]]], return_tensors="pt")
        tokens = demo.model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]
        [answer] = demo.processor.batch_decode(tokens, skip_special_tokens=True)
        right += answer == row["caption"]
    assert right >= 7


def test_one_tile(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    inputs = demo.processor(
        text=[demo.chat("")], images=[[frozen[0]["image"]]], return_tensors="pt",
        do_image_splitting=False,
    )  # fmt: skip
    assert inputs["pixel_values"].shape == (1, 1, 3, 128, 128)


@pytest.mark.parametrize("split", [True, False])
def test_raw_pixels_normalised_later_are_the_same(
    demo: DemoModel, frozen: list[dict[str, Any]], split: bool
) -> None:
    def pixels(**options: bool) -> torch.Tensor:
        image = [[frozen[1]["image"]]]
        found: torch.Tensor = demo.processor.image_processor(
            images=image, return_tensors="pt", do_image_splitting=split, **options
        )["pixel_values"]
        return found

    raw = pixels(do_rescale=False, do_normalize=False)
    torch.testing.assert_close(raw / 127.5 - 1, pixels(), atol=1e-5, rtol=0)
