"""The model's own processor, one image a call: DecodedImage → ModelInput for each prompt.

A processor and its tokenizer keep state between calls, so that each thread has its own clone.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from transformers import AddedToken

from vlbatch.chat import PromptStyle
from vlbatch.errors import UsageError
from vlbatch.prompts import PromptSet
from vlbatch.records import DecodedImage, Failure, ModelInput

#: Stands for a literal prompt in the rendered text, as one token of its own (see `_literal`).
_PLACE = "<|vlbatch:prompt|>"

#: Outputs of processors that `generate` does not take.
_UNUSED = frozenset({"input_ids", "labels"})


class Processing:
    """Callable from any thread. Raises `UsageError` at once where no prompt can be rendered.

    processor: the model's own (`AutoProcessor`).
    style: how the class is asked without a chat template.
    chat_template: Jinja text instead of the processor's own.
    raw_prompt: the prompt is the processor's text, special tokens and all.
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
        self._style = style
        self._system = system
        self._raw = raw_prompt
        self._chat_template = chat_template or getattr(processor, "chat_template", None)
        self._markers = _markers(processor)
        self._image_token_id = _image_token_id(processor)
        self._local = threading.local()
        self.render = lru_cache(maxsize=256)(self._render)
        self.render("")

    def __call__(self, decoded: DecodedImage) -> list[ModelInput | Failure]:
        """One input for each prompt, in order, or one Failure for the whole image."""
        prompts = self._prompts.render(decoded.ref)
        if isinstance(prompts, Failure):
            return [prompts]
        return [self._input(decoded, name, text) for name, text in prompts.items()]

    def _input(self, decoded: DecodedImage, name: str, prompt: str) -> ModelInput | Failure:
        ref, (width, height) = decoded.ref, decoded.image.size
        try:
            if not self._raw and any(marker in prompt for marker in self._markers):
                outputs = self._literal(decoded, prompt)
            else:
                outputs = self._process(self._clone("plain"), self.render(prompt), decoded)
        except _PromptError as error:
            return Failure(ref, "prompt", "special_token", str(error), width, height)
        except Exception as error:  # a processor may raise anything for a picture it can't take
            text = " ".join(str(error).split())[:500]
            message = f"the model's processor refused it: {type(error).__name__}: {text}"
            return Failure(ref, "process", "processor_error", message, width, height)
        ids = tuple(outputs["input_ids"][0].tolist())
        tensors = {key: value for key, value in outputs.items() if key not in _UNUSED}
        num_image_tokens = ids.count(self._image_token_id)
        return ModelInput(ref, name, ids, tensors, num_image_tokens, width, height)

    def _render(self, prompt: str) -> str:
        """The processor's text for a prompt: chat template, or the class's own form."""
        if self._raw:
            return prompt
        if self._chat_template is None:
            return self._plain(prompt)
        system = [_message("system", {"type": "text", "text": self._system})]
        user = _message("user", {"type": "image"}, {"type": "text", "text": prompt})
        messages = [*(system if self._system is not None else []), user]
        try:
            text = self._processor.apply_chat_template(
                messages, chat_template=self._chat_template, add_generation_prompt=True
            )
        except Exception as error:  # Jinja code of somebody: any exception can come out of it
            raise UsageError(f"the model's chat template failed: {error}") from None
        return str(text)

    def _plain(self, prompt: str) -> str:
        if self._style.template is None:
            raise UsageError(
                "this model has no chat template: give one with --chat-template FILE, or the "
                "processor's exact text with --raw-prompt."
            )
        if self._system is not None:
            raise UsageError("--system: this model's class takes no system message.")
        return self._style.template.format(prompt=prompt)

    def _process(self, processor: Any, text: str, decoded: DecodedImage) -> Mapping[str, Any]:
        outputs: Mapping[str, Any] = processor(
            images=decoded.image, text=text, return_tensors="pt"
        )
        return outputs

    def _literal(self, decoded: DecodedImage, prompt: str) -> Mapping[str, Any]:
        """The outputs for a prompt that spells special tokens, which are text here.

        The prompt is rendered as one token that no user can mean, and that token's place is then
        filled with the ids of the prompt's text, none of them special.
        """
        processor = self._clone("literal")
        tokenizer = processor.tokenizer
        place_id = tokenizer.convert_tokens_to_ids(_PLACE)
        ids = tokenizer(
            prompt, add_special_tokens=False, split_special_tokens=True
        )["input_ids"]  # fmt: skip
        special = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        if special.intersection(ids) or self._image_token_id in ids:
            raise _PromptError("the prompt spells a special token that can't be taken literally")
        outputs = dict(self._process(processor, self.render(_PLACE), decoded))
        places = (outputs["input_ids"][0] == place_id).nonzero().flatten().tolist()
        if len(places) != 1:
            raise _PromptError("the chat template does not repeat the prompt exactly once")
        length = outputs["input_ids"].shape[1]
        for key, value in outputs.items():
            if torch.is_tensor(value) and value.shape == (1, length):
                filling = ids if key == "input_ids" else [int(value[0, places[0]])] * len(ids)
                outputs[key] = _splice(value, places[0], filling)
        return outputs

    def _clone(self, kind: str) -> Any:
        clone = getattr(self._local, kind, None)
        if clone is None:
            clone = copy.deepcopy(self._processor)
            if kind == "literal":
                token = AddedToken(_PLACE, special=True, normalized=False)
                clone.tokenizer.add_tokens([token], special_tokens=True)
            setattr(self._local, kind, clone)
        return clone


class _PromptError(ValueError):
    """A prompt that can't be asked literally."""


def _message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def _splice(row: torch.Tensor, place: int, filling: list[int]) -> torch.Tensor:
    """`row` [1, L] with its element at `place` replaced by `filling`: [1, L - 1 + n]."""
    middle = torch.tensor([filling], dtype=row.dtype)
    return torch.cat([row[:, :place], middle, row[:, place + 1 :]], dim=1)


def _markers(processor: Any) -> tuple[str, ...]:
    """The texts that mean more than themselves to this processor or its tokenizer."""
    added = processor.tokenizer.added_tokens_decoder.values()
    markers = {token.content for token in added if token.special}
    markers |= {getattr(processor, "image_token", None) or ""}
    for tasks in ("task_prompts_without_inputs", "task_prompts_with_input"):
        markers |= set(getattr(processor, tasks, ()))
    return tuple(sorted(marker for marker in markers if marker.strip()))


def _image_token_id(processor: Any) -> int:
    """The placeholder's id; -1 for a class without placeholders."""
    token_id = getattr(processor, "image_token_id", None)
    if token_id is None and isinstance(token := getattr(processor, "image_token", None), str):
        token_id = processor.tokenizer.convert_tokens_to_ids(token)
    return -1 if token_id is None else int(token_id)
