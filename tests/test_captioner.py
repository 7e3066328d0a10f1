"""The Python API: any kind of image, records as they finish, one bad image no exception."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlbatch import Captioner
from vlbatch.config import api_options
from vlbatch.errors import UsageError, VlbatchError
from vlbatch.records import CaptionRecord


def png(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), colour).save(buffer, "PNG")
    return buffer.getvalue()


def by_index(records: Iterator[CaptionRecord]) -> list[CaptionRecord]:
    return sorted(records, key=lambda record: record.index)


def test_every_kind_of_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png((255, 0, 0)))
    grey = np.full((7, 9), 128, np.uint8)
    red = np.zeros((7, 9, 3), np.uint8)
    red[..., 0] = 255
    clear = Image.new("RGBA", (9, 7), (0, 0, 0, 0))
    with Captioner("stub:colour", chunk_size=3) as captioner:
        records = by_index(captioner([
            str(tmp_path / "a.png"), tmp_path / "a.png", png((0, 0, 255)),
            Image.new("RGB", (9, 7), (0, 255, 0)), red, grey, clear,
        ]))  # fmt: skip
    colours = [(record.caption or "").split("#")[1][:6] for record in records]
    assert colours == ["ff0000", "ff0000", "0000ff", "00ff00", "ff0000", "808080", "ffffff"]
    assert [(record.width, record.height) for record in records] == [(9, 7)] * 7


def test_a_bad_image_is_a_record(tmp_path: Path) -> None:
    images = ["nowhere.png", b"junk", np.zeros((3, 3), np.float32), object(), png((1, 2, 3))]
    with Captioner("stub:colour") as captioner:
        records = by_index(captioner(images))  # type: ignore[arg-type]
    assert [record.error is None for record in records] == [False] * 4 + [True]
    assert records[0].error is not None
    assert records[0].error["code"] == "not_found"


def test_a_caller_s_picture_is_not_changed() -> None:
    image = Image.new("RGBA", (9, 7), (0, 0, 0, 0))
    with Captioner("stub:colour") as captioner:
        list(captioner([image]))
    assert image.mode == "RGBA"


def test_prompts_for_all_or_for_each() -> None:
    image = png((1, 2, 3))
    with Captioner("stub:colour") as captioner:
        one = by_index(captioner([image] * 2, "two {words}"))
        each = by_index(captioner([image] * 2, ["one", "now three words"]))
        with pytest.raises(ValueError, match="prompts"):
            list(captioner([image] * 3, ["one", "two"]))
    assert [record.tokens["prompt"] for record in one if record.tokens] == [2, 2]
    assert [record.tokens["prompt"] for record in each if record.tokens] == [1, 3]


def test_images_are_read_as_needed() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield png((1, 2, 3))

    with Captioner("stub:colour", chunk_size=2) as captioner:
        records = captioner(endless())
        for _ in range(5):
            next(records)
        records.close()
        assert taken < 2000
        assert len(list(captioner([png((1, 2, 3))]))) == 1  # free again after an early end


def test_one_call_at_a_time() -> None:
    with Captioner("stub:colour") as captioner:
        first = captioner([png((1, 2, 3))] * 2)
        next(first)
        with pytest.raises(VlbatchError, match="busy"):
            next(captioner([png((1, 2, 3))]))
        first.close()


def test_one_image_is_not_a_list_of_images(tmp_path: Path) -> None:
    images = ["a.jpg", b"x", Path("a.jpg"), Image.new("RGB", (2, 2)), np.zeros((4, 4, 3), np.uint8)]
    with Captioner("stub:colour") as captioner:
        for image in images:
            with pytest.raises(UsageError, match="give a list"):
                captioner(image)  # type: ignore[arg-type]


def test_a_closed_captioner_says_so() -> None:
    with Captioner("stub:colour") as captioner:
        pass
    with pytest.raises(VlbatchError, match="closed"):
        list(captioner([png((1, 2, 3))]))


def test_images_before_a_broken_iterator_have_their_records() -> None:
    def breaking() -> Iterator[bytes]:
        yield from (png((n, 0, 0)) for n in range(20))
        raise RuntimeError("the generator broke")

    found = []
    with Captioner("stub:colour") as captioner, pytest.raises(RuntimeError, match="broke"):
        found.extend(captioner(breaking()))
    # extend keeps what came before the exception
    assert sorted(record.index for record in found) == list(range(20))


def test_an_early_end_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with Captioner("stub:colour", chunk_size=2) as captioner:
        for _ in range(3):
            records = captioner(png((1, 2, 3)) for _ in itertools.count())
            next(records)
            time.sleep(0.3)
            records.close()
        deadline = time.monotonic() + 5
        while set(threading.enumerate()) - before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_pictures_that_raise_anything_are_records() -> None:
    class Odd(Image.Image):
        def copy(self) -> Image.Image:
            raise NotImplementedError("odd")

    with Captioner("stub:colour") as captioner:
        (record,) = captioner([Odd()])
    assert record.error is not None
    assert "NotImplementedError" in record.error["message"]


def test_several_prompts_by_name() -> None:
    with Captioner("stub:colour", prompt={"a": "x", "b": "y z"}) as captioner:
        (record,) = captioner([png((1, 2, 3))])
    assert set(record.captions or ()) == {"a", "b"}


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="max_tokens"):
        Captioner("stub:colour", max_tokens=3)
    with pytest.raises(UsageError, match="--top-p"):
        Captioner("stub:colour", top_p=0)
    with pytest.raises(UsageError, match="no such folder"):
        Captioner("./no-such-model")
    assert {"prompt", "max_new_tokens", "device"} <= set(api_options())


def test_the_interpreter_ends_cleanly_right_after(tmp_path: Path) -> None:
    """A thread still inside torch when the interpreter went down aborted the process."""
    code = (
        "from vlbatch import Captioner\n"
        "from vlbatch.demo import IMAGES_DIR\n"
        "images = sorted(IMAGES_DIR.iterdir()) * 2\n"
        "with Captioner(device='cpu', max_new_tokens=3) as captioner: list(captioner(images))\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Captioner("stub:colour") as captioner:
        assert len(list(captioner([png((1, 2, 3))] * 3, show_progress=True))) == 3
    assert "3/3" in capsys.readouterr().err
