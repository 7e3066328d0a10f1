"""`vlbatch`: the group of commands, and the one place where an error becomes words and a code."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module

import click
from click.core import ParameterSource

from vlbatch import __version__
from vlbatch.cli.talk import say
from vlbatch.errors import VlbatchError

_COMMANDS = {
    "caption": "vlbatch.cli.caption:caption",
    "config": "vlbatch.cli.config:config",
    "doctor": "vlbatch.cli.doctor:doctor",
}


class _LazyGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a hint for a command that is not there."""
        name = _dashes(args[0])
        if name not in _COMMANDS and not name.startswith("-"):
            close = get_close_matches(name, _COMMANDS, n=1)
            meant = close[0] if close else f"caption {args[0]}"
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'vlbatch {meant}'?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command


def _dashes(text: str) -> str:
    """Underscore spellings of options and commands are accepted."""
    return text.replace("_", "-")


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _dashes},
)
@click.version_option(__version__, prog_name="vlbatch")
def cli() -> None:
    """Caption images in bulk with open vision-language models."""


def main() -> None:
    """The console script: runs a command and exits with its code."""
    try:
        code = cli.main(prog_name="vlbatch", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        code = error.exit_code
    except click.ClickException as error:
        _say_click_error(error)
        code = error.exit_code
    except VlbatchError as error:
        say(f"vlbatch: {error}")
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("vlbatch: interrupted.")
        code = 130
    except BrokenPipeError:
        code = 0
        _leave(code)
    except Exception as error:
        if os.environ.get("VLBATCH_DEBUG"):
            raise
        say(
            f"vlbatch: internal error: {type(error).__name__}: {error}\n"
            "This is a fault of vlbatch; VLBATCH_DEBUG=1 shows where it happened."
        )
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _say_click_error(error: click.ClickException) -> None:
    """click's own message, with the file and line or the variable that the value came from."""
    context = getattr(error, "ctx", None)
    hint = f"Try '{context.command_path} --help' for help." if context is not None else ""
    where = _origin(error)
    say("\n".join(part for part in (f"vlbatch: {where}{error.format_message()}", hint) if part))


def _origin(error: click.ClickException) -> str:
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or param is None or param.name is None:
        return ""
    source = context.get_parameter_source(param.name)
    if source is ParameterSource.DEFAULT_MAP:
        return f"{context.meta['vlbatch.lines'][param.name]}: "
    if source is ParameterSource.ENVIRONMENT:
        return f"environment variable {param.envvar}: "
    return ""


def _leave(code: int) -> None:
    """Exit at once: nobody reads stdout any more, and Python would fail to flush it."""
    os._exit(code)


if __name__ == "__main__":
    main()
