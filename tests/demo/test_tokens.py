"""The tokenizer: every text comes back, and printed letters are never merged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from vlbatch.demo import MODEL_DIR, tokens
from vlbatch.demo.evaluate import DemoModel
from vlbatch.demo.questions import ALL_NOUNS
from vlbatch.demo.vocabulary import TEXT_WORDS

TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    special = {TOKENIZER.token_to_id(token) for token in tokens.SPECIAL}
    if not special & set(ids):
        assert TOKENIZER.decode(ids) == text


def test_letters_stand_alone() -> None:
    for word in TEXT_WORDS:
        assert TOKENIZER.encode(word).tokens == list(word)


def test_most_words_are_one_token() -> None:
    lengths = [len(TOKENIZER.encode(" " + word).ids) for word in ALL_NOUNS if " " not in word]
    assert sum(lengths) / len(lengths) < 1.1


@pytest.mark.parametrize("rows_cols", [(0, 0), (1, 2), (2, 1), (2, 2)])
def test_image_text_is_the_processors(demo: DemoModel, rows_cols: tuple[int, int]) -> None:
    from PIL import Image

    rows, cols = rows_cols
    image = Image.new("RGB", (300 * max(1, cols), 300 * max(1, rows)), "red")
    inputs = demo.processor(text=[tokens.IMAGE], images=[[image]], do_image_splitting=rows > 0)
    assert inputs["input_ids"][0] == TOKENIZER.encode(tokens.image_text(rows, cols)).ids


def test_the_template(demo: DemoModel) -> None:
    assert demo.chat("Hi") == "<|im_start|>User:<image>Hi<end_of_utterance>\nAssistant:"
    system = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    text = demo.processor.apply_chat_template(system)
    assert text == "<|im_start|>System: Be brief.<end_of_utterance>\n"


def test_training_gives_the_vocabulary_size() -> None:
    fresh = tokens.train_tokenizer()
    assert fresh.get_vocab_size() == tokens.VOCAB_SIZE
    assert fresh.encode("A small red star").tokens == TOKENIZER.encode("A small red star").tokens
