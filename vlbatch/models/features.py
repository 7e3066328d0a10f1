"""Image features in vision batches, made before `generate` by the model's own tower."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vlbatch.models.collate import collate


class ImageEncoder:
    """Processor outputs of single images → one feature output for all of them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._get_image_features = model.base_model.get_image_features
        self._names = set(inspect.signature(self._get_image_features).parameters)

    def __call__(
        self, rows: Sequence[Mapping[str, Any]], counts: Sequence[int], batch_size: int
    ) -> tuple[Any, list[int]]:
        """The features of `rows` in order, and how many images each vision batch had.

        counts: placeholders of each row. Raises `ValueError` where a row's features are of
        another number: the model would shift the next rows' features into the gap.
        """
        outputs = []
        for start in range(0, len(rows), batch_size):
            part = slice(start, start + batch_size)
            outputs.append(self._encode(rows[part]))
            _check_counts(outputs[-1].pooler_output, rows[part], counts[part])
        sizes = [len(rows[s : s + batch_size]) for s in range(0, len(rows), batch_size)]
        return join_features(outputs), sizes

    def _encode(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        taken = [{k: v for k, v in row.items() if k in self._names} for row in rows]
        tensors = collate(taken, self._model.device, self._model.dtype)
        return self._get_image_features(**tensors, return_dict=True)


def image_encoder(model: Any) -> ImageEncoder | None:
    """The encoder of a class whose `generate` takes features made beforehand, else None."""
    takes_features = "mm_encoder_outputs" in inspect.signature(model.forward).parameters
    has_tower = hasattr(model.base_model, "get_image_features")
    return ImageEncoder(model) if takes_features and has_tower else None


def _check_counts(features: Any, rows: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> None:
    """`features`: tensor [N, n, H] or list of [n_i, H], an element an image or a tile of one."""
    found = [feature.shape[:-1].numel() for feature in features]
    tiles = [_num_tiles(row) for row in rows]
    if len(found) != len(rows) and len(found) == sum(tiles):
        ends = list(itertools.accumulate(tiles))
        found = [sum(found[end - num : end]) for end, num in zip(ends, tiles, strict=True)]
    is_by_image = len(found) == len(rows)
    if (found != list(counts)) if is_by_image else (sum(found) != sum(counts)):
        raise ValueError(f"features: {found}, placeholders of the images: {list(counts)}")


def _num_tiles(row: Mapping[str, Any]) -> int:
    """Tiles of one image: of `pixel_values` [1, tiles, 3, H, W]."""
    pixels = row.get("pixel_values")
    return int(pixels.shape[1]) if torch.is_tensor(pixels) and pixels.dim() == 5 else 1


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
