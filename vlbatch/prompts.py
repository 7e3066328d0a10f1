"""Prompts: templates with fields of the row, named or not, from options or a file.

A template is text with `{field}` places, filled from the columns of the row's list and from the
path (`{filename}`, `{stem}`, `{dir}`). What comes out of a field is never looked into again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path, PurePath, PurePosixPath
from string import Formatter
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from vlbatch.config import DEFAULT_PROMPT, Config
from vlbatch.errors import UsageError
from vlbatch.records import ONLY_PROMPT, Failure, ImageRef, field_text, is_url, public_text

PATH_FIELDS = frozenset({"filename", "stem", "dir"})

_NAME = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A prompt with places. Raises `UsageError` for a template that can't be read."""

    text: str

    def __post_init__(self) -> None:
        self.fields()

    def fields(self) -> frozenset[str]:
        """The names of its places."""
        try:
            parts = list(Formatter().parse(self.text))
        except ValueError as error:
            raise UsageError(
                f"--prompt {self.text!r}: {error}; write a literal brace as {{{{ or }}}}."
            ) from None
        for _, name, spec, conversion in parts:
            if name is not None and (spec or conversion or not re.fullmatch(r"[^.\[\]]+", name)):
                raise UsageError(
                    f"--prompt {self.text!r}: {{{name}}} is not a plain field name; "
                    "write a literal brace as {{ or }}."
                )
        return frozenset(name for _, name, _, _ in parts if name is not None)

    def fill(self, values: Mapping[str, Any]) -> str:
        """The prompt with its places filled. Raises KeyError for a field that is not there."""
        return "".join(
            literal + (field_text(values[name]) if name is not None else "")
            for literal, name, _, _ in Formatter().parse(self.text)
        )


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a run by name; one that has no name is called `ONLY_PROMPT`."""

    templates: Mapping[str, PromptTemplate]

    def render(self, ref: ImageRef) -> dict[str, str] | Failure:
        """Each prompt's text for one row, or why there is none."""
        values = path_fields(ref.uri) | dict(ref.fields)
        try:
            return {
                name: public_text(template.fill(values))
                for name, template in self.templates.items()
            }
        except KeyError as error:
            message = f"this row has no field {error.args[0]!r}, which the prompt names"
            return Failure(ref, "prompt", "missing_field", message)

    def check_fields(self, columns: frozenset[str] | None) -> None:
        """Raises `UsageError` for a place that no row can fill (columns None: not known yet)."""
        if columns is None:
            return
        known = columns | PATH_FIELDS
        for template in self.templates.values():
            for name in sorted(template.fields() - known):
                close = get_close_matches(name, known, n=1)
                hint = f" Did you mean {{{close[0]}}}?" if close else ""
                raise UsageError(
                    f"--prompt: there is no field {{{name}}}; known here: "
                    f"{', '.join(sorted(known))}.{hint} A literal brace is {{{{ or }}}}."
                )

    def to_json(self) -> str | dict[str, str]:
        """The template's text, or name → text of several, for the run's manifest."""
        texts = {name: template.text for name, template in self.templates.items()}
        return texts[ONLY_PROMPT] if set(texts) == {ONLY_PROMPT} else texts


def prompt_set(config: Config, default: str = DEFAULT_PROMPT) -> PromptSet:
    """The prompts that `--prompt` or `--prompt-file` give, else `default`.

    Raises UsageError: both given, a file that can't be read, several prompts without names.
    """
    if config.prompt and config.prompt_file is not None:
        raise UsageError("--prompt and --prompt-file can't be given together.")
    if config.prompt_file is not None:
        texts = _read_prompt_file(Path(config.prompt_file))
    elif len(config.prompt) > 1:
        texts = _named(config.prompt)
    else:
        texts = {ONLY_PROMPT: config.prompt[0] if config.prompt else _escape(default)}
    return PromptSet({name: PromptTemplate(text) for name, text in texts.items()})


def is_default(config: Config) -> bool:
    """Whether no prompt was given, so that the model's own default applies."""
    return not config.prompt and config.prompt_file is None


def path_fields(uri: str) -> dict[str, str]:
    """`filename`, `stem` and `dir` (name of the folder) of a path or URL."""
    path = PurePosixPath(unquote(_url_path(uri))) if is_url(uri) else PurePath(uri)
    return {"filename": path.name, "stem": path.stem, "dir": path.parent.name}


def _url_path(url: str) -> str:
    """The path of a URL; the whole text of one that can't be parsed."""
    try:
        return urlsplit(url).path
    except ValueError:
        return url


def _named(prompts: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for prompt in prompts:
        name, equals, text = prompt.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f"--prompt {prompt!r}: several prompts want a name each: --prompt brief='…' "
                "--prompt full='…'."
            )
        if name in named:
            raise UsageError(f"--prompt: the name {name!r} is given twice.")
        named[name] = text
    return named


def _read_prompt_file(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--prompt-file {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"--prompt-file {path}: is not UTF-8 text.") from None
    texts = {ONLY_PROMPT: text.rstrip("\r\n")}
    if path.suffix.lower() in {".yaml", ".yml"}:
        texts = _yaml_prompts(path, text)
    if not any(texts.values()):
        raise UsageError(f"--prompt-file {path}: holds no prompt.")
    return texts


def _yaml_prompts(path: Path, text: str) -> dict[str, str]:
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"--prompt-file {path}: {' '.join(str(error).split())}.") from None
    if isinstance(data, str):
        return {ONLY_PROMPT: data}
    if not _is_prompts(data):
        raise UsageError(
            f"--prompt-file {path}: must be a text or a mapping of names to texts "
            "(brief: Describe this image briefly.)."
        )
    if isinstance(node, yaml.MappingNode) and len(node.value) != len(data):
        raise UsageError(f"--prompt-file {path}: a name is given twice.")
    return dict(data)


def _is_prompts(data: object) -> bool:
    return (
        isinstance(data, dict)
        and all(isinstance(name, str) and _NAME.fullmatch(name) for name in data)
        and all(isinstance(text, str) for text in data.values())
    )


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
