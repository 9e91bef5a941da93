"""``holdfast context --policy``: what would be decided before the next request, and its recording."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from holdfast.cli.reports.request_size import measure_session_request
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry, RequestEntry
from holdfast.store.blobs.blob_names import collect_named_blobs
from holdfast.store.open_store import open_store

KEY = "10009-bbbb"


@pytest.fixture
def context(run, long_session):
    """Import the long session and return a function that asks for its next request."""
    assert run("import", long_session).exit_code == 0

    def ask(*arguments: str) -> dict:
        done = run("context", KEY, *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask


def test_without_a_policy_nothing_is_planned(context):
    """What the next request holds is shown as ever."""
    assert context()["next_plan"] is None


@pytest.mark.parametrize("name", PRESETS)
def test_what_would_be_decided_is_listed_and_not_done(context, store, name):
    """Each policy says what it would do; the log is as it was."""
    before = store.read_entries(KEY)
    found = context("--policy", name, "--window", "40000")
    decided = found["next_plan"]
    assert decided["policy"] == name
    assert decided.get("entry_ids", []) == []
    if name == "append-only":
        assert decided["changes"] == []
    assert (decided["after"] < decided["before"]) == bool(decided["changes"])
    assert store.read_entries(KEY) == before
    assert list(store.blobs.iter_hashes()) == []


def test_recording_does_just_that(context, store):
    """What was listed is what is in the log then: decisions whose texts are stored, and the request they are for."""
    listed = context("--policy", "holdfast", "--window", "16000")["next_plan"]
    done = context("--policy", "holdfast", "--window", "16000", "--record")
    assert done["next_plan"]["changes"] == listed["changes"]
    assert done["tokens"] == listed["after"] < listed["before"]
    new = [entry for entry in store.read_path(KEY) if entry.id in done["next_plan"]["entry_ids"]]
    assert new
    assert all(isinstance(entry.body, DecisionEntry | CompactionEntry) for entry in new)
    assert isinstance(store.read_path(KEY)[-1].body, RequestEntry)
    assert all(store.blobs.has_blob(hash_) for hash_ in collect_named_blobs(store.read_path(KEY)))
    assert [one["id"] for one in done["active_decisions"]] == done["next_plan"]["entry_ids"]


def test_recording_is_done_once(context, store):
    """A second time there is nothing left to decide, and nothing is written."""
    context("--policy", "holdfast", "--window", "16000", "--record")
    before = store.read_entries(KEY)
    assert context("--policy", "holdfast", "--window", "16000", "--record")["next_plan"]["changes"] == []
    assert store.read_entries(KEY) == before


def test_the_policy_is_named_in_the_log(context, run, store):
    """A note says whose decisions follow, and ``why`` tells it; the same policy needs no second note."""
    first = context("--policy", "sliding", "--window", "30000", "--record")["next_plan"]["entry_ids"]
    again = context("--policy", "sliding", "--window", "16000", "--record")
    assert (len(first), len(again["next_plan"]["entry_ids"])) == (1, 1)
    assert [one["id"] for one in again["active_decisions"]] == again["next_plan"]["entry_ids"], "the first acts no more"
    assert [one["id"] for one in json.loads(run("undo", KEY, "--list", "--json").stdout)["in_force"]] == [
        one["id"] for one in again["active_decisions"]
    ]
    notes = [
        entry.body
        for entry in store.read_path(KEY)
        if isinstance(entry.body, NoteEntry) and entry.body.reason == "policy"
    ]
    assert [note.data for note in notes] == [{"name": "sliding"}]
    acts = json.loads(run("why", KEY, "0", "--json").stdout)["actions"]
    assert {act["decided_by"] for act in acts} == {"sliding"}


def test_a_reduced_session_can_be_exported(context, run):
    """``--record`` and ``export`` give a request that is smaller and valid."""
    whole = run("export", KEY, "--format", "anthropic").stdout
    context("--policy", "holdfast", "--window", "16000", "--record")
    short = run("export", KEY, "--format", "anthropic").stdout
    assert len(short) < len(whole) / 2
    assert run("lint", "-", "--api", "anthropic", given=short).exit_code == 0


def test_undo_takes_it_back(context, run, store):
    """The request is then what it was."""
    before = run("export", KEY, "--format", "anthropic").stdout
    done = context("--policy", "holdfast", "--window", "16000", "--record")
    assert run("export", KEY, "--format", "anthropic").stdout != before
    for _ in done["next_plan"]["entry_ids"]:
        run("undo", KEY)
    assert run("export", KEY, "--format", "anthropic").stdout == before


def test_what_a_person_decides_warms_no_cache(context, run):
    """A session that nobody talked on for months is as cold behind a compaction, and behind an undo, as before."""
    before = context("--policy", "holdfast")["next_plan"]
    assert before["cache"] == "cold"
    for command in ("compact", "undo"):
        assert run(command, KEY).exit_code == 0
        after = context("--policy", "holdfast")["next_plan"]
        assert (after["cache"], after["idle"] >= before["idle"]) == ("cold", True)


def test_overrides_count(context, home):
    """A setting of ``holdfast.toml`` changes what would be decided."""
    usual = context("--policy", "pi", "--window", "40000")["next_plan"]
    assert usual["changes"]
    (home / "holdfast.toml").write_text("[policy.pi.compaction]\nenabled = false\n")
    assert context("--policy", "pi", "--window", "40000")["next_plan"]["changes"] == []


def test_a_channel_limits_the_turns_of_its_sessions(run, home, long_session):
    """Limits of ``[policy]`` by channel count for a session with its key, planned and recorded, and for no other."""
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


def test_a_person_is_told_by_rule(context, run):
    """Rules are summed up, with the largest texts; after recording the entries are named, and how to take all back."""
    shown = run("context", KEY, "--policy", "holdfast", "--window", "16000").stdout
    assert "holdfast (cache cold) would decide: " in shown
    done = run("context", KEY, "--policy", "holdfast", "--window", "16000", "--record").stdout
    assert "holdfast (cache cold) decided and recorded (" in done
    assert "in force: " in done
    (line,) = [line for line in done.splitlines() if ": holdfast undo" in line]
    assert run(*line.partition(": holdfast ")[2].split()).exit_code == 0
    assert json.loads(run("undo", KEY, "--list", "--json").stdout)["in_force"] == []
    assert "nothing to decide" in run("context", KEY, "--policy", "append-only").stdout


@pytest.mark.parametrize("record", [(), ("--record",)])
def test_a_request_that_does_not_fit_is_told(context, run, record):
    """Of a request over the window the numbers are told, and what to do, whatever is decided."""
    flags = ("--policy", "append-only", "--window", "2000", *record)
    assert "note: over-window: about " in run("context", KEY, *flags).stdout
    assert any("2,000 fit; use a model with a larger window" in one for one in context(*flags)["next_plan"]["notices"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--record",), "--record needs a policy"),
        (("--policy", "lru"), "no policy is called 'lru'"),
        (("--policy", "holdfast", "--window", "2000"), "No room for a conversation"),
        (("--policy", "holdfast", "--window", "2000", "--record"), "No room for a conversation"),
    ],
)
def test_wrong_use_writes_nothing(context, run, store, arguments, told):
    """The message says what is missing or what does not fit."""
    before = store.read_entries(KEY)
    result = run("context", KEY, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert store.read_entries(KEY) == before


def test_an_empty_session(run, store):
    """There is nothing to decide about nothing."""
    store.create_session("empty")
    assert json.loads(run("context", "empty", "--policy", "holdfast", "--record", "--json").stdout)["messages"] == 0
    assert store.read_entries("empty") == []


def test_a_window_that_an_overflow_told_is_the_one_shown(run, tmp_path):
    """What the next request must fit is shown, and where that came from."""
    path, goal = str(tmp_path / "s.db"), get_target("anthropic", "claude-sonnet-4-5")
    with open_store(path) as store:
        journal = Journal.open(store, "one")
        journal.append(Message.from_text("user", "kelp on the rock " * 2_000))
        journal.prepare_request(goal)
        journal.record_overflow("too long", limit=12_000)
        journal.describe_session(goal.model)
    found = json.loads(run("context", "one", "--store", path, "--json").stdout)
    assert (found["window"], found["origin"]) == (12_000, "learned")


@pytest.mark.parametrize("window", ["16000", "30000"])
def test_kinds_add_up_behind_a_compaction(context, window):
    """The parts of a request are no more than it, and no less but for rounding."""
    found = context("--policy", "holdfast", "--window", window, "--record")
    assert found["active_decisions"]
    assert found["tokens"] - found["messages"] * 4 <= sum(found["kinds"].values()) <= found["tokens"]


def test_edits_of_what_a_compaction_hides_are_not_in_force(run, store):
    """Of a decision what the request shows is counted, of a compaction all it hides: so much the request lacks."""
    result = ToolResult("t", "Read", (Text("[short]"),))
    store.create_session(KEY)
    talk = [
        MessageEntry(build_sized_message(Message("tool", (replace(result, content=(Text("word " * 90),)),))))
        for _ in range(3)
    ]
    edits = tuple(Edit(Span(at, at + 1, 0), (result,), "spill", "too long", 80) for at in (0, 2))
    made = CompactionEntry(1, Message.from_text("user", "before"), 2, tokens_before=900, tokens_after=500)
    bodies = [*talk, DecisionEntry(edits), made, RequestEntry("", 3, "claude-sonnet-4-5", 16_000)]
    store.append_entries(KEY, [Entry(f"e{at}", f"e{at - 1}" if at else None, body) for at, body in enumerate(bodies)])
    for more in ([], ["--policy", "append-only"]):
        found = json.loads(run("context", KEY, *more, "--json").stdout)["active_decisions"]
        assert [one["rules"] for one in found] == [{"spill": 1}, {}]
    why = json.loads(run("why", KEY, "e5", "--json").stdout)
    [decided, compacted] = why["new_decisions"]
    saves = measure_session_request(store.get_session(KEY), store.open_state(KEY)).scale_tokens(80)
    assert (decided["rules"], decided["saves"]) == ({"spill": 1}, saves)
    assert abs(saves + compacted["saves"] - (why["tokens"] - why["shown_tokens"])) <= 1, "each is rounded by itself"
