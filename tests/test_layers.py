"""The import law: imports only go down, read off the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vlbatch"

#: Lower number = lower layer. A module imports its own layer's package or lower ones only.
LAYERS = {
    "errors": 0, "records": 0, "formats": 0, "connections": 0, "uris": 0, "config": 1, "demo": 1,
    "fetch": 2, "images": 2, "sink": 2, "displays": 1, "progress": 2, "chat": 2, "prompts": 2,
    "sources": 3, "processing": 3, "models": 3,
    "host": 4, "batching": 5,
    "plan": 6, "pipeline": 7,
    "captioner": 8, "dryrun": 8, "doctor": 9, "bench": 9, "cli": 10,
}  # fmt: skip

#: Stages that know no torch, and the command line, which loads it only inside a command.
NO_TORCH = (
    "errors", "records", "config", "formats", "connections", "uris", "sources", "fetch", "images",
    "sink", "displays", "progress", "chat", "prompts", "host", "batching", "plan", "pipeline",
    "cli",
)  # fmt: skip


def imports(path: Path, *, top_level_only: bool) -> set[str]:
    """The modules that a file imports, in full."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = _unconditional(tree) if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            if node.module == "vlbatch":
                found |= {f"vlbatch.{alias.name}" for alias in node.names}
    return found


def _unconditional(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def unit(path: Path) -> str:
    """The layer's name of a file: its first component below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if unit(path) != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = unit(path)
    assert here in LAYERS, f"{here} has no place in the layers"
    for module in imports(path, top_level_only=False):
        if not module.startswith("vlbatch.") or module == "vlbatch.__version__":
            continue
        there = module.split(".")[1]
        assert there == here or LAYERS[there] < LAYERS[here], f"{path.name} imports {module}"


@pytest.mark.parametrize("name", NO_TORCH)
def test_stages_know_no_torch(name: str) -> None:
    for path in FILES:
        if unit(path) == name:
            loaded = {module.split(".")[0] for module in imports(path, top_level_only=True)}
            assert not loaded & {"torch", "torchvision", "transformers"}, path


def test_every_layer_exists() -> None:
    assert {unit(path) for path in FILES} == set(LAYERS)
