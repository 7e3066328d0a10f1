"""How progress is shown: lines in a log, JSON objects, or rich's live display.

A display gets events and facts, never the run itself. A stderr that is closed or full never ends
a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, cast

if TYPE_CHECKING:
    from rich.console import RenderableType

Mode = Literal["auto", "rich", "plain", "json", "none"]

OTHER = "other"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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


#: Gives the event and facts of now.
State = Callable[[], tuple[str, dict[str, Any]]]


class Display(Protocol):
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
            f"eta {clock_text(facts['eta'])}",
        )
        lines = [
            "  ".join(f"{name} {fill:.0%}" for name, fill in facts["stages"].items()),
            kinds(facts["errors"]),
        ]
        return Group(head, *(Text(line, style="dim") for line in lines if line))


def open_display(mode: Mode, stream: TextIO, interval: float, state: State) -> Display:
    if mode == "rich":
        return _Live(stream, state)
    line = {"plain": _plain_line, "json": json_line, "none": _notice_line}[mode]
    every = None if mode == "none" else interval
    return _Log(cast(TextIO, _Unbreakable(stream)), line, every, state)


def pick_mode(stream: TextIO) -> Mode:
    try:
        live = stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # absent, closed
        live = False
    return "rich" if live else "plain"


def json_line(event: str, facts: Mapping[str, Any]) -> str:
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
    pace = [f"{facts['rate']:.1f} images/s", f"eta={clock_text(facts['eta'])}"]
    return " ".join([now, *numbers, *pace, *fills])


def _loaded_text(facts: Mapping[str, Any]) -> str:
    return f"{facts['text']} ({facts['seconds']:.1f} s)"


def _loading_text(facts: Mapping[str, Any]) -> str:
    return f"{facts['text']} …" + (f" {facts['seconds']:.0f} s" if facts["seconds"] >= 1 else "")


def kinds(errors: Mapping[str, int], shown: int = 5) -> str:
    """`fetch.timeout 22, decode.truncated 9`: the most frequent, the rest as `other`."""
    ranked = sorted((kind for kind in errors if kind != OTHER), key=lambda k: -errors[k])
    rest = errors.get(OTHER, 0) + sum(errors[kind] for kind in ranked[shown:])
    texts = [f"{kind} {errors[kind]:,}" for kind in ranked[:shown]]
    return ", ".join(texts + [f"{OTHER} {rest:,}"] * bool(rest))


def clock_text(seconds: float | None) -> str:
    """`1:02:03`, or `?` for None."""
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def one_line(text: str) -> str:
    """`text` without control characters: names of files may hold some."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.strip())
