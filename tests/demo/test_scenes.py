"""Scenes and their words."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlbatch.demo import grammar, questions, scenes
from vlbatch.demo.sprites import Atlas, procedural
from vlbatch.demo.vocabulary import COLORS, NOUN_ICONS, SHAPES, plural, with_article

seeds = st.integers(0, 10**9)

_PHRASE = re.compile(
    rf"a (small|large|huge) ((striped|checkered|dotted) )?({'|'.join(COLORS)}) ({'|'.join(SHAPES)})"
)


def with_words(seed: int) -> grammar.Scene:
    """The first scene from a seed on that has a description."""
    while (scene := scenes.sample(seed)).cannot is not None:
        seed += 1
    return scene


def test_the_same_seed_gives_the_same_picture() -> None:
    for seed in range(12):
        first, second = scenes.render(seed), scenes.render(seed)
        assert first[1] == second[1]
        assert np.array_equal(np.asarray(first[0]), np.asarray(second[0]))


def test_a_size_is_kept() -> None:
    image, _ = scenes.render(5, size=(320, 200))
    assert (image.size, image.mode) == ((320, 200), "RGB")


def test_an_unknown_layout_is_named() -> None:
    with pytest.raises(ValueError, match="square, wide, tall, huge, not 'round'"):
        scenes.sample(0, layout="round")


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_captions_name_every_object_once_in_reading_order(seed: int) -> None:
    scene = with_words(seed)
    caption = grammar.caption(scene)
    assert caption[0].isupper()
    assert caption.endswith(" background.")
    body = caption[0].lower() + caption[1:]
    assert len(_PHRASE.findall(body)) == scene.num_objects
    assert (scene.text is None) == ('"' not in caption)
    found = [body.index(f"{t.phrase()} {t.position()}".strip()) for t in scene.things]
    by_cell = sorted(range(len(found)), key=lambda n: scene.things[n].cell or (1, 1))
    assert [found[n] for n in by_cell] == sorted(found) or len(set(found)) < len(found)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_things_lie_in_their_own_cells_within_the_picture(seed: int) -> None:
    scene = with_words(seed)
    width, height = scene.aspect**0.5, scene.aspect**-0.5
    cells = [thing.cell for thing in scene.things]
    taken = [c for c in cells if c] + list(scene.text.cells if scene.text else ())
    assert len(set(taken)) == len(taken)
    for thing in scene.things:
        place = thing.placement
        assert place.half <= place.x <= width - place.half
        assert place.half <= place.y <= height - place.half
    for _, place in scene.text.letters if scene.text else ():
        assert 0 < place.x < width
        assert 0 < place.y < height


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_answers_follow_from_the_scene(seed: int) -> None:
    scene = with_words(seed)
    rng = random.Random(seed)
    for kind in questions.KINDS:
        question = questions.ask(kind, scene, rng, SHAPES)
        if question is None:
            continue
        assert question.answer
        if kind == "exists":
            noun = next(n for n in SHAPES if with_article(n) in question.prompt)
            assert (question.answer == "yes") == any(t.noun == noun for t in scene.things)
        if kind == "brief":
            counted = sum(t.noun in question.answer.lower() for t in scene.things)
            assert counted == scene.num_objects


def test_a_shape_and_its_background_have_different_colors() -> None:
    for seed in range(300):
        scene = scenes.sample(seed)
        assert all(thing.color != scene.color for thing in scene.things)


def test_no_two_colors_share_a_pair_of_tones() -> None:
    from vlbatch.demo.palette import _SECOND, _WHITE, distance

    pairs = [(COLORS[name], _SECOND.get(name, _WHITE)) for name in COLORS]
    for n, (a, b) in enumerate(pairs):
        for c, d in pairs[:n]:
            same, crossed = max(distance(a, c), distance(b, d)), max(distance(a, d), distance(b, c))
            assert min(same, crossed) > 80


def test_words() -> None:
    assert with_article("owl") == "an owl"
    assert with_article("unicorn") == "a unicorn"
    assert with_article("hourglass") == "an hourglass"
    assert plural("knife") == "knives"
    assert plural("butterfly") == "butterflies"
    assert plural("cross") == "crosses"
    assert len({*NOUN_ICONS, *SHAPES}) == len(NOUN_ICONS) + len(SHAPES)


def test_an_atlas_is_read_as_written(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "atlas.npz"
    atlas = procedural()
    atlas.save(path)
    again = Atlas.load(path)
    assert again.keys == atlas.keys
    assert again.advances == atlas.advances
    assert np.array_equal(again.pixels, atlas.pixels)
