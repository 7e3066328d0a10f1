"""`--dry-run`: what a run would do, as lines to read; weights are not loaded."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

from PIL import Image

from vlbatch.fetch import Fetcher
from vlbatch.images import decode
from vlbatch.models.loading import load_processor, resolve_device
from vlbatch.plan import Plan
from vlbatch.records import DecodedImage, Failure, ImageBytes, ImageRef, ModelInput

_NUM_SHOWN = 3


def dry_run(plan: Plan) -> Iterator[str]:
    """Inputs with their count, the prompt as the model gets it, tokens an image, settings."""
    refs = list(itertools.islice(iter(plan.inputs), _NUM_SHOWN))
    total = plan.inputs.count(threading.Event())
    limit = plan.config.limit
    count = "unknown (stdin)" if total is None else f"{min(total, limit or total):,}"
    yield f"inputs: {count}"
    for item in refs:
        ref = item.ref if isinstance(item, Failure) else item
        yield f"  {ref.index}  {ref.key}"
    if plan.inputs.left_out:
        kinds = ", ".join(f"{s or 'no suffix'} {n:,}" for s, n in
                          plan.inputs.left_out_suffixes.most_common(5))  # fmt: skip
        yield f"left out: {plan.inputs.left_out:,} files that are not images ({kinds})"
    yield f"output: {plan.output}"
    yield f"rows already done are known by: {plan.resume_by}"
    device, dtype = ("cpu", "none") if plan.source.is_stub else resolve_device(plan.config)
    for name, value in plan.settings(device, dtype).items():
        if name == "prompt":
            for prompt_name, text in value.items():
                yield f"prompt{f' {prompt_name}' if prompt_name else ''}: {text}"
        elif value is not None:
            yield f"{name.replace('_', '-')}: {value}"
    if not plan.source.is_stub:
        yield from _tokens(plan, refs)


def _tokens(plan: Plan, refs: list[ImageRef | Failure]) -> Iterator[str]:
    from vlbatch.processing import Processing

    asking = plan.asking
    process = Processing(
        load_processor(plan.source, plan.config), asking.prompts, asking.style,
        system=asking.system, chat_template=asking.chat_template, raw_prompt=asking.raw_prompt,
    )  # fmt: skip
    decoded = _first_picture(refs)
    width, height = decoded.image.size
    for result in process(decoded):
        if isinstance(result, Failure):
            yield f"tokens: none, {result.message}"
        elif isinstance(result, ModelInput):
            name = f" {result.prompt_name}" if result.prompt_name else ""
            yield (
                f"tokens{name}: {result.num_image_tokens} for the image ({width} x {height}), "
                f"{len(result.input_ids)} in all before the caption"
            )


def _first_picture(refs: list[ImageRef | Failure]) -> DecodedImage:
    """The first picture that opens; a grey 640 x 480 one where none does."""
    fetcher = Fetcher()
    for ref in refs:
        data = fetcher.fetch(ref) if isinstance(ref, ImageRef) else ref
        decoded = decode(data) if isinstance(data, ImageBytes) else data
        if isinstance(decoded, DecodedImage):
            return decoded
    first = refs[0].ref if isinstance(refs[0], Failure) else refs[0]
    return DecodedImage(first, Image.new("RGB", (640, 480), "grey"))
