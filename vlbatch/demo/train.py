"""Train the demo model: `python -m vlbatch.demo.train -o FOLDER --seconds 1000`.

On one data-centre GPU this takes minutes; on a CPU it is far out of reach and only the short runs
of the tests make sense. The pictures are rendered on the device while training; nothing is stored.
The learning rate falls to zero by wall clock, so the run ends in time. With an atlas (`atlas.py`)
the scenes have icons; without one they have shapes and texts only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from vlbatch.demo import forward, packing, pictures, raster, scenes, tokens
from vlbatch.demo.architecture import build_model, export
from vlbatch.demo.atlas import TRAINING, default_path, load_or_procedural
from vlbatch.demo.batches import Batch, BatchMaker, Mix, stream
from vlbatch.demo.gauge import gauge
from vlbatch.demo.optim import GentleSgd, Optimizer
from vlbatch.demo.sprites import Atlas

_WARM_UP, _FLAT = 0.02, 0.35  # shares of the run: the rate rises, stays, then falls to zero


@dataclass(frozen=True)
class TrainConfig:
    """One run. It ends after `seconds` or `steps`, whichever is first."""

    seconds: float = math.inf
    steps: int | None = None
    batch_size: int = 512
    num_workers: int = 0
    device: str = "cpu"
    seed: int = 0
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    gentle_lr: float | None = None  # correct the wording only: see GentleSgd
    fixed: bool = (
        False  # train on one batch again and again, clean: the test that the code can learn
    )
    compile: bool = False
    log_every: float = 20.0  # seconds
    first_seed: int = scenes.FIRST_TRAINING_SEED
    background: str | None = None  # see BatchMaker
    save: Path | None = None  # the folder that gets a checkpoint every `save_every` seconds
    save_every: float = 120.0


def rate(done: float) -> float:
    """Share of the full learning rate after the share `done` of the run."""
    if done < _WARM_UP:
        return max(done / _WARM_UP, 0.01)
    return 1.0 if done < _FLAT else max(0.0, (1 - done) / (1 - _FLAT))


class Trainer:
    """A model and one training step over it."""

    def __init__(self, config: TrainConfig, tokenizer: Tokenizer, atlas: Atlas) -> None:
        self.config, self.tokenizer, self.atlas = config, tokenizer, atlas
        self.device = torch.device(config.device)
        self.model: Any = build_model(tokenizer, config.seed).to(self.device).train()
        if config.gentle_lr is None:
            self.optimizer: Optimizer | GentleSgd = Optimizer(
                self.model, config.muon_lr, config.adam_lr
            )
        else:
            self.optimizer = GentleSgd(self.model, config.gentle_lr)
        self.mix = Mix.of(config.batch_size)
        self._texels = raster.texels(atlas, self.device)
        self._rotary = forward.rotary_tables(self.model, packing.LENGTH, self.device)
        compiled: Callable[[Any], Any] = torch.compile if config.compile else lambda f: f
        self._loss: Callable[..., Tensor] = compiled(self._plain_loss)
        self._fixed_tiles: Tensor | None = None
        self._frames = compiled(pictures.frames)
        self._degrade = compiled(pictures.degrade)

    def _plain_loss(self, tiles: Tensor, batch: Batch) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = forward.answer_logits(
                self.model, tiles, batch.ids, batch.slots, batch.positions, batch.segments,
                self._rotary, packing.PREFIX,
            )  # fmt: skip
        return F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())

    @torch.no_grad()
    def _tiles(self, batch: Batch) -> Tensor:
        if not self.config.fixed:
            image = self._degrade(self._frames(batch, self._texels))
            return pictures.tiles(image, self.mix, untrusted=True)
        if self._fixed_tiles is None:
            image = pictures.frames(batch, self._texels)
            self._fixed_tiles = pictures.tiles(image, self.mix, untrusted=False)
        return self._fixed_tiles

    def step(self, batch: Batch, done: float) -> Tensor:
        """One update on a batch; the loss, still on the device."""
        batch = batch.to(self.device)
        loss = self._loss(self._tiles(batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(rate(done))
        return loss.detach()

    def run(self) -> list[float]:
        """Train to the end; the losses that were logged (every step's on a CPU)."""
        config = self.config
        maker = BatchMaker(
            self.mix, self.atlas, self.tokenizer, TRAINING, config.fixed, config.background
        )
        if config.fixed:
            only = maker.make(config.first_seed)[0]
            batches = iter(lambda: only, None)
        else:
            batches = stream(maker, config.first_seed, config.num_workers)
        losses: list[float] = []
        self.step(next(batches), 0.0)  # compiles, where that is asked for
        began = logged = saved = time.monotonic()
        waited, step, done = 0.0, 1, 0.0
        while done < 1.0:
            asked = time.monotonic()
            batch = next(batches)
            now = time.monotonic()
            waited += now - asked
            loss = self.step(batch, done)
            step += 1
            by_steps = step / config.steps if config.steps else 0.0
            done = max((now - began) / config.seconds, by_steps)
            if self.device.type == "cpu" or now - logged > config.log_every:
                losses.append(float(loss))
            if now - logged > config.log_every:
                logged = now
                waiting = waited / (now - began)
                line = f"{now - began:6.0f} s  step {step:6d}  loss {losses[-1]:.4f}"
                print(f"{line}  waited {waiting:.0%}", file=sys.stderr, flush=True)
            if config.save is not None and now - saved > config.save_every:
                saved = now
                save_checkpoint(self.model, self.tokenizer, config.save)
        return losses


def save_checkpoint(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Weights in fp16 and the tokenizer: enough for `--resume`."""
    state = {n: p.detach().half().contiguous().cpu() for n, p in model.named_parameters()}
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(state, folder / "model.partial")
    (folder / "model.partial").replace(folder / "model.safetensors")


def load_weights(model: Any, folder: Path) -> None:
    """The weights of a checkpoint or of a model folder."""
    stored = load_file(folder / "model.safetensors")
    state = {name: tensor.float() for name, tensor in stored.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing  # tied to the embeddings


def report(model: Any, tokenizer: Tokenizer, atlas: Atlas, num_batches: int) -> dict[str, Any]:
    """Teacher-forced scores on held-out scenes, and under each planted fault."""
    model.eval()
    result: dict[str, Any] = {}
    for fault in (None, "rolled", "reversed", "other"):
        batches = num_batches if fault is None else 1
        scores = gauge(
            model, tokenizer, atlas, sets=TRAINING, num_batches=batches, fault=fault
        )  # fmt: skip
        print(f"-- {fault or 'no fault'}", file=sys.stderr)
        for name, (right, asked) in scores.items():
            if fault is None or "caption" in name:
                print(f"{name:45s} {right / asked:7.2%} of {asked}", file=sys.stderr)
        result[fault or "none"] = scores
    return result


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the model folder to write"
    )
    parser.add_argument("--seconds", type=float, default=960.0)
    parser.add_argument("--steps", type=int, help="end after so many steps, if earlier")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--atlas", type=Path, default=default_path())
    parser.add_argument("--resume", type=Path, help="a model folder or checkpoint to start from")
    parser.add_argument("--first-seed", type=int, default=scenes.FIRST_TRAINING_SEED)
    parser.add_argument("--muon-lr", type=float, default=TrainConfig.muon_lr)
    parser.add_argument("--adam-lr", type=float, default=TrainConfig.adam_lr)
    parser.add_argument("--gentle-lr", type=float, help="only correct the wording, by SGD")
    parser.add_argument("--background", help="a colour that every other scene has behind it")
    parser.add_argument("--no-compile", action="store_true", help="for runs of seconds")
    parser.add_argument("--eval-batches", type=int, default=4, help="512 held-out scenes each")
    parser.add_argument("--scores", type=Path, help="write the teacher-forced scores there")
    return parser.parse_args()


def main() -> None:
    """Train, write the folder, and measure by teacher forcing."""
    options = _parse()
    torch.set_float32_matmul_precision("high")
    options.output.mkdir(parents=True, exist_ok=True)
    atlas = load_or_procedural(options.atlas)
    if options.resume:
        tokenizer = Tokenizer.from_file(str(options.resume / "tokenizer.json"))
    else:
        tokenizer = tokens.train_tokenizer()
    config = TrainConfig(
        seconds=options.seconds,
        steps=options.steps,
        batch_size=options.batch_size,
        num_workers=options.workers,
        device=options.device,
        muon_lr=options.muon_lr,
        adam_lr=options.adam_lr,
        gentle_lr=options.gentle_lr,
        compile=options.device == "cuda" and not options.no_compile,
        first_seed=options.first_seed,
        background=options.background,
        save=options.output,
    )
    trainer = Trainer(config, tokenizer, atlas)
    if options.resume:
        load_weights(trainer.model, options.resume)
    trainer.run()
    export(trainer.model, tokenizer, options.output)
    if options.eval_batches:
        scores = report(trainer.model, tokenizer, atlas, options.eval_batches)
        if options.scores:
            options.scores.write_text(json.dumps(scores, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
