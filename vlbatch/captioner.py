"""The Python API: a model that is loaded once and captions images from any iterable."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vlbatch.config import Config, api_options
from vlbatch.errors import UsageError, VlbatchError
from vlbatch.images import upright
from vlbatch.models.loading import find_model, load_model, resolve_device
from vlbatch.pipeline import RowJoiner, run
from vlbatch.plan import Asking, ask
from vlbatch.prompts import PromptSet, PromptTemplate
from vlbatch.records import (
    ONLY_PROMPT,
    CaptionRecord,
    DecodedImage,
    Failure,
    ImageBytes,
    ImageRef,
    Item,
)

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    ImageLike = str | Path | bytes | Image.Image | np.ndarray[Any, Any]

_ROW_PROMPT = "prompt"


class Captioner:
    """Captions images with one model.

        with Captioner("HuggingFaceTB/SmolVLM-256M-Instruct", max_new_tokens=64) as captioner:
            for record in captioner(["a.jpg", "https://example.org/b.png"]):
                print(record.index, record.caption or record.error)

    model: a hub id, a folder, `stub:colour`, or None for the embedded demo model.
    prompt: a template, or a mapping of names to templates for several captions an image.
    options: the other settings of `vlbatch caption` that concern model, prompt and generation, with
        underscores (`max_new_tokens`, `device`, `chunk_size`, …).

    Raises `UsageError` (a ValueError) for an option or model that can't be used, `ModelError`
    when the device fails. One call runs at a time.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        allowed = set(api_options())
        if unknown := sorted(set(options) - allowed):
            raise UsageError(
                f"{unknown[0]!r} is not an option; the options are: {', '.join(sorted(allowed))}."
            )
        if isinstance(prompt := options.get("prompt"), str):
            options["prompt"] = (prompt,)
        elif isinstance(prompt, Mapping):
            options["prompt"] = tuple(f"{name}={text}" for name, text in prompt.items())
        elif prompt is not None:
            options["prompt"] = tuple(prompt)
        self._config = Config(model=model, **options)
        self._source = find_model(self._config)
        self._asking = ask(self._config, self._source)
        self._loaded: Any = None
        if not self._source.is_stub:
            device, dtype = resolve_device(self._config)
            self._loaded = load_model(self._source, self._config, device, dtype)
        self._stop = threading.Event()
        self._busy = threading.Lock()

    def __call__(
        self,
        images: Iterable[ImageLike],
        prompts: Iterable[str] | str | None = None,
        *,
        show_progress: bool = False,
    ) -> Iterator[CaptionRecord]:
        """Yields a record for every image as it is finished; `record.index` is its position.

        images: paths, http(s) URLs, encoded bytes, PIL images, or arrays of uint8: [H, W] grey,
            [H, W, 3] RGB or [H, W, 4] RGBA. Read as needed, never all at once.
        prompts: one text for all, or one for each image; None asks what the captioner was made
            with. Taken literally: braces and special tokens are text.
        show_progress: a tqdm bar.

        A bad image gives a record with `error`, never an exception. Raises ValueError where
        `prompts` is shorter than `images`, and for one image that is not in a list.
        """
        if isinstance(images, str | bytes) or not isinstance(images, Iterable) or _is_array(images):
            raise UsageError("images: give a list or another iterable of images, even for one.")
        return self._records(images, prompts, show_progress)

    def _records(
        self, images: Iterable[ImageLike], prompts: Iterable[str] | str | None, show_progress: bool
    ) -> Iterator[CaptionRecord]:
        if self._stop.is_set():
            raise VlbatchError("this Captioner is closed; make a new one.")
        if not self._busy.acquire(blocking=False):
            raise VlbatchError("this Captioner is busy with another call; finish that one first.")
        asking = self._asking if prompts is None else self._asking_each()
        rows = RowJoiner(tuple(asking.prompts.templates))
        bar = _bar(images) if show_progress else None
        try:
            outcomes = run(
                _items(images, prompts), self._source, self._loaded, self._config, asking,
                self._stop,
            )  # fmt: skip
            with closing(outcomes):
                for group in outcomes:
                    for record in filter(None, map(rows.add, group)):
                        if bar is not None:
                            bar.update()
                        yield record
            if self._stop.is_set():
                raise VlbatchError("this Captioner was closed while it was captioning.")
        finally:
            if bar is not None:
                bar.close()
            self._busy.release()

    def _asking_each(self) -> Asking:
        """The same asking, with the prompt of each row in a field of its own."""
        prompts = PromptSet({ONLY_PROMPT: PromptTemplate(f"{{{_ROW_PROMPT}}}")})
        return replace(self._asking, prompts=prompts, raw_prompt=self._config.raw_prompt)

    def close(self) -> None:
        """Ends a call under way and lets go of the model."""
        self._stop.set()
        self._loaded = None

    def __enter__(self) -> Captioner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _items(images: Iterable[ImageLike], prompts: Iterable[str] | str | None) -> Iterator[Item]:
    each = None if prompts is None or isinstance(prompts, str) else iter(prompts)
    for index, image in enumerate(images):
        prompt = prompts if isinstance(prompts, str) else None
        if each is not None and (prompt := next(each, None)) is None:
            raise UsageError(f"prompts: there is none for image {index}; give one for each image.")
        yield _item(index, image, {} if prompt is None else {_ROW_PROMPT: prompt})
    if each is not None and next(each, None) is not None:
        raise UsageError("prompts: there are more than images; give one for each image.")


def _item(index: int, image: ImageLike, fields: dict[str, str]) -> Item:
    if isinstance(image, str | Path):
        return ImageRef(index, str(image), str(image), fields=fields)
    ref = ImageRef(index, str(index), f"memory:{index}", fields=fields)
    if isinstance(image, bytes | bytearray | memoryview):
        return ImageBytes(ref, bytes(image))
    try:
        return DecodedImage(ref, upright(_picture(image)))
    except Exception as error:  # pictures of other libraries raise what they like
        return Failure(ref, "decode", "not_an_image", f"{type(error).__name__}: {error}")


def _picture(image: Any) -> Image.Image:
    from PIL import Image

    if isinstance(image, Image.Image):
        return image.copy()
    shape, dtype = getattr(image, "shape", None), str(getattr(image, "dtype", ""))
    if shape is None or dtype != "uint8" or not (len(shape) == 2 or shape[2:] in {(3,), (4,)}):
        raise TypeError(
            f"an image must be a path, URL, bytes, PIL image or uint8 array [H, W(, 3 or 4)], not "
            f"{type(image).__name__} {dtype} {'' if shape is None else list(shape)}".rstrip()
        )
    return Image.fromarray(image)


def _is_array(images: Any) -> bool:
    """Whether it is one picture, though it can be iterated: its rows are not images."""
    return hasattr(images, "__array__") and hasattr(images, "shape")


def _bar(images: Iterable[ImageLike]) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=len(images) if isinstance(images, Sized) else None, unit="image")
