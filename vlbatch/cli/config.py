"""`vlbatch config show`: every setting, its value and where it comes from."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from vlbatch.cli.options import GroupedCommand, config_options, env_name, make_config
from vlbatch.config import schema


@click.group()
def config() -> None:
    """Look at settings."""


@config.command(cls=GroupedCommand)
@config_options
@click.pass_context
def show(ctx: click.Context, /, inputs: tuple[str, ...], **options: Any) -> None:
    """Print each setting with its source: flag, VLBATCH_* variable, config file or default.

    Takes the options of `vlbatch caption`. What it prints is itself a config file.
    """
    settings = make_config(inputs, options)
    if settings.inputs:
        click.echo(_line("inputs", list(settings.inputs), _source(ctx, "inputs")))
    for name, _, _ in schema():
        click.echo(_line(name.replace("_", "-"), getattr(settings, name), _source(ctx, name)))


def _line(name: str, value: Any, source: str) -> str:
    value = list(value) if isinstance(value, tuple) else value
    text = "null" if value in (None, []) else json.dumps(value, ensure_ascii=False)
    return f"{f'{name}: {text}':<44}  # {source}"


def _source(ctx: click.Context, name: str) -> str:
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        return "flag" if name != "inputs" else "argument"
    if source is ParameterSource.ENVIRONMENT:
        return env_name(name)
    if source is ParameterSource.DEFAULT_MAP:
        return str(ctx.meta["vlbatch.lines"][name])
    return "default"
