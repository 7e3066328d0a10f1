"""The route of every image, from its input to its row: the one file that knows both ends.

    inputs → rows not done yet → host threads (fetch, decode, process) → batches of one prompt
    length → generate → rows → sink

The model runs in a thread of its own, so that the caller's thread stays free to write rows and to
hear signals. Every queue is bounded: what is upstream waits for the model.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol, TypeVar, cast

from vlbatch.batching import batches
from vlbatch.config import Config
from vlbatch.errors import Interrupted, ModelError, VlbatchError
from vlbatch.host import END, Host, Process, put
from vlbatch.models.loading import LoadedModel, ModelSource, load_model, resolve_device
from vlbatch.models.stub import StubModel
from vlbatch.plan import Asking, Plan, left_out_text, versions
from vlbatch.progress import Progress
from vlbatch.records import (
    CaptionRecord,
    Failure,
    Generation,
    Item,
    ModelInput,
    build_record,
)
from vlbatch.sink import Sink

T = TypeVar("T")

#: Seconds between a stop and leaving a model that does not come back.
GRACE = 1.5

_NUM_RESULTS = 1024


class CaptionModel(Protocol):
    """What captions batches: `ReferenceGenerator`, `StubModel`."""

    def batch_key(self, item: ModelInput) -> Any: ...
    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]: ...


def caption(
    plan: Plan, *, stop: threading.Event, progress: Progress | None = None
) -> Iterator[CaptionRecord]:
    """CaptionModel every input that has no row yet; yields each row once it is written.

    Setting `stop` ends it soon, with the rows safe. Raises `VlbatchError`s. Nothing is loaded
    when every input has its row.
    """
    progress = progress or Progress("none")
    config = plan.config
    device, dtype = ("cpu", "none") if plan.source.is_stub else resolve_device(config)
    with Sink(
        plan.output,
        settings=plan.settings(device_name(device), dtype),
        versions=versions(),
        inputs=plan.inputs.describe(),
        resume_by=plan.resume_by,
        overwrite=config.overwrite,
    ) as sink:
        for notice in sink.notices:
            progress.notice(notice)
        items = sink.pending(itertools.islice(iter(plan.inputs), config.limit))
        first = interruptible(lambda: next(items, None), stop)
        if first is None:
            progress.set_total(sink.skipped, sink.skipped)
        else:
            loaded = interruptible(
                lambda: _load(plan.source, config, device, dtype, progress), stop
            )
            ended = threading.Event()
            threading.Thread(target=_count, args=(plan, sink, progress, ended), daemon=True).start()
            outcomes = run(
                itertools.chain([first], items), plan.source, loaded, config, plan.asking, stop
            )
            try:
                yield from _write(outcomes, plan, sink, progress)
            finally:
                ended.set()
            progress.set_total(progress.counts.total, sink.skipped)
        if plan.inputs.left_out:
            progress.notice(left_out_text(plan.inputs))
        if plan.resume_by == "key" and config.limit is None and not stop.is_set() and sink.vanished:
            progress.notice(f"{sink.vanished} rows of {plan.output} have no input any more; kept.")


def _write(
    outcomes: Generator[list[Generation | Failure]], plan: Plan, sink: Sink, progress: Progress
) -> Iterator[CaptionRecord]:
    rows = RowJoiner(tuple(plan.asking.prompts.templates), plan.save_fields)
    with closing(outcomes):
        for group in outcomes:
            records = [record for outcome in group if (record := rows.add(outcome)) is not None]
            sink.write(records)
            sink.tick()
            progress.set_durable(sink.rows_durable)
            yield from records


def run(
    items: Iterator[Item],
    source: ModelSource,
    loaded: LoadedModel | None,
    config: Config,
    asking: Asking,
    stop: threading.Event,
) -> Generator[list[Generation | Failure]]:
    """The outcomes of `items` as they come, in groups; an empty group now and then when idle.

    Setting `stop`, or leaving the iterator, ends all threads.
    """
    halt = threading.Event()
    process, generator = interruptible(
        lambda: _model_halves(source, loaded, config, asking, halt), stop
    )
    ready: queue.Queue[Any] = queue.Queue(config.chunk_size)
    results: queue.Queue[Any] = queue.Queue(_NUM_RESULTS)
    host = Host(items, process, ready=ready, failed=results, stop=halt)
    chunks = batches(ready, config.chunk_size, generator.batch_key, halt)
    model = threading.Thread(
        target=_generate, args=(generator, chunks, results, halt), name="vlbatch-model", daemon=True
    )
    model.start()
    try:
        yield from _drain(results, stop, halt)
        if host.error is not None and not stop.is_set():
            raise host.error
    finally:
        halt.set()
        _join([model, *host.threads], 0.2 if stop.is_set() else GRACE)


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Waits for threads to end, so that none is inside torch while the interpreter goes down."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _model_halves(
    source: ModelSource,
    loaded: LoadedModel | None,
    config: Config,
    asking: Asking,
    halt: threading.Event,
) -> tuple[Process, CaptionModel]:
    """What runs on the host's threads, and what runs on the model's."""
    if source.is_stub:
        stub = StubModel(asking.prompts)
        return stub.process, stub
    from vlbatch.models.generate import ReferenceGenerator
    from vlbatch.processing import Processing

    assert loaded is not None
    process = Processing(
        loaded.processor, asking.prompts, asking.style, system=asking.system,
        chat_template=asking.chat_template, raw_prompt=asking.raw_prompt,
    )  # fmt: skip
    return process, ReferenceGenerator(loaded, config, halt)


def _generate(
    generator: CaptionModel,
    chunks: Iterator[list[ModelInput]],
    results: queue.Queue[Any],
    halt: threading.Event,
) -> None:
    """The model's thread. Outcomes of a batch that a halt cut short are dropped, not written."""
    try:
        for batch in chunks:
            outcomes = generator.generate(batch)
            if halt.is_set():
                break
            for outcome in outcomes:
                put(results, outcome, halt)
        end: object = END
    except VlbatchError as error:
        end = error
    except BaseException as error:
        end = ModelError(f"the model failed: {type(error).__name__}: {error}")
    if not put(results, end, halt):
        with suppress(queue.Full):  # perhaps nobody listens any more
            results.put_nowait(end)


def _drain(
    results: queue.Queue[Any], stop: threading.Event, halt: threading.Event
) -> Iterator[list[Generation | Failure]]:
    """What is in the queue, as much at a time as is there, until `END` or `GRACE` after a stop."""
    stopped_at: float | None = None
    while True:
        group, end = _take_all(results)
        yield group
        if isinstance(end, BaseException):
            raise end
        if end is END:
            return
        if stop.is_set():
            halt.set()
            stopped_at = stopped_at or time.monotonic()
            if time.monotonic() - stopped_at > GRACE:
                return


def _take_all(results: queue.Queue[Any]) -> tuple[list[Generation | Failure], object]:
    """(outcomes, what ended them): `END`, an exception that ends the run, or None."""
    group: list[Generation | Failure] = []
    try:
        item = results.get(timeout=0.1)
        while isinstance(item, Generation | Failure):
            group.append(item)
            if len(group) == _NUM_RESULTS:
                return group, None
            item = results.get_nowait()
    except queue.Empty:
        return group, None
    return group, item


class RowJoiner:
    """Outcomes → rows: a row is complete with one outcome for each prompt, or with one Failure
    from before the model."""

    def __init__(self, prompt_names: Sequence[str], save_fields: Sequence[str] = ()) -> None:
        self._place = {name: place for place, name in enumerate(prompt_names)}
        self._save_fields = save_fields
        self._partial: dict[int, list[Generation | Failure]] = {}

    def add(self, outcome: Generation | Failure) -> CaptionRecord | None:
        """The row that this outcome completes, if it does."""
        index = outcome.ref.index
        is_whole = isinstance(outcome, Failure) and outcome.stage != "generate"
        parts = [*self._partial.pop(index, ()), outcome]
        if is_whole:
            return build_record([outcome], save_fields=self._save_fields)
        if len(parts) == len(self._place):
            parts.sort(key=lambda part: self._place[part.prompt_name])
            return build_record(parts, save_fields=self._save_fields)
        self._partial[index] = parts
        return None


def _load(
    source: ModelSource, config: Config, device: str, dtype: str, progress: Progress
) -> LoadedModel | None:
    if source.is_stub:
        progress.loaded(0.0, f"{source.name}: names colours, no model is loaded")
        return None
    if source.is_demo:
        progress.notice(
            "demo model: it knows drawn scenes only and is not a photo captioner; "
            "-m MODEL takes a real one (-m HuggingFaceTB/SmolVLM-256M-Instruct)."
        )
    progress.loading(f"loading {source.name} on {device}")
    start = time.monotonic()
    loaded = load_model(source, config, device, dtype)
    progress.loaded(
        time.monotonic() - start, f"{source.name} on {device_name(device)}, {loaded.dtype}"
    )
    return loaded


def interruptible(task: Callable[[], T], stop: threading.Event) -> T:
    """The result of `task`, run in a thread of its own so that a stop need not wait for it.

    Raises what the task raises, and `Interrupted` once `stop` is set.
    """
    done: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(1)

    def work() -> None:
        try:
            done.put((task(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=work, name="vlbatch-task", daemon=True).start()
    while not stop.is_set():
        try:
            result, error = done.get(timeout=0.1)
        except queue.Empty:
            continue
        if error is not None:
            raise error
        return cast(T, result)
    raise Interrupted("interrupted")


def _count(plan: Plan, sink: Sink, progress: Progress, ended: threading.Event) -> None:
    """Finds the number of inputs by a second pass, for the ETA."""
    try:
        total = plan.inputs.count(ended)
    except Exception:  # the reading of the run itself will say it
        return
    if total is not None:
        total = min(total, plan.config.limit or total)
        progress.set_total(total, min(sink.rows_before, total))


def device_name(device: str) -> str:
    """The device as captions know it: a GPU by its type, since types differ in rounding."""
    if not device.startswith("cuda"):
        return device
    import torch

    return torch.cuda.get_device_name(device)
