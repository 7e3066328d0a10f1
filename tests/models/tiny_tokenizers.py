"""Tokenizers for tiny models, made on the spot: a token a byte, a letter, or a few words."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(
    specials: list[str], *, unk: int | None = 0, bos: int | None = 1, eos: int = 2, pad: int = 4,
    **kwargs: Any,
) -> PreTrainedTokenizerFast:  # fmt: skip
    """Byte-level, a token a byte; `specials` take the first ids."""
    vocab = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocab)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, specials, unk, bos, eos, pad, **kwargs)


def metaspace_tokenizer(specials: list[str]) -> PreTrainedTokenizerFast:
    """Characters with byte fallback; a text begins with ▁ and with <s>, as SentencePiece's do."""
    characters = [chr(i) for i in range(33, 127)]
    vocab = [*specials, "▁", *characters, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(
        {token: i for i, token in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _wrap(tokenizer, specials, 0, 1, 2, 4)


def word_tokenizer(specials: list[str]) -> PreTrainedTokenizerFast:
    """WordPiece of single letters, lower case, between [CLS] and [SEP]."""
    letters = [chr(i) for i in range(33, 127) if not chr(i).isupper()]
    words = ["a", "photo", "of", "what", "does", "the", "image", "tag", "do"]
    vocab = list(dict.fromkeys([*specials, *words, *letters, *("##" + c for c in letters)]))
    model = models.WordPiece({token: i for i, token in enumerate(vocab)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _wrap(tokenizer, specials, 1, None, None, 0, cls_token="[CLS]", sep_token="[SEP]")


def _wrap(
    tokenizer: Tokenizer, specials: list[str], unk: int | None, bos: int | None, eos: int | None,
    pad: int, **kwargs: Any,
) -> PreTrainedTokenizerFast:  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    roles = {"unk_token": unk, "bos_token": bos, "eos_token": eos, "pad_token": pad}
    kwargs |= {role: specials[i] for role, i in roles.items() if i is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", model_max_length=2048, **kwargs
    )
