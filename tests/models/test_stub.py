from __future__ import annotations

import pytest
from PIL import Image

from vlbatch.models.stub import StubModel, colour_name
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import DecodedImage, Failure, Generation, ImageRef, ModelInput


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("ff0000", "red"), ("fafafa", "white"), ("0a3cdc", "blue"), ("71b972", "green"),
        ("c8c8c8", "grey"), ("9f9ffe", "blue"), ("8dc500", "green"), ("c3c3fd", "blue"),
        ("000000", "black"), ("f5dc28", "yellow"), ("784b28", "brown"), ("ff96be", "pink"),
    ],
)  # fmt: skip
def test_colour_name(code: str, name: str) -> None:
    red, green, blue = bytes.fromhex(code)
    assert colour_name((red, green, blue)) == name


def test_caption_is_a_function_of_the_pixels() -> None:
    stub = StubModel(PromptSet({"a": PromptTemplate("what?"), "b": PromptTemplate("why?")}))
    image = Image.new("RGB", (8, 4), (220, 30, 30))
    inputs = stub.process(DecodedImage(ImageRef(0, "k", "k.png"), image))
    items = [item for item in inputs if isinstance(item, ModelInput)]
    assert [item.prompt_name for item in items] == ["a", "b"]
    outcomes = stub.generate(items)
    assert [o.text for o in outcomes if isinstance(o, Generation)] == [
        "A red picture (#dc1e1e), 8 x 4."
    ] * 2
    assert stub.num_batches == 1


def test_missing_field_is_a_failure() -> None:
    stub = StubModel(PromptSet({"": PromptTemplate("{nope}")}))
    decoded = DecodedImage(ImageRef(0, "k", "k.png"), Image.new("RGB", (1, 1)))
    (failure,) = stub.process(decoded)
    assert isinstance(failure, Failure)
    assert failure.code == "missing_field"
