from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.formats.base import build_state_at_leaf, get_full_history_entries, list_model_calls
from holdfast.formats.export import export_with_loss_notes
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
    fields = {"api": "anthropic-messages", "provider": "p", "model": "m", "usage": usage, "stopReason": stop}
    return message(id_, parent, "assistant", list(content), **fields, **more)


def text(words, **more):
    return {"type": "text", "text": words} | more


def build_file(*lines):
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def list_messages(recording):
    return [
        f"{entry.body.sized_message.message.role}: {entry.body.sized_message.message.text}"
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    ]


def list_shown(recording):
    return [sized_message.message.text for sized_message in build_projection(build_state_at_leaf(recording))]


def build_talk(*ids, parent=None):
    """Build user and assistant lines in turn; the text of each is its id."""
    out = []
    for number, id_ in enumerate(ids):
        make = message(id_, parent, "user", id_) if number % 2 == 0 else answer(id_, parent, text(id_))
        out.append(make)
        parent = id_
    return out


def test_read_takes_the_branch_of_the_last_line():
    """The leaf is the last line; an abandoned branch stays in the tree."""
    recording = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1", "u2", "a2"), message("u3", "a1", "user", "u3")))
    assert list_messages(recording) == ["user: u1", "assistant: a1", "user: u3"]
    assert {"u2", "a2"} <= {entry.id for entry in recording.entries}
    assert (recording.session, recording.cwd, recording.api, recording.model) == ("S", "/w", "anthropic", "m")


def test_read_keeps_setting_lines_as_notes():
    """Lines that change a setting are counted, kept as notes and carry the tree; a session name becomes the title."""
    lines = (
        line("model_change", "s1", None, provider="p", modelId="m"),
        message("u1", "s1", "user", "hi"),
        line("session_info", "s2", "u1", name="A title"),
    )
    recording = pi.read_pi(build_file(HEADER, *lines))
    assert recording.skipped_counts == {"model_change": 1, "session_info": 1}
    assert (recording.title, recording.model, recording.leaf) == ("A title", "m", "s2")
    assert list_messages(recording) == ["user: hi"]


def test_read_converts_parts_and_signatures():
    """Thinking, text, calls and images become parts; a signature belongs to the API and model that signed."""
    seal = ProviderSignature("anthropic", "m", "sig")
    content = (
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
        text("so"),
        {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}},
        {"type": "hologram"},
    )
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    reply = message("r", "a", "toolResult", [text("out"), image], toolCallId="c1", toolName="bash", isError=True)
    recording = pi.read_pi(build_file(HEADER, answer("a", None, *content), reply))
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


def test_list_model_calls_skips_failed_answers_and_sums_the_prompt():
    """Failed and aborted answers stay in the log and are no model calls; the input is everything that was sent."""
    lines = (
        message("u", None, "user", "hi"),
        answer("a1", "u", stop="error"),
        answer("a2", "a1", text("par"), stop="aborted"),
        answer("a3", "a2", text("done")),
    )
    recording = pi.read_pi(build_file(HEADER, *lines))
    (step,) = list_model_calls(recording)
    assert (step.id, step.usage, step.stop) == ("a3", Usage(325, 1, 20, 300), "stop")
    assert len(list_messages(recording)) == 4


def test_read_applies_the_last_compaction_of_the_branch():
    """The context shows its summary, what it kept and what came later; the history has everything."""
    lines = [
        *build_talk("u1", "a1", "u2", "a2"),
        line("compaction", "c1", "a2", summary="S1", firstKeptEntryId="u2", tokensBefore=40),
        *build_talk("u3", "a3", "u4", "a4", parent="c1"),
        line("compaction", "c2", "a4", summary="S2", firstKeptEntryId="u4", tokensBefore=1),
        message("u5", "c2", "user", "u5"),
    ]
    recording = pi.read_pi(build_file(HEADER, *lines))
    assert list_shown(recording) == ["S2", "u4", "a4", "u5"]
    assert len(list_messages(recording)) == 9


@pytest.mark.parametrize("first", ["elsewhere", "c1", None])
def test_read_compaction_with_a_foreign_first_kept_id_keeps_nothing(first):
    """A first kept id that is not on the branch, or is the compaction's own, means that the summary stands alone."""
    cut = line("compaction", "c1", "a1", summary="S", firstKeptEntryId=first)
    lines = [*build_talk("u1", "a1"), cut, message("u2", "c1", "user", "u2")]
    assert list_shown(pi.read_pi(build_file(HEADER, *lines))) == ["S", "u2"]


def test_read_compaction_may_keep_from_a_setting_line():
    """The kept tail begins with the first message from that line on."""
    lines = [
        *build_talk("u1", "a1"),
        line("model_change", "s", "a1", modelId="m2"),
        message("u2", "s", "user", "u2"),
        line("compaction", "c", "u2", summary="S", firstKeptEntryId="s"),
    ]
    assert list_shown(pi.read_pi(build_file(HEADER, *lines))) == ["S", "u2"]


def test_read_links_version_1_lines_in_file_order():
    """Without ids each line follows the one before, with its number as id; damaged lines in between do not matter."""
    old = [
        {"type": "session", "id": "S", "timestamp": TIME, "cwd": "/w"},
        {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "a"}},
        b"not json",
        {"type": "message", "timestamp": TIME, "message": {"role": "hookMessage", "content": [text("b")]}},
    ]
    recording = pi.read_pi(build_file(*old))
    assert list_messages(recording) == ["user: a", "user: b"]
    assert [entry.id for entry in recording.entries if isinstance(entry.body, MessageEntry)] == ["00000002", "00000004"]
    assert [problem.line for problem in recording.problems] == [3]


@pytest.mark.parametrize(("index", "kept"), [(0, []), (1, ["a", "b"]), (2, ["b"]), (99, [])])
def test_read_counts_first_kept_index_from_the_version_1_header(index, kept):
    """``firstKeptEntryIndex`` counts lines from the header; the header itself or a missing line keeps nothing."""
    messages = [{"type": "message", "timestamp": TIME, "message": {"role": "user", "content": words}} for words in "ab"]
    cut = {"type": "compaction", "timestamp": TIME, "summary": "S", "firstKeptEntryIndex": index, "tokensBefore": 9}
    assert list_shown(pi.read_pi(build_file({"type": "session", "id": "S"}, *messages, cut))) == ["S", *kept]


def test_read_starts_the_context_at_a_line_with_a_missing_parent():
    """As in pi, the context starts at the orphan; earlier lines stay in the tree, and the loss is reported."""
    recording = pi.read_pi(
        build_file(HEADER, message("u1", None, "user", "u1"), *build_talk("u2", "a2", parent="lost"))
    )
    assert list_messages(recording) == ["user: u2", "assistant: a2"]
    assert recording.entries[1].id == "u1"
    assert "lost is not in the file" in recording.problems[0].reason


def test_read_links_past_a_damaged_parent():
    """If the parent is a damaged line right before, the line is linked to the one before that."""
    recording = pi.read_pi(
        build_file(HEADER, message("u1", None, "user", "u1"), b'{"id":"a1', *build_talk("u2", "a2", parent="a1"))
    )
    assert list_messages(recording) == ["user: u1", "user: u2", "assistant: a2"]
    assert [problem.line for problem in recording.problems] == [3, 4]


def test_read_cuts_circles_and_separates_repeated_ids():
    """Circles are cut, copies counted once, and other text under one id kept apart; each is reported."""
    first, second = message("u1", "u2", "user", "one"), message("u2", "u1", "user", "two")
    recording = pi.read_pi(build_file(HEADER, first, second, second, message("u2", "u1", "user", "three")))
    assert list_messages(recording) == ["user: one", "user: three"]
    assert recording.skipped_counts == {"copy of an earlier line": 1}
    assert sorted(problem.line for problem in recording.problems) == [2, 5]


def test_read_ignores_blank_lines_and_keeps_damaged_ones():
    """Blank lines are skipped; broken lines and a torn last one are notes with their bytes."""
    recording = pi.read_pi(build_file(HEADER, b"", b"not json", message("a", None, "user", "x")) + b'{"type":"mess')
    assert list_messages(recording) == ["user: x"]
    assert [problem.line for problem in recording.problems] == [3, 5]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)][1:] == [
        b"not json",
        b'{"type":"mess',
    ]


def test_read_converts_the_other_kinds_of_context_lines():
    """User commands and custom messages are user messages, a branch summary is shown, and excluded lines are notes."""
    bash = {"command": "make", "output": "no rule", "exitCode": 2, "cancelled": False, "truncated": False}
    lines = (
        message("b1", None, "bashExecution", [], **bash),
        message("b2", "b1", "bashExecution", [], **bash, excludeFromContext=True),
        line("custom_message", "cm", "b2", customType="x", content="look", display=True),
        line("branch_summary", "bs", "cm", fromId="b1", summary="tried that"),
        line("custom", "cu", "bs", customType="x", data={"a": 1}),
        line("label", "lb", "cu", targetId="b1", label="start"),
    )
    recording = pi.read_pi(build_file(HEADER, *lines))
    first, second, third = list_messages(recording)
    assert all(piece in first for piece in ("user: ", "make", "no rule", "exited with code 2"))
    assert (second, third) == ("user: look", "user: tried that")
    assert [entry.body for entry in recording.entries if isinstance(entry.body, LabelEntry)] == [
        LabelEntry("b1", "start")
    ]
    assert recording.skipped_counts == {"bashExecution (not in the context)": 1, "custom": 1}


def test_read_reports_unknown_roles_and_a_missing_header():
    """A message of an unknown role is a note on the branch; a file without a header is read, and both are reported."""
    recording = pi.read_pi(build_file(message("u1", None, "narrator", "x"), message("u2", "u1", "user", "y")))
    assert list_messages(recording) == ["user: y"]
    assert [problem.line for problem in recording.problems] == [1, 1]
    assert b"narrator" in recording.entries[0].body.raw


def test_decode_pi_message_reads_the_raw_bytes_of_a_message():
    """The raw bytes are the ``message`` of the line; an unknown role or no object raises ``FormatError``."""
    recording = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1")))
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            assert pi.decode_pi_message(entry.body.sized_message.raw) == entry.body.sized_message.message
    with pytest.raises(FormatError, match="narrator"):
        pi.decode_pi_message(b'{"role":"narrator"}')
    with pytest.raises(FormatError, match="cannot be read"):
        pi.decode_pi_message(b"[1]")


def leaf_line(id_, parent, target, **more):
    return line("leaf", id_, parent, targetId=target) | more


def test_read_goes_on_from_the_line_that_a_leaf_names():
    """A ``leaf`` line of OpenClaw moves the conversation; lines that name it, or its target, as their parent follow."""
    talk = build_talk("u1", "a1", "u2", "a2")
    for parent in ("l1", "a1"):
        data = build_file(HEADER, *talk, leaf_line("l1", "a2", "a1"), message("u3", parent, "user", "u3"))
        assert list_messages(pi.read_pi(data)) == ["user: u1", "assistant: a1", "user: u3"]
    moved_only = pi.read_pi(build_file(HEADER, *talk, leaf_line("l1", "a2", "a1")))
    assert list_messages(moved_only) == ["user: u1", "assistant: a1"]
    restarted = build_file(HEADER, *talk, leaf_line("l1", "a2", None), message("u3", "l1", "user", "u3"))
    assert list_messages(pi.read_pi(restarted)) == ["user: u3"]


def test_read_ignores_a_leaf_that_is_not_in_the_file():
    """Such a line moves nothing and is reported, as OpenClaw ignores it."""
    recording = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1"), leaf_line("l1", "a1", "gone")))
    assert list_messages(recording) == ["user: u1", "assistant: a1"]
    assert "the leaf gone is not in the file" in recording.problems[0].reason


def test_read_leaves_lines_beside_the_conversation_out():
    """The conversation goes on before a line with the mode ``side``, also if the next line names that as its parent."""
    side = message("s1", "a1", "assistant", [text("beside")]) | {"appendMode": "side"}
    ends_beside = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1"), side))
    assert list_messages(ends_beside) == ["user: u1", "assistant: a1"]
    goes_on = build_file(HEADER, *build_talk("u1", "a1"), side, message("u2", "s1", "user", "u2"))
    assert list_messages(pi.read_pi(goes_on)) == ["user: u1", "assistant: a1", "user: u2"]


def test_read_continues_with_lines_without_a_parent():
    """A line with an id and no parent field follows the conversation; one with a parent of null begins a branch."""
    follower = message("u2", None, "user", "u2")
    assert list_messages(pi.read_pi(build_file(HEADER, *build_talk("u1", "a1"), follower))) == ["user: u2"]
    del follower["parentId"]
    recording = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1"), follower))
    assert list_messages(recording) == ["user: u1", "assistant: a1", "user: u2"]


@pytest.mark.parametrize(("kept", "shown"), [(None, ["u3"]), ("a1", ["a1", "u2", "u3"])])
def test_read_hides_what_came_before_a_reset(kept, shown):
    """A ``reset`` is a compaction without a summary: the history stays, and the model sees what it kept."""
    reset = line("reset", "r1", "u2", reason="new") | ({"firstKeptEntryId": kept} if kept else {})
    data = build_file(HEADER, *build_talk("u1", "a1", "u2"), reset, message("u3", "r1", "user", "u3"))
    recording = pi.read_pi(data)
    assert list_messages(recording) == ["user: u1", "assistant: a1", "user: u2", "user: u3"]
    assert list_shown(recording) == shown
    written = export_with_loss_notes(recording, "pi").data
    assert written == data


def test_write_keeps_the_branch_that_a_leaf_names():
    """A file with ``leaf`` and ``side`` lines is the same conversation after it was written."""
    side = message("s1", "l1", "assistant", [text("beside")]) | {"appendMode": "side"}
    recording = pi.read_pi(build_file(HEADER, *build_talk("u1", "a1", "u2"), leaf_line("l1", "u2", "a1"), side))
    again = pi.read_pi(export_with_loss_notes(recording, "pi").data)
    assert list_messages(again) == list_messages(recording) == ["user: u1", "assistant: a1"]
    assert [entry.id for entry in again.entries][: len(recording.entries)] == [entry.id for entry in recording.entries]
