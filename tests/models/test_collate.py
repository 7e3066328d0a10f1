from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from vlbatch.models.collate import collate, shapes
from vlbatch.models.features import join_features

CPU = torch.device("cpu")


def test_trailing_dims_are_padded_at_their_end() -> None:
    small, large = torch.ones(1, 2, 3), torch.full((2, 4, 1), 2.0)
    joined = collate([{"x": small}, {"x": large}], CPU, torch.float32)["x"]
    assert joined.shape == (3, 4, 3)
    assert torch.equal(joined[0, :2], small[0])
    assert torch.equal(joined[1:, :, :1], large)
    assert joined.sum() == small.sum() + large.sum()


def test_floats_take_the_models_type_and_ids_keep_theirs() -> None:
    row = {"pixels": torch.ones(1, 2), "grid": torch.ones(1, 3, dtype=torch.long), "names": ["a"]}
    joined = collate([row, row], CPU, torch.bfloat16)
    assert joined["pixels"].dtype == torch.bfloat16
    assert joined["grid"].dtype == torch.long
    assert joined["names"] == ["a", "a"]


def test_shapes_leave_the_first_dim_out() -> None:
    assert shapes({"a": torch.ones(5, 2), "b": [1]}) == ((2,), ())


def test_features_keep_their_form() -> None:
    class Output(SimpleNamespace):
        pass

    def output(start: int, *, as_list: bool, deep: bool = False) -> Any:
        rows = torch.arange(start, start + 4.0).reshape(2, 1, 2)
        values: dict[str, Any] = {"pooler_output": list(rows) if as_list else rows}
        if deep:
            values["deepstack_features"] = [rows + 100, rows + 200]
        return Output(**values)

    tensor = join_features([output(0, as_list=False), output(4, as_list=False)]).pooler_output
    assert torch.equal(tensor.flatten(), torch.arange(8.0))
    listed = join_features([output(0, as_list=True), output(4, as_list=True)]).pooler_output
    assert [row.flatten().tolist() for row in listed] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    deep = join_features([output(0, as_list=False, deep=True), output(4, as_list=False, deep=True)])
    assert [layer.flatten()[-1] for layer in deep.deepstack_features] == [107, 207]
