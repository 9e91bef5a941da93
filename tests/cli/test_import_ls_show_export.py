"""``import``, ``ls``, ``show``, ``context`` and ``export``: sessions into the store, and out of it."""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from holdfast.cli.commands.ls import format_age, shorten_session_keys
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection
from holdfast.store.open_store import open_store

KEY = "5e551011-aaaa"


@pytest.fixture
def kept(run, session):
    """Import the session and return its id."""
    assert run("import", session).exit_code == 0
    return KEY


# -- import ------------------------------------------------------------------------------------------------------------


def test_import_says_what_it_added(run, session):
    """The first import adds every entry, the second nothing."""
    first, second = (json.loads(run("import", session, "--json").stdout)[0] for _ in range(2))
    assert first["session"] == KEY
    assert (first["added"] > 0, first["already_there"]) == (True, 0)
    assert (second["added"], second["already_there"]) == (0, first["added"])


def test_import_of_a_file_that_grew_adds_what_is_new(run, home, talk, write):
    """Only the new turns of a longer recording are added."""
    file = write(home / "grows.jsonl", talk(2))
    before = json.loads(run("import", file, "--json").stdout)[0]
    write(file, talk(3))
    after = json.loads(run("import", file, "--json").stdout)[0]
    assert after["already_there"] == before["added"]
    assert after["added"] > 0


def test_import_lists_damaged_lines_and_takes_the_rest(run, home, talk, write):
    """A damaged line is reported with its number and kept; the conversation is there."""
    lines = talk(2)
    lines.insert(3, "{broken")
    result = run("import", write(home / "broken.jsonl", lines))
    assert result.exit_code == 0
    assert "line 4: " in result.stdout
    assert run("show", KEY).stdout.count("user") == 2


def test_import_takes_good_files_and_refuses_bad_ones(run, session):
    """One bad file does not stop the others; the exit code tells that there was one."""
    result = run("import", "nowhere.jsonl", session)
    assert result.exit_code == 2
    assert "nothing was imported from it" in result.stderr
    assert KEY in result.stdout


def test_import_never_mixes_two_recordings(run, session, home, talk, write):
    """An id with other content is a conflict and writes nothing; ``--as`` takes the file in under another id."""
    run("import", session)
    other = write(home / "other.jsonl", [text.replace("Please", "Kindly") for text in talk(3)])
    result = run("import", other)
    assert result.exit_code == 2
    assert "nothing" in result.stderr
    assert run("import", other, "--as", "second").exit_code == 0
    assert "Please" in run("show", KEY).stdout
    assert "Kindly" in run("show", "second").stdout


def test_one_name_for_several_files_is_wrong_use(run, session):
    """``--as`` names one session."""
    assert run("import", session, session, "--as", "x").exit_code == 2


def test_a_request_without_an_id_gets_the_same_one_twice(run, home, write):
    """A body has no id of its own; importing it again finds it."""
    body = {"model": "claude-x", "messages": [{"role": "user", "content": "hi"}]}
    file = write(home / "body.json", [json.dumps(body)])
    first, second = (json.loads(run("import", file, "--json").stdout)[0] for _ in range(2))
    assert first["session"] == second["session"]
    assert second["added"] == 0


def test_sidechains_are_sessions_of_their_own(run, home, talk, line, write):
    """A sub-agent's conversation in the same file is kept apart, and exported with its session again."""
    side = json.loads(line(900, "user", "look around")) | {"isSidechain": True, "parentUuid": None, "agentId": "ag1"}
    file = write(home / "with.jsonl", [*talk(2), json.dumps(side)])
    told = json.loads(run("import", file, "--json").stdout)[0]
    assert len(told["sidechains"]) == 1
    assert run("show", KEY).exit_code == 0
    assert "look around" not in run("show", KEY).stdout
    assert "look around" in run("show", told["sidechains"][0]).stdout
    assert "look around" in run("export", KEY).stdout


def test_two_imports_at_once_make_one_session(run, session):
    """Two imports of one file add its entries once between them."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(_put(session))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bool(added) for added in results) == [False, True]
    assert len(json.loads(run("ls", "--json").stdout)) == 1


def _put(session):
    from holdfast.cli.commands.import_ import _import_recording
    from holdfast.cli.files.user_paths import open_named_store
    from holdfast.formats import read_recording

    with open_named_store(None) as store:
        return _import_recording(store, str(session), read_recording(session.read_bytes()), KEY).added


def test_the_store_is_private(run, session, home):
    """The file and its folder can be read by their owner only."""
    run("import", session)
    assert stat.S_IMODE((home / "store" / "holdfast.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "store").stat().st_mode) == 0o700


@pytest.mark.parametrize("verb", ["import", "replay"])
def test_a_store_or_file_below_a_file_is_a_message(run, session, verb):
    """A path through a file ends in a message, not in a traceback."""
    wrong = session / "below"
    arguments = (session, "--store", wrong) if verb == "import" else (wrong,)
    result = run(verb, *arguments)
    assert result.exit_code == 2
    assert "below" in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls_lists_the_last_changed_first(run, session, home, talk, write):
    """Every session has a line with its title: the user's first words where it has none."""
    later = [text.replace("2026-01-01", "2026-02-01") for text in talk(2, session="1a7e-dddd")]
    run("import", session, write(home / "later.jsonl", later))
    found = json.loads(run("ls", "--json").stdout)
    assert [one["key"] for one in found] == ["1a7e-dddd", KEY]
    assert found[0]["title"].startswith("Please read src/module_0.py")
    assert len(json.loads(run("ls", "--json", "--limit", "1").stdout)) == 1
    assert "5e551011" in run("ls").stdout


def test_ls_reads_no_word_of_an_import(run, home, talk, write):
    """opening-costs-one-branch: what is listed of a session that another tool recorded takes its newest entries,
    however long it is.
    """
    lines = [json.loads(text) for text in talk(20)]
    lines[-1]["message"]["usage"]["input_tokens"] = 90  # so few are not believed
    run("import", write(home / "long.jsonl", [json.dumps(line) for line in lines]))
    [before] = json.loads(run("ls", "--json").stdout)
    assert not before["is_counted"]
    with closing(sqlite3.connect(home / "store" / "holdfast.db", isolation_level=None)) as db:
        db.execute("UPDATE entries SET identity = x'00' WHERE seq < (SELECT max(seq) FROM entries) - 20")
    assert run("show", KEY).exit_code == 2
    assert json.loads(run("ls", "--json").stdout) == [before]


@pytest.mark.parametrize("first", ["<environment_context>cwd</environment_context>", "/mode"])
def test_a_title_is_what_a_person_said(run, home, talk, write, first):
    """What a tool says in the user's name, and a bare command, are passed over."""
    words = [json.loads(line) for line in talk(2)]
    words[0]["message"]["content"] = first
    run("import", write(home / "one.jsonl", [json.dumps(line) for line in words]))
    assert json.loads(run("ls", "--json").stdout)[0]["title"].startswith("Please read src/module_1.py")


def test_ls_of_nothing_says_how_to_begin(run):
    """An empty store is no error; the store is not made by looking at it."""
    result = run("ls")
    assert result.exit_code == 0
    assert "holdfast import" in result.stderr


def test_ids_are_shown_as_short_as_they_can_be_told_apart():
    """No two short ids are the same, and each is the beginning of its own key alone."""
    keys = ["aaaaaaaa-1", "aaaaaaaa-2", "bbbb", "cccccccccccccccc"]
    short = shorten_session_keys(keys)
    assert short == {"aaaaaaaa-1": "aaaaaaaa-1", "aaaaaaaa-2": "aaaaaaaa-2", "bbbb": "bbbb", keys[3]: "cccccccc"}


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "now"), (120, "2 min ago"), (7_200, "2 h ago"), (864_000, "10 d ago")]
)
def test_ago(seconds, told):
    """Times are told in their largest unit."""
    assert format_age(1_000_000, 1_000 + seconds) == told


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_prints_a_message_a_line(run, kept):
    """Messages are numbered from 0, calls and results are told in words."""
    lines = run("show", kept[:6]).stdout.splitlines()
    numbered = [text.split()[0] for text in lines if text.strip().startswith("#")]
    assert numbered == [f"#{number}" for number in range(12)]
    assert any("→ Read" in text for text in lines)
    assert max(map(len, lines)) <= 100


def test_show_as_json_and_its_end(run, kept):
    """``--json`` has the entries with ids and sizes; ``--last`` the last of them; ``--all`` answers too."""
    found = json.loads(run("show", kept, "--json").stdout)
    assert {one["kind"] for one in found} == {"message"}
    assert found[0]["tokens"] > 0
    assert json.loads(run("show", kept, "--json", "--last", "2").stdout) == found[-2:]
    assert {"answer", "request"} <= {one["kind"] for one in json.loads(run("show", kept, "--all", "--json").stdout)}


def test_decisions_and_compactions_stand_where_they_were_made(run, kept, home, monkeypatch):
    """A recorded decision and a compaction have lines of their own, in words."""
    monkeypatch.setenv("COLUMNS", "200")
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(kept).leaf_id
        edit = Edit(Span(2, 3, 0), (Text("short"),), "spill", "a result of 9,000 characters spilled", 2_000)
        store.append_entries(
            kept,
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
    shown = run("show", kept).stdout
    assert "✂" in shown
    assert "spill #2" in shown
    assert "~9,000 → ~900 tokens" in shown
    assert "before #8" in shown


def test_ids_may_be_short_but_not_ambiguous(run, home, talk, write):
    """Any unique beginning names a session; one that fits several is an error with the candidates."""
    for name in ("ab-one", "ab-two"):
        run("import", write(home / f"{name}.jsonl", talk(1, session=name)))
    assert run("show", "ab-o").exit_code == 0
    result = run("show", "ab")
    assert result.exit_code == 2
    assert "ab-one" in result.stderr
    assert "ab-two" in result.stderr


@pytest.mark.parametrize("verb", ["show", "context", "export"])
def test_an_unknown_session_is_wrong_use(run, verb):
    """A session that is not there is exit code 2 and a message."""
    result = run(verb, "nobody")
    assert result.exit_code == 2
    assert "nobody" in result.stderr


# -- context -----------------------------------------------------------------------------------------------------------


def test_context_adds_up(run, kept):
    """The kinds of a request add up to its tokens; the largest parts come first."""
    found = json.loads(run("context", kept, "--json", "--window", "50000").stdout)
    assert found["window"] == 50_000
    assert sum(found["kinds"].values()) == found["tokens"]
    sizes = [piece["tokens"] for piece in found["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {"user", "assistant", "calls", "results"} <= set(found["kinds"])


def test_parts_of_a_request_that_nobody_counted_add_up(run, home, write):
    """Where each part is as large as its model counts it, none of the whole is lost to rounding."""
    said = [{"role": ("user", "assistant")[at % 2], "content": f"these are words number {at}"} for at in range(9)]
    write(home / "body.json", [json.dumps({"model": "claude-opus-4-8", "max_tokens": 9, "messages": said})])
    run("import", "body.json")
    found = json.loads(run("context", "body-", "--json").stdout)
    assert sum(found["kinds"].values()) == found["tokens"]


def test_context_is_what_a_request_shows(run, kept, home):
    """After a compaction the summary stands for what came before, and only the kept tail is listed."""
    with open_store(home / "store" / "holdfast.db") as store:
        leaf = store.get_session(kept).leaf_id
        store.append_entries(
            kept, [Entry("c1", leaf, CompactionEntry(8, Message.from_text("user", "what happened"), 5))]
        )
        messages = len(build_projection(store.open_state(kept)))
    found = json.loads(run("context", kept, "--json").stdout)
    assert found["messages"] == messages == 5
    assert found["kinds"]["summary"] > 0
    assert all(piece["message"] in {-1, 8, 9, 10, 11} for piece in found["largest"])
    assert "summary" in run("context", kept, "--top", "3").stdout


# -- export ------------------------------------------------------------------------------------------------------------


def test_export_gives_back_the_lines(run, kept, session):
    """A session goes out in its own form by default: the same lines that came in."""
    assert run("export", kept).stdout_bytes.splitlines() == session.read_bytes().splitlines()


@pytest.mark.parametrize("form", ["claude-code", "codex", "pi"])
def test_an_export_can_be_imported_again(run, kept, home, form):
    """Every tool's form holds the same messages in the same order."""
    file = home / f"out.{form}.jsonl"
    assert run("export", kept, "--format", form, "-o", file).exit_code == 0
    assert run("import", file, "--as", form).exit_code == 0
    with open_store(home / "store" / "holdfast.db") as store:
        told = [
            [slot.message.text for slot in ConversationState.from_entries(store.read_path(key)).history.sized_messages]
            for key in (kept, form)
        ]
    words = [[text for text in texts if text] for texts in told]
    assert words[0] == words[1]


def test_an_export_of_a_compacted_session_is_no_other_content(run, home, talk, write):
    """What a session says comes back from its own file as nothing new, its compaction by us too; its title stays."""
    whose = f"{KEY}-4bbb-8ccc-dddddddddddd"  # an id of the tool's own form, which it keeps in lines of ours
    run("import", write(home / "one.jsonl", talk(3, session=whose)))
    assert run("compact", whose, "--window", "20000").exit_code == 0
    before = run("ls", "--json").stdout
    assert run("export", whose, "-o", home / "out.jsonl").exit_code == 0
    (told,) = json.loads(run("import", home / "out.jsonl", "--json").stdout)
    assert (told["added"], told["already_there"] > 10) == (0, True)
    assert run("ls", "--json").stdout == before


def test_export_as_a_request(run, kept):
    """The form of an API is the request that the session makes now."""
    body = json.loads(run("export", kept, "--format", "anthropic").stdout)
    assert body["messages"][0] == {"role": "user", "content": "Please read src/module_0.py and go on."}


def test_export_replaces_a_file_only_when_told_to(run, kept, home):
    """What is there stays, unless ``--force`` says otherwise; the file is private."""
    file = home / "out.jsonl"
    file.write_text("mine")
    result = run("export", kept, "-o", file)
    assert result.exit_code == 2
    assert file.read_text() == "mine"
    assert json.loads(run("export", kept, "-o", file, "--force", "--json").stdout)["bytes"] == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_export_never_replaces_a_store(run, kept, home):
    """A store holds what nothing else does: no ``--force`` writes over it."""
    store = home / "store" / "holdfast.db"
    before = store.read_bytes()
    result = run("export", kept, "-o", store, "--force")
    assert (result.exit_code, "is a store of sessions" in result.stderr) == (2, True)
    assert store.read_bytes() == before


def test_export_tells_what_is_left_out(run, home):
    """What the form has no place for is told once: on standard error, or in the JSON."""
    body = {"model": "m", "max_tokens": 9, "system": "be kind", "messages": [{"role": "user", "content": "hi"}]}
    (home / "body.json").write_text(json.dumps(body))
    run("import", home / "body.json")
    words = "max_tokens, system: a session of pi has no place for what its request asked for"
    assert run("export", "body", "--format", "pi").stderr == f"left out: {words}\n"
    told = run("export", "body", "--format", "pi", "--json")
    assert (json.loads(told.stdout)["left_out"], told.stderr) == ([words], "")
    assert json.loads(run("export", "body", "--json").stdout)["left_out"] == []


def test_export_as_json_holds_the_content(run, kept):
    """Without a file ``--json`` carries what was written."""
    told = json.loads(run("export", kept, "--json").stdout)
    assert told["format"] == "claude-code"
    assert len(told["content"].encode()) == told["bytes"]


def test_a_store_that_is_not_there_is_told(run):
    """An empty list and a store that is not there are two things; neither is an error."""
    result = run("ls", "--store", "nosuchdir/x.db")
    assert result.exit_code == 0
    assert "there is no store at nosuchdir/x.db" in result.stderr
    assert json.loads(run("ls", "--store", "nosuchdir/x.db", "--json").stdout) == []


@pytest.mark.parametrize(
    "command", ["show", "context", "diff", "why", "stats", "recall", "export", "undo", "compact", "branch"]
)
def test_a_session_of_a_store_that_is_not_there(run, home, command):
    """It is the store that is missing, and that is said; none is made by looking."""
    result = run(command, "4d56", "--store", "nosuch.db")
    assert result.exit_code == 2
    assert "no session is '4d56' or begins with it: there is no store at nosuch.db; holdfast import" in result.stderr
    assert not list(home.glob("nosuch.db*"))


def test_a_request_is_valid_whatever_the_log_leaves_open(run, home, talk, write):
    """A session that ends in a call is exported as a request that lint takes."""
    run("import", write(home / "open.jsonl", talk(2)[:6]))
    for form in ("anthropic", "openai-chat"):
        body = run("export", "5e55", "--format", form).stdout
        assert run("lint", "-", "--api", form, given=body).exit_code == 0


def test_a_request_of_one_message(run, decided):
    """It is told in the singular, the next ones in the plural."""
    shown = run("show", decided, "--all").stdout
    assert "request of 1 message to claude-sonnet-4-5" in shown
    assert "request of 3 messages to claude-sonnet-4-5" in shown


def test_sessions_of_two_tools_do_not_become_one(run, decided, home, store):
    """A request is not taken into a session of Claude Code; under an id of its own it is, and the list says whose."""
    (home / "body.json").write_text('{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}')
    before = store.get_session(decided)
    done = run("import", "body.json", "--as", decided)
    assert (done.exit_code, store.get_session(decided)) == (2, before)
    assert f"session {decided!r} is from claude-code, and this one is from openai-chat; give another id" in done.stderr
    assert run("import", "body.json").exit_code == 0
    listed = [line.split()[:2] for line in run("ls").stdout.splitlines()]
    assert [whose for short, whose in listed if short.startswith("body-")] == ["openai-chat"]


def test_the_last_lines_are_those_of_the_whole(run, decided, store):
    """``--last`` shows the end of what is shown without it, whatever was decided."""
    leaf = store.get_session(decided).leaf_id
    store.append_entries(
        decided,
        [
            Entry("n1", leaf, NoteEntry("noted")),
            Entry("m1", "n1", MessageEntry(build_sized_message(Message.from_text("user", "go on")))),
        ],
    )
    for options in ([], ["--all"]):
        whole = json.loads(run("show", decided, "--json", *options).stdout)
        assert whole[-1]["message"] == 12
        for last in range(1, len(whole) + 2):
            assert json.loads(run("show", decided, "--json", "--last", str(last), *options).stdout) == whole[-last:]


@pytest.mark.parametrize("form", ["codex", "opencode-json", "pi", "claude-code", "gemini-cli"])
def test_an_id_that_is_shown_means_its_line(run, home, decided, form):
    """Any id that ``show`` prints of a message, and that ``undo --list`` prints of a decision, means just that one."""
    assert run("export", decided, "--format", form, "-o", home / "other").exit_code == 0
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


def test_what_nobody_told_of_a_compaction_is_left_out(run, decided, store):
    """A compaction that came without the size before it has none in its line."""
    store.append_entries(
        decided,
        [Entry("c2", store.get_session(decided).leaf_id, CompactionEntry(6, Message.from_text("user", "so far")))],
    )
    line = run("show", decided, "--last", "1").stdout.splitlines()[-1]
    assert "compaction (auto): a summary of" in line


def test_the_last_lines_cost_what_they_show(run, work, store):
    """Of a session ten times as long, most of it folded away, the last lines take hardly more work to show."""
    needed = []
    for count in (100, 1_000):
        said = [
            MessageEntry(build_sized_message(Message.from_text("user", f"message {at} " * 20))) for at in range(count)
        ]
        bodies = [*said, CompactionEntry(count - 5, Message.from_text("user", "before")), *said[:5]]
        entries = [Entry(f"{count}-{at}", f"{count}-{at - 1}" if at else None, body) for at, body in enumerate(bodies)]
        store.import_entries(f"s{count}", entries, leaf=entries[-1].id)
        needed.append(work(lambda count=count: run("show", f"s{count}", "--last", "3")))
        needed.append(work(lambda count=count: run("recall", f"s{count}", str(count))))
    assert needed[2] < 1.5 * needed[0]
    assert needed[3] < 1.5 * needed[1]


def test_long_lists_end_and_say_so(run, store):
    """A person gets as many lines as can be looked at, and is told how to get more; a program gets them all."""
    many = [
        Entry(
            f"m{at}", f"m{at - 1}" if at else None, MessageEntry(build_sized_message(Message.from_text("user", "kelp")))
        )
        for at in range(1_002)
    ]
    store.import_entries("long", many, leaf="m1001")
    shown = run("show", "long")
    assert (shown.stdout.count("kelp"), shown.stderr) == (
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
    found = json.loads(run("stats", "--json", "--limit", "1").stdout)
    assert (len(found["sessions"]), len(json.loads(run("stats", "--json").stdout)["sessions"])) == (1, 102)
