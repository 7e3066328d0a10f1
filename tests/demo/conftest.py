"""The demo model, loaded once, and the frozen scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlbatch.demo.evaluate import DemoModel

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def demo() -> DemoModel:
    return DemoModel.load()


@pytest.fixture(scope="session")
def frozen() -> list[dict[str, Any]]:
    """The rows of scenes.jsonl, each with its opened picture under "image"."""
    rows = [json.loads(line) for line in (HERE / "scenes.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        with Image.open(HERE / "scenes" / row["file"]) as opened:
            row["image"] = opened.convert("RGB")
    return rows
