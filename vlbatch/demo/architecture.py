"""The demo model: an Idefics3 of 5.8 million parameters, and how its folder is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Idefics3Config, Idefics3ForConditionalGeneration

from vlbatch.demo import tokens

MAX_NEW_TOKENS = 128  # the longest caption of the grammar has about 90 tokens


def build_config(tokenizer: Tokenizer) -> Idefics3Config:
    """Six-layer vision tower (tiles of 128, patches of 16), four-layer Llama with grouped heads."""
    ids = {name: tokenizer.token_to_id(name) for name in (tokens.START, tokens.END, tokens.PAD)}
    return Idefics3Config(
        vision_config={
            "hidden_size": 192,
            "intermediate_size": 640,
            "num_hidden_layers": 6,
            "num_attention_heads": 3,
            "image_size": tokens.TILE,
            "patch_size": 16,
            "hidden_act": "gelu_pytorch_tanh",
        },
        text_config={
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 256,
            "intermediate_size": 640,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "bos_token_id": ids[tokens.START],
            "eos_token_id": ids[tokens.END],
            "pad_token_id": ids[tokens.PAD],
        },
        scale_factor=2,
        image_token_id=tokenizer.token_to_id(tokens.IMAGE),
        bos_token_id=ids[tokens.START],
        eos_token_id=ids[tokens.END],
        pad_token_id=ids[tokens.PAD],
        tie_word_embeddings=True,
    )


def build_model(tokenizer: Tokenizer, seed: int = 0) -> Idefics3ForConditionalGeneration:
    """A fresh model in fp32 on the CPU."""
    torch.manual_seed(seed)
    model = Idefics3ForConditionalGeneration(build_config(tokenizer))
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.text_config.bos_token_id,
        eos_token_id=model.config.text_config.eos_token_id,
        pad_token_id=model.config.text_config.pad_token_id,
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
    )
    return model.float().eval()


def export(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write model and processor to `folder`: fp16 weights that load as fp32.

    transformers takes the dtype of config.json: without the edit a CPU would compute in fp16.
    """
    half = build_model(tokenizer)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(folder)
    tokens.build_processor(tokenizer).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
