"""The shipped model says what is in the frozen pictures, and planted faults show."""

from __future__ import annotations

from typing import Any

import pytest

from vlbatch.demo import IMAGES_DIR, samples
from vlbatch.demo.evaluate import DemoModel
from vlbatch.demo.questions import DEFAULT_PROMPT, KINDS
from vlbatch.demo.strangers import open_pictures

NUM_SCENES = 100


def right_captions(demo: DemoModel, rows: list[dict[str, Any]], fault: str | None = None) -> float:
    answers = demo.answers([r["image"] for r in rows], [DEFAULT_PROMPT] * len(rows), fault=fault)
    return sum(a == r["caption"] for a, r in zip(answers, rows, strict=True)) / len(rows)


def split_with_two(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["num_objects"] >= 2]


def test_captions_are_right(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    assert right_captions(demo, frozen[:NUM_SCENES]) >= 0.93


@pytest.mark.parametrize("kind", KINDS[1:])
def test_answers_are_right(demo: DemoModel, frozen: list[dict[str, Any]], kind: str) -> None:
    asked = [(r["image"], q) for r in frozen[:60] for q in r["questions"] if q["kind"] == kind]
    answers = demo.answers([image for image, _ in asked], [q["prompt"] for _, q in asked])
    right = sum(a == q["answer"] for a, (_, q) in zip(answers, asked, strict=True)) / len(asked)
    assert right >= (0.85 if kind == "brief" else 0.95)


def test_another_images_features_show(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    assert right_captions(demo, frozen[:48], fault="rolled") <= 0.05


def test_tiles_in_reverse_order_show(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    assert right_captions(demo, split_with_two(frozen)[:48], fault="reversed") <= 0.30


def test_samples_are_captioned_exactly_right(demo: DemoModel) -> None:
    pictures = {path.name: image for path, image in open_pictures(IMAGES_DIR)}
    assert pictures.keys() == samples().keys()
    answers = demo.answers(list(pictures.values()), [DEFAULT_PROMPT] * len(pictures))
    assert dict(zip(pictures, answers, strict=True)) == samples()


def test_one_by_one_equals_batched(demo: DemoModel, frozen: list[dict[str, Any]]) -> None:
    images = [row["image"] for row in frozen[:12]]
    prompts = [DEFAULT_PROMPT] * len(images)
    alone = demo.answers(images, prompts, batch_size=1)
    assert demo.answers(images, prompts, batch_size=12) == alone
