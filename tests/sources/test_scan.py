"""Folders and globs: which files, in which order, with which keys."""

from __future__ import annotations

import glob
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlbatch.images import FORMATS
from vlbatch.sources import scan
from vlbatch.sources.scan import LeftOut, expand_glob, natural_key


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def scanned(folder: Path, recursive: bool = True) -> list[str]:
    return list(scan.scan(str(folder), recursive, LeftOut()))


def test_every_suffix_in_any_case(tmp_path: Path) -> None:
    """B12."""
    touch(tmp_path, "A.JPG", "b.jpeg", "c.WebP", "d.jfif", "e.avif", "f.txt", "g")
    left_out = LeftOut()
    assert list(scan.scan(str(tmp_path), True, left_out)) == [
        "A.JPG", "b.jpeg", "c.WebP", "d.jfif", "e.avif",
    ]  # fmt: skip
    assert left_out.total == 2
    assert left_out.suffixes == {".txt": 1, "(no suffix)": 1}


def test_suffixes_are_those_of_the_formats_that_are_decoded() -> None:
    Image.init()
    formats = {Image.EXTENSION.get(suffix, suffix) for suffix in scan.IMAGE_SUFFIXES}
    assert formats <= {*FORMATS, "MPO"}
    assert not {".eps", ".ps", ".wmf", ".emf", ".pdf", ".svg"} & scan.IMAGE_SUFFIXES


def test_natural_order_of_files_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "img10.png", "IMG2.png", "img1.png", "a2/x.png", "a10/x.png", "b.png")
    expected = ["a2/x.png", "a10/x.png", "b.png", "img1.png", "IMG2.png", "img10.png"]
    assert scanned(tmp_path) == expected
    assert scanned(tmp_path, recursive=False) == ["b.png", "img1.png", "IMG2.png", "img10.png"]


@given(st.lists(st.integers(0, 10**30), min_size=2, max_size=2))
def test_numbers_sort_by_value(numbers: list[int]) -> None:
    low, high = sorted(numbers)
    assert natural_key(f"img{low}.png") <= natural_key(f"img{high}.png")
    assert natural_key(f"img{low:040}.png") <= natural_key(f"img{high}.png")


@given(st.text(), st.text())
def test_case_makes_no_difference(left: str, right: str) -> None:
    assert natural_key(left + right) == natural_key((left + right).casefold())


def test_hidden_and_special_files_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "ok.jpg", ".hidden.jpg", "._ok.jpg", ".git/x.jpg", "__MACOSX/x.jpg", "x.part")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "dangling.jpg").symlink_to("nowhere.jpg")
    left_out = LeftOut()
    assert list(scan.scan(str(tmp_path), True, left_out)) == ["ok.jpg"]
    assert left_out.suffixes == {"(hidden)": 4, "(not a regular file)": 2, ".part": 1}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    touch(tmp_path, "d/one.jpg", "e/two.jpg")
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "d" / "self").symlink_to(".")
    (tmp_path / "d" / "e").symlink_to("../e")
    (tmp_path / "d" / "link.jpg").symlink_to("one.jpg")
    found = scanned(tmp_path / "d")
    assert found == ["e/two.jpg", "link.jpg", "one.jpg", "up/e/two.jpg"]


def test_folder_named_like_a_picture_is_walked(tmp_path: Path) -> None:
    touch(tmp_path, "album.jpg/in.jpg")
    assert scanned(tmp_path) == ["album.jpg/in.jpg"]


def test_names_come_back_as_they_are(tmp_path: Path) -> None:
    names = {"naïve café.jpg", "cafe\u0301.jpg", "  two.jpg", "t .jpg", "100%.jpg", "%41.jpg",
             "[b]*.jpg", "tab\t.jpg", "line\n.jpg", "back\\slash.jpg", "-dash.jpg",
             os.fsdecode(b"caf\xe9.jpg")}  # fmt: skip
    touch(tmp_path, *names)
    assert set(scanned(tmp_path)) == names


def test_deep_tree(tmp_path: Path) -> None:
    touch(tmp_path, "/".join(["d"] * 500) + "/x.jpg")
    assert scanned(tmp_path) == ["d/" * 500 + "x.jpg"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_folder_without_permission(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a.jpg", "closed/b.jpg", "z.jpg")
    (tmp_path / "closed").chmod(0)
    with caplog.at_level(logging.WARNING, "vlbatch"):
        assert scanned(tmp_path) == ["a.jpg", "z.jpg"]
    (tmp_path / "closed").chmod(0o700)
    assert "closed" in caplog.text


def test_folder_that_vanishes_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path, "a.jpg", "b/b.jpg", "c.jpg")
    names = scan.scan(str(tmp_path), True, LeftOut())
    assert next(names) == "a.jpg"
    (tmp_path / "b" / "b.jpg").unlink()
    (tmp_path / "b").rmdir()
    with caplog.at_level(logging.WARNING, "vlbatch"):
        assert list(names) == ["c.jpg"]
    assert "passed over" in caplog.text


def test_folder_beyond_the_sort_limit_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SORT_LIMIT", 10)
    names = {f"{n}.jpg" for n in range(25)}
    touch(tmp_path, *names)
    found = scanned(tmp_path)
    assert len(found) == 25
    assert set(found) == names


def test_left_out_suffixes_are_bounded() -> None:
    left_out = LeftOut()
    for n in range(1000):
        left_out.add(f".{n}")
    assert left_out.total == 1000
    assert len(left_out.suffixes) == 51


TREE = (
    "a.jpg", "b.JPG", "c.txt", "img2.png", "img10.png", ".h.jpg", "x/a.jpg", "x/y/a.jpg",
    "x/y/x/y/b.jpg", "x/.h/a.jpg", "[b]/a.jpg", "y/x/notes.txt", "a/a/a/a.jpg",
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["*.jpg", "img*.png", "**/*.jpg", "**/a.jpg", "x/*/a.jpg", "x/**/*.jpg", "**/x/**/*.jpg",
     "**/**/a.jpg", "[ab].jpg", "?.jpg", "*/y/*.jpg", ".h.jpg", ".*.jpg", "[[]b]/*.jpg",
     "./x/*.jpg", "x/../*.jpg", "x//*.jpg", "**/a/**/a.jpg", "*.txt", "[!a]*.jpg"],
)  # fmt: skip
def test_glob_finds_what_the_standard_library_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    touch(tmp_path, *TREE)
    monkeypatch.chdir(tmp_path)
    for given_pattern in (pattern, f"{tmp_path}/{pattern}"):
        due = {os.path.normpath(p) for p in glob.glob(given_pattern, recursive=True)}
        found = list(expand_glob(given_pattern, LeftOut()))
        assert {os.path.normpath(p) for p in found} == due
        assert len(found) == len(due)


def test_glob_with_open_suffix_takes_images_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *TREE)
    monkeypatch.chdir(tmp_path)
    left_out = LeftOut()
    assert list(expand_glob("*", left_out)) == ["a.jpg", "b.JPG", "img2.png", "img10.png"]
    assert left_out.suffixes == {".txt": 1}
    assert list(expand_glob("x/**", LeftOut())) == ["x/a.jpg", "x/y/a.jpg", "x/y/x/y/b.jpg"]


def test_glob_ends_in_loops(tmp_path: Path) -> None:
    touch(tmp_path, "d/one.jpg")
    (tmp_path / "d" / "up").symlink_to("..")
    found = list(expand_glob(f"{tmp_path}/**/*.jpg", LeftOut()))
    assert found == [f"{tmp_path}/d/one.jpg"]
