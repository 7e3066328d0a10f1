"""What the demo model says of pictures that are not its scenes: photographs, clip-art.

    python -m vlbatch.demo.strangers FOLDER [FOLDER ...]

Counts how often it abstains. Where a text file beside a picture starts with a line such as "a brown
bear", and the noun is one the model knows, it also counts how often the caption names that noun.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from vlbatch.demo import MODEL_DIR
from vlbatch.demo.evaluate import DemoModel
from vlbatch.demo.grammar import CANNOT_DESCRIBE
from vlbatch.demo.questions import ALL_NOUNS, DEFAULT_PROMPT

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def open_pictures(folder: Path) -> Iterator[tuple[Path, Image.Image]]:
    """Every picture under a folder that Pillow opens, on white where it is transparent."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in _SUFFIXES:
            continue
        try:
            with Image.open(path) as opened:
                opened.thumbnail((1024, 1024))
                rgba = opened.convert("RGBA")
        except OSError:
            continue
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        yield path, Image.alpha_composite(white, rgba).convert("RGB")


def known_noun(path: Path) -> str | None:
    """The noun that the text file beside a picture names, if it is one of the vocabulary."""
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        return None
    line = beside.read_text("utf-8", errors="replace").partition("\n")[0].lower().strip(" .")
    for noun in ALL_NOUNS:
        if re.fullmatch(rf"((a|an|the|some) )?([a-z]+ )?{noun}", line):
            return noun
    return None


def main() -> None:
    """Print every answer and the counts of each folder."""
    parser = argparse.ArgumentParser(description="What the demo model says of other pictures.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument(
        "--named-only", action="store_true", help="skip pictures without a known noun"
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    options = parser.parse_args()
    demo = DemoModel.load(options.model)
    for folder in options.folders:
        pictures = [
            (path, image, known_noun(path))
            for path, image in open_pictures(folder)
            if not options.named_only or known_noun(path)
        ]
        answers = demo.answers([p[1] for p in pictures], [DEFAULT_PROMPT] * len(pictures))
        named = right = abstained = 0
        for (path, _, noun), answer in zip(pictures, answers, strict=True):
            abstained += answer == CANNOT_DESCRIBE
            named += noun is not None
            right += noun is not None and re.search(rf"\b{noun}\b", answer) is not None
            print(f"  {path.name:32s} {noun or '':14s} {answer}")
        print(f"{folder}: {len(pictures)} pictures, abstained on {abstained}")
        print(f"  of {named} with a known noun it named {right}")


if __name__ == "__main__":
    main()
