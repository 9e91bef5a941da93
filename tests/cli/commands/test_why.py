"""``holdfast why``: what happened to a message, and its agreement with the marks of ``holdfast show``."""

from __future__ import annotations

import json

import pytest

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy
from holdfast.reports.sessions.history import build_branch_history, list_message_visibility
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry


@pytest.fixture
def why(run, edited_session):
    """Return a function that returns the JSON of ``holdfast why`` for a message."""

    def ask(message: object) -> dict:
        return json.loads(run("why", edited_session, str(message), "--json").stdout)

    return ask


def test_why_explains_a_reduced_message(why, store):
    """Size and text as sent and as shown, the rule, the reason, the tokens saved, the policy, and how to recall it."""
    report = why(6)
    assert (report["state"], report["replacement"]["text"]) == ("reduced", "[short]")
    (action,) = report["actions"]
    assert (action["entry"], action["rule"], action["why"], action["decided_by"]) == (
        "d1",
        "spill",
        "a result was too long",
        "claude-code",
    )
    saved = report["tokens"] - report["replacement"]["tokens"]
    assert action["saves"] == pytest.approx(saved, abs=1), "each figure is rounded by itself"
    assert saved > 100
    (handle,) = action["recall"]
    (hash_,) = [hash_ for hash_ in store.blobs.iter_hashes() if hash_.startswith(handle)]
    assert store.blobs.read_text(hash_) == report["text"]


def test_why_explains_a_hidden_message_with_its_summary(why):
    """A message before the kept tail is hidden, and the compaction and its summary are named."""
    report = why(2)
    assert report["state"] == "hidden"
    assert (report["replacement"]["entry"], report["replacement"]["text"]) == ("c1", "what happened before")
    assert [action["kind"] for action in report["actions"]] == ["compaction"]


def test_why_reports_a_message_without_decisions_as_whole(why, run, edited_session):
    """It says that requests show the message in full."""
    report = why(8)
    assert (report["state"], report["actions"]) == ("whole", [])
    assert report["replacement"]["text"] == report["text"]
    assert "requests show it in full" in run("why", edited_session, "8").stdout


def test_why_keeps_revoked_decisions_in_the_list(why, run, edited_session):
    """A revoked decision stays listed with the entry that revoked it, and the message is whole again."""
    run("undo", edited_session, "d1")
    report = why(6)
    assert report["state"] == "whole"
    assert report["actions"][0]["revoked_by"]
    assert "undone by" in run("why", edited_session, "6").stdout


def test_why_counts_savings_over_active_decisions_only(why, run, edited_session, store):
    """A compaction saves what no other active decision saves already."""
    summary = Message.from_text("user", "all that happened")
    store.append_entries(
        edited_session, [Entry("c2", "c1", CompactionEntry(8, summary, build_sized_message(summary).tokens))]
    )
    shown_tokens = why(6)["tokens"] - why(6)["actions"][0]["saves"]
    assert why(6)["actions"][-1]["saves"] == pytest.approx(shown_tokens, abs=1), "each figure is rounded by itself"
    run("undo", edited_session, "d1")
    assert why(6)["actions"][-1]["saves"] == why(6)["tokens"]


def test_why_accepts_number_id_prefix_and_label(why, run, store, edited_session):
    """A number with or without a hash mark, the prefix of an id, and a label name the same message."""
    store.label_entry(edited_session, "u6", "the big one")
    reports = [why(name) for name in ("6", "#6", "u6", "the big one")]
    assert all(report == reports[0] for report in reports)


def test_why_names_the_policy_that_decided(why, store, edited_session):
    """A policy note names the policy of all later decisions."""
    leaf = store.get_session(edited_session).leaf_id
    edit = Edit(
        Span(10, 11, 0), store.open_state(edited_session).history.sized_messages[10].message.parts, "prune", "old", 0
    )
    note = Entry("n1", leaf, NoteEntry("policy", data={"name": "pi"}))
    store.append_entries(edited_session, [note, Entry("d2", "n1", DecisionEntry((edit,)))])
    assert [action["decided_by"] for action in why(10)["actions"]] == ["pi"]
    assert [action["decided_by"] for action in why(6)["actions"]] == ["claude-code"]


def test_why_names_the_stored_text_of_a_capped_message(why, store, edited_session):
    """The capped note before a message names its whole text; the next message is not concerned."""
    hash_ = store.blobs.store_content("whole " * 50)
    leaf = store.get_session(edited_session).leaf_id
    slots = [build_sized_message(Message.from_text("user", text)) for text in ("cut", "not cut")]
    store.append_entries(
        edited_session,
        [
            Entry("n1", leaf, NoteEntry("capped", data={"blobs": [hash_]})),
            Entry("m1", "n1", MessageEntry(slots[0])),
            Entry("m2", "m1", MessageEntry(slots[1])),
        ],
    )
    assert [(action["kind"], action["recall"]) for action in why("m1")["actions"]] == [("capped", [hash_[:12]])]
    assert why("m2")["actions"] == []


def test_why_reports_a_capped_message_at_its_full_size(run, store):
    """Its size is that of the whole text, and ``--said`` prints every character from the store."""
    text = "".join(f"{n}: größer\n" for n in range(120_000))
    result = ToolResult("t", "bash", (Text(text), Media("image", "image/png", 3, "", "aGk=")))
    journal = Journal.open(store, "long", Policy().with_settings(results={"append_chars": 100_000}))
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)))
    journal.append(Message("user", (result, Text("and?"))))
    report = json.loads(run("why", "long", "2", "--json").stdout)
    assert report["characters"] == len(text) + len("\nand?")
    assert len(report["text"]) < 3_000
    assert f"original: {report['characters']:,} characters, of which the log holds" in run("why", "long", "2").stdout
    assert run("why", "long", "2", "--said").stdout == f"{text}\nand?"
    store.blobs.remove_blob(store.blobs.store_content(text))
    assert json.loads(run("why", "long", "2", "--json").stdout)["characters"] == len(report["text"])
    assert run("why", "long", "2", "--said").exit_code == 2


def test_why_explains_a_message_on_another_branch(why, store, edited_session, run):
    """A message beside the active branch is explained with the decisions of its own branch."""
    run("branch", edited_session, "u3")
    assert why("u6")["state"] == "reduced"
    assert run("why", edited_session, "6").exit_code == 2


def test_why_said_prints_only_the_message_text(run, edited_session, store):
    """``--said`` prints the whole text and nothing else; with ``--json`` it is the document's text."""
    state = build_branch_history(store.read_path(edited_session)).state
    text = get_result_text(state.history.messages[6].results[0])
    assert run("why", edited_session, "6", "--said").stdout == text
    document = json.loads(run("why", edited_session, "6", "--said", "--json").stdout)
    assert document == {"session": edited_session, "message": 6, "entry": "u6", "text": text}


def test_why_said_prints_arguments_and_thinking_in_full(run, store):
    """``--said`` cuts no part: a call's arguments and the thinking are complete."""
    store.create_session("long")
    call, thought = ToolCall("c", "write", json.dumps({"text": "x" * 5_000})), Thinking("hm " * 500 + "so")
    store.append_entries(
        "long", [Entry("m", None, MessageEntry(build_sized_message(Message("assistant", (thought, call)))))]
    )
    assert run("why", "long", "0", "--said").stdout == f"(thinking) {thought.text}\n→ write {call.arguments}"


def test_why_agrees_with_the_marks_of_show(run, edited_session, why, store):
    """A line of ``show`` is marked exactly where ``why`` says that the message is not shown in full."""
    lines = [line for line in json.loads(run("show", edited_session, "--json").stdout) if line["kind"] == "message"]
    shown_tokens_by_message = {line["message"]: line.get("shown_tokens") for line in lines}
    visibility_by_message = dict(
        enumerate(list_message_visibility(build_branch_history(store.read_path(edited_session)).state))
    )
    assert set(visibility_by_message.values()) == {"whole", "reduced", "hidden"}
    assert {
        number: "whole" if shown_tokens is None else "reduced" if shown_tokens else "hidden"
        for number, shown_tokens in shown_tokens_by_message.items()
    } == visibility_by_message
    for number, shown_tokens in shown_tokens_by_message.items():
        report = why(number)
        assert report["state"] == visibility_by_message[number]
        assert shown_tokens in {None, 0, report["replacement"]["tokens"]}
    printed = run("show", edited_session).stdout
    assert (printed.count("✂"), printed.count("⟱")) == (2, 5)


def test_why_lines_limits_the_printed_text(run, edited_session):
    """``--lines`` cuts the printed text and says how many lines are missing."""
    assert "… 3 more lines" in run("why", edited_session, "6", "--lines", "2").stdout
    assert "|" not in run("why", edited_session, "6", "--lines", "0").stdout


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("99", "no message #99 (its last one is #11)"),
        ("#12", "no message #12"),
        ("-1", "No such option"),
        ("zz", "no entry is 'zz' or begins with it"),
        ("", "no entry is '' or begins with it"),
        ("d1", "is a decision, not a message"),
        ("u", "could be any of these"),
        ("../../x", "no entry is '../../x'"),
        ("9" * 10_000, "no entry is '999"),
    ],
)
def test_why_exits_2_for_what_is_no_message(run, edited_session, message, expected):
    """The message says what there is instead."""
    result = run("why", edited_session, message)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output


def test_why_distinguishes_an_unknown_from_an_empty_session(run, store):
    """An unknown session and a session without messages get different errors."""
    assert "no session is 'nobody' or begins with it" in run("why", "nobody", "1").stderr
    store.create_session("empty")
    assert "it has none" in run("why", "empty", "0").stderr


def test_why_shows_texts_reduced_together_as_one_action(run, store):
    """A message with many texts whose middle is spilled has one action and one recall id."""
    journal = Journal.open(store, "many")
    journal.append(Message("user", tuple(Text(f"{number:04} kelp") for number in range(3_000))))
    journal.prepare_request(get_target("anthropic", "claude-sonnet-4-5", window=12_000))
    report = json.loads(run("why", "many", "0", "--json").stdout)
    (action,) = report["actions"]
    assert (action["rule"], len(action["recall"])) == ("spill", 1)
    assert action["saves"] == pytest.approx(report["tokens"] - report["replacement"]["tokens"], abs=10)


def test_why_limits_a_long_list_of_decisions(run, store):
    """Of many compactions the first and last are printed and the rest counted; JSON has all."""
    store.create_session("folded")
    journal = Journal.open(store, "folded")
    journal.append(Message.from_text("user", "kelp"))
    leaf, compactions = store.get_session("folded").leaf_id, []
    for at in range(30):
        compactions.append(
            Entry(
                f"c{at:07}",
                compactions[-1].id if compactions else leaf,
                CompactionEntry(1, Message.from_text("user", f"{at}")),
            )
        )
    store.append_entries("folded", compactions)
    report = run("why", "folded", "0")
    assert report.stdout.count("undo it") == 20
    assert [f"c{at:07}" in report.stdout for at in (0, 9, 10, 19, 20, 29)] == [True, True, False, False, True, True]
    assert report.stderr == "… and 10 decisions; --limit shows more, --json all\n"
    assert run("why", "folded", "0", "--limit", "30").stderr == ""
    assert len(json.loads(run("why", "folded", "0", "--json").stdout)["actions"]) == 30
