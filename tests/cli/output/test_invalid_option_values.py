"""A wrong value of an option is told with what was given, what is allowed, and where it can be seen what was meant."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_a_number_that_is_none(run, decided, given, told):
    """What people write for a number is not taken, but it is said how to write it."""
    result = run("context", decided, "--window", given)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
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
def test_what_is_out_of_place(run, arguments, told):
    """No factor is infinite, a status is one of HTTP, and who names a policy alone is told how it is shown."""
    result = run(*arguments)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("words", ["", " \t"])
def test_a_search_without_words(run, decided, words):
    """It is no search; all that could be listed is no answer to it."""
    result = run("recall", decided, "--search", words)
    assert result.exit_code == 2
    assert "--search has no words in it" in result.stderr


@pytest.mark.parametrize("verb", ["replay", "import"])
def test_json_that_ends_early(run, home, verb):
    """A request that was cut off is told as JSON that cannot be read, and why; other text as what it is."""
    file = home / "cut.json"
    file.write_bytes(b'{"model":"m","messages":[{"role":"user"')
    assert "the JSON in it cannot be read (Input data was truncated)" in run(verb, file).stderr
    file.write_bytes(b"hello\n")
    assert "no line of the file is a JSON object with fields: its one line is something else" in run(verb, file).stderr
    file.write_bytes(b"hello\n" * 2_000)
    assert "a JSON object with fields: all its 2,000 lines are something else" in run(verb, file).stderr


def test_requests_go_into_a_folder(run, home, session):
    """A file where requests were to be written is told as such."""
    there = home / "requests"
    there.write_text("mine")
    result = run("replay", session, "--dump", there)
    assert result.exit_code == 2
    assert f"{there} is a file; give a folder with --dump" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("ls",), ("policy", "show")])
def test_help_has_a_short_name(run, arguments):
    """``-h`` is ``--help``, everywhere."""
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
def test_nothing_endless_is_repeated(run, decided, arguments):
    """An error repeats the beginning of what was given, however long that is, and still says what to do."""
    long = "7" * 5_000
    result = run(*[one.replace("LONG", long).replace("DECIDED", decided) for one in arguments], given="{}")
    assert result.exit_code in (2, 127)
    assert "7777…" in result.output
    assert len(result.output) < 1_000


def test_digits_without_end_are_no_number(run, decided):
    """Digits alone that are too many are told as that."""
    assert "has too many digits; give a smaller number" in run("context", decided, "--window", "9" * 5_000).stderr
