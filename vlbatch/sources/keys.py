"""Keys that are unique within a run, in 8 to 27 bytes each."""

from __future__ import annotations

from array import array

_START = 1 << 12


class Keys:
    """Makes keys unique. Holds a 64-bit hash of each key seen, not the key: of ten million keys,
    two collide with a probability of 3e-6, and then one has a needless suffix.
    """

    def __init__(self) -> None:
        self._table = array("q", bytes(8 * _START))  # open addressing; 0 = free
        self._mask = _START - 1
        self._room = _START * 2 // 3
        self._repeats: dict[int, int] = {}  # of keys that came again: the last suffix

    def unique(self, key: str) -> tuple[str, int]:
        """`key` or, if it came before, `key#n` with the least free n; and n (1 = the first)."""
        known = hash(key)
        if self._add(known):
            return key, 1
        repeat = self._repeats.get(known, 1) + 1
        while not self._add(hash(f"{key}#{repeat}")):
            repeat += 1
        self._repeats[known] = repeat
        return f"{key}#{repeat}", repeat

    def _add(self, known: int) -> bool:
        """Whether the hash is new."""
        known = known or 1
        table, mask = self._table, self._mask
        slot = known & mask
        while held := table[slot]:
            if held == known:
                return False
            slot = (slot + 1) & mask
        table[slot] = known
        self._room -= 1
        if not self._room:
            self._grow()
        return True

    def _grow(self) -> None:
        held = self._table
        size = 2 * len(held)
        self._table = table = array("q", bytes(8 * size))
        self._mask = mask = size - 1
        self._room = size * 2 // 3 - len(held) * 2 // 3
        for known in held:
            if known:
                slot = known & mask
                while table[slot]:
                    slot = (slot + 1) & mask
                table[slot] = known
