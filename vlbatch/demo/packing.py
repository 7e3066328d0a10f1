"""Token rows of a training batch: one image prefix and the questions that fit behind it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from vlbatch.demo import tokens
from vlbatch.demo.questions import KINDS, SYSTEM_PROMPTS, Question

PREFIX, QUESTIONS = 112, 128  # tokens of a row: the image part, then the packed questions
LENGTH = PREFIX + QUESTIONS


@dataclass(frozen=True)
class Row:
    """One training row; see `forward.answer_logits`.

    ids, positions, segments: (LENGTH,). labels: (QUESTIONS,). slots: (PREFIX,), counted
    from the image's own first tile. kinds: kind index of each packed question.
    """

    ids: NDArray[np.int16]
    positions: NDArray[np.int16]
    segments: NDArray[np.int8]
    labels: NDArray[np.int16]
    slots: NDArray[np.int32]
    kinds: list[int]


class Packer:
    """Packs questions with a tokenizer; caches what repeats."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = lru_cache(maxsize=50_000)(self._encode)
        self._tokenizer = tokenizer
        self._image = tokenizer.token_to_id(tokens.IMAGE)
        self._pad = tokenizer.token_to_id(tokens.PAD)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prefix(self, rows: int, cols: int, rng: random.Random | None) -> list[int]:
        """The prompt up to the end of the image; with an `rng`, sometimes with a system message."""
        system = ""
        if rng is not None and rng.random() < 0.06:
            text = rng.choice(SYSTEM_PROMPTS)
            if rng.random() < 0.2:
                text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=5))
            system = f"System: {text}{tokens.END}\n"
        head = tokens.START + system + "User:"
        ids = self.encode(head) + self.encode(tokens.image_text(rows, cols))
        return ids if len(ids) <= PREFIX else self.prefix(rows, cols, None)

    def row(
        self, questions: list[Question], grid: tuple[int, int], rng: random.Random | None = None
    ) -> Row:
        """Pack as many questions as fit, in order. grid: (rows, cols) of tiles, (0, 0) unsplit."""
        front = self.prefix(*grid, rng)
        ids = np.full(LENGTH, self._pad, np.int16)
        positions, segments = np.zeros(LENGTH, np.int16), np.full(LENGTH, -1, np.int8)
        labels, slots = np.full(QUESTIONS, -100, np.int16), np.full(PREFIX, -1, np.int32)
        ids[: len(front)] = front
        positions[: len(front)], segments[: len(front)] = range(len(front)), 0
        where = np.flatnonzero(ids[:PREFIX] == self._image)
        slots[where] = np.arange(len(where))
        at, kinds = PREFIX, []
        for question in questions:
            prompt = self.encode(f"{question.prompt}{tokens.END}\nAssistant:")
            answer = self.encode(f"{question.answer}{tokens.END}")
            total = len(prompt) + len(answer)
            if at + total > LENGTH:
                continue
            kinds.append(KINDS.index(question.kind))
            ids[at : at + total] = prompt + answer
            positions[at : at + total] = range(len(front), len(front) + total)
            segments[at : at + total] = len(kinds)
            first = at - PREFIX + len(prompt) - 1
            labels[first : first + len(answer)] = answer
            at += total
        return Row(ids, positions, segments, labels, slots, kinds)
