"""Images a second of the embedded demo model on rendered scenes, from files to records.

    python -m vlbatch.bench.demo [--scenes 500] [--chunk-size 64]

The scenes are held-out ones of shapes and text, of 256 to 1,024 pixels, written as JPEG first. The
rate is the steady state: rows after the first batch over the time since then. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from vlbatch.captioner import Captioner
from vlbatch.host import usable_cores


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--chunk-size", type=int, default=64)
    options = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        right = write_scenes(Path(folder), options.scenes)
        rendered = time.perf_counter()
        with Captioner(chunk_size=options.chunk_size, device="cpu") as captioner:
            loaded = time.perf_counter()
            found = measure(captioner, list(right), options.chunk_size)
    exact = sum(found["captions"][path] == caption for path, caption in right.items())
    print(json.dumps({
        "scenes": options.scenes,
        "cores": usable_cores(),
        "chunk_size": options.chunk_size,
        "render_s": round(rendered - start, 1),
        "load_s": round(loaded - rendered, 2),
        "first_batch_s": round(found["first_batch_s"], 2),
        "images_per_s": round(found["images_per_s"], 1),
        "mean_output_tokens": round(found["output_tokens"] / options.scenes, 1),
        "exactly_right": round(exact / options.scenes, 4),
    }))  # fmt: skip


def write_scenes(folder: Path, count: int) -> dict[str, str]:
    """Writes `count` held-out scenes as JPEG; returns path → right caption."""
    from vlbatch.demo.scenes import render

    captions: dict[str, str] = {}
    for seed in range(count):
        image, caption = render(seed)
        path = folder / f"{seed}.jpg"
        image.save(path, quality=90)
        captions[str(path)] = caption
    return captions


def measure(captioner: Captioner, paths: list[str], chunk_size: int) -> dict[str, Any]:
    """Captions the files once; the rate leaves out the first batch."""
    captions: dict[str, str | None] = {}
    output_tokens, first = 0, 0.0
    start = time.perf_counter()
    for record in captioner(paths):
        captions[record.key] = record.caption
        output_tokens += record.tokens["output"] if record.tokens else 0
        if len(captions) == chunk_size:
            first = time.perf_counter()
    end = time.perf_counter()
    return {
        "captions": captions,
        "output_tokens": output_tokens,
        "first_batch_s": first - start,
        "images_per_s": (len(paths) - chunk_size) / (end - first),
    }


if __name__ == "__main__":
    main()
