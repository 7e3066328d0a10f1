"""The reference generator: any image-text-to-text class of transformers through its own `generate`.

Static batches of rows of equal prompt length, so that no row carries another's padding. It is the
path of classes that hold state of their own, and the oracle for whatever is faster.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import StoppingCriteria, StoppingCriteriaList

from vlbatch.chat import prompt_style
from vlbatch.config import Config
from vlbatch.errors import ModelError
from vlbatch.models.collate import collate, shapes
from vlbatch.models.features import ImageEncoder, image_encoder
from vlbatch.models.loading import LoadedModel, first_line
from vlbatch.models.sampling import logits_processors, row_seed
from vlbatch.records import Failure, FinishReason, Generation, ModelInput

#: Without cuDNN's attention, which plans anew for every cache length, so for every token
#: (csrc/NOTES.md: 12.4 against 45.0 images/s of the demo model in bfloat16 on an H200).
_SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class ReferenceGenerator:
    """Captions batches of `ModelInput`s of one `batch_key`.

    num_batches: static batches run; vision_batches: images in each call of the vision tower
    (for a class whose tower can only run inside `generate`: rows of each call of `generate`).
    """

    def __init__(self, loaded: LoadedModel, config: Config, stop: threading.Event) -> None:
        self._model = loaded.model
        self._tokenizer = loaded.processor.tokenizer
        self._device = loaded.device
        self._config = config
        self._stop = StoppingCriteriaList([_Stopped(stop)])
        self._is_prefix = prompt_style(loaded.model_type).prefix
        self._generation_config = _generation_config(loaded.model, config)
        self._encode: ImageEncoder | None = image_encoder(loaded.model)
        self._eos = _stop_token_ids(loaded.model)
        self._num_positions = _num_positions(loaded.model)
        self._most_rows = config.chunk_size if self._encode else config.vision_batch_size
        self.num_batches = 0
        self.vision_batches: list[int] = []

    def batch_key(self, item: ModelInput) -> Hashable:
        """Inputs of one key may go together: same prompt length, same outputs of the processor.

        A class whose tower runs inside `generate` also wants them of one shape, since what it
        would make of padding is not known.
        """
        of_one_shape = shapes(item.tensors) if self._encode is None else None
        return len(item.input_ids), tuple(item.tensors), of_one_shape

    @torch.inference_mode()
    def generate(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        """The captions of a batch, in order; once the run's stop event is set, whatever there is
        of them. Out of memory or an error in the model halves the batch until the row at fault
        stands alone and becomes a Failure; batches stay as small as memory asked for. Raises
        `ModelError` on a device fault."""
        if batch and self._room(batch) < 1:
            return [self._too_long(item) for item in batch]
        outcomes: list[Generation | Failure] = []
        while rest := batch[len(outcomes) :]:
            outcomes += self._split_on_error(rest[: self._most_rows])
        return outcomes

    def _room(self, batch: Sequence[ModelInput]) -> int:
        """New tokens for which the model has positions after these prompts, at most what is asked
        for. An encoder-decoder's caption begins a sequence of its own."""
        most = self._config.max_new_tokens
        if self._num_positions is None:
            return most
        return min(most, self._num_positions - len(batch[0].input_ids))

    def _too_long(self, item: ModelInput) -> Failure:
        message = (
            f"the prompt with its image is {len(item.input_ids):,} tokens long, and the model's "
            f"context is {self._num_positions:,}"
        )
        return _failure(item, "too_long", message)

    def _split_on_error(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        try:
            return self._run(batch)
        except torch.AcceleratorError as error:
            raise ModelError(f"the device failed: {first_line(error)}") from error
        except torch.OutOfMemoryError as error:
            code, message = "out_of_memory", first_line(error)
            self._most_rows = max(1, min(self._most_rows, len(batch) // 2))
        except Exception as error:  # code of any model class: what it raises is not ours to list
            code, message = "model_error", f"{type(error).__name__}: {first_line(error)}"
        if len(batch) == 1:
            return [_failure(batch[0], code, message)]
        half = len(batch) // 2
        return self._split_on_error(batch[:half]) + self._split_on_error(batch[half:])

    def _run(self, batch: Sequence[ModelInput]) -> list[Generation | Failure]:
        self.num_batches += 1
        seeds = [row_seed(self._config.seed, i.ref.seed_key, i.prompt_name) for i in batch]
        watch, processors = logits_processors(self._config, seeds)
        generation_config = copy.copy(self._generation_config)
        generation_config.max_new_tokens = self._room(batch)
        with sdpa_kernel(_SDPA_BACKENDS):
            output = self._model.generate(
                **self._inputs(batch),
                generation_config=generation_config,
                logits_processor=processors,
                stopping_criteria=self._stop,
            )
        new_ids = output[:, output.shape[1] - watch.num_steps :].tolist()
        rows = zip(batch, new_ids, watch.broken_steps(), strict=True)
        return [self._outcome(item, ids, broken) for item, ids, broken in rows]

    def _inputs(self, batch: Sequence[ModelInput]) -> dict[str, Any]:
        """The keyword arguments of `generate`: prompts, and pixels or the features made of them."""
        ids = torch.tensor([item.input_ids for item in batch], device=self._device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        tensors = [item.tensors for item in batch]
        if self._encode is None:
            self.vision_batches.append(len(batch))
            return inputs | collate(tensors, self._device, self._model.dtype)
        counts = [item.num_image_tokens for item in batch]
        size = self._config.vision_batch_size
        features, sizes = self._encode(tensors, counts, size)
        self.vision_batches += sizes
        rest = [{k: v for k, v in row.items() if not k.startswith("pixel")} for row in tensors]
        inputs |= collate(rest, self._device, self._model.dtype)
        return inputs | {"mm_encoder_outputs": {"image": features}}

    def _outcome(
        self, item: ModelInput, ids: list[int], broken: int | None
    ) -> Generation | Failure:
        """One row's result: `ids` its new tokens, then padding; `broken` its first broken step."""
        end = next((n for n, token in enumerate(ids) if token in self._eos), len(ids))
        if broken is not None and broken <= end:
            return _failure(item, "not_finite", "the model's logits are not finite for this image")
        token_ids = tuple(ids[:end])
        shown = (*item.input_ids, *token_ids) if self._is_prefix else token_ids
        text = self._tokenizer.decode(shown, skip_special_tokens=True).strip()
        return Generation(
            item.ref, item.prompt_name, text, token_ids, self._finish_reason(end, len(ids)),
            len(item.input_ids), item.num_image_tokens, item.width, item.height,
        )  # fmt: skip

    def _finish_reason(self, end: int, num_steps: int) -> FinishReason:
        """`end` is the index of the stop token, or `num_steps` where there is none.

        Classes that force a stop token at the last step allowed (BART's, so Florence-2) cut a
        caption there as any other class does, which is `length`.
        """
        is_forced = self._generation_config.forced_eos_token_id is not None
        last = self._config.max_new_tokens - 1 if is_forced else num_steps
        return "stop" if end < min(last, num_steps) else "length"


class _Stopped(StoppingCriteria):  # type: ignore[misc]
    """Ends a batch at its next step once the run is stopping; its captions are not used."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._stop.is_set(), device=input_ids.device)


def _failure(item: ModelInput, code: str, message: str) -> Failure:
    return Failure(
        item.ref, "generate", code, message, item.width, item.height, prompt_name=item.prompt_name
    )


def _generation_config(model: Any, config: Config) -> Any:
    """The model's own settings, with the run's: greedy or sampled by our processors, no beams."""
    generation = copy.deepcopy(model.generation_config)
    generation.max_new_tokens = config.max_new_tokens
    generation.max_length = None
    generation.do_sample = False
    generation.temperature = generation.top_p = generation.top_k = None
    generation.num_beams = 1
    generation.early_stopping = False
    generation.length_penalty = 1.0
    if config.repetition_penalty is not None:
        generation.repetition_penalty = config.repetition_penalty
    if generation.pad_token_id is None:
        generation.pad_token_id = min(_stop_token_ids(model), default=0)
    return generation


def _num_positions(model: Any) -> int | None:
    """The length of the model's context in tokens; None where prompt and caption don't share it."""
    if model.config.is_encoder_decoder:
        return None
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else None


def _stop_token_ids(model: Any) -> frozenset[int]:
    """The model's own stop tokens (BLIP's decoder ends with its separator)."""
    text_config = model.config.get_text_config(decoder=True)
    if model.config.model_type == "blip":
        return frozenset({text_config.sep_token_id})
    eos = model.generation_config.eos_token_id
    eos = text_config.eos_token_id if eos is None else eos
    return frozenset([] if eos is None else eos if isinstance(eos, list) else [eos])
