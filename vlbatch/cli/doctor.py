"""`vlbatch doctor`: the checks in a table, or as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check this machine: versions, devices, memory, kernels, the model hub, a self-test.

    Exits with 1 when a check failed.
    """
    from vlbatch.doctor import run_checks

    if as_json:
        checks = list(run_checks())
        failed = any(check.state == "fail" for check in checks)
        found = [dataclasses.asdict(check) for check in checks]
        click.echo(json.dumps({"ok": not failed, "checks": found}, indent=2, ensure_ascii=False))
    else:
        failed = _print_table()
    sys.exit(1 if failed else 0)


def _print_table() -> bool:
    from rich.console import Console
    from rich.table import Table

    from vlbatch.doctor import run_checks

    table = Table("check", "state", "found", show_edge=False, pad_edge=False)
    colours = {"ok": "green", "note": "yellow", "fail": "red"}
    failed = False
    for check in run_checks():
        failed |= check.state == "fail"
        state = f"[{colours[check.state]}]{check.state}[/]"
        table.add_row(check.name, state, check.detail.replace("[", r"\["))
    Console().print(table)
    return failed
