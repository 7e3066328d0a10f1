"""The training code: its forward is the model's, its tiles are the processor's, and it learns."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from vlbatch.demo import MODEL_DIR, forward, packing, pictures, questions, raster, scenes, tokens
from vlbatch.demo.batches import BatchMaker, Mix
from vlbatch.demo.evaluate import DemoModel
from vlbatch.demo.gauge import gauge
from vlbatch.demo.optim import orthogonal
from vlbatch.demo.sprites import procedural
from vlbatch.demo.train import TrainConfig, Trainer, load_weights, rate, save_checkpoint

MIX = Mix(square=2, wide=1, tall=1, single=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def test_a_short_run_learns_its_scenes(tokenizer: Tokenizer) -> None:
    config = TrainConfig(steps=20, batch_size=6, fixed=True)
    losses = Trainer(config, tokenizer, procedural()).run()
    assert losses[0] > 5
    assert losses[-1] < losses[0] / 5, losses


def test_a_plain_step_runs(tokenizer: Tokenizer) -> None:
    losses = Trainer(TrainConfig(steps=2, batch_size=5), tokenizer, procedural()).run()
    assert np.isfinite(losses).all()


def test_a_gentle_run_leaves_the_vision_tower(tokenizer: Tokenizer) -> None:
    config = TrainConfig(steps=1, batch_size=5, gentle_lr=0.1, background="orange")
    trainer = Trainer(config, tokenizer, procedural())
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.run()
    after = dict(trainer.model.named_parameters())
    changed = {name for name, p in before.items() if not torch.equal(p, after[name])}
    assert changed
    assert all(".text_model." in name for name in changed)


@pytest.mark.parametrize("place", range(5))
def test_forward_equals_the_models_own(demo: DemoModel, tokenizer: Tokenizer, place: int) -> None:
    grid = MIX.grid(place)
    scene = scenes.sample(place, layout=MIX.layout(place, random.Random(place)))
    asked = questions.training_set(scene, random.Random(place))[:4]  # as many as surely fit
    row = packing.Packer(tokenizer).row(asked, grid)
    image = raster.draw(scene, procedural(), scenes.random_size(scene, random.Random(0)))
    rotary = forward.rotary_tables(demo.model, packing.LENGTH, torch.device("cpu"))
    assert len(row.kinds) == len(asked)
    for number, question in enumerate(asked, 1):
        text = demo.chat(question.prompt) + question.answer + tokens.END
        inputs = demo.processor(
            text=[text], images=[[image]], return_tensors="pt", do_image_splitting=grid != (0, 0)
        )
        here = row.segments[packing.PREFIX :] == number
        length = int(here.sum())
        fields = (row.ids, row.slots, row.positions, row.segments)
        batch = [torch.from_numpy(field.astype(np.int64))[None] for field in fields]
        with torch.no_grad():
            expected = demo.model(**inputs).logits[0, -length:]
            got = forward.answer_logits(
                demo.model, inputs["pixel_values"][0], *batch, rotary, packing.PREFIX
            )[0, torch.from_numpy(here)]
        ids = torch.from_numpy(row.ids[packing.PREFIX :][here].astype(np.int64))
        assert torch.equal(ids, inputs["input_ids"][0, -length:])
        torch.testing.assert_close(got, expected, atol=3e-4, rtol=1e-4)


def test_tiles_are_the_processors(demo: DemoModel, tokenizer: Tokenizer) -> None:
    maker = BatchMaker(MIX, procedural(), tokenizer, (), clean=True)
    batch, _, drawn = maker.make(7)
    frames = pictures.frames(batch, raster.texels(procedural()))
    ours = pictures.tiles(frames, MIX, untrusted=False)
    ends = [*MIX.first_tiles()[1:], len(ours)]
    for place, (start, end) in enumerate(zip(MIX.first_tiles(), ends, strict=True)):
        image = raster.draw(drawn[place], procedural(), scenes.random_size(
            drawn[place], random.Random(1), 768, 768))  # fmt: skip
        theirs = demo.processor.image_processor(
            images=[[image]], return_tensors="pt", do_image_splitting=MIX.grid(place) != (0, 0)
        )["pixel_values"][0]
        assert len(theirs) == end - start
        assert (theirs - ours[start:end]).abs().mean() < 0.03


def test_each_image_owns_its_tiles() -> None:
    mix = Mix.of(32)
    assert mix.total == 32
    counts = np.diff([*mix.first_tiles(), 0])[:-1]
    split = [5] * mix.square + [3] * (mix.wide + mix.tall)
    assert counts.tolist() == split + [1] * (mix.single - 1)


def test_untrusted_whole_tiles_leave_the_others() -> None:
    torch.manual_seed(0)
    frames = torch.rand(MIX.total, 3, 256, 256)
    plain = pictures.tiles(frames, MIX, untrusted=False)
    mixed = pictures.tiles(frames, MIX, untrusted=True)
    changed = (plain != mixed).flatten(1).any(1)
    whole = {int(n) - 1 for n in MIX.first_tiles()[1 : MIX.num_split + 1]}
    assert set(changed.nonzero().flatten().tolist()) <= whole


def test_degraded_pictures_stay_pictures() -> None:
    torch.manual_seed(0)
    frames = torch.rand(4, 3, 256, 256).round(decimals=1)
    worse = pictures.degrade(frames)
    assert worse.shape == frames.shape
    assert worse.min() >= 0
    assert worse.max() <= 1


def test_teacher_forcing_agrees_and_faults_show(demo: DemoModel) -> None:
    def caption_score(fault: str | None) -> float:
        right, asked = gauge(
            demo.model, demo.processor.tokenizer.backend_tokenizer, procedural(),
            sets=(), num_batches=1, batch_size=16, fault=fault,
        )["split caption"]  # fmt: skip
        return right / asked

    assert caption_score(None) >= 0.9
    assert caption_score("rolled") <= 0.1


def test_a_checkpoint_is_read_as_written(
    demo: DemoModel, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(demo.model, tokenizer, folder)
    trainer = Trainer(TrainConfig(batch_size=5), tokenizer, procedural())
    load_weights(trainer.model, folder)
    for name, parameter in demo.model.named_parameters():
        assert torch.equal(trainer.model.get_parameter(name), parameter), name


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    assert rate(0.0) < rate(0.01) < rate(0.02) == rate(0.3) == 1.0
    assert rate(0.5) < 1.0
    assert rate(1.0) == 0.0


def test_muon_orthogonalises() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 40), (2, 40, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)).float())
        assert values.min() > 0.5
        assert values.max() < 1.4
