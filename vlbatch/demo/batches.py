"""Training batches: scenes and token rows, made on the CPU by worker processes.

Every batch has the same mix of layouts, so every tensor has one static shape: first the images
split into 2 x 2 tiles, then 1 x 2, then 2 x 1, then the images of one tile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vlbatch.demo import questions, raster, scenes
from vlbatch.demo.grammar import Scene
from vlbatch.demo.noise import noise_picture
from vlbatch.demo.packing import Packer
from vlbatch.demo.sprites import Atlas

FRAME = 256  # side of the frame that scenes are painted on, pixels
NOISE_PICTURES = 8  # noise pictures a batch; further noise scenes share them
_UNSPLIT_SHARES = (0.6, 0.14, 0.14, 0.12)  # layouts (see scenes.LAYOUTS) of images of one tile


@dataclass(frozen=True)
class Mix:
    """Images of each group in a batch: grids of 2 x 2, 1 x 2, 2 x 1 tiles, and unsplit."""

    square: int
    wide: int
    tall: int
    single: int

    @staticmethod
    def of(batch_size: int) -> Mix:
        """The mix the model is trained with."""
        wide = max(1, round(batch_size * 0.105))
        single = max(1, round(batch_size * 0.27))
        return Mix(batch_size - 2 * wide - single, wide, wide, single)

    @property
    def total(self) -> int:
        """Images of a batch."""
        return self.square + self.wide + self.tall + self.single

    @property
    def num_split(self) -> int:
        """Images of several tiles; they come first."""
        return self.square + self.wide + self.tall

    def grid(self, place: int) -> tuple[int, int]:
        """(rows, cols) of the image at a place of the batch, (0, 0) for one of one tile."""
        if place < self.square:
            return (2, 2)
        if place < self.square + self.wide:
            return (1, 2)
        return (2, 1) if place < self.num_split else (0, 0)

    def layout(self, place: int, rng: random.Random) -> str:
        """A layout that belongs at a place of the batch."""
        grid = self.grid(place)
        if grid == (2, 2):
            return "huge" if rng.random() < 0.1 else "square"
        if grid == (0, 0):
            return rng.choices(scenes.LAYOUTS, _UNSPLIT_SHARES)[0]
        return "wide" if grid == (1, 2) else "tall"

    def first_tiles(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """(total,): number of each image's first tile, tiles numbered image by image."""
        grids = [self.grid(place) for place in range(self.total)]
        counts = [rows * cols + 1 for rows, cols in grids]
        return np.concatenate([[0], np.cumsum(counts)[:-1]])


@dataclass
class Batch:
    """Tensors of one batch of B images; the token tensors are those of `packing.Row`.

    table: (B, NUM_SLOTS, SLOT_WIDTH); ground: (B, BACKGROUND_WIDTH); noise: uint8
    (NOISE_PICTURES, 3, FRAME, FRAME); noise_of: (B,), the noise picture that is the image, or -1.
    """

    table: Tensor
    ground: Tensor
    noise: Tensor
    noise_of: Tensor
    ids: Tensor
    positions: Tensor
    segments: Tensor
    labels: Tensor
    slots: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        moved = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)}
        return Batch(**moved)

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory (called by DataLoader)."""
        return Batch(**{f.name: getattr(self, f.name).pin_memory() for f in fields(self)})


class BatchMaker:
    """Makes the batch that starts at a seed.

    clean: no system messages. background: the colour of every other scene's background.
    """

    def __init__(
        self,
        mix: Mix,
        atlas: Atlas,
        tokenizer: Tokenizer,
        sets: tuple[str, ...],
        clean: bool = False,
        background: str | None = None,
    ) -> None:
        self.mix, self.atlas, self.sets, self.clean = mix, atlas, sets, clean
        self.background = background
        _ = atlas.mean_colors, atlas.icons, atlas.others  # worked out once, before workers fork
        self.packer = Packer(tokenizer)
        self._first_tiles = mix.first_tiles()

    def make(self, first_seed: int) -> tuple[Batch, list[list[int]], list[Scene]]:
        """The batch of seeds first_seed.., the kinds of each row's questions, and the scenes."""
        rows, tables, drawn = [], [], []
        noise_of = np.full(self.mix.total, -1, np.int64)
        noisy: list[int] = []
        for place in range(self.mix.total):
            rng = random.Random(first_seed * 1_000_003 + place)
            layout = self.mix.layout(place, rng)
            scene = scenes.sample(first_seed + place, self.atlas, layout=layout, sets=self.sets)
            while self.background and place % 2 and scene.color != self.background:
                seed = rng.randrange(scenes.FIRST_TRAINING_SEED, 2**31)
                scene = scenes.sample(seed, self.atlas, layout=layout, sets=self.sets)
            if scene.cannot == "noise":
                noise_of[place] = len(noisy) % NOISE_PICTURES
                noisy.append(scene.seed)
            asked = questions.training_set(scene, rng)
            rows.append(self.packer.row(asked, self.mix.grid(place), None if self.clean else rng))
            tables.append(raster.tables(scene))
            drawn.append(scene)
        noise = torch.zeros(NOISE_PICTURES, 3, FRAME, FRAME, dtype=torch.uint8)
        if noisy := noisy[:NOISE_PICTURES]:
            noise[: len(noisy)] = (noise_picture(noisy, FRAME, FRAME) * 255).round().to(torch.uint8)
        slots = np.stack([row.slots for row in rows])
        slots = np.where(slots >= 0, slots + self._first_tiles[:, None] * 16, -1)
        table, ground = (torch.from_numpy(np.stack(part)) for part in zip(*tables, strict=True))

        def stacked(name: str) -> Tensor:
            arrays = np.stack([getattr(row, name) for row in rows])
            return torch.from_numpy(arrays.astype(np.int64))

        batch = Batch(
            table=table,
            ground=ground,
            noise=noise,
            noise_of=torch.from_numpy(noise_of),
            ids=stacked("ids"),
            positions=stacked("positions"),
            segments=stacked("segments"),
            labels=stacked("labels"),
            slots=torch.from_numpy(slots.astype(np.int64)),
        )
        return batch, [row.kinds for row in rows], drawn


class _Stream(IterableDataset[Batch]):
    def __init__(self, maker: BatchMaker, first_seed: int) -> None:
        self.maker, self.first_seed = maker, first_seed

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        torch.set_num_threads(1)
        while True:
            yield self.maker.make(self.first_seed + number * self.maker.mix.total)[0]
            number += workers


def stream(maker: BatchMaker, first_seed: int, num_workers: int) -> Iterator[Batch]:
    """Batches without end, from seeds first_seed.. on; no seed comes twice."""
    loader = DataLoader(
        _Stream(maker, first_seed),
        batch_size=None,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=4 if num_workers else None,
    )
    return iter(loader)
