"""Colours of a scene, kept so far apart that a viewer can name each of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from vlbatch.demo.grammar import Paint, Thing
from vlbatch.demo.vocabulary import BACKGROUNDS, COLORS

if TYPE_CHECKING:
    from vlbatch.demo.sprites import Atlas

Rgb = tuple[float, float, float]

_JITTER = 13
_WHITE: Rgb = (246, 246, 246)
# A patterned shape has its colour and one second tone. No pair of tones belongs to two colours:
# white is the second tone of the others, so white and black have tones that are no colour's first.
_SECOND: dict[str, Rgb] = {"white": (96, 186, 232), "black": (0, 176, 168)}
_NO_GRADIENT = ("black", "white", "gray")


def mix(color: Rgb, other: Rgb, share: float) -> Rgb:
    """`share` of `other`, the rest of `color`."""
    a, b, c = (x * (1 - share) + y * share for x, y in zip(color, other, strict=True))
    return a, b, c


def distance(color: Rgb, other: Rgb) -> float:
    """Euclidean distance in sRGB units."""
    squares = ((x - y) ** 2 for x, y in zip(color, other, strict=True))
    return float(sum(squares) ** 0.5)


def luma(color: Rgb) -> float:
    """Brightness, 0..255."""
    return 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]


class SceneColors:
    """Draws colours for one scene."""

    def __init__(self, rng: random.Random, atlas: Atlas) -> None:
        self.rng, self.atlas = rng, atlas

    def shade(self, name: str) -> Rgb:
        """A colour near the named one."""
        a, b, c = (min(255, max(0, v + self.rng.uniform(-_JITTER, _JITTER))) for v in COLORS[name])
        return a, b, c

    def shape(self, color: str, pattern: str) -> Paint:
        """The paint of a shape; the period is in half sprite sides."""
        return Paint(
            self.shade(color),
            _SECOND.get(color, _WHITE),
            pattern,
            self.rng.uniform(0.5, 0.62),
            self.rng.random(),
            self.rng.uniform(-0.4, 0.4) if pattern == "striped" else 0.0,
        )

    def background(self, things: list[Thing]) -> tuple[str, Paint]:
        """A colour name and a paint on which every thing can be seen; period in picture units."""
        best: tuple[float, str, Paint] | None = None
        for _ in range(24):
            color = self.rng.choice(list(COLORS))
            pattern = self.rng.choices(BACKGROUNDS, [40, 15, 15, 15, 15])[0]
            if pattern == "gradient" and color in _NO_GRADIENT:
                pattern = "plain"
            paint = self._background_paint(color, pattern)
            worst = min((self._margin(thing, color, paint) for thing in things), default=1.0)
            if best is None or worst > best[0]:
                best = (worst, color, paint)
            if worst >= 1.0:
                break
        assert best is not None
        return best[1], best[2]

    def _background_paint(self, color: str, pattern: str) -> Paint:
        first = self.shade(color)
        if pattern == "gradient":
            second = mix(first, (0, 0, 0), 0.62)
        elif luma(first) < 100:
            second = mix(first, (255, 255, 255), 0.34)
        else:
            second = mix(first, (0, 0, 0), 0.3)
        if pattern == "striped":
            angle = self.rng.choice((0.0, 0.785, 1.571, 2.356)) + self.rng.uniform(-0.15, 0.15)
        elif pattern == "gradient":
            angle = self.rng.uniform(0.0, 6.283)
        else:
            angle = self.rng.uniform(-0.1, 0.1)
        period = self.rng.uniform(0.075, 0.125)
        return Paint(first, second, pattern, period, self.rng.random(), angle)

    def _margin(self, thing: Thing, color: str, paint: Paint) -> float:
        """How well a thing stands out, 1.0 being enough."""
        tones = [paint.first] if paint.pattern == "plain" else [paint.first, paint.second]
        if thing.paint is None:
            r, g, b = self.atlas.mean_colors[thing.sprite]
            return min(distance((r, g, b), tone) for tone in tones) / 62.0
        if thing.color == color:
            return 0.0
        own = [thing.paint.first]
        if thing.paint.pattern != "plain":
            own.append(thing.paint.second)
        return min(distance(o, tone) for o in own for tone in tones) / 85.0

    def letters(self, background: Paint) -> Paint:
        """A plain paint whose brightness stands out from the background's."""
        tones = [background.first, background.second]
        if background.pattern == "plain":
            tones = tones[:1]
        names = list(COLORS)
        self.rng.shuffle(names)
        contrasts = {n: min(abs(luma(COLORS[n]) - luma(t)) for t in tones) for n in names}
        fit = [name for name in names if contrasts[name] >= 95]
        name = fit[0] if fit else max(names, key=lambda n: contrasts[n])
        return Paint(self.shade(name))
