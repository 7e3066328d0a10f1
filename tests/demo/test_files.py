"""Scenes as files, planted faults, and pictures that are not ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from vlbatch.demo import atlas, strangers
from vlbatch.demo.evaluate import replace_whole_tiles, reverse_local_tiles
from vlbatch.demo.files import picture_file
from vlbatch.demo.sprites import procedural


def test_a_seed_gives_the_same_file_again() -> None:
    for seed in range(8):
        first, second = (picture_file(seed, procedural()) for _ in range(2))
        assert first == second
        assert max(first.image().size) <= 1024
        assert first.asked[0].prompt == "Describe this image."
        kinds = [question.kind for question in first.asked]
        assert len(set(kinds)) == len(kinds)


def numbered_tiles() -> tuple[torch.Tensor, torch.Tensor]:
    """Two images, of five tiles and of three; each pixel holds its tile's number."""
    pixels = torch.arange(1.0, 11.0).view(2, 5, 1, 1, 1).expand(2, 5, 3, 4, 4).clone()
    mask = torch.ones(2, 5, 4, 4)
    pixels[1, 3:], mask[1, 3:] = 0, 0
    return pixels, mask


def test_reversed_tiles_leave_the_whole_picture_and_the_padding() -> None:
    turned = reverse_local_tiles(*numbered_tiles())[:, :, 0, 0, 0]
    assert turned.tolist() == [[4, 3, 2, 1, 5], [7, 6, 8, 0, 0]]


def test_other_whole_pictures_leave_the_tiles() -> None:
    turned = replace_whole_tiles(*numbered_tiles())[:, :, 0, 0, 0]
    assert turned.tolist() == [[1, 2, 3, 4, 8], [6, 7, 5, 0, 0]]


def test_nouns_of_other_pictures(tmp_path: Path) -> None:
    lines = {"one": "A brown bear.\nfr=Un ours", "two": "A walk in the park.", "three": "An owl"}
    for name, line in lines.items():
        Image.new("RGBA", (8, 6), (0, 0, 0, 0)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_text(line, "utf-8")
    Image.new("L", (8, 6)).save(tmp_path / "four.jpg")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    found = {path.name: (image, strangers.known_noun(path)) for path, image in
             strangers.open_pictures(tmp_path)}  # fmt: skip
    nouns = {name: noun for name, (_, noun) in found.items()}
    assert nouns == {"one.png": "bear", "two.png": None, "three.png": "owl", "four.jpg": None}
    assert found["one.png"][0].getpixel((0, 0)) == (255, 255, 255)


def test_where_the_atlas_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLBATCH_DEMO_ATLAS", str(tmp_path / "here.npz"))
    assert atlas.default_path() == tmp_path / "here.npz"
    assert atlas.load_or_procedural() is procedural()
    monkeypatch.delenv("VLBATCH_DEMO_ATLAS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert atlas.default_path() == tmp_path / "vlbatch" / "demo-atlas.npz"


def test_an_icon_is_cropped_and_centred() -> None:
    pytest.importorskip("resvg_py")
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16" height="16">'
        '<rect x="1" y="1" width="4" height="4" fill="#ff0000"/></svg>'
    )
    sprite = atlas.rasterise(svg)
    assert sprite is not None
    assert sprite[48, 48].tolist() == [255, 0, 0, 255]
    assert sprite[0, 48].tolist() == [0, 0, 0, 0]
    assert sprite[6, 6].tolist() == [255, 0, 0, 255]
