"""What a run says on stderr while it works: counts, rate, time left, how full the stages are.

Three displays of the same `Counts`: rich's live one on a terminal, one log line every 30 s
elsewhere, one JSON object a line for programs. A stderr that is closed or full never ends a run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from vlbatch.displays import (
    OTHER,
    Mode,
    clock_text,
    json_line,
    kinds,
    one_line,
    open_display,
    pick_mode,
)
from vlbatch.records import CaptionRecord

MAX_ERROR_KINDS = 50
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a run is.

    done, failed: rows of this run with a caption, with an error. skipped: rows done before.
    total: inputs in all, the skipped among them; None while unknown.
    seconds: since the model was loaded. rate: rows (done and failed) a second since then.
    eta: seconds left at the pace of the last minute, by rows on disk where that is known.
    errors: rows by "stage.code", at most 50 kinds and "other". stages: fill of queues, 0 to 1.
    """

    done: int = 0
    failed: int = 0
    skipped: int = 0
    total: int | None = None
    seconds: float = 0.0
    rate: float = 0.0
    eta: float | None = None
    output_tokens: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)


class Progress:
    """Counts rows and shows them on `stream` (stderr).

    mode: `rich` a live display; `plain` one line each `interval` seconds, also while nothing
        finishes; `json` the same as objects {"event": "loading" | "loaded" | "progress" |
        "notice" | "summary", …}; `none` nothing but notices; `auto` rich on a terminal that can
        move its cursor (TERM is not dumb), else plain. NO_COLOR turns off colour alone.

    A context manager; `add`, `stages` and the like are for one thread, `counts` for any.
    """

    def __init__(
        self,
        mode: Mode,
        *,
        stream: TextIO | None = None,
        interval: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        self.mode = pick_mode(stream) if mode == "auto" else mode
        self._clock = clock
        self._loaded_at = clock()
        self._done = self._failed = self._skipped = self._output_tokens = 0
        self._total: int | None = None
        self._durable: int | None = None
        self._errors: Counter[str] = Counter()
        self._stages: Mapping[str, float] = {}
        self._loading: tuple[str, float] | None = None  # what, since when
        self._pace = _Pace(self._loaded_at)
        self._display = open_display(self.mode, stream, interval, self._state)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def loading(self, text: str) -> None:
        """Says that something slow has begun, such as loading a model."""
        self._loading = one_line(text), self._clock()
        self._display.show(*self._state())

    def loaded(self, seconds: float, text: str) -> None:
        """Says that it ended; the clock of `rate` starts."""
        self._loading = None
        self._loaded_at = self._clock()
        self._pace = _Pace(self._loaded_at)
        self._display.show("loaded", {"text": one_line(text), "seconds": round(seconds, 3)})

    def set_total(self, total: int | None, skipped: int) -> None:
        """Sets how many inputs there are in all (None: unknown), and how many were done before."""
        self._total, self._skipped = total, skipped

    def set_durable(self, rows: int) -> None:
        """Sets how many rows of this run are on disk; time left goes by these."""
        self._durable = rows
        self._pace.add(self._clock(), rows)

    def stages(self, fill: Mapping[str, float]) -> None:
        """Sets how full the queue before each stage is, from 0 to 1."""
        self._stages = dict(fill)

    def add(self, record: CaptionRecord) -> None:
        """Counts a row."""
        if record.error is None:
            self._done += 1
            if record.tokens is not None:
                self._output_tokens += _num_output(record.tokens)
            return
        self._failed += 1
        kind = f"{record.error['stage']}.{record.error['code']}"
        known = kind in self._errors or len(self._errors) < MAX_ERROR_KINDS
        self._errors[kind if known else OTHER] += 1

    def notice(self, text: str) -> None:
        """Prints a line, above the live display if there is one."""
        self._display.show("notice", {"text": one_line(text)})

    @property
    def counts(self) -> Counts:
        """The state now."""
        now = self._clock()
        finished = self._done + self._failed
        seconds = now - self._loaded_at
        durable = finished if self._durable is None else self._durable
        eta = None
        if self._total is not None:
            self._pace.add(now, durable)
            num_left = self._total - self._skipped - durable
            eta = self._pace.time_for(num_left, now, durable)
            if eta is None and finished:  # nothing is on disk yet
                eta = num_left * seconds / finished
        return Counts(
            done=self._done, failed=self._failed, skipped=self._skipped, total=self._total,
            seconds=seconds, rate=finished / seconds if seconds > 0 else 0.0, eta=eta,
            output_tokens=self._output_tokens, errors=dict(self._errors), stages=self._stages,
        )  # fmt: skip

    def summary(self, output: str) -> str:
        """The closing line of a run that wrote to `output`, for the caller to print on stderr.

        A JSON object in mode `json`, empty in mode `none`.
        """
        if self.mode == "none":
            return ""
        counts, name = self.counts, "stdout" if output == "-" else one_line(output)
        text = _summary(counts, name)
        if self.mode == "json":
            return json_line("summary", {"output": output, "text": text} | _facts(counts))
        return text

    def close(self) -> None:
        """Takes the live display away, ends the log lines."""
        self._display.close()

    def _state(self) -> tuple[str, dict[str, Any]]:
        """The event that tells how things are now."""
        if (loading := self._loading) is None:
            return "progress", _facts(self.counts)
        text, since = loading
        return "loading", {"text": text, "seconds": round(self._clock() - since, 3)}


class _Pace:
    """Rows a second over the last minute, from points at least a second apart."""

    def __init__(self, now: float) -> None:
        self._points = deque([(now, 0)])
        self._lock = threading.Lock()

    def add(self, now: float, rows: int) -> None:
        with self._lock:
            if now - self._points[-1][0] < 1.0:
                return
            self._points.append((now, rows))
            while len(self._points) > 2 and self._points[1][0] < now - _WINDOW_SECONDS:
                self._points.popleft()

    def time_for(self, num_left: int, now: float, rows: int) -> float | None:
        """Seconds that `num_left` more rows take; None when nothing moves."""
        if num_left <= 0:
            return 0.0
        since, rows_then = self._points[0]
        return num_left * (now - since) / (rows - rows_then) if rows > rows_then else None


def _facts(counts: Counts) -> dict[str, Any]:
    facts = asdict(counts)
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in facts.items()}


def _num_output(tokens: Mapping[str, Any]) -> int:
    """Output tokens of a row, over all of its prompts."""
    output = tokens.get("output")
    if isinstance(output, int):
        return output
    return sum(of_prompt["output"] for of_prompt in tokens.values())


def _summary(counts: Counts, output: str) -> str:
    parts = [f"{counts.done:,} captioned"]
    if counts.failed:
        parts.append(f"{counts.failed:,} failed ({kinds(counts.errors)})")
    if counts.skipped:
        parts.append(f"{counts.skipped:,} done before")
    line = f"{', '.join(parts)} → {output} in {_duration(counts.seconds)}"
    return line + (f" ({counts.rate:.1f} images/s)" if counts.rate else "")


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else clock_text(seconds)
