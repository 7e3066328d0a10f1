"""What a run will do, found out and checked before anything is fetched or loaded."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from vlbatch.chat import PromptStyle, prompt_style
from vlbatch.config import Config, identity
from vlbatch.errors import UsageError
from vlbatch.models.loading import ModelSource, find_model
from vlbatch.prompts import PromptSet, is_default, prompt_set
from vlbatch.sink import STDOUT
from vlbatch.sources import Inputs, SourceOptions, open_inputs

_PACKAGES = (
    "vlbatch", "torch", "torchvision", "transformers", "tokenizers", "pillow", "simplejpeg",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked of the model and how: the prompts of a run and the form they take."""

    prompts: PromptSet
    style: PromptStyle
    system: str | None = None
    chat_template: str | None = None
    raw_prompt: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run: its inputs, model, prompts, and how rows already done are known."""

    config: Config
    output: str
    inputs: Inputs
    source: ModelSource
    asking: Asking
    resume_by: Literal["index", "key"]
    save_fields: tuple[str, ...]

    def settings(self, device: str, dtype: str) -> dict[str, Any]:
        """What captions depend on, for the manifest. device: "cpu" or the GPU's name."""
        settings = identity(self.config) | {
            "prompt": self.asking.prompts.to_json(),
            "chat_template": self.asking.chat_template,
            "model": self.source.name,
            "device": device,
            "dtype": dtype,
        }
        del settings["prompt_file"]
        return settings


def plan(config: Config) -> Plan:
    """The plan of a run. Raises `UsageError` for whatever the user can put right now."""
    if not config.inputs:
        raise UsageError(
            "no INPUT: give image files, folders, globs, lists (.txt .csv .tsv .jsonl), URLs, "
            "or - for stdin."
        )
    output = _check_output(config)
    inputs = open_inputs(
        config.inputs,
        SourceOptions(config.recursive, config.image_col, config.key_col, config.input_format),
    )
    resume_by = _resume_by(config, inputs, output)
    save_fields = _save_fields(config, inputs.columns)
    source = find_model(config)
    asking = ask(config, source)
    asking.prompts.check_fields(inputs.columns)
    return Plan(config, output, inputs, source, asking, resume_by, save_fields)


def ask(config: Config, source: ModelSource) -> Asking:
    """The prompts of a run for its model: the user's, or what the class documents."""
    style = prompt_style(source.model_type)
    prompts = prompt_set(config, style.default_prompt)
    raw = config.raw_prompt or (is_default(config) and style.raw_default)
    template = None if config.chat_template is None else _read_template(config.chat_template)
    return Asking(prompts, style, config.system, template, raw)


def left_out_text(inputs: Inputs) -> str:
    """What the latest scan passed over: `3 files left out (.txt 2, .mp4 1)`."""
    kinds = inputs.left_out_suffixes.most_common(5)
    shown = ", ".join(f"{suffix or 'no suffix'} {count:,}" for suffix, count in kinds)
    return f"{inputs.left_out:,} files left out: not images by their names ({shown})"


def versions() -> dict[str, str]:
    """The versions that captions depend on, by package."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # running from a source tree
            continue
    return found


def _check_output(config: Config) -> str:
    if config.output is None:
        if config.dry_run:
            return STDOUT
        raise UsageError(
            "no output: give -o captions.jsonl to write a file, or -o - to write to stdout."
        )
    path = Path(config.output)
    if config.output == STDOUT:
        return STDOUT
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: the folder {path.parent} does not exist; create it.")
    if path.is_dir():
        raise UsageError(f"--output {path}: is a folder; name a file: {path}/captions.jsonl.")
    for given in config.inputs:
        if path.exists() and Path(given).exists() and path.samefile(given):
            raise UsageError(f"--output {path}: is an INPUT as well; name another file.")
    return config.output


def _resume_by(config: Config, inputs: Inputs, output: str) -> Literal["index", "key"]:
    is_continued = output != STDOUT and not config.overwrite and _has_rows(Path(output))
    if inputs.has_stdin and is_continued and config.resume_by != "key":
        raise UsageError(
            f"--output {output} holds rows already, and stdin can only go on by key: give "
            "--resume-by key, or --overwrite to start again."
        )
    if config.resume_by == "auto":
        return "index" if not inputs.has_stdin and inputs.resume_by == "index" else "key"
    if config.resume_by == "index" and inputs.resume_by == "key":
        raise UsageError("--resume-by index: only lists keep their order; use key.")
    return config.resume_by


def _has_rows(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _save_fields(config: Config, columns: frozenset[str] | None) -> tuple[str, ...]:
    if config.save_additional_columns is None:
        return ()
    names = tuple(n.strip() for n in config.save_additional_columns.split(",") if n.strip())
    unknown = [] if columns is None else [name for name in names if name not in columns]
    if unknown:
        known = ", ".join(sorted(columns or ())) or "none"
        raise UsageError(
            f"--save-additional-columns: there is no column {unknown[0]!r}; the columns are: "
            f"{known}."
        )
    return names


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--chat-template {path}: can't be read: {error}.") from None
