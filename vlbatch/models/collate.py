"""Processor outputs of single images → tensors of a batch, and features of vision batches → one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def collate(rows: Sequence[Mapping[str, Any]], device: torch.device) -> dict[str, Any]:
    """The outputs of several images as one batch: concatenated on dim 0 where they are tensors.

    Trailing dimensions are zero-padded to the largest: models that take a varying number of tiles
    strip such padding themselves (by tile masks, sizes or all-zero tiles).
    """
    names = rows[0].keys()
    return {name: _join([row[name] for row in rows], device) for name in names}


def _join(values: list[Any], device: torch.device) -> Any:
    if not torch.is_tensor(values[0]):
        return [item for value in values for item in value]
    shape = [max(sizes) for sizes in zip(*(v.shape[1:] for v in values), strict=True)]
    return torch.cat([_pad(v, shape) for v in values]).to(device)


def _pad(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    if list(value.shape[1:]) == shape:
        return value
    pads = [p for have, want in zip(value.shape[:0:-1], shape[::-1], strict=True)
            for p in (0, want - have)]  # fmt: skip
    return torch.nn.functional.pad(value, pads)


def join_features(outputs: Sequence[Any]) -> Any:
    """One image-feature output from those of several vision batches, in order.

    `pooler_output` is a tensor [N, n, H] or a list of [n_i, H], `deepstack_features` (Qwen3-VL)
    a list by layer of the same; the form that the model gave is kept, since its forward relies
    on it.
    """
    if len(outputs) == 1:
        return outputs[0]
    joined = {"pooler_output": _cat([output.pooler_output for output in outputs])}
    deep = [getattr(output, "deepstack_features", None) for output in outputs]
    if deep[0] is not None:
        joined["deepstack_features"] = [_cat(layer) for layer in zip(*deep, strict=True)]
    return type(outputs[0])(**joined)


def _cat(parts: Sequence[Any]) -> Any:
    if torch.is_tensor(parts[0]):
        return torch.cat(list(parts))
    return [item for part in parts for item in part]
