"""`--config FILE.yaml`: a flat mapping of long option names, each value with the line it is on."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from vlbatch.errors import UsageError

_NULL = "tag:yaml.org,2002:null"


def load_config_file(
    path: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(field name → value as text, field name → "FILE:LINE").

    options: field name → type of all options. Values stay the text that is in the file, so that
    the command line's own conversion judges them: YAML's `no` and `1e-5` mean what they say.

    Raises UsageError naming file and line: not readable, not YAML, not flat, an unknown or
    doubled key.
    """
    root = _compose(path)
    values: dict[str, Any] = {}
    lines: dict[str, str] = {}
    if root is None:
        return values, lines
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"--config {path}: must be a mapping, such as `max-new-tokens: 64`.")
    for key_node, node in root.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        name = _field_name(key_node, where, options)
        if name in values or name in lines:
            raise UsageError(f"{where}: {key_node.value} is given twice.")
        lines[name] = where
        value = _value(node, where, key_node.value, is_list=options[name] == tuple[str, ...])
        if value is not None:
            values[name] = value
    return values, lines


def _compose(path: str) -> yaml.Node | None:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise UsageError(f"--config {path}: {reason}.") from None
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}: not YAML: {error.problem}.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"--config {path}: not YAML: {' '.join(str(error).split())}.") from None
    return node


def _field_name(key: yaml.Node, where: str, options: Mapping[str, Any]) -> str:
    text = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
    name = text.replace("-", "_")
    if name in options:
        return name
    known = [option.replace("_", "-") for option in options]
    close = get_close_matches(text.replace("_", "-"), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}."
    raise UsageError(f"{where}: there is no option {text!r}{hint}")


def _is_text_mapping(node: yaml.Node) -> bool:
    """Whether it maps names to texts, of several prompts."""
    if not isinstance(node, yaml.MappingNode) or len(node.value) < 2:
        return False
    return all(isinstance(part, yaml.ScalarNode) for pair in node.value for part in pair)


def _value(node: yaml.Node, where: str, key: str, *, is_list: bool) -> Any:
    if isinstance(node, yaml.SequenceNode) and is_list:
        items = [_value(item, where, key, is_list=False) for item in node.value]
        return [item for item in items if item is not None]
    if key == "prompt" and _is_text_mapping(node):
        return [f"{name.value}={text.value}" for name, text in node.value]
    if not isinstance(node, yaml.ScalarNode):
        kind = "one text or a list of texts" if is_list else "one value"
        raise UsageError(f"{where}: {key} takes {kind}, not nested values.")
    if node.tag == _NULL:
        return None
    return [node.value] if is_list else node.value
