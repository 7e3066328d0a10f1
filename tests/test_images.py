"""Every kind of picture comes out upright, RGB and as a person sees it; bad bytes are Failures."""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from vlbatch.images import decode, upright
from vlbatch.records import DecodedImage, Failure, ImageBytes, ImageRef

RED, BLUE, WHITE, BLACK = (220, 30, 30), (30, 30, 220), (255, 255, 255), (0, 0, 0)
REF = ImageRef(0, "key", "key")


def encoded(image: Image.Image, fmt: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, fmt, **options)
    return buffer.getvalue()


def picture(data: bytes) -> Image.Image:
    outcome = decode(ImageBytes(REF, data))
    assert isinstance(outcome, DecodedImage), outcome
    assert outcome.ref is REF
    assert outcome.image.mode == "RGB"
    return outcome.image


def failure(data: bytes, **options: int) -> Failure:
    outcome = decode(ImageBytes(REF, data), **options)
    assert isinstance(outcome, Failure), outcome
    assert (outcome.ref, outcome.stage) == (REF, "decode")
    return outcome


def assert_near(got: Any, want: tuple[int, int, int], tolerance: int = 8) -> None:
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= tolerance, (got, want)


def red_left(size: tuple[int, int] = (64, 32)) -> Image.Image:
    """Red on the left half, blue on the right."""
    image = Image.new("RGB", size, BLUE)
    image.paste(RED, (0, 0, size[0] // 2, size[1]))
    return image


def png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG of raw rows, each with its filter byte."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("fmt", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("JPEG", {"quality": 95, "progressive": True}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("AVIF", {"quality": 90}),
        ("PPM", {}),
        ("TGA", {}),
        ("JPEG2000", {}),
        ("QOI", {}),
    ],
)
def test_each_format_is_decoded(fmt: str, options: dict[str, Any]) -> None:
    image = picture(encoded(red_left(), fmt, **options))
    assert image.size == (64, 32)
    assert_near(image.getpixel((8, 16)), RED)
    assert_near(image.getpixel((56, 16)), BLUE)


def test_fast_jpeg_equals_pillow() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (37, 53, 3), np.uint8)
    smooth = Image.fromarray(noise).resize((530, 370))
    for options in (
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"subsampling": "4:2:0"},
        {"keep_rgb": True},
        {"progressive": True},
    ):
        data = encoded(smooth, "JPEG", quality=90, **options)
        with Image.open(io.BytesIO(data)) as reference:
            assert np.array_equal(np.asarray(picture(data)), np.asarray(reference))


TURNED = {
    1: None, 2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270",
}  # fmt: skip


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [*TURNED, 0, 9, 65535])
def test_orientation_is_applied_once(fmt: str, orientation: int) -> None:
    """B01: the picture is stored turned; what the model sees is upright, as its size says."""
    shown = red_left()
    shown.paste(WHITE, (0, 0, 32, 16))  # white over red, left of blue
    method = TURNED.get(orientation)
    stored = shown.transpose(Image.Transpose[method]) if method else shown
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if fmt == "JPEG" else {"lossless": True} if fmt == "WEBP" else {}
    image = picture(encoded(stored, fmt, exif=exif, **options))
    assert image.size == (64, 32)
    assert_near(image.getpixel((8, 6)), WHITE, 16)
    assert_near(image.getpixel((8, 26)), RED, 16)
    assert_near(image.getpixel((56, 16)), BLUE, 16)


def test_damaged_exif_is_ignored() -> None:
    for block in (b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + b"\x01" * 40):
        assert picture(encoded(red_left(), "JPEG", exif=block)).size == (64, 32)


def disc(mode: str) -> Image.Image:
    """A red square, everything around it transparent over black."""
    image = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    image.paste((*RED, 255), (10, 10, 30, 30))
    return image.convert(mode)


def palette_disc() -> tuple[Image.Image, dict[str, Any]]:
    image = Image.new("P", (40, 40), 0)
    image.putpalette([*BLACK, *RED])
    image.paste(1, (10, 10, 30, 30))
    return image, {"transparency": 0}


@pytest.mark.parametrize("kind", ["png", "webp", "gif", "palette", "grey", "tiff", "avif"])
def test_transparency_is_laid_on_white(kind: str) -> None:
    """B02: hidden colours stay hidden."""
    image, options = palette_disc() if kind in ("palette", "gif") else (disc("RGBA"), {})
    if kind == "grey":
        image = disc("LA")
    elif kind == "webp":
        options = {"lossless": True}
    fmt = {"palette": "PNG", "grey": "PNG"}.get(kind, kind.upper())
    got = picture(encoded(image, fmt, **options))
    assert_near(got.getpixel((2, 2)), WHITE)
    assert_near(got.getpixel((20, 20)), (87, 87, 87) if kind == "grey" else RED, 12)


def test_half_transparent_is_mixed_with_white() -> None:
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert_near(picture(encoded(image, "PNG")).getpixel((0, 0)), (127, 127, 127), 1)


def test_transparent_grey_value_of_16_bits() -> None:
    image = Image.fromarray(np.array([[0, 500], [65535, 0]], np.uint16))
    got = picture(encoded(image, "PNG", transparency=500))
    assert [got.getpixel((0, 0)), got.getpixel((1, 0))] == [BLACK, WHITE]


@pytest.mark.parametrize(
    ("values", "fmt"),
    [
        (np.linspace(0, 65535, 256).astype(np.uint16), "PNG"),
        (np.linspace(0, 65535, 256).astype(np.uint16), "TIFF"),
        (np.linspace(0, 1, 256).astype(np.float32), "TIFF"),
        (np.linspace(-3, 1000, 256).astype(np.float32), "TIFF"),
        (np.linspace(0, 2_000_000, 256).astype(np.int32), "TIFF"),
    ],
)
def test_deep_values_are_scaled_not_clipped(values: Any, fmt: str) -> None:
    image = picture(encoded(Image.fromarray(np.tile(values, (4, 1))), fmt))
    ramp = np.asarray(image)[0, :, 0].astype(int)
    assert np.abs(ramp - np.arange(256)).max() <= 1


def test_values_that_are_not_numbers_are_black() -> None:
    values = np.array([[np.nan, np.inf], [0.5, 1.0]], np.float32)
    image = picture(encoded(Image.fromarray(values), "TIFF"))
    assert np.asarray(image)[..., 0].tolist() == [[0, 0], [128, 255]]


def test_constant_deep_picture() -> None:
    image = picture(encoded(Image.fromarray(np.full((2, 2), 7e9, np.float32)), "TIFF"))
    assert image.size == (2, 2)


def test_16_bit_pgm() -> None:
    data = b"P5 2 1 65535\n" + struct.pack(">HH", 65535, 32896)
    assert np.asarray(picture(data))[0, :, 0].tolist() == [255, 128]


def test_cmyk_jpeg_shows_its_colours() -> None:
    image = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    assert_near(picture(encoded(image, "JPEG", quality=95)).getpixel((5, 5)), (255, 0, 0), 12)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK", "I;16", "F", "YCbCr", "HSV", "LAB"])
def test_upright_takes_any_mode(mode: str) -> None:
    image = Image.new("L", (6, 4), 255) if mode in ("I;16", "F") else red_left((6, 4))
    image = image.convert(mode)
    before = image.tobytes()
    got = upright(image)
    assert (got.mode, got.size) == ("RGB", (6, 4))
    assert got is not image
    assert image.tobytes() == before


def test_upright_turns_a_copy() -> None:
    image = red_left()
    image.getexif()[0x0112] = 6
    assert upright(image).size == (32, 64)
    assert image.size == (64, 32)


def test_what_is_upright_stays_so() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for fmt in ("JPEG", "PNG"):
        once = picture(encoded(red_left(), fmt, exif=exif, icc_profile=swapped_profile()))
        assert np.array_equal(np.asarray(upright(once)), np.asarray(once))


def swapped_profile() -> bytes:
    """sRGB's profile with red and blue primaries exchanged."""
    data = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return data.replace(b"rXYZ", b"tmpX").replace(b"bXYZ", b"rXYZ").replace(b"tmpX", b"bXYZ")


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_fitting_profile_is_converted(fmt: str) -> None:
    options = {"quality": 95} if fmt == "JPEG" else {"lossless": True} if fmt == "WEBP" else {}
    image = picture(encoded(red_left(), fmt, icc_profile=swapped_profile(), **options))
    assert_near(image.getpixel((8, 16)), BLUE, 16)
    assert_near(image.getpixel((56, 16)), RED, 16)


def test_profile_and_transparency_together() -> None:
    image = picture(encoded(disc("RGBA"), "PNG", icc_profile=swapped_profile()))
    assert_near(image.getpixel((2, 2)), WHITE)
    assert_near(image.getpixel((20, 20)), BLUE, 16)


@pytest.mark.parametrize("profile", [b"", b"junk", bytes(range(256)) * 8, swapped_profile()[:200]])
def test_damaged_profile_is_ignored(profile: bytes) -> None:
    plain = picture(encoded(red_left(), "PNG"))
    assert picture(encoded(red_left(), "PNG", icc_profile=profile)).tobytes() == plain.tobytes()


def test_profile_of_other_pixels_is_ignored() -> None:
    grey = red_left().convert("L")
    plain = picture(encoded(grey, "PNG"))
    assert picture(encoded(grey, "PNG", icc_profile=swapped_profile())).tobytes() == plain.tobytes()


def test_srgb_profile_changes_nothing() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = picture(encoded(red_left(), "JPEG"))
    assert picture(encoded(red_left(), "JPEG", icc_profile=profile)).tobytes() == plain.tobytes()


@pytest.mark.parametrize("fmt", ["GIF", "PNG", "WEBP", "TIFF", "MPO", "AVIF"])
def test_first_frame(fmt: str) -> None:
    first, second = Image.new("RGB", (16, 16), RED), Image.new("RGB", (16, 16), BLUE)
    data = encoded(first, fmt, save_all=True, append_images=[second])
    assert_near(picture(data).getpixel((8, 8)), RED, 16)


def test_largest_picture_of_an_icon() -> None:
    data = encoded(disc("RGBA").resize((64, 64)), "ICO", sizes=[(16, 16), (64, 64), (32, 32)])
    assert picture(data).size == (64, 64)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (27, 332), (28, 28), (10000, 2), (1, 9000)])
@pytest.mark.parametrize("fmt", ["PNG", "JPEG"])
def test_tiny_and_thin_pictures(size: tuple[int, int], fmt: str) -> None:
    """B08."""
    assert picture(encoded(Image.new("RGB", size, RED), fmt)).size == size


def test_huge_header_is_refused_before_decoding() -> None:
    """B03: 900 megapixels, of which no row is there."""
    refused = failure(png(30000, 30000, 1, 0, b""))
    assert refused.code == "too_large"


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_pixel_limit(fmt: str) -> None:
    data = encoded(red_left(), fmt)
    refused = failure(data, max_pixels=64 * 32 - 1)
    assert (refused.code, refused.width, refused.height) == ("too_large", 64, 32)
    assert isinstance(decode(ImageBytes(REF, data), max_pixels=64 * 32), DecodedImage)


def test_between_pillows_two_limits_there_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 32 - 1)
    assert picture(encoded(red_left(), "PNG")).size == (64, 32)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 8)
    assert failure(encoded(red_left(), "PNG")).code == "too_large"


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "TGA"])
def test_cut_picture_is_an_error(fmt: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)
    data = encoded(Image.fromarray(noise), fmt)
    assert failure(data[: len(data) * 2 // 3]).code in ("truncated", "corrupt")
    if fmt != "TIFF":  # whose directory is at its end
        assert failure(data[: len(data) * 2 // 3]).code == "truncated"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (b"<!doctype html><title>404</title>", "not_an_image"),
        (b'{"error": "gone"}', "not_an_image"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "not_an_image"),
        (b"\0" * 1000, "not_an_image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "corrupt"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 40, "corrupt"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unsupported"),
        (b"%PDF-1.7\n", "unsupported"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported"),
        (b"\xff\x0a" + b"\0" * 40, "unsupported"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "unsupported"),
    ],
)
def test_what_is_no_picture(data: bytes, code: str) -> None:
    assert failure(data).code == code


def test_flipped_bits_in_png_are_corrupt() -> None:
    data = bytearray(encoded(red_left(), "PNG"))
    data[-20] ^= 0xFF
    assert failure(bytes(data)).code in ("corrupt", "truncated")


@settings(max_examples=60, deadline=None)
@given(
    fmt=st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "TGA", "ICO", "PPM"]),
    edits=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=12),
    cut=st.floats(0.1, 1),
)
def test_damaged_bytes_never_raise(fmt: str, edits: list[tuple[float, int]], cut: float) -> None:
    data = bytearray(SAMPLES[fmt]())
    for place, value in edits:
        data[int(place * len(data))] = value
    outcome = decode(ImageBytes(REF, bytes(data[: int(cut * len(data))])))
    assert isinstance(outcome, Failure) or outcome.image.mode == "RGB"


def _sample(fmt: str) -> Callable[[], bytes]:
    return lambda: encoded(red_left(), fmt)


SAMPLES = {
    fmt: _sample(fmt)
    for fmt in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "TGA", "ICO", "PPM")
}  # fmt: skip


def test_warnings_of_pillow_do_not_escape() -> None:
    odd = red_left().quantize(8)
    data = encoded(odd, "PNG", transparency=bytes([0, 128, 255]))  # makes convert("RGB") warn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert picture(data).size == (64, 32)
        with pytest.raises(UserWarning, match="ours"):
            warnings.warn("ours", stacklevel=1)


def test_many_threads_decode_at_once() -> None:
    colours = [(n * 7 % 256, n * 13 % 256, n * 29 % 256) for n in range(64)]
    items = []
    for n, colour in enumerate(colours):
        image = Image.new("RGB", (50 + n, 40), colour)
        data = encoded(image, ["PNG", "JPEG"][n % 2], icc_profile=swapped_profile())
        items.append(ImageBytes(ImageRef(n, str(n), str(n)), data))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(decode, items))
    for item, outcome, (red, green, blue) in zip(items, outcomes, colours, strict=True):
        assert isinstance(outcome, DecodedImage)
        assert outcome.ref is item.ref
        assert outcome.image.width == 50 + item.ref.index
        assert_near(outcome.image.getpixel((5, 5)), (blue, green, red), 24)


CORPUS = Path(os.environ.get("VLBATCH_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
CORPUS_CODES = {"unsupported_format": "unsupported"}


@pytest.mark.skipif(
    not (CORPUS / "manifest.jsonl").exists(), reason=f"no corpus at {CORPUS} (VLBATCH_CORPUS)"
)
def test_corpus(capfd: pytest.CaptureFixture[str]) -> None:
    """All files of the corpus; capfd holds what libtiff writes past Python."""
    lines = (CORPUS / "manifest.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "file" in row]
    assert len(rows) > 100
    wrong = {row["file"]: trouble for row in rows if (trouble := _disagreement(row))}
    assert not wrong


def _disagreement(row: dict[str, Any]) -> str:
    outcome = decode(ImageBytes(REF, (CORPUS / row["file"]).read_bytes()))
    tolerated = "caption_also_ok" in row or "contentious" in row
    if isinstance(outcome, Failure):
        due = [CORPUS_CODES.get(c, c) for c in [row.get("error"), *row.get("error_also", [])]]
        fine = tolerated if row["expect"] == "caption" else outcome.code in due
        return "" if fine else f"{outcome.code}: {outcome.message}"
    due = row if row["expect"] == "caption" else row.get("if_supported", {})
    if not due:
        return "" if tolerated else "a caption"
    if list(outcome.image.size) != due["size"]:
        return f"size {outcome.image.size}"
    for x, y, *colour, tolerance in due.get("pixels", []):
        got = outcome.image.getpixel((x, y))
        if max(abs(a - b) for a, b in zip(got, colour, strict=True)) > tolerance:
            return f"pixel {x},{y} is {got}"
    return ""
