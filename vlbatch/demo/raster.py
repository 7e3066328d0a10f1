"""Paint scenes: one set of formulas in plain torch, for one picture on a CPU or a batch on a GPU.

A scene becomes a table of slots (one a sprite) and a row for the background. Coordinates are
picture units: the picture has area 1, so lengths keep their proportion whatever the pixels' own
aspect.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vlbatch.demo.grammar import Paint, Placement, Scene
from vlbatch.demo.noise import texture_field
from vlbatch.demo.sprites import SPRITE, Atlas

NUM_SLOTS = 11
SLOT_WIDTH = 18  # x y m00 m01 m10 m11 sprite mode pattern period phase angle rgb rgb
BACKGROUND_WIDTH = 15  # aspect pattern period phase angle rgb rgb texture(amplitude, 3 phases)
_PATTERN_IDS = {"plain": 0, "striped": 1, "checkered": 2, "dotted": 3, "gradient": 4}
_ICON, _MASK = 1, 2


def _paint_row(paint: Paint) -> list[float]:
    return [_PATTERN_IDS[paint.pattern], paint.period, paint.phase, paint.angle,
            *(c / 255 for c in paint.first), *(c / 255 for c in paint.second)]  # fmt: skip


def _slot(sprite: int, place: Placement, paint: Paint | None) -> list[float]:
    cos, sin = math.cos(place.angle) / place.half, math.sin(place.angle) / place.half
    flip = -1.0 if place.flip else 1.0
    head = [place.x, place.y, flip * cos, flip * sin, -sin, cos, sprite]
    if paint is None:
        return [*head, _ICON, *[0.0] * 10]
    return [*head, _MASK, *_paint_row(paint)]


def tables(scene: Scene) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Slots (NUM_SLOTS, SLOT_WIDTH), unused ones zero, and the background (BACKGROUND_WIDTH,)."""
    rows = [_slot(thing.sprite, thing.placement, thing.paint) for thing in scene.things]
    if scene.text is not None:
        rows += [_slot(sprite, place, scene.text.paint) for sprite, place in scene.text.letters]
    letter = Paint((scene.seed * 7919 % 256, scene.seed * 104729 % 256, scene.seed * 1299709 % 256))
    for sprite, place in scene.extras:
        is_shape = sprite < 10
        rows.append(_slot(sprite, place, letter if is_shape else None))
    slots = np.zeros((NUM_SLOTS, SLOT_WIDTH), np.float32)
    if rows:
        slots[: len(rows)] = rows
    phases = [(scene.seed * prime % 1000) / 1000 for prime in (7, 11, 13)]
    ground = [scene.aspect, *_paint_row(scene.background), scene.texture / 255, *phases]
    return slots, np.array(ground, np.float32)


def texels(atlas: Atlas, device: torch.device | str = "cpu") -> Tensor:
    """The atlas as one int32 table of packed RGBA: all sprites at 96 x 96, then all at 48 x 48."""
    full = torch.from_numpy(atlas.pixels.copy()).to(device)
    quads = full.view(-1, SPRITE // 2, 2, SPRITE // 2, 2, 4).float()
    half = quads.mean((2, 4)).round().to(torch.uint8)
    packed = torch.cat([full.reshape(-1, 4), half.reshape(-1, 4)])
    return packed.view(torch.int32).reshape(-1)


def _pattern(u: Tensor, v: Tensor, row: list[Tensor], soft: Tensor) -> Tensor:
    """Share of the second tone at (u, v), 0..1. row: pattern, period, phase, angle; soft: half the
    width of an edge, in the units of u and v."""
    kind, period, phase, angle = row
    cos, sin = torch.cos(angle), torch.sin(angle)
    period = period.clamp_min(1e-6)
    a, b = (u * cos + v * sin) / period + phase, (v * cos - u * sin) / period + phase
    edge = soft / period

    def wave(t: Tensor) -> Tensor:  # 1 on one half of each period, 0 on the other
        away = (t - torch.floor(t) - 0.5).abs()
        return ((0.25 - away) / edge.clamp_min(1e-4) + 0.5).clamp(0, 1)

    wa, wb = wave(a), wave(b)
    checks = wa + wb - 2 * wa * wb
    da, db = a - torch.floor(a) - 0.5, b - torch.floor(b) - 0.5
    dots = ((0.3 - torch.sqrt(da * da + db * db)) / edge.clamp_min(1e-4) + 0.5).clamp(0, 1)
    slope = (0.5 + (u * cos + v * sin) * 0.75).clamp(0, 1)
    share = torch.where(kind == 1, wa, torch.where(kind == 2, checks, dots))
    share = torch.where(kind == 4, slope, share)
    return torch.where(kind == 0, torch.zeros_like(share), share)


def _sprite(table: Tensor, u: Tensor, v: Tensor, sprite: Tensor, small: Tensor) -> list[Tensor]:
    """Premultiplied r, g, b and alpha at (u, v) in [-1, 1]; 0 outside. small: use 48 x 48."""
    count = table.numel() // (SPRITE * SPRITE + SPRITE * SPRITE // 4)
    side = torch.where(small, SPRITE // 2, SPRITE)
    base = torch.where(small, count * SPRITE * SPRITE, 0) + sprite.long() * side * side
    x, y = (u + 1) * 0.5 * side - 0.5, (v + 1) * 0.5 * side - 0.5
    x0, y0 = torch.floor(x), torch.floor(y)
    fx, fy = x - x0, y - y0
    total = [torch.zeros_like(x)] * 4
    for dx, wx in ((0, 1 - fx), (1, fx)):
        for dy, wy in ((0, 1 - fy), (1, fy)):
            xi, yi = x0 + dx, y0 + dy
            inside = (xi >= 0) & (xi < side) & (yi >= 0) & (yi < side)
            xl, yl = xi.clamp(0, SPRITE - 1).long(), yi.clamp(0, SPRITE - 1).long()
            index = torch.where(inside, base + yl * side + xl, 0)
            texel = table[index]
            weight = torch.where(inside, wx * wy, 0.0) / 255
            total = [t + ((texel >> (8 * c)) & 255) * weight for c, t in enumerate(total)]
    return total


def ground_color(ground: Tensor, x: Tensor, y: Tensor, soft: Tensor) -> Tensor:
    """The background at (x, y): (B, 3, H, W). ground: (B, BACKGROUND_WIDTH); x, y: (B, H, W)."""
    columns = [c[:, None, None] for c in ground.unbind(1)]
    aspect = columns[0]
    xc, yc = x - 0.5 * torch.sqrt(aspect), y - 0.5 / torch.sqrt(aspect)
    share = _pattern(xc, yc, columns[1:5], soft)
    amplitude = columns[11]
    wave = texture_field(x, y, columns[12:15]) * amplitude
    return torch.stack(
        [columns[5 + c] * (1 - share) + columns[8 + c] * share + wave for c in range(3)], 1
    )


def add_slot(
    image: Tensor, table: Tensor, slot: Tensor, x: Tensor, y: Tensor, soft: Tensor
) -> Tensor:
    """One sprite over (B, 3, H, W). slot: (B, SLOT_WIDTH); an unused one changes nothing."""
    s = [c[:, None, None] for c in slot.unbind(1)]
    dx, dy = x - s[0], y - s[1]
    u, v = dx * s[2] + dy * s[3], dx * s[4] + dy * s[5]
    scale = torch.sqrt((s[4] * s[4] + s[5] * s[5]).clamp_min(1e-9))  # 1 / half
    small = soft * scale > 1 / 44  # under about 44 pixels a side
    r, g, b, alpha = _sprite(table, u, v, s[6], small)
    share = _pattern(u, v, s[8:12], soft * scale)
    is_mask, used = s[7] == _MASK, s[7] > 0
    out = []
    for c, icon in enumerate((r, g, b)):
        tone = (s[12 + c] * (1 - share) + s[15 + c] * share) * alpha
        over = image[:, c] * (1 - alpha) + torch.where(is_mask, tone, icon)
        out.append(torch.where(used, over, image[:, c]))
    return torch.stack(out, 1)


def _half_pixel(x: Tensor, y: Tensor) -> Tensor:
    """(B, 1, 1): half the side of a pixel, in picture units."""
    area = (x[:, 0, 1] - x[:, 0, 0]) * (y[:, 1, 0] - y[:, 0, 0])
    return (0.5 * torch.sqrt(area))[:, None, None]


def paint_batch(table: Tensor, slots: Tensor, ground: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Pictures (B, 3, H, W) in 0..1. x, y: (B, H, W) picture coordinates of the pixels' centres."""
    soft = _half_pixel(x, y)
    image = ground_color(ground, x, y, soft)
    for slot in slots.unbind(1):
        image = add_slot(image, table, slot, x, y, soft)
    return image.clamp(0, 1)


def pixel_grid(aspect: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Picture coordinates (B, height, width) of pixel centres. aspect: (B,)."""
    root = torch.sqrt(aspect)[:, None, None]
    xs = (torch.arange(width, device=aspect.device) + 0.5) / width
    ys = (torch.arange(height, device=aspect.device) + 0.5) / height
    x = (xs * root).expand(-1, height, -1)
    y = (ys[:, None] / root).expand(-1, -1, width)
    return x, y


def draw(scene: Scene, atlas: Atlas, size: tuple[int, int]) -> Image.Image:
    """One scene as an RGB picture of size (width, height); each sprite costs its box only."""
    from vlbatch.demo.noise import noise_picture

    width, height = size
    slots, ground = (torch.from_numpy(t)[None] for t in tables(scene))
    x, y = pixel_grid(torch.tensor([scene.aspect]), height, width)
    if scene.cannot == "noise":
        image = noise_picture([scene.seed], height, width)
    else:
        soft = _half_pixel(x, y)
        image = ground_color(ground, x, y, soft)
        table = _texels_cpu(atlas)
        for slot in slots.unbind(1):
            if slot[0, 7] == 0:
                continue
            box = _box(slot[0], x[0, 0], y[0, :, 0])
            part = (slice(None), slice(None), *box)
            grid = (x[:, box[0], box[1]], y[:, box[0], box[1]])
            image[part] = add_slot(image[part], table, slot, *grid, soft)
    pixels = (image[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return Image.fromarray(pixels.numpy())


def _box(slot: Tensor, xs: Tensor, ys: Tensor) -> tuple[slice, slice]:
    """The rows and columns that a slot can touch."""
    reach = 1.45 / float(torch.hypot(slot[4], slot[5]))
    edges = []
    for axis, centre in ((ys, float(slot[1])), (xs, float(slot[0]))):
        low = int(torch.searchsorted(axis.contiguous(), centre - reach))
        high = int(torch.searchsorted(axis.contiguous(), centre + reach))
        edges.append(slice(low, high))
    return edges[0], edges[1]


_tables: dict[int, tuple[Atlas, Tensor]] = {}


def _texels_cpu(atlas: Atlas) -> Tensor:
    """`texels(atlas)`, kept for the atlases in use."""
    if id(atlas) not in _tables:
        _tables[id(atlas)] = (atlas, texels(atlas))
    return _tables[id(atlas)][1]
