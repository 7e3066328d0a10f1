"""`--model`, `--device`: found and checked, each mistake answered with what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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

HUB_ID = "HuggingFaceTB/SmolVLM-256M-Instruct"
ASK_HUB = """
import sys, time
from vlbatch.config import Config
from vlbatch.errors import UsageError
from vlbatch.models.loading import find_model
start = time.monotonic()
try:
    source = find_model(Config(model=sys.argv[1], revision=sys.argv[2] or None))
    print(source.name, source.location, source.model_type)
except UsageError as error:
    print(error)
print(time.monotonic() - start)
"""


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


# ---- the hub


class _Hub(BaseHTTPRequestHandler):
    """Answers each HEAD with `answer`: (status, headers)."""

    answer: tuple[int, dict[str, str]] = (404, {})

    def do_HEAD(self) -> None:
        status, headers = self.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask_hub(home: Path, endpoint: str, *, revision: str = "", **env: str) -> tuple[str, float]:
    """What `find_model` says of a hub id in a process of its own, and the seconds it took."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env = {**kept, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **env}
    command = [sys.executable, "-c", ASK_HUB, HUB_ID, revision]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    *lines, seconds = done.stdout.splitlines()
    return "\n".join(lines), float(seconds)


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def assert_no_hub(message: str) -> None:
    assert (
        f"--model {HUB_ID}: not in the local cache, and the model hub can't be reached" in message
    )
    assert "--model /path/to/model" in message
    assert "HF_HOME" in message


def test_hub_that_refuses(tmp_path: Path) -> None:
    message, seconds = ask_hub(tmp_path, closed_port())
    assert_no_hub(message)
    assert seconds < 5


def test_hub_that_never_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message, seconds = ask_hub(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert_no_hub(message)
    assert seconds < 15


def test_offline_is_said_at_once(tmp_path: Path, hub: HTTPServer) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    message, seconds = ask_hub(tmp_path, endpoint, HF_HUB_OFFLINE="1")
    assert_no_hub(message)
    assert seconds < 2


def test_cached_model_without_a_hub_is_a_folder(tmp_path: Path) -> None:
    """All further files then come from the snapshot: none is asked for on the network."""
    repo = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "idefics3"}')
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        message, seconds = ask_hub(tmp_path, closed_port(), **env)
        assert message == f"{HUB_ID} {snapshot} idefics3"
        assert seconds < 5


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"X-Error-Code": "RepoNotFound"}), "the hub has no such model"),
        ((403, {"X-Error-Code": "GatedRepo"}), "accept its terms on the hub"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), "--revision v9: .* has no such revision"),
        ((404, {"X-Error-Code": "EntryNotFound"}), "no config.json"),
    ],
)
def test_answers_of_the_hub(
    tmp_path: Path,
    hub: HTTPServer,
    answer: tuple[int, dict[str, str]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Hub, "answer", answer)
    said, seconds = ask_hub(tmp_path, f"http://127.0.0.1:{hub.server_port}", revision="v9")
    with pytest.raises(UsageError, match=message):
        raise UsageError(said)
    assert seconds < 5


def test_finding_a_model_imports_no_torch() -> None:
    code = (
        "import sys; from vlbatch.config import Config; "
        "from vlbatch.models.loading import find_model; find_model(Config(model='stub:colour')); "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert time.monotonic() - start < 5
