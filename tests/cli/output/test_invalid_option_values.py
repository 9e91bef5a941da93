"""A wrong option value is refused with the value, what is allowed, and how to write it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("200k", "'200k' is not a whole number; write 200000"),
        ("1.5M", "'1.5M' is not a whole number; write 1500000"),
        ("2e5", "'2e5' is not a whole number; write 200000"),
        ("200,000", "'200,000' is not a whole number; write 200000"),
        ("1.5", "'1.5' is not a whole number; use digits only"),
        ("many", "'many' is not a whole number; use digits only"),
        ("", "'' is not a whole number; use digits only"),
        ("0", "0 is not in the range x>=1"),
    ],
)
def test_commands_suggest_how_to_write_a_number(run, edited_session, value, expected):
    """Human notations for a number are refused, and the message says how to write it."""
    result = run("context", edited_session, "--window", value)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gc", "--grace", "nan"), "'nan' is not a number; use digits, for example 0.5"),
        (("gc", "--grace", "soon"), "'soon' is not a number"),
        (("provider", "--factor", "inf"), "inf is not in the range 0<x<=100"),
        (("serve", "--port", "abc"), "'abc' is not a whole number"),
        (("run", "--window", "200k", "--", "claude"), "'200k' is not a whole number; write 200000"),
        (("classify", "-", "--status", "99"), "99 is not in the range 100<=x<=599"),
        (("policy", "pi"), "holdfast policy has no command 'pi'; use: holdfast policy show pi"),
        (("policy", "zzz"), "holdfast policy has no command 'zzz'; choose from list, show"),
    ],
)
def test_commands_name_the_allowed_values_of_an_option(run, arguments, expected):
    """Numbers out of range and a misplaced policy name are refused with what is allowed."""
    result = run(*arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("words", ["", " \t"])
def test_recall_search_refuses_blank_words(run, edited_session, words):
    """A blank search is wrong use and does not list everything."""
    result = run("recall", edited_session, "--search", words)
    assert result.exit_code == 2
    assert "--search has no words in it" in result.stderr


@pytest.mark.parametrize("verb", ["replay", "import"])
def test_replay_and_import_explain_unreadable_files(run, home, verb):
    """Truncated JSON is named as such, and other text is described."""
    file = home / "cut.json"
    file.write_bytes(b'{"model":"m","messages":[{"role":"user"')
    assert "the JSON in it cannot be read (Input data was truncated)" in run(verb, file).stderr
    file.write_bytes(b"hello\n")
    assert "no line of the file is a JSON object with fields: its one line is something else" in run(verb, file).stderr
    file.write_bytes(b"hello\n" * 2_000)
    assert "a JSON object with fields: all its 2,000 lines are something else" in run(verb, file).stderr


def test_replay_dump_refuses_an_existing_file(run, home, session):
    """A file in place of the dump folder is named."""
    file = home / "requests"
    file.write_text("mine")
    result = run("replay", session, "--dump", file)
    assert result.exit_code == 2
    assert f"{file} is a file; give a folder with --dump" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("ls",), ("policy", "show")])
def test_commands_accept_h_for_help(run, arguments):
    """``-h`` prints what ``--help`` prints."""
    assert run(*arguments, "-h").stdout == run(*arguments, "--help").stdout != ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("undo", "DECIDED", "LONG"),
        ("show", "DECIDED", "LONG"),
        ("context", "DECIDED", "--window", "LONG"),
        ("context", "DECIDED", "--policy", "LONG"),
        ("import", "LONG"),
        ("lint", "LONG"),
        ("repair", "LONG"),
        ("fix", "-", "--to", "LONG"),
        ("serve", "LONG"),
        ("run", "LONG"),
        ("ls", "--LONG"),
        ("policy", "show", "LONG"),
        ("ls", "--store", "LONG"),
        ("LONG",),
    ],
)
def test_commands_shorten_an_endless_argument_in_errors(run, edited_session, arguments):
    """An error repeats only the beginning of a very long argument, and still says what to do."""
    long = "7" * 5_000
    result = run(
        *[argument.replace("LONG", long).replace("DECIDED", edited_session) for argument in arguments], stdin="{}"
    )
    assert result.exit_code in (2, 127)
    assert "7777…" in result.output
    assert len(result.output) < 1_000


def test_context_refuses_a_window_with_too_many_digits(run, edited_session):
    """A number with thousands of digits is named as such."""
    assert (
        "has too many digits; give a smaller number" in run("context", edited_session, "--window", "9" * 5_000).stderr
    )
