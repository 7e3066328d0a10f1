"""What is said about a scene: captions, questions and their answers. No pixels, no randomness.

Every sentence is a function of what can be seen: objects are named in reading order, a printed text
takes its place among them, and the background comes last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vlbatch.demo.vocabulary import NUMBERS, plural, with_article

CANNOT_DESCRIBE = "A picture I cannot describe."

# (row, col) of a 3 x 3 grid. A wide picture has row 1 only, a tall one column 1 only.
POSITIONS: dict[tuple[int, int], str] = {
    (0, 0): "at the top left", (0, 1): "at the top", (0, 2): "at the top right",
    (1, 0): "on the left", (1, 1): "in the center", (1, 2): "on the right",
    (2, 0): "at the bottom left", (2, 1): "at the bottom", (2, 2): "at the bottom right",
}  # fmt: skip

Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sprite lies, in picture units (the picture has area 1, x to the right, y down).

    half: half the sprite's side; angle: clockwise turn in radians; flip: mirrored left to right.
    """

    x: float
    y: float
    half: float
    angle: float = 0.0
    flip: bool = False


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours of a shape, letter or background: sRGB 0..255; period in units of what it covers."""

    first: tuple[float, float, float]
    second: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pattern: str = "plain"
    period: float = 1.0
    phase: float = 0.0
    angle: float = 0.0


@dataclass(frozen=True, slots=True)
class Thing:
    """One object: a shape (with a colour) or an icon (without)."""

    noun: str
    size: str
    cell: Cell | None
    sprite: int
    placement: Placement
    color: str | None = None
    paint: Paint | None = None

    def phrase(self) -> str:
        """The object without its position: "a small striped red star"."""
        words = ["a", self.size]
        if self.paint is not None and self.paint.pattern != "plain":
            words.append(self.paint.pattern)
        if self.color is not None:
            words.append(self.color)
        return " ".join([*words, self.noun])

    def position(self) -> str:
        """The position phrase, empty for a huge object."""
        return "" if self.cell is None else POSITIONS[self.cell]


@dataclass(frozen=True, slots=True)
class Text:
    """A row of printed capitals and digits; `cells` are the grid cells it takes."""

    text: str
    cells: tuple[Cell, ...]
    letters: tuple[tuple[int, Placement], ...]
    paint: Paint

    def phrase(self) -> str:
        """What stands in a caption: `the text "SALE"`."""
        return f'the text "{self.text}"'

    def position(self) -> str:
        """The position of the middle cell."""
        return POSITIONS[self.cells[len(self.cells) // 2]]


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture. layout: "square", "wide", "tall" or "huge"; aspect: width over height.

    cannot: why the picture has no description ("noise", "empty", "collage", "zoom", "stranger"),
    or None. extras: sprites of pictures without a description.
    """

    seed: int
    layout: str
    aspect: float
    color: str
    background: Paint
    texture: float
    things: tuple[Thing, ...] = ()
    text: Text | None = None
    cannot: str | None = None
    extras: tuple[tuple[int, Placement], ...] = field(default=())

    @property
    def num_objects(self) -> int:
        """Objects, the printed text not counted."""
        return len(self.things)


def background_phrase(scene: Scene) -> str:
    """ "dotted green", or "green" where the background is plain."""
    pattern = scene.background.pattern
    return scene.color if pattern == "plain" else f"{pattern} {scene.color}"


def _parts(scene: Scene) -> list[Thing | Text]:
    """Things and the text in reading order."""
    placed: list[tuple[Cell, Thing | Text]] = [(t.cell or (1, 1), t) for t in scene.things]
    if scene.text is not None:
        placed.append((scene.text.cells[0], scene.text))
    return [part for _, part in sorted(placed, key=lambda item: item[0])]


def _listed(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + " and " + phrases[-1]


def caption(scene: Scene) -> str:
    """The full caption."""
    if scene.cannot is not None:
        return CANNOT_DESCRIBE
    phrases = [f"{part.phrase()} {part.position()}".strip() for part in _parts(scene)]
    whole = f"{_listed(phrases)}, on {with_article(background_phrase(scene))} background."
    return whole[0].upper() + whole[1:]


def brief(scene: Scene) -> str:
    """The brief caption: nouns with their counts, in the order in which each first appears."""
    if scene.cannot is not None:
        return CANNOT_DESCRIBE
    counts = Counter(thing.noun for thing in scene.things)
    phrases = []
    for part in _parts(scene):
        if isinstance(part, Text):
            phrases.append(part.phrase())
        elif count := counts.pop(part.noun, 0):
            number = f"{NUMBERS[count]} {plural(part.noun)}"
            phrases.append(with_article(part.noun) if count == 1 else number)
    whole = _listed(phrases) + "."
    return whole[0].upper() + whole[1:]


def count(scene: Scene, noun: str) -> str:
    """How many of a noun there are, as a word."""
    return NUMBERS[sum(thing.noun == noun for thing in scene.things)]


def at_position(scene: Scene, cell: Cell) -> str:
    """What is in a cell: a phrase, or "nothing"."""
    for thing in scene.things:
        if thing.cell == cell:
            return thing.phrase()
    if scene.text is not None and cell in scene.text.cells:
        return scene.text.phrase()
    return "nothing"


def unique_things(scene: Scene) -> list[Thing]:
    """Things whose noun appears once."""
    counts = Counter(thing.noun for thing in scene.things)
    return [thing for thing in scene.things if counts[thing.noun] == 1]


def cells_of(layout: str) -> list[Cell]:
    """The grid cells of a layout, in reading order; a huge object has none."""
    if layout == "square":
        return list(POSITIONS)
    if layout == "wide":
        return [(1, 0), (1, 1), (1, 2)]
    return [(0, 1), (1, 1), (2, 1)] if layout == "tall" else []
