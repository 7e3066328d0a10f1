"""A row as one line of JSON. No row is ever lost to a value that JSON can't hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vlbatch.records import CaptionRecord, public_text

_MAX_DEPTH = 100  # orjson refuses beyond 254
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def encode_row(record: CaptionRecord) -> bytes:
    """The line of a row, its newline included; UTF-8."""
    return encode(record.to_dict()) + b"\n"


def encode(value: Any) -> bytes:
    """`value` as JSON on one line; what JSON can't hold is written as text (`storable`)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(storable(value))


def storable(value: Any, depth: int = 0) -> Any:
    """`value` with every part that JSON can't hold replaced by text.

    Lone surrogates become U+FFFD, integers beyond 64 bits their hexadecimal text (decimal text of
    an int has a length limit in Python), other objects their `str`.
    """
    match value:
        case None | bool() | float():
            return value
        case int():
            return int(value) if _INT_MIN <= value <= _INT_MAX else hex(value)
        case str():
            return public_text(str(value))
        case Mapping() | list() | tuple() | set() | frozenset() if depth == _MAX_DEPTH:
            return "…"
        case Mapping():
            return {public_text(str(k)): storable(v, depth + 1) for k, v in value.items()}
        case set() | frozenset():
            return [storable(v, depth + 1) for v in sorted(value, key=repr)]
        case list() | tuple():
            return [storable(v, depth + 1) for v in value]
        case _:
            return public_text(str(value))
