"""The embedded demo model: a tiny vision-language model of drawn scenes, not of photographs.

Importing this package imports no torch. `MODEL_DIR` loads with plain `AutoProcessor` and
`AutoModelForImageTextToText`.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["IMAGES_DIR", "MODEL_DIR", "samples"]

_HERE = Path(__file__).resolve().parent
MODEL_DIR = _HERE / "model"
IMAGES_DIR = _HERE / "images"


def samples() -> dict[str, str]:
    """File name in IMAGES_DIR -> the right caption for the prompt "Describe this image."."""
    stored: dict[str, str] = json.loads((_HERE / "samples.json").read_text("utf-8"))
    return stored
