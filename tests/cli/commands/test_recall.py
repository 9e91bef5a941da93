"""``holdfast recall``: stored texts and messages, read back."""

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
def spilled_session(run, session, home):
    """Import a session in which a result was spilled, and return its id."""
    assert run("import", session).exit_code == 0
    with open_store(home / "store" / "holdfast.db") as store:
        hash_ = store.blobs.store_content(LONG)
        put = ToolResult("toolu_0", content=(Text("short"),))
        decided = DecisionEntry((Edit(Span(2, 3, 0), (put,), "spill", blob_hash=hash_),))
        store.append_entries(KEY, [Entry("d0", store.get_session(KEY).leaf_id, decided, time_ms=1_700_000_000_000)])
    return KEY


def test_recall_without_an_id_lists_the_stored_texts(run, spilled_session):
    """recall-lists-everything: id, size, time and tool of each text, as text and as JSON."""
    printed = run("recall", "5e55").stdout.splitlines()
    assert printed[0].split() == ["id", "bytes", "stored", "from"]
    assert printed[1].split()[:2] == [HASH[:12], f"{len(LONG.encode('utf-8', 'surrogatepass')):,}"]
    assert printed[1].endswith("Read")
    listed = json.loads(run("recall", "5e55", "--json").stdout)
    assert [(stored["id"], stored["hash"], stored["tool"], stored["is_stored"]) for stored in listed] == [
        (HASH[:12], HASH, "Read", True)
    ]


def test_recall_prints_a_text_byte_for_byte(run, spilled_session):
    """Every byte is printed, also lone surrogates and control characters, however many pages it takes."""
    for name in (HASH[:6], next(HASH[:length] for length in range(1, 6) if not HASH[:length].isdecimal())):
        assert run("recall", "5e55", name).stdout_bytes == LONG.encode("utf-8", "surrogatepass")


def test_recall_prints_ranges_and_matches(run, spilled_session):
    """Lines, characters and matching lines can be selected."""
    lines = LONG.split("\n")
    assert run("recall", "5e55", HASH[:8], "--lines", "3-4").stdout_bytes.decode("utf-8", "surrogatepass") == "".join(
        f"{line}\n" for line in lines[2:4]
    )
    assert run("recall", "5e55", HASH[:8], "--chars", "0-6").stdout == "line 0"
    matches = run("recall", "5e55", HASH[:8], "--search", "line 5999 of").stdout_bytes.splitlines()
    assert [line[:15] for line in matches] == [b"5998- line 5997", b"5999- line 5998", b"6000: line 5999", b"6001- "]


def test_recall_json_prints_one_page_and_the_next_arguments(run, spilled_session):
    """Programs get one page at a time, and the arguments of the next."""
    first_page = json.loads(run("recall", "5e55", HASH[:8], "--json").stdout)
    assert first_page["next_arguments"] == {"id": HASH[:12], "chars": f"{first_page['stop_char']}-"}
    assert (first_page["session"], first_page["total_chars"]) == (KEY, len(LONG))
    last_page = json.loads(run("recall", "5e55", HASH[:8], "--json", "--lines", "5990-").stdout)
    assert last_page["next_arguments"] is None


def test_recall_prints_a_message_found_by_search(run, spilled_session):
    """A search without an id finds messages, whose ids print them."""
    matches = json.loads(run("recall", "5e55", "--search", "module_2", "--json").stdout)
    user = next(match for match in matches if match["role"] == "user")
    assert run("recall", "5e55", user["entry_id"]).stdout == "Please read src/module_2.py and go on."
    printed = run("recall", "5e55", "--search", "module_2").stdout
    assert user["entry_id"] in printed
    assert "Please read" in printed
    assert "matches 'nowhere'" in run("recall", "5e55", "--search", "nowhere").stdout


def test_recall_output_writes_a_file_and_replaces_it_only_with_force(run, spilled_session, home):
    """``-o`` writes the text itself; an existing file is replaced only with ``--force``, a folder never."""
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
def test_recall_exits_2_on_wrong_use(run, spilled_session, home, arguments):
    """Wrong use exits with 2 and a short message, and nothing is written."""
    result = run("recall", *arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert 0 < len(result.stderr) < 500
    assert not (home / "out").exists()


def test_recall_reports_that_no_texts_are_stored(run, session):
    """An empty list is no error."""
    run("import", session)
    result = run("recall", "5e55")
    assert (result.exit_code, "no text of this session was stored away" in result.stdout) == (0, True)


def test_print_pages_replaces_control_characters_at_a_terminal(capsys, monkeypatch):
    """Escape sequences of a tool's result are not sent to a terminal; line ends and tabs are."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _print_pages([read_text_page(make_text_reader("a\x1b[2J\tb\u202ec\nd"))])
    assert capsys.readouterr().out == "a\ufffd[2J\tb\ufffdc\nd\n"


def test_recall_accepts_a_message_number(run, edited_session):
    """The number that ``show`` prints names a message, as in ``why``."""
    printed = run("why", edited_session, "0", "--said")
    assert run("recall", edited_session, "0").stdout.strip() == printed.stdout.strip()
    assert "no message #999" in run("recall", edited_session, "999").stderr


def test_recall_prefers_a_message_number_to_an_id_prefix(run, edited_session, store):
    """A number that could also be the prefix of an id names the message."""
    sized_message = build_sized_message(Message.from_text("user", "another"))
    store.append_entries(
        edited_session,
        [Entry("0003-x", "c1", MessageEntry(sized_message)), Entry("5555-x", "0003-x", MessageEntry(sized_message))],
    )
    assert run("recall", edited_session, "0003").stdout == run("recall", edited_session, "3").stdout
    assert run("recall", edited_session, "5555").exit_code == 2


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_recall_search_shows_the_match_at_any_width(run, edited_session, monkeypatch, columns):
    """However narrow the terminal, the match is shown with some text around it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("recall", edited_session, "--search", "function_1_4").stdout.splitlines()[1:]
    assert lines
    assert all(len(line) <= columns and "«function_1_4»" in line for line in lines)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_recall_search_reports_that_there_are_more_matches(run, edited_session, options):
    """The limit's number of messages is printed, and standard error says that there are more."""
    limited = run("recall", edited_session, "--search", "module_1", "--limit", "2", *options)
    unlimited = run("recall", edited_session, "--search", "module_1", *options)
    assert limited.stderr == "showing the first 2 messages; --limit shows more\n"
    assert (unlimited.stderr, limited.stdout.count("module_1") > 0) == ("", True)
    assert len(limited.stdout) < len(unlimited.stdout)


def test_recall_search_in_one_text_reports_no_match(run, edited_session):
    """Nothing is printed, and standard error says why."""
    result = run("recall", edited_session, "6", "--search", "kelp")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no line of this text matches 'kelp'; try fewer or other words\n"
    result = run("recall", edited_session, "6", "--search", "function_1_2")
    assert (result.stdout.count("function_1_2"), result.stderr) == (1, "")
