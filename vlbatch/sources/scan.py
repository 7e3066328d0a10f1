"""Image files beneath a folder or matching a glob, in natural order, one folder at a time.

Memory is bounded by the names of one folder on each level; beyond `SORT_LIMIT` names a folder
comes in directory order. Names that are not UTF-8 are kept as surrogate escapes.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

logger = logging.getLogger("vlbatch")

_RASTER = (
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .gif .bmp .dib .tif .tiff .avif .avifs .ico "
    ".jp2 .j2k .j2c .jpc .jpf .jpx .ppm .pgm .pbm .pnm .tga .psd .qoi"
)

#: Raster formats that are decoded in this process (never EPS, WMF: those start programs).
IMAGE_SUFFIXES = frozenset(_RASTER.split())

#: Names of one folder that are sorted; a folder with more comes in directory order.
SORT_LIMIT = 1_000_000

_SUFFIX_KINDS = 50
_NUMBER = re.compile("[0-9]+")
_GLOB = re.compile(r"[*?\[]")

#: Says whether a folder's entry is wanted; may count it as left out.
Wanted = Callable[[os.DirEntry[str]], bool]


class LeftOut:
    """Files passed over in one scan: how many, and of which suffixes (at most 50 are told apart).

    What has no suffix to blame is counted under a description in brackets.
    """

    def __init__(self) -> None:
        self.total = 0
        self.suffixes: Counter[str] = Counter()

    def add(self, suffix: str) -> None:
        self.total += 1
        known = suffix in self.suffixes or len(self.suffixes) < _SUFFIX_KINDS
        self.suffixes[suffix if known else "(other)"] += 1

    def __str__(self) -> str:
        """`3 of .txt, 1 of (hidden)`, the most frequent first."""
        return ", ".join(f"{n} of {suffix}" for suffix, n in self.suffixes.most_common(5))


def natural_key(name: str) -> str:
    """A string that sorts names as people do: img2 before img10, case-blind.

    Each number is preceded by its length, so that comparing characters compares values.
    """
    return _NUMBER.sub(_number_key, name.casefold())


def _number_key(match: re.Match[str]) -> str:
    digits = match[0].lstrip("0")
    return chr(0x30 + min(len(digits), 40)) + digits


def suffix_of(name: str) -> str:
    """The lower-case suffix of a file name, with its dot, or empty."""
    return os.path.splitext(name)[1].lower()


def has_glob(path: str) -> bool:
    """Whether `path` holds glob characters."""
    return _GLOB.search(path) is not None


def scan(folder: str, recursive: bool, left_out: LeftOut) -> Iterator[str]:
    """Paths of the images in `folder`, relative to it, with `/`.

    Hidden names and `__MACOSX` are left out, symbolic links followed (loops end), and what is not
    a regular file or has no suffix of `IMAGE_SUFFIXES` is left out. A folder that can't be read
    is logged and passed over; raises OSError only if `folder` itself can't be read.
    """

    def wanted(entry: os.DirEntry[str]) -> bool:
        if entry.name[0] == "." or entry.name == "__MACOSX":
            left_out.add("(hidden)")
            return False
        if _is_folder(entry):
            return recursive
        return _is_image(entry, left_out)

    stack = [("", _identity(folder), _entries(folder, wanted))]
    while stack:
        prefix, _, entries = stack[-1]
        name = next(entries, None)
        if name is None:
            stack.pop()
        elif name[-1] != "/":
            yield prefix + name
        else:
            path = f"{folder}/{prefix}{name}"
            identity = _identity(path)
            if all(identity != above for _, above, _ in stack):
                stack.append((prefix + name, identity, _readable(_entries(path, wanted), path)))


def expand_glob(pattern: str, left_out: LeftOut) -> Iterator[str]:
    """Regular files that match `pattern`, each once, as paths that begin as the pattern does.

    `**` stands for any number of folders. Hidden names match only a component that begins with a
    dot. Where the pattern leaves the suffix open (`photos/*`), only `IMAGE_SUFFIXES` match.
    """
    root = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part]
    any_suffix = not has_glob(suffix_of(parts[-1])) and suffix_of(parts[-1]) != ""
    glob = _Glob(parts, any_suffix, left_out)
    start = glob.closed({0})
    stack = [(root, start, _identity(root or "."), _readable(glob.entries(root, start), root))]
    while stack:
        prefix, states, _, entries = stack[-1]
        name = next(entries, None)
        if name is None:
            stack.pop()
        elif name[-1] != "/":
            yield prefix + name
        else:
            path, identity = prefix + name, _identity(prefix + name)
            below = glob.step(states, name[:-1])
            if all((identity, below) != (above, seen) for _, seen, above, _ in stack):
                stack.append((path, below, identity, _readable(glob.entries(path, below), path)))


class _Glob:
    """A glob as a machine whose states are positions in its components.

    One walk of the tree carries all states at once, so that no path comes twice.
    """

    def __init__(self, parts: list[str], any_suffix: bool, left_out: LeftOut) -> None:
        self.parts = parts
        self.any_suffix = any_suffix
        self.left_out = left_out
        self.matches = [re.compile(fnmatch.translate(part)).match for part in parts]

    def closed(self, states: set[int]) -> frozenset[int]:
        """`states` and those reached without a name: `**` may stand for no folder."""
        for state in sorted(states):
            while state < len(self.parts) and self.parts[state] == "**":
                state += 1
                states.add(state)
        return frozenset(states)

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """The states after the component `name`."""
        after = set()
        for state in states:
            if state == len(self.parts):
                continue
            part = self.parts[state]
            if name[0] == "." and part[0] != ".":
                continue
            if part == "**":
                after.add(state)
            elif self.matches[state](name):
                after.add(state + 1)
        return self.closed(after)

    def entries(self, folder: str, states: frozenset[int]) -> Iterator[str]:
        literal = [self.parts[s] for s in states if s < len(self.parts)]
        if not any(map(has_glob, literal)):
            return _named(folder, literal, self._ends(states))
        return _entries(folder or ".", lambda entry: self._wanted(entry, states))

    def _ends(self, states: frozenset[int]) -> bool:
        return len(self.parts) - 1 in states

    def _wanted(self, entry: os.DirEntry[str], states: frozenset[int]) -> bool:
        after = self.step(states, entry.name)
        if not after:
            return False
        if _is_folder(entry):
            return any(state < len(self.parts) for state in after)
        trailing = self.parts[-1] == "**" and len(self.parts) - 1 in after
        if len(self.parts) not in after and not trailing:
            return False
        return entry.is_file() if self.any_suffix else _is_image(entry, self.left_out)


def _named(folder: str, names: list[str], last: bool) -> Iterator[str]:
    """The entries of `folder` that `names` name outright, without listing it."""
    for name in names:
        path = folder + name
        if os.path.isdir(path):
            yield name + "/"
        elif last and os.path.isfile(path):
            yield name


def _entries(folder: str, wanted: Wanted) -> Iterator[str]:
    """Wanted names of one folder in natural order, those of folders with a trailing `/`."""
    with os.scandir(folder) as entries:
        named = (e.name + "/" if _is_folder(e) else e.name for e in entries if wanted(e))
        names = list(islice(named, SORT_LIMIT + 1))
        if len(names) > SORT_LIMIT:
            logger.warning("%s: over %d names, in directory order", folder, SORT_LIMIT)
            yield from names
            yield from named
            return
    names.sort()
    names.sort(key=natural_key)
    yield from names


def _readable(names: Iterator[str], folder: str) -> Iterator[str]:
    """`names` up to where the folder can't be read, which is logged."""
    try:
        yield from names
    except OSError as error:
        logger.warning("%s: passed over: %s", folder or ".", error.strerror)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(entry: os.DirEntry[str], left_out: LeftOut) -> bool:
    suffix = suffix_of(entry.name)
    if suffix not in IMAGE_SUFFIXES:
        left_out.add(suffix or "(no suffix)")
        return False
    try:
        if entry.is_file():
            return True
    except OSError:
        pass
    left_out.add("(not a regular file)")
    return False


def _identity(folder: str) -> tuple[int, int]:
    """What two paths of the same folder share; (0, 0) for one that can't be looked at."""
    try:
        status = os.stat(folder)
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)
