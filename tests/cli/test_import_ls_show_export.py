"""``import``, ``ls``, ``show``, ``context`` and ``export``: sessions into the store and out of it."""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from holdfast.cli.commands.ls import shorten_session_keys
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.reports.sessions.session_list import format_age
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection
from holdfast.store.open_store import open_store

KEY = "5e551011-aaaa"


@pytest.fixture
def imported_session(run, session):
    """Import the session and return its id."""
    assert run("import", session).exit_code == 0
    return KEY


# -- import ------------------------------------------------------------------------------------------------------------


def test_import_reports_what_it_added(run, session):
    """The first import adds every entry, the second none."""
    first_report, second_report = (json.loads(run("import", session, "--json").stdout)[0] for _ in range(2))
    assert first_report["session"] == KEY
    assert (first_report["added"] > 0, first_report["already_there"]) == (True, 0)
    assert (second_report["added"], second_report["already_there"]) == (0, first_report["added"])


def test_import_adds_only_the_new_entries_of_a_longer_file(run, home, make_session_lines, write_lines):
    """Only the new turns of a longer recording are added."""
    file = write_lines(home / "grows.jsonl", make_session_lines(2))
    first_report = json.loads(run("import", file, "--json").stdout)[0]
    write_lines(file, make_session_lines(3))
    second_report = json.loads(run("import", file, "--json").stdout)[0]
    assert second_report["already_there"] == first_report["added"]
    assert second_report["added"] > 0


def test_import_reports_damaged_lines_and_imports_the_rest(run, home, make_session_lines, write_lines):
    """A damaged line is reported with its number and kept as a note, and the conversation is complete."""
    lines = make_session_lines(2)
    lines.insert(3, "{broken")
    result = run("import", write_lines(home / "broken.jsonl", lines))
    assert result.exit_code == 0
    assert "line 4: " in result.stdout
    assert run("show", KEY).stdout.count("user") == 2


def test_import_continues_after_a_bad_file_and_exits_2(run, session):
    """A bad file does not stop the others, and the exit code says that there was one."""
    result = run("import", "nowhere.jsonl", session)
    assert result.exit_code == 2
    assert "nothing was imported from it" in result.stderr
    assert KEY in result.stdout


def test_import_refuses_other_content_under_the_same_id(run, session, home, make_session_lines, write_lines):
    """An id with other content is a conflict and writes nothing; ``--as`` imports it under another id."""
    run("import", session)
    other_recording = write_lines(
        home / "other.jsonl", [text.replace("Please", "Kindly") for text in make_session_lines(3)]
    )
    result = run("import", other_recording)
    assert result.exit_code == 2
    assert "nothing" in result.stderr
    assert run("import", other_recording, "--as", "second").exit_code == 0
    assert "Please" in run("show", KEY).stdout
    assert "Kindly" in run("show", "second").stdout


def test_import_as_with_several_files_exits_2(run, session):
    """``--as`` names one session."""
    assert run("import", session, session, "--as", "x").exit_code == 2


def test_import_gives_a_request_body_a_stable_id(run, home, write_lines):
    """A body has no id of its own, and importing it again finds the same session."""
    body = {"model": "claude-x", "messages": [{"role": "user", "content": "hi"}]}
    file = write_lines(home / "body.json", [json.dumps(body)])
    first_report, second_report = (json.loads(run("import", file, "--json").stdout)[0] for _ in range(2))
    assert first_report["session"] == second_report["session"]
    assert second_report["added"] == 0


def test_import_stores_sidechains_as_sessions(run, home, make_session_lines, make_session_line, write_lines):
    """A sub-agent's conversation is a session of its own, and is exported with its parent again."""
    side = json.loads(make_session_line(900, "user", "look around")) | {
        "isSidechain": True,
        "parentUuid": None,
        "agentId": "ag1",
    }
    file = write_lines(home / "with.jsonl", [*make_session_lines(2), json.dumps(side)])
    report = json.loads(run("import", file, "--json").stdout)[0]
    assert len(report["sidechains"]) == 1
    assert run("show", KEY).exit_code == 0
    assert "look around" not in run("show", KEY).stdout
    assert "look around" in run("show", report["sidechains"][0]).stdout
    assert "look around" in run("export", KEY).stdout


def test_import_concurrently_adds_each_entry_once(run, session):
    """Two imports of one file add its entries once between them."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(_import_session(session))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bool(added) for added in results) == [False, True]
    assert len(json.loads(run("ls", "--json").stdout)) == 1


def _import_session(session):
    from holdfast.cli.commands.import_ import _import_recording
    from holdfast.cli.files.user_paths import open_named_store
    from holdfast.formats import read_recording

    with open_named_store(None) as store:
        return _import_recording(store, str(session), read_recording(session.read_bytes()), KEY).added


def test_import_creates_a_private_store(run, session, home):
    """The file and its folder can be read by their owner only."""
    run("import", session)
    assert stat.S_IMODE((home / "store" / "holdfast.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "store").stat().st_mode) == 0o700


@pytest.mark.parametrize("verb", ["import", "replay"])
def test_import_and_replay_reject_a_path_below_a_file(run, session, verb):
    """A path through a file ends in a message, not in a traceback."""
    wrong = session / "below"
    arguments = (session, "--store", wrong) if verb == "import" else (wrong,)
    result = run(verb, *arguments)
    assert result.exit_code == 2
    assert "below" in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls_lists_the_last_changed_session_first(run, session, home, make_session_lines, write_lines):
    """Every session has a line with its title, by default the user's first words."""
    later_lines = [text.replace("2026-01-01", "2026-02-01") for text in make_session_lines(2, session="1a7e-dddd")]
    run("import", session, write_lines(home / "later.jsonl", later_lines))
    listed = json.loads(run("ls", "--json").stdout)
    assert [listed_session["key"] for listed_session in listed] == ["1a7e-dddd", KEY]
    assert listed[0]["title"].startswith("Please read src/module_0.py")
    assert len(json.loads(run("ls", "--json", "--limit", "1").stdout)) == 1
    assert "5e551011" in run("ls").stdout


def test_ls_reads_only_the_newest_entries(run, home, make_session_lines, write_lines):
    """opening-costs-one-branch: listing an imported session reads its newest entries only, however long it is."""
    lines = [json.loads(text) for text in make_session_lines(20)]
    lines[-1]["message"]["usage"]["input_tokens"] = 90  # so few are not believed
    run("import", write_lines(home / "long.jsonl", [json.dumps(line) for line in lines]))
    [listed_before] = json.loads(run("ls", "--json").stdout)
    assert not listed_before["is_counted"]
    with closing(sqlite3.connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET identity = x'00' WHERE seq < (SELECT max(seq) FROM entries) - 20")
    assert run("show", KEY).exit_code == 2
    assert json.loads(run("ls", "--json").stdout) == [listed_before]


@pytest.mark.parametrize("first_message", ["<environment_context>cwd</environment_context>", "/mode"])
def test_ls_title_skips_tool_text_and_commands(run, home, make_session_lines, write_lines, first_message):
    """Text that a tool sends as the user, and a bare command, are no title."""
    records = [json.loads(line) for line in make_session_lines(2)]
    records[0]["message"]["content"] = first_message
    run("import", write_lines(home / "one.jsonl", [json.dumps(line) for line in records]))
    assert json.loads(run("ls", "--json").stdout)[0]["title"].startswith("Please read src/module_1.py")


def test_ls_without_a_store_suggests_import(run):
    """An empty list is no error, and listing creates no store."""
    result = run("ls")
    assert result.exit_code == 0
    assert "holdfast import" in result.stderr


def test_shorten_session_keys_returns_unique_prefixes():
    """No two short ids are the same, and each is a prefix of its own key only."""
    keys = ["aaaaaaaa-1", "aaaaaaaa-2", "bbbb", "cccccccccccccccc"]
    short = shorten_session_keys(keys)
    assert short == {"aaaaaaaa-1": "aaaaaaaa-1", "aaaaaaaa-2": "aaaaaaaa-2", "bbbb": "bbbb", keys[3]: "cccccccc"}


@pytest.mark.parametrize(
    ("seconds", "expected"), [(5, "now"), (120, "2 min ago"), (7_200, "2 h ago"), (864_000, "10 d ago")]
)
def test_format_age_uses_the_largest_unit(seconds, expected):
    """An age is given in its largest unit."""
    assert format_age(1_000_000, 1_000 + seconds) == expected


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_prints_one_line_a_message(run, imported_session):
    """Messages are numbered from 0, and calls and results are described."""
    lines = run("show", imported_session[:6]).stdout.splitlines()
    numbered = [text.split()[0] for text in lines if text.strip().startswith("#")]
    assert numbered == [f"#{number}" for number in range(12)]
    assert any("→ Read" in text for text in lines)
    assert max(map(len, lines)) <= 100


def test_show_json_supports_last_and_all(run, imported_session):
    """``--json`` has the entries with ids and sizes, ``--last`` the last of them, and ``--all`` adds answers."""
    listed = json.loads(run("show", imported_session, "--json").stdout)
    assert {entry["kind"] for entry in listed} == {"message"}
    assert listed[0]["tokens"] > 0
    assert json.loads(run("show", imported_session, "--json", "--last", "2").stdout) == listed[-2:]
    assert {"answer", "request"} <= {
        entry["kind"] for entry in json.loads(run("show", imported_session, "--all", "--json").stdout)
    }


def test_show_prints_decisions_and_compactions_in_place(run, imported_session, home, monkeypatch):
    """A decision and a compaction have lines of their own."""
    monkeypatch.setenv("COLUMNS", "200")
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(imported_session).leaf_id
        edit = Edit(Span(2, 3, 0), (Text("short"),), "spill", "a result of 9,000 characters spilled", 2_000)
        store.append_entries(
            imported_session,
            [
                Entry("d1", leaf, DecisionEntry((edit,))),
                Entry(
                    "c1",
                    "d1",
                    CompactionEntry(
                        8, Message.from_text("user", "what happened"), 5, tokens_before=9_000, tokens_after=900
                    ),
                ),
            ],
        )
    printed = run("show", imported_session).stdout
    assert "✂" in printed
    assert "spill #2" in printed
    assert "~9,000 → ~900 tokens" in printed
    assert "before #8" in printed


def test_show_accepts_a_unique_id_prefix(run, home, make_session_lines, write_lines):
    """Any unique prefix names a session; an ambiguous one is an error with the candidates."""
    for name in ("ab-one", "ab-two"):
        run("import", write_lines(home / f"{name}.jsonl", make_session_lines(1, session=name)))
    assert run("show", "ab-o").exit_code == 0
    result = run("show", "ab")
    assert result.exit_code == 2
    assert "ab-one" in result.stderr
    assert "ab-two" in result.stderr


@pytest.mark.parametrize("verb", ["show", "context", "export"])
def test_commands_exit_2_for_an_unknown_session(run, verb):
    """A session that does not exist exits with 2 and a message."""
    result = run(verb, "nobody")
    assert result.exit_code == 2
    assert "nobody" in result.stderr


# -- context -----------------------------------------------------------------------------------------------------------


def test_context_kinds_add_up_and_largest_comes_first(run, imported_session):
    """The kinds of a request add up to its tokens, and the largest parts come first."""
    report = json.loads(run("context", imported_session, "--json", "--window", "50000").stdout)
    assert report["window"] == 50_000
    assert sum(report["kinds"].values()) == report["tokens"]
    sizes = [piece["tokens"] for piece in report["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {"user", "assistant", "calls", "results"} <= set(report["kinds"])


def test_context_kinds_add_up_without_usage(run, home, write_lines):
    """If each part is scaled by the model's ratio, no token of the total is lost to rounding."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"these are words number {at}"} for at in range(9)]
    write_lines(home / "body.json", [json.dumps({"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages})])
    run("import", "body.json")
    report = json.loads(run("context", "body-", "--json").stdout)
    assert sum(report["kinds"].values()) == report["tokens"]


def test_context_shows_the_summary_and_the_kept_tail(run, imported_session, home):
    """After a compaction the summary stands for the earlier messages, and only the kept tail is listed."""
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(imported_session).leaf_id
        store.append_entries(
            imported_session, [Entry("c1", leaf, CompactionEntry(8, Message.from_text("user", "what happened"), 5))]
        )
        messages = len(build_projection(store.open_state(imported_session)))
    report = json.loads(run("context", imported_session, "--json").stdout)
    assert report["messages"] == messages == 5
    assert report["kinds"]["summary"] > 0
    assert all(piece["message"] in {-1, 8, 9, 10, 11} for piece in report["largest"])
    assert "summary" in run("context", imported_session, "--top", "3").stdout


# -- export ------------------------------------------------------------------------------------------------------------


def test_export_returns_the_recorded_lines(run, imported_session, session):
    """By default a session is exported in its own format, with the lines that were imported."""
    assert run("export", imported_session).stdout_bytes.splitlines() == session.read_bytes().splitlines()


@pytest.mark.parametrize("form", ["claude-code", "codex", "pi"])
def test_export_can_be_imported_again_in_any_format(run, imported_session, home, form):
    """Every tool's format has the same messages in the same order."""
    file = home / f"out.{form}.jsonl"
    assert run("export", imported_session, "--format", form, "-o", file).exit_code == 0
    assert run("import", file, "--as", form).exit_code == 0
    with open_store(home / "store" / "holdfast.db") as store:
        texts_by_session = [
            [
                sized_message.message.text
                for sized_message in ConversationState.from_entries(store.read_path(key)).history.sized_messages
            ]
            for key in (imported_session, form)
        ]
    words = [[text for text in texts if text] for texts in texts_by_session]
    assert words[0] == words[1]


def test_export_of_a_compacted_session_imports_nothing_new(run, home, make_session_lines, write_lines):
    """A session's own export adds nothing, our compaction included, and its title stays."""
    session_id = f"{KEY}-4bbb-8ccc-dddddddddddd"  # an id in the tool's own form, which an export keeps
    run("import", write_lines(home / "one.jsonl", make_session_lines(3, session=session_id)))
    assert run("compact", session_id, "--window", "20000").exit_code == 0
    listed_before = run("ls", "--json").stdout
    assert run("export", session_id, "-o", home / "out.jsonl").exit_code == 0
    (report,) = json.loads(run("import", home / "out.jsonl", "--json").stdout)
    assert (report["added"], report["already_there"] > 10) == (0, True)
    assert run("ls", "--json").stdout == listed_before


def test_export_as_a_request_is_the_next_request(run, imported_session):
    """An API's format is the request that the session would send now."""
    body = json.loads(run("export", imported_session, "--format", "anthropic").stdout)
    assert body["messages"][0] == {"role": "user", "content": "Please read src/module_0.py and go on."}


def test_export_replaces_a_file_only_with_force(run, imported_session, home):
    """An existing file stays unless ``--force`` is given, and the file is private."""
    file = home / "out.jsonl"
    file.write_text("mine")
    result = run("export", imported_session, "-o", file)
    assert result.exit_code == 2
    assert file.read_text() == "mine"
    assert (
        json.loads(run("export", imported_session, "-o", file, "--force", "--json").stdout)["bytes"]
        == file.stat().st_size
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_export_never_replaces_a_store(run, imported_session, home):
    """A store is the only copy of its sessions, so not even ``--force`` overwrites it."""
    store = home / "store" / "holdfast.db"
    bytes_before = store.read_bytes()
    result = run("export", imported_session, "-o", store, "--force")
    assert (result.exit_code, "is a store of sessions" in result.stderr) == (2, True)
    assert store.read_bytes() == bytes_before


def test_export_reports_what_the_format_leaves_out(run, home):
    """What the format cannot hold is reported once: on standard error, or in the JSON."""
    body = {"model": "m", "max_tokens": 9, "system": "be kind", "messages": [{"role": "user", "content": "hi"}]}
    (home / "body.json").write_text(json.dumps(body))
    run("import", home / "body.json")
    words = "max_tokens, system: a session of pi has no place for what its request asked for"
    assert run("export", "body", "--format", "pi").stderr == f"left out: {words}\n"
    with_json = run("export", "body", "--format", "pi", "--json")
    assert (json.loads(with_json.stdout)["left_out"], with_json.stderr) == ([words], "")
    assert json.loads(run("export", "body", "--json").stdout)["left_out"] == []


def test_export_json_contains_the_content(run, imported_session):
    """Without a file ``--json`` has the exported content."""
    report = json.loads(run("export", imported_session, "--json").stdout)
    assert report["format"] == "claude-code"
    assert len(report["content"].encode()) == report["bytes"]


def test_ls_reports_a_missing_store(run):
    """A missing store is distinguished from an empty one, and neither is an error."""
    result = run("ls", "--store", "nosuchdir/x.db")
    assert result.exit_code == 0
    assert "there is no store at nosuchdir/x.db" in result.stderr
    assert json.loads(run("ls", "--store", "nosuchdir/x.db", "--json").stdout) == []


@pytest.mark.parametrize(
    "command", ["show", "context", "diff", "why", "stats", "recall", "export", "undo", "compact", "branch"]
)
def test_commands_name_a_missing_store(run, home, command):
    """The message says that the store is missing, and none is created."""
    result = run(command, "4d56", "--store", "nosuch.db")
    assert result.exit_code == 2
    assert "no session is '4d56' or begins with it: there is no store at nosuch.db; holdfast import" in result.stderr
    assert not list(home.glob("nosuch.db*"))


def test_export_as_a_request_is_valid_with_an_open_call(run, home, make_session_lines, write_lines):
    """A session that ends in a call is exported as a request that passes lint."""
    run("import", write_lines(home / "open.jsonl", make_session_lines(2)[:6]))
    for form in ("anthropic", "openai-chat"):
        body = run("export", "5e55", "--format", form).stdout
        assert run("lint", "-", "--api", form, stdin=body).exit_code == 0


def test_show_counts_one_message_in_the_singular(run, edited_session):
    """One message is counted in the singular, several in the plural."""
    printed = run("show", edited_session, "--all").stdout
    assert "request of 1 message to claude-sonnet-4-5" in printed
    assert "request of 3 messages to claude-sonnet-4-5" in printed


def test_import_keeps_sessions_of_two_tools_apart(run, edited_session, home, store):
    """A request is not imported into another tool's session, and ``ls`` shows each session's format."""
    (home / "body.json").write_text('{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}')
    info_before = store.get_session(edited_session)
    result = run("import", "body.json", "--as", edited_session)
    assert (result.exit_code, store.get_session(edited_session)) == (2, info_before)
    assert (
        f"session {edited_session!r} is from claude-code, and this one is from openai-chat; give another id"
        in result.stderr
    )
    assert run("import", "body.json").exit_code == 0
    listed = [line.split()[:2] for line in run("ls").stdout.splitlines()]
    assert [format_name for short, format_name in listed if short.startswith("body-")] == ["openai-chat"]


def test_show_last_equals_the_end_of_the_full_list(run, edited_session, store):
    """``--last`` shows the end of what is shown without it, whatever was decided."""
    leaf = store.get_session(edited_session).leaf_id
    store.append_entries(
        edited_session,
        [
            Entry("n1", leaf, NoteEntry("noted")),
            Entry("m1", "n1", MessageEntry(build_sized_message(Message.from_text("user", "go on")))),
        ],
    )
    for options in ([], ["--all"]):
        whole = json.loads(run("show", edited_session, "--json", *options).stdout)
        assert whole[-1]["message"] == 12
        for last in range(1, len(whole) + 2):
            assert (
                json.loads(run("show", edited_session, "--json", "--last", str(last), *options).stdout) == whole[-last:]
            )


@pytest.mark.parametrize("form", ["atif", "codex", "opencode-json", "pi", "claude-code", "gemini-cli"])
def test_show_and_undo_print_ids_that_name_their_line(run, home, edited_session, form):
    """Any id printed for a message or a decision names exactly that one."""
    assert run("export", edited_session, "--format", form, "-o", home / "other").exit_code == 0
    assert run("import", home / "other", "--as", "other").exit_code == 0
    lines = run("show", "other").stdout.splitlines()[2:]
    assert lines
    for line in lines:
        number, *named = line[:20].split()
        if number.startswith("#") and "-0" not in named[0]:  # the time, where there is no id
            assert json.loads(run("why", "other", named[0], "--json").stdout)["message"] == int(number[1:])
    listed = run("undo", "other", "--list").stdout.splitlines()[1:]
    for name in [line.split()[-1] for line in listed if "without it" in line]:
        assert run("diff", "other", f"..{name}").exit_code == 0


def test_show_omits_an_unknown_compaction_size(run, edited_session, store):
    """A compaction recorded without its size before has none in its line."""
    store.append_entries(
        edited_session,
        [
            Entry(
                "c2", store.get_session(edited_session).leaf_id, CompactionEntry(6, Message.from_text("user", "so far"))
            )
        ],
    )
    line = run("show", edited_session, "--last", "1").stdout.splitlines()[-1]
    assert "compaction (auto): a summary of" in line


def test_show_last_costs_what_it_shows(run, count_calls, store):
    """The last lines of a session ten times as long, mostly compacted, take hardly more work."""
    calls_made = []
    for count in (100, 1_000):
        message_bodies = [
            MessageEntry(build_sized_message(Message.from_text("user", f"message {at} " * 20))) for at in range(count)
        ]
        bodies = [*message_bodies, CompactionEntry(count - 5, Message.from_text("user", "before")), *message_bodies[:5]]
        entries = [Entry(f"{count}-{at}", f"{count}-{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        store.import_entries(f"s{count}", entries, leaf=entries[-1].id)
        calls_made.append(count_calls(lambda count=count: run("show", f"s{count}", "--last", "3")))
        calls_made.append(count_calls(lambda count=count: run("recall", f"s{count}", str(count))))
    assert calls_made[2] < 1.5 * calls_made[0]
    assert calls_made[3] < 1.5 * calls_made[1]


def test_show_ls_and_stats_limit_long_lists(run, store):
    """Text output is limited and says how to get more; JSON has all lines."""
    entries = [
        Entry(
            f"m{at}", f"m{at - 1}" if at else None, MessageEntry(build_sized_message(Message.from_text("user", "kelp")))
        )
        for at in range(1_002)
    ]
    store.import_entries("long", entries, leaf="m1001")
    printed = run("show", "long")
    assert (printed.stdout.count("kelp"), printed.stderr) == (
        1_000,
        "showing the last 1,000 lines; --last shows more, --json all\n",
    )
    assert run("show", "long", "--last", "1002").stderr == ""
    assert len(json.loads(run("show", "long", "--json").stdout)) == 1_002
    for at in range(101):
        store.create_session(f"session-{at}")
    for verb in ("ls", "stats"):
        assert run(verb).stderr == "… and 2 sessions; --limit shows more, --json all\n"
        assert run(verb, "--limit", "102").stderr == ""
    assert len(json.loads(run("ls", "--json").stdout)) == 102
    report = json.loads(run("stats", "--json", "--limit", "1").stdout)
    assert (len(report["sessions"]), len(json.loads(run("stats", "--json").stdout)["sessions"])) == (1, 102)
