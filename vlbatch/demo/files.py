"""Held-out scenes as real picture files: JPEG, PNG and WebP at random size and aspect."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from PIL import Image

from vlbatch.demo import questions, raster, scenes
from vlbatch.demo.grammar import Scene
from vlbatch.demo.questions import ALL_NOUNS, KINDS, Question
from vlbatch.demo.sprites import Atlas
from vlbatch.demo.vocabulary import SHAPES


@dataclass(frozen=True)
class PictureFile:
    """One scene as a file.

    suffix: "jpg", "png" or "webp". asked: one question of each kind that the scene allows, first
    the caption with the default prompt.
    """

    scene: Scene
    data: bytes
    suffix: str
    asked: tuple[Question, ...]

    def image(self) -> Image.Image:
        """The picture as a reader would open it, RGB."""
        with Image.open(io.BytesIO(self.data)) as opened:
            return opened.convert("RGB")


def encode(image: Image.Image, suffix: str, rng: random.Random) -> bytes:
    """Picture file bytes; JPEG and WebP lossy at a random quality of 60..95."""
    buffer = io.BytesIO()
    if suffix == "png":
        image.save(buffer, "PNG")
    elif suffix == "webp":
        image.save(buffer, "WEBP", quality=rng.randint(60, 95))
    else:
        image.save(buffer, "JPEG", quality=rng.randint(60, 95), subsampling=rng.choice((0, 2)))
    return buffer.getvalue()


def questions_about(scene: Scene, rng: random.Random, atlas: Atlas) -> tuple[Question, ...]:
    """The caption with the default prompt, then one question of every other kind that fits.

    Absent objects are drawn from the nouns that the atlas can draw.
    """
    nouns = ALL_NOUNS if atlas.icons else SHAPES
    caption = questions.ask("caption", scene, rng, nouns)
    assert caption is not None
    asked = [Question("caption", questions.DEFAULT_PROMPT, caption.answer)]
    for kind in KINDS[1:]:
        question = questions.ask(kind, scene, rng, nouns)
        if question is not None:
            asked.append(question)
    return tuple(asked)


def picture_file(
    seed: int,
    atlas: Atlas,
    *,
    sets: tuple[str, ...] | None = None,
    longest: tuple[int, int] = (256, 1024),
    suffixes: tuple[str, ...] = ("jpg", "png"),
) -> PictureFile:
    """The file of a held-out seed, the same each time. longest: range of its longer edge."""
    rng = random.Random(seed * 7919 + 17)
    scene = scenes.sample(seed, atlas, sets=sets)
    image = raster.draw(scene, atlas, scenes.random_size(scene, rng, *longest))
    suffix = rng.choice(suffixes)
    data = encode(image, suffix, rng)
    return PictureFile(scene, data, suffix, questions_about(scene, rng, atlas))
