"""The command line as a user meets it: messages, codes, streams, precedence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Cli, make_pictures, read_rows, stub_caption_has
from PIL import Image

STUB = ("-m", "stub:colour")


def test_help_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['vlbatch', '--help']\n"
        "from vlbatch.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'torchvision', 'requests'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for command in ("'--help'", "'caption', '--help'"):
        script = code.replace("'--help'", command)
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
            seconds.append(time.monotonic() - start)
            assert done.returncode == 0, done.stderr.decode()
        assert min(seconds) < 1.5  # 0.1 s on an idle machine; CI shares its cores


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no INPUT"),
        (["imgs"], "-o captions.jsonl"),
        (["imgs", "-o", "nowhere/o.jsonl"], "folder nowhere does not exist"),
        (["imgs", "-o", "imgs"], "is a folder"),
        (["imgz", "-o", "o.jsonl"], "did you mean 'imgs'"),
        (["empty.txt", "-o", "o.jsonl"], "empty.txt"),
        (["nothing", "-o", "o.jsonl"], "nothing"),
        (["list.csv", "--image-col", "imag", "-o", "o.jsonl"], "image"),
        (["list.csv", "--key-col", "no", "-o", "o.jsonl"], "--key-col"),
        (["imgs", "-o", "o.jsonl", "--max-new-token", "3"], "--max-new-tokens"),
        (["imgs", "-o", "o.jsonl", "--dtype", "foo"], "'bfloat16'"),
        (["imgs", "-o", "o.jsonl", "--chunk-size", "0"], "x>=1"),
        (["imgs", "-o", "o.jsonl", "--top-p", "nan"], "--top-p"),
        (["imgs", "-o", "o.jsonl", "-m", "./no-such-model"], "no such folder"),
        (["imgs", "-o", "o.jsonl", "-m", "imgs"], "config.json"),
        (["imgs", "-o", "o.jsonl", "-m", "half-model"], "processor"),
        (["imgs", "-o", "o.jsonl", "-m", "Owner/no-network"], "HF_HOME"),
        (["imgs", "-o", "o.jsonl", "-m", "stub:color"], "stub:colour"),
        (["imgs", "-o", "o.jsonl", "-p", "a {b} c"], "{{ or }}"),
        (["imgs", "-o", "o.jsonl", "-p", "x", "-p", "y"], "brief="),
        (["imgs", "-o", "o.jsonl", "-p", "x", "--prompt-file", "p.txt"], "together"),
        (["imgs", "-o", "o.jsonl", "--prompt-file", "p.txt"], "p.txt"),
        (["imgs", "-o", "o.jsonl", "--device", "cuda:7"], "--device cuda:7"),
        (["imgs", "-o", "o.jsonl", "--config", "no.yaml"], "no.yaml"),
        (["imgs", "-o", "o.jsonl", "--config", "key.yaml"], "key.yaml:2"),
        (["imgs", "-o", "o.jsonl", "--config", "value.yaml"], "value.yaml:3"),
        (["imgs", "-o", "o.jsonl", "--save-additional-columns", "a"], "'a'"),
        (["imgs", "-o", "o.jsonl", "--resume-by", "index"], "--resume-by"),
        (["imgs", "data.parquet", "-o", "o.jsonl"], ".csv"),
        (["list.csv", "-o", "list.csv", "--overwrite"], "is an INPUT as well"),
        (["imgs", "-o", "list.csv", "--overwrite", *STUB], "not an output of vlbatch"),
        (["imgs", "-o", "list.csv", *STUB], "not an output of vlbatch"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_input_is_named_before_anything_is_loaded(
    cli: Cli, tmp_path: Path, args: list[str], says: str
) -> None:
    make_pictures(tmp_path / "imgs", 2)
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "list.csv").write_text("image,id\nimgs/0.png,a\n")
    (tmp_path / "half-model").mkdir()
    (tmp_path / "half-model/config.json").write_text('{"model_type": "llava"}')
    (tmp_path / "key.yaml").write_text("seed: 1\nchunksize: 4\n")
    (tmp_path / "value.yaml").write_text("seed: 1\n\nchunk-size: many\n")
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    ran = cli("caption", *args)
    assert ran.code == 2, ran.stderr
    assert says in ran.stderr
    assert "loading" not in ran.stderr
    assert ran.stdout == ""
    assert not (tmp_path / "o.jsonl").exists()
    assert (tmp_path / "list.csv").read_text() == "image,id\nimgs/0.png,a\n"


def test_a_run_and_the_same_command_again(cli: Cli, pictures: Path) -> None:
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB)
    assert ran.code == 0
    assert ran.stdout == ""
    assert "12 captioned → out.jsonl" in ran.stderr
    assert all(stub_caption_has(row, int(row["key"].split(".")[0])) for row in ran.rows())
    assert [row["key"] for row in ran.rows()] == [f"{n}.png" for n in range(12)]
    again = cli("caption", "imgs", "-o", "out.jsonl", *STUB)
    assert again.code == 0
    assert "0 captioned, 12 done before" in again.stderr
    assert again.rows() == ran.rows()


def test_failed_rows_are_counted_and_strict_makes_them_1(cli: Cli, pictures: Path) -> None:
    (pictures / "bad.jpg").write_text("<html>")
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB)
    assert ran.code == 0
    assert "12 captioned, 1 failed (decode.not_an_image 1)" in ran.stderr
    assert cli("caption", "imgs", "-o", "b.jsonl", *STUB, "--strict").code == 1


def test_rows_to_stdout_and_talk_to_stderr(cli: Cli, pictures: Path) -> None:
    ran = cli("caption", "imgs", "-o", "-", *STUB)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(row["index"] for row in rows) == list(range(12))
    assert "12 captioned → stdout" in ran.stderr
    assert {path.name for path in ran.folder.iterdir()} == {"imgs"}


def test_stdin_lines_and_stdin_jsonl(cli: Cli, pictures: Path) -> None:
    ran = cli("caption", "-", "-o", "-", *STUB, stdin="imgs/3.png\n\nimgs/5.png\n")
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(row["key"] for row in rows) == ["imgs/3.png", "imgs/5.png"]
    lines = '{"image": "imgs/1.png", "who": "Ann"}\n{"image": "imgs/2.png"}\n'
    ran = cli("caption", "-", "-o", "a.jsonl", *STUB, "-p", "It is {who}.", stdin=lines)
    assert ran.rows("a.jsonl")[0]["caption"]
    assert ran.rows("a.jsonl")[1]["error"]["code"] == "missing_field"
    again = cli("caption", "-", "-o", "a.jsonl", *STUB, "-p", "It is {who}.", stdin=lines)
    assert again.code == 2
    assert "--resume-by key" in again.stderr


def test_empty_stdin_is_an_error(cli: Cli) -> None:
    ran = cli("caption", "-", "-o", "-", *STUB, stdin="")
    assert ran.code == 2
    assert "no rows" in ran.stderr


def test_stdin_rows_flow_before_it_ends(tmp_path: Path) -> None:
    make_pictures(tmp_path / "imgs", 2)
    command = [sys.executable, "-m", "vlbatch.cli.main", "caption", "-", "-o", "-", *STUB]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(2):
            process.stdin.write(f"imgs/{number}.png\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["key"] == f"imgs/{number}.png"
        process.stdin.close()
        assert process.wait(20) == 0


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    make_pictures(tmp_path / "imgs", 400)
    line = f"{sys.executable} -m vlbatch.cli.main caption imgs -o - -m stub:colour --chunk-size 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line} | head -3"],
        cwd=tmp_path, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 3
    assert b"Traceback" not in done.stderr
    assert b"rror" not in done.stderr


def test_underscores_are_accepted(cli: Cli, pictures: Path) -> None:
    ran = cli("caption", "imgs", "-o", "-", *STUB, "--max_new_tokens", "9", "--chunk_size=3")
    assert ran.code == 0


def test_csv_columns_prompts_keys_and_fields(cli: Cli, pictures: Path) -> None:
    (pictures.parent / "list.csv").write_text(
        'url,id,who,note\n imgs/3.png ,k3,Ann,"a ""b"", c"\nimgs/4.png,k4,Bob,\n'
    )
    ran = cli(
        "caption", "list.csv", "--url-col", "url", "--key-col", "id", "-o", "out.jsonl", *STUB,
        "-p", "Describe {who} in {stem}, {{literally}}", "--save-additional-columns", "note,who",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    first, second = ran.rows()
    assert (first["key"], second["key"]) == ("k3", "k4")
    assert first["fields"] == {"note": 'a "b", c', "who": "Ann"}
    assert first["tokens"]["prompt"] == 5
    assert stub_caption_has(first, 3)


def test_precedence_flag_env_file_default(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "chunk_size: 2\nseed: 5\ntop-p: 0.5\nprompt: [brief=a b, full=c]\nrecursive: no\n"
    )
    ran = cli(
        "config", "show", "--config", "c.yaml", "--chunk-size", "9",
        VLBATCH_SEED="7", VLBATCH_CHUNK_SIZE="8", VLBATCH_SYSTEM="two words",
    )  # fmt: skip
    assert ran.code == 0
    shown = {line.split(":")[0]: line.split(":", 1)[1] for line in ran.stdout.splitlines()}
    assert shown["chunk-size"].split("#")[1].strip() == "flag"
    assert shown["chunk-size"].split("#")[0].strip() == "9"
    assert shown["seed"].split("#")[1].strip() == "VLBATCH_SEED"
    assert shown["system"].split("#")[0].strip() == '"two words"'
    assert shown["top-p"].split("#")[1].strip() == "c.yaml:3"
    assert shown["prompt"].split("#")[0].strip() == '["brief=a b", "full=c"]'
    assert shown["recursive"].split("#")[0].strip() == "false"
    assert shown["top-k"].split("#")[1].strip() == "default"
    (tmp_path / "shown.yaml").write_text(ran.stdout)
    again = cli("config", "show", "--config", "shown.yaml")
    assert [line.split("#")[0].strip() for line in again.stdout.splitlines()] == [
        line.split("#")[0].strip() for line in ran.stdout.splitlines()
    ]


def test_a_prompt_in_the_environment_is_one_text(cli: Cli) -> None:
    ran = cli("config", "show", VLBATCH_PROMPT="Two words")
    assert 'prompt: ["Two words"]' in ran.stdout


def test_bad_environment_is_named(cli: Cli) -> None:
    ran = cli("config", "show", VLBATCH_CHUNK_SIZE="many")
    assert ran.code == 2
    assert "environment variable VLBATCH_CHUNK_SIZE" in ran.stderr


def test_dry_run_counts_and_stops(cli: Cli, pictures: Path) -> None:
    (pictures / "notes.txt").write_text("x")
    ran = cli("caption", "imgs", *STUB, "--dry-run", "-p", "Name {stem}.")
    assert ran.code == 0
    assert "inputs: 12" in ran.stdout
    assert "prompt: Name {stem}." in ran.stdout
    assert "1 files left out" in ran.stdout
    assert {path.name for path in ran.folder.iterdir()} == {"imgs"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_the_same_command_goes_on(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    make_pictures(tmp_path / "imgs", 3000)
    args = ("caption", "imgs", "-o", "out.jsonl", *STUB)
    with subprocess.Popen(
        [sys.executable, "-m", "vlbatch.cli.main", *args, "--chunk-size", "1"],
        cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        output = tmp_path / "out.jsonl"
        deadline = time.monotonic() + 60
        while not (output.exists() and output.stat().st_size > 2000):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        start = time.monotonic()
        os.killpg(process.pid, number)
        assert process.wait(20) == 130
        assert time.monotonic() - start < 2
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert "The same command goes on" in said
    assert 0 < len(read_rows(output)) < 3000
    ran = cli(*args)
    assert ran.code == 0
    assert [row["index"] for row in ran.rows()] == list(range(3000))
    assert all(stub_caption_has(row, row["index"]) for row in ran.rows())


def test_stdin_that_never_comes_can_be_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vlbatch.cli.main", "caption", "-", "-o", "-", *STUB]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130


def test_many_files_with_few_descriptors(tmp_path: Path) -> None:
    """LlamaFactory#7513: too many open files."""
    make_pictures(tmp_path / "imgs", 2000)
    line = f"ulimit -n 64; {sys.executable} -m vlbatch.cli.main caption imgs -o o.jsonl "
    done = subprocess.run(
        ["bash", "-c", f"{line} -m stub:colour --strict"],
        cwd=tmp_path, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert len(read_rows(tmp_path / "o.jsonl")) == 2000


def test_progress_json_is_json(cli: Cli, pictures: Path) -> None:
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--progress", "json")
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert events[-1]["event"] == "summary"
    assert events[-1]["done"] == 12


def test_progress_none_is_silent(cli: Cli, pictures: Path) -> None:
    assert cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--progress", "none").stderr == ""


def test_secrets_are_never_said(cli: Cli, tmp_path: Path) -> None:
    secret = "http://u:s3cr3t@127.0.0.1:1/a.png"
    (tmp_path / "l.csv").write_text(f"url,note\n{secret},see {secret}\n")
    save = ("--save-additional-columns", "url,note")
    ran = cli("caption", "l.csv", "-o", "out.jsonl", *STUB, *save)
    assert ran.rows()[0]["error"]["code"] == "connection"
    written = "".join(path.read_text("utf-8") for path in tmp_path.glob("out.*"))
    talk = [ran.stderr, cli("caption", "l.csv", *STUB, "--dry-run").stdout]
    odd = (f" {secret}", "s3://u:s3cr3t@b/*.jpg", "file://u:s3cr3t@h/x")
    talk += [cli("caption", given, "-o", "x.jsonl", *STUB).stderr for given in odd]
    assert "s3cr3t" not in written + "".join(talk)


def test_without_a_stderr_stdout_is_still_data(tmp_path: Path) -> None:
    make_pictures(tmp_path / "imgs", 3)
    line = f"{sys.executable} -m vlbatch.cli.main caption {{}} -o - -m stub:colour 2>&-"
    for given, count in (("imgs", 3), ("nowhere", 0)):
        done = subprocess.run(
            ["bash", "-c", line.format(given)], cwd=tmp_path, capture_output=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert [json.loads(row)["height"] for row in done.stdout.splitlines()] == [8] * count


def test_a_closed_stdin_is_named(tmp_path: Path) -> None:
    line = f"{sys.executable} -m vlbatch.cli.main caption - -o - -m stub:colour 0<&-"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr


def test_a_closed_stderr_does_not_end_it(tmp_path: Path) -> None:
    make_pictures(tmp_path / "imgs", 5)
    line = f"{sys.executable} -m vlbatch.cli.main caption imgs -o o.jsonl -m stub:colour 2>&-"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert len(read_rows(tmp_path / "o.jsonl")) == 5


def test_any_locale_and_any_name(cli: Cli, tmp_path: Path) -> None:
    folder = os.fsencode(make_pictures(tmp_path / "imgs", 1))
    os.rename(folder + b"/0.png", folder + b"/\xff na\xc3\xafve.png")
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB, LC_ALL="C", PYTHONUTF8="0")
    row = ran.rows()[0]
    assert stub_caption_has(row, 0)
    assert row["image"] == "file:imgs/%FF%20na%C3%AFve.png"
    again = cli("caption", row["image"], "-o", "again.jsonl", *STUB)
    assert stub_caption_has(again.rows("again.jsonl")[0], 0)


def test_commands_and_variables_that_are_not_there(cli: Cli, pictures: Path) -> None:
    ran = cli("captoin")
    assert ran.code == 2
    assert "Did you mean 'vlbatch caption'?" in ran.stderr
    assert "Did you mean 'vlbatch caption imgs'?" in cli("imgs", "-o", "x").stderr
    ran = cli("config", "show", VLBATCH_MAX_NEW_TOKEN="3")
    assert ran.code == 0
    assert "did you mean VLBATCH_MAX_NEW_TOKENS?" in ran.stderr
    ran = cli()
    assert ran.code == 2
    assert ran.stderr.startswith("Usage: vlbatch")


def test_what_is_left_out_is_counted(cli: Cli, pictures: Path) -> None:
    for name in ("a.txt", "b.txt", "c.mp4"):
        (pictures / name).write_text("x")
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB)
    assert "3 files left out: not images by their names (.txt 2, .mp4 1)" in ran.stderr


def test_a_csv_as_excel_writes_it_abroad(cli: Cli, pictures: Path) -> None:
    text = "\ufeffimage;title\r\nimgs/3.png;Grün, sehr\r\n"
    (pictures.parent / "list.csv").write_bytes(text.encode())
    ran = cli("caption", "list.csv", "-o", "out.jsonl", *STUB, "-p", "{title}")
    assert ran.code == 0, ran.stderr
    assert ran.rows()[0]["tokens"]["prompt"] == 2


def test_jsonl_columns_keep_their_types(cli: Cli, pictures: Path) -> None:
    row = {"image": "imgs/1.png", "tags": ["x", "y"], "price": 1.5, "none": None}
    (pictures.parent / "list.jsonl").write_text(json.dumps(row))
    ran = cli(
        "caption", "list.jsonl", "-o", "out.jsonl", *STUB, "-p", "{tags} {price}{none}",
        "--save-additional-columns", "tags,price,none",
    )  # fmt: skip
    assert ran.rows()[0]["fields"] == {"tags": ["x", "y"], "price": 1.5, "none": None}
    assert ran.rows()[0]["tokens"]["prompt"] == 3


def test_dry_run_tells_what_resume_would_do(cli: Cli, pictures: Path) -> None:
    cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--limit", "5")
    before = (pictures.parent / "out.jsonl").read_bytes()
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--dry-run")
    assert "its 5 rows stay" in ran.stdout
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--dry-run", "-p", "{stem}?")
    assert "would be refused" in ran.stdout
    assert "--prompt was 'Describe this image.', is '{stem}?'" in ran.stdout
    assert "for imgs/0.png: 0?" in ran.stdout
    ran = cli("caption", "imgs", "-o", "out.jsonl", *STUB, "--dry-run", "--overwrite")
    assert "its 5 rows would be dropped" in ran.stdout
    assert (pictures.parent / "out.jsonl").read_bytes() == before


def test_one_folder_has_one_spelling(cli: Cli, pictures: Path) -> None:
    assert cli("caption", "imgs", "-o", "out.jsonl", *STUB).code == 0
    ran = cli("caption", "imgs/", "-o", "out.jsonl", *STUB)
    assert ran.code == 0
    assert "12 done before" in ran.stderr


def test_repeated_keys_go_on_by_their_images(cli: Cli, pictures: Path) -> None:
    """A row put before others of its key must not take their place."""
    table = pictures.parent / "k.csv"
    table.write_text("id,image\nx,imgs/1.png\nx,imgs/2.png\n")
    args = ("caption", "k.csv", "--key-col", "id", "--resume-by", "key", "-o", "out.jsonl", *STUB)
    assert cli(*args).code == 0
    table.write_text("id,image\nx,imgs/7.png\nx,imgs/1.png\nx,imgs/2.png\n")
    ran = cli(*args)
    assert "1 captioned, 2 done before" in ran.stderr
    assert sorted(row["image"] for row in ran.rows()) == [f"imgs/{n}.png" for n in (1, 2, 7)]


def test_libtiff_does_not_talk_over_us(cli: Cli, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), (1, 2, 3)).save(tmp_path / "a.tif", compression="tiff_deflate")
    data = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(data[:60] + b"\xff" * 20 + data[80:])
    ran = cli("caption", "a.tif", "cut.tif", "-o", "out.jsonl", *STUB)
    assert [row["error"] is None for row in ran.rows()] == [True, False]
    assert len(ran.stderr.splitlines()) == 2  # loaded, summary
