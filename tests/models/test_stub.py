from __future__ import annotations

import pytest
from PIL import Image

from vlbatch.models.stub import StubModel, nearest_colour
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import DecodedImage, Failure, Generation, ImageRef, ModelInput


@pytest.mark.parametrize(
    ("rgb", "name"), [((255, 0, 0), "red"), ((250, 250, 250), "white"), ((10, 60, 220), "blue")]
)
def test_nearest_colour(rgb: tuple[int, int, int], name: str) -> None:
    assert nearest_colour(rgb) == name


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
