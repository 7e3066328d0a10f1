"""The model's own processor, one image a call: DecodedImage → ModelInput for each prompt.

A processor and its tokenizer keep state between calls, so that each call in progress has clones of
its own; there are as many as calls ever ran at once.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from transformers import AddedToken

from vlbatch.chat import ChatRenderer, PromptStyle
from vlbatch.errors import UsageError
from vlbatch.prompts import PromptSet
from vlbatch.records import DecodedImage, Failure, ModelInput

#: Stands for a literal prompt in the rendered text, as one token of its own (see `_literal`).
_PLACE = "<|vlbatch:prompt|>"

#: Outputs of processors that `generate` does not take.
_UNUSED = frozenset({"input_ids", "labels"})


class Processing:
    """Callable from any thread.

    processor: the model's own (`AutoProcessor`).
    style: how the class is asked without a chat template.
    chat_template: Jinja text instead of the processor's own.
    raw_prompt: the prompt is the processor's text, special tokens and all.

    Raises `UsageError` at once where no prompt can be rendered, or where the processor takes no
    picture with what is rendered.
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
        self._is_raw = raw_prompt
        self._markers = _markers(processor)
        self._special_ids = _special_ids(processor)
        self._image_token_id = _image_token_id(processor)
        self._free: list[_Clones] = []  # append and pop are atomic
        if found := [marker for marker in self._markers if marker in (system or "")]:
            raise UsageError(f"--system: {found[0]} is a special token of this model.")
        self.render = ChatRenderer(
            processor, style, system=system, chat_template=chat_template, raw=raw_prompt
        )
        if not raw_prompt:
            self._check_rendering()

    def __call__(self, decoded: DecodedImage) -> list[ModelInput | Failure]:
        """One input for each prompt, in order, or one Failure for the whole image."""
        prompts = self._prompts.render(decoded.ref)
        if isinstance(prompts, Failure):
            return [prompts]
        clones = self._free.pop() if self._free else _Clones(self._processor)
        inputs: list[ModelInput | Failure] = []
        for name, prompt in prompts.items():
            inputs.append(self._input(clones, decoded, name, prompt))
            if isinstance(inputs[-1], Failure):
                inputs = inputs[-1:]
                break
        self._free.append(clones)
        return inputs

    def _input(
        self, clones: _Clones, decoded: DecodedImage, name: str, prompt: str
    ) -> ModelInput | Failure:
        ref, (width, height) = decoded.ref, decoded.image.size
        try:
            if not self._is_raw and self._spells_special(clones, prompt):
                outputs = self._literal(clones.literal, decoded.image, prompt)
            else:
                outputs = self._process(clones.plain, self.render(prompt), decoded.image)
            ids = tuple(outputs["input_ids"][0].tolist())
            num_image_tokens = self._count_placeholders(ids)
        except _PromptError as error:
            return Failure(ref, "prompt", error.code, str(error), width, height)
        except Exception as error:  # a processor may raise anything for a picture it can't take
            text = " ".join(str(error).split())[:500]
            message = f"the model's processor refused it: {type(error).__name__}: {text}"
            return Failure(ref, "process", "processor_error", message, width, height)
        tensors = {key: value for key, value in outputs.items() if key not in _UNUSED}
        return ModelInput(ref, name, ids, tensors, num_image_tokens, width, height)

    def _process(self, processor: Any, text: str, image: Image.Image) -> dict[str, Any]:
        kwargs = self.render.kwargs(text)
        return dict(processor(images=image, text=text, return_tensors="pt", **kwargs))

    def _spells_special(self, clones: _Clones, prompt: str) -> bool:
        """Whether the processor or its tokenizer would read more than text in `prompt`."""
        if any(marker in prompt for marker in self._markers):
            return True
        ids = clones.plain.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return not self._special_ids.isdisjoint(ids)

    def _literal(self, processor: Any, image: Image.Image, prompt: str) -> dict[str, Any]:
        """The outputs for a prompt that spells special tokens, which are text here.

        The prompt is rendered as one token that no user can mean, and that token's place is then
        filled with the ids of the prompt's text, none of them special.
        """
        # As in the rendered text the prompt follows a token, so that a tokenizer that marks the
        # beginning of a text (▁) does not do so here.
        place_id, *ids = processor.tokenizer(
            _PLACE + prompt, add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        if not self._special_ids.isdisjoint(ids) or place_id in ids:
            raise _PromptError(
                "special_token", "the prompt spells a special token that can't be taken literally"
            )
        outputs = self._process(processor, self.render(_PLACE), image)
        row = outputs["input_ids"]
        places = (row[0] == place_id).nonzero().flatten().tolist()
        if len(places) != 1:
            raise _PromptError(
                "special_token", "the chat template does not repeat the prompt exactly once"
            )
        names = [key for key, value in outputs.items() if _is_per_token(key, value, row.shape)]
        for key in names:
            outputs[key] = _splice(outputs[key], places[0], ids if key == "input_ids" else len(ids))
        return outputs

    def _count_placeholders(self, ids: tuple[int, ...]) -> int:
        """Placeholders in `ids`: at least one, for a class that has any."""
        count = ids.count(self._image_token_id)
        if count == 0 and self._image_token_id >= 0:
            token = self._processor.tokenizer.convert_ids_to_tokens(self._image_token_id)
            raise _PromptError(
                "no_image_token", f"what the model would get has no place for the image ({token})"
            )
        return count

    def _check_rendering(self) -> None:
        """Ask about a grey square: a template that does not fit the processor fails every row."""
        text = self.render("a")
        image = Image.new("RGB", (64, 64), (128, 128, 128))
        try:
            outputs = self._process(_Clones(self._processor).plain, text, image)
            self._count_placeholders(tuple(outputs["input_ids"][0].tolist()))
        except Exception as error:  # the processor's own code
            raise UsageError(
                f"the model's processor can't take the prompt as it is rendered, {text!r}: "
                f"{error} (--chat-template FILE gives another form)"
            ) from None


class _Clones:
    """A processor for one call at a time, and one that knows `_PLACE` as a token."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @cached_property
    def plain(self) -> Any:
        return copy.deepcopy(self._processor)

    @cached_property
    def literal(self) -> Any:
        clone = copy.deepcopy(self._processor)
        # Not special: `split_special_tokens` must leave it whole.
        clone.tokenizer.add_tokens([AddedToken(_PLACE, special=False, normalized=False)])
        return clone


class _PromptError(ValueError):
    """A prompt that can't be asked; `code` is the failure's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _is_per_token(name: str, value: Any, shape: torch.Size) -> bool:
    """Whether an output has one number a token (BLIP's 3 channels can equal 3 tokens)."""
    return torch.is_tensor(value) and value.shape == shape and not name.startswith("image")


def _splice(row: torch.Tensor, place: int, filling: list[int] | int) -> torch.Tensor:
    """`row` [1, L] with its element at `place` replaced by `filling`, or repeated that often:
    [1, L - 1 + n]."""
    if isinstance(filling, int):
        middle = row[:, place : place + 1].expand(1, filling)
    else:
        middle = torch.tensor([filling], dtype=row.dtype)
    return torch.cat([row[:, :place], middle, row[:, place + 1 :]], dim=1)


def _markers(processor: Any) -> tuple[str, ...]:
    """The texts that mean more than themselves to this processor or its tokenizer."""
    added = processor.tokenizer.added_tokens_decoder.values()
    markers = {token.content for token in added if token.special}
    markers |= {token for token in (getattr(processor, "image_token", None),) if token}
    for tasks in ("task_prompts_without_inputs", "task_prompts_with_input"):
        markers |= set(getattr(processor, tasks, ()))
    return tuple(sorted(marker for marker in markers if marker.strip()))


def _special_ids(processor: Any) -> frozenset[int]:
    """The ids that no text of a user may become."""
    added = processor.tokenizer.added_tokens_decoder.items()
    ids = {token_id for token_id, token in added if token.special}
    unknown = processor.tokenizer.unk_token_id  # what a text with unknown letters does become
    return frozenset((ids - {unknown}) | {_image_token_id(processor)})


def _image_token_id(processor: Any) -> int:
    """The placeholder's id; -1 for a class without placeholders."""
    token_id = getattr(processor, "image_token_id", None)
    if token_id is None and isinstance(token := getattr(processor, "image_token", None), str):
        token_id = processor.tokenizer.convert_tokens_to_ids(token)
    return -1 if token_id is None else int(token_id)
