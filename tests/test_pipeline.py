"""The flow of rows with a model that answers as told: one row an input, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pictures, read_rows, stub_caption_has

from vlbatch import pipeline
from vlbatch.config import Config
from vlbatch.errors import Interrupted, ModelError, OutputError, UsageError, VlbatchError
from vlbatch.models.stub import StubModel
from vlbatch.pipeline import RowJoiner, caption, interruptible
from vlbatch.plan import plan
from vlbatch.records import Failure, Generation, ImageRef, ModelInput


def run(stop: threading.Event | None = None, **options: Any) -> list[dict[str, Any]]:
    """The rows that a run yields, sorted."""
    config = Config(**({"model": "stub:colour"} | options))
    records = caption(plan(config), stop=stop or threading.Event())
    return sorted((record.to_dict() for record in records), key=lambda row: row["index"])


@pytest.fixture
def broken_list(tmp_path: Path) -> tuple[Path, set[int]]:
    """A list of 30 inputs, each third of which is broken in one of three ways."""
    make_pictures(tmp_path / "imgs", 30)
    lines = [f"imgs/{number}.png" for number in range(30)]
    broken = set(range(2, 30, 3))
    for number in broken:
        path = tmp_path / lines[number]
        match number % 3, number % 2:
            case _, 0:
                path.unlink()
            case _:
                path.write_text("<html>log in</html>")
    (tmp_path / "list.txt").write_text("\n".join(lines))
    return tmp_path / "list.txt", broken


@pytest.mark.parametrize("chunk_size", [1, 4, 64])
def test_row_n_belongs_to_input_n(
    broken_list: tuple[Path, set[int]], tmp_path: Path, chunk_size: int
) -> None:
    """InternLM/lmdeploy#3972: which answer is whose, when some inputs of a batch fail."""
    path, broken = broken_list
    rows = run(inputs=(str(path),), output=str(tmp_path / "o.jsonl"), chunk_size=chunk_size)
    assert [row["index"] for row in rows] == list(range(30))
    for number, row in enumerate(rows):
        assert row["image"] == row["key"] == f"imgs/{number}.png"
        if number in broken:
            assert row["error"]["code"] in {"not_found", "not_an_image"}
        else:
            assert stub_caption_has(row, number)
    assert rows == read_rows(tmp_path / "o.jsonl")


def test_one_unreadable_picture_loses_no_other(tmp_path: Path) -> None:
    """autogluon#3207: seven captions and one error row."""
    make_pictures(tmp_path / "imgs", 8)
    (tmp_path / "imgs/5.png").write_text("<html>")
    output = str(tmp_path / "o.jsonl")
    rows = run(inputs=(str(tmp_path / "imgs"),), output=output, chunk_size=8)
    assert [row["error"] is not None for row in rows] == [n == 5 for n in range(8)]


def test_a_second_run_adds_nothing_and_loads_nothing(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"inputs": (str(pictures),), "output": str(tmp_path / "o.jsonl")}
    assert len(run(**options)) == 12
    before = (tmp_path / "o.jsonl").read_bytes()
    monkeypatch.setattr(pipeline, "_load", lambda *a: pytest.fail("a model was loaded"))
    assert run(**options) == []
    assert (tmp_path / "o.jsonl").read_bytes() == before


def test_a_run_cut_by_limit_goes_on(pictures: Path, tmp_path: Path) -> None:
    options = {"inputs": (str(pictures),), "output": str(tmp_path / "o.jsonl")}
    assert [row["index"] for row in run(**options, limit=5)] == [0, 1, 2, 3, 4]
    assert [row["index"] for row in run(**options)] == list(range(5, 12))
    whole = run(inputs=(str(pictures),), output=str(tmp_path / "whole.jsonl"))
    assert read_rows(tmp_path / "o.jsonl") == whole


def test_other_settings_are_refused_and_overwrite_starts_again(
    pictures: Path, tmp_path: Path
) -> None:
    options = {"inputs": (str(pictures),), "output": str(tmp_path / "o.jsonl")}
    run(**options)
    with pytest.raises(UsageError, match="--max-new-tokens"):
        run(**options, max_new_tokens=7)
    assert len(run(**options, max_new_tokens=7, overwrite=True)) == 12
    assert len(read_rows(tmp_path / "o.jsonl")) == 12


def test_several_prompts_give_one_row_each_image(pictures: Path, tmp_path: Path) -> None:
    rows = run(
        inputs=(str(pictures),), output=str(tmp_path / "o.jsonl"), chunk_size=5,
        prompt=("brief=What colour?", "full=Describe {stem} in full."),
    )  # fmt: skip
    assert len(rows) == 12
    assert all(set(row["captions"]) == {"brief", "full"} for row in rows)
    assert rows[0]["tokens"]["full"]["prompt"] == 4


class Failing(StubModel):
    """A stub whose third batch fails as told."""

    error: BaseException = RuntimeError("x")

    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        if self.num_batches == 2:
            raise self.error
        return super().generate(batch)


@pytest.mark.parametrize("error", [ModelError("the device failed"), KeyError("odd")])
def test_a_model_that_dies_ends_the_run_with_rows_safe(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(pipeline, "StubModel", Failing)
    monkeypatch.setattr(Failing, "error", error)
    options = {"inputs": (str(pictures),), "output": str(tmp_path / "o.jsonl"), "chunk_size": 3}
    with pytest.raises(ModelError, match="fail"):
        run(**options)
    assert len(read_rows(tmp_path / "o.jsonl")) == 6
    monkeypatch.undo()
    run(**options)
    assert [row["index"] for row in read_rows(tmp_path / "o.jsonl")] == list(range(12))


class Slow(StubModel):
    """A stub that takes its time."""

    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        time.sleep(0.05)
        return super().generate(batch)


class Stuck(StubModel):
    """A stub whose second batch does not come back."""

    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        if self.num_batches == 1:
            time.sleep(30)
        return super().generate(batch)


@pytest.mark.parametrize("model", [Slow, Stuck])
def test_a_stop_ends_within_two_seconds_with_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: type[StubModel]
) -> None:
    monkeypatch.setattr(pipeline, "StubModel", model)
    folder = make_pictures(tmp_path / "imgs", 60)
    options = {"inputs": (str(folder),), "output": str(tmp_path / "o.jsonl"), "chunk_size": 2}
    stop = threading.Event()
    config = Config(model="stub:colour", **options)
    start = None
    for _ in caption(plan(config), stop=stop):
        start = start or time.monotonic()
        stop.set()
    assert start is not None
    assert time.monotonic() - start < 2
    done = len(read_rows(tmp_path / "o.jsonl"))
    assert 0 < done < 60
    monkeypatch.undo()
    assert len(run(**options)) == 60 - done
    assert [row["index"] for row in read_rows(tmp_path / "o.jsonl")] == list(range(60))


def test_captions_come_in_the_order_of_the_prompts() -> None:
    rows = RowJoiner(("z", "a"))
    ref = ImageRef(0, "k", "k")
    parts = [Generation(ref, name, name, (1,), "stop", 1, 1, 1, 1) for name in ("a", "z")]
    assert rows.add(parts[0]) is None
    row = rows.add(parts[1])
    assert row is not None
    assert list(row.captions or ()) == ["z", "a"]


def test_a_source_that_breaks_fails_the_run(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(
        Config(inputs=(str(pictures),), output=str(tmp_path / "o.jsonl"), model="stub:colour")
    )

    def breaking(self: object) -> Iterator[ImageRef]:
        yield from (ImageRef(n, str(n), str(pictures / f"{n}.png")) for n in range(7))
        raise VlbatchError("list.gz: is cut short")

    monkeypatch.setattr(type(planned.inputs), "__iter__", breaking)
    with pytest.raises(VlbatchError, match="cut short"):
        list(caption(planned, stop=threading.Event()))
    rows = read_rows(tmp_path / "o.jsonl")  # what was read before has its rows
    assert [row["index"] for row in rows] == list(range(7))


def test_an_error_of_our_own_costs_one_row(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StubModel.process

    def faulty(self: StubModel, decoded: Any) -> list[ModelInput | Failure]:
        if decoded.ref.index == 4:
            raise AssertionError("ours")
        return whole(self, decoded)

    monkeypatch.setattr(StubModel, "process", faulty)
    rows = run(inputs=(str(pictures),), output=str(tmp_path / "o.jsonl"))
    assert [row["index"] for row in rows if row["error"]] == [4]
    assert rows[4]["error"]["code"] == "internal_error"


def test_nothing_runs_ahead_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight is bounded: a stuck model stops the reading."""
    folder = make_pictures(tmp_path / "imgs", 300)
    taken = 0
    whole = StubModel.process

    def counting(self: StubModel, decoded: Any) -> list[ModelInput | Failure]:
        nonlocal taken
        taken += 1
        return whole(self, decoded)

    monkeypatch.setattr(StubModel, "process", counting)
    monkeypatch.setattr(pipeline, "StubModel", Stuck)
    monkeypatch.setattr(Stuck, "generate", lambda self, batch: time.sleep(30))
    stop = threading.Event()
    config = Config(
        inputs=(str(folder),), output=str(tmp_path / "o.jsonl"), model="stub:colour", chunk_size=2
    )
    threading.Timer(1.0, stop.set).start()
    assert list(caption(plan(config), stop=stop)) == []
    assert 0 < taken < 60


def test_interruptible_returns_raises_and_stops() -> None:
    stop = threading.Event()
    assert interruptible(lambda: 5, stop) == 5
    with pytest.raises(ValueError, match="no"):
        interruptible(_raiser(ValueError("no")), stop)
    stop.set()
    with pytest.raises(Interrupted):
        interruptible(lambda: time.sleep(30), stop)


def _raiser(error: Exception) -> Callable[[], None]:
    def task() -> None:
        raise error

    return task


def test_row_joiner_waits_for_all_prompts() -> None:
    rows = RowJoiner(("a", "b"))
    ref = ImageRef(0, "a", "a")
    first = Generation(ref, "a", "x", (1,), "stop", 1, 1, 1, 1)
    second = Failure(ref, "generate", "out_of_memory", "no", prompt_name="b")
    assert rows.add(first) is None
    row = rows.add(second)
    assert row is not None
    assert row.error is not None
    early = rows.add(Failure(ImageRef(1, "b", "b"), "fetch", "not_found", "no"))
    assert early is not None
    assert early.index == 1


def test_overwrite_costs_nothing_if_the_model_does_not_stand(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"inputs": (str(pictures),), "output": str(tmp_path / "o.jsonl")}
    run(**options)
    before = (tmp_path / "o.jsonl").read_bytes(), (tmp_path / "o.jsonl.run.json").read_bytes()

    def broken(*_: object) -> None:
        raise UsageError("no such weights")

    monkeypatch.setattr(pipeline, "_load", broken)
    with pytest.raises(UsageError, match="weights"):
        run(**options, overwrite=True, seed=5)
    after = (tmp_path / "o.jsonl").read_bytes(), (tmp_path / "o.jsonl.run.json").read_bytes()
    assert after == before


def test_another_column_is_another_run(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(f"a,b\n{pictures}/0.png,{pictures}/1.png\n")
    options = {"inputs": (str(tmp_path / "l.csv"),), "output": str(tmp_path / "o.jsonl")}
    run(**options, image_col="a")
    with pytest.raises(UsageError, match="--image-col was 'a', is 'b'"):
        run(**options, image_col="b")


def test_an_output_that_was_removed_fails_the_run(pictures: Path, tmp_path: Path) -> None:
    planned = plan(
        Config(inputs=(str(pictures),), output=str(tmp_path / "o.jsonl"), model="stub:colour")
    )
    rows = caption(planned, stop=threading.Event())
    next(rows)
    (tmp_path / "o.jsonl").unlink()
    with pytest.raises(OutputError, match="removed"):
        list(rows)
