"""The training forward: the model's own weights, with static shapes and no host synchronisation.

A training row is one image and several questions about it: the prompt up to the image's end (the
prefix, padded to PREFIX) and the questions packed after it. Each question sees the prefix and
itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlbatch.demo.tokens import TILE_TOKENS


def image_features(model: Any, tiles: Tensor) -> Tensor:
    """Normalised tiles (N, 3, 128, 128) to features (N, TILE_TOKENS, language model's width)."""
    tower = model.model.vision_model
    hidden = tower.embeddings.patch_embedding(tiles).flatten(2).transpose(1, 2)
    hidden = hidden + tower.embeddings.position_embedding.weight
    for layer in tower.encoder.layers:
        attention, normed = layer.self_attn, layer.layer_norm1(hidden)
        heads = (attention.num_heads, attention.head_dim)
        query, key, value = (
            project(normed).unflatten(-1, heads).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        hidden = hidden + attention.out_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
    features: Tensor = model.model.connector(tower.post_layernorm(hidden))
    return features


def rotary_tables(model: Any, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, head_dim) of every position."""
    config = model.config.text_config
    theta = config.rope_parameters["rope_theta"]
    steps = torch.arange(0, config.head_dim, 2, device=device) / config.head_dim
    angles = torch.arange(length, device=device)[:, None] / theta**steps
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cos + torch.cat([-second, first], -1) * sin


def attention_mask(segments: Tensor) -> Tensor:
    """Boolean (B, 1, L, L): True where a token may look.

    segments: (B, L); 0 the prefix, 1.. the questions, -1 padding. Causal within what it may see.
    """
    length = segments.shape[1]
    mine, theirs = segments[:, :, None], segments[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)
    seen = causal & ((theirs == 0) | (mine == theirs)) & (theirs >= 0)
    return (seen | itself)[:, None]


def decode(
    model: Any, embeds: Tensor, positions: Tensor, mask: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Embeddings (B, L, width) through the language model, to final hidden states of that shape."""
    text = model.model.text_model
    cos, sin = (table[positions][:, None].to(embeds.dtype) for table in tables)
    hidden = embeds
    for layer in text.layers:
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        query, key, value = (
            project(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = _turn(query, cos, sin).to(value.dtype), _turn(key, cos, sin).to(value.dtype)
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    final: Tensor = text.norm(hidden)
    return final


def answer_logits(
    model: Any,
    tiles: Tensor,
    ids: Tensor,
    slots: Tensor,
    positions: Tensor,
    segments: Tensor,
    tables: tuple[Tensor, Tensor],
    prefix: int,
) -> Tensor:
    """Logits (B, L - prefix, vocabulary) of the questions.

    tiles: (N, 3, 128, 128). ids, positions, segments: (B, L). slots: (B, prefix), the row of
    `features.flatten(0, 1)` that stands there (tile * TILE_TOKENS + k), or -1 for a text token.
    """
    features = image_features(model, tiles)
    assert features.shape[1] == TILE_TOKENS
    embeds = model.model.text_model.embed_tokens(ids)
    chosen = features.flatten(0, 1)[slots.clamp_min(0)].to(embeds.dtype)
    front = torch.where((slots >= 0)[..., None], chosen, embeds[:, :prefix])
    embeds = torch.cat([front, embeds[:, prefix:]], 1)
    hidden = decode(model, embeds, positions, attention_mask(segments), tables)
    return F.linear(hidden[:, prefix:], model.model.text_model.embed_tokens.weight)
