"""Prompts: the wordings of each kind of request, and questions drawn for a scene."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vlbatch.demo import grammar
from vlbatch.demo.grammar import POSITIONS, Scene
from vlbatch.demo.vocabulary import NOUN_ICONS, NUMBERS, SHAPES, plural, with_article

DEFAULT_PROMPT = "Describe this image."

CAPTION_PROMPTS: tuple[str, ...] = (
    DEFAULT_PROMPT, "Describe this image", "describe this image", "Describe the image.",
    "Describe this picture.", "Describe the picture in detail.", "Describe this image in detail.",
    "Caption this image.", "Write a caption for this image.", "Write a detailed caption.",
    "What is in this image?", "What is shown in this image?", "What does this picture show?",
    "What do you see?", "What can you see in this picture?",
    "Give a full description of this image.",
    "Provide a description of the picture.", "Can you describe this image?",
    "Please describe this image.", "Tell me what is in the picture.", "Describe", "caption", "",
)  # fmt: skip
BRIEF_PROMPTS: tuple[str, ...] = (
    "Describe this image briefly.", "Describe this image in a few words.", "Give a brief caption.",
    "Write a short caption for this image.", "Briefly, what is in this picture?",
)  # fmt: skip
SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are a helpful assistant.", "You describe images.", "Answer briefly.", "Be precise.",
    "You are a captioner.", "Answer in English.", "Look closely at the image.", "Be helpful.",
)  # fmt: skip
NO_TEXT = "There is no text."

_WORDINGS: dict[str, tuple[str, ...]] = {
    "text": ("What does the text say?", "Read the text.", "What is written in this image?"),
    "at": ("What is {at}?", "What do you see {at}?", "Name the object {at}."),
    "where": ("Where is the {noun}?", "Where can the {noun} be found?"),
    "color": ("What color is the {noun}?", "Which color does the {noun} have?"),
    "count": ("How many {nouns} are there?", "Count the {nouns}."),
    "objects": ("How many objects are there?", "Count the objects."),
    "background": ("What is the background?", "Describe the background."),
    "exists": ("Is there {a_noun}?", "Does the image show {a_noun}?"),
}
KINDS: tuple[str, ...] = ("caption", "brief", *_WORDINGS)
ALL_NOUNS: tuple[str, ...] = (*SHAPES, *NOUN_ICONS)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the one right answer, and the kind it belongs to (one of KINDS)."""

    kind: str
    prompt: str
    answer: str


def _absent(scene: Scene, rng: random.Random, nouns: tuple[str, ...]) -> str:
    present = {thing.noun for thing in scene.things}
    while (noun := rng.choice(nouns)) in present:
        pass
    return noun


def _ask(kind: str, scene: Scene, rng: random.Random, nouns: tuple[str, ...]) -> Question | None:
    """One question of a kind, None where the scene allows none."""
    wording = rng.choice(_WORDINGS[kind])
    unique = grammar.unique_things(scene)
    words: dict[str, str] = {}
    if kind == "text":
        answer = NO_TEXT if scene.text is None else f'"{scene.text.text}"'
    elif kind == "at":
        cells = grammar.cells_of(scene.layout)
        if not cells:
            return None
        filled = [thing.cell for thing in scene.things if thing.cell is not None]
        cell = rng.choice(filled) if filled and rng.random() < 0.65 else rng.choice(cells)
        words["at"], answer = POSITIONS[cell], grammar.at_position(scene, cell)
    elif kind in ("where", "color"):
        fit = [t for t in unique if t.cell is not None] if kind == "where" else (
            [t for t in unique if t.color is not None])  # fmt: skip
        if not fit:
            return None
        thing = rng.choice(fit)
        words["noun"] = thing.noun
        answer = thing.position() if kind == "where" else str(thing.color)
    elif kind == "objects":
        answer = NUMBERS[scene.num_objects]
    elif kind == "background":
        answer = grammar.background_phrase(scene)
    else:
        present = scene.things and rng.random() < (0.7 if kind == "count" else 0.5)
        noun = rng.choice(scene.things).noun if present else _absent(scene, rng, nouns)
        words = {"nouns": plural(noun), "a_noun": with_article(noun)}
        number = grammar.count(scene, noun)
        answer = number if kind == "count" else ("no" if number == NUMBERS[0] else "yes")
    return Question(kind, wording.format(**words), answer)


def ask(
    kind: str, scene: Scene, rng: random.Random, nouns: tuple[str, ...] = ALL_NOUNS
) -> Question | None:
    """One question of a kind about a scene, or None where the scene allows none.

    nouns: what an absent object is drawn from. A picture without a description has captions only.
    """
    if kind == "caption":
        return Question(kind, rng.choice(CAPTION_PROMPTS), grammar.caption(scene))
    if kind == "brief":
        return Question(kind, rng.choice(BRIEF_PROMPTS), grammar.brief(scene))
    return None if scene.cannot is not None else _ask(kind, scene, rng, nouns)


def training_set(scene: Scene, rng: random.Random, num_more: int = 9) -> list[Question]:
    """The questions one training picture carries, the most important first."""
    kinds = ["caption", "brief"]
    if scene.text is not None or rng.random() < 0.15:
        kinds.append("text")
    kinds += rng.choices(
        ["at", "where", "color", "count", "objects", "background", "exists", "caption", "brief"],
        weights=[3, 1.2, 1, 3, 1, 0.6, 1.6, 0.5, 1.5],
        k=num_more,
    )
    asked = [ask(kind, scene, rng) for kind in kinds]
    return list(dict.fromkeys(question for question in asked if question is not None))
