from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.sink import marks
from vlbatch.sink.marks import IndexMarks, KeyMarks


@given(st.lists(st.integers(0, 3000)), st.lists(st.integers(0, 40_000)))
def test_index_marks_are_a_set_of_integers(added: list[int], asked: list[int]) -> None:
    bitmap, model = IndexMarks(), set[int]()
    for index in added:
        assert bitmap.add(index) == (index not in model)
        model.add(index)
    assert [i in bitmap for i in asked + added] == [i in model for i in asked + added]
    assert bitmap.top == max(model, default=-1) + 1


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdefg")))
def test_key_marks_are_a_multiset(added: list[str], asked: list[str]) -> None:
    keys, model = KeyMarks(), Counter(added)
    for key in added:
        keys.add(key)
    for key in asked:
        assert keys.take(key) == (model[key] > 0)
        model[key] -= model[key] > 0
    assert keys.num_left == model.total()
    assert len(keys) == len(added)


@given(st.sets(st.text("01", min_size=16, max_size=16), max_size=40))
def test_digests_are_compared_whole_also_with_zero_bytes(texts: set[str]) -> None:
    digests = {text: text.replace("0", "\0").encode() for text in texts}
    some, others = dict(list(digests.items())[::2]), dict(list(digests.items())[1::2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks, "_digest", digests.__getitem__)
        keys = KeyMarks()
        for text in some:
            keys.add(text)
        assert not any(keys.take(text) for text in others)
        assert all(keys.take(text) for text in some)
        assert not any(keys.take(text) for text in some)


def test_a_key_may_hold_surrogates() -> None:
    keys = KeyMarks()
    keys.add("\udcff.jpg")
    assert keys.take("\udcff.jpg")
    assert not keys.take("\udcfe.jpg")
