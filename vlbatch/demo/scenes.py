"""Draw a scene at random from a seed. Seeds below 2,000 are held out; training has 10,000,000 on.

`sample` gives the scene (what is said about it is `grammar.py`), `render` also its picture.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from vlbatch.demo import grammar
from vlbatch.demo.grammar import Cell, Paint, Placement, Scene, Text, Thing
from vlbatch.demo.palette import SceneColors
from vlbatch.demo.sprites import CAP_HEIGHT, Atlas, procedural
from vlbatch.demo.vocabulary import COLORS, PATTERNS, SHAPES, TEXT_ALPHABET, TEXT_WORDS

if TYPE_CHECKING:
    from PIL import Image

HELD_OUT_SEEDS = range(0, 2_000)
FIRST_TRAINING_SEED = 10_000_000
LAYOUTS = ("square", "wide", "tall", "huge")

# Side of a sprite in pixels of the model's 256-pixel frame. The gaps between the ranges keep the
# size words unambiguous.
_SIDES = {"small": (34.0, 42.0), "large": (58.0, 78.0), "huge": (130.0, 190.0)}
_CAP_SIDES = (18.0, 38.0)  # height of a capital letter
_MAX_TEXT = {"square": 6, "wide": 4, "tall": 5}
_FRAME = {"square": 256.0, "huge": 256.0, "wide": 256 / math.sqrt(2), "tall": 256 / math.sqrt(2)}
_TILT = {"circle": math.pi, "ring": math.pi, "square": 0.18, "diamond": 0.14}


class _Sampler:
    """The random draws of one scene."""

    def __init__(
        self, seed: int, atlas: Atlas, layout: str | None, sets: tuple[str, ...] | None
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.seed, self.atlas = seed, atlas
        self.layout = layout or rng.choices(LAYOUTS, [0.62, 0.14, 0.14, 0.10])[0]
        if self.layout in ("square", "huge"):
            self.aspect = math.exp(rng.uniform(-0.575, 0.575))
        else:
            ratio = math.exp(rng.uniform(math.log(2.02), math.log(3.0)))
            self.aspect = ratio if self.layout == "wide" else 1 / ratio
        self.width, self.height = math.sqrt(self.aspect), 1 / math.sqrt(self.aspect)
        self.frame = _FRAME[self.layout]
        self.sets = [s for s in (sets or tuple(atlas.icons)) if s in atlas.icons]
        self.colors = SceneColors(rng, atlas)

    def scene(self) -> Scene:
        rng = self.rng
        if rng.random() < 0.045:
            return self.without_description()
        text_row = self.layout != "huge" and rng.random() < 0.32
        cells = grammar.cells_of(self.layout)
        text_cells: tuple[Cell, ...] = ()
        if text_row:
            middle = rng.choice([c for c in cells if c[1] == 1 or self.layout == "wide"])
            row = [c for c in cells if c[0] == middle[0]]
            text_cells = tuple(row) if self.layout == "square" else (middle,)
        free = [c for c in cells if c not in text_cells]
        rng.shuffle(free)
        num_things = 1
        if self.layout != "huge":
            top = 5 if self.layout == "square" else 3
            num_things = rng.choices(range(1, 6), [15, 20, 25, 20, 20])[0]
            num_things = min(num_things, top, len(free)) - (text_row and rng.random() < 0.15)
        things: list[Thing] = []
        for number in range(num_things):
            cell = None if self.layout == "huge" else free[number]
            things.append(self.thing(cell, things))
        color, background = self.colors.background(things)
        text = self.text(text_cells, background) if text_row else None
        texture = rng.uniform(0.0, 7.0) if background.pattern == "plain" else 0.0
        return Scene(
            self.seed, self.layout, self.aspect, color, background, texture, tuple(things), text
        )

    def thing(self, cell: Cell | None, before: list[Thing]) -> Thing:
        rng = self.rng
        noun = None
        if before and rng.random() < 0.25:
            noun = rng.choice(before).noun
        if noun is None and (not self.sets or rng.random() < 0.42):
            noun = rng.choice(SHAPES)
        size = "huge" if cell is None else rng.choice(("small", "large"))
        placement = self.place(cell, size, noun)
        if noun in SHAPES:
            color = rng.choice(list(COLORS))
            pattern = rng.choices(PATTERNS, [55, 15, 15, 15])[0]
            paint = self.colors.shape(color, pattern)
            sprite = self.atlas.index["shape", noun][0]
            return Thing(noun, size, cell, sprite, placement, color, paint)
        icons = self.atlas.icons[rng.choice(self.sets)]
        while noun not in icons:
            icons = self.atlas.icons[rng.choice(self.sets)]
            noun = noun or rng.choice(list(icons))
        return Thing(noun, size, cell, rng.choice(icons[noun]), placement)

    def cell_box(self, cell: Cell | None) -> tuple[float, float, float, float]:
        """Centre x, y, width, height of a cell in picture units."""
        if cell is None:
            return self.width / 2, self.height / 2, self.width, self.height
        cols = 3 if self.layout in ("square", "wide") else 1
        rows = 3 if self.layout in ("square", "tall") else 1
        col, row = (cell[1] if cols == 3 else 0), (cell[0] if rows == 3 else 0)
        w, h = self.width / cols, self.height / rows
        return (col + 0.5) * w, (row + 0.5) * h, w, h

    def place(self, cell: Cell | None, size: str, noun: str | None) -> Placement:
        rng = self.rng
        x, y, w, h = self.cell_box(cell)
        low, high = (side / self.frame for side in _SIDES[size])
        side = rng.uniform(low, max(low, min(high, 0.985 * min(w, h))))
        slack_x, slack_y = max(0.0, w - side) * 0.32, max(0.0, h - side) * 0.32
        tilt = _TILT.get(noun or "", 0.22)
        return Placement(
            x + rng.uniform(-slack_x, slack_x),
            y + rng.uniform(-slack_y, slack_y),
            side / 2,
            rng.uniform(-tilt, tilt),
            noun not in SHAPES and rng.random() < 0.5,
        )

    def text(self, cells: tuple[Cell, ...], background: Paint) -> Text:
        rng = self.rng
        longest = _MAX_TEXT[self.layout]
        if rng.random() < 0.35:
            text = rng.choice([word for word in TEXT_WORDS if len(word) <= longest])
        else:
            text = "".join(rng.choices(TEXT_ALPHABET, k=rng.randint(2, longest)))
        face = rng.choice(list(self.atlas.advances))
        advances = [self.atlas.advances[face][char] for char in text]
        x, y, w, h = self.cell_box(cells[len(cells) // 2])
        w *= len(cells)
        low, high = (side / self.frame for side in _CAP_SIDES)
        widest = 0.92 * w / sum(advances) * CAP_HEIGHT
        cap = rng.uniform(min(low, widest), min(high, widest, 0.7 * h))
        side, total = cap / CAP_HEIGHT, sum(advances) * cap / CAP_HEIGHT
        left = x - total / 2 + rng.uniform(-0.35, 0.35) * (w - total)
        line = y + rng.uniform(-0.3, 0.3) * (h - cap)
        letters = []
        for char, advance in zip(text, advances, strict=True):
            middle = left + advance * side / 2
            letters.append(
                (self.atlas.index["glyph", face, char][0], Placement(middle, line, side / 2))
            )
            left += advance * side
        return Text(text, cells, tuple(letters), self.colors.letters(background))

    def without_description(self) -> Scene:
        """A picture that the grammar has no words for."""
        rng = self.rng
        kinds = ("noise", "empty", "collage", "zoom", "stranger")
        why = rng.choices(kinds, [30, 20, 20, 15, 15])[0]
        if not self.sets and why in ("zoom", "stranger"):
            why = "noise"
        color, background = self.colors.background([])
        extras: list[tuple[int, Placement]] = []
        small = min(self.width, self.height)
        drawings = [
            n for s in self.sets for numbers in self.atlas.icons[s].values() for n in numbers
        ]
        pool = drawings + self.atlas.others or list(range(len(SHAPES)))
        if why == "collage":
            for _ in range(rng.randint(9, 11)):
                x, y = rng.uniform(0, self.width), rng.uniform(0, self.height)
                extras.append((rng.choice(pool), self.turned(x, y, rng.uniform(0.1, 0.4))))
        elif why == "zoom":
            x = rng.choice((0.1, 0.9)) * self.width
            y = rng.choice((0.1, 0.9)) * self.height
            extras.append((rng.choice(drawings), self.turned(x, y, rng.uniform(1.1, 2.5))))
        elif why == "stranger":
            x, y = self.width / 2, self.height / 2
            half = rng.uniform(0.25, 0.45) * small
            extras.append((rng.choice(self.atlas.others), Placement(x, y, half)))
        texture = rng.uniform(0.0, 7.0) if background.pattern == "plain" else 0.0
        return Scene(
            self.seed, self.layout, self.aspect, color, background, texture,
            cannot=why, extras=tuple(extras),
        )  # fmt: skip

    def turned(self, x: float, y: float, half: float) -> Placement:
        return Placement(x, y, half, self.rng.uniform(-math.pi, math.pi), self.rng.random() < 0.5)


def sample(
    seed: int,
    atlas: Atlas | None = None,
    *,
    layout: str | None = None,
    sets: tuple[str, ...] | None = None,
) -> Scene:
    """The scene of a seed: the same for the same seed, atlas, layout and sets.

    atlas: where shapes, letters and icons come from; None draws shapes and text only.
    layout: one of LAYOUTS, None for a random one. sets: icon sets to draw from, None for all.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    return _Sampler(seed, atlas or procedural(), layout, sets).scene()


def random_size(
    scene: Scene, rng: random.Random, low: int = 256, high: int = 1024
) -> tuple[int, int]:
    """A (width, height) in pixels of the scene's aspect, its longer edge within [low, high]."""
    longest = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    if scene.aspect >= 1:
        return longest, max(1, round(longest / scene.aspect))
    return max(1, round(longest * scene.aspect)), longest


def render(
    seed: int, *, size: tuple[int, int] | None = None, atlas: Atlas | None = None
) -> tuple[Image.Image, str]:
    """The picture of a seed (RGB) and its full caption; needs no file and no icon.

    size: (width, height) in pixels; None takes a random one of the scene's own aspect. Another
    aspect squeezes the picture.
    """
    from vlbatch.demo.raster import draw

    atlas = atlas or procedural()
    scene = sample(seed, atlas)
    size = size or random_size(scene, random.Random(seed))
    return draw(scene, atlas, size), grammar.caption(scene)
