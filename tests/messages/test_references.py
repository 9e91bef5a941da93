"""What counts as a reference: every row of the table in METRICS, and the list of common references that do not
count.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.references import (
    encode_call_arguments,
    extract_references,
    extract_word_references,
    iter_json_strings,
    iter_reference_texts,
    load_common_references,
)

EXTENSIONS = """
py pyi ts tsx js jsx mjs cjs ex exs heex md json jsonl yaml yml toml rs go java kt c h cc cpp hpp css scss html
sh sql txt lock cfg ini rb php swift vue svelte log csv traj patch diff
"""


def list_keys(kind: str, text: str) -> set[str]:
    """Return the keys of references of ``kind`` in ``text``."""
    return {key for kind_found, key in extract_references(text) if kind_found == kind}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://example.org/a/b?c=d#e.", {"https://example.org/a/b?c=d#e"}),
        ("(http://localhost:8080/x),", {"http://localhost:8080/x"}),
        ('"https://a.io/x"', {"https://a.io/x"}),
        ("[docs](https://a.io/x).", {"https://a.io/x"}),
        ("`https://a.io/x` <https://a.io/y>", {"https://a.io/x", "https://a.io/y"}),
        ("https://a.io/x:;,.", {"https://a.io/x"}),
        ("ftp://a.io/x", set()),
    ],
)
def test_extract_references_finds_urls(text: str, found: set[str]) -> None:
    """A URL ends at white space, a quote or a closing bracket, and loses trailing punctuation."""
    assert list_keys("url", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("src/holdfast/view/text.py", {"view/text.py"}),
        ("/home/me/project/main", {"project/main"}),
        ("./a/../b/module", {"b/module"}),
        ("~/notes/today", {"notes/today"}),
        ("../up/there", {"up/there"}),
        ("C:/code/file.txt", {"code/file.txt"}),
        ("lib/@types/node+x/a%20b", {"node+x/a%20b"}),
        ("/usr/bin", {"usr/bin"}),
        ("a/b", set()),
        ("and/or", {"and/or"}),
        ("src/main.py:12: error", {"src/main.py"}),
        ("/abcdef", set()),
        ("https://example.org/a/b", set()),
    ],
)
def test_extract_references_finds_paths(text: str, found: set[str]) -> None:
    """A path has six characters and a slash inside; its key is its last two names without dots and tildes."""
    assert list_keys("path", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open main.py now", {"main.py"}),
        ("src/app/view.tsx", {"view.tsx"}),
        ("a.py", set()),
        ("my-file.test-x.json", {"test-x.json"}),
        ("mod.pyi, lib.exs; x1.heex", {"mod.pyi", "lib.exs", "x1.heex"}),
        ("main.pyc", set()),
        ("photo.png", set()),
        ("run.traj fix.patch old.diff", {"run.traj", "fix.patch", "old.diff"}),
    ],
)
def test_extract_references_finds_files(text: str, found: set[str]) -> None:
    """A file is a name of two characters with a known extension, alone or at the end of a path."""
    assert list_keys("file", text) == found


@pytest.mark.parametrize("extension", EXTENSIONS.split())
def test_extract_references_knows_every_extension(extension: str) -> None:
    """Every extension of the table makes a file reference."""
    assert list_keys("file", f"in name.{extension}, line 3") == {f"name.{extension}"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("call read_file(x)", {"read_file"}),
        ("obj.getName()->fooBar::HTTPServer#baz_qux", {"getName", "fooBar", "HTTPServer", "baz_qux"}),
        ("plain words only", set()),
        ("a_b", set()),
        ("ab_cd", {"ab_cd"}),
        ("__init__ _private", set()),
        ("_private_name", {"_private_name"}),
        ("MAX_SIZE README", {"MAX_SIZE"}),
        ("iPhone", {"iPhone"}),
        ("v2Beta", {"v2Beta"}),
        ("$scope_x", {"$scope_x"}),
        ("JSONata", {"JSONata"}),
        ("Holdfast.Store.Sqlite3Store", {"Sqlite3Store"}),
    ],
)
def test_extract_references_finds_identifiers(text: str, found: set[str]) -> None:
    """An identifier is a link of a chain, five characters long, with an underscore or a capital inside."""
    assert list_keys("id", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the dry-run flag", {"dry-run"}),
        ("use --no-sync", {"no-sync"}),
        ("a well-known cut-off", {"well-known", "cut-off"}),
        ("up-to", set()),
        ("Upper-case", set()),
        ("x-large", set()),
        ("gpt4-turbo-16k", {"gpt4-turbo-16k"}),
    ],
)
def test_extract_references_finds_kebab_words(text: str, found: set[str]) -> None:
    """A kebab word has seven characters, lower-case letters and digits, and begins with two of them."""
    assert list_keys("kebab", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("commit 9f8e7d6c5b4a", {"9f8e7d6"}),
        ("commit 9f8e7d6", {"9f8e7d6"}),
        ("9f8e7d", set()),
        ("1234567", set()),
        ("abcdefa", set()),
        ("a1" * 20, {"a1a1a1a"}),
        ("a1" * 20 + "f", set()),
        ("9F8E7D6C", set()),
    ],
)
def test_extract_references_finds_hexadecimal_words(text: str, found: set[str]) -> None:
    """A hexadecimal word has 7 to 40 digits, among them a letter and a figure; its key is the first seven."""
    assert list_keys("hex", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("line 1234 of 56", {"1234"}),
        ("3.14 or .5", {"3.14"}),
        ("100 127 200 404 500 1000 000", set()),
        ("101 403", {"101", "403"}),
        ("v300 300px", set()),
        ("port:8080,", {"8080"}),
        ("1.5s", set()),
    ],
)
def test_extract_references_finds_uncommon_numbers(text: str, found: set[str]) -> None:
    """A number has three digits or a decimal point, and is not one of the common ones."""
    assert list_keys("number", text) == found


def test_extract_references_finds_several_kinds_in_one_word() -> None:
    """Every expression is applied to every word: a path contains a file, an identifier and a number."""
    assert extract_references("tests/unit/test_cache.py:404:812") == {
        ("path", "unit/test_cache.py"),
        ("file", "test_cache.py"),
        ("id", "test_cache"),
        ("number", "812"),
    }


@given(st.lists(st.text(alphabet="aB1._-/:~@ #(中\n", max_size=12), max_size=6))
def test_extract_references_is_the_union_over_words(pieces: list[str]) -> None:
    """No reference spans white space: splitting a text there loses and adds nothing."""
    text = " ".join(pieces)
    assert extract_references(text) == {ref for piece in text.split() for ref in extract_word_references(piece)}


@pytest.mark.parametrize("unit", ["abcdef0123456789", "a.", "_", "中文"])
def test_extract_word_references_takes_linear_time(unit: str, assert_subquadratic) -> None:
    """Words without white space, such as encoded data, take time proportional to their length."""

    def make_extraction(size: int):
        piece = unit * (size // len(unit))
        return lambda: extract_word_references(piece)

    assert_subquadratic(make_extraction, 10_000)


def test_iter_reference_texts_yields_text_results_and_argument_strings() -> None:
    """Text, results and the strings in arguments contain references; names, numbers and media do not."""
    call = ToolCall("c1", "edit_file", json.dumps({"path": "a/b.py", "n": 7, "more": [{"deep": "leaf"}, None, "end"]}))
    result = ToolResult("c1", "edit_file", (Text("done"), Media("image", "image/png"), Text("twice")))
    assert list(iter_reference_texts(Message("assistant", (Text("I edit"), call)))) == [
        "I edit",
        "a/b.py",
        "leaf",
        "end",
    ]
    assert list(iter_reference_texts(Message("tool", (result,)))) == ["done", "twice"]


def test_iter_reference_texts_yields_broken_arguments_as_text() -> None:
    """Arguments that do not decode count as one text: a broken call still refers to things."""
    assert list(iter_reference_texts(Message("assistant", (ToolCall("c", "x", '{"path": "a/b'),)))) == ['{"path": "a/b']


def test_iter_json_strings_stops_at_64_levels() -> None:
    """Values nested deeper than 64 levels are left out instead of overflowing the stack."""
    value: object = "deep"
    for _ in range(70):
        value = [value]
    assert list(iter_json_strings(["top", value])) == ["top"]


def test_common_references_contain_what_every_project_has() -> None:
    """The standard library, ECMAScript names and frequent file names are common; a project's own names are not."""
    assert {"read_text", "ValueError", "parseInt", "package.json", "README.md", "dev/null"} <= load_common_references()
    assert load_common_references().isdisjoint({"unit/test_cache.py", "of_piece", "holdfast.toml"})


def test_common_references_are_all_extractable() -> None:
    """Every line of the list is the key of some reference; any other line would never be looked up."""
    unreachable = [
        key
        for key in load_common_references()
        if key not in {found for _, found in extract_references(f"{key} /{key} ./{key}")}
    ]
    assert unreachable == []


def test_common_references_are_sorted_and_small() -> None:
    """The list is sorted, so that a new version is a readable diff, and under 300 KB."""
    text = files("holdfast.data").joinpath("common_references.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))
    assert len(text) < 300_000


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{ "a": 1 }', '{ "a": 1 }'),
        (json.dumps('{ "a": 1 }'), '{ "a": 1 }'),
        ("null", "{}"),
        ("", "{}"),
        ('" "', "{}"),
        ("[1]", '{"value":[1]}'),
        ('"5"', '{"value":"5"}'),
        ("ls -l", '{"value":"ls -l"}'),
    ],
)
def test_encode_call_arguments_always_gives_an_object(arguments: str, sent: str) -> None:
    """A string that contains an object becomes that object, nothing becomes an empty one, anything else a
    value of one.
    """
    assert encode_call_arguments(ToolCall("t", "f", arguments)) == sent


@pytest.mark.parametrize("arguments", ['{"a": "x\ud800"}', "no JSON \ud800"])
def test_lone_surrogates_in_arguments_become_question_marks(arguments: str) -> None:
    """Whatever the log contains can be searched and sent."""
    call = ToolCall("t", "f", arguments)
    assert "?" in "".join(iter_reference_texts(Message("assistant", (call,))))
    assert json.loads(encode_call_arguments(call).encode())
