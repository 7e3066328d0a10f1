"""What an input's name says: the path of a `file:` URI, the URL that is really asked for."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit

_UNSAFE = re.compile(r"[^\x21-\x7e]+")


def local_path(uri: str) -> str:
    """The path that `uri` names: itself, or of a `file:` URI its percent-decoded path.

    Raises ValueError for a `file:` URI of another host.
    """
    if not uri.lower().startswith("file:"):
        return uri
    rest = uri[5:]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise ValueError("a file: URI can't name another host")
        rest = slash + path
    return os.fsdecode(unquote_to_bytes(os.fsencode(rest)))


def clean_url(url: str) -> str:
    """`url` without fragment, what is not allowed in it escaped once; escapes in it are kept.

    Raises ValueError for one that can't be read.
    """
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("no host")
        path, query = (_UNSAFE.sub(_escaped, part) for part in (parts.path, parts.query))
    except ValueError as error:  # lone surrogates as well
        raise ValueError("not a valid URL") from error
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _escaped(match: re.Match[str]) -> str:
    return quote(match[0], safe="", errors="surrogateescape")
