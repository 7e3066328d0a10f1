"""Rows: their keys, secrets left out, any name written losslessly."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.records import (
    Failure,
    Generation,
    ImageRef,
    build_record,
    public_text,
    public_uri,
)

KEYS = ["index", "key", "image", "caption", "finish_reason", "width", "height", "tokens", "error"]


def generation(name: str = "", text: str = "a dog") -> Generation:
    return Generation(ImageRef(3, "k", "a.jpg"), name, text, (5, 6), "stop", 9, 4, 20, 10)


def test_a_caption_row() -> None:
    row = build_record([generation()]).to_dict()
    assert list(row) == KEYS
    assert row == {
        "index": 3, "key": "k", "image": "a.jpg", "caption": "a dog", "finish_reason": "stop",
        "width": 20, "height": 10, "tokens": {"image": 4, "prompt": 9, "output": 2}, "error": None,
    }  # fmt: skip


def test_an_error_row_has_the_same_keys() -> None:
    failure = Failure(ImageRef(0, "k", "a"), "fetch", "http", "said 418", detail={"status": 418})
    row = build_record([failure]).to_dict()
    assert list(row) == KEYS
    assert row["caption"] is None
    assert row["error"] == {"stage": "fetch", "code": "http", "message": "said 418", "status": 418}


def test_several_prompts_are_keyed_by_name() -> None:
    row = build_record([generation("brief", "x"), generation("full", "y")]).to_dict()
    assert row["captions"] == {"brief": "x", "full": "y"}
    assert row["finish_reason"] == {"brief": "stop", "full": "stop"}
    assert row["tokens"]["full"] == {"image": 4, "prompt": 9, "output": 2}
    assert "caption" not in row


def test_one_bad_prompt_fails_the_row() -> None:
    failure = Failure(ImageRef(3, "k", "a.jpg"), "generate", "out_of_memory", "no", 20, 10)
    row = build_record([generation("brief"), failure]).to_dict()
    assert row["error"]["code"] == "out_of_memory"
    assert row["width"] == 20


def test_fields_are_carried_on_request() -> None:
    ref = ImageRef(0, "k", "a", fields={"tag": "see http://u:p@h/x", "other": "y"})
    outcome = Failure(ref, "decode", "corrupt", "no")
    assert build_record([outcome], save_fields=["tag", "none"]).to_dict()["fields"] == {
        "tag": "see http://h/x", "none": None,
    }  # fmt: skip
    assert "fields" not in build_record([outcome]).to_dict()


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("https://user:s3cr3t@host/a.png?x=1@2", "https://host/a.png?x=1@2"),
        ("HTTP://u@host/", "HTTP://host/"),
        ("http://host/a@b.png", "http://host/a@b.png"),
        ("http://u:p@[bad/x", "http://[bad/x"),
        ("http://u:SEC/RET?#3@h/x", "http://h/x"),
        ("http://h:80/a@b", "http://h:80/a@b"),
        ("http://h/a:b@c", "http://h/a:b@c"),
        ("ftp://u:s3cr3t@h/x", "ftp://h/x"),
        (" s3://u:s3cr3t@b/*.jpg", " s3://b/*.jpg"),
        ("a@b/c.jpg", "a@b/c.jpg"),
        ("naïve 日本.png", "naïve 日本.png"),
    ],
)
def test_credentials_are_never_written(given: str, written: str) -> None:
    assert public_uri(given) == written


@given(st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b))
def test_any_name_is_written_losslessly(name: bytes) -> None:
    path = "dir/" + os.fsdecode(name)
    written = public_uri(path)
    written.encode("utf-8")
    if written != path:
        assert os.fsencode(path) == unquote_to_bytes(written.removeprefix("file:"))


@pytest.mark.parametrize(("text", "right"), [("a\ud83d b", "a� b"), ("ok é", "ok é")])
def test_lone_surrogates_are_replaced(text: str, right: str) -> None:
    assert public_text(text) == right


def test_equal_inputs_share_a_seed() -> None:
    assert ImageRef(1, "a#2", "a", repeat=2).seed_key == ImageRef(0, "a", "a").seed_key
    assert ImageRef(1, "a#2", "a#2").seed_key == "a#2"
