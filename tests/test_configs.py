"""Each preset of configs/ runs as it is, with a model that is here."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Cli, make_pictures

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_preset_runs(cli: Cli, tmp_path: Path, path: Path) -> None:
    make_pictures(tmp_path / "imgs", 9)
    ran = cli("caption", "imgs", "-o", "out.jsonl", "-m", "stub:colour", "--config", str(path))
    assert ran.code == 0, ran.stderr
    assert len(ran.rows()) == (8 if path.stem == "cpu-debug" else 9)
    assert all(row["error"] is None for row in ran.rows())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_preset_is_small_and_differs_from_the_defaults(cli: Cli, path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 25
    shown = cli("config", "show", "--config", str(path)).stdout
    assert f"# {path}:" in shown


def test_all_presets_are_there() -> None:
    assert [path.stem for path in CONFIGS] == [
        "alt-text", "cpu-debug", "dense-captions", "lmdeploy-report", "lora-tags",
        "short-captions",
    ]  # fmt: skip
