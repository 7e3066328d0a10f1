"""Muon for the hidden matrices, AdamW for the rest.

Muon (Keller Jordan, 2024): the momentum of a matrix is replaced by the nearest orthogonal one,
found by a few Newton-Schulz steps.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

_STEPS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices (N, rows, cols) with their singular values moved to about 1, in bfloat16."""
    a, b, c = _COEFFICIENTS
    x: Tensor = matrices.bfloat16()
    turned = x.shape[1] > x.shape[2]
    if turned:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if turned else x


class Muon:
    """Muon over matrices, batched by shape."""

    def __init__(self, parameters: list[nn.Parameter], momentum: float = 0.95) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self._groups = list(groups.values())
        self._momentum = momentum
        self._buffers = [torch.zeros_like(torch.stack(list(g))) for g in self._groups]

    @torch.no_grad()
    def step(self, lr: float, weight_decay: float = 0.02) -> None:
        """One update from the gradients in place."""
        for group, buffer in zip(self._groups, self._buffers, strict=True):
            gradients = torch.stack([p.grad for p in group if p.grad is not None])
            buffer.lerp_(gradients, 1 - self._momentum)
            update = orthogonal(gradients.lerp(buffer, self._momentum)).to(buffer.dtype)
            rows, cols = buffer.shape[1:]
            scale = max(1.0, rows / cols) ** 0.5
            torch._foreach_mul_(list(group), 1 - lr * weight_decay)
            torch._foreach_add_(list(group), list(update.unbind(0)), alpha=-lr * scale)


class Optimizer:
    """Both optimisers behind one `step(share)`, where `share` scales the learning rates."""

    def __init__(self, model: Any, muon_lr: float, adam_lr: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
            (matrices if hidden else others).append(parameter)
        self._muon_lr, self._adam_lr = muon_lr, adam_lr
        self._muon = Muon(matrices)
        fused = others[0].is_cuda
        self._adam = torch.optim.AdamW(
            others, lr=adam_lr, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0, fused=fused
        )

    def step(self, share: float) -> None:
        """Update the weights and clear the gradients."""
        self._muon.step(self._muon_lr * share)
        for group in self._adam.param_groups:
            group["lr"] = self._adam_lr * share
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        for members in self._muon._groups:
            for parameter in members:
                parameter.grad = None


class GentleSgd:
    """SGD over the language model alone, to correct how a trained model words something.

    Its updates are in proportion to the gradients, so what is right stays as it is; an update of
    `Optimizer` has one size whatever the gradient, and small batches would undo the training.
    """

    def __init__(self, model: Any, lr: float) -> None:
        model.requires_grad_(False)
        self._parameters = list(model.model.text_model.requires_grad_(True).parameters())
        self._lr = lr
        self._sgd = torch.optim.SGD(self._parameters, lr=lr, momentum=0.9)

    def step(self, share: float) -> None:
        """Update the weights and clear the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for group in self._sgd.param_groups:
            group["lr"] = self._lr * share
        self._sgd.step()
        self._sgd.zero_grad(set_to_none=True)
