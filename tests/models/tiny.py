"""Tiny random models of real classes, as folders that plain transformers loads.

Each builder returns (model, processor): a few thousand seeded weights, a tokenizer made on the
spot, the class's own processor. Every weight is drawn again with a variance at which different
images give clearly different logits: several classes begin with zero or near-zero weights (BLIP's
tower 1e-10), and behind those a mixed-up image could not be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tokenizers import byte_tokenizer, metaspace_tokenizer, word_tokenizer
from transformers import (
    BartConfig,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    BlipProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    GemmaConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VICUNA = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ message['content'][0]['text'] }} {% else %}USER: "
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }} {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
_LLAMA_LIKE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def llava() -> tuple[Any, Any]:
    """CLIP tower, 16 tokens an image, no chat template, a tokenizer that begins words with ▁."""
    tokenizer = metaspace_tokenizer(["<unk>", "<s>", "</s>", "<image>", "<pad>"])
    config = LlavaConfig(
        text_config=LlamaConfig(
            vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, pad_token_id=4, **_LLAMA_LIKE
        ),
        vision_config=CLIPVisionConfig(image_size=28, patch_size=7, **_TOWER),
        image_token_index=3,
    )
    processor = LlavaProcessor(
        _clip(28), tokenizer, patch_size=7, num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    return LlavaForConditionalGeneration(config), processor


def llava_next() -> tuple[Any, Any]:
    """Anyres: 2 to 5 tiles of 28 px, unpadded rows, so that placeholders vary with the shape."""
    tokenizer = byte_tokenizer(["<unk>", "<s>", "</s>", "<image>", "<pad>"])
    grids = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
    config = LlavaNextConfig(
        text_config=LlamaConfig(
            vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, pad_token_id=4, **_LLAMA_LIKE
        ),
        vision_config=CLIPVisionConfig(image_size=28, patch_size=7, **_TOWER),
        image_token_index=3,
        image_grid_pinpoints=grids,
    )
    images = LlavaNextImageProcessor(
        image_grid_pinpoints=grids, size={"shortest_edge": 28},
        crop_size={"height": 28, "width": 28},
    )  # fmt: skip
    processor = LlavaNextProcessor(
        images, tokenizer, patch_size=7, num_additional_image_tokens=1,
        vision_feature_select_strategy="default", chat_template=_VICUNA,
    )  # fmt: skip
    return LlavaNextForConditionalGeneration(config), processor


def idefics3() -> tuple[Any, Any]:
    """Up to 4 × 4 tiles of 32 px and the whole picture, 4 tokens each."""
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>"]
    names += ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    names += [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
    tokenizer = byte_tokenizer(names, unk=0, bos=1, eos=6, pad=2)
    config = Idefics3Config(
        text_config=LlamaConfig(
            vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=6, pad_token_id=2, **_LLAMA_LIKE
        ),
        vision_config={"image_size": 32, "patch_size": 8, **_TOWER},
        image_token_id=5,
        pad_token_id=2,
    )
    images = Idefics3ImageProcessor(
        size={"longest_edge": 128}, max_image_size={"longest_edge": 32}, resample=1
    )
    template = _CHATML.replace("IMAGE", "<image>").replace("<|im_end|>", "<end_of_utterance>")
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=template)
    return Idefics3ForConditionalGeneration(config), processor


def qwen2_5_vl() -> tuple[Any, Any]:
    """Native resolution, 4 to 36 tokens an image, window attention, three-part positions."""
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
    names += ["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<|object_ref_start|>"]
    tokenizer = byte_tokenizer(
        names, unk=None, bos=None, eos=2, pad=0,
        extra_special_tokens={"image_token": names[6], "video_token": names[7]},
    )  # fmt: skip
    text = _LLAMA_LIKE | {
        "vocab_size": len(tokenizer), "hidden_size": 32, "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0,
        },
    }  # fmt: skip
    del text["head_dim"]
    tower = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
        "out_hidden_size": 32, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "window_size": 56, "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=tower, image_token_id=6, video_token_id=7,
        vision_start_token_id=3, vision_end_token_id=4,
    )  # fmt: skip
    pixels = {"size": {"shortest_edge": 56 * 56, "longest_edge": 168 * 168}, "patch_size": 14}
    processor = Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**pixels), tokenizer, Qwen2VLVideoProcessor(**pixels),
        chat_template=_CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config), processor


def paligemma() -> tuple[Any, Any]:
    """SigLIP tower, prompt and image attend both ways, 4 tokens an image."""
    tokenizer = byte_tokenizer(
        ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"], unk=3, bos=2, eos=1, pad=0,
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    images = SiglipImageProcessor(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    processor = PaliGemmaProcessor(images, tokenizer)
    text = _LLAMA_LIKE | {"vocab_size": len(tokenizer)}
    config = PaliGemmaConfig(
        text_config=GemmaConfig(bos_token_id=2, eos_token_id=1, pad_token_id=0, **text),
        vision_config=SiglipVisionConfig(
            image_size=28, patch_size=14, vision_use_head=False, **_TOWER
        ),
        image_token_index=4, projection_dim=32, hidden_size=32, vocab_size=len(tokenizer),
    )  # fmt: skip
    return PaliGemmaForConditionalGeneration(config), processor


def blip() -> tuple[Any, Any]:
    """An image-grounded decoder that ends with its separator and continues the prompt."""
    tokenizer = word_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]"])
    text = _TOWER | {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    text |= {"bos_token_id": 5, "eos_token_id": 4, "pad_token_id": 0, "sep_token_id": 3}
    config = BlipConfig(
        text_config=text, vision_config={"image_size": 32, "patch_size": 8} | _TOWER
    )
    processor = BlipProcessor(BlipImageProcessor(size={"height": 32, "width": 32}), tokenizer)
    return BlipForConditionalGeneration(config), processor


def florence2() -> tuple[Any, Any]:
    """DaViT tower and BART: an encoder-decoder with task prompts, 5 tokens an image."""
    names = ["<s>", "<pad>", "</s>", "<unk>", "<image>", "<od>", "</od>", "<loc_0>"]
    tokenizer = byte_tokenizer(
        names, unk=3, bos=0, eos=2, pad=1, extra_special_tokens={"image_token": "<image>"}
    )
    images = _clip(32)
    images.image_seq_length = 5
    text = BartConfig(
        vocab_size=len(tokenizer), d_model=32, max_position_embeddings=256,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48,
    )  # fmt: skip
    tower = {
        "depths": (1, 1), "patch_size": (7, 3), "patch_stride": (4, 4), "patch_padding": (3, 1),
        "patch_prenorm": (False, True), "embed_dim": (16, 32), "num_heads": (2, 4),
        "num_groups": (2, 4), "window_size": 2, "projection_dim": 32, "drop_path_rate": 0.0,
        "max_position_embeddings": 8, "max_temporal_embeddings": 4,
    }  # fmt: skip
    config = Florence2Config(
        text_config=text, vision_config=tower, image_token_id=4,
        bos_token_id=0, eos_token_id=2, pad_token_id=1, decoder_start_token_id=2,
    )  # fmt: skip
    return Florence2ForConditionalGeneration(config), Florence2Processor(images, tokenizer)


BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    build.__name__: build
    for build in (llava, llava_next, idefics3, qwen2_5_vl, paligemma, blip, florence2)
}


#: The folders of this session.
_FOLDERS: dict[str, Path] = {}


def save(name: str, folder: Path) -> Path:
    """Write the family's folder: config, weights, processor, tokenizer."""
    torch.manual_seed(sum(name.encode()))
    model, processor = BUILDERS[name]()
    _randomise(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family name → its folder, made at first use. To be imported by each test file."""

    def folder(name: str) -> Path:
        if name not in _FOLDERS:
            _FOLDERS[name] = save(name, tmp_path_factory.mktemp("tiny") / name)
        return _FOLDERS[name]

    return folder


@torch.no_grad()
def _randomise(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            is_scale = "norm" in name.lower() and name.endswith("weight")
            weight.normal_(float(is_scale), 0.1)
        elif "position" in name:
            weight.normal_(0, 2)  # else a greedy caption is one token again and again
        elif "embed" in name or "shared" in name:
            weight.normal_(0, 0.5)
        else:
            weight.normal_(0, 2.5 * weight[0].numel() ** -0.5)


def _clip(side: int) -> CLIPImageProcessor:
    return CLIPImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    )
