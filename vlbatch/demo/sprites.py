"""The sprite atlas: every shape, letter and icon as one 96 x 96 picture with alpha.

An atlas made by `procedural()` holds the shapes and the letters of the face that Pillow embeds; it
needs no file. `atlas.py` adds icons and more faces.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vlbatch.demo.vocabulary import SHAPES

SPRITE = 96  # side of a sprite, pixels
PILLOW_FACE = "pillow"
GLYPHS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SUPER = 4  # shapes and letters are drawn this much larger, then reduced
CAP_HEIGHT = 0.6  # height of a capital letter, in sprite sides


@dataclass(frozen=True)
class Atlas:
    """Sprites and their names.

    pixels: uint8 (num_sprites, 96, 96, 4), RGBA premultiplied by alpha.
    keys: one a sprite, ("shape", name), ("glyph", face, char), ("icon", set, noun) or
    ("other", set, name).
    advances: face -> char -> width in sprite sides.
    """

    pixels: NDArray[np.uint8]
    keys: tuple[tuple[str, ...], ...]
    advances: dict[str, dict[str, float]]

    @cached_property
    def index(self) -> dict[tuple[str, ...], list[int]]:
        """Key -> the sprites that have it (drawings that share a noun share a key)."""
        index: dict[tuple[str, ...], list[int]] = {}
        for number, key in enumerate(self.keys):
            index.setdefault(key, []).append(number)
        return index

    @cached_property
    def icons(self) -> dict[str, dict[str, list[int]]]:
        """Set -> noun -> sprites."""
        icons: dict[str, dict[str, list[int]]] = {}
        for key, numbers in self.index.items():
            if key[0] == "icon":
                icons.setdefault(key[1], {})[key[2]] = numbers
        return icons

    @cached_property
    def others(self) -> list[int]:
        """Sprites of drawings that have no noun of the vocabulary."""
        return [number for number, key in enumerate(self.keys) if key[0] == "other"]

    @cached_property
    def mean_colors(self) -> NDArray[np.float64]:
        """(num_sprites, 3): the mean colour of each sprite where it is opaque, 0..255."""
        flat = self.pixels.reshape(len(self.pixels), -1, 4).sum(1, dtype=np.int64)
        colors: NDArray[np.float64] = flat[:, :3] / np.maximum(flat[:, 3:], 1) * 255.0
        return colors

    def save(self, path: Path) -> None:
        """Write the atlas as one PNG sheet and its names, in a zip that numpy reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet = io.BytesIO()
        flat = self.pixels.reshape(-1, SPRITE, 4)
        Image.fromarray(flat).save(sheet, "PNG", optimize=False, compress_level=9)
        names = json.dumps({"keys": self.keys, "advances": self.advances})
        np.savez(path, sheet=np.frombuffer(sheet.getvalue(), np.uint8), names=np.array(names))

    @staticmethod
    def load(path: Path) -> Atlas:
        """Read what `save` wrote; FileNotFoundError where there is none."""
        with np.load(path) as stored:
            names = json.loads(str(stored["names"]))
            with Image.open(io.BytesIO(stored["sheet"].tobytes())) as sheet:
                pixels = np.asarray(sheet).reshape(-1, SPRITE, SPRITE, 4)
        keys = tuple(tuple(key) for key in names["keys"])
        return Atlas(pixels, keys, names["advances"])


def premultiply(image: Image.Image) -> NDArray[np.uint8]:
    """An RGBA picture as (96, 96, 4) uint8 with colour premultiplied by alpha."""
    rgba = np.asarray(image.convert("RGBA")).astype(np.float32)
    rgba[..., :3] *= rgba[..., 3:] / 255.0
    return np.round(rgba).astype(np.uint8)


def _mask_sprite(mask: Image.Image) -> NDArray[np.uint8]:
    alpha = np.asarray(mask.resize((SPRITE, SPRITE), Image.Resampling.BOX))
    return np.repeat(alpha[..., None], 4, axis=2)


def _polygon(name: str) -> list[tuple[float, float]]:
    """Corners in [-1, 1], y down."""
    if name == "square":
        return [(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)]
    if name == "triangle":
        return [(0.0, -0.92), (0.95, 0.75), (-0.95, 0.75)]
    if name == "diamond":
        return [(0.0, -0.98), (0.62, 0.0), (0.0, 0.98), (-0.62, 0.0)]
    if name == "cross":
        a, b = 0.95, 0.33
        return [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b),
                (b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b)]  # fmt: skip
    if name == "arrow":
        return [(-0.95, -0.28), (0.1, -0.28), (0.1, -0.75), (0.97, 0.0),
                (0.1, 0.75), (0.1, 0.28), (-0.95, 0.28)]  # fmt: skip
    if name == "star":
        points = []
        for k in range(10):
            radius = 0.98 if k % 2 == 0 else 0.42
            turn = math.pi * (k / 5 - 0.5)
            points.append((radius * math.cos(turn), radius * math.sin(turn) + 0.05))
        return points
    assert name == "heart", name
    points = []
    for k in range(120):
        t = 2 * math.pi * k / 120
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((math.sin(t) ** 3 * 0.97, -(y + 2.5) / 15.5))
    return points


def _shape(name: str) -> NDArray[np.uint8]:
    side = SPRITE * _SUPER
    mask = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(mask)

    def disc(cx: float, cy: float, radius: float, fill: int) -> None:
        box = [(cx - radius + 1) * side / 2, (cy - radius + 1) * side / 2,
               (cx + radius + 1) * side / 2, (cy + radius + 1) * side / 2]  # fmt: skip
        draw.ellipse(box, fill=fill)

    if name in ("circle", "ring", "crescent"):
        disc(0, 0, 0.95, 255)
        if name == "ring":
            disc(0, 0, 0.5, 0)
        if name == "crescent":
            disc(0.42, -0.1, 0.78, 0)
    else:
        draw.polygon(
            [((x + 1) * side / 2, (y + 1) * side / 2) for x, y in _polygon(name)], fill=255
        )
    return _mask_sprite(mask)


def _font(path: Path | None, size: float) -> ImageFont.FreeTypeFont:
    if path is not None:
        return ImageFont.truetype(path, size)
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType; text cannot be drawn")
    return font


def draw_face(path: Path | None) -> tuple[list[NDArray[np.uint8]], dict[str, float]]:
    """The sprites of GLYPHS in one face, and their advances in sprite sides.

    path: a TrueType file, or None for the face that Pillow embeds.
    """
    side = SPRITE * _SUPER
    probe = _font(path, 200.0)
    _, top, _, bottom = probe.getbbox("H")
    font = _font(path, 200.0 * CAP_HEIGHT * side / (bottom - top))
    sprites, advances = [], {}
    for char in GLYPHS:
        mask = Image.new("L", (side, side), 0)
        ImageDraw.Draw(mask).text((side / 2, side / 2), char, fill=255, font=font, anchor="mm")
        sprites.append(_mask_sprite(mask))
        advances[char] = round(font.getlength(char) / side, 4)
    return sprites, advances


@cache
def procedural() -> Atlas:
    """Shapes and the letters of Pillow's own face: all that the icon-free scenes need."""
    sprites = [_shape(name) for name in SHAPES]
    keys: list[tuple[str, ...]] = [("shape", name) for name in SHAPES]
    glyphs, advances = draw_face(None)
    keys += [("glyph", PILLOW_FACE, char) for char in GLYPHS]
    return Atlas(np.stack(sprites + glyphs), tuple(keys), {PILLOW_FACE: advances})
