"""``holdfast recall``: what was stored away, and anything that was said, read back."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from holdfast.cli.commands.recall import _print_pages
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.text.paging import read_text_page
from holdfast.messages.text.scan import make_text_reader
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry
from holdfast.store.open_store import open_store

KEY = "5e551011-aaaa"
LONG = "".join(f"line {n} of a result \ud83d\x1b[2J\n" for n in range(6_000))
HASH = sha256(LONG.encode("utf-8", "surrogatepass")).hexdigest()


@pytest.fixture
def kept(run, session, home):
    """Import a session in which a result was spilled, and return its id."""
    assert run("import", session).exit_code == 0
    with open_store(home / "store" / "holdfast.db") as store:
        hash_ = store.blobs.store_content(LONG)
        put = ToolResult("toolu_0", content=(Text("short"),))
        decided = DecisionEntry((Edit(Span(2, 3, 0), (put,), "spill", blob_hash=hash_),))
        store.append_entries(KEY, [Entry("d0", store.get_session(KEY).leaf_id, decided, time_ms=1_700_000_000_000)])
    return KEY


def test_without_an_id_it_lists_what_was_stored_away(run, kept):
    """recall-lists-everything: id, size, time and tool of each text, for people and for programs."""
    shown = run("recall", "5e55").stdout.splitlines()
    assert shown[0].split() == ["id", "bytes", "stored", "from"]
    assert shown[1].split()[:2] == [HASH[:12], f"{len(LONG.encode('utf-8', 'surrogatepass')):,}"]
    assert shown[1].endswith("Read")
    listed = json.loads(run("recall", "5e55", "--json").stdout)
    assert [(one["id"], one["hash"], one["tool"], one["is_stored"]) for one in listed] == [
        (HASH[:12], HASH, "Read", True)
    ]


def test_an_id_prints_all_of_it_as_it_was(run, kept):
    """Every byte is printed, over as many pages as it takes; half characters and control characters too."""
    for name in (HASH[:6], next(HASH[:length] for length in range(1, 6) if not HASH[:length].isdecimal())):
        assert run("recall", "5e55", name).stdout_bytes == LONG.encode("utf-8", "surrogatepass")


def test_ranges_and_matches_are_printed(run, kept):
    """Lines, characters and the lines that match can be asked for."""
    lines = LONG.split("\n")
    assert run("recall", "5e55", HASH[:8], "--lines", "3-4").stdout_bytes.decode("utf-8", "surrogatepass") == "".join(
        f"{line}\n" for line in lines[2:4]
    )
    assert run("recall", "5e55", HASH[:8], "--chars", "0-6").stdout == "line 0"
    found = run("recall", "5e55", HASH[:8], "--search", "line 5999 of").stdout_bytes.splitlines()
    assert [line[:15] for line in found] == [b"5998- line 5997", b"5999- line 5998", b"6000: line 5999", b"6001- "]


def test_json_is_one_page_with_the_arguments_of_the_next(run, kept):
    """Programs get a page at a time, and what to ask for next."""
    first = json.loads(run("recall", "5e55", HASH[:8], "--json").stdout)
    assert first["next_arguments"] == {"id": HASH[:12], "chars": f"{first['stop_char']}-"}
    assert (first["session"], first["total_chars"]) == (KEY, len(LONG))
    last = json.loads(run("recall", "5e55", HASH[:8], "--json", "--lines", "5990-").stdout)
    assert last["next_arguments"] is None


def test_a_message_is_recalled_by_the_id_that_a_search_gives(run, kept):
    """What was said is found without an id, and printed with the one that was found."""
    found = json.loads(run("recall", "5e55", "--search", "module_2", "--json").stdout)
    user = next(one for one in found if one["role"] == "user")
    assert run("recall", "5e55", user["entry_id"]).stdout == "Please read src/module_2.py and go on."
    shown = run("recall", "5e55", "--search", "module_2").stdout
    assert user["entry_id"] in shown
    assert "Please read" in shown
    assert "matches 'nowhere'" in run("recall", "5e55", "--search", "nowhere").stdout


def test_a_file_is_written_whole_and_only_once(run, kept, home):
    """``-o`` writes the text itself; a file that is there gives way only to ``--force``, a folder never."""
    file = home / "out.txt"
    assert run("recall", "5e55", HASH[:8], "-o", file).exit_code == 0
    assert file.read_bytes() == LONG.encode("utf-8", "surrogatepass")
    refused = run("recall", "5e55", HASH[:8], "-o", file, "--lines", "1-1")
    assert (refused.exit_code, "already exists" in refused.stderr) == (2, True)
    assert json.loads(run("recall", "5e55", HASH[:8], "-o", file, "--force", "--chars", "0-4", "--json").stdout) == {
        "session": KEY,
        "file": str(file),
        "bytes": 4,
    }
    assert file.read_text() == "line"
    assert "folder" in run("recall", "5e55", HASH[:8], "-o", home).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere",),
        ("5e55", "ffffff"),
        ("5e55", ""),
        ("5e55", "../../x"),
        ("5e55", "CON"),
        ("5e55", "x" * 10_000),
        ("5e55", HASH[:8], "--lines", "-3"),
        ("5e55", HASH[:8], "--lines", "9-3"),
        ("5e55", HASH[:8], "--lines", "90000"),
        ("5e55", HASH[:8], "--chars", "x"),
        ("5e55", HASH[:8], "--lines", "1-2", "--chars", "1-2"),
        ("5e55", HASH[:8], "--search", "|"),
        ("5e55", "--lines", "1-2"),
        ("5e55", "-o", "out"),
    ],
)
def test_wrong_use_is_told_in_words(run, kept, home, arguments):
    """What is not there is exit code 2 and a short message; nothing is written."""
    result = run("recall", *arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert 0 < len(result.stderr) < 500
    assert not (home / "out").exists()


def test_a_session_without_stored_texts_says_so(run, session):
    """Nothing to list is no error."""
    run("import", session)
    result = run("recall", "5e55")
    assert (result.exit_code, "no text of this session was stored away" in result.stdout) == (0, True)


def test_a_terminal_is_shown_nothing_that_steers_it(capsys, monkeypatch):
    """Escape sequences of a tool's result are not sent to a terminal; line ends and tabs are."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _print_pages([read_text_page(make_text_reader("a\x1b[2J\tb\u202ec\nd"))])
    assert capsys.readouterr().out == "a\ufffd[2J\tb\ufffdc\nd\n"


def test_a_message_by_its_number(run, decided):
    """A message is read back by the number that show prints, as why takes it."""
    said = run("why", decided, "0", "--said")
    assert run("recall", decided, "0").stdout.strip() == said.stdout.strip()
    assert "no message #999" in run("recall", decided, "999").stderr


def test_a_number_means_the_message_before_any_id(run, decided, store):
    """What begins like a number of a message is not taken for it."""
    slot = build_sized_message(Message.from_text("user", "another"))
    store.append_entries(
        decided, [Entry("0003-x", "c1", MessageEntry(slot)), Entry("5555-x", "0003-x", MessageEntry(slot))]
    )
    assert run("recall", decided, "0003").stdout == run("recall", decided, "3").stdout
    assert run("recall", decided, "5555").exit_code == 2


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_search_shows_its_match(run, decided, monkeypatch, columns):
    """However few columns there are, the words that were looked for are seen, with some before and behind them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("recall", decided, "--search", "function_1_4").stdout.splitlines()[1:]
    assert lines
    assert all(len(line) <= columns and "«function_1_4»" in line for line in lines)


@pytest.mark.parametrize("told", [(), ("--json",)])
def test_a_search_that_found_more_says_so(run, decided, told):
    """So many messages are shown as are asked for; that there are others is told beside them."""
    some = run("recall", decided, "--search", "module_1", "--limit", "2", *told)
    every = run("recall", decided, "--search", "module_1", *told)
    assert some.stderr == "showing the first 2 messages; --limit shows more\n"
    assert (every.stderr, some.stdout.count("module_1") > 0) == ("", True)
    assert len(some.stdout) < len(every.stdout)


def test_a_search_of_one_text_that_finds_nothing_says_so(run, decided):
    """Nothing is printed, and why is told beside it; with a line that matches nothing is."""
    done = run("recall", decided, "6", "--search", "kelp")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no line of this text matches 'kelp'; try fewer or other words\n"
    done = run("recall", decided, "6", "--search", "function_1_2")
    assert (done.stdout.count("function_1_2"), done.stderr) == (1, "")
