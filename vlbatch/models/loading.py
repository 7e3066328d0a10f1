"""From `--model` to weights on a device: found and checked first, loaded later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlbatch.config import Config
from vlbatch.demo import MODEL_DIR
from vlbatch.errors import ModelError, UsageError
from vlbatch.models.stub import STUB_NAME

if TYPE_CHECKING:
    import torch

#: Seconds that the model hub may take to answer whether it has a model.
_HUB_TIMEOUT = 5.0

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that exists, before anything of it is loaded.

    name: as given, and in the run's manifest; location: folder or hub id for transformers.
    model_type: the class by its config (`idefics3`, `qwen2_5_vl`, …).
    """

    name: str
    location: str
    model_type: str

    @property
    def is_stub(self) -> bool:
        return self.name == STUB_NAME

    @property
    def is_demo(self) -> bool:
        return self.name == "demo"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory with its processor; `model` is in eval mode on `device`."""

    model: Any
    processor: Any
    model_type: str
    device: torch.device
    dtype: torch.dtype


def find_model(config: Config) -> ModelSource:
    """What `--model` names. Raises `UsageError` for a folder or hub id that can't be used.

    Reads `config.json` alone (of a hub id from the cache, else from the hub).
    """
    name = config.model
    if name is None or name == "demo":
        return ModelSource("demo", str(MODEL_DIR), _model_type(MODEL_DIR / "config.json"))
    if name.startswith("stub:"):
        if name != STUB_NAME:
            raise UsageError(f"--model {name}: the only stub is {STUB_NAME}.")
        return ModelSource(name, name, "stub")
    folder = Path(name).expanduser()
    if folder.exists() or _looks_like_path(name):
        return ModelSource(name, str(folder), _check_folder(name, folder))
    location, path = _hub_config(name, config.revision)
    return ModelSource(name, location, _model_type(path))


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") != 1 or "\\" in name


def _check_folder(name: str, folder: Path) -> str:
    if not folder.is_dir():
        hint = _near(folder)
        raise UsageError(
            f"--model {name}: there is no such folder{hint}, and a hub id looks like OWNER/NAME "
            "(HuggingFaceTB/SmolVLM-256M-Instruct)."
        )
    if not (folder / "config.json").is_file():
        raise UsageError(f"--model {name}: the folder has no config.json, so it is not a model's.")
    if not any((folder / file).is_file() for file in _PROCESSOR_FILES):
        raise UsageError(
            f"--model {name}: the folder has no processor ({' or '.join(_PROCESSOR_FILES)}); "
            "copy the processor's and tokenizer's files from the model's repository into it."
        )
    return _model_type(folder / "config.json")


def _near(folder: Path) -> str:
    try:
        names = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()][:10_000]
    except OSError:
        return ""
    close = get_close_matches(folder.name, names, n=1)
    return f" (did you mean {folder.parent / close[0]}?)" if close else ""


def _model_type(path: Path) -> str:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"--model: {path} is not a model's config (no model_type).") from None


def _hub_config(name: str, revision: str | None) -> tuple[str, Path]:
    """(location, path of its `config.json`) of a hub model.

    A hub that can't be reached is asked once, for at most `_HUB_TIMEOUT` seconds. Then a model in
    the cache is used as a folder, so that no file of it is asked for again.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        get_hf_file_metadata(
            hf_hub_url(name, "config.json", revision=revision), timeout=_HUB_TIMEOUT
        )
        return name, Path(hf_hub_download(name, "config.json", revision=revision))
    except hub.HFValidationError:
        message = f"--model {name}: neither a folder nor a valid hub id."
    except hub.GatedRepoError:
        message = (
            f"--model {name}: access is restricted; accept its terms on the hub and log in "
            "with `hf auth login` (or set HF_TOKEN)."
        )
    except hub.RevisionNotFoundError:
        message = f"--revision {revision}: {name} has no such revision."
    except hub.RepositoryNotFoundError:
        message = f"--model {name}: the hub has no such model (or it is private: `hf auth login`)."
    except hub.RemoteEntryNotFoundError:
        message = f"--model {name}: its repository has no config.json."
    except Exception as error:  # no network: the hub's client lets its transport's errors through
        path = _cached_config(name, revision)
        if path is not None:
            return str(path.parent), path
        message = (
            f"--model {name}: not in the local cache, and the model hub can't be reached "
            f"({type(error).__name__}). Give the folder of a downloaded model (--model "
            "/path/to/model), or point HF_HOME (or HF_HUB_CACHE) at a cache that holds it."
        )
    raise UsageError(message)


def _cached_config(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(path) if isinstance(path, str) else None


def resolve_device(config: Config) -> tuple[str, str]:
    """(device, dtype) of the run as words: ("cuda:0", "auto"), ("cpu", "float32").

    Raises UsageError for a device that is not there.
    """
    import torch

    wanted = config.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(
            f"--device {wanted}: not a device; use auto, cpu, cuda, cuda:N or mps."
        ) from None
    if device.type == "cuda":
        _check_cuda(wanted, device)
        device = torch.device("cuda", device.index or 0)
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("--device mps: this machine has no Metal GPU; use --device cpu.")
    elif device.type not in {"cpu", "mps"}:
        raise UsageError(f"--device {wanted}: use auto, cpu, cuda, cuda:N or mps.")
    on_cpu = device.type == "cpu"
    return str(device), "float32" if config.dtype == "auto" and on_cpu else config.dtype


def _check_cuda(wanted: str, device: torch.device) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise UsageError(f"--device {wanted}: torch sees no GPU here; use --device cpu.")
    if (device.index or 0) >= count:
        raise UsageError(f"--device {wanted}: there are {count} GPUs, cuda:0 to cuda:{count - 1}.")


def load_processor(source: ModelSource, config: Config) -> Any:
    """The model's processor. Raises `UsageError` naming what is missing."""
    quiet_transformers()
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(
            source.location, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError …
        raise UsageError(
            f"--model {source.name}: its processor can't be loaded: {first_line(error)}"
        ) from None
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise UsageError(
            f"--model {source.name}: has no processor for images and text "
            f"(found {type(processor).__name__}), so it can't caption."
        )
    processor.tokenizer.padding_side = "left"
    return processor


def load_model(source: ModelSource, config: Config, device: str, dtype: str) -> LoadedModel:
    """Weights on the device, and the processor. Raises `UsageError` or `ModelError`."""
    processor = load_processor(source, config)
    import torch
    from transformers import AutoModelForImageTextToText

    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            source.location,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            attn_implementation=config.attn_implementation,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            use_safetensors=True,
            output_loading_info=True,
        )
        _check_complete(source, info)
        model = model.eval().to(device)
    except torch.OutOfMemoryError:
        raise ModelError(
            f"--model {source.name}: its weights don't fit into the memory of {device}."
        ) from None
    except UsageError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError …
        raise UsageError(f"--model {source.name}: can't be loaded: {first_line(error)}") from None
    return LoadedModel(model, processor, source.model_type, model.device, model.dtype)


def _check_complete(source: ModelSource, info: Mapping[str, Any]) -> None:
    """transformers draws weights that a checkpoint lacks at random, and captions with them."""
    missing = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    if missing:
        raise UsageError(
            f"--model {source.name}: the checkpoint lacks {len(missing)} of the model's weights "
            f"({missing[0]}, …)."
        )


def quiet_transformers() -> None:
    """Keep transformers' bars and advice off stderr: what matters is said by vlbatch, once."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, shortened, for a message of one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
