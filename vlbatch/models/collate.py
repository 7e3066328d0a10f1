"""Processor outputs of single images → tensors of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def collate(
    rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """The outputs of several images as one batch: concatenated on dim 0 where they are tensors,
    floating ones as `dtype`.

    Trailing dimensions are zero-padded to the largest: models that take a varying number of tiles
    strip such padding themselves (by tile masks, sizes or all-zero tiles).
    """
    return {name: _join([row[name] for row in rows], device, dtype) for name in rows[0]}


def shapes(row: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The trailing shapes of an image's outputs: equal ones are collated without padding."""
    return tuple(tuple(v.shape[1:]) if torch.is_tensor(v) else () for v in row.values())


def _join(values: list[Any], device: torch.device, dtype: torch.dtype) -> Any:
    if not torch.is_tensor(values[0]):
        return [item for value in values for item in value]
    shape = [max(sizes) for sizes in zip(*(v.shape[1:] for v in values), strict=True)]
    joined = torch.cat([_pad(value, shape) for value in values])
    joined = joined.to(device)  # first, so that the device converts
    return joined.to(dtype) if joined.is_floating_point() else joined


def _pad(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """`value` [n, …] with zeros after each trailing dimension up to `shape`."""
    if list(value.shape[1:]) == shape:
        return value
    pads = [p for have, want in zip(value.shape[:0:-1], shape[::-1], strict=True)
            for p in (0, want - have)]  # fmt: skip
    return torch.nn.functional.pad(value, pads)
