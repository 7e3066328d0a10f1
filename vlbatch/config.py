"""Every setting of a run, once: its name, type, default, bounds, help.

The command line, the YAML keys, the environment variables (`VLBATCH_<NAME>`), the Python API's
keyword arguments and the README's table of options are all made from the fields of `Config`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vlbatch.errors import UsageError

DEFAULT_PROMPT = "Describe this image."
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Option:
    """What a field of `Config` says of itself.

    flags: further spellings on the command line beside `--field-name`.
    group: heading in the help and the README: input, prompt, model, generation, output, run.
    min, max: bounds of a number, both allowed; above: an excluded lower bound.
    identity: whether the value can change a caption, so that it belongs to the run's manifest.
    api: whether `Captioner` takes it.
    """

    help: str
    group: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    above: float | None = None
    identity: bool = False
    api: bool = False


def _option(default: Any, group: str, help: str, *flags: str, **facts: Any) -> Any:
    return dataclasses.field(
        default=default, metadata={"option": Option(help, group, flags, **facts)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one run, checked. Raises `UsageError` naming the option and its bounds."""

    inputs: tuple[str, ...] = ()

    # input
    recursive: bool = _option(True, "input", "Descend into the folders of a directory INPUT.")
    image_col: str | None = _option(
        None, "input", "Column of a list that holds the image's path or URL. Without it: the "
        "first of image, image_path, path, file, file_name, filename, url, image_url, uri.",
        "--url-col", metavar="COLUMN", identity=True,
    )  # fmt: skip
    key_col: str | None = _option(
        None, "input", "Column of a list that names each row (`key` in the output).",
        metavar="COLUMN", identity=True,
    )  # fmt: skip
    input_format: Literal["txt", "csv", "tsv", "jsonl"] | None = _option(
        None, "input", "Format of stdin and of lists whose suffix does not tell."
    )
    limit: int | None = _option(
        None, "input", "Take only the first N inputs.", metavar="N", min=1, max=10**15
    )

    # prompt
    prompt: tuple[str, ...] = _option(
        (), "prompt", "What to ask of each image; {field} takes a column of the list, or "
        f"{{filename}}, {{stem}}, {{dir}}; a literal brace is {{{{ or }}}}. Default: "
        f'"{DEFAULT_PROMPT}", or what the model documents. Given several times, each is '
        "NAME=TEXT and the row has `captions` by name.",
        "-p", metavar="TEXT", identity=True, api=True,
    )  # fmt: skip
    prompt_file: str | None = _option(
        None, "prompt", "File with the prompt: text, or YAML (.yaml, .yml) mapping names to texts.",
        metavar="FILE", identity=True,
    )  # fmt: skip
    system: str | None = _option(
        None, "prompt", "System message before the prompt.", "-s",
        metavar="TEXT", identity=True, api=True,
    )  # fmt: skip
    chat_template: str | None = _option(
        None, "prompt", "Jinja chat template, for a model that has none or instead of its own.",
        metavar="FILE", identity=True, api=True,
    )  # fmt: skip
    raw_prompt: bool = _option(
        False, "prompt", "Give the prompt to the model's processor as it is: no chat template, "
        "special tokens and task tokens (Florence-2's `<OD>`) keep their meaning.",
        identity=True, api=True,
    )  # fmt: skip

    # model
    model: str | None = _option(
        None, "model", "Hub id or folder of an image-text-to-text model; stub:colour is a model "
        "without weights that names the picture's colour. Default: the embedded demo model.",
        "-m", metavar="MODEL", identity=True, api=True,
    )  # fmt: skip
    revision: str | None = _option(
        None, "model", "Branch, tag or commit of a hub model.",
        metavar="REV", identity=True, api=True,
    )  # fmt: skip
    device: str = _option(
        "auto", "model", "auto (a GPU if there is one), cpu, cuda, cuda:N or mps.",
        metavar="DEVICE", identity=True, api=True,
    )  # fmt: skip
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _option(
        "auto", "model", "Type of the weights. auto: float32 on the CPU, on a GPU the model's own.",
        identity=True, api=True,
    )  # fmt: skip
    attn_implementation: str | None = _option(
        None, "model", "transformers' attention: sdpa, eager, flash_attention_2, …",
        metavar="NAME", identity=True, api=True,
    )  # fmt: skip
    trust_remote_code: bool = _option(
        False, "model", "Run Python code that the model's repository brings along.",
        identity=True, api=True,
    )  # fmt: skip

    # generation
    max_new_tokens: int = _option(
        256, "generation", "Longest caption, in tokens.", metavar="N", min=1,
        identity=True, api=True,
    )  # fmt: skip
    temperature: float = _option(
        0.0, "generation", "0 takes the likeliest token; above 0 samples.", metavar="T", min=0,
        max=100,
        identity=True, api=True,
    )  # fmt: skip
    top_p: float = _option(
        1.0, "generation", "Sample among the likeliest tokens that make up this probability.",
        metavar="P", above=0, max=1, identity=True, api=True,
    )  # fmt: skip
    top_k: int = _option(
        0, "generation", "Sample among the K likeliest tokens; 0 means all.", metavar="K", min=0,
        identity=True, api=True,
    )  # fmt: skip
    repetition_penalty: float | None = _option(
        None, "generation", "Above 1 makes tokens that were there already less likely. "
        "Default: the model's own.",
        metavar="X", above=0, identity=True, api=True,
    )  # fmt: skip
    seed: int = _option(
        0, "generation", "Seed of sampling; with it a row's caption depends on its key alone.",
        metavar="N", min=0, identity=True, api=True,
    )  # fmt: skip
    chunk_size: int = _option(
        32, "generation", "Rows of one batch of the language model.", metavar="N", min=1, api=True
    )
    vision_batch_size: int = _option(
        16, "generation", "Images in one call of the vision tower.", metavar="N", min=1, api=True
    )

    # output
    output: str | None = _option(
        None, "output", "JSONL file to write, one row an input; - is stdout.", "-o",
        metavar="FILE",
    )  # fmt: skip
    overwrite: bool = _option(
        False, "output", "Start again instead of going on where the output stops."
    )
    resume_by: Literal["auto", "index", "key"] = _option(
        "auto", "output", "How rows already done are known: by position or by key. auto: index "
        "for lists, key for directories, globs and files.",
    )  # fmt: skip
    save_additional_columns: str | None = _option(
        None, "output", "Columns of the list to carry into the rows, as `fields`.",
        metavar="A,B,…",
    )  # fmt: skip

    # run
    strict: bool = _option(False, "run", "Exit with 1 when any row failed.")
    progress: Literal["auto", "rich", "plain", "json", "none"] = _option(
        "auto", "run", "Progress on stderr; auto: live on a terminal, else a line every 30 s."
    )
    dry_run: bool = _option(
        False, "run", "Resolve inputs, prompts and settings, print them with the count, and stop."
    )

    def __post_init__(self) -> None:
        for name, option, kind in schema():
            _check(name, option, kind, getattr(self, name))


@cache
def schema() -> tuple[tuple[str, Option, Any], ...]:
    """(field name, its `Option`, its type without `| None`) for every option of `Config`."""
    hints = get_type_hints(Config)
    return tuple(
        (f.name, f.metadata["option"], _without_none(hints[f.name]))
        for f in dataclasses.fields(Config)
        if "option" in f.metadata
    )


def defaults() -> dict[str, Any]:
    """The default of every option by field name."""
    names = {name for name, _, _ in schema()}
    return {f.name: f.default for f in dataclasses.fields(Config) if f.name in names}


def flag(name: str) -> str:
    """The option of a field: `chunk_size` → `--chunk-size`."""
    return "--" + name.replace("_", "-")


def identity(config: Config) -> dict[str, Any]:
    """The settings that can change a caption, by field name, as JSON values."""
    return {
        name: list(value) if isinstance(value := getattr(config, name), tuple) else value
        for name, option, _ in schema()
        if option.identity
    }


def api_options() -> Iterator[str]:
    """The field names that `Captioner` takes."""
    return (name for name, option, _ in schema() if option.api)


def choices(kind: Any) -> tuple[str, ...] | None:
    """The allowed words of a Literal type, else None."""
    return get_args(kind) if get_origin(kind) is Literal else None


def _without_none(hint: Any) -> Any:
    members = [member for member in get_args(hint) if member is not type(None)]
    is_optional = type(None) in get_args(hint)
    return members[0] if is_optional else hint


def _check(name: str, option: Option, kind: Any, value: Any) -> None:
    if value is None:
        return
    allowed = choices(kind)
    if allowed is not None and value not in allowed:
        raise UsageError(f"{flag(name)}: {value!r} is not one of {', '.join(allowed)}.")
    if (kind is str and not isinstance(value, str)) or (
        kind is bool and not isinstance(value, bool)
    ):
        raise UsageError(f"{flag(name)}: {value!r} is not {'a text' if kind is str else 'a bool'}.")
    if kind == tuple[str, ...] and not all(isinstance(text, str) for text in value):
        raise UsageError(f"{flag(name)}: give a list of texts.")
    if kind in (int, float) and not _is_number(kind, value):
        word = "a whole number" if kind is int else "a number"
        raise UsageError(f"{flag(name)}: {value!r} is not {word}.")
    if kind == tuple[str, ...] and isinstance(value, str):
        raise UsageError(f"{flag(name)}: give a list of texts, not one text.")
    outside = (
        (option.min is not None and value < option.min)
        or (option.max is not None and value > option.max)
        or (option.above is not None and value <= option.above)
    )
    if outside:
        raise UsageError(f"{flag(name)}: {value!r} is outside {bounds(option)}.")


def _is_number(kind: Any, value: Any) -> bool:
    if isinstance(value, bool) or value != value:  # NaN compares false with every bound
        return False
    return isinstance(value, int) if kind is int else isinstance(value, int | float)


def bounds(option: Option) -> str:
    """The allowed range in words: `1 or more`, `above 0, up to 1`."""
    parts = []
    if option.above is not None:
        parts.append(f"above {option.above:g}")
    if option.min is not None:
        parts.append(f"{option.min:g} or more")
    if option.max is not None:
        parts.append(f"up to {option.max:g}")
    return ", ".join(parts)
