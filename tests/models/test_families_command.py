"""`vlbatch caption` with each class: the captions that plain transformers gives image by image."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from parity import FAMILIES, SIZES, Oracle, Row, picture
from tiny import tiny_folder

from vlbatch.chat import prompt_style
from vlbatch.cli.main import cli

__all__ = ["tiny_folder"]  # a fixture

# PaliGemmaProcessor makes labels with np.array(tensor), which NumPy 2 has a new protocol for.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

NUM_TOKENS = 12


@pytest.mark.parametrize("name", FAMILIES)
def test_caption_command(
    name: str, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the class's default prompt, among them a file that is no picture."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imgs").mkdir()
    for i, size in enumerate(SIZES):
        picture(size, i).save(tmp_path / "imgs" / f"{i}.png")
    (tmp_path / "imgs" / "broken.png").write_bytes(b"no picture")
    folder = tiny_folder(name)
    arguments = ["caption", "imgs", "-o", "out.jsonl", "-m", str(folder), "--device", "cpu"]
    arguments += ["--chunk-size", "7", "--vision-batch-size", "2", "--progress", "none"]
    result = CliRunner().invoke(cli, [*arguments, "--max-new-tokens", str(NUM_TOKENS)])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == len(SIZES) + 1
    captions = {row["key"]: row for row in rows}
    assert captions.pop("broken.png")["error"]["stage"] == "decode"
    oracle = Oracle(name, folder)
    prompt = prompt_style(name).default_prompt
    for i, size in enumerate(SIZES):
        row = captions[f"{i}.png"]
        expected = oracle.caption(Row(picture(size, i), prompt), NUM_TOKENS)
        text = oracle.processor.decode(expected.token_ids, skip_special_tokens=True)
        # BART forces a stop token at the last step, which cuts the caption all the same.
        is_cut = len(expected.token_ids) >= NUM_TOKENS - (name == "florence2")
        assert row["error"] is None
        assert row["finish_reason"] == ("length" if is_cut else "stop")
        assert row["caption"] == text.strip()
        assert row["tokens"]["output"] == len(expected.token_ids)
        assert [row["width"], row["height"]] == list(size)
