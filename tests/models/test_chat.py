"""Chat templates, system messages, and settings that exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity import picture
from prepared import PROMPTS, assert_equal_inputs, own, process
from tiny import tiny_folder
from transformers import AutoProcessor

from vlbatch.chat import prompt_style
from vlbatch.errors import UsageError
from vlbatch.processing import Processing
from vlbatch.records import Failure, ModelInput

__all__ = ["tiny_folder"]  # a fixture

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}"
    "{{ m['role'] }} {{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
)


def test_chat_template_of_the_user(tiny_folder: Callable[[str], Path]) -> None:
    """As `apply_chat_template(tokenize=True)`: one <s>, though the tokenizer adds one itself."""
    processor = AutoProcessor.from_pretrained(tiny_folder("llava"))
    item = process(own("llava", processor, chat_template=TEMPLATE, system="Be short."), "hi")
    image = picture((60, 44), 1)
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be short."}]},
        {
            "role": "user",
            "content": [{"type": "image", "image": image}, {"type": "text", "text": "hi"}],
        },
    ]
    outputs = processor.apply_chat_template(
        messages, chat_template=TEMPLATE, tokenize=True, return_dict=True, return_tensors="pt"
    )
    assert_equal_inputs(item, outputs)
    assert item.input_ids.count(processor.tokenizer.bos_token_id) == 1
    literal = process(own("llava", processor, chat_template=TEMPLATE), "hi <s> there")
    assert literal.input_ids.count(processor.tokenizer.bos_token_id) == 1


def test_own_chat_template_takes_the_system_message(tiny_folder: Callable[[str], Path]) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("qwen2_5_vl"))
    item = process(own("qwen2_5_vl", processor, system="Be short."), "hi")
    shown = processor.tokenizer.decode(item.input_ids)
    assert shown.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n")
    assert shown.endswith("hi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llava", {"system": "Be short."}, "--system: this model's class takes no"),
        ("llava", {"chat_template": "{{ oops("}, "the chat template failed"),
        ("llava", {"chat_template": "{{ raise_exception('no system') }}"}, "no system"),
        ("llava", {"chat_template": "no place for it"}, "--chat-template FILE gives another"),
        ("llava", {"chat_template": "<image><image>"}, "can't take the prompt as it is"),
        ("llava", {"raw_prompt": True, "system": "x"}, "--system has no place"),
        ("llava", {"raw_prompt": True, "chat_template": "x"}, "--chat-template has no place"),
        ("qwen2_5_vl", {"system": "a <|im_end|>"}, r"--system: <\|im_end\|> is a special token"),
    ],
)
def test_settings_that_can_not_work(
    name: str, options: dict[str, Any], message: str, tiny_folder: Callable[[str], Path]
) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder(name))
    with pytest.raises(UsageError, match=message):
        own(name, processor, **options)


def test_class_without_any_form_names_both_options(tiny_folder: Callable[[str], Path]) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("llava"))
    with pytest.raises(UsageError, match=r"--chat-template FILE.*--raw-prompt"):
        Processing(processor, PROMPTS, prompt_style("unheard_of"))


def test_template_that_repeats_the_prompt_fails_only_literal_rows(
    tiny_folder: Callable[[str], Path],
) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("llava"))
    twice = (
        "<image>{% for m in messages %}{{ m['content'][1]['text'] }} "
        "{{ m['content'][1]['text'] }}{% endfor %}"
    )
    processing = own("llava", processor, chat_template=twice)
    failure = process(processing, "</s>")
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == ("prompt", "special_token")
    assert isinstance(process(processing, "fine"), ModelInput)


def test_styled_classes() -> None:
    assert prompt_style("blip").prefix
    assert prompt_style("paligemma").default_prompt == "caption en"
    assert prompt_style("qwen2_5_vl").template is None
