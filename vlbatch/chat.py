"""How a model is asked: the processor's text for a prompt.

A model's own chat template makes it, or `--chat-template`, or, for a class whose processors bring
none, the form that the class's documentation in transformers shows. A class that is not here and
has no chat template needs `--chat-template`: guessing a format would spoil captions silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vlbatch.config import DEFAULT_PROMPT
from vlbatch.errors import UsageError


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """template: the processor's text, `{prompt}` being the prompt; None: a chat template is needed.

    default_prompt: what is asked when the user asks nothing.
    raw_default: the default prompt is a task token, which must not be taken literally.
    prefix: the prompt is the beginning of the caption, not a question.
    """

    template: str | None = None
    default_prompt: str = DEFAULT_PROMPT
    raw_default: bool = False
    prefix: bool = False


_STYLES = {
    "blip": PromptStyle("{prompt}", default_prompt="", prefix=True),
    "florence2": PromptStyle("{prompt}", default_prompt="<CAPTION>", raw_default=True),
    "llava": PromptStyle("USER: <image>\n{prompt} ASSISTANT:"),
    "paligemma": PromptStyle("<image>{prompt}", default_prompt="caption en"),
}


def prompt_style(model_type: str) -> PromptStyle:
    """The style of a class by its `config.model_type`."""
    return _STYLES.get(model_type, PromptStyle())


class ChatRenderer:
    """Prompt → the processor's text, with the image's place in it.

    processor: the model's own; only its chat template and tokenizer's names are used.
    chat_template: Jinja text instead of the processor's own.
    raw: the prompt is the text. Raises `UsageError` for settings that exclude each other, and
    where no text can be made.
    """

    def __init__(
        self,
        processor: Any,
        style: PromptStyle,
        *,
        system: str | None = None,
        chat_template: str | None = None,
        raw: bool = False,
    ) -> None:
        if raw and (system is not None or chat_template is not None):
            option = "--system" if system is not None else "--chat-template"
            raise UsageError(
                f"{option} has no place in a prompt that is given to the processor as it is "
                "(--raw-prompt, or this model's own default prompt)."
            )
        self._processor = processor
        self._style = style
        self._system = system
        self._chat_template = chat_template
        self._is_raw = raw
        has_own = getattr(processor, "chat_template", None) is not None
        self._is_chat = not raw and (has_own or chat_template is not None)
        self._cached = lru_cache(maxsize=256)(self._render)
        self("")

    def __call__(self, prompt: str) -> str:
        """The processor's text for `prompt`."""
        return self._cached(prompt)

    def kwargs(self, text: str) -> Mapping[str, Any]:
        """What the processor must be told about a text of this renderer.

        A chat template that writes the first special token itself must not get a second one from
        the tokenizer; `apply_chat_template(tokenize=True)` has the same rule.
        """
        bos = self._processor.tokenizer.bos_token
        has_bos = self._is_chat and bos is not None and text.startswith(bos)
        return {"add_special_tokens": False} if has_bos else {}

    def _render(self, prompt: str) -> str:
        if self._is_raw:
            return prompt
        if self._is_chat:
            return self._chat(prompt)
        if self._style.template is None:
            raise UsageError(
                "this model has no chat template: give one with --chat-template FILE, or the "
                "processor's exact text with --raw-prompt."
            )
        if self._system is not None:
            raise UsageError("--system: this model's class takes no system message.")
        return self._style.template.format(prompt=prompt)

    def _chat(self, prompt: str) -> str:
        user = _message("user", {"type": "image"}, {"type": "text", "text": prompt})
        messages = [user]
        if self._system is not None:
            messages.insert(0, _message("system", {"type": "text", "text": self._system}))
        try:
            text = self._processor.apply_chat_template(
                messages, chat_template=self._chat_template, add_generation_prompt=True
            )
        except Exception as error:  # Jinja code of somebody: any exception can come out of it
            raise UsageError(f"the chat template failed: {error}") from None
        return str(text)


def _message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}
