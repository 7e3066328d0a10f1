"""The types that cross stages, from an input to its row.

    ImageRef → ImageBytes → DecodedImage → ModelInput → Generation
        └──────────┴─────────────┴─────────────┴─────────────┴→ Failure
    outcomes of one ref → CaptionRecord (the row)

All are frozen. Nothing here imports vlbatch or torch: any process may load it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote_from_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

FinishReason = Literal["stop", "length"]

#: The prompt name of a run with one prompt: its row has `caption`, not `captions`.
ONLY_PROMPT = ""

#: User and password of any URL in a text. After `user:` a password may hold what a URL can't, if
#: what follows the colon is not a port.
_USERINFO = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://)"
    r"(?:[^\s/?#]*@|[^\s/?#@:]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ImageRef:
    """One input, before anything was read of it.

    index: position over all inputs of the run, from 0.
    key: unique name within the run: the id column, the path relative to its INPUT, or the URL as
        given; the n-th repeat of a key carries the suffix `#n`.
    uri: the input as given: a path (bytes that are not UTF-8 as surrogate escapes) or a URL.
    base: folder in which a relative path is looked for when it does not exist as given: the
        folder of the list file, or empty.
    fields: the columns of the input's row in its list: text, or any JSON value of a jsonl.
    repeat: how many times `key` had come with this one (1 = the first).
    """

    index: int
    key: str
    uri: str
    base: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1

    @property
    def seed_key(self) -> str:
        """The key without its repeat suffix: equal inputs are sampled alike."""
        return self.key.removesuffix(f"#{self.repeat}") if self.repeat > 1 else self.key


@dataclass(frozen=True, slots=True)
class ImageBytes:
    """The encoded image of a ref: bytes of a JPEG, PNG, …, not yet looked into."""

    ref: ImageRef
    data: bytes


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """The upright RGB picture of a ref (`image.mode == "RGB"`)."""

    ref: ImageRef
    image: Image


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What the model takes for one image and one prompt: the processor's outputs.

    input_ids: prompt tokens with the image's placeholders, length = prompt length.
    tensors: the processor's other outputs by name (`pixel_values`, `image_grid_thw`, …), each
        with its leading batch dimension of one image.
    num_image_tokens: placeholders in `input_ids` (0 for classes that have none).
    width, height: of the upright picture, in pixels.
    """

    ref: ImageRef
    prompt_name: str
    input_ids: tuple[int, ...]
    tensors: Mapping[str, Any]
    num_image_tokens: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Generation:
    """The caption of one image and one prompt. `token_ids` is without the stop token."""

    ref: ImageRef
    prompt_name: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_image_tokens: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input has no caption.

    stage: where it failed: source, fetch, decode, prompt, process or generate.
    code: a word that tells unlike causes apart (`not_found`, `truncated`, …).
    message: one line for a person, without secrets.
    detail: further facts of the error for the row, such as {"status": 404}.
    """

    ref: ImageRef
    stage: str
    code: str
    message: str
    width: int | None = None
    height: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    prompt_name: str = ONLY_PROMPT  # whose caption failed, from stage generate on


#: Where a run may take up an input: any stage before the model.
Item = ImageRef | ImageBytes | DecodedImage | Failure


@dataclass(frozen=True, slots=True)
class CaptionRecord:
    """One row of the output; `to_dict` gives its JSON object.

    With one prompt `caption` is text and `captions` None; with several, `captions` maps each
    prompt's name to its text, and `finish_reason` and `tokens` are keyed by name as well.
    """

    index: int
    key: str
    image: str
    caption: str | None = None
    captions: Mapping[str, str] | None = None
    finish_reason: str | Mapping[str, str] | None = None
    width: int | None = None
    height: int | None = None
    tokens: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON object, keys in the documented order."""
        text = {"caption": self.caption} if self.captions is None else {"captions": self.captions}
        row = {
            "index": self.index,
            "key": self.key,
            "image": self.image,
            **text,
            "finish_reason": self.finish_reason,
            "width": self.width,
            "height": self.height,
            "tokens": self.tokens,
            "error": self.error,
        }
        return row if self.fields is None else row | {"fields": dict(self.fields)}


def build_record(
    outcomes: Sequence[Generation | Failure], *, save_fields: Sequence[str] = ()
) -> CaptionRecord:
    """The row of one ref from its outcomes, one for each prompt (one failure fails the row)."""
    ref = outcomes[0].ref
    image = public_uri(ref.uri)
    fields = {name: _public_value(ref.fields.get(name)) for name in save_fields} or None
    key = public_uri(ref.key)
    generations = [o for o in outcomes if isinstance(o, Generation)]
    failure = next((o for o in outcomes if isinstance(o, Failure)), None)
    width, height = outcomes[0].width, outcomes[0].height
    if failure is not None:
        error = {"stage": failure.stage, "code": failure.code, "message": failure.message}
        error |= failure.detail
        return CaptionRecord(
            ref.index, key, image, width=width, height=height, error=error, fields=fields
        )
    tokens = {
        g.prompt_name: {
            "image": g.num_image_tokens,
            "prompt": g.num_prompt_tokens,
            "output": len(g.token_ids),
        }
        for g in generations
    }
    texts = {g.prompt_name: public_text(g.text) for g in generations}
    reasons: dict[str, str] = {g.prompt_name: g.finish_reason for g in generations}
    if set(texts) == {ONLY_PROMPT}:
        return CaptionRecord(
            ref.index, key, image, caption=texts[ONLY_PROMPT], width=width, height=height,
            finish_reason=reasons[ONLY_PROMPT], tokens=tokens[ONLY_PROMPT], fields=fields,
        )  # fmt: skip
    return CaptionRecord(
        ref.index, key, image, captions=texts, finish_reason=reasons,
        width=width, height=height, tokens=tokens, fields=fields,
    )  # fmt: skip


def public_text(text: str) -> str:
    """`text` as it may be written: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def field_text(value: Any) -> str:
    """A field as text: itself, the JSON of other values, nothing for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def without_secrets(text: str) -> str:
    """`text` without the user and password of any URL in it."""
    return _USERINFO.sub(r"\1", text)


def _public_value(value: Any) -> Any:
    return public_text(without_secrets(value)) if isinstance(value, str) else value


def public_uri(uri: str) -> str:
    """`uri` as it may be written: without credentials, and lossless.

    A URL of any scheme loses its user and password. A path that is not UTF-8 becomes a
    percent-encoded `file:` URI (relative paths stay relative: `file:photos/%FF.jpg`), which opens
    the same file as INPUT.
    """
    if "://" in uri:
        return public_text(without_secrets(uri))
    try:
        uri.encode()
    except UnicodeEncodeError:
        return "file:" + quote_from_bytes(os.fsencode(uri), safe="/")
    return uri


def is_url(uri: str) -> bool:
    """Whether `uri` names something to fetch over http(s)."""
    return uri[:8].lower().startswith(("http://", "https://"))
