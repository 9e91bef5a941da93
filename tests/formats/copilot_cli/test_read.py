"""Sessions of GitHub Copilot CLI."""

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
from holdfast.messages.parts import Media, Thinking
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry, RequestSetup
from holdfast.state.view import build_projection

CALL = {"toolCallId": "c1", "name": "bash", "arguments": {"command": "ls"}, "type": "function"}
Event = dict[str, Any]


def event(type_: str, id_: str = "", agent: str | None = None, **data: Any) -> Event:
    """Return an event as the client writes it."""
    fields = {
        "type": type_,
        "id": id_ or type_,
        "timestamp": "2026-10-02T08:00:00.000Z",
        "parentId": None,
        "data": data,
    }
    return fields if agent is None else fields | {"agentId": agent}


START = event("session.start", sessionId="S-1", selectedModel="m-1", context={"cwd": "/w"}, version=1)


def prompt(id_: str, words: str, **more: Any) -> Event:
    return event("user.message", id_, content=words, messageId=id_, **more)


def answer(id_: str, words: str = "", *calls: Event, **more: Any) -> Event:
    return event("assistant.message", id_, **({"content": words, "toolRequests": list(calls), "messageId": id_} | more))


def result(id_: str, words: str = "a.py", call: str = "c1", **more: Any) -> Event:
    data = {"toolCallId": call, "success": True, "result": {"content": words, "detailedContent": "for the screen"}}
    return event("tool.execution_complete", id_, **(data | more))


def compaction(id_: str = "k", **more: Any) -> Event:
    data = {"success": True, "summaryContent": "SUMMARY", "preCompactionTokens": 900, "postCompactionTokens": 100}
    return event("session.compaction_complete", id_, **(data | more))


def encode(*events: Event) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in events)


def read(*events: Event) -> Recording:
    recording = read_recording(encode(*events))
    assert recording.format == "copilot-cli"
    return recording


def list_messages(recording: Recording) -> list[Message]:
    bodies = [entry.body for entry in get_full_history_entries(recording)]
    return [body.sized_message.message for body in bodies if isinstance(body, MessageEntry)]


def list_shown(recording: Recording) -> list[str]:
    """Return role and text of each message that the model sees at the end."""
    shown = []
    for item in build_projection(build_state_at_leaf(recording)):
        text = item.message.text or "".join(part.text for result in item.message.results for part in result.content)
        shown.append(f"{item.message.role}: {text}")
    return shown


TURN = (
    START,
    prompt("u1", "list it", transformedContent="<now>8:00</now>\nlist it"),
    event("assistant.turn_start", "t", turnId="0"),
    answer("a1", "I look.", CALL, reasoningText="files first", outputTokens=12, model="m-2"),
    event("tool.execution_start", "s", toolCallId="c1", toolName="bash", arguments={"command": "ls"}),
    result("r1"),
    answer("a2", "One file."),
)


def test_read_copilot_cli_reads_a_turn():
    """Prompts are read as sent and results as the model got them; the rest is counted."""
    recording = read(*TURN)
    assert (recording.session, recording.cwd, recording.model) == ("S-1", "/w", "m-2")
    messages = list_messages(recording)
    assert [(message.role, message.text) for message in messages] == [
        ("user", "<now>8:00</now>\nlist it"),
        ("assistant", "I look."),
        ("tool", ""),
        ("assistant", "One file."),
    ]
    assert messages[1].parts[0] == Thinking("files first")
    assert (messages[1].calls[0].id, json.loads(messages[1].calls[0].arguments)) == ("c1", {"command": "ls"})
    (tool_result,) = messages[2].results
    assert (tool_result.call_id, tool_result.name, tool_result.content[0].text) == ("c1", "bash", "a.py")
    assert not tool_result.is_error
    assert recording.skipped_counts == {"session.start": 1, "assistant.turn_start": 1, "tool.execution_start": 1}
    assert [(call.model, call.usage.input, call.usage.output) for call in list_model_calls(recording)] == [
        ("m-2", 0, 12),
        ("m-2", 0, 0),
    ]


def test_read_copilot_cli_joins_the_pieces_of_an_answer():
    """A long answer is written in pieces with one message id, and is one message."""
    pieces = [answer("a1", "One ", chunkIndex=0, chunkCount=2), answer("a1", "two.", CALL, chunkIndex=1, chunkCount=2)]
    messages = list_messages(read(START, prompt("u", "go"), *pieces, result("r")))
    assert [message.text for message in messages] == ["go", "One two.", ""]
    assert len(messages[1].calls) == 1


def test_read_copilot_cli_reads_failures_and_older_shapes():
    """A failed call has its error's text; older versions write arguments and results as plain text."""
    old_call = CALL | {"toolCallId": "c2", "arguments": '{"command":"pwd"}'}
    custom_call = CALL | {"toolCallId": "c3", "name": "patch", "arguments": "*** Begin"}
    failed = result("r1", success=False, result=None, error={"message": "no such file", "code": "x"})
    recording = read(
        START, answer("a", "", CALL, old_call, custom_call), failed, result("r2", call="c2", result="plain")
    )
    messages = list_messages(recording)
    assert [call.arguments for call in messages[0].calls[1:]] == ['{"command":"pwd"}', '"*** Begin"']
    results = [message.results[0] for message in messages[1:]]
    assert [(item.content[0].text, item.is_error) for item in results] == [("no such file", True), ("plain", False)]


def test_read_copilot_cli_keeps_images_in_prompts_and_results():
    """Images whose bytes are in the file are media; attachments that name a file are in the text already."""
    blob = {"type": "blob", "data": "aGVsbG8=", "mimeType": "image/png"}
    image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
    recording = read(
        START,
        prompt("u", "look", attachments=[blob, {"type": "file", "path": "/w/a"}]),
        answer("a", "", CALL),
        result("r", result={"content": "shown", "binaryResultsForLlm": [image]}),
    )
    first, _, last = list_messages(recording)
    assert [type(part) for part in first.parts[1:]] == [Media]
    assert last.results[0].content[1].size == 5


def test_read_copilot_cli_reads_a_compaction_with_its_estimated_tail():
    """What was not removed stays at the end, with the call of a result that stays."""
    events = [
        *TURN,
        event("session.compaction_start", "k0"),
        prompt("u2", "typed meanwhile"),
        compaction(preCompactionMessagesLength=4, messagesRemoved=2),
        answer("a3", "On we go."),
    ]
    recording = read(*events)
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (body.first_kept, body.tokens_before, body.tokens_after, body.author) == (1, 900, 100, "model")
    shown = list_shown(recording)
    assert "SUMMARY" in shown[0]
    assert shown[1:] == [
        "assistant: I look.",
        "tool: a.py",
        "assistant: One file.",
        "user: typed meanwhile",
        "assistant: On we go.",
    ]
    assert len(list_messages(recording)) == 6


@pytest.mark.parametrize(
    ("data", "kind"),
    [({"success": False, "error": "x"}, "failed"), ({"summaryContent": None}, "without a summary")],
)
def test_read_copilot_cli_ignores_a_compaction_that_hid_nothing(data, kind):
    """A failed compaction and one without a summary are notes, and the conversation stays as it is."""
    recording = read(*TURN, compaction(**data))
    assert recording.skipped_counts[f"session.compaction_complete ({kind})"] == 1
    assert len(list_shown(recording)) == 4


def test_read_copilot_cli_hides_everything_when_the_context_was_cleared():
    """After the user starts over only later messages are shown; a replay still has the earlier ones."""
    recording = read(*TURN, event("session.context_cleared", messagesCleared=4), prompt("u2", "anew"))
    assert list_shown(recording) == ["user: anew"]
    assert len(list_messages(recording)) == 5


def test_read_copilot_cli_makes_conversations_of_sub_agents():
    """Events of a sub-agent, told by its id or by the call that started it, are one conversation of its own."""
    task = CALL | {"toolCallId": "c9", "name": "task", "arguments": {"prompt": "find it", "agent_type": "explore"}}
    recording = read(
        START,
        prompt("u", "go"),
        answer("a1", "", task),
        event("subagent.started", "g", "explore-1", toolCallId="c9", agentName="explore", agentDisplayName="Explorer"),
        event("assistant.message", "x1", "explore-1", content="", toolRequests=[CALL], messageId="x1"),
        result("x2", parentToolCallId="c9"),
        event("assistant.message", "x3", content="found", messageId="x3", parentToolCallId="c9"),
        result("r", "found", "c9"),
    )
    assert [message.role for message in list_messages(recording)] == ["user", "assistant", "tool"]
    (agent,) = recording.sidechains
    assert (agent.session, agent.title, agent.cwd) == ("c9", "Explorer", "/w")
    assert [message.role for message in list_messages(agent)] == ["user", "assistant", "tool", "assistant"]
    assert [list_messages(agent)[index].text for index in (0, 3)] == ["find it", "found"]


def test_read_copilot_cli_reads_notifications_once():
    """A notification is a message of the client; one that the next prompt repeats is read as that prompt."""
    words = "Agent explore-1 completed."
    told = event("system.notification", "n1", content=words, kind={"type": "agent_completed"})
    other = event("system.notification", "n2", content="Shell 7 completed.", kind={"type": "shell_completed"})
    recording = read(*TURN, told, prompt("u2", f"<system_notification>{words}", source="system"), other)
    assert [message.text for message in list_messages(recording)[4:]] == [
        f"<system_notification>{words}",
        "Shell 7 completed.",
    ]
    assert recording.skipped_counts["system.notification (repeated as a prompt)"] == 1


def test_read_copilot_cli_reads_the_system_prompt_as_a_setup():
    """A changed system prompt is a new setup; the same one again is counted."""
    prompts = [event("system.message", str(number), content=words) for number, words in enumerate("AAB")]
    recording = read(START, *prompts, prompt("u", "hi"))
    setups = [entry for entry in recording.entries if isinstance(entry.body, RequestSetup)]
    assert len(setups) == 2
    assert recording.skipped_counts["system.message (repeated)"] == 1


def test_read_copilot_cli_keeps_what_waits_for_permission():
    """A permission that nobody gave or refused is a note at the end; others are only counted."""
    asked = [event("permission.requested", f"p{number}", requestId=f"q{number}") for number in range(2)]
    recording = read(*TURN, *asked, event("permission.completed", requestId="q0", result={"kind": "approved"}))
    notes = [entry.body for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert [json.loads(note.raw)["id"] for note in notes if note.reason.endswith("requested")] == ["p1"]


def test_read_copilot_cli_leaves_commands_of_the_user_out():
    """The result of a tool that the user ran answers no call of the model's."""
    recording = read(
        START, prompt("u", "hi"), event("tool.user_requested", toolCallId="c7"), result("r", "x", call="c7")
    )
    assert [message.role for message in list_messages(recording)] == ["user"]


def test_read_copilot_cli_skips_damaged_lines():
    """A line broken by a raw line feed costs its two halves, and U+2028 ends no line (copilot-cli#2649, #2012)."""
    lines = encode(*TURN[:3]) + b'{"type":"user.message","data":{"content":"a\nb"}}\n' + encode(*TURN[3:])
    recording = read_recording(lines + json.dumps(prompt("u9", "x\u2028y"), ensure_ascii=False).encode())
    assert [problem.line for problem in recording.problems] == [4, 5]
    assert list_messages(recording)[-1].text == "x\u2028y"
    assert len(list_messages(recording)) == 5


def test_read_copilot_cli_again_adds_only_what_is_new():
    """A session that has grown is the same session with more entries."""
    first, second = read(*TURN[:4]), read(*TURN, compaction())
    added = select_new_entries(second, first.entries)
    assert len(added.entries) == len(second.entries) - len(first.entries)
    assert select_new_entries(second, second.entries).entries == ()


def test_read_copilot_cli_can_be_exported_in_every_format():
    """A session with an open call and a compaction is written in every format, and as a request."""
    recording = read(*TURN, compaction(), answer("a3", "", CALL | {"toolCallId": "c2"}))
    for name in EXPORT_FORMATS:
        assert export_with_loss_notes(recording, name).data


IDS = st.sampled_from(["c1", "c2", "a", "b", ""])
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=2))
DATA = st.fixed_dictionaries(
    {},
    optional={
        "content": JSON,
        "transformedContent": JSON,
        "messageId": IDS,
        "toolCallId": IDS,
        "success": st.booleans(),
    }
    | {"toolRequests": st.lists(st.fixed_dictionaries({"toolCallId": IDS, "name": st.text(max_size=3)}), max_size=2)}
    | {"result": JSON, "error": JSON, "parentToolCallId": IDS | st.none(), "summaryContent": st.text(max_size=4)}
    | {"messagesRemoved": st.integers(-3, 9), "preCompactionMessagesLength": st.integers(-3, 9) | JSON},
)
KINDS = ["user.message", "assistant.message", "tool.execution_complete", "session.compaction_complete"]
KINDS += ["session.compaction_start", "session.context_cleared", "system.message", "system.notification"]
KINDS += ["tool.user_requested", "subagent.started", "permission.requested", "abort"]
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS), "data": DATA | JSON}, optional={"id": IDS, "agentId": IDS | st.none()}
)


@given(st.lists(EVENTS, max_size=12))
def test_read_copilot_cli_builds_a_valid_recording_from_any_events(events):
    """Every event is a message, a note or counted; the kept tail of a compaction is inside the conversation."""
    recording = read(START, *events)
    for part in (recording, *recording.sidechains):
        branch = get_branch_entries(part)
        assert len(branch) == len(part.entries)
        build_state_at_leaf(part)
        count = 0
        for entry in branch:
            count += isinstance(entry.body, MessageEntry)
            if isinstance(entry.body, CompactionEntry):
                assert 0 <= entry.body.first_kept <= count
