"""The host side: threads that bring each item through fetch, decode and the model's processor.

Many threads may wait for a disk or a server; only a few at a time decode and process, so that the
model's thread keeps its core. All queues are bounded: the threads stop when the model is behind.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from vlbatch.fetch import Fetcher
from vlbatch.images import decode
from vlbatch.records import DecodedImage, Failure, ImageBytes, ImageRef, Item, ModelInput

#: Marks the end of a queue.
END = object()

NUM_FETCH_THREADS = 16

Process = Callable[[DecodedImage], list[ModelInput | Failure]]


class Host:
    """Threads from `items` to the queues.

    ready: takes each `ModelInput`; failed: takes each `Failure` (one for an image, whatever the
    number of prompts). `ready` gets `END` after the last item. Setting `stop` ends the threads; an
    item in their hands is dropped.
    error: what `items` raised, if it did; the items before it come to their end all the same.
    """

    def __init__(
        self,
        items: Iterator[Item],
        process: Process,
        *,
        ready: queue.Queue[Any],
        failed: queue.Queue[Any],
        stop: threading.Event,
        num_decode_threads: int | None = None,
    ) -> None:
        self._items = items
        self._process = process
        self._ready = ready
        self._failed = failed
        self._stop = stop
        self._fetcher = Fetcher()
        self._next = threading.Lock()
        self._cores = threading.BoundedSemaphore(num_decode_threads or max(1, usable_cores() - 1))
        self._running = NUM_FETCH_THREADS
        self.error: BaseException | None = None
        self.threads = [
            threading.Thread(target=self._work, name=f"vlbatch-host-{number}", daemon=True)
            for number in range(NUM_FETCH_THREADS)
        ]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set() and (item := self._take()) is not None:
                for result in self._prepare(item):
                    put(self._failed if isinstance(result, Failure) else self._ready, result,
                        self._stop)  # fmt: skip
        except BaseException as error:  # the source broke: the run can't be complete
            self.error = self.error or error
        finally:
            self._leave()

    def _take(self) -> Item | None:
        with self._next:
            return next(self._items, None)

    def _leave(self) -> None:
        with self._next:
            self._running -= 1
            is_last = self._running == 0
        if is_last:
            self._fetcher.close()
            put(self._ready, END, self._stop)

    def _prepare(self, item: Item) -> list[ModelInput] | list[Failure]:
        """The inputs of one item for all prompts, or its one Failure. Never raises."""
        try:
            results = self._stages(item)
        except Exception as error:
            ref = item if isinstance(item, ImageRef) else item.ref
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            results = [Failure(ref, "process", "internal_error", text)]
        inputs = [result for result in results if isinstance(result, ModelInput)]
        failures = [result for result in results if isinstance(result, Failure)]
        return failures[:1] or inputs

    def _stages(self, item: Item) -> list[ModelInput | Failure]:
        if isinstance(item, ImageRef):
            item = self._fetcher.fetch(item)
        with self._cores:
            if isinstance(item, ImageBytes):
                item = decode(item)
            if isinstance(item, DecodedImage):
                return self._process(item)
        assert isinstance(item, Failure)
        return [item]


def put(target: queue.Queue[Any], item: object, stop: threading.Event) -> bool:
    """Put into a bounded queue, waiting for room; False if `stop` was set first."""
    while not stop.is_set():
        try:
            target.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
