"""Tokenizer, chat template and processor of the demo model.

A byte-level BPE: any text round-trips. Capitals and digits are never merged, so that a printed text
is spelled letter by letter and every letter must be read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from vlbatch.demo import grammar, questions, scenes
from vlbatch.demo.vocabulary import NOUN_ICONS, SHAPES, plural, with_article

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1280
IMAGE, FAKE, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
START, END, PAD = "<|im_start|>", "<end_of_utterance>", "<pad>"
ROWS_COLS = tuple(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7))
SPECIAL = (PAD, START, END, IMAGE, FAKE, GLOBAL, *ROWS_COLS)
TILE, TILE_TOKENS, LONGEST_EDGE = 128, 16, 256

CHAT_TEMPLATE = (
    "<|im_start|>"
    "{%- for message in messages -%}"
    "{{- message['role'] | capitalize }}:"
    "{%- if message['content'] is string -%}{{ ' ' + message['content'] }}"
    "{%- else -%}"
    "{%- if message['content'] and message['content'][0]['type'] == 'text' -%}"
    "{{ ' ' }}{%- endif -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<image>' }}"
    "{%- elif part['type'] == 'text' -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<end_of_utterance>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"
)


def _corpus() -> Iterator[str]:
    """Text that the tokenizer is trained on: every word, then sentences about scenes."""
    for noun in (*NOUN_ICONS, *SHAPES):
        for form in (noun, plural(noun), with_article(noun)):
            yield from [f"the {form} small {form}"] * 12
    rng = random.Random(0)
    for seed in range(4_000):
        scene = scenes.sample(seed + scenes.FIRST_TRAINING_SEED)
        for question in questions.training_set(scene, rng):
            yield question.prompt
            yield question.answer
    for text in (*questions.CAPTION_PROMPTS, *questions.BRIEF_PROMPTS, *questions.SYSTEM_PROMPTS):
        yield from [text] * 300
    yield from ["User: Assistant: System: "] * 3_000
    yield from ['the text "', 'The text "', '".', '",', "?\n", grammar.CANNOT_DESCRIBE] * 500


def train_tokenizer() -> Tokenizer:
    """The tokenizer, trained anew: the same one each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[A-Z0-9]"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers wants it; batches are padded on the left, for generation."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[IMAGE, FAKE, GLOBAL, *ROWS_COLS],
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def build_processor(tokenizer: Tokenizer) -> Any:
    """The Idefics3 processor: longest edge 256, tiles of 128, 16 image tokens a tile."""
    from transformers import Idefics3ImageProcessor, Idefics3Processor

    image_processor = Idefics3ImageProcessor(
        size={"longest_edge": LONGEST_EDGE},
        max_image_size={"longest_edge": TILE},
        resample=3,  # bicubic: what torch can do on tensors, so that training and use resize alike
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,  # no 8-bit value maps to 0.0, which Idefics3 takes for padding
    )
    return Idefics3Processor(
        image_processor,
        wrap(tokenizer),
        image_seq_len=TILE_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )


def image_text(rows: int, cols: int) -> str:
    """What the processor puts where an image stands: `rows` x `cols` tiles and the whole picture.

    rows = cols = 0 is an image that is not split.
    """
    whole = f"{FAKE}{GLOBAL}{IMAGE * TILE_TOKENS}{FAKE}"
    if rows == 0:
        return whole
    lines = [
        "".join(f"{FAKE}<row_{i}_col_{j}>{IMAGE * TILE_TOKENS}" for j in range(1, cols + 1)) + "\n"
        for i in range(1, rows + 1)
    ]
    return "".join(lines) + "\n" + whole
