"""Pictures without objects: smooth textures for backgrounds, and noise not unlike photographs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def texture_field(x: Tensor, y: Tensor, phases: list[Tensor]) -> Tensor:
    """A smooth field in about [-1, 1] whose waves are longer than half the picture."""
    p, q, r = (2 * math.pi * phase for phase in phases)
    first = torch.sin(5.1 * x + 2.3 * y + p)
    second = torch.sin(4.7 * y - 2.9 * x + q)
    third = torch.sin(7.9 * x + 6.1 * y + r)
    return (first + second + third) / 3


def _octaves(seed: int, height: int, width: int, channels: int) -> Tensor:
    """Noise with a random slope of its spectrum, (channels, height, width), about in [-2, 2]."""
    generator = torch.Generator().manual_seed(seed)
    slope = float(torch.rand((), generator=generator)) * 1.6
    total = torch.zeros(channels, height, width)
    for level in range(7):
        side = 2 ** (level + 1)
        grid = torch.randn(1, channels, side, side, generator=generator)
        mode = "nearest" if slope < 0.12 else "bilinear"
        grown = F.interpolate(grid, (height, width), mode=mode)[0]
        total += grown * 2.0 ** (-slope * level)
    return total / total.std().clamp_min(1e-6)


def noise_picture(seeds: list[int], height: int, width: int) -> Tensor:
    """(B, 3, height, width) in 0..1: two noisy surfaces, one cut out of the other, one a seed."""
    pictures = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed * 31 + 7)
        numbers = torch.rand(8, generator=generator)
        base = [torch.rand(3, 1, 1, generator=generator) for _ in range(2)]
        layers = []
        for k in range(2):
            gray = _octaves(seed * 4 + k, height, width, 1)
            color = _octaves(seed * 4 + 2 + k, height, width, 3)
            tint = numbers[k] * 0.5
            strength = 0.04 + 0.22 * numbers[2 + k]
            layers.append(base[k] + (gray * (1 - tint) + color * tint) * strength)
        cut = torch.sigmoid(_octaves(seed * 4 + 9, height, width, 1) * (40 * numbers[4] ** 2))
        share = cut if numbers[5] < 0.6 else torch.zeros_like(cut)
        pictures.append(layers[0] * (1 - share) + layers[1] * share)
    return torch.stack(pictures).clamp(0, 1)
