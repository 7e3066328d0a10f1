"""`stub:colour`: a model without weights that says what colour the decoded picture has.

It takes the whole path of a real model and is a function of the pixels and the row alone, so that
pipelines can be tried, timed and killed with it, and a mixed-up row shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from vlbatch.prompts import PromptSet
from vlbatch.records import DecodedImage, Failure, Generation, ModelInput

STUB_NAME = "stub:colour"

_COLOURS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "red": (220, 30, 30),
    "orange": (245, 140, 20),
    "yellow": (245, 220, 40),
    "green": (40, 160, 60),
    "cyan": (40, 200, 210),
    "blue": (40, 70, 210),
    "purple": (130, 50, 160),
    "pink": (245, 150, 190),
    "brown": (120, 75, 40),
}


def nearest_colour(rgb: tuple[int, int, int]) -> str:
    """The named colour with the least squared distance to `rgb` (0–255 a channel)."""
    return min(
        _COLOURS,
        key=lambda name: sum((a - b) ** 2 for a, b in zip(rgb, _COLOURS[name], strict=True)),
    )


class StubModel:
    """The stub's both halves: `process` on the host's threads, `generate` on the model's."""

    def __init__(self, prompts: PromptSet) -> None:
        self._prompts = prompts
        self.num_batches = 0

    def process(self, decoded: DecodedImage) -> list[ModelInput | Failure]:
        """One input for each prompt; its tensor is the mean colour of the picture."""
        prompts = self._prompts.render(decoded.ref)
        if isinstance(prompts, Failure):
            return [prompts]
        width, height = decoded.image.size
        colour = decoded.image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
        return [
            ModelInput(decoded.ref, name, _ids(prompt), {"colour": colour}, 1, width, height)
            for name, prompt in prompts.items()
        ]

    def batch_key(self, item: ModelInput) -> None:
        """All inputs go together."""

    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        """The captions of a batch, in order."""
        self.num_batches += 1
        return [self._caption(item) for item in batch]

    def _caption(self, item: ModelInput) -> Generation:
        rgb = item.tensors["colour"]
        text = f"A {nearest_colour(rgb)} picture (#{bytes(rgb).hex()}), "
        text += f"{item.width} x {item.height}."
        ids = _ids(text)
        return Generation(
            item.ref, item.prompt_name, text, ids, "stop", len(item.input_ids),
            item.num_image_tokens, item.width, item.height,
        )  # fmt: skip


def _ids(text: str) -> tuple[int, ...]:
    """A word a token; the ids mean nothing."""
    return tuple(range(len(text.split())))
