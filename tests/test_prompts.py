from __future__ import annotations

from pathlib import Path
from string import ascii_letters

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlbatch.config import DEFAULT_PROMPT, Config
from vlbatch.errors import UsageError
from vlbatch.prompts import (
    PATH_FIELDS,
    PromptSet,
    PromptTemplate,
    is_default,
    path_fields,
    prompt_set,
)
from vlbatch.records import ONLY_PROMPT, Failure, ImageRef

NAMES = st.text(ascii_letters + "_- é", min_size=1, max_size=8)


def ref(uri: str = "photos/cat.jpg", **fields: str) -> ImageRef:
    return ImageRef(0, "k", uri, fields=fields)


def one(text: str) -> PromptSet:
    return PromptSet({ONLY_PROMPT: PromptTemplate(text)})


def rendered(text: str, ref: ImageRef) -> str:
    texts = one(text).render(ref)
    assert isinstance(texts, dict)
    return texts[ONLY_PROMPT]


# ---- templates


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is it a {animal}?", "Is it a cat?"),
        ("{animal}{animal}", "catcat"),
        ("{{animal}} is {animal}", "{animal} is cat"),
        ("{{{animal}}}", "{cat}"),
        ("no places", "no places"),
        ("", ""),
        ("{filename} {stem} {dir}", "cat.jpg cat photos"),
        ("two\nlines {animal}\n", "two\nlines cat\n"),
    ],
)
def test_fill(text: str, expected: str) -> None:
    assert rendered(text, ref(animal="cat")) == expected


def test_field_of_the_row_goes_before_the_paths() -> None:
    assert rendered("{stem}", ref(stem="mine")) == "mine"


def test_what_a_field_holds_is_not_looked_into_again() -> None:
    assert rendered("{a}", ref(a="{b} {{ %s <image>", b="x")) == "{b} {{ %s <image>"


@pytest.mark.parametrize(
    "text", ["{", "}", "{a", "{a}}", "{}", "{a!r}", "{a:>3}", "{a:{b}}", "{a{b}}", "{a!}"]
)
def test_broken_template_tells_how_to_write_a_brace(text: str) -> None:
    with pytest.raises(UsageError, match=r"literal brace as \{\{ or \}\}"):
        PromptTemplate(text)


@pytest.mark.parametrize("text", ["{a.__class__}", "{a[0]}", "{a.b[c]}", "{__class__.x}"])
def test_attributes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a plain field name"):
        PromptTemplate(text)


@given(st.text())
def test_any_text_is_a_template_or_a_usage_error(text: str) -> None:
    try:
        template = PromptTemplate(text)
    except UsageError:
        return
    values = dict.fromkeys(template.fields(), "v")
    assert isinstance(template.fill(values), str)


@given(st.text())
def test_escaped_text_fills_to_itself(text: str) -> None:
    (template,) = prompt_set(Config(), default=text).templates.values()
    assert template.fields() == frozenset()
    assert template.fill({}) == text


@given(st.lists(st.tuples(st.text(), NAMES), max_size=5), st.text())
def test_places_round_trip(parts: list[tuple[str, str]], tail: str) -> None:
    """Literals and fields, written as a template, are found and filled again."""
    values = {name: f"<{i}>{name}{{" for i, (_, name) in enumerate(parts)}
    escaped = [
        text.replace("{", "{{").replace("}", "}}") for text in (*(p[0] for p in parts), tail)
    ]
    names = [f"{{{name}}}" for _, name in parts]
    template = PromptTemplate("".join(a + b for a, b in zip(escaped, [*names, ""], strict=True)))
    assert template.fields() == set(values)
    assert template.fill(values) == "".join(text + values[name] for text, name in parts) + tail


# ---- rows


def test_missing_field_fails_the_row() -> None:
    failure = one("{nope}").render(ref())
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == ("prompt", "missing_field")
    assert "'nope'" in failure.message


def test_text_that_is_not_unicode_is_replaced() -> None:
    """A path that is not UTF-8 comes with surrogates, which no tokenizer takes."""
    assert rendered("{stem} {a}", ref("caf\udce9.jpg", a="\ud800x")) == "caf� �x"


@pytest.mark.parametrize(
    ("uri", "filename", "stem", "folder"),
    [
        ("cat.jpg", "cat.jpg", "cat", ""),
        ("/data/set 1/a.b.png", "a.b.png", "a.b", "set 1"),
        ("set/noext", "noext", "noext", "set"),
        ("https://x.org/a/b%20c.jpg?size=2#top", "b c.jpg", "b c", "a"),
        ("HTTP://x.org/b.jpg", "b.jpg", "b", ""),
        ("https://x.org", "", "", ""),
        ("https://[::1/x/y.jpg", "y.jpg", "y", "x"),
    ],
)
def test_path_fields(uri: str, filename: str, stem: str, folder: str) -> None:
    fields = path_fields(uri)
    assert fields == {"filename": filename, "stem": stem, "dir": folder}
    assert set(fields) == PATH_FIELDS


@given(st.text())
def test_path_fields_of_anything(uri: str) -> None:
    assert set(path_fields(uri)) == PATH_FIELDS
    assert set(path_fields("http://x/" + uri)) == PATH_FIELDS


# ---- the run's prompts


def test_unknown_field_is_named_with_the_nearest() -> None:
    prompts = one("a {catgory}")
    with pytest.raises(UsageError, match=r"no field \{catgory\}.*Did you mean \{category\}\?"):
        prompts.check_fields(frozenset({"category", "id"}))
    one("a {category} {stem}").check_fields(frozenset({"category"}))
    prompts.check_fields(None)


def test_default_is_taken_as_it_is() -> None:
    assert is_default(Config())
    assert prompt_set(Config()).to_json() == DEFAULT_PROMPT
    assert prompt_set(Config(), "<CAPTION>").to_json() == "<CAPTION>"


def test_one_prompt_needs_no_name_and_keeps_its_equals_sign() -> None:
    config = Config(prompt=("a=b",))
    assert not is_default(config)
    assert prompt_set(config).to_json() == "a=b"


def test_several_prompts_by_name() -> None:
    prompts = prompt_set(Config(prompt=("brief=Be brief.", "full=a=b\n{stem}")))
    assert prompts.to_json() == {"brief": "Be brief.", "full": "a=b\n{stem}"}
    assert prompts.render(ref()) == {"brief": "Be brief.", "full": "a=b\ncat"}


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (("brief=x", "no name"), "want a name each"),
        (("brief=x", "=y"), "want a name each"),
        (("brief=x", "1=y"), "want a name each"),
        (("brief=x", "brief=y"), "'brief' is given twice"),
        (("{",), "literal brace"),
    ],
)
def test_prompts_that_can_not_be_read(prompts: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        prompt_set(Config(prompt=prompts))


# ---- files


def from_file(path: Path, content: str | bytes) -> str | dict[str, str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return prompt_set(Config(prompt_file=str(path))).to_json()


def test_text_file(tmp_path: Path) -> None:
    assert from_file(tmp_path / "p.txt", "\ufeffDescribe\n{stem}.\r\n\n") == "Describe\n{stem}."
    assert from_file(tmp_path / "noext", "brief: x") == "brief: x"


def test_yaml_file(tmp_path: Path) -> None:
    assert from_file(tmp_path / "p.yaml", "brief: Be brief.\nfull: |\n  One\n  two\n") == {
        "brief": "Be brief.",
        "full": "One\ntwo\n",
    }
    assert from_file(tmp_path / "p.YML", "just a text") == "just a text"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.yaml", "- a\n- b\n", "mapping of names to texts"),
        ("p.yaml", "brief: 3\n", "mapping of names to texts"),
        ("p.yaml", "3: brief\n", "mapping of names to texts"),
        ("p.yaml", "a b: brief\n", "mapping of names to texts"),
        ("p.yaml", "", "mapping of names to texts"),
        ("p.yaml", "{}", "holds no prompt"),
        ("p.yaml", "a: x\na: y\n", "given twice"),
        ("p.yaml", "a: [x\n", "p.yaml: while parsing"),
        ("p.yaml", "a: '{'\n", "literal brace"),
        ("p.txt", "\n", "holds no prompt"),
        ("p.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_files_that_can_not_be_read(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        from_file(tmp_path / name, content)


def test_missing_file_and_both_options(tmp_path: Path) -> None:
    path = str(tmp_path / "nope.txt")
    with pytest.raises(UsageError, match=r"--prompt-file .*nope\.txt: No such file"):
        prompt_set(Config(prompt_file=path))
    with pytest.raises(UsageError, match="can't be given together"):
        prompt_set(Config(prompt=("x",), prompt_file=path))
