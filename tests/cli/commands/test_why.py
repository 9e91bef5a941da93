"""``holdfast why``: what happened to a message, and the marks of ``holdfast show`` that say the same in a letter."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.reports.history import build_branch_history, list_message_visibility
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry


@pytest.fixture
def why(run, decided):
    """Return a function that tells what happened to a message, as JSON."""

    def ask(message: object) -> dict:
        return json.loads(run("why", decided, str(message), "--json").stdout)

    return ask


def test_a_reduced_message_is_told_with_what_stands_for_it(why, store):
    """Size and text as said and as shown, the rule, the reason, what it saves, who decided, how to read it back."""
    found = why(6)
    assert (found["state"], found["replacement"]["text"]) == ("reduced", "[short]")
    (act,) = found["actions"]
    assert (act["entry"], act["rule"], act["why"], act["decided_by"]) == (
        "d1",
        "spill",
        "a result was too long",
        "claude-code",
    )
    saved = found["tokens"] - found["replacement"]["tokens"]
    assert act["saves"] == pytest.approx(saved, abs=1), "each figure is rounded by itself"
    assert saved > 100
    (handle,) = act["recall"]
    (hash_,) = [hash_ for hash_ in store.blobs.iter_hashes() if hash_.startswith(handle)]
    assert store.blobs.read_text(hash_) == found["text"]


def test_a_hidden_message_is_told_with_its_summary(why):
    """A message before the kept tail is hidden; the compaction and its summary are named."""
    found = why(2)
    assert found["state"] == "hidden"
    assert (found["replacement"]["entry"], found["replacement"]["text"]) == ("c1", "what happened before")
    assert [act["kind"] for act in found["actions"]] == ["compaction"]


def test_a_message_of_which_nothing_was_decided(why, run, decided):
    """It says that it is sent as it came."""
    found = why(8)
    assert (found["state"], found["actions"]) == ("whole", [])
    assert found["replacement"]["text"] == found["text"]
    assert "requests show it in full" in run("why", decided, "8").stdout


def test_what_was_taken_back_is_told_too(why, run, decided):
    """A revoked decision stays in the story, with the entry that revoked it, and the message is whole again."""
    run("undo", decided, "d1")
    found = why(6)
    assert found["state"] == "whole"
    assert found["actions"][0]["revoked_by"]
    assert "undone by" in run("why", decided, "6").stdout


def test_what_was_taken_back_frees_nothing(why, run, decided, store):
    """A compaction frees what a message takes that nothing else in force makes shorter."""
    summary = Message.from_text("user", "all that happened")
    store.append_entries(decided, [Entry("c2", "c1", CompactionEntry(8, summary, build_sized_message(summary).tokens))])
    left = why(6)["tokens"] - why(6)["actions"][0]["saves"]
    assert why(6)["actions"][-1]["saves"] == pytest.approx(left, abs=1), "each figure is rounded by itself"
    run("undo", decided, "d1")
    assert why(6)["actions"][-1]["saves"] == why(6)["tokens"]


def test_a_message_has_many_names(why, run, store, decided):
    """A number, with a hash mark or not, the beginning of an id and a label all name it."""
    store.label_entry(decided, "u6", "the big one")
    told = [why(name) for name in ("6", "#6", "u6", "the big one")]
    assert all(one == told[0] for one in told)


def test_the_policy_that_decided_is_named(why, store, decided):
    """A note of the policy says who decided from there on."""
    leaf = store.get_session(decided).leaf_id
    edit = Edit(Span(10, 11, 0), store.open_state(decided).history.sized_messages[10].message.parts, "prune", "old", 0)
    note = Entry("n1", leaf, NoteEntry("policy", data={"name": "pi"}))
    store.append_entries(decided, [note, Entry("d2", "n1", DecisionEntry((edit,)))])
    assert [act["decided_by"] for act in why(10)["actions"]] == ["pi"]
    assert [act["decided_by"] for act in why(6)["actions"]] == ["claude-code"]


def test_a_text_that_was_capped_when_it_came(why, store, decided):
    """The note before a message names the whole text; the message after the next is not concerned."""
    hash_ = store.blobs.store_content("whole " * 50)
    leaf = store.get_session(decided).leaf_id
    slots = [build_sized_message(Message.from_text("user", text)) for text in ("cut", "not cut")]
    store.append_entries(
        decided,
        [
            Entry("n1", leaf, NoteEntry("capped", data={"blobs": [hash_]})),
            Entry("m1", "n1", MessageEntry(slots[0])),
            Entry("m2", "m1", MessageEntry(slots[1])),
        ],
    )
    assert [(act["kind"], act["recall"]) for act in why("m1")["actions"]] == [("capped", [hash_[:12]])]
    assert why("m2")["actions"] == []


def test_a_message_that_was_too_long_is_told_as_it_came(run, store):
    """Its size is the whole's, and ``--said`` prints every character, read from where it was stored."""
    text = "".join(f"{n}: größer\n" for n in range(120_000))
    result = ToolResult("t", "bash", (Text(text), Media("image", "image/png", 3, "", "aGk=")))
    journal = Journal.open(store, "long", Policy().with_settings(results={"append_chars": 100_000}))
    journal.append(Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "bash"),)))
    journal.append(Message("user", (result, Text("and?"))))
    found = json.loads(run("why", "long", "2", "--json").stdout)
    assert found["characters"] == len(text) + len("\nand?")
    assert len(found["text"]) < 3_000
    assert f"original: {found['characters']:,} characters, of which the log holds" in run("why", "long", "2").stdout
    assert run("why", "long", "2", "--said").stdout == f"{text}\nand?"
    store.blobs.remove_blob(store.blobs.store_content(text))
    assert json.loads(run("why", "long", "2", "--json").stdout)["characters"] == len(found["text"])
    assert run("why", "long", "2", "--said").exit_code == 2


def test_a_message_on_another_branch(why, store, decided, run):
    """A message that lies beside the active branch is told with what counts there."""
    run("branch", decided, "u3")
    assert why("u6")["state"] == "reduced"
    assert run("why", decided, "6").exit_code == 2


def test_a_message_whole_and_alone(run, decided, store):
    """``--said`` prints what was said, all of it, and nothing else; with ``--json`` it is the document's text."""
    branch = build_branch_history(store.read_path(decided)).state
    text = get_result_text(branch.history.messages[6].results[0])
    assert run("why", decided, "6", "--said").stdout == text
    told = json.loads(run("why", decided, "6", "--said", "--json").stdout)
    assert told == {"session": decided, "message": 6, "entry": "u6", "text": text}


def test_long_arguments_and_thoughts_are_whole_too(run, store):
    """``--said`` cuts no part: what a tool was called with, and what the model thought, are there to the end."""
    store.create_session("long")
    call, thought = ToolCall("c", "write", json.dumps({"text": "x" * 5_000})), Thinking("hm " * 500 + "so")
    store.append_entries(
        "long", [Entry("m", None, MessageEntry(build_sized_message(Message("assistant", (thought, call)))))]
    )
    assert run("why", "long", "0", "--said").stdout == f"(thinking) {thought.text}\n→ write {call.arguments}"


def test_the_marks_of_show_agree(run, decided, why, store):
    """Each line of ``show`` has a mark just where ``why`` says that the message is not sent as it was said."""
    lines = [one for one in json.loads(run("show", decided, "--json").stdout) if one["kind"] == "message"]
    told = {one["message"]: one.get("shown_tokens") for one in lines}
    how = dict(enumerate(list_message_visibility(build_branch_history(store.read_path(decided)).state)))
    assert set(how.values()) == {"whole", "reduced", "hidden"}
    assert {slot: "whole" if left is None else "reduced" if left else "hidden" for slot, left in told.items()} == how
    for slot, left in told.items():
        found = why(slot)
        assert found["state"] == how[slot]
        assert left in {None, 0, found["replacement"]["tokens"]}
    shown = run("show", decided).stdout
    assert (shown.count("✂"), shown.count("⟱")) == (2, 5)


def test_a_few_lines_of_each_text(run, decided):
    """``--lines`` cuts what is printed and says how much more there is."""
    assert "… 3 more lines" in run("why", decided, "6", "--lines", "2").stdout
    assert "|" not in run("why", decided, "6", "--lines", "0").stdout


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("99", "no message #99 (its last one is #11)"),
        ("#12", "no message #12"),
        ("-1", "No such option"),
        ("zz", "no entry has an id that is or begins with 'zz'"),
        ("", "no entry has an id that is or begins with ''"),
        ("d1", "is a decision, not a message"),
        ("u", "could be any of these"),
        ("../../x", "no entry has an id"),
        ("9" * 10_000, "no entry has an id that is or begins with '999"),
    ],
)
def test_what_is_no_message_is_refused(run, decided, message, told):
    """The message says what there is instead."""
    result = run("why", decided, message)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_nobody_and_nothing(run, store):
    """An unknown session and a session without messages are told apart."""
    assert "no session has an id that is or begins with 'nobody'" in run("why", "nobody", "1").stderr
    store.create_session("empty")
    assert "it has none" in run("why", "empty", "0").stderr


def test_texts_that_gave_way_together_are_one_act(run, store):
    """A message of many texts of which the middle went says so once, with the one text that is read back."""
    journal = Journal.open(store, "many")
    journal.append(Message("user", tuple(Text(f"{number:04} kelp") for number in range(3_000))))
    journal.prepare_request(get_target("anthropic", "claude-sonnet-4-5", window=12_000))
    found = json.loads(run("why", "many", "0", "--json").stdout)
    (act,) = found["actions"]
    assert (act["rule"], len(act["recall"])) == ("spill", 1)
    assert act["saves"] == pytest.approx(found["tokens"] - found["replacement"]["tokens"], abs=10)


def test_of_many_decisions_the_first_and_the_last_are_told(run, store):
    """A message that compaction upon compaction hid is told of in a few lines; the rest is counted, and JSON has it."""
    store.create_session("folded")
    journal = Journal.open(store, "folded")
    journal.append(Message.from_text("user", "kelp"))
    leaf, made = store.get_session("folded").leaf_id, []
    for at in range(30):
        made.append(
            Entry(f"c{at:07}", made[-1].id if made else leaf, CompactionEntry(1, Message.from_text("user", f"{at}")))
        )
    store.append_entries("folded", made)
    found = run("why", "folded", "0")
    assert found.stdout.count("undo it") == 20
    assert [f"c{at:07}" in found.stdout for at in (0, 9, 10, 19, 20, 29)] == [True, True, False, False, True, True]
    assert found.stderr == "… and 10 decisions; --limit shows more, --json all\n"
    assert run("why", "folded", "0", "--limit", "30").stderr == ""
    assert len(json.loads(run("why", "folded", "0", "--json").stdout)["actions"]) == 30
