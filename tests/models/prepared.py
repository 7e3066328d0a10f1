"""One picture and a prompt through `Processing`, as tests of it want them."""

from __future__ import annotations

from typing import Any

import torch
from parity import picture

from vlbatch.chat import prompt_style
from vlbatch.processing import Processing
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import DecodedImage, ImageRef, ModelInput

PROMPTS = PromptSet({"": PromptTemplate("{prompt}")})


def process(processing: Processing, prompt: str, size: tuple[int, int] = (60, 44)) -> Any:
    ref = ImageRef(0, "k", "k.png", fields={"prompt": prompt})
    (outcome,) = processing(DecodedImage(ref, picture(size, 1)))
    return outcome


def own(name: str, processor: Any, **options: Any) -> Processing:
    return Processing(processor, PROMPTS, prompt_style(name), **options)


def assert_equal_inputs(item: ModelInput, outputs: Any) -> None:
    assert item.input_ids == tuple(outputs["input_ids"][0].tolist())
    assert set(item.tensors) == set(outputs) - {"input_ids", "labels"}
    for key, value in item.tensors.items():
        assert torch.equal(value, outputs[key]), key
