from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.formats.base import build_state_at_leaf, get_full_history_entries, list_model_calls
from holdfast.formats.pi import read as pi
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall
from holdfast.state.entries import BranchSummaryEntry, LabelEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.view import build_projection

HEADER = {"type": "session", "version": 3, "id": "S", "timestamp": "2026-11-21T01:14:53.326Z", "cwd": "/w"}
TIME = "2026-11-21T01:14:54.000Z"


def line(kind, id_, parent, **more):
    return {"type": kind, "id": id_, "parentId": parent, "timestamp": TIME} | more


def message(id_, parent, role, content, **more):
    return line("message", id_, parent, message={"role": role, "content": content} | more)


def answer(id_, parent, *content, stop="stop", tokens=5, **more):
    usage = {"input": tokens, "output": 1, "cacheRead": 20, "cacheWrite": 300}
    told = {"api": "anthropic-messages", "provider": "p", "model": "m", "usage": usage, "stopReason": stop}
    return message(id_, parent, "assistant", list(content), **told, **more)


def text(words, **more):
    return {"type": "text", "text": words} | more


def file(*lines):
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def told(recording):
    return [
        f"{entry.body.sized_message.message.role}: {entry.body.sized_message.message.text}"
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    ]


def shown(recording):
    return [slot.message.text for slot in build_projection(build_state_at_leaf(recording))]


def talk(*ids, parent=None):
    """User and assistant in turn, each saying its own id."""
    out = []
    for number, id_ in enumerate(ids):
        make = message(id_, parent, "user", id_) if number % 2 == 0 else answer(id_, parent, text(id_))
        out.append(make)
        parent = id_
    return out


def test_way_from_the_last_line_to_the_root():
    """The leaf is the last line; a branch that was left stays in the tree."""
    recording = pi.read_pi(file(HEADER, *talk("u1", "a1", "u2", "a2"), message("u3", "a1", "user", "u3")))
    assert told(recording) == ["user: u1", "assistant: a1", "user: u3"]
    assert {"u2", "a2"} <= {entry.id for entry in recording.entries}
    assert (recording.session, recording.cwd, recording.api, recording.model) == ("S", "/w", "anthropic", "m")


def test_settings_are_notes_on_the_way():
    """Lines that change a setting are counted, kept as notes, and carry the tree; names become the title."""
    lines = (
        line("model_change", "s1", None, provider="p", modelId="m"),
        message("u1", "s1", "user", "hi"),
        line("session_info", "s2", "u1", name="A title"),
    )
    recording = pi.read_pi(file(HEADER, *lines))
    assert recording.skipped_counts == {"model_change": 1, "session_info": 1}
    assert (recording.title, recording.model, recording.leaf) == ("A title", "m", "s2")
    assert told(recording) == ["user: hi"]


def test_parts_and_seals():
    """Thinking, text, calls and images become parts; what is signed is sealed for the API and model that signed it."""
    seal = ProviderSignature("anthropic", "m", "sig")
    content = (
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
        text("so"),
        {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}},
        {"type": "hologram"},
    )
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    reply = message("r", "a", "toolResult", [text("out"), image], toolCallId="c1", toolName="bash", isError=True)
    recording = pi.read_pi(file(HEADER, answer("a", None, *content), reply))
    first, second = [
        entry.body.sized_message.message
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]
    call = ToolCall("c1", "bash", '{"command": "ls"}')
    assert first.parts[:3] == (Thinking("hm", seal), Text("so"), call)
    assert isinstance(first.parts[3], Opaque)
    (result,) = second.results
    assert (second.role, result.call_id, result.name, result.is_error) == ("tool", "c1", "bash", True)
    assert get_result_text(result) == "out"
    assert result.content[1] == Media("image", "image/png", 2, "", "aGk=")


def test_steps_and_usage():
    """Failed and aborted answers stay in the log and are no steps; the prompt is all that went in."""
    lines = (
        message("u", None, "user", "hi"),
        answer("a1", "u", stop="error"),
        answer("a2", "a1", text("par"), stop="aborted"),
        answer("a3", "a2", text("done")),
    )
    recording = pi.read_pi(file(HEADER, *lines))
    (step,) = list_model_calls(recording)
    assert (step.id, step.usage, step.stop) == ("a3", Usage(325, 1, 20, 300), "stop")
    assert len(told(recording)) == 4


def test_only_the_last_compaction_on_the_way_counts():
    """Its summary, what it kept, and what came later are shown; the history has everything."""
    lines = [
        *talk("u1", "a1", "u2", "a2"),
        line("compaction", "c1", "a2", summary="S1", firstKeptEntryId="u2", tokensBefore=40),
        *talk("u3", "a3", "u4", "a4", parent="c1"),
        line("compaction", "c2", "a4", summary="S2", firstKeptEntryId="u4", tokensBefore=1),
        message("u5", "c2", "user", "u5"),
    ]
    recording = pi.read_pi(file(HEADER, *lines))
    assert shown(recording) == ["S2", "u4", "a4", "u5"]
    assert len(told(recording)) == 9


@pytest.mark.parametrize("first", ["elsewhere", "c1", None])
def test_compaction_without_a_kept_entry_on_the_way_keeps_nothing(first):
    """A first kept id that is not on the way, or the compaction's own, means the summary stands alone."""
    cut = line("compaction", "c1", "a1", summary="S", firstKeptEntryId=first)
    lines = [*talk("u1", "a1"), cut, message("u2", "c1", "user", "u2")]
    assert shown(pi.read_pi(file(HEADER, *lines))) == ["S", "u2"]


def test_first_kept_entry_may_be_a_setting():
    """Keeping begins with the first message from that line on."""
    lines = [
        *talk("u1", "a1"),
        line("model_change", "s", "a1", modelId="m2"),
        message("u2", "s", "user", "u2"),
        line("compaction", "c", "u2", summary="S", firstKeptEntryId="s"),
    ]
    assert shown(pi.read_pi(file(HEADER, *lines))) == ["S", "u2"]


def test_version_1_is_a_line_of_entries():
    """Without ids each line follows the one before, with its number as id; damaged lines between do not matter."""
    old = [
        {"type": "session", "id": "S", "timestamp": TIME, "cwd": "/w"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "a"}},
        b"not json",
        {"type": "message", "timestamp": TIME, "message": {"role": "hookMessage", "content": [text("b")]}},
    ]
    recording = pi.read_pi(file(*old))
    assert told(recording) == ["user: a", "user: b"]
    assert [entry.id for entry in recording.entries if isinstance(entry.body, MessageEntry)] == ["00000002", "00000004"]
    assert [problem.line for problem in recording.problems] == [3]


@pytest.mark.parametrize(("index", "kept"), [(0, []), (1, ["a", "b"]), (2, ["b"]), (99, [])])
def test_version_1_counts_the_header_in_what_it_kept(index, kept):
    """``firstKeptEntryIndex`` counts lines from the header; the header itself or no line at all keeps nothing."""
    said = [{"type": "message", "timestamp": TIME, "message": {"role": "user", "content": words}} for words in "ab"]
    cut = {"type": "compaction", "timestamp": TIME, "summary": "S", "firstKeptEntryIndex": index, "tokensBefore": 9}
    assert shown(pi.read_pi(file({"type": "session", "id": "S"}, *said, cut))) == ["S", *kept]


def test_parent_that_is_not_there_ends_the_way():
    """As in pi, the context starts at the orphan; what stood before stays in the tree, and it is reported."""
    recording = pi.read_pi(file(HEADER, message("u1", None, "user", "u1"), *talk("u2", "a2", parent="lost")))
    assert told(recording) == ["user: u2", "assistant: a2"]
    assert recording.entries[1].id == "u1"
    assert "lost is not in the file" in recording.problems[0].reason


def test_parent_on_a_damaged_line_is_the_line_before():
    """Where a damaged line stands right before, the way goes on with the line before that."""
    recording = pi.read_pi(
        file(HEADER, message("u1", None, "user", "u1"), b'{"id":"a1', *talk("u2", "a2", parent="a1"))
    )
    assert told(recording) == ["user: u1", "user: u2", "assistant: a2"]
    assert [problem.line for problem in recording.problems] == [3, 4]


def test_circle_and_repeated_ids():
    """Circles are cut, copies counted once, other words under one id kept apart; each is reported."""
    one, two = message("u1", "u2", "user", "one"), message("u2", "u1", "user", "two")
    recording = pi.read_pi(file(HEADER, one, two, two, message("u2", "u1", "user", "three")))
    assert told(recording) == ["user: one", "user: three"]
    assert recording.skipped_counts == {"copy of an earlier line": 1}
    assert sorted(problem.line for problem in recording.problems) == [2, 5]


def test_blank_torn_and_broken_lines():
    """Blank lines are nothing; broken ones and a torn last one are notes with their bytes."""
    recording = pi.read_pi(file(HEADER, b"", b"not json", message("a", None, "user", "x")) + b'{"type":"mess')
    assert told(recording) == ["user: x"]
    assert [problem.line for problem in recording.problems] == [3, 5]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)][1:] == [
        b"not json",
        b'{"type":"mess',
    ]


def test_what_else_stands_in_the_context():
    """A command of the user's and custom messages are user words; a branch summary is told; excluded ones are notes."""
    bash = {"command": "make", "output": "no rule", "exitCode": 2, "cancelled": False, "truncated": False}
    lines = (
        message("b1", None, "bashExecution", [], **bash),
        message("b2", "b1", "bashExecution", [], **bash, excludeFromContext=True),
        line("custom_message", "cm", "b2", customType="x", content="look", display=True),
        line("branch_summary", "bs", "cm", fromId="b1", summary="tried that"),
        line("custom", "cu", "bs", customType="x", data={"a": 1}),
        line("label", "lb", "cu", targetId="b1", label="start"),
    )
    recording = pi.read_pi(file(HEADER, *lines))
    first, second, third = told(recording)
    assert all(piece in first for piece in ("user: ", "make", "no rule", "exited with code 2"))
    assert (second, third) == ("user: look", "user: tried that")
    assert [entry.body for entry in recording.entries if isinstance(entry.body, LabelEntry)] == [
        LabelEntry("b1", "start")
    ]
    assert recording.skipped_counts == {"bashExecution (not in the context)": 1, "custom": 1}


def test_unknown_roles_and_missing_header():
    """A role nobody knows is a note on the way; a file without header is read, and both are reported."""
    recording = pi.read_pi(file(message("u1", None, "narrator", "x"), message("u2", "u1", "user", "y")))
    assert told(recording) == ["user: y"]
    assert [problem.line for problem in recording.problems] == [1, 1]
    assert b"narrator" in recording.entries[0].body.raw


def test_raw_message_decodes_to_the_slot():
    """A slot's bytes are the message as the line has it, and ``decode_pi_message`` reads them back."""
    recording = pi.read_pi(file(HEADER, *talk("u1", "a1")))
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            assert pi.decode_pi_message(entry.body.sized_message.raw) == entry.body.sized_message.message
    with pytest.raises(FormatError, match="narrator"):
        pi.decode_pi_message(b'{"role":"narrator"}')
    with pytest.raises(FormatError, match="cannot be read"):
        pi.decode_pi_message(b"[1]")
