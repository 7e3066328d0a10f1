"""`--dry-run`: what a run would do, as lines to read. Loads no weights, writes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from vlbatch.errors import ResumeRefused
from vlbatch.fetch import Fetcher
from vlbatch.images import decode
from vlbatch.models.loading import load_processor, resolve_device
from vlbatch.pipeline import device_name
from vlbatch.plan import Plan, left_out_text, versions
from vlbatch.records import DecodedImage, Failure, ImageBytes, ImageRef, ModelInput, public_uri
from vlbatch.sink import STDOUT, what_is_there

_NUM_SHOWN = 3


def dry_run(plan: Plan) -> Iterator[str]:
    """Inputs with their count, the prompts as they are asked, tokens an image, settings."""
    stream = itertools.islice(iter(plan.inputs), plan.config.limit)
    items = list(itertools.islice(stream, _NUM_SHOWN))
    refs = [item.ref if isinstance(item, Failure) else item for item in items]
    if plan.inputs.has_stdin:
        yield "inputs: not known before stdin ends"
    else:
        yield f"inputs: {len(items) + sum(1 for _ in stream):,}"
    yield from (f"  {ref.index}  {public_uri(ref.uri)}" for ref in refs)
    if plan.inputs.left_out:
        yield left_out_text(plan.inputs)
    device, dtype = ("cpu", "none") if plan.source.is_stub else resolve_device(plan.config)
    settings = plan.settings(device_name(device), dtype)
    if plan.config.output is not None:
        yield from _output(plan, settings)
    yield from _prompts(plan, refs[0])
    for name, value in settings.items():
        if name != "prompt" and value is not None:
            yield f"{name.replace('_', '-')}: {value}"
    yield f"chunk-size: {plan.config.chunk_size}"
    yield f"vision-batch-size: {plan.config.vision_batch_size}"
    if not plan.source.is_stub:
        yield from _tokens(plan, items)


def _output(plan: Plan, settings: dict[str, object]) -> Iterator[str]:
    yield f"output: {plan.output}"
    if plan.output == STDOUT or not Path(plan.output).is_file():
        return
    try:
        rows = what_is_there(
            plan.output, settings=settings, versions=versions(),
            inputs=plan.inputs.describe(), resume_by=plan.resume_by,
        )  # fmt: skip
    except ResumeRefused as error:
        yield f"  would {'be written anew' if plan.config.overwrite else f'be refused: {error}'}"
    else:
        what = "would be dropped" if plan.config.overwrite else "stay; the run goes on after them"
        yield f"  its {rows:,} rows {what}"


def _prompts(plan: Plan, first: ImageRef) -> Iterator[str]:
    filled = plan.asking.prompts.render(first)
    for name, template in plan.asking.prompts.templates.items():
        label = f"prompt {name}" if name else "prompt"
        yield f"{label}: {template.text}"
        if isinstance(filled, dict) and filled[name] != template.text:
            yield f"  for {public_uri(first.uri)}: {filled[name]}"


def _tokens(plan: Plan, items: Sequence[ImageRef | Failure]) -> Iterator[str]:
    from vlbatch.processing import Processing

    asking = plan.asking
    process = Processing(
        load_processor(plan.source, plan.config), asking.prompts, asking.style,
        system=asking.system, chat_template=asking.chat_template, raw_prompt=asking.raw_prompt,
    )  # fmt: skip
    decoded = _first_picture(items)
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


def _first_picture(items: Sequence[ImageRef | Failure]) -> DecodedImage:
    """The first picture that opens; a grey 640 x 480 one where none does."""
    fetcher = Fetcher()
    for item in items:
        data = fetcher.fetch(item) if isinstance(item, ImageRef) else item
        decoded = decode(data) if isinstance(data, ImageBytes) else data
        if isinstance(decoded, DecodedImage):
            return decoded
    first = items[0].ref if isinstance(items[0], Failure) else items[0]
    return DecodedImage(first, Image.new("RGB", (640, 480), "grey"))
