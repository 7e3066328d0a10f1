"""The fields of `Config` as click options, with their environment variables and help sections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

import click

from vlbatch.cli.configfile import load_config_file
from vlbatch.cli.talk import say
from vlbatch.config import Config, Option, choices, defaults, schema

#: Headings of the help, in order, by the options' group.
GROUPS = {
    "input": "Input",
    "prompt": "Prompt",
    "model": "Model",
    "generation": "Generation",
    "output": "Output",
    "run": "Run",
}


class _Text(click.ParamType[str]):
    """A text; unlike click's own, an environment variable with blanks is one text."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


class GroupedCommand(click.Command):
    """A command whose help lists its options under the headings of `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {name: option.group for name, option, _ in schema()}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS.values()}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections[GROUPS[groups.get(param.name or "", "run")]].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class _Int(click.IntRange):
    name = "whole number"


class _Float(click.FloatRange):
    name = "number"


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """INPUT…, `--config` and every option of `Config` for a command."""
    for name, option, kind in reversed(schema()):
        command = _click_option(name, option, kind)(command)
    command = click.option(
        "--config", "config_file", metavar="FILE", envvar="VLBATCH_CONFIG", is_eager=True,
        callback=_use_config_file, expose_value=False,
        help="YAML file of options: long names without dashes in front; flags and VLBATCH_* "
        "variables win over it.",
    )(command)  # fmt: skip
    return click.argument("inputs", nargs=-1, metavar="INPUT…")(command)


def option_rows() -> Iterator[tuple[str, str, str, str]]:
    """(group, option, default, help) of every option, for the README's table."""
    for name, option, kind in schema():
        short = [given for given in option.flags if not given.startswith("--")]
        long = [given for given in option.flags if given.startswith("--")]
        names = " ".join([*short, _switch(name, kind), *long])
        words = choices(kind)
        value = "|".join(words) if words else option.metavar or ""
        default = defaults()[name]
        shown = "on" if default is True else "" if default in (None, ()) else str(default)
        shown = "" if default is False else shown
        yield GROUPS[option.group], f"{names} {value}".strip(), shown, option.help


def env_name(name: str) -> str:
    """The environment variable of a field."""
    return f"VLBATCH_{name.upper()}"


def _switch(name: str, kind: Any) -> str:
    dashed = "--" + name.replace("_", "-")
    turned_on = kind is bool and defaults()[name] is True
    return f"{dashed}/--no-{name.replace('_', '-')}" if turned_on else dashed


def _click_option(name: str, option: Option, kind: Any) -> Callable[..., Any]:
    default = defaults()[name]
    facts: dict[str, Any] = {"envvar": env_name(name), "help": option.help, "default": default}
    if kind is bool:
        facts["is_flag"] = True
    else:
        facts |= {"type": _click_type(option, kind), "metavar": option.metavar}
        facts["multiple"] = kind == tuple[str, ...]
        facts["show_default"] = default not in (None, ())
    return click.option(_switch(name, kind), *option.flags, name, **facts)


def _click_type(option: Option, kind: Any) -> click.ParamType[Any]:
    if words := choices(kind):
        return click.Choice(words)
    if kind is int:
        return _Int(_int(option.min), _int(option.max))
    if kind is float:
        low = option.min if option.above is None else option.above
        return _Float(low, option.max, min_open=option.above is not None)
    return _Text()


def _int(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _use_config_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        names = {name: kind for name, _, kind in schema()} | {"inputs": tuple[str, ...]}
        ctx.default_map, ctx.meta["vlbatch.lines"] = load_config_file(value, names)


def make_config(inputs: tuple[str, ...], options: dict[str, Any]) -> Config:
    """The checked settings of a command's parameters. Warns of variables that name no option."""
    known = {env_name(name) for name in (*defaults(), "config", "debug")}
    for name in sorted(set(os.environ) - known):
        close = get_close_matches(name, known, n=1) if name.startswith("VLBATCH_") else []
        if close:
            say(f"vlbatch: {name} is not an option; did you mean {close[0]}?")
    return Config(inputs=tuple(inputs), **options)
