"""The model's own processor, one image a call: DecodedImage → ModelInput for each prompt.

A processor and its tokenizer keep state between calls, so that each thread has its own clone.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

from PIL import Image

from vlbatch.chat import PromptStyle
from vlbatch.errors import UsageError
from vlbatch.literal import LiteralPrompts, PromptError, markers
from vlbatch.prompts import PromptSet
from vlbatch.records import DecodedImage, Failure, ModelInput
from vlbatch.rendering import Renderer

#: Outputs of processors that `generate` does not take.
_UNUSED = frozenset({"input_ids", "labels"})


class Processing:
    """Callable from any thread.

    processor: the model's own (`AutoProcessor`).
    style: how the class is asked without a chat template.
    chat_template: Jinja text instead of the processor's own.
    raw_prompt: the prompt is the processor's text, special tokens and all.

    Raises `UsageError` at once where no prompt can be rendered, or where the processor takes no
    picture with what the chat template makes.
    """

    def __init__(
        self,
        processor: Any,
        prompts: PromptSet,
        style: PromptStyle,
        *,
        system: str | None = None,
        chat_template: str | None = None,
        raw_prompt: bool = False,
    ) -> None:
        self._processor = processor
        self._prompts = prompts
        self._image_token_id = _image_token_id(processor)
        self._local = threading.local()
        self._render = Renderer(
            processor, style, system=system, chat_template=chat_template, raw_prompt=raw_prompt
        )
        self._literal = LiteralPrompts(processor, self._render, self._image_token_id)
        self._is_raw = raw_prompt
        if not raw_prompt:
            self._check_system(system)
            self._check_rendering()

    def __call__(self, decoded: DecodedImage) -> list[ModelInput | Failure]:
        """One input for each prompt, in order, or one Failure for the whole image."""
        prompts = self._prompts.render(decoded.ref)
        if isinstance(prompts, Failure):
            return [prompts]
        return [self._input(decoded, name, text) for name, text in prompts.items()]

    def _input(self, decoded: DecodedImage, name: str, prompt: str) -> ModelInput | Failure:
        ref, (width, height) = decoded.ref, decoded.image.size
        try:
            outputs = self._outputs(decoded.image, prompt)
            ids = tuple(outputs["input_ids"][0].tolist())
            num_image_tokens = self._count_placeholders(ids)
        except PromptError as error:
            return Failure(ref, "prompt", error.code, str(error), width, height)
        except Exception as error:  # a processor may raise anything for a picture it can't take
            text = " ".join(str(error).split())[:500]
            message = f"the model's processor refused it: {type(error).__name__}: {text}"
            return Failure(ref, "process", "processor_error", message, width, height)
        tensors = {key: value for key, value in outputs.items() if key not in _UNUSED}
        return ModelInput(ref, name, ids, tensors, num_image_tokens, width, height)

    def _outputs(self, image: Image.Image, prompt: str) -> Mapping[str, Any]:
        if not self._is_raw and self._literal.is_needed(self._clone(), prompt):
            return self._literal(image, prompt)
        return self._render.process(self._clone(), image, self._render(prompt))

    def _count_placeholders(self, ids: tuple[int, ...]) -> int:
        """Placeholders in `ids`; raises `PromptError` where a class that has some finds none."""
        count = ids.count(self._image_token_id)
        if count == 0 and self._image_token_id >= 0:
            token = self._processor.tokenizer.convert_ids_to_tokens(self._image_token_id)
            raise PromptError(
                "no_image_token", f"the text has no place for the image ({token}), or lost it"
            )
        return count

    def _clone(self) -> Any:
        clone = getattr(self._local, "processor", None)
        if clone is None:
            clone = self._local.processor = copy.deepcopy(self._processor)
        return clone

    def _check_system(self, system: str | None) -> None:
        found = [marker for marker in markers(self._processor) if marker in (system or "")]
        if found:
            raise UsageError(f"--system: {found[0]} is a special token of this model.")

    def _check_rendering(self) -> None:
        """Ask about a grey square: a template that does not fit the processor fails every row."""
        image = Image.new("RGB", (64, 64), (128, 128, 128))
        text = self._render("a")
        try:
            outputs = self._render.process(self._clone(), image, text)
            self._count_placeholders(tuple(outputs["input_ids"][0].tolist()))
        except Exception as error:  # the processor's own code
            raise UsageError(
                f"the model's processor can't take the rendered prompt {text!r}: {error}. "
                "Another form can be given with --chat-template FILE or --raw-prompt."
            ) from None


def _image_token_id(processor: Any) -> int:
    """The placeholder's id; -1 for a class without placeholders."""
    token_id = getattr(processor, "image_token_id", None)
    if token_id is None and isinstance(token := getattr(processor, "image_token", None), str):
        token_id = processor.tokenizer.convert_tokens_to_ids(token)
    return -1 if token_id is None else int(token_id)
