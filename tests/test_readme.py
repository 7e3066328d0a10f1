"""The README says what the code does: its table of options is the code's, its commands run.

`python tests/test_readme.py --write` writes the table anew.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from vlbatch.cli.main import cli
from vlbatch.cli.options import option_rows

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
START, END = "<!-- options: made from the code -->\n", "<!-- end of options -->\n"


def table() -> str:
    lines = []
    for group, rows in groupby(option_rows(), key=lambda row: row[0]):
        lines += [f"\n**{group}**\n", "| option | default | meaning |", "|---|---|---|"]
        for _, option, default, text in rows:
            option, text = (cell.replace("|", r"\|") for cell in (option, text))
            lines.append(f"| `{option}` | {default} | {text} |")
    return "\n".join(lines) + "\n\n"


def commands() -> list[str]:
    """Every shell command of the README that begins with vlbatch, without its comment."""
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r" && | \| ", line)]
    return [part for part in parts if part.startswith("vlbatch ")]


def test_options_table_is_the_code_s() -> None:
    text = README.read_text("utf-8")
    assert text.split(START)[1].split(END)[0] == table()


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    """Each command's options exist; what it would do is tested elsewhere."""
    args = shlex.split(command)[1:]
    found, context = cli, cli.make_context("vlbatch", list(args), resilient_parsing=True)
    while isinstance(found, type(cli)) or hasattr(found, "get_command"):
        name = args.pop(0)
        child = found.get_command(context, name)
        assert child is not None, name
        found = child
        if not hasattr(found, "get_command"):
            break
    context = found.make_context(found.name or "", list(args))
    assert context.params


def test_python_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(list((ROOT / "vlbatch/demo/images").iterdir())) + 2


def test_the_two_commands_are_there() -> None:
    text = README.read_text("utf-8")
    assert "pip install . && vlbatch caption vlbatch/demo/images -o captions.jsonl" in text
    assert "pip install '.[test]' && pytest" in text


if __name__ == "__main__" and "--write" in sys.argv:
    head, rest = README.read_text("utf-8").split(START)
    README.write_text(head + START + table() + END + rest.split(END)[1], "utf-8")
