"""Marks of the rows already done: a bit for each index, 16 bytes for each key.

Never a set of strings: 10 M rows take 1.3 MB as bits and 160 MB as digests, 1 GB and more as a set.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 16
_REPEAT = re.compile(r"(#\d+)+$")


class IndexMarks:
    """A set of row indices as a bitmap that grows. `top` is the lowest index beyond all of them."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self.top = 0

    def __contains__(self, index: int) -> bool:
        byte = index >> 3
        return byte < len(self._bits) and bool(self._bits[byte] >> (index & 7) & 1)

    def add(self, index: int) -> bool:
        """Marks `index` (≥ 0); whether it was free until now."""
        byte, bit = index >> 3, 1 << (index & 7)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 1 - len(self._bits)))
        if self._bits[byte] & bit:
            return False
        self._bits[byte] |= bit
        self.top = max(self.top, index + 1)
        return True


class KeyMarks:
    """A multiset of keys as sorted digests: first every `add`, then `take` for each input.

    A multiset, because keys that differ only in a secret are equal once written: n such rows
    stand for n inputs.
    """

    def __init__(self) -> None:
        self._digests = bytearray()
        self._sorted: NDArray[np.bytes_] | None = None  # a view of _digests
        self._taken = IndexMarks()  # positions in _sorted
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._digests) // _DIGEST_BYTES

    def add(self, key: str) -> None:
        """Remembers the key of a row. Not after the first `take`."""
        assert self._sorted is None, "keys are added before any is taken"
        self._digests += _digest(key)

    def take(self, key: str) -> bool:
        """Whether a row of `key` is there that no earlier `take` had."""
        if not self._digests:
            return False
        if self._sorted is None:
            self._sorted = np.frombuffer(self._digests, f"S{_DIGEST_BYTES}")
            self._sorted.sort()
        digest = _digest(key)
        position = int(self._sorted.searchsorted(np.bytes_(digest)))
        while self._at(position) == digest:
            if self._taken.add(position):
                self._num_taken += 1
                return True
            position += 1
        return False

    @property
    def num_left(self) -> int:
        """Rows whose key no `take` asked for."""
        return len(self) - self._num_taken

    def _at(self, position: int) -> bytes:
        start = position * _DIGEST_BYTES  # an element of _sorted would lack its trailing NULs
        return bytes(self._digests[start : start + _DIGEST_BYTES])


def row_identity(key: str, image: str) -> str:
    """What a row is known by from one run to the next: its key and its image, as written.

    The number of a repeat (`#2`) is left out: it depends on what else is in the list, and rows of
    one key are told apart by their images, or are alike.
    """
    return f"{_REPEAT.sub('', key)}\0{image}"


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
