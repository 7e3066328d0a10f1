"""Build the full atlas: icons of the emoji sets on npm and letters of the fonts of this machine.

    npm install --ignore-scripts --prefix DIR @iconify-json/noto ...   (all of TRAINING, UNSEEN)
    python -m vlbatch.demo.atlas --icons DIR/node_modules [--fonts DIR] [-o FILE]

Needs `resvg-py` to rasterise. The art stays its authors' and is never committed: the file goes to
the cache folder and is read from there, or from where VLBATCH_DEMO_ATLAS says.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlbatch.demo.sprites import GLYPHS, SPRITE, Atlas, draw_face, premultiply, procedural
from vlbatch.demo.vocabulary import NOUN_ICONS

TRAINING = ("noto", "noto-v1", "fluent-emoji", "fluent-emoji-flat", "fxemoji")
# CC-BY-4.0: drawn in tests of unseen styles only, never trained on.
UNSEEN = ("twemoji", "emojione")
FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSansCondensed", "LiberationSans-Regular", "LiberationSans-Bold",
    "LiberationSerif-Regular", "LiberationMono-Bold",
)  # fmt: skip
# Drawings without a noun of ours, by what their name starts or ends with.
_STRANGERS = (
    "keycap-", "man-", "woman-", "person-", "backhand-", "input-", "grinning-", "kissing-",
    "japanese-", "-button", "-oclock", "-thirty", "-hand", "-hands", "-fist", "-banknote", "-medal",
    "-landscape", "cityscape", "cityscape-at-dusk", "sunset", "sunrise", "milky-way",
    "bridge-at-night", "fireworks", "bento-box", "curry-rice", "pot-of-food", "sewing-needle",
    "construction", "selfie", "bouquet", "beach-with-umbrella", "camping", "desert",
    "national-park", "motorway", "railway-track", "memo", "bar-chart", "chart-increasing",
    "film-frames", "circus-tent", "stadium", "houses", "fog", "foggy",
)  # fmt: skip


def default_path() -> Path:
    """Where the built atlas lies: VLBATCH_DEMO_ATLAS, or the user's cache folder."""
    if told := os.environ.get("VLBATCH_DEMO_ATLAS"):
        return Path(told)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "vlbatch" / "demo-atlas.npz"


def load_or_procedural(path: Path | None = None) -> Atlas:
    """The built atlas at `path`, by default `default_path()`; `procedural()` if there is none."""
    path = path or default_path()
    return Atlas.load(path) if path.is_file() else procedural()


def _svg(icons: dict[str, dict[str, object]], name: str, width: float, height: float) -> str | None:
    icon = icons.get(name)
    if icon is None:
        return None
    w, h = icon.get("width", width), icon.get("height", height)
    left, top = icon.get("left", 0), icon.get("top", 0)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{left} {top} {w} {h}" width="{w}" height="{h}">{icon["body"]}</svg>'
    )


def rasterise(svg: str) -> NDArray[np.uint8] | None:
    """One drawing, cropped to what it shows and centred in a sprite; None if it shows nothing."""
    from resvg_py import svg_to_bytes

    side = SPRITE * 3
    data = bytes(svg_to_bytes(svg_string=svg, width=side, height=side))
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGBA")
    box = image.getchannel("A").point(lambda a: 255 if a > 16 else 0).getbbox()
    if box is None:
        return None
    image = image.crop(box)
    scale = (SPRITE - 4) / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    sprite = Image.new("RGBA", (SPRITE, SPRITE), (0, 0, 0, 0))
    sprite.paste(
        image.resize(size, Image.Resampling.LANCZOS),
        ((SPRITE - size[0]) // 2, (SPRITE - size[1]) // 2),
    )
    return premultiply(sprite)


def _wanted(name_set: str, names: list[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    for noun, icons in NOUN_ICONS.items():
        for name in icons:
            yield ("icon", name_set, noun), name
    if name_set in ("noto", "fluent-emoji-flat", "fxemoji", "twemoji"):
        known = {name for icons in NOUN_ICONS.values() for name in icons}
        strangers = [
            name
            for name in sorted(names)
            if name not in known and name.count("-") <= 3
            and any(name.startswith(s) or name.endswith(s) for s in _STRANGERS)
        ]  # fmt: skip
        kind = "unseen-other" if name_set in UNSEEN else "other"
        step = max(1, len(strangers) // 130)
        for name in strangers[::step]:
            yield (kind, name_set, name), name


def build(icon_modules: Path, fonts: Path) -> Atlas:
    """Rasterise every set found under `icon_modules` and every face of FACES under `fonts`."""
    base = procedural()
    sprites, keys = list(base.pixels), list(base.keys)
    advances = dict(base.advances)
    files = {path.stem: path for path in sorted(fonts.rglob("*.ttf"))}
    for face in FACES:
        if face in files:
            glyphs, advances[face] = draw_face(files[face])
            sprites += glyphs
            keys += [("glyph", face, char) for char in GLYPHS]
    for name_set in TRAINING + UNSEEN:
        path = icon_modules / "@iconify-json" / name_set / "icons.json"
        stored = json.loads(path.read_text("utf-8"))
        icons = stored["icons"]
        for alias, target in stored.get("aliases", {}).items():
            if alias not in icons and target["parent"] in icons:
                icons[alias] = icons[target["parent"]]
        width, height = stored.get("width", 16), stored.get("height", 16)
        for key, name in _wanted(name_set, list(icons)):
            svg = _svg(icons, name, width, height)
            sprite = None if svg is None else rasterise(svg)
            if sprite is not None:
                sprites.append(sprite)
                keys.append(key)
    return Atlas(np.stack(sprites), tuple(keys), advances)


def main() -> None:
    """Build the atlas and say what it holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--icons", type=Path, required=True, help="a node_modules folder")
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    parser.add_argument("-o", "--output", type=Path, default=default_path())
    options = parser.parse_args()
    built = build(options.icons, options.fonts)
    built.save(options.output)
    size = options.output.stat().st_size / 2**20
    counts = f"{len(built.keys)} sprites, {len(built.advances)} faces"
    print(f"{counts}, {size:.1f} MiB: {options.output}")


if __name__ == "__main__":
    main()
