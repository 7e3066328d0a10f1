"""From scene tables to the tiles that the tower sees: paint, degrade, split like the processor."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vlbatch.demo import raster
from vlbatch.demo.batches import FRAME, Batch, Mix
from vlbatch.demo.tokens import TILE

# Of the images of several tiles, how often the whole-picture tile is not their own. Without this
# the model reads the whole picture alone and a fault in the order of the tiles goes unseen.
_OTHER, _SHUFFLED, _FLAT, _NOISE = 0.14, 0.16, 0.06, 0.06

_LUMA_TABLE = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip


@cache
def _halving(device: torch.device) -> Tensor:
    """(TILE, FRAME): the bicubic reduction with antialiasing, as a matrix."""
    unit = torch.eye(FRAME)[None, None]
    reduced = F.interpolate(unit, (TILE, FRAME), mode="bicubic", antialias=True)
    return reduced[0, 0].to(device)


@cache
def _dct(device: torch.device) -> Tensor:
    """(8, 8) orthonormal DCT-II."""
    k = torch.arange(8.0)
    matrix = torch.cos(torch.pi / 8 * (k[None] + 0.5) * k[:, None]) * 0.5
    matrix[0] *= 0.5**0.5
    return matrix.to(device)


def _blur(image: Tensor, amount: Tensor, dim: int) -> Tensor:
    """Mix in a five-tap blur along one axis. amount: (B, 1, 1, 1) in 0..1."""
    taps = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=image.device) / 16
    size, pad = ([1, 1, 5, 1], (0, 0, 2, 2)) if dim == 2 else ([1, 1, 1, 5], (2, 2, 0, 0))
    flat = F.pad(image.flatten(0, 1)[:, None], pad, mode="replicate")
    return torch.lerp(image, F.conv2d(flat, taps.view(size))[:, 0].view_as(image), amount)


def _jpeg(image: Tensor, quality: Tensor, use: Tensor) -> Tensor:
    """JPEG's loss without its entropy coding: YCbCr, halved chroma, 8 x 8 DCT, rounding.

    quality: (B,) in 30..95; use: (B,) bool.
    """
    r, g, b = (image * 255).unbind(1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    cb, cr = (b - y) * 0.564, (r - y) * 0.713
    scale = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality) / 100
    table = torch.tensor(_LUMA_TABLE, device=image.device, dtype=torch.float32).view(8, 8)
    steps = (table * scale[:, None, None]).clamp_min(1.0)[:, None, None]
    dct = _dct(image.device)

    def coded(plane: Tensor, steps: Tensor) -> Tensor:
        count, height, width = plane.shape
        blocks = plane.view(count, height // 8, 8, width // 8, 8).transpose(2, 3)
        rounded = torch.round(dct @ blocks @ dct.T / steps) * steps
        return (dct.T @ rounded @ dct).transpose(2, 3).flatten(3, 4).flatten(1, 2)

    y = coded(y - 128, steps) + 128
    halved = F.avg_pool2d(torch.stack([cb, cr], 1), 2)
    cb, cr = (
        F.interpolate(coded(plane, steps * 1.3)[:, None], scale_factor=2, mode="bilinear")[:, 0]
        for plane in halved.unbind(1)
    )
    r, b = y + cr / 0.713, y + cb / 0.564
    g = (y - 0.299 * r - 0.114 * b) / 0.587
    out = torch.stack([r, g, b], 1) / 255
    return torch.where(use[:, None, None, None], out, image)


def degrade(image: Tensor) -> Tensor:
    """Blur, brightness, contrast, cast, JPEG's loss and noise at random.

    image: (B, 3, H, W) in 0..1, H and W multiples of 16.
    """
    count, device = image.shape[0], image.device

    def rand(*shape: int) -> Tensor:
        return torch.rand(count, *shape, device=device)

    for dim in (2, 3):
        image = _blur(image, (rand(1, 1, 1) * 1.4 - 0.4).clamp_min(0), dim)
    gain = 1 + (rand(1, 1, 1) - 0.5) * 0.16 + (rand(3, 1, 1) - 0.5) * 0.06
    shift = (rand(1, 1, 1) - 0.5) * 0.08
    image = ((image - 0.5) * gain + 0.5 + shift).clamp(0, 1)
    image = _jpeg(image, 30 + 65 * rand(), rand() < 0.5)
    sigma = rand(1, 1, 1) * 0.04 * (rand(1, 1, 1) < 0.4)
    return (image + torch.randn_like(image) * sigma).clamp(0, 1)


def frames(batch: Batch, table: Tensor) -> Tensor:
    """Clean pictures (B, 3, FRAME, FRAME) in 0..1. table: `raster.texels` of the atlas."""
    x, y = raster.pixel_grid(batch.ground[:, 0], FRAME, FRAME)
    image = raster.paint_batch(table, batch.table, batch.ground, x, y)
    noise = batch.noise[batch.noise_of.clamp_min(0)].float() / 255
    return torch.where((batch.noise_of >= 0)[:, None, None, None], noise, image)


def _reduce(image: Tensor, dims: tuple[int, ...]) -> Tensor:
    half = _halving(image.device)
    if 2 in dims:
        image = torch.einsum("th,bchw->bctw", half, image)
    if 3 in dims:
        image = torch.einsum("tw,bchw->bcht", half, image)
    return image.clamp(0, 1)


def _local_tiles(image: Tensor) -> Tensor:
    """(B, 3, H, W) to (B, tiles, 3, TILE, TILE), row by row."""
    rows, cols = image.shape[2] // TILE, image.shape[3] // TILE
    parts = image.reshape(len(image), 3, rows, TILE, cols, TILE)
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def _whole(image: Tensor) -> Tensor:
    return _reduce(image, tuple(d for d in (2, 3) if image.shape[d] == FRAME))


def _untrusted(image: Tensor, whole: Tensor) -> Tensor:
    """Whole-picture tiles of which some are replaced; see the shares above. whole: (B, 3, T, T)."""
    count = len(image)
    draw = torch.rand(count, 1, 1, 1, device=image.device)
    turned = image.roll((TILE * (image.shape[2] > TILE), TILE * (image.shape[3] > TILE)), (2, 3))
    flat = torch.rand(count, 3, 1, 1, device=image.device).expand_as(whole)
    edges = torch.tensor([_OTHER, _SHUFFLED, _FLAT, _NOISE], device=image.device).cumsum(0)
    whole = torch.where(draw < edges[3], torch.rand_like(whole), whole)
    whole = torch.where(draw < edges[2], flat, whole)
    whole = torch.where(draw < edges[1], _whole(turned), whole)
    return torch.where(draw < edges[0], whole.roll(1, 0), whole)


def tiles(image: Tensor, mix: Mix, *, untrusted: bool, fault: str | None = None) -> Tensor:
    """All tiles of a batch, normalised, image by image, an image's whole-picture tile last.

    image: (B, 3, FRAME, FRAME) in the order of `mix`. untrusted: replace some whole-picture tiles.
    fault: "reversed" lays the local tiles of each image in reverse order.
    """
    square, wide, tall, single = torch.split(image, [mix.square, mix.wide, mix.tall, mix.single])
    groups = [square, _reduce(wide, (2,)), _reduce(tall, (3,))]
    out = []
    for group in groups:
        local, whole = _local_tiles(group), _whole(group)
        if untrusted:
            whole = _untrusted(group, whole)
        if fault == "reversed":
            local = local.flip(1)
        out.append(torch.cat([local, whole[:, None]], 1).flatten(0, 1))
    out.append(_reduce(single, (2, 3)))
    return (torch.cat(out) - 0.5) / 0.5
