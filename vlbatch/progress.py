"""What a run says on stderr while it works: counts, rate, time left, how full the stages are.

Three displays of the same `Counts`: rich's live one on a terminal, one log line every 30 s
elsewhere, one JSON object a line for programs. A stderr that is closed or full never ends a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, cast

from vlbatch.records import CaptionRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

Mode = Literal["auto", "rich", "plain", "json", "none"]

MAX_ERROR_KINDS = 50
OTHER = "other"
_WINDOW_SECONDS = 60.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
        self.mode = _pick_mode(stream) if mode == "auto" else mode
        self._clock = clock
        self._loaded_at = clock()
        self._done = self._failed = self._skipped = self._output_tokens = 0
        self._total: int | None = None
        self._durable: int | None = None
        self._errors: Counter[str] = Counter()
        self._stages: Mapping[str, float] = {}
        self._loading: tuple[str, float] | None = None  # what, since when
        self._pace = _Pace(self._loaded_at)
        self._display = _open_display(self.mode, stream, interval, self._state)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def loading(self, text: str) -> None:
        """Says that something slow has begun, such as loading a model."""
        self._loading = _one_line(text), self._clock()
        self._display.show(*self._state())

    def loaded(self, seconds: float, text: str) -> None:
        """Says that it ended; the clock of `rate` starts."""
        self._loading = None
        self._loaded_at = self._clock()
        self._pace = _Pace(self._loaded_at)
        self._display.show("loaded", {"text": _one_line(text), "seconds": round(seconds, 3)})

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
        self._display.show("notice", {"text": _one_line(text)})

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
            eta = self._pace.time_for(self._total - self._skipped - durable, now, durable)
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
        counts, name = self.counts, "stdout" if output == "-" else _one_line(output)
        text = _summary(counts, name)
        if self.mode == "json":
            return _json_line("summary", {"output": output, "text": text} | _facts(counts))
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


class _Unbreakable:
    """A text stream whose failures don't matter: nobody may be there to read.

    `sys.stderr` is None in a process that was started without one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


State = Callable[[], tuple[str, dict[str, Any]]]


class _Display(Protocol):
    def show(self, event: str, facts: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class _Log:
    """Lines: each event as `line` puts it ("" for none), the state every `interval` seconds.

    Without an interval there is no thread, and nothing to close.
    """

    def __init__(
        self,
        stream: TextIO,
        line: Callable[[str, Mapping[str, Any]], str],
        interval: float | None,
        state: State,
    ) -> None:
        self._stream = stream
        self._line = line
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None
        if interval is not None:
            self._ticker = threading.Thread(
                target=self._tick, args=(interval, state), name="vlbatch-progress", daemon=True
            )
            self._ticker.start()

    def show(self, event: str, facts: Mapping[str, Any]) -> None:
        if line := self._line(event, facts):
            self._stream.write(line + "\n")
            self._stream.flush()

    def close(self) -> None:
        self._closed.set()
        if self._ticker is not None:
            self._ticker.join(1.0)  # no line after the summary; a stuck stderr is not waited for

    def _tick(self, interval: float, state: State) -> None:
        while not self._closed.wait(interval):
            self.show(*state())


class _Live:
    """rich's live display, drawn four times a second from the state."""

    def __init__(self, stream: TextIO, state: State) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=cast(TextIO, _Unbreakable(stream)), force_terminal=True)
        self._state = state
        self._live = Live(
            console=console, get_renderable=self._render, transient=True,
            redirect_stdout=False, redirect_stderr=stream is sys.stderr,
        )  # fmt: skip
        self._live.start()

    def show(self, event: str, facts: Mapping[str, Any]) -> None:
        from rich.text import Text

        if event == "loaded":
            self._live.console.print(Text(_loaded_text(facts), style="dim"))
        elif event == "notice":
            self._live.console.print(Text(facts["text"]), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        event, facts = self._state()
        if event == "loading":
            return Text(_loading_text(facts))
        finished = facts["done"] + facts["failed"] + facts["skipped"]
        total = facts["total"]
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=total, completed=finished, width=24, pulse=total is None),
            f"{finished:,}" + ("" if total is None else f"/{total:,}"),
            Text(f"{facts['failed']:,} failed", style="red" if facts["failed"] else "dim"),
            f"{facts['rate']:.1f} images/s",
            f"eta {_clock_text(facts['eta'])}",
        )
        lines = [
            "  ".join(f"{name} {fill:.0%}" for name, fill in facts["stages"].items()),
            _kinds(facts["errors"]),
        ]
        return Group(head, *(Text(line, style="dim") for line in lines if line))


def _open_display(mode: Mode, stream: TextIO, interval: float, state: State) -> _Display:
    if mode == "rich":
        return _Live(stream, state)
    line = {"plain": _plain_line, "json": _json_line, "none": _notice_line}[mode]
    every = None if mode == "none" else interval
    return _Log(cast(TextIO, _Unbreakable(stream)), line, every, state)


def _pick_mode(stream: TextIO) -> Mode:
    try:
        live = stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # absent, closed
        live = False
    return "rich" if live else "plain"


def _json_line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, "time": round(time.time(), 3)} | dict(facts))


def _notice_line(event: str, facts: Mapping[str, Any]) -> str:
    return str(facts["text"]) if event == "notice" else ""


def _plain_line(event: str, facts: Mapping[str, Any]) -> str:
    now = time.strftime("%H:%M:%S")
    if event == "notice":
        return str(facts["text"])
    if event == "loading":
        return f"{now} {_loading_text(facts)}"
    if event == "loaded":
        return f"{now} {_loaded_text(facts)}"
    shown = ("done", "failed", "skipped", "total")
    numbers = [f"{name}={facts[name]}" for name in shown if facts[name] is not None]
    fills = [f"{name}={fill:.2f}" for name, fill in facts["stages"].items()]
    pace = [f"{facts['rate']:.1f} images/s", f"eta={_clock_text(facts['eta'])}"]
    return " ".join([now, *numbers, *pace, *fills])


def _loaded_text(facts: Mapping[str, Any]) -> str:
    return f"{facts['text']} ({facts['seconds']:.1f} s)"


def _loading_text(facts: Mapping[str, Any]) -> str:
    return f"{facts['text']} …" + (f" {facts['seconds']:.0f} s" if facts["seconds"] >= 1 else "")


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
        parts.append(f"{counts.failed:,} failed ({_kinds(counts.errors)})")
    if counts.skipped:
        parts.append(f"{counts.skipped:,} done before")
    line = f"{', '.join(parts)} → {output} in {_duration(counts.seconds)}"
    return line + (f" ({counts.rate:.1f} images/s)" if counts.rate else "")


def _kinds(errors: Mapping[str, int], shown: int = 5) -> str:
    """`fetch.timeout 22, decode.truncated 9`: the most frequent, the rest as `other`."""
    ranked = sorted((kind for kind in errors if kind != OTHER), key=lambda k: -errors[k])
    rest = errors.get(OTHER, 0) + sum(errors[kind] for kind in ranked[shown:])
    texts = [f"{kind} {errors[kind]:,}" for kind in ranked[:shown]]
    return ", ".join(texts + [f"{OTHER} {rest:,}"] * bool(rest))


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else _clock_text(seconds)


def _clock_text(seconds: float | None) -> str:
    """`1:02:03`, or `?` for None."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def _one_line(text: str) -> str:
    """`text` without control characters: names of files may hold some."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.strip())
