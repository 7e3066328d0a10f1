"""One image at a time through plain transformers, and the same rows through `ReferenceGenerator`.

`Oracle` shares no code with vlbatch: its texts are written out here, and it calls the processor
and `generate` as the documentation of transformers does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from vlbatch.chat import prompt_style
from vlbatch.config import Config
from vlbatch.models.generate import ReferenceGenerator
from vlbatch.models.loading import LoadedModel, find_model, load_model
from vlbatch.processing import Processing
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import DecodedImage, Failure, Generation, ImageRef, ModelInput

FAMILIES = ("llava", "llava_next", "idefics3", "qwen2_5_vl", "paligemma", "blip", "florence2")
#: Families whose features are made in vision batches before `generate`.
FEATURE_FAMILIES = FAMILIES[:5]

#: The last three make equally many placeholders of 3, 4 and 5 tiles in LLaVA-NeXT.
SIZES = (
    (1, 1), (3, 2), (28, 28), (27, 332), (332, 27), (96, 64), (64, 96), (96, 64),
    (41, 20), (20, 83), (55, 34),
)  # fmt: skip
PROMPTS = ("a photo of", "What does it show? Be short.")
NUM_TOKENS = 10

TEXTS = {
    "llava": "USER: <image>\n{} ASSISTANT:",
    "llava_next": "USER: <image>\n{} ASSISTANT:",
    "idefics3": "<|im_start|>user\n<image>{}<end_of_utterance>\n<|im_start|>assistant\n",
    "qwen2_5_vl": "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n"
    "<|im_start|>assistant\n",
    "paligemma": "<image>{}",
    "blip": "{}",
    "florence2": "{}",
}


@dataclass(frozen=True)
class Row:
    image: Image.Image
    prompt: str


@dataclass(frozen=True)
class Caption:
    """token_ids without the stop token; logits [steps, vocab], steps up to and with it."""

    token_ids: tuple[int, ...]
    logits: torch.Tensor


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    """Coarse coloured noise, unlike any other seed's."""
    rng = np.random.default_rng(seed)
    blocks = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    return blocks.resize(size, Image.Resampling.NEAREST)


def rows() -> list[Row]:
    """Each size with each prompt, no picture twice."""
    return [
        Row(picture(size, 10 * i + j), prompt)
        for i, size in enumerate(SIZES)
        for j, prompt in enumerate(PROMPTS)
    ]


class Oracle:
    """The model's own `generate`, one image at a time."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def caption(self, row: Row, max_new_tokens: int = NUM_TOKENS) -> Caption:
        text = TEXTS[self.name].format(row.prompt)
        inputs = self.processor(images=row.image, text=text, return_tensors="pt")
        inputs.pop("labels", None)
        output = self.model.generate(
            **inputs, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return cut(self.model, output.sequences[0], [step[0] for step in output.logits])


def cut(model: Any, sequence: torch.Tensor, logits: Sequence[torch.Tensor]) -> Caption:
    """The new tokens of one row before its first stop token, and the logits that chose them."""
    new = sequence[len(sequence) - len(logits) :].tolist()
    stops = stop_ids(model)
    end = next((n for n, token in enumerate(new) if token in stops), len(new))
    return Caption(tuple(new[:end]), torch.stack(list(logits))[: end + 1])


def stop_ids(model: Any) -> set[int]:
    if model.config.model_type == "blip":
        return {model.config.text_config.sep_token_id}
    eos = model.generation_config.eos_token_id
    return set(eos) if isinstance(eos, list) else {eos}


def set_stop_id(model: Any, token: int) -> None:
    if model.config.model_type == "blip":
        model.config.text_config.sep_token_id = token
    else:
        model.generation_config.eos_token_id = [token]


def middle_token(captions: Sequence[Caption]) -> int:
    """A token that ends some captions early and others not."""
    ids = [caption.token_ids for caption in captions]
    for row in ids:
        for token in row[2:-2]:
            if 0 < sum(token in other for other in ids) < len(ids):
                return token
    raise AssertionError("no token ends some captions and not others")


class Ours:
    """`Processing` and `ReferenceGenerator` over the same rows."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        options = {"max_new_tokens": NUM_TOKENS, "device": "cpu"} | options
        self.config = Config(model=str(folder), **options)
        source = find_model(self.config)
        self.loaded: LoadedModel = load_model(source, self.config, "cpu", "float32")
        prompts = PromptSet({"": PromptTemplate("{prompt}")})
        self.processing = Processing(self.loaded.processor, prompts, prompt_style(name))
        self.stop = threading.Event()
        self.logits: list[torch.Tensor] = []

    def inputs(self, rows: Sequence[Row]) -> list[ModelInput]:
        """The prepared rows; row i is named `i`. A refused row is left out."""
        prepared = []
        for i, row in enumerate(rows):
            ref = ImageRef(i, str(i), f"{i}.png", fields={"prompt": row.prompt})
            (item,) = self.processing(DecodedImage(ref, row.image))
            if isinstance(item, ModelInput):
                prepared.append(item)
        return prepared

    def generator(self, **options: Any) -> ReferenceGenerator:
        values = {name: getattr(self.config, name) for name in ("model", "max_new_tokens")}
        return ReferenceGenerator(self.loaded, Config(**values | options), self.stop)

    def captions(
        self, items: Sequence[ModelInput], **options: Any
    ) -> tuple[dict[int, Generation | Failure], ReferenceGenerator]:
        """Outcome by row, through batches of `chunk_size` rows of one key."""
        generator = self.generator(**options)
        size = options.get("chunk_size", 16)
        groups: dict[Any, list[ModelInput]] = {}
        for item in items:
            groups.setdefault(generator.batch_key(item), []).append(item)
        outcomes = {}
        for group in groups.values():
            for start in range(0, len(group), size):
                for outcome in generator.generate(group[start : start + size]):
                    outcomes[outcome.ref.index] = outcome
        return outcomes, generator

    def with_logits(
        self, items: Sequence[ModelInput], monkeypatch: Any, **options: Any
    ) -> dict[int, Caption]:
        """As `captions`, with each row's logits, seen by a wrapper around `generate`."""
        seen: dict[int, Caption] = {}
        generate, batches = self.loaded.model.generate, []
        run = ReferenceGenerator._run

        def recorded_run(generator: Any, batch: Sequence[ModelInput]) -> Any:
            batches.append(batch)
            return run(generator, batch)

        def recorded_generate(**kwargs: Any) -> torch.Tensor:
            output = generate(**kwargs, output_logits=True, return_dict_in_generate=True)
            for i, item in enumerate(batches[-1]):
                logits = [step[i] for step in output.logits]
                seen[item.ref.index] = cut(self.loaded.model, output.sequences[i], logits)
            return output.sequences

        with monkeypatch.context() as patch:
            patch.setattr(ReferenceGenerator, "_run", recorded_run)
            patch.setattr(self.loaded.model, "generate", recorded_generate)
            outcomes, _ = self.captions(items, **options)
        assert all(isinstance(o, Generation) for o in outcomes.values())
        return seen


def assert_same(ours: dict[int, Caption], expected: dict[int, Caption]) -> None:
    """Equal tokens, and logits within 1e-4 of the oracle's largest, row by row and step by step."""
    assert ours.keys() == expected.keys()
    for index, caption in expected.items():
        assert ours[index].token_ids == caption.token_ids, f"row {index}"
        scale = caption.logits.abs().max()
        assert (ours[index].logits - caption.logits).abs().max() <= 1e-4 * scale, f"row {index}"
