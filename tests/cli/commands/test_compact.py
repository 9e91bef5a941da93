"""``holdfast compact``: what it records, that it can be undone, and when it refuses."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.cli.reports.compact_session import compact_session
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
    """Return the path of a store with the example session."""
    path = str(tmp_path / "store.db")
    assert run("import", SESSION, "--store", path).exit_code == 0
    return path


@pytest.fixture
def key(store):
    """Return the key of the example session."""
    with open_store(store) as opened:
        return opened.list_sessions()[0].key


def test_compact_shrinks_the_request_and_undo_restores_it(run, store, key):
    """The request gets smaller, the log only grows, and undo restores the state."""
    with open_store(store) as opened:
        message_count = len(opened.read_entries(key, "message"))
    report = json.loads(run("compact", key[:8], "--store", store, "--json").stdout)
    assert report["is_compacted"]
    assert report["after"] < report["before"]
    undone = run("undo", key[:8], "--store", store, "--json")
    assert json.loads(undone.stdout)["decision"]["id"] == report["entry"]
    with open_store(store) as opened:
        assert len(opened.read_entries(key, "message")) == message_count
        assert opened.open_state(key).view.compaction is None


def damage_message(store, column, change):
    """Change a column of the session's sixth message directly in the database; return the message's entry id."""
    chosen = "SELECT seq FROM entries WHERE kind = 'message' ORDER BY seq LIMIT 1 OFFSET 5"
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"UPDATE entries SET {column} = {change} WHERE seq = ({chosen})")
        return db.execute(f"SELECT id FROM entries WHERE seq = ({chosen})").fetchone()[0]


@pytest.mark.parametrize(("column", "change"), [("body", "x'00'"), ("parent", "parent - 2"), ("parent", "99999")])
def test_compact_repairs_a_damaged_session_first(run, store, key, column, change):
    """Damage that can be repaired without loss is repaired and reported; every message stays as it was, and the session
    compacts.
    """
    with open_store(store) as opened:
        entries_before = opened.read_entries(key)
    entry = damage_message(store, column, change)
    result = run("compact", key[:8], "--store", store, "--json")
    assert result.exit_code == 0, result.stderr
    repair_report = json.loads(result.stdout)
    assert repair_report["is_compacted"]
    assert [entry in line for line in repair_report["repairs"]] == [True]
    with open_store(store) as opened:
        assert opened.read_entries(key)[: len(entries_before)] == entries_before
        assert opened.find_damage(key) == []


def test_compact_reports_repairs_on_standard_error_once(run, store, key):
    """The repairs are printed on standard error once: the next compaction finds no damage."""
    entry = damage_message(store, "body", "x'00'")
    assert f"repaired: entry {entry}: " in run("compact", key, "--store", store).stderr
    assert "repaired" not in run("compact", key, "--store", store).stderr


def test_compact_refuses_a_repair_that_loses_messages(run, store, key):
    """If a repair would set messages aside nothing changes, and the error names the entry and `holdfast repair`."""
    entry = damage_message(store, "raw", "x'00'")
    bytes_before = Path(store).read_bytes()
    refused = run("compact", key, "--store", store)
    assert refused.exit_code == 2
    assert entry in refused.stderr
    assert "`holdfast repair` puts it aside" in refused.stderr
    assert Path(store).read_bytes() == bytes_before


def test_compact_prints_an_undo_command_for_all_its_decisions(run, store, key):
    """Results cleared along with the compaction are named too, and undoing all of them restores the earlier state."""
    context_before = json.loads(run("context", key, "--store", store, "--json").stdout)
    line = run("compact", key, "--store", store).stdout.splitlines()[-1]
    undone = run(*line.partition(": holdfast ")[2].split(), "--store", store, "--json")
    undo_report = json.loads(undone.stdout)
    assert ([undo_report["decision"]["kind"]], [decision["kind"] for decision in undo_report["also"]]) == (
        ["compaction"],
        ["decision"],
    )
    assert (
        undo_report["decision"]["token_growth"] + undo_report["also"][0]["token_growth"]
        == undo_report["after"] - undo_report["before"]
    )
    assert json.loads(run("context", key, "--store", store, "--json").stdout) == context_before
    report = json.loads(run("compact", key, "--store", store, "--json").stdout)
    with open_store(store) as opened:
        assert [report["entry"], *report.get("other_decisions", [])] == [
            id_ for id_, _ in reversed(opened.open_state(key).view.active_decisions)
        ]


def test_compact_on_request_counts_no_avoided_overflow(run, store, key):
    """A manual compaction is shown as manual, and ``stats`` counts no overflow that it avoided."""
    run("compact", key, "--store", store)
    with open_store(store) as opened:
        leaf, stats_before = (
            opened.get_session(key).leaf_id,
            json.loads(run("stats", key, "--store", store, "--json").stdout),
        )
        opened.append_entries(
            key, [Entry("r", leaf, RequestEntry("b", 1)), Entry("a", "r", AnswerEntry("b", Usage(input=900)))]
        )
    stats_after = json.loads(run("stats", key, "--store", store, "--json").stdout)
    assert (stats_before["compactions"], stats_after["answers"] - stats_before["answers"]) == (1, 1)
    assert (stats_before["avoided_overflows"], stats_after["avoided_overflows"]) == (0, 0)
    assert "compaction (manual)" in run("show", key, "--store", store).stdout


def test_compact_reports_an_assumed_window(run, store, key):
    """For an unknown model the assumed window is reported."""
    done = run("compact", key[:8], "--store", store, "--model", "nosuch")
    assert "planned for a window of 200,000 tokens (default: the catalog has no window for nosuch)" in done.stderr
    known = run("compact", key[:8], "--store", store, "--model", "claude-sonnet-4-5")
    assert "catalog" not in known.stderr


def test_compact_prints_sizes_and_a_working_undo_command(run, store, key):
    """The sizes are printed, and a command that undoes the compaction."""
    with open_store(store) as opened:
        opened.create_session(f"{key[:12]}-another")
    out = run("compact", key, "--store", store).stdout
    assert "compacted:" in out
    (line,) = [line for line in out.splitlines() if ": holdfast undo" in line]
    assert run(*line.partition(": holdfast ")[2].split(), "--store", store).exit_code == 0


def test_compact_names_the_first_message_shown_in_full(run, tmp_path, write_lines, make_session_lines):
    """If the summary replaces all 36 messages, no message is named."""
    session, path = write_lines(tmp_path / "s.jsonl", make_session_lines(9, words=150)), str(tmp_path / "s.db")
    run("import", session, "--store", path)
    with open_store(path) as opened:
        key = opened.list_sessions()[0].key
    first = run("compact", key, "--store", path).stdout
    second = run("compact", key, "--store", path, "--policy", "claude-code").stdout
    assert "messages from #35 on are shown in full" in first
    assert "no message is shown in full" in second


def test_compact_names_only_its_own_decisions(run, store, key):
    """Text and JSON name what this command recorded, however many compactions came before."""
    earlier_ids = set()
    for number in range(4):
        report = json.loads(run("compact", key, "--store", store, "--json").stdout)
        assert report["is_compacted"]
        assert earlier_ids.isdisjoint({report["entry"], *report.get("other_decisions", [])})
        with open_store(store) as opened:
            earlier_ids = {entry.id for entry in opened.read_path(key)}
            bodies = [
                MessageEntry(build_sized_message(Message.from_text(role, f"{number} kelp " * 900)))
                for role in ("user", "assistant")
            ]
            names = [opened.get_session(key).leaf_id, f"{number}u", f"{number}a"]
            opened.append_entries(key, [Entry(names[at + 1], names[at], body) for at, body in enumerate(bodies)])


def test_compact_session_reports_the_recorded_size(tmp_path):
    """If the store takes no texts, the results planned to be spilled stay whole, and the reported size says so."""
    target, key = get_target("anthropic", "claude-sonnet-4-5", window=32_000), "s" * 12
    with open_store(tmp_path / "s.db", quota=Quota(blob_bytes=1)) as opened:
        for at in range(4):
            call, result = ToolCall(f"{at}", "Read"), ToolResult(f"{at}", "Read", (Text("a line of a log\n" * 900),))
            talk = Message.from_text("user", "kelp " * 30), Message("assistant", (call,)), Message("tool", (result,))
            Journal.open(opened, key).append(*talk)
        report = compact_session(opened, key, Policy(), target, PlanInputs(force_compaction=True))
        state = opened.open_state(key)
    assert (report.is_compacted, state.view.compaction.trigger) == (True, "manual")
    assert report.after == estimate_request_tokens(state, compute_effective_target(target, state, Policy().settings))


def test_compact_writes_nothing_when_nothing_is_gained(run, tmp_path):
    """The reason is printed, the exit code is 0, and the log stays as it was."""
    session = tmp_path / "short.json"
    session.write_text('{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Hello."}]}')
    path = str(tmp_path / "s.db")
    run("import", str(session), "--store", path)
    with open_store(path) as opened:
        key, entries = opened.list_sessions()[0].key, opened.list_sessions()[0].entry_count
    out = run("compact", key[:8], "--store", path)
    assert out.exit_code == 0
    assert "nothing was compacted" in out.stdout
    with open_store(path) as opened:
        assert opened.get_session(key).entry_count == entries


def test_compact_reports_what_the_next_request_shortens_anyway(run, tmp_path):
    """If the reason counts a text as reduced that is still shown in full, both sizes of the request are printed."""
    path, key = str(tmp_path / "s.db"), "s" * 12
    with open_store(path) as opened:
        Journal.open(opened, key).append(
            Message.from_text("user", "read " * 9_000), Message.from_text("assistant", "It was read.")
        )
        entries = opened.get_session(key).entry_count
    report = json.loads(run("compact", key, "--window", "16000", "--store", path, "--json").stdout)
    assert (report["is_compacted"], report["before"]) == (False, report["after"])
    _, explanation = report["why"].split(
        "; policy holdfast makes 1 message shorter anyway, right before the next request "
    )
    before, after = (
        int(size.strip("(~)").replace(",", "")) for size in explanation.removesuffix(" tokens)").split(" → ")
    )
    assert (before, after < before) == (report["before"], True)
    assert f"tokens instead of {after:,}" in report["why"]
    with open_store(path) as opened:
        assert opened.get_session(key).entry_count == entries


def test_compact_explains_that_a_short_session_is_kept_whole(run, session):
    """Without an earlier summary, the reason does not mention one."""
    assert run("import", session).exit_code == 0
    printed = run("compact", "5e551011", "--policy", "pi").stdout
    assert "nothing was compacted: there are no messages before those that are kept unchanged" in printed


def test_compact_names_a_policy_that_never_compacts(run, store, key):
    """A policy without compaction is the reason, whatever there is to compact."""
    out = run("compact", key, "--policy", "append-only", "--store", store).stdout
    assert "nothing was compacted: policy append-only does not compact; choose one that does with --policy" in out


@pytest.mark.parametrize("wrong", [["nobody"], ["--policy", "hope", "x"], []], ids=["session", "policy", "none"])
def test_compact_exits_2_on_wrong_use(run, store, wrong):
    """Wrong use exits with 2 and a message, never with a traceback."""
    out = run("compact", *wrong, "--store", store)
    assert out.exit_code == 2
    assert "Traceback" not in out.output
