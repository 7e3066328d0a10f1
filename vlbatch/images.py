"""Encoded bytes → the upright RGB picture that a person sees, or why there is none.

The rules, in order: first frame; 16-bit and float values scaled; an ICC profile that fits the
pixels converted to sRGB; transparency over white; orientation applied once. A picture whose pixels
are not all there is an error. JPEGs are decoded by simplejpeg; for everything else, and whenever it
objects, Pillow's verdict is final.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageCms, ImageFile, UnidentifiedImageError
from PIL.ExifTags import Base

from vlbatch.formats import FORMATS, RARE_JPEG, SUPPORTED, UNSUPPORTED, quieten
from vlbatch.records import DecodedImage, Failure, ImageBytes

MAX_PIXELS = 178_956_970

_Transform = Callable[[Image.Image], Image.Image]

_WHITE = (255, 255, 255)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

#: Pixel modes that an ICC profile of each colour space fits.
_ICC_MODES = {"RGB": ("RGB", "RGBA"), "GRAY": ("L", "LA"), "CMYK": ("CMYK",)}

_TRUNCATED = re.compile("truncat|unexpected end|not enough|premature|incomplete|end of file", re.I)
_BREAKS_OFF = "the file breaks off before its last pixel"
_TOO_LARGE = re.compile("too large|exceeds limit|too big", re.I)


class _Refused(Exception):
    """Ends a decode: the code and message of its Failure."""

    def __init__(self, code: str, message: str, size: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.size: tuple[int | None, int | None] = size or (None, None)


def decode(item: ImageBytes, *, max_pixels: int = MAX_PIXELS) -> DecodedImage | Failure:
    """The upright RGB picture in `item`, or a Failure of stage `decode`.

    Codes: empty, not_an_image, unsupported, truncated, corrupt, too_large. A header that announces
    more than `max_pixels` is refused before any pixel is decoded (Pillow's own limit, twice
    `Image.MAX_IMAGE_PIXELS`, holds as well). Never raises for bad bytes; any thread may call it.
    """
    quieten()
    try:
        image = _decode(item.data, max_pixels)
    except _Refused as refused:
        return Failure(item.ref, "decode", refused.code, str(refused), *refused.size)
    return DecodedImage(item.ref, image)


def upright(image: Image.Image) -> Image.Image:
    """The RGB picture that `image` shows: turned by its EXIF orientation, values scaled to 8 bits,
    converted to sRGB if it carries a fitting profile, laid on white. `image` is left as it is.

    Raises what Pillow raises while it loads the pixels, and ValueError for a mode unknown to it.
    """
    quieten()
    image.load()
    return _finished(_to_rgb(image), _orientation(image))


def _decode(data: bytes, max_pixels: int) -> Image.Image:
    if not data:
        raise _Refused("empty", "no bytes")
    opened = _open(data)
    size = opened.size
    if size[0] * size[1] > max_pixels:
        message = f"{size[0]}x{size[1]} pixels are over the limit of {max_pixels}"
        raise _Refused("too_large", message, size)
    rgb = _fast_jpeg(data, opened)
    if rgb is not None:
        profile = opened.info.get("icc_profile")
        return _finished(_to_srgb(rgb, profile) if profile else rgb, _orientation(opened))
    try:
        return upright(opened)
    except Exception as error:  # Pillow's decoders raise nearly every kind, down to TypeError
        raise _explain(error, opened.size) from error


def _open(data: bytes) -> ImageFile.ImageFile:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise _Refused(*_unidentified(data)) from error
    except Exception as error:  # as above
        if _riff_breaks_off(data):
            raise _Refused("truncated", _BREAKS_OFF) from error
        raise _explain(error, None) from error


def _unidentified(data: bytes) -> tuple[str, str]:
    """Code and message of bytes that no decoder takes, by their signature."""
    if data.startswith(b"\xff\xd8") and RARE_JPEG.search(data):
        return "unsupported", "a JPEG of a rare kind: lossless, or not of 8 bits"
    if SUPPORTED.match(data):
        return "corrupt", "the header is damaged"
    if UNSUPPORTED.match(data[:4096]):
        return "unsupported", "this format is not read"
    return "not_an_image", "not an image in any known format"


def _riff_breaks_off(data: bytes) -> bool:
    return data[:4] == b"RIFF" and 8 + int.from_bytes(data[4:8], "little") > len(data)


def _explain(error: Exception, size: tuple[int, int] | None) -> _Refused:
    """What an exception of Pillow means."""
    text = str(error)
    if isinstance(error, MemoryError | Image.DecompressionBombError) or _TOO_LARGE.search(text):
        return _Refused("too_large", text or "not enough memory", size)
    if isinstance(error, NotImplementedError):
        return _Refused("unsupported", text or "this kind of file is not read", size)
    if isinstance(error, EOFError) or _TRUNCATED.search(text):
        return _Refused("truncated", _BREAKS_OFF, size)
    return _Refused("corrupt", text or type(error).__name__, size)


def _fast_jpeg(data: bytes, opened: ImageFile.ImageFile) -> Image.Image | None:
    """The pixels as simplejpeg decodes them, equal to Pillow's; None for what is left to Pillow."""
    if opened.format not in ("JPEG", "MPO") or opened.mode != "RGB":
        return None
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB")
    except Exception:  # whatever it says, Pillow decides
        return None
    height, width = pixels.shape[:2]
    return Image.fromarray(pixels) if (width, height) == opened.size else None


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 where there is none or the block can't be read."""
    try:
        return int(image.getexif().get(Base.Orientation, 1))
    except Exception:  # the parser of a damaged block raises nearly every kind
        return 1


def _finished(image: Image.Image, orientation: int) -> Image.Image:
    """`image` turned, without what would have it turned or converted once more."""
    turn = _TURNS.get(orientation)
    image = image if turn is None else image.transpose(turn)
    image.info = {}
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB image: values scaled, ICC to sRGB, over white."""
    profile = image.info.get("icc_profile")
    image = _eight_bits(image)
    if image.has_transparency_data and image.mode not in ("RGBA", "LA"):
        image = image.convert("RGBA")
    elif image.mode in ("P", "RGBX"):
        image = image.convert("RGB")
    if profile:
        image = _to_srgb(image, profile)
    if image.mode in ("RGBA", "LA"):
        return _over_white(image)
    return image.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, _WHITE)
    white.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return white


def _eight_bits(image: Image.Image) -> Image.Image:
    """`image` with values of 8 bits; a grey value that stands for transparency becomes alpha."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    grey = Image.fromarray(_scaled(values.astype(np.float64)))
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return grey
    alpha = np.where(values == transparent, 0, 255).astype(np.uint8)
    grey.putalpha(Image.fromarray(alpha))
    return grey


def _scaled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """[height, width] grey values as 0..255: from 0..1 or 0..65535, else from least to greatest."""
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    return np.rint((values - low) * (255 / ((high - low) or 1.0))).astype(np.uint8)


def _to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """`image` in sRGB; as it is if the profile is damaged, of other pixels, or sRGB itself."""
    transform = _transform(profile, image.mode)
    if transform is None:
        return image
    try:
        if image.mode != "LA":
            return transform(image)
        grey, alpha = image.split()
        colour = transform(grey)
        colour.putalpha(alpha)
        return colour
    except (ImageCms.PyCMSError, ValueError, OSError):
        return image


@lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> _Transform | None:
    """The transform of pixels of `mode` to sRGB; None if there is none to be made.

    One-pixel caches are off: transforms are shared between threads.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if mode not in _ICC_MODES.get(source.profile.xcolor_space.strip(), ()):
            return None
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            "L" if mode == "LA" else mode,
            "RGBA" if mode == "RGBA" else "RGB",
            flags=ImageCms.Flags.NOCACHE,
        )
        apply: _Transform = transform.apply
        return None if mode in ("RGB", "RGBA") and _is_identity(apply, mode) else apply
    except (ImageCms.PyCMSError, ValueError, TypeError, OSError):
        return None


def _is_identity(transform: _Transform, mode: str) -> bool:
    """Whether a transform moves no colour of a coarse grid by more than 1: sRGB's own profile."""
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(levels.size, -1, 3)
    moved = np.asarray(transform(Image.fromarray(grid).convert(mode)))[..., :3]
    return int(np.abs(moved.astype(int) - grid).max()) <= 1
