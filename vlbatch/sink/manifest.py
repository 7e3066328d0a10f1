"""The run manifest, `OUTPUT.run.json`: what a row of the output depends on.

    {"vlbatch": "0.1.0", "format": 1, "created": "2026-12-01T12:30:01+00:00", "settings": {…},
     "versions": {…}, "inputs": [{"input": "list.txt", "sha256": "…", …}, …], "resume_by": "index",
     "earlier_versions": [{…}, …]}

Law: whenever the output holds a row, the manifest that explains it is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

import vlbatch
from vlbatch.errors import OutputError, ResumeRefused
from vlbatch.records import public_uri
from vlbatch.sink.encode import encode, storable

FORMAT = 1
ResumeBy = Literal["index", "key"]
_SHOWN = 3  # names in a message, of a set that may hold thousands


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of the rows in an output; every value as it reads back from JSON.

    versions: of what ran last, `vlbatch` among them; those of earlier runs that added rows to
        the same output are in `earlier_versions`.
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    inputs: Sequence[Mapping[str, Any]]
    resume_by: ResumeBy
    created: str
    earlier_versions: Sequence[Mapping[str, str]] = ()


def new_manifest(
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    inputs: Sequence[Mapping[str, Any]],
    resume_by: ResumeBy,
) -> Manifest:
    """The manifest of a run that starts now."""
    content = {
        "settings": storable(settings),
        "versions": storable({"vlbatch": vlbatch.__version__} | dict(versions)),
        "inputs": [
            storable({**given, "input": public_uri(str(given["input"]))}) for given in inputs
        ],
    }
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Manifest(**orjson.loads(encode(content)), resume_by=resume_by, created=created)


def manifest_path(output: str) -> str:
    """Where the manifest of `output` is."""
    return output + ".run.json"


def read_manifest(output: str) -> Manifest:
    """The manifest beside `output`, which holds rows. Raises ResumeRefused without a sound one."""
    path = manifest_path(output)
    way_out = "--overwrite starts again, another -o/--output keeps the rows"
    try:
        with open(path, "rb") as file:
            content = orjson.loads(file.read())
    except FileNotFoundError:
        raise ResumeRefused(
            f"{output} is not an output of vlbatch, or its manifest {path} is gone; give another "
            "-o/--output (--overwrite starts again where the lines are rows of vlbatch)"
        ) from None
    except (OSError, ValueError) as error:
        raise ResumeRefused(f"the manifest {path} can't be read ({error}); {way_out}") from None
    try:
        if content.pop("format") != FORMAT:
            raise ResumeRefused(f"the manifest {path} is of another vlbatch; {way_out}")
        versions = {"vlbatch": content.pop("vlbatch")} | content.pop("versions")
        manifest = Manifest(versions=versions, **content)
        _check_shape(manifest)
        return manifest
    except (AttributeError, KeyError, TypeError):
        raise ResumeRefused(f"{path} is not a manifest of vlbatch; {way_out}") from None


def write_manifest(output: str, manifest: Manifest) -> None:
    """Puts the manifest beside `output`, whole or not at all, on disk when this returns.

    Raises OutputError.
    """
    path = manifest_path(output)
    versions = dict(manifest.versions)
    content = {"vlbatch": versions.pop("vlbatch"), "format": FORMAT, "created": manifest.created}
    content |= asdict(manifest) | {"versions": versions}
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
        _sync_folder(Path(path).parent)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path + ".tmp")
        raise OutputError(f"can't write the run's manifest {path}: {error.strerror}") from error


def resumed(old: Manifest, new: Manifest) -> Manifest:
    """The manifest of rows by `old` that the run `new` goes on with."""
    earlier = list(old.earlier_versions)
    if old.versions != new.versions and old.versions not in earlier:
        earlier.append(old.versions)
    return replace(new, created=old.created, earlier_versions=earlier)


def differences(old: Manifest, new: Manifest) -> list[str]:
    """Why rows of `old` are not rows of `new`, each in a few words; empty if they are."""
    found = [
        f"--{name.replace('_', '-')} was {_shown(old.settings.get(name))}, "
        f"is {_shown(new.settings.get(name))}"
        for name in sorted({*old.settings, *new.settings})
        if old.settings.get(name) != new.settings.get(name)
    ]
    if old.resume_by == "key" and new.resume_by == "index":
        found.append("rows were matched by key: give --resume-by key")
    found += _set_changes(_names(old), _names(new))
    if new.resume_by == "index":
        grown = "; --resume-by key goes on with a list that grew"
        found += [change + grown for change in list_changes(old, new)]
    return found


def list_changes(old: Manifest, new: Manifest) -> list[str]:
    """The INPUTs of both whose content is another, by their digests."""
    before = {i.get("input"): i.get("sha256") for i in old.inputs}
    return [
        f"{i['input']} changed since (sha256 {_short(before[i['input']])}, "
        f"now {_short(i.get('sha256'))})"
        for i in new.inputs
        if i.get("input") in before and before[i["input"]] != i.get("sha256")
    ]


def version_changes(old: Manifest, new: Manifest) -> list[str]:
    """Each version that is not what the last rows were made with, such as `torch 2.11 → 2.12`."""
    return [
        f"{name} {old.versions.get(name, 'absent')} → {new.versions.get(name, 'absent')}"
        for name in sorted({*old.versions, *new.versions})
        if old.versions.get(name) != new.versions.get(name)
    ]


def _check_shape(manifest: Manifest) -> None:
    mappings = (manifest.settings, *manifest.inputs, *manifest.earlier_versions)
    if not all(isinstance(value, dict) for value in mappings):
        raise TypeError("not a mapping")


def _names(manifest: Manifest) -> list[str]:
    return [str(i.get("input")) for i in manifest.inputs]


def _set_changes(old: Sequence[str], new: Sequence[str]) -> list[str]:
    if old == new:
        return []
    gone = [name for name in old if name not in set(new)]
    added = [name for name in new if name not in set(old)]
    if not gone and not added:
        return [f"the INPUTs came in another order ({_few(old)}, now {_few(new)})"]
    changes = (("no longer among the INPUTs", gone), ("not among the INPUTs before", added))
    return [f"{what}: {_few(names)}" for what, names in changes if names]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _shown(value: Any) -> str:
    text = "not given" if value is None else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def _short(digest: str | None) -> str:
    return digest[:12] + "…" if digest else "none"


def _sync_folder(folder: Path) -> None:
    """Makes a rename within `folder` last through a power cut, where folders can be opened."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
