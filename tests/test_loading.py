"""`--model`, `--device`: found and checked, each mistake answered with what to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).parent / "models"))

from tiny import tiny_folder

from vlbatch.config import Config
from vlbatch.demo import MODEL_DIR
from vlbatch.errors import UsageError
from vlbatch.models.loading import find_model, load_model, load_processor, resolve_device

__all__ = ["tiny_folder"]  # a fixture


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tiny_folder("llava"), tmp_path / "smol-model"))


def refused(model: str | Path, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_model(Config(model=str(model)))


# ---- names


def test_demo_and_stub() -> None:
    demo = find_model(Config())
    assert demo.is_demo
    assert demo == find_model(Config(model="demo"))
    assert Path(demo.location) == MODEL_DIR
    stub = find_model(Config(model="stub:colour"))
    assert stub.is_stub
    refused("stub:shape", "the only stub is stub:colour")


def test_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_model(Config(model=str(folder)))
    assert (source.name, source.location) == (str(folder), str(folder))
    assert source.model_type == "llava"
    assert not source.is_stub
    assert not source.is_demo
    monkeypatch.chdir(folder.parent)
    assert find_model(Config(model=folder.name)).location == folder.name


def test_folder_that_is_not_there(folder: Path) -> None:
    refused(folder.parent / "nothing-alike", r"no such folder, and a hub id looks like OWNER/NAME")
    refused(folder.parent / "smoll-model", r"did you mean .*/smol-model\?")
    refused(folder / "config.json", "no such folder")
    refused(folder.parent / "no" / "such" / "path", "no such folder")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "processor_config.json").unlink(), "no processor"),
        (lambda path: (path / "config.json").write_text("{"), "not a model's config"),
        (lambda path: (path / "config.json").write_text("{}"), "no model_type"),
        (lambda path: (path / "config.json").write_text("[]"), "no model_type"),
        (lambda path: (path / "config.json").write_bytes(b"\xff"), "not a model's config"),
    ],
)
def test_folder_that_holds_no_model(
    folder: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(folder)
    refused(folder, message)


# ---- loading


def load(folder: Path, **options: str) -> object:
    config = Config(model=str(folder), device="cpu", **options)
    return load_model(find_model(config), config, *resolve_device(config))


def test_loaded_model_is_ready(folder: Path) -> None:
    config = Config(model=str(folder), device="cpu", dtype="bfloat16")
    loaded = load_model(find_model(config), config, *resolve_device(config))
    assert not loaded.model.training
    assert (loaded.device, loaded.dtype) == (torch.device("cpu"), torch.bfloat16)
    assert loaded.model_type == "llava"
    assert loaded.processor.tokenizer.padding_side == "left"


def test_tokenizer_missing(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    config = Config(model=str(folder))
    with pytest.raises(UsageError, match=r"its processor can't be loaded: .*tokenizer"):
        load_processor(find_model(config), config)


def test_tokenizer_alone_is_no_processor(folder: Path) -> None:
    (folder / "processor_config.json").unlink()
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    config = Config(model=str(folder))
    with pytest.raises(UsageError, match=r"no processor for images and text|can't be loaded"):
        load_processor(find_model(config), config)


def test_weights_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"can't be loaded: .*model\.safetensors"):
        load(folder)


def test_weights_broken(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UsageError, match="can't be loaded"):
        load(folder)


def test_incomplete_weights_are_never_drawn_at_random(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "projector" in key)
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks 1 of the model's weights \(.*projector"):
        load(folder)


def test_class_that_does_not_caption(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())["text_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="can't be loaded"):
        load(folder)


def test_unknown_attention(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"can't be loaded: .*nonsense"):
        load(folder, attn_implementation="nonsense")


# ---- devices


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", "auto", ("cpu", "float32")),
        ("cpu", "bfloat16", ("cpu", "bfloat16")),
    ],
)
def test_device(device: str, dtype: str, expected: tuple[str, str]) -> None:
    assert resolve_device(Config(device=device, dtype=dtype)) == expected  # type: ignore[arg-type]


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(Config()) == ("cpu", "float32")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device(Config()) == ("cuda:0", "auto")
    assert resolve_device(Config(device="cuda:1", dtype="float32")) == ("cuda:1", "float32")
    with pytest.raises(UsageError, match="there are 2 GPUs, cuda:0 to cuda:1"):
        resolve_device(Config(device="cuda:2"))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "--device cuda: torch sees no GPU here; use --device cpu"),
        ("cuda:3", "--device cuda:3: torch sees no GPU here"),
        ("mps", "this machine has no Metal GPU"),
        ("gpu", "--device gpu: .*use auto, cpu, cuda, cuda:N or mps"),
        ("meta", "--device meta: use auto, cpu, cuda, cuda:N or mps"),
        ("cuda:x", "--device cuda:x: .*use auto, cpu, cuda, cuda:N or mps"),
        ("", "use auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_device_that_is_not_there(
    device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=message):
        resolve_device(Config(device=device))


def test_finding_a_model_imports_no_torch() -> None:
    code = (
        "import sys; from vlbatch.config import Config; "
        "from vlbatch.models.loading import find_model; find_model(Config(model='stub:colour')); "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert time.monotonic() - start < 5
