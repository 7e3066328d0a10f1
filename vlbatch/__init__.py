"""Caption images in bulk with open vision-language models.

    from vlbatch import Captioner

`Captioner` is the Python API; `vlbatch.records.CaptionRecord` is what it yields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Captioner", "__version__"]

if TYPE_CHECKING:
    from vlbatch.captioner import Captioner


def __getattr__(name: str) -> Any:
    """`Captioner` is imported when it is asked for, so that `import vlbatch` is quick."""
    if name == "Captioner":
        from vlbatch.captioner import Captioner

        return Captioner
    raise AttributeError(f"module 'vlbatch' has no attribute {name!r}")
