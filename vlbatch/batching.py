"""Inputs that arrive one by one → batches of one key, without letting any wait for long."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from vlbatch.host import END
from vlbatch.records import ModelInput

#: Batches' worth of inputs held while none of one key is full.
HELD_BATCHES = 2

#: Longest wait of an input for companions, in seconds, once the model has nothing else to do.
PATIENCE = 0.5

#: Longest wait of an input of a rare key while batches of other keys keep the model busy, seconds.
LONGEST_WAIT = 10.0


class Batcher:
    """Groups inputs by key. Holds at most `HELD_BATCHES * size` of them."""

    def __init__(self, size: int, key: Callable[[ModelInput], Hashable]) -> None:
        self._size = size
        self._key = key
        self._groups: OrderedDict[Hashable, list[ModelInput]] = OrderedDict()  # oldest first
        self._arrivals: dict[Hashable, float] = {}
        self._held = 0

    def add(self, item: ModelInput, now: float) -> list[ModelInput] | None:
        """Takes an input; returns a batch if one is full, or the fullest if too many are held."""
        key = self._key(item)
        group = self._groups.setdefault(key, [])
        group.append(item)
        self._arrivals.setdefault(key, now)
        self._held += 1
        if len(group) == self._size:
            return self._take(key)
        if self._held >= HELD_BATCHES * self._size:
            return self._take(max(self._groups, key=lambda k: len(self._groups[k])))
        return None

    def oldest(self) -> list[ModelInput] | None:
        """The batch of the input that has waited longest, full or not."""
        return self._take(next(iter(self._groups))) if self._groups else None

    def waited(self, now: float) -> float:
        """Seconds that the oldest input has waited; 0 if there is none."""
        return now - self._arrivals[next(iter(self._groups))] if self._groups else 0.0

    def _take(self, key: Hashable) -> list[ModelInput]:
        group = self._groups.pop(key)
        del self._arrivals[key]
        self._held -= len(group)
        return group


def batches(
    ready: queue.Queue[Any],
    size: int,
    key: Callable[[ModelInput], Hashable],
    stop: threading.Event,
) -> Iterator[list[ModelInput]]:
    """Batches of at most `size` inputs of one key from a queue that ends with `END`."""
    batcher = Batcher(size, key)
    while not stop.is_set():
        waited = batcher.waited(time.monotonic())
        try:
            item = ready.get(timeout=min(0.1, max(PATIENCE - waited, 1e-3)))
        except queue.Empty:
            batch = batcher.oldest() if waited >= PATIENCE else None
        else:
            if item is END:
                break
            batch = batcher.add(item, time.monotonic())
            if batch is None and waited >= LONGEST_WAIT:
                batch = batcher.oldest()
        if batch:
            yield batch
    while not stop.is_set() and (batch := batcher.oldest()):
        yield batch
