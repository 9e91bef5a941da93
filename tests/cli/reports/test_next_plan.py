"""``holdfast context --policy``: the plan of the next request, and its recording."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.presets.registry import PRESETS
from holdfast.reports.requests.request_size import measure_session_request
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry, RequestEntry
from holdfast.store.blobs.blob_names import collect_named_blobs
from holdfast.store.open_store import open_store

KEY = "10009-bbbb"


@pytest.fixture
def context(run, long_session):
    """Import the long session and return a function that returns the JSON of ``holdfast context``."""
    assert run("import", long_session).exit_code == 0

    def ask(*arguments: str) -> dict:
        done = run("context", KEY, *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask


def test_context_without_a_policy_plans_nothing(context):
    """Without --policy the next request is shown without a plan."""
    assert context()["next_plan"] is None


@pytest.mark.parametrize("name", PRESETS)
def test_context_policy_lists_decisions_without_recording(context, store, name):
    """Each policy lists what it would decide, and the log stays as it was."""
    entries_before = store.read_entries(KEY)
    report = context("--policy", name, "--window", "40000")
    plan = report["next_plan"]
    assert plan["policy"] == name
    assert plan.get("entry_ids", []) == []
    if name == "append-only":
        assert plan["changes"] == []
    assert (plan["after"] < plan["before"]) == bool(plan["changes"])
    assert store.read_entries(KEY) == entries_before
    assert list(store.blobs.iter_hashes()) == []


def test_context_record_writes_the_listed_decisions(context, store):
    """The recorded decisions are those listed before, with their texts stored and the request they are for."""
    listed = context("--policy", "holdfast", "--window", "16000")["next_plan"]
    recorded = context("--policy", "holdfast", "--window", "16000", "--record")
    assert recorded["next_plan"]["changes"] == listed["changes"]
    assert recorded["tokens"] == listed["after"] < listed["before"]
    new = [entry for entry in store.read_path(KEY) if entry.id in recorded["next_plan"]["entry_ids"]]
    assert new
    assert all(isinstance(entry.body, DecisionEntry | CompactionEntry) for entry in new)
    assert isinstance(store.read_path(KEY)[-1].body, RequestEntry)
    assert all(store.blobs.has_blob(hash_) for hash_ in collect_named_blobs(store.read_path(KEY)))
    assert [decision["id"] for decision in recorded["active_decisions"]] == recorded["next_plan"]["entry_ids"]


def test_context_record_twice_writes_nothing_new(context, store):
    """A second time there is nothing to decide, and nothing is written."""
    context("--policy", "holdfast", "--window", "16000", "--record")
    entries_before = store.read_entries(KEY)
    assert context("--policy", "holdfast", "--window", "16000", "--record")["next_plan"]["changes"] == []
    assert store.read_entries(KEY) == entries_before


def test_context_record_notes_the_policy_once(context, run, store):
    """A note names the policy of the decisions after it, ``why`` reports it, the same policy adds no second note."""
    first_ids = context("--policy", "sliding", "--window", "30000", "--record")["next_plan"]["entry_ids"]
    second_report = context("--policy", "sliding", "--window", "16000", "--record")
    assert (len(first_ids), len(second_report["next_plan"]["entry_ids"])) == (1, 1)
    assert [decision["id"] for decision in second_report["active_decisions"]] == second_report["next_plan"][
        "entry_ids"
    ], "the first acts no more"
    assert [decision["id"] for decision in json.loads(run("undo", KEY, "--list", "--json").stdout)["in_force"]] == [
        decision["id"] for decision in second_report["active_decisions"]
    ]
    notes = [
        entry.body
        for entry in store.read_path(KEY)
        if isinstance(entry.body, NoteEntry) and entry.body.reason == "policy"
    ]
    assert [note.data for note in notes] == [{"name": "sliding"}]
    actions = json.loads(run("why", KEY, "0", "--json").stdout)["actions"]
    assert {action["decided_by"] for action in actions} == {"sliding"}


def test_context_record_makes_the_export_smaller_and_valid(context, run):
    """The exported request is smaller and passes lint."""
    whole = run("export", KEY, "--format", "anthropic").stdout
    context("--policy", "holdfast", "--window", "16000", "--record")
    short = run("export", KEY, "--format", "anthropic").stdout
    assert len(short) < len(whole) / 2
    assert run("lint", "-", "--api", "anthropic", stdin=short).exit_code == 0


def test_context_record_can_be_undone(context, run, store):
    """Undoing all decisions restores the request."""
    export_before = run("export", KEY, "--format", "anthropic").stdout
    recorded = context("--policy", "holdfast", "--window", "16000", "--record")
    assert run("export", KEY, "--format", "anthropic").stdout != export_before
    for _ in recorded["next_plan"]["entry_ids"]:
        run("undo", KEY)
    assert run("export", KEY, "--format", "anthropic").stdout == export_before


def test_context_counts_a_manual_decision_as_no_cache_activity(context, run):
    """An old session's cache is as cold after a compaction or an undo as before."""
    plan_before = context("--policy", "holdfast")["next_plan"]
    assert plan_before["cache"] == "cold"
    for command in ("compact", "undo"):
        assert run(command, KEY).exit_code == 0
        plan_after = context("--policy", "holdfast")["next_plan"]
        assert (plan_after["cache"], plan_after["idle"] >= plan_before["idle"]) == ("cold", True)


def test_context_applies_configured_settings(context, home):
    """A setting in ``holdfast.toml`` changes the plan."""
    usual = context("--policy", "pi", "--window", "40000")["next_plan"]
    assert usual["changes"]
    (home / "holdfast.toml").write_text("[policy.pi.compaction]\nenabled = false\n")
    assert context("--policy", "pi", "--window", "40000")["next_plan"]["changes"] == []


def test_context_applies_channel_limits_to_matching_sessions(run, home, long_session):
    """The channel limits in ``[policy]`` apply to sessions with a matching key, planned or recorded, and no other."""
    (home / "holdfast.toml").write_text("[policy.history.channels.chat.dms.77]\nhistory_limit = 2\n")
    turns = {}
    for key in ("agent:main:chat:direct:77", "agent:main:chat:direct:78"):
        assert run("import", long_session, "--as", key).exit_code == 0
        for more in ((), ("--record",)):
            done = json.loads(run("context", key, "--policy", "append-only", *more, "--json").stdout)
            turns[key, *more] = (len(done["next_plan"]["changes"]), done["messages"])
    assert turns == {
        ("agent:main:chat:direct:77",): (1, 96),
        ("agent:main:chat:direct:77", "--record"): (1, 8),
        ("agent:main:chat:direct:78",): (0, 96),
        ("agent:main:chat:direct:78", "--record"): (0, 96),
    }


def test_context_prints_the_plan_by_rule(context, run):
    """Rules are summed up with the largest texts; after recording, the entries and a command that undoes them are
    printed.
    """
    printed = run("context", KEY, "--policy", "holdfast", "--window", "16000").stdout
    assert "holdfast (cache cold) would decide: " in printed
    recorded = run("context", KEY, "--policy", "holdfast", "--window", "16000", "--record").stdout
    assert "holdfast (cache cold) decided and recorded (" in recorded
    assert "in force: " in recorded
    (line,) = [line for line in recorded.splitlines() if ": holdfast undo" in line]
    assert run(*line.partition(": holdfast ")[2].split()).exit_code == 0
    assert json.loads(run("undo", KEY, "--list", "--json").stdout)["in_force"] == []
    assert "nothing to decide" in run("context", KEY, "--policy", "append-only").stdout


@pytest.mark.parametrize("record", [(), ("--record",)])
def test_context_reports_a_request_over_the_window(context, run, record):
    """A request over the window is reported with its numbers and what to do, whatever was decided."""
    flags = ("--policy", "append-only", "--window", "2000", *record)
    assert "note: over-window: about " in run("context", KEY, *flags).stdout
    assert any(
        "2,000 fit; use a model with a larger window" in notice for notice in context(*flags)["next_plan"]["notices"]
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--record",), "--record needs a policy"),
        (("--policy", "lru"), "no policy is called 'lru'"),
        (("--policy", "holdfast", "--window", "2000"), "No room for a conversation"),
        (("--policy", "holdfast", "--window", "2000", "--record"), "No room for a conversation"),
    ],
)
def test_context_exits_2_and_writes_nothing_on_wrong_use(context, run, store, arguments, expected):
    """The message says what is missing or what does not fit."""
    entries_before = store.read_entries(KEY)
    result = run("context", KEY, *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert store.read_entries(KEY) == entries_before


def test_context_record_on_an_empty_session_writes_nothing(run, store):
    """An empty session needs no decision."""
    store.create_session("empty")
    assert json.loads(run("context", "empty", "--policy", "holdfast", "--record", "--json").stdout)["messages"] == 0
    assert store.read_entries("empty") == []


def test_context_shows_a_learned_window_with_its_origin(run, tmp_path):
    """The window learned from an overflow is shown, with its origin."""
    path, target = str(tmp_path / "s.db"), get_target("anthropic", "claude-sonnet-4-5")
    with open_store(path) as store:
        journal = Journal.open(store, "one")
        journal.append(Message.from_text("user", "kelp on the rock " * 2_000))
        journal.prepare_request(target)
        journal.record_overflow("too long", limit=12_000)
        journal.describe_session(target.model)
    report = json.loads(run("context", "one", "--store", path, "--json").stdout)
    assert (report["window"], report["origin"]) == (12_000, "learned")


@pytest.mark.parametrize("window", ["16000", "30000"])
def test_context_kinds_add_up_after_a_compaction(context, window):
    """The parts of a request add up to its tokens, within the framing of each message."""
    report = context("--policy", "holdfast", "--window", window, "--record")
    assert report["active_decisions"]
    assert report["tokens"] - report["messages"] * 4 <= sum(report["kinds"].values()) <= report["tokens"]


def test_context_and_why_count_only_edits_that_are_shown(run, store):
    """An edit of a message that a compaction hides is not active; the savings add up to what the request lacks."""
    result = ToolResult("t", "Read", (Text("[short]"),))
    store.create_session(KEY)
    talk = [
        MessageEntry(build_sized_message(Message("tool", (replace(result, content=(Text("word " * 90),)),))))
        for _ in range(3)
    ]
    edits = tuple(Edit(Span(at, at + 1, 0), (result,), "spill", "too long", 80) for at in (0, 2))
    compaction = CompactionEntry(1, Message.from_text("user", "before"), 2, tokens_before=900, tokens_after=500)
    bodies = [*talk, DecisionEntry(edits), compaction, RequestEntry("", 3, "claude-sonnet-4-5", 16_000)]
    store.append_entries(KEY, [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)])
    for more in ([], ["--policy", "append-only"]):
        decisions = json.loads(run("context", KEY, *more, "--json").stdout)["active_decisions"]
        assert [decision["rules"] for decision in decisions] == [{"spill": 1}, {}]
    why = json.loads(run("why", KEY, "e5", "--json").stdout)
    [decided, compacted] = why["new_decisions"]
    saves = measure_session_request(store.get_session(KEY), store.open_state(KEY)).scale_tokens(80)
    assert (decided["rules"], decided["saves"]) == ({"spill": 1}, saves)
    assert abs(saves + compacted["saves"] - (why["tokens"] - why["shown_tokens"])) <= 1, "each is rounded by itself"
