"""`vlbatch caption`: INPUT… → rows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from vlbatch.cli.options import GroupedCommand, config_options, make_config
from vlbatch.cli.talk import say

if TYPE_CHECKING:
    from vlbatch.plan import Plan
    from vlbatch.progress import Progress


@click.command(cls=GroupedCommand, no_args_is_help=False)
@config_options
def caption(inputs: tuple[str, ...], **options: Any) -> None:
    """Caption images: INPUT is files, folders, globs, lists (.txt .csv .tsv .jsonl, .gz too),
    http(s) URLs, or - for stdin; the rows go to -o as JSONL.

    The same command again goes on where it stopped.
    """
    config = make_config(inputs, options)
    from vlbatch.plan import plan

    planned = plan(config)
    if config.dry_run:
        from vlbatch.dryrun import dry_run

        for line in dry_run(planned):
            click.echo(line)
        return
    sys.exit(_run(planned))


def _run(plan: Plan) -> int:
    """Runs the plan with progress on stderr; returns the exit code."""
    from vlbatch import pipeline
    from vlbatch.errors import Interrupted, VlbatchError
    from vlbatch.progress import Progress

    config = plan.config
    with _signals(plan) as stop, Progress(config.progress) as progress:
        try:
            for record in pipeline.caption(plan, stop=stop, progress=progress):
                progress.add(record)
        except BrokenPipeError:
            os._exit(0)  # the reader of stdout has what it wanted; as head(1) expects
        except VlbatchError as error:
            message, code = str(error), error.exit_code
            if isinstance(error, Interrupted):
                message = _how_to_go_on(plan)
            _leave(plan, progress, message, code)
        if stop.is_set():
            _leave(plan, progress, _how_to_go_on(plan), Interrupted.exit_code)
    say(progress.summary(plan.output))
    return 1 if config.strict and progress.counts.failed else 0


def _leave(plan: Plan, progress: Progress, message: str, code: int) -> NoReturn:
    """Says how the run ended and exits, without waiting for a model that does not come back."""
    progress.close()
    if progress.counts.done or progress.counts.failed:
        say(progress.summary(plan.output))
    say(f"vlbatch: {message}")
    _exit_at_once(code)


def _how_to_go_on(plan: Plan) -> str:
    if plan.output == "-":
        return "interrupted; rows written to stdout are complete, and -o - can't be resumed."
    by_key = plan.inputs.has_stdin and plan.config.resume_by != "key"
    again = "The same command with --resume-by key" if by_key else "The same command"
    return f"interrupted; every row in {plan.output} is complete. {again} goes on."


def _exit_at_once(code: int) -> NoReturn:
    """Exits without waiting for threads."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    os._exit(code)


@contextmanager
def _signals(plan: Plan) -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGUSR1 set; the second one leaves at once."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            say(f"vlbatch: {_how_to_go_on(plan)}")
            _exit_at_once(130)
        stop.set()

    names = [name for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), handle) for name in names}
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
