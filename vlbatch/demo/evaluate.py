"""Measure the demo model as its users run it: picture files, its own processor, and `generate`.

    python -m vlbatch.demo.evaluate --scenes 500                   held-out scenes, split into tiles
    python -m vlbatch.demo.evaluate --scenes 500 --unsplit         the same, one tile an image
    python -m vlbatch.demo.evaluate --scenes 500 --sets unseen     icons of styles never trained on
    python -m vlbatch.demo.evaluate --scenes 500 --fault reversed  with a planted fault

The scenes of the model card need the atlas (`atlas.py`); without it they are shapes and texts.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vlbatch.demo import MODEL_DIR
from vlbatch.demo.atlas import TRAINING, UNSEEN, default_path, load_or_procedural
from vlbatch.demo.files import PictureFile, picture_file

FAULTS = ("rolled", "reversed", "other")
Scores = dict[str, tuple[int, int]]  # name -> right, asked


def reverse_local_tiles(pixels: Tensor, mask: Tensor) -> Tensor:
    """Each image's tiles in reverse order, its last (the whole picture) in place.

    pixels: (B, tiles, 3, H, W), mask: (B, tiles, H, W), zero for padding tiles.
    """
    turned = pixels.clone()
    for row, real in enumerate(mask.flatten(2).any(-1).sum(1).tolist()):
        turned[row, : real - 1] = pixels[row, : real - 1].flip(0)
    return turned


def replace_whole_tiles(pixels: Tensor, mask: Tensor) -> Tensor:
    """Each image's whole-picture tile replaced by that of the image before it."""
    last = mask.flatten(2).any(-1).sum(1) - 1
    rows = torch.arange(len(pixels))
    turned = pixels.clone()
    turned[rows, last] = pixels[rows.roll(1), last.roll(1)]
    return turned


@dataclass
class DemoModel:
    """A model folder with its processor, and greedy answers from them."""

    model: Any
    processor: Any

    @staticmethod
    def load(folder: Path = MODEL_DIR, device: str = "cpu") -> DemoModel:
        """Load a folder as any user would, without remote code."""
        from transformers import AutoModelForImageTextToText, AutoProcessor

        model = AutoModelForImageTextToText.from_pretrained(folder).to(device).eval()
        return DemoModel(model, AutoProcessor.from_pretrained(folder))

    def chat(self, prompt: str) -> str:
        """The prompt in the chat template, after the image."""
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        messages = [{"role": "user", "content": content}]
        text: str = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        return text

    @torch.no_grad()
    def answers(
        self,
        images: list[Image.Image],
        prompts: list[str],
        *,
        split: bool = True,
        fault: str | None = None,
        batch_size: int = 16,
    ) -> list[str]:
        """One answer an (image, prompt). fault: one of FAULTS, planted in every batch."""
        out: list[str] = []
        for start in range(0, len(images), batch_size):
            group = images[start : start + batch_size]
            texts = [self.chat(prompt) for prompt in prompts[start : start + batch_size]]
            if fault == "rolled":
                group = group[-1:] + group[:-1]
            inputs = self.processor(
                text=texts, images=[[image] for image in group], return_tensors="pt", padding=True,
                do_image_splitting=split,
            ).to(self.model.device)  # fmt: skip
            if fault in ("reversed", "other"):
                plant = reverse_local_tiles if fault == "reversed" else replace_whole_tiles
                pixels, mask = inputs["pixel_values"], inputs["pixel_attention_mask"]
                inputs["pixel_values"] = plant(pixels, mask)
            tokens = self.model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]
            out += self.processor.batch_decode(tokens, skip_special_tokens=True)
        return out


def score(
    demo: DemoModel,
    files: list[PictureFile],
    *,
    split: bool = True,
    fault: str | None = None,
    captions_only: bool = False,
) -> tuple[Scores, list[str]]:
    """Exact matches by kind, captions also by layout, and a line for each wrong answer."""
    scores: dict[str, list[bool]] = defaultdict(list)
    wrong = []
    order = sorted(range(len(files)), key=lambda n: files[n].scene.layout)
    by_kind: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number in order:
        for which, question in enumerate(files[number].asked[: 1 if captions_only else None]):
            by_kind[question.kind].append((number, which))
    for kind, pairs in by_kind.items():
        asked = [files[number].asked[which] for number, which in pairs]
        images = [files[number].image() for number, _ in pairs]
        answers = demo.answers(images, [q.prompt for q in asked], split=split, fault=fault)
        for (number, _), question, answer in zip(pairs, asked, answers, strict=True):
            right, scene = answer == question.answer, files[number].scene
            scores[kind].append(right)
            if kind == "caption":
                scores[f"caption, {scene.layout}"].append(right)
                for name, holds in (
                    ("with text", scene.text is not None),
                    ("two objects or more", scene.num_objects >= 2),
                    ("cannot describe", scene.cannot is not None),
                ):
                    if holds:
                        scores[f"caption, {name}"].append(right)
            if not right:
                wrong.append(f"{number:4d} {question.prompt} | {answer} | not: {question.answer}")
    return {name: (sum(oks), len(oks)) for name, oks in sorted(scores.items())}, wrong


def _say(title: str, scores: Scores) -> None:
    print(title)
    for name, (right, asked) in scores.items():
        print(f"  {name:32s} {right / asked:7.2%}  {right} of {asked}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the demo model through picture files.")
    parser.add_argument("--scenes", type=int, default=500, help="held-out scenes, from --first on")
    parser.add_argument("--first", type=int, default=0, help="first seed, below 2000")
    parser.add_argument("--sets", choices=("trained", "unseen", "none"), default="trained")
    parser.add_argument("--unsplit", action="store_true", help="one tile an image")
    parser.add_argument("--fault", choices=FAULTS, help="plant a fault")
    parser.add_argument("--captions-only", action="store_true")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--atlas", type=Path, default=default_path())
    parser.add_argument("--json", type=Path, help="write the scores there")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    return parser.parse_args()


def main() -> None:
    """Print the scores."""
    options = _parse()
    demo = DemoModel.load(options.model, options.device)
    sets = {"trained": TRAINING, "unseen": UNSEEN, "none": ()}[options.sets]
    atlas = load_or_procedural(options.atlas)
    seeds = range(options.first, options.first + options.scenes)
    files = [picture_file(seed, atlas, sets=sets) for seed in seeds]
    scores, wrong = score(
        demo, files, split=not options.unsplit, fault=options.fault,
        captions_only=options.captions_only or options.fault is not None,
    )  # fmt: skip
    if options.wrong:
        print("\n".join(wrong))
    icons = "icons" if atlas.icons and sets else "no icons"
    mode = "one tile" if options.unsplit else "split"
    _say(f"seeds {seeds.start}-{seeds.stop - 1}, {icons}, {mode}, fault: {options.fault}", scores)
    if options.json:
        options.json.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
