"""How a model class wants to be asked, where its processor brings no chat template.

Each entry repeats what the class's documentation in transformers shows. A class that is not here
and has no chat template needs `--chat-template`: guessing a format would spoil captions silently.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlbatch.config import DEFAULT_PROMPT


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


def styled_classes() -> tuple[str, ...]:
    """The classes that need no chat template."""
    return tuple(name for name, style in _STYLES.items() if style.template is not None)
