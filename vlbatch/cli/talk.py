"""What the command line says on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

from vlbatch.records import without_secrets


def say(text: str) -> None:
    """A line on stderr, without the secrets of URLs; nothing for an empty text.

    A closed stderr is no reason to fail, nor to write to stdout, which is for data.
    """
    if text and sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(without_secrets(text) + "\n")
            sys.stderr.flush()
