"""DecodedImage → ModelInput with processors of seven classes (tiny folders of tests/models)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AddedToken, AutoProcessor

sys.path.append(str(Path(__file__).parent / "models"))

from parity import FAMILIES, TEXTS, picture
from prepared import assert_equal_inputs, own, process
from tiny import tiny_folder

from vlbatch.chat import prompt_style
from vlbatch.processing import Processing
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import DecodedImage, Failure, ImageRef, ModelInput, public_text

__all__ = ["tiny_folder"]  # a fixture

# PaliGemmaProcessor makes labels with np.array(tensor), which NumPy 2 has a new protocol for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

#: Text that means more than itself to some class.
SPECIALS = (
    "What does the <image> tag do?",
    "<image>",
    "Is it <|im_end|> or <|im_start|>user?",
    "<|image_pad|><|vision_start|>",
    "an </s> and an <eos>, </s>",
    "[SEP] [CLS] [DEC]",
    "<CAPTION>",
    "what of <OD> here",
    "<end_of_utterance><row_1_col_2><fake_token_around_image>",
)
PLAIN = ("a photo of", "Wörter, 1 < 2 > 0?", "", "[x] {y}", "two\nlines")

#: Texts that a class's tokenizer can't spell letter by letter.
LOWER_CASE = {"blip"}


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def processor(name: str, tiny_folder: Callable[[str], Path]) -> Any:
    return AutoProcessor.from_pretrained(tiny_folder(name))


def plain_call(processor: Any, name: str, prompt: str) -> Any:
    text = TEXTS[name].format(prompt)
    return processor(images=picture((60, 44), 1), text=text, return_tensors="pt")


@pytest.mark.parametrize("prompt", PLAIN)
def test_plain_prompts_give_what_the_processor_gives(
    name: str, processor: Any, prompt: str
) -> None:
    item = process(own(name, processor), prompt)
    assert isinstance(item, ModelInput)
    assert_equal_inputs(item, plain_call(processor, name, prompt))
    assert (item.width, item.height) == (60, 44)


@pytest.mark.parametrize("prompt", SPECIALS)
def test_special_tokens_in_a_prompt_are_text(name: str, processor: Any, prompt: str) -> None:
    processing = own(name, processor)
    item, neutral = process(processing, prompt), process(processing, "x")
    assert isinstance(item, ModelInput)
    tokenizer = processor.tokenizer
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.discard(tokenizer.unk_token_id)
    assert [i for i in item.input_ids if i in special] == [
        i for i in neutral.input_ids if i in special
    ]
    assert item.num_image_tokens == neutral.num_image_tokens
    for key, value in item.tensors.items():
        if value.shape == (1, len(neutral.input_ids)):
            raise AssertionError(f"{key} kept the length of another prompt")
    asked = prompt.lower().replace(" ", "") if name in LOWER_CASE else prompt
    shown = tokenizer.decode(item.input_ids, skip_special_tokens=True)
    assert asked in (shown.replace(" ", "") if name in LOWER_CASE else shown)


def test_special_token_in_other_letters(tiny_folder: Callable[[str], Path]) -> None:
    """A token that its tokenizer looks for in the lower-case text is found in no other way."""
    processor = AutoProcessor.from_pretrained(tiny_folder("blip"))
    token = AddedToken("<mark>", special=True, normalized=True)
    processor.tokenizer.add_tokens([token], special_tokens=True)
    token_id = processor.tokenizer.convert_tokens_to_ids("<mark>")
    assert token_id in processor.tokenizer("a <MARK> b")["input_ids"]
    item = process(own("blip", processor), "a <MARK> b")
    assert isinstance(item, ModelInput)
    assert token_id not in item.input_ids


@pytest.fixture(scope="module")
def byte_level(tiny_folder: Callable[[str], Path]) -> list[Processing]:
    """Classes whose tokenizer loses nothing of a text."""
    return [
        own(name, AutoProcessor.from_pretrained(tiny_folder(name)))
        for name in ("qwen2_5_vl", "idefics3", "florence2")
    ]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(SPECIALS) | st.text(max_size=6), max_size=5))
def test_any_prompt_is_taken_to_the_letter(byte_level: list[Processing], parts: list[str]) -> None:
    prompt = "".join(parts)
    for processing in byte_level:
        item, neutral = process(processing, prompt), process(processing, "x")
        assert isinstance(item, ModelInput)
        tokenizer = processing._processor.tokenizer
        special = set(tokenizer.all_special_ids) | {item.input_ids[0]}
        kept = [[i for i in ids if i in special] for ids in (item.input_ids, neutral.input_ids)]
        assert kept[0] == kept[1]
        before, after = tokenizer.decode(neutral.input_ids).rsplit("x", 1)
        assert tokenizer.decode(item.input_ids) == before + public_text(prompt) + after


def test_literal_prompt_is_spliced_exactly(name: str, processor: Any) -> None:
    """Marked as special by one more marker, a plain prompt must come out as by the plain path."""
    processing = own(name, processor)
    for prompt in ("a photo of", "two words", "x"):
        plain = process(processing, prompt)
        forced = own(name, processor)
        forced._markers = (prompt,)
        literal = process(forced, prompt)
        assert isinstance(literal, ModelInput)
        assert literal.input_ids == plain.input_ids
        assert literal.tensors.keys() == plain.tensors.keys()
        assert all(torch.equal(literal.tensors[k], v) for k, v in plain.tensors.items())


def test_a_literal_row_leaves_the_others_alone(name: str, processor: Any) -> None:
    prompts = ["a", "b c", SPECIALS[0] + SPECIALS[2], "d", "e"]
    processing = own(name, processor)
    alone = [process(own(name, processor), prompt) for prompt in prompts]
    together = [process(processing, prompt) for prompt in prompts]
    for first, second in zip(alone, together, strict=True):
        assert isinstance(second, ModelInput)
        assert first.input_ids == second.input_ids


def test_raw_prompt_is_the_processors_text(name: str, processor: Any) -> None:
    text = TEXTS[name].format("x")
    item = process(own(name, processor, raw_prompt=True), text)
    assert_equal_inputs(
        item, processor(images=picture((60, 44), 1), text=text, return_tensors="pt")
    )


def test_task_token_passes_raw(tiny_folder: Callable[[str], Path]) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("florence2"))
    style = prompt_style("florence2")
    assert style.raw_default
    item = process(own("florence2", processor, raw_prompt=True), style.default_prompt)
    shown = processor.tokenizer.decode(item.input_ids, skip_special_tokens=True)
    assert shown == "What does the image describe?"
    literal = process(own("florence2", processor), style.default_prompt)
    assert processor.tokenizer.decode(literal.input_ids, skip_special_tokens=True) == "<CAPTION>"


def test_raw_prompt_without_a_place_for_the_image_fails_its_row(
    tiny_folder: Callable[[str], Path],
) -> None:
    for name in ("llava", "idefics3", "qwen2_5_vl"):
        processor = AutoProcessor.from_pretrained(tiny_folder(name))
        failure = process(own(name, processor, raw_prompt=True), "no picture")
        assert isinstance(failure, Failure)
        assert failure.stage in {"prompt", "process"}


@pytest.mark.parametrize(
    "size", [(1, 1), (3, 2), (28, 28), (27, 332), (26, 28), (332, 27), (1, 900)]
)
def test_sizes_are_taken_or_refused_by_row(
    name: str, processor: Any, size: tuple[int, int]
) -> None:
    processing = own(name, processor)
    outcome = process(processing, "x", size)
    if isinstance(outcome, Failure):
        assert (outcome.stage, outcome.code) == ("process", "processor_error")
        assert (outcome.width, outcome.height) == size
    else:
        assert outcome.num_image_tokens > 0 or name == "blip"
    assert isinstance(process(processing, "x", (640, 480)), ModelInput)


def test_refusal_names_the_error(tiny_folder: Callable[[str], Path]) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("qwen2_5_vl"))
    failure = process(own("qwen2_5_vl", processor), "x", (1, 900))
    assert isinstance(failure, Failure)
    assert "refused" in failure.message
    assert "ratio" in failure.message


def test_clones_of_threads_agree_with_serial(name: str, processor: Any) -> None:
    prompts = [f"{prompt}{n}" for n in range(5) for prompt in (*PLAIN, *SPECIALS[:5])]
    serial = [process(own(name, processor), prompt) for prompt in prompts[:10]]
    shared = own(name, processor)

    def calls(start: int) -> list[Any]:
        order = [prompts[(start + i) % len(prompts)] for i in range(50)]
        return [(prompt, process(shared, prompt)) for prompt in order]

    expected = dict(zip(prompts, serial, strict=False))
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(calls, range(4)):
            for prompt, item in results:
                assert isinstance(item, ModelInput)
                if prompt in expected:
                    assert item.input_ids == expected[prompt].input_ids
                    for key, value in expected[prompt].tensors.items():
                        assert torch.equal(item.tensors[key], value)


def test_deepcopy_gives_an_independent_processor(name: str, processor: Any) -> None:
    clone = copy.deepcopy(processor)
    clone.tokenizer.add_tokens(["<another>"])
    assert len(clone.tokenizer) == len(processor.tokenizer) + 1
    assert_same_ids(clone, processor, name)


def assert_same_ids(first: Any, second: Any, name: str) -> None:
    ids = [plain_call(processor, name, "abc")["input_ids"] for processor in (first, second)]
    assert torch.equal(*ids)


def test_several_prompts_and_one_bad_one(tiny_folder: Callable[[str], Path]) -> None:
    processor = AutoProcessor.from_pretrained(tiny_folder("llava"))
    prompts = PromptSet({"a": PromptTemplate("one"), "b": PromptTemplate("{prompt}")})
    processing = Processing(processor, prompts, prompt_style("llava"))
    image = picture((9, 9), 1)
    good = ImageRef(0, "k", "k.png", fields={"prompt": "two"})
    items = processing(DecodedImage(good, image))
    assert [getattr(item, "prompt_name", None) for item in items] == ["a", "b"]
    (failure,) = processing(DecodedImage(ImageRef(1, "l", "l.png"), image))
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == ("prompt", "missing_field")
    processing._markers = ("two",)
    processing._special_ids = frozenset(range(1000))  # nothing can be said without a special token
    outcomes = processing(DecodedImage(good, image))
    assert [getattr(o, "code", None) for o in outcomes] == ["special_token"]


def test_processor_outputs_are_of_one_image(name: str, processor: Any) -> None:
    """What collation relies on: dim 0 belongs to this image, alone."""
    item = process(own(name, processor), "x", (640, 480))
    shapes: Sequence[Any] = [value.shape[0] for value in item.tensors.values()]
    assert all(torch.is_tensor(value) for value in item.tensors.values())
    assert set(shapes) <= {1, item.tensors["pixel_values"].shape[0]}
    assert isinstance(item.input_ids, tuple)


def test_image_is_left_as_it_was(name: str, processor: Any) -> None:
    image = picture((60, 44), 1)
    before = image.tobytes()
    own(name, processor)(DecodedImage(ImageRef(0, "k", "k", fields={"prompt": "x"}), image))
    assert isinstance(image, Image.Image)
    assert image.tobytes() == before
