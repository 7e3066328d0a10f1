"""Inputs → batches: every input once, none of two keys together, none waiting for ever."""

from __future__ import annotations

import queue
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from vlbatch.batching import HELD_BATCHES, PATIENCE, Batcher, batches
from vlbatch.host import END
from vlbatch.records import ImageRef, ModelInput


def make_input(index: int, length: int) -> ModelInput:
    return ModelInput(ImageRef(index, str(index), "x"), "", (1,) * length, {}, 0, 1, 1)


def by_length(item: ModelInput) -> int:
    return len(item.input_ids)


@given(st.lists(st.integers(1, 6), max_size=200), st.integers(1, 9))
def test_every_input_once_in_batches_of_one_key(lengths: list[int], size: int) -> None:
    ready: queue.Queue[object] = queue.Queue()
    for index, length in enumerate(lengths):
        ready.put(make_input(index, length))
    ready.put(END)
    found = list(batches(ready, size, by_length, threading.Event()))
    assert sorted(item.ref.index for batch in found for item in batch) == list(range(len(lengths)))
    for batch in found:
        assert 1 <= len(batch) <= size
        assert len({by_length(item) for item in batch}) == 1


@given(st.lists(st.integers(1, 30), max_size=300), st.integers(1, 6))
def test_what_is_held_is_bounded(lengths: list[int], size: int) -> None:
    batcher, held = Batcher(size, by_length), 0
    for index, length in enumerate(lengths):
        batch = batcher.add(make_input(index, length), now=0.0)
        held += 1 - len(batch or ())
        assert held < HELD_BATCHES * size


def test_full_batches_where_one_key_comes() -> None:
    ready: queue.Queue[object] = queue.Queue()
    for index in range(10):
        ready.put(make_input(index, 3))
    ready.put(END)
    sizes = [len(batch) for batch in batches(ready, 4, by_length, threading.Event())]
    assert sizes == [4, 4, 2]


def test_an_input_without_companions_goes_after_patience() -> None:
    ready: queue.Queue[object] = queue.Queue()
    ready.put(make_input(0, 3))
    start = time.monotonic()
    batch = next(batches(ready, 4, by_length, threading.Event()))
    assert [item.ref.index for item in batch] == [0]
    assert PATIENCE <= time.monotonic() - start < PATIENCE + 2


def test_stop_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    ready: queue.Queue[object] = queue.Queue()
    ready.put(make_input(0, 3))
    assert list(batches(ready, 4, by_length, stop)) == []
