"""`stub:colour`: a model without weights that says what colour the decoded picture has.

It takes the whole path of a real model and is a function of the pixels and the row alone, so that
pipelines can be tried, timed and killed with it, and a mixed-up row shows.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from PIL import Image

from vlbatch.prompts import PromptSet
from vlbatch.records import DecodedImage, Failure, Generation, ModelInput

STUB_NAME = "stub:colour"

#: Upper bound of the hue, in degrees, of each colour.
_HUES = (
    (14, "red"), (42, "orange"), (68, "yellow"), (165, "green"), (195, "cyan"), (260, "blue"),
    (300, "purple"), (345, "pink"), (360, "red"),
)  # fmt: skip


def colour_name(rgb: tuple[int, int, int]) -> str:
    """The plain name of a colour, 0–255 a channel: by its hue, or its lightness if it has none."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in rgb))
    if value < 0.2:
        return "black"
    if saturation < 0.15:
        return "white" if value > 0.9 else "grey"
    name = next(name for bound, name in _HUES if hue * 360 <= bound)
    return "brown" if name == "orange" and value < 0.6 else name


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
        text = f"A {colour_name(rgb)} picture (#{bytes(rgb).hex()}), "
        text += f"{item.width} x {item.height}."
        ids = _ids(text)
        return Generation(
            item.ref, item.prompt_name, text, ids, "stop", len(item.input_ids),
            item.num_image_tokens, item.width, item.height,
        )  # fmt: skip


def _ids(text: str) -> tuple[int, ...]:
    """A word a token; the ids mean nothing."""
    return tuple(range(len(text.split())))
