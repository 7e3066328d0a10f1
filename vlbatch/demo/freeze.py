"""Write the frozen pictures of the repository: the samples, and the scenes that the tests read.

    python -m vlbatch.demo.freeze --samples vlbatch/demo
    python -m vlbatch.demo.freeze --scenes tests/demo

Both need the atlas with the training sets' icons (`atlas.py`).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from vlbatch.demo import grammar, raster, scenes
from vlbatch.demo.atlas import TRAINING, default_path
from vlbatch.demo.files import PictureFile, encode, picture_file
from vlbatch.demo.sprites import Atlas

TEST_SEEDS = range(1000, 1200)
# File name -> seed, longer edge in pixels.
SAMPLES: dict[str, tuple[int, int]] = {
    "square-ambulance.jpg": (1516, 900),
    "square-shapes.png": (1510, 640),
    "square-tigers.jpg": (1507, 768),
    "square-trumpets.webp": (1549, 512),
    "square-trophy.jpg": (1553, 1024),
    "wide-unicorn.jpg": (1531, 960),
    "wide-tents.png": (1527, 480),
    "tall-ducks.jpg": (1509, 800),
    "tall-crescent.webp": (1547, 640),
    "huge-hourglass.png": (1536, 400),
    "huge-arrow.jpg": (1504, 300),
    "text-yellow.webp": (1512, 720),
}


def _row(name: str, picture: PictureFile) -> dict[str, Any]:
    scene = picture.scene
    return {
        "file": name,
        "caption": grammar.caption(scene),
        "brief": grammar.brief(scene),
        "questions": [
            {"kind": q.kind, "prompt": q.prompt, "answer": q.answer} for q in picture.asked[1:]
        ],
        "layout": scene.layout,
        "seed": scene.seed,
        "num_objects": scene.num_objects,
        "text": scene.text.text if scene.text else None,
        "cannot": scene.cannot,
    }


def write_scenes(folder: Path, atlas: Atlas) -> None:
    """`scenes/NNN.jpg` (or png, webp) and `scenes.jsonl`, one row a file."""
    (folder / "scenes").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, seed in enumerate(TEST_SEEDS):
        picture = picture_file(
            seed, atlas, sets=TRAINING, longest=(200, 560), suffixes=("jpg", "jpg", "png", "webp")
        )
        name = f"{number:03d}.{picture.suffix}"
        (folder / "scenes" / name).write_bytes(picture.data)
        rows.append(json.dumps(_row(name, picture)))
    (folder / "scenes.jsonl").write_text("\n".join(rows) + "\n", "utf-8")


def write_samples(folder: Path, atlas: Atlas) -> None:
    """`images/` and `samples.json`."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    captions = {}
    for name, (seed, longest) in SAMPLES.items():
        rng = random.Random(seed)
        scene = scenes.sample(seed, atlas, sets=TRAINING)
        image = raster.draw(scene, atlas, scenes.random_size(scene, rng, longest, longest))
        (folder / "images" / name).write_bytes(encode(image, name.rpartition(".")[2], rng))
        captions[name] = grammar.caption(scene)
    (folder / "samples.json").write_text(json.dumps(captions, indent=2) + "\n", "utf-8")


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description="Write the frozen pictures.")
    parser.add_argument("--samples", type=Path, help="gets images/ and samples.json")
    parser.add_argument("--scenes", type=Path, help="gets scenes/ and scenes.jsonl")
    parser.add_argument("--atlas", type=Path, default=default_path())
    options = parser.parse_args()
    atlas = Atlas.load(options.atlas)
    if options.samples:
        write_samples(options.samples, atlas)
    if options.scenes:
        write_scenes(options.scenes, atlas)


if __name__ == "__main__":
    main()
