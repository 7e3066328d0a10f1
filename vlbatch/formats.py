"""The image formats: which are tried, how others are told apart, and what they print."""

from __future__ import annotations

import ctypes
import re
import threading
import warnings
from functools import cache
from pathlib import Path

import PIL

#: What Pillow may try, with TGA (which has no signature) last. Formats that start programs (EPS) or
#: only pretend to be decoded (HDF5, GRIB) are never tried.
FORMATS = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "ICO", "JPEG2000", "PPM", "PSD",
    "QOI", "TGA",
)  # fmt: skip

#: Signatures of the formats that are tried: bytes with one that can't be opened are corrupt.
SUPPORTED = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF....WEBP|GIF8[79]a|BM.{12}|II\*\0|MM\0\*|II\+\0|MM\0\+"
    rb"|....ftypavi[fs]|\0\0\x01\0|\xff\x4f\xff\x51|\0\0\0\x0cjP  |P[1-7]\s|8BPS|qoif",
    re.DOTALL,
)
#: Signatures of pictures, documents and films in formats that are not read.
UNSUPPORTED = re.compile(
    rb"....ftyp|\xff\x0a|\0\0\0\x0cJXL |\xef?\xbb?\xbf?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?"
    rb"(<!DOCTYPE svg|<svg)|%!|\xc5\xd0\xd3\xc6|%PDF|\x89HDF|\xd7\xcd\xc6\x9a|GRIB|DDS |"
    rb"SIMPLE  =|\x01\xda|v/1\x01|#\?RADIANCE|\x1aE\xdf\xa3|OggS|RIFF....AVI |\0\0\x01\xba",
    re.DOTALL,
)
#: A JPEG frame that is lossless, hierarchical or not of 8 bits.
RARE_JPEG = re.compile(
    rb"\xff([\xc3\xc5-\xc7\xcb\xcd-\xcf]|[\xc0-\xc2\xc9\xca]..[^\x08])", re.DOTALL
)

_PILLOW_FILTER_LOCK = threading.Lock()


def quieten() -> None:
    """Ignores the warnings of Pillow and libtiff: a picture is captioned or is an error row, and
    there are many.

    `warnings.catch_warnings` is not safe with threads, so the filter is put in front once, and
    again only where it is no longer in front.
    """
    _quieten_libtiff()
    first = warnings.filters[0] if warnings.filters else None
    if first is None or first[0] != "ignore" or getattr(first[3], "pattern", None) != r"PIL\.":
        with _PILLOW_FILTER_LOCK:
            warnings.filterwarnings("ignore", module=r"PIL\.")


@cache
def _quieten_libtiff() -> None:
    """Takes away libtiff's handlers, which print to file descriptor 2 whatever they find odd.

    They are set for the whole process; Pillow raises the same errors. Only the libtiff that
    Pillow's wheels bring along is reached, and a Pillow without one prints nothing.
    """
    for path in Path(PIL.__file__).parents[1].glob("pillow.libs/libtiff*.so*"):
        library = ctypes.CDLL(str(path))
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            handler = getattr(library, name)
            handler.restype = ctypes.c_void_p
            handler(None)
