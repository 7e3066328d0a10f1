from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import vlbatch
from vlbatch.progress import MAX_ERROR_KINDS, Counts, Progress
from vlbatch.records import CaptionRecord

CAPTIONED = CaptionRecord(0, "k", "u", caption="a", tokens={"image": 9, "prompt": 12, "output": 5})
CAPTIONED_TWICE = CaptionRecord(
    0, "k", "u", captions={"a": "x", "output": "y"},
    tokens={"a": {"image": 1, "prompt": 2, "output": 3}, "output": {"output": 4}},
)  # fmt: skip


def failed(stage: str = "fetch", code: str = "timeout") -> CaptionRecord:
    return CaptionRecord(0, "k", "u", error={"stage": stage, "code": code, "message": "m"})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def start(mode: Any = "none", stream: Any = None, **options: Any) -> tuple[Progress, Clock]:
    clock = Clock()
    progress = Progress(mode, stream=stream or io.StringIO(), clock=clock, **options)
    return progress, clock


def test_rows_tokens_and_errors_are_counted() -> None:
    progress, clock = start()
    progress.loaded(3.0, "model")
    progress.set_total(10, 2)
    for row in (CAPTIONED, CAPTIONED_TWICE, failed(), failed(), failed("decode", "truncated")):
        progress.add(row)
    progress.stages({"fetch": 0.5})
    clock.now += 2
    assert progress.counts == Counts(
        done=2, failed=3, skipped=2, total=10, seconds=2.0, rate=2.5, eta=1.2, output_tokens=12,
        errors={"fetch.timeout": 2, "decode.truncated": 1}, stages={"fetch": 0.5},
    )  # fmt: skip


def test_loading_is_not_counted_in_the_rate() -> None:
    progress, clock = start()
    progress.loading("model")
    clock.now += 100
    progress.loaded(100, "model")
    assert progress.counts.rate == 0.0
    progress.add(CAPTIONED)
    clock.now += 4
    assert progress.counts.rate == 0.25


def test_kinds_of_errors_are_bounded() -> None:
    progress, _ = start()
    for i in range(200):
        progress.add(failed("fetch", str(i)))
    progress.add(failed("fetch", "0"))
    errors = progress.counts.errors
    assert len(errors) == MAX_ERROR_KINDS + 1
    assert (errors["fetch.0"], errors["other"]) == (2, 200 - MAX_ERROR_KINDS)


def test_time_left_goes_by_the_last_minute() -> None:
    progress, clock = start()
    progress.loaded(0, "")
    progress.set_total(1000, 0)
    assert progress.counts.eta is None
    for second in range(1, 121):  # 1 row/s, then 5 rows/s
        clock.now += 1
        progress.set_durable(second if second <= 60 else 60 + 5 * (second - 60))
    assert progress.counts.eta == pytest.approx((1000 - 360) / 5, rel=0.05)
    clock.now += 60  # it stalls: longer and longer
    assert progress.counts.eta > 200  # type: ignore[operator]
    clock.now += 600
    assert progress.counts.eta is None
    progress.set_durable(1000)
    assert progress.counts.eta == 0


def test_without_a_total_no_time_left_is_claimed() -> None:
    progress, clock = start()
    progress.set_total(None, 5)
    progress.add(CAPTIONED)
    clock.now += 10
    assert progress.counts.eta is None


def test_the_summary_reads_as_documented() -> None:
    progress, clock = start("plain")
    progress.loaded(1, "model")
    progress.set_total(1735, 500)
    for _ in range(1204):
        progress.add(CAPTIONED)
    for kind, count in (("decode.truncated", 9), ("fetch.timeout", 22)):
        for _ in range(count):
            progress.add(failed(*kind.split(".")))
    clock.now += 12.3
    assert progress.summary("captions.jsonl") == (
        "1,204 captioned, 31 failed (fetch.timeout 22, decode.truncated 9), 500 done before "
        "→ captions.jsonl in 12.3 s (100.4 images/s)"
    )
    progress.close()


def test_the_summary_of_nothing_and_of_much() -> None:
    progress, clock = start("plain")
    clock.now += 3723
    assert progress.summary("-") == "0 captioned → stdout in 1:02:03"
    for i in range(7):
        progress.add(failed("fetch", str(i)))
    assert "7 failed (fetch.0 1, fetch.1 1, fetch.2 1, fetch.3 1, fetch.4 1, other 2)" in (
        progress.summary("-")
    )
    progress.close()


def wait_for(stream: io.StringIO, text: str) -> str:
    deadline = time.monotonic() + 10
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.005)
    return stream.getvalue()


def test_plain_lines_come_also_when_nothing_finishes() -> None:
    stream = io.StringIO()
    progress, clock = start("plain", stream, interval=0.01)
    with progress:
        progress.loading("loading demo")
        clock.now += 7
        wait_for(stream, "loading demo … 7 s\n")
        progress.loaded(7.04, "demo on cpu")
        progress.set_total(100, 50)
        progress.stages({"fetch": 0.25, "host": 1})
        progress.add(CAPTIONED)
        progress.add(failed())
        clock.now += 2
        text = wait_for(stream, "1.0 images/s")
        progress.notice("something odd\n")
    length = len(stream.getvalue())
    lines = text.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d loading demo …", lines[0])
    assert any(re.fullmatch(r"\d\d:\d\d:\d\d demo on cpu \(7\.0 s\)", line) for line in lines)
    assert re.search(
        r"^\d\d:\d\d:\d\d done=1 failed=1 skipped=50 total=100 1\.0 images/s eta=0:00:48 "
        r"fetch=0\.25 host=1\.00$", text, re.M,
    )  # fmt: skip
    assert "\nsomething odd\n" in stream.getvalue()
    assert "\r" not in stream.getvalue()
    time.sleep(0.05)
    assert len(stream.getvalue()) == length, "lines after close"


def test_json_is_one_object_a_line() -> None:
    stream = io.StringIO()
    progress, _ = start("json", stream, interval=0.01)
    with progress:
        progress.loading("demo")
        progress.loaded(1.5, "demo")
        progress.add(failed())
        progress.notice("odd ☃")
        wait_for(stream, '"progress"')
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {e["event"] for e in events} == {"loading", "loaded", "notice", "progress"}
    by_name = {e["event"]: e for e in events}
    assert by_name["loaded"]["seconds"] == 1.5
    assert by_name["notice"]["text"] == "odd ☃"
    assert by_name["progress"].keys() >= {"done", "failed", "total", "eta", "rate", "stages"}
    summary = json.loads(progress.summary("out.jsonl"))
    assert (summary["event"], summary["output"], summary["failed"]) == ("summary", "out.jsonl", 1)
    assert summary["errors"] == {"fetch.timeout": 1}


def test_none_says_nothing_but_notices() -> None:
    stream = io.StringIO()
    threads = threading.active_count()
    progress, _ = start("none", stream, interval=0.001)
    assert threading.active_count() == threads
    with progress:
        progress.loading("demo")
        progress.loaded(1.5, "demo")
        time.sleep(0.02)
        progress.notice("odd")
    assert stream.getvalue() == "odd\n"
    assert progress.summary("out.jsonl") == ""


@pytest.mark.parametrize("mode", ["plain", "json", "rich", "none"])
def test_control_characters_do_not_reach_the_terminal(mode: str) -> None:
    stream = io.StringIO()
    with Progress(mode, stream=stream) as progress:  # type: ignore[arg-type]
        progress.notice("evil\x1b]0;title\x07\r\n[bold]name")
    assert "\x1b]0" not in stream.getvalue()
    assert "[bold]name" in stream.getvalue(), "no markup is read into a notice"


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("mode", ["plain", "json", "rich", "none"])
@pytest.mark.parametrize("kind", ["broken", "closed"])
def test_a_lost_stderr_ends_nothing(mode: Any, kind: str) -> None:
    stream = Broken() if kind == "broken" else io.StringIO()
    with Progress(mode, stream=stream, interval=0.01) as progress:
        stream.close() if kind == "closed" else None
        progress.loading("demo")
        progress.loaded(1, "demo")
        progress.add(CAPTIONED)
        progress.notice("odd")
        time.sleep(0.05)
    assert progress.counts.done == 1


@pytest.mark.parametrize("mode", ["auto", "plain", "json", "rich", "none"])
def test_a_process_without_stderr_goes_on(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(mode) as progress:
        progress.loading("demo")
        progress.loaded(1, "demo")
        progress.notice("odd")


@pytest.mark.parametrize(
    ("stream", "term", "mode"),
    [
        (Terminal(), "xterm", "rich"),
        (Terminal(), "dumb", "plain"),
        (io.StringIO(), "xterm", "plain"),
    ],
)
def test_auto_looks_at_the_terminal(
    stream: io.StringIO, term: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with Progress("auto", stream=stream) as progress:
        assert progress.mode == mode


def test_a_closed_stderr_is_plain() -> None:
    stream = io.StringIO()
    stream.close()
    with Progress("auto", stream=stream) as progress:
        assert progress.mode == "plain"


ON_A_TERMINAL = """
import sys, time
from vlbatch.progress import Progress
from vlbatch.records import CaptionRecord

with Progress("auto") as progress:
    progress.loading("loading demo")
    time.sleep(0.3)
    progress.loaded(0.3, "demo on cpu")
    progress.set_total(40, 10)
    progress.stages({"fetch": 0.25})
    for i in range(20):
        error = {"stage": "fetch", "code": "timeout"} if i % 5 == 0 else None
        progress.add(CaptionRecord(i, "k", "u", error=error))
    time.sleep(0.6)
    progress.notice("something odd")
    print("from elsewhere", file=sys.stderr)
    print("a row")
print(progress.summary("captions.jsonl"), file=sys.stderr)
"""


def on_a_terminal(**env: str) -> tuple[str, str]:
    """(stdout, what a terminal as stderr got)."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", ON_A_TERMINAL],
        env=os.environ | {"PYTHONPATH": str(Path(vlbatch.__file__).parents[1]), "TERM": "xterm",
                          "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"} | env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0, shown.decode()
    return out.decode(), shown.decode()


def test_a_terminal_gets_a_live_display() -> None:
    out, shown = on_a_terminal()
    assert out == "a row\n"
    for text in ("30/40", "4 failed", "fetch 25%", "fetch.timeout 4", "loading demo …"):
        assert text in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for line in ("demo on cpu (0.3 s)", "something odd", "from elsewhere"):
        assert re.search(rf"(^|\r|\n|\x1b\[[0-9;?]*\w){re.escape(line)}[^\r\n]*\r\n", shown), line
    assert "\x1b[2K" in shown, "the display is taken away"
    assert "\x1b[?25h" in shown, "the cursor comes back"
    last = shown.rstrip().splitlines()[-1]
    assert "16 captioned, 4 failed (fetch.timeout 4), 10 done before → captions.jsonl" in last


def test_no_color_turns_off_colour_alone() -> None:
    _, shown = on_a_terminal(NO_COLOR="1")
    assert "30/40" in shown
    assert not re.search(r"\x1b\[(\d+;)*3\d(;\d+)*m", shown)


def test_a_dumb_terminal_gets_lines() -> None:
    _, shown = on_a_terminal(TERM="dumb")
    assert "\x1b" not in shown


def test_rich_is_imported_only_to_be_shown() -> None:
    code = (
        "import sys, io; from vlbatch.progress import Progress; "
        "Progress('plain', stream=io.StringIO()).close(); print('rich' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(vlbatch.__file__).parents[1])}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert said == "False\n"
