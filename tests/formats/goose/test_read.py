"""Sessions of goose: files of versions before 1.10, exports, and what the visibility of messages says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats import (
    EXPORT_FORMATS,
    Recording,
    build_state_at_leaf,
    export_with_loss_notes,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
    read_recording,
    select_new_entries,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, Thinking
from holdfast.state.entries import CompactionEntry, DecisionEntry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection

Fields = dict[str, Any]
HEADER = {"working_dir": "/w", "description": "About it", "message_count": 3, "total_tokens": 9}
SEEN, HIDDEN = {"userVisible": True, "agentVisible": True}, {"userVisible": True, "agentVisible": False}
AGENT_ONLY, INVISIBLE = {"userVisible": False, "agentVisible": True}, {"userVisible": False, "agentVisible": False}


def text(words: str, *audience: str) -> Fields:
    block: Fields = {"type": "text", "text": words}
    return block | {"annotations": {"audience": list(audience)}} if audience else block


def call(id_: str = "c1", **more: Any) -> Fields:
    value = {"name": "developer__shell", "arguments": {"command": "ls"}}
    return {"type": "toolRequest", "id": id_, "toolCall": {"status": "success", "value": value}} | more


def result(*blocks: Fields, id_: str = "c1", value: Any = None) -> Fields:
    given = {"content": list(blocks), "isError": False} if value is None else value
    return {"type": "toolResponse", "id": id_, "toolResult": {"status": "success", "value": given}}


def row(id_: str, role: str, *content: Fields, seen: Fields = SEEN) -> Fields:
    return {"id": id_, "role": role, "created": 1_790_000_000, "content": list(content), "metadata": seen}


def read(*rows: Fields, session: Fields | None = None) -> Recording:
    """Read an exported session with these messages."""
    about = {"id": "20261002_1", "name": "About it", "working_dir": "/w", "provider_name": "anthropic"}
    about |= {"model_config": {"model_name": "m-1"}, "message_count": len(rows), "conversation": list(rows)}
    recording = read_recording(json.dumps(about | (session or {}), indent=1).encode())
    assert recording.format == "goose"
    return recording


def list_messages(recording: Recording) -> list[Message]:
    bodies = [entry.body for entry in get_full_history_entries(recording)]
    return [body.sized_message.message for body in bodies if isinstance(body, MessageEntry)]


def show(message: Message) -> str:
    words = message.text or "".join(block.text for item in message.results for block in item.content)
    return f"{message.role}: {words or ' '.join(item.name for item in message.calls)}"


def list_shown(recording: Recording) -> list[str]:
    """Return role and text of each message that the model sees at the end."""
    return [show(item.message) for item in build_projection(build_state_at_leaf(recording))]


TURN = (
    row("m1", "user", text("list it")),
    row("m2", "assistant", text("I look."), call()),
    row("m3", "user", result(text("a.py", "assistant"), text("for the screen", "user"))),
    row("m4", "assistant", text("One file.")),
)


def test_read_goose_reads_an_export():
    """Results are messages of their own, with what is for the model alone; title, folder and model are known."""
    recording = read(*TURN)
    assert (recording.session, recording.title, recording.cwd) == ("20261002_1", "About it", "/w")
    assert (recording.model, recording.api) == ("m-1", "anthropic")
    assert [show(message) for message in list_messages(recording)] == [
        "user: list it",
        "assistant: I look.",
        "tool: a.py",
        "assistant: One file.",
    ]
    assert list_messages(recording)[2].results[0].name == "developer__shell"
    assert [entry.time_ms for entry in recording.entries if isinstance(entry.body, MessageEntry)] == [
        1_790_000_000_000
    ] * 4
    assert [item.model for item in list_model_calls(recording)] == ["m-1", "m-1"]


def test_read_goose_reads_the_lines_of_older_versions():
    """A file has a header, then messages; damaged lines are notes, and U+2028 ends no line."""
    old = [{key: value for key, value in item.items() if key not in ("id", "metadata")} for item in TURN]
    lines = [json.dumps(item, ensure_ascii=False) for item in (HEADER, *old, row("m9", "user", text("x\u2028y")))]
    lines.insert(3, '{"role":"user","content":[')
    recording = read_recording("\n".join(lines).encode())
    assert (recording.format, recording.title, recording.cwd) == ("goose", "About it", "/w")
    assert [message.text for message in list_messages(recording)] == ["list it", "I look.", "", "One file.", "x\u2028y"]
    assert [problem.line for problem in recording.problems] == [4]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)] == [lines[3].encode()]


def test_read_goose_reads_every_shape_of_results():
    """A bare list is the value of older versions; errors, images, resources and unknown blocks are kept."""
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    resource = {"type": "resource", "resource": {"uri": "file:///a", "text": "body of a"}}
    failed = {"type": "toolResponse", "id": "c3", "toolResult": {"status": "error", "error": "-32603: broken"}}
    recording = read(
        row("m1", "assistant", *[call(f"c{number}") for number in range(1, 6)]),
        row("m2", "user", result(value=[text("old")]), result(image, resource, id_="c2"), failed),
        row("m3", "user", result(value={"content": [], "structuredContent": {"a": 1}}, id_="c4")),
        row("m4", "user", result({"type": "hologram", "x": 1}, id_="c5")),
    )
    results = [item for message in list_messages(recording) for item in message.results]
    contents = [item.content for item in results]
    assert contents[0] == (Text("old"),)
    assert [type(block) for block in contents[1]] == [Media, Text]
    assert (contents[2][0].text, results[2].is_error) == ("-32603: broken", True)
    assert contents[3] == (Text('{"a":1}'),)
    assert [type(block) for block in contents[4]] == [Opaque]


def test_read_goose_keeps_thinking_and_calls_that_were_not_understood():
    """Thinking has its signature, and a call that goose could not read has the error that the model got."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    bad_call = call(toolCall={"status": "error", "error": "-32602: no such tool"})
    first = list_messages(read(row("m1", "assistant", thinking, bad_call)))[0]
    assert isinstance(first.parts[0], Thinking)
    assert first.parts[0].signature.api == "anthropic"
    assert "no such tool" in first.calls[0].arguments


def test_read_goose_makes_notes_of_what_no_model_gets():
    """Notifications, confirmations and text for the user alone are counted and kept as notes."""
    confirmation = {"type": "actionRequired", "data": {"actionType": "toolConfirmation", "id": "c1"}}
    recording = read(
        row("m1", "user", text("hi")),
        row("m2", "assistant", {"type": "systemNotification", "notificationType": "inlineMessage", "msg": "x"}),
        row("m3", "assistant", confirmation),
        row("m4", "assistant", text("shown only"), seen=HIDDEN),
        row("m5", "robot", text("?")),
        row("m6", "assistant", text("yes"), confirmation),
    )
    assert [show(message) for message in list_messages(recording)] == ["user: hi", "assistant: yes"]
    assert recording.skipped_counts == {
        "systemNotification": 1,
        "actionRequired": 2,
        "message that is not sent": 1,
        "damaged": 1,
    }
    assert "'robot'" in recording.problems[0].reason


# -- compactions -------------------------------------------------------------------------------------------------------


def compact(*rows: Fields, summary: str, repeated: str = "", seen: Fields = AGENT_ONLY) -> list[Fields]:
    """Return the rows of a session after goose has compacted it."""
    hidden = []
    for item in rows:
        hidden.append(item | {"metadata": item["metadata"] | {"agentVisible": False}})
    number = len(rows)
    hidden.append(row(f"k{number}", "user", text(summary), seen=AGENT_ONLY))
    hidden.append(row(f"w{number}", "assistant", text("Your context was compacted."), seen=AGENT_ONLY))
    if repeated:
        hidden.append(row(f"r{number}", "user", text(repeated), seen=seen))
    return hidden


@pytest.mark.parametrize("seen", [AGENT_ONLY, SEEN])
def test_read_goose_reads_a_compaction_in_the_middle_of_a_turn(seen):
    """The summary is one, the word behind it a note, and the repeated words are those of the message they repeat."""
    recording = read(*compact(*TURN, summary="SUMMARY", repeated="list it", seen=seen), row("m5", "assistant", call()))
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (body.first_kept, body.restated, body.author, body.trigger) == (4, (0,), "model", "auto")
    shown = list_shown(recording)
    assert "SUMMARY" in shown[0]
    assert shown[1:] == ["user: list it", "assistant: developer__shell"]
    assert len(list_messages(recording)) == 5
    assert recording.skipped_counts == {"word after a summary": 1, "repetition of the newest words": 1}


def test_read_goose_keeps_the_newest_words_where_they_are():
    """If the repeated words are the newest message, the compaction keeps that message."""
    rows = [*TURN, row("m5", "user", text("and now?"))]
    compacted = compact(*rows, summary="SUMMARY", repeated="and now?")
    compacted[4]["metadata"] = INVISIBLE
    recording = read(*compacted)
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (body.first_kept, body.restated) == (4, ())
    assert list_shown(recording)[1:] == ["user: and now?"]


def test_read_goose_reads_compaction_after_compaction():
    """An earlier summary, hidden itself by now, is still a compaction and no message."""
    rows = compact(*TURN, summary="FIRST", repeated="list it")
    rows += [row("m5", "assistant", text("more")), row("m6", "user", text("go on"))]
    rows = compact(*rows, summary="SECOND")
    recording = read(*rows)
    bodies = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert [(body.summary.text, body.trigger) for body in bodies] == [("FIRST", "auto"), ("SECOND", "manual")]
    assert [show(message) for message in list_messages(recording)][4:] == ["assistant: more", "user: go on"]
    (summary,) = list_shown(recording)
    assert "SECOND" in summary


def test_read_goose_reads_a_summary_without_a_word_behind_it():
    """If all rows before the first that is sent are hidden, and the user does not see it, it is a summary."""
    hidden = [item | {"metadata": HIDDEN} for item in TURN]
    recording = read(*hidden, row("k", "user", text("SUMMARY"), seen=AGENT_ONLY), row("m5", "user", text("go")))
    assert "SUMMARY" in list_shown(recording)[0]
    assert list_shown(recording)[1:] == ["user: go"]


PAIR = (row("m2", "assistant", call(), seen=HIDDEN), row("m3", "user", result(text("a.py")), seen=HIDDEN))
SENTENCE = row("s1", "user", text("A call listed the files."), seen=AGENT_ONLY)


def test_read_goose_reads_a_replaced_pair_as_a_decision():
    """A call and its result that goose replaced by a sentence stay in the history; the model sees the sentence."""
    recording = read(TURN[0], *PAIR, SENTENCE, TURN[3])
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, DecisionEntry)]
    assert [(edit.span.start, edit.span.stop, edit.rule) for edit in body.edits] == [(1, 3, "goose")]
    assert list_shown(recording) == ["user: list it", "user: A call listed the files.", "assistant: One file."]
    assert [message.role for message in list_messages(recording)] == ["user", "assistant", "tool", "assistant"]


def test_read_goose_reads_a_hidden_pair_without_a_sentence():
    """A call and its result that are merely hidden are not shown."""
    recording = read(TURN[0], *PAIR, TURN[3])
    assert list_shown(recording) == ["user: list it", "assistant: One file."]
    assert len(list_messages(recording)) == 4


def test_read_goose_does_not_take_a_sentence_of_a_compacted_pair_for_words():
    """Once everything is compacted, the sentence that replaced a pair is no message of the history."""
    recording = read(*compact(TURN[0], *PAIR, SENTENCE, TURN[3], summary="SUMMARY"))
    assert [message.role for message in list_messages(recording)] == ["user", "assistant", "tool", "assistant"]
    assert recording.skipped_counts["sentence for a tool call"] == 1


def test_read_goose_again_adds_only_what_is_new():
    """A session that has grown and was compacted is the same session with more entries."""
    first = read(*TURN)
    second = read(*compact(*TURN, row("m5", "user", text("go on")), summary="SUMMARY", repeated="go on"))
    added = select_new_entries(second, first.entries)
    assert len(added.entries) == len(second.entries) - len(first.entries)


def test_read_goose_takes_a_changed_message_for_another():
    """goose changes messages in place; the changed one is a branch and no conflict."""
    first, second = read(*TURN), read(*TURN[:3], row("m4", "assistant", text("Two files.")))
    added = select_new_entries(second, first.entries)
    assert [
        entry.body.sized_message.message.text for entry in added.entries if isinstance(entry.body, MessageEntry)
    ] == ["Two files."]


def test_read_goose_joins_the_rows_of_one_answer():
    """Pieces of an answer in several rows with one id are one answer."""
    recording = read(TURN[0], row("a", "assistant", text("One ")), row("a", "assistant", text("two."), call()))
    assert [show(message) for message in list_messages(recording)] == ["user: list it", "assistant: One two."]


def test_read_goose_can_be_exported_in_every_format():
    """A session with compactions, an open call and unknown content is written in every format, and as a request."""
    rows = compact(*TURN, summary="SUMMARY", repeated="list it")
    recording = read(*rows, row("m5", "assistant", {"type": "hologram"}, call("c9")))
    for name in EXPORT_FORMATS:
        assert export_with_loss_notes(recording, name).data


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.text(max_size=2), max_size=2)
CONTENT = st.one_of(
    st.builds(text, st.sampled_from(["a", "b", ""])),
    st.builds(call, st.sampled_from(["c1", "c2"])),
    st.builds(lambda id_: result(text("x"), id_=id_), st.sampled_from(["c1", "c2"])),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "toolRequest", "toolResponse", "image", "thinking", "x"])},
        optional={"id": JSON, "text": JSON, "toolCall": JSON, "toolResult": JSON, "annotations": JSON, "data": JSON},
    ),
)
ROWS = st.builds(
    lambda id_, role, content, seen: row(id_, role, *content, seen=seen),
    st.sampled_from(["m1", "m2", "m3", ""]),
    st.sampled_from(["user", "assistant", "robot"]),
    st.lists(CONTENT, max_size=3),
    st.sampled_from([SEEN, HIDDEN, AGENT_ONLY, INVISIBLE]) | JSON,
)


@given(st.lists(ROWS, max_size=12))
def test_read_goose_builds_a_valid_recording_from_any_rows(rows):
    """Every row is a message, a note or counted; compactions and decisions are inside the conversation."""
    recording = read(*rows)
    assert len(get_branch_entries(recording)) == len(recording.entries)
    build_projection(build_state_at_leaf(recording))
    count = 0
    for entry in recording.entries:
        count += isinstance(entry.body, MessageEntry)
        if isinstance(entry.body, CompactionEntry):
            assert 0 <= entry.body.first_kept <= count
            assert all(index < entry.body.first_kept for index in entry.body.restated)
        if isinstance(entry.body, DecisionEntry):
            assert all(0 <= edit.span.start < edit.span.stop <= count for edit in entry.body.edits)
