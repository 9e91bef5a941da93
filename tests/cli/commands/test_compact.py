"""``holdfast compact``: done, taken back, refused with a reason."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.cli import command
from holdfast.cli.commands.compact import compact_session
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.pipeline import Policy
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, RequestEntry, Usage
from holdfast.state.target import PlanInputs
from holdfast.store.base import Quota
from holdfast.store.open_store import open_store

SESSION = Path(__file__).parents[3] / "examples" / "long-session.jsonl"


@pytest.fixture
def store(tmp_path, run):
    """Return the path of a store with our example session."""
    path = str(tmp_path / "store.db")
    assert run("import", SESSION, "--store", path).exit_code == 0
    return path


@pytest.fixture
def key(store):
    """Return the key of its session."""
    with open_store(store) as there:
        return there.list_sessions()[0].key


def test_it_is_done_once_and_can_be_taken_back(run, store, key):
    """The request gets smaller, the log only longer; a second time there is less to gain, and undo brings all back."""
    with open_store(store) as there:
        said = len(there.read_entries(key, "message"))
    made = json.loads(run("compact", key[:8], "--store", store, "--json").stdout)
    assert made["is_compacted"]
    assert made["after"] < made["before"]
    undone = run("undo", key[:8], "--store", store, "--json")
    assert json.loads(undone.stdout)["decision"]["id"] == made["entry"]
    with open_store(store) as there:
        assert len(there.read_entries(key, "message")) == said
        assert there.open_state(key).view.compaction is None


def damage(store, column, change):
    """Change a column of the session's sixth message behind the store's back; return the message's entry."""
    chosen = "SELECT seq FROM entries WHERE kind = 'message' ORDER BY seq LIMIT 1 OFFSET 5"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"UPDATE entries SET {column} = {change} WHERE seq = ({chosen})")
        return db.execute(f"SELECT id FROM entries WHERE seq = ({chosen})").fetchone()[0]


@pytest.mark.parametrize(("column", "change"), [("body", "x'00'"), ("parent", "parent - 2"), ("parent", "99999")])
def test_a_damaged_session_is_repaired_first(run, store, key, column, change):
    """What can be repaired without loss is, and is said; every word is there as it was, and the session compacts."""
    with open_store(store) as there:
        before = there.read_entries(key)
    entry = damage(store, column, change)
    made = run("compact", key[:8], "--store", store, "--json")
    assert made.exit_code == 0, made.stderr
    told = json.loads(made.stdout)
    assert told["is_compacted"]
    assert [entry in line for line in told["repairs"]] == [True]
    with open_store(store) as there:
        assert there.read_entries(key)[: len(before)] == before
        assert there.find_damage(key) == []


def test_what_was_repaired_is_said_to_people_too(run, store, key):
    """It stands on standard error, once: the next compaction of that session finds nothing damaged."""
    entry = damage(store, "body", "x'00'")
    assert f"repaired: entry {entry}: " in run("compact", key, "--store", store).stderr
    assert "repaired" not in run("compact", key, "--store", store).stderr


def test_a_session_that_would_lose_words_is_not_repaired(run, store, key):
    """Where a repair would put words aside nothing is changed; the error names the entry and `holdfast repair`."""
    entry = damage(store, "raw", "x'00'")
    before = Path(store).read_bytes()
    refused = run("compact", key, "--store", store)
    assert refused.exit_code == 2
    assert entry in refused.stderr
    assert "`holdfast repair` puts it aside" in refused.stderr
    assert Path(store).read_bytes() == before


def test_what_came_with_it_is_taken_back_too(run, store, key):
    """Results that were cleared by the way are named beside it, for people too; behind that line all is as before."""
    before = json.loads(run("context", key, "--store", store, "--json").stdout)
    line = run("compact", key, "--store", store).stdout.splitlines()[-1]
    undone = run(*line.partition(": holdfast ")[2].split(), "--store", store, "--json")
    told = json.loads(undone.stdout)
    assert ([told["decision"]["kind"]], [one["kind"] for one in told["also"]]) == (["compaction"], ["decision"])
    assert told["decision"]["token_growth"] + told["also"][0]["token_growth"] == told["after"] - told["before"]
    assert json.loads(run("context", key, "--store", store, "--json").stdout) == before
    made = json.loads(run("compact", key, "--store", store, "--json").stdout)
    with open_store(store) as there:
        assert [made["entry"], *made.get("other_decisions", [])] == [
            id_ for id_, _ in reversed(there.open_state(key).view.active_decisions)
        ]


def test_what_was_asked_for_avoided_no_overflow(run, store, key):
    """It is told as what it is, and ``stats`` counts no request that it made fit."""
    run("compact", key, "--store", store)
    with open_store(store) as there:
        leaf, before = there.get_session(key).leaf_id, json.loads(run("stats", key, "--store", store, "--json").stdout)
        there.append_entries(
            key, [Entry("r", leaf, RequestEntry("b", 1)), Entry("a", "r", AnswerEntry("b", Usage(input=900)))]
        )
    after = json.loads(run("stats", key, "--store", store, "--json").stdout)
    assert (before["compactions"], after["answers"] - before["answers"]) == (1, 1)
    assert (before["avoided_overflows"], after["avoided_overflows"]) == (0, 0)
    assert "compaction (manual)" in run("show", key, "--store", store).stdout


def test_a_window_that_is_assumed_is_said(run, store, key):
    """Nobody believes that a model was known which was not."""
    done = run("compact", key[:8], "--store", store, "--model", "nosuch")
    assert "planned for a window of 200,000 tokens (default: the catalog has no window for nosuch)" in done.stderr
    known = run("compact", key[:8], "--store", store, "--model", "claude-sonnet-4-5")
    assert "catalog" not in known.stderr


def test_a_person_is_told(run, store, key):
    """The sizes, and how to take it back."""
    with open_store(store) as there:
        there.create_session(f"{key[:12]}-another")
    out = run("compact", key, "--store", store).stdout
    assert "compacted:" in out
    (line,) = [line for line in out.splitlines() if ": holdfast undo" in line]
    assert run(*line.partition(": holdfast ")[2].split(), "--store", store).exit_code == 0


def test_the_first_message_that_is_shown_is_one(run, tmp_path, write, talk):
    """Where all of the 36 gave way to the summary no message is named."""
    session, path = write(tmp_path / "s.jsonl", talk(9, words=150)), str(tmp_path / "s.db")
    run("import", session, "--store", path)
    with open_store(path) as there:
        key = there.list_sessions()[0].key
    first = run("compact", key, "--store", path).stdout
    second = run("compact", key, "--store", path, "--policy", "claude-code").stdout
    assert "messages from #31 on are shown in full" in first
    assert "no message is shown in full" in second


def test_what_was_decided_before_did_not_come_with_it(run, store, key):
    """Its line, and its JSON, name what this command recorded, however many compactions there were."""
    known = set()
    for number in range(4):
        made = json.loads(run("compact", key, "--store", store, "--json").stdout)
        assert made["is_compacted"]
        assert known.isdisjoint({made["entry"], *made.get("other_decisions", [])})
        with open_store(store) as there:
            known = {entry.id for entry in there.read_path(key)}
            said = [
                MessageEntry(build_sized_message(Message.from_text(role, f"{number} kelp " * 900)))
                for role in ("user", "assistant")
            ]
            names = [there.get_session(key).leaf_id, f"{number}u", f"{number}a"]
            there.append_entries(key, [Entry(names[at + 1], names[at], body) for at, body in enumerate(said)])


def test_what_is_told_is_what_was_recorded(tmp_path):
    """Where the store takes no texts the results that it was planned without stay whole: so say the sizes."""
    goal, key = get_target("anthropic", "claude-sonnet-4-5", window=32_000), "s" * 12
    with open_store(tmp_path / "s.db", quota=Quota(blob_bytes=1)) as there:
        for at in range(4):
            call, result = ToolCall(f"{at}", "Read"), ToolResult(f"{at}", "Read", (Text("a line of a log\n" * 900),))
            talk = Message.from_text("user", "kelp " * 30), Message("assistant", (call,)), Message("tool", (result,))
            Journal.open(there, key).append(*talk)
        made = compact_session(there, key, Policy(), goal, PlanInputs(force_compaction=True))
        branch = there.open_state(key)
    assert (made.is_compacted, branch.view.compaction.trigger) == (True, "manual")
    assert made.after == estimate_request_tokens(branch, compute_effective_target(goal, branch, Policy().settings))


def test_where_nothing_is_gained_nothing_is_written(run, tmp_path):
    """The reason is said; the exit code is fine; the log is as it was."""
    session = tmp_path / "short.json"
    session.write_text('{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hello."}]}')
    path = str(tmp_path / "s.db")
    run("import", str(session), "--store", path)
    with open_store(path) as there:
        key, entries = there.list_sessions()[0].key, there.list_sessions()[0].entry_count
    out = run("compact", key[:8], "--store", path)
    assert out.exit_code == 0
    assert "nothing was compacted" in out.stdout
    with open_store(path) as there:
        assert there.get_session(key).entry_count == entries


def test_what_is_shortened_anyway_is_told_as_that(run, tmp_path):
    """Where the reason counts a text as gone that is still there, both sizes of the request are said."""
    path, key = str(tmp_path / "s.db"), "s" * 12
    with open_store(path) as there:
        Journal.open(there, key).append(
            Message.from_text("user", "read " * 9_000), Message.from_text("assistant", "It was read.")
        )
        entries = there.get_session(key).entry_count
    made = json.loads(run("compact", key, "--window", "16000", "--store", path, "--json").stdout)
    assert (made["is_compacted"], made["before"]) == (False, made["after"])
    _, told = made["why"].split("; policy holdfast makes 1 message shorter anyway, right before the next request ")
    before, after = (int(size.strip("(~)").replace(",", "")) for size in told.removesuffix(" tokens)").split(" → "))
    assert (before, after < before) == (made["before"], True)
    assert f"tokens instead of {after:,}" in made["why"]
    with open_store(path) as there:
        assert there.get_session(key).entry_count == entries


def test_a_short_session_is_told_as_short(run, session):
    """Where nothing was ever summarised, nothing is said to be: all there is is what is kept."""
    assert run("import", session).exit_code == 0
    told = run("compact", "5e551011", "--policy", "pi").stdout
    assert "nothing was compacted: there are no messages before those that are kept unchanged" in told


def test_a_policy_without_summaries_is_named(run, store, key):
    """It compacts nothing whatever there is to compact, and that is the reason."""
    out = run("compact", key, "--policy", "append-only", "--store", store).stdout
    assert "nothing was compacted: policy append-only does not compact; choose one that does with --policy" in out


@pytest.mark.parametrize("wrong", [["nobody"], ["--policy", "hope", "x"], []], ids=["session", "policy", "none"])
def test_wrong_use(run, store, wrong):
    """Exit code 2 and a sentence, never a traceback."""
    out = run("compact", *wrong, "--store", store)
    assert out.exit_code == 2
    assert "Traceback" not in out.output


def test_it_is_a_command():
    """It stands among the others."""
    assert command.get_command(None, "compact") is not None
