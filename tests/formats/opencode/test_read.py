"""Sessions of opencode are read into entries, and entries are written as sessions of opencode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.errors import UnrecognizedContent
from holdfast.formats import (
    EXPORT_FORMATS,
    apply_decisions_to_messages,
    build_state_at_leaf,
    export_bytes,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
    read_recording,
)
from holdfast.formats.base import Recording
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message
from holdfast.formats.opencode.parts import INTERRUPTED_TEXT
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.view import build_projection
from holdfast.store.foreign.opencode import build_opencode_database
from holdfast.store.open_store import open_store

AT = 1_795_294_800_000
COUNTS = {"input": 50, "output": 7, "reasoning": 3, "cache": {"read": 40, "write": 10}, "total": 110}
SESSION = "ses_e001"


def message(number: int, role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return message ``number`` as opencode exports it."""
    id_ = f"msg_{number:012x}"
    time = {"created": AT + min(number, 99)}
    about: dict[str, Any] = {
        "user": {"agent": "build", "model": {"providerID": "anthropic", "modelID": "m"}, "time": time}
    }
    about["assistant"] = {
        "parentID": "msg_000000000000",
        "mode": "build",
        "agent": "build",
        "modelID": "m",
        "finish": "stop",
    }
    about["assistant"] |= {"providerID": "anthropic", "path": {"cwd": "/w", "root": "/w"}, "cost": 0, "tokens": COUNTS}
    about["assistant"] |= {"time": time | {"completed": AT + min(number, 99)}}
    owner = {"id": id_, "sessionID": SESSION}
    stored_parts = [
        part | {"id": f"prt_{number:04}{at}", "sessionID": SESSION, "messageID": id_} for at, part in enumerate(parts)
    ]
    return {"info": {"role": role} | about.get(role, {}) | more | owner, "parts": stored_parts}


def build_text_part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | more


START = {"type": "step-start", "snapshot": "abc"}
END = {"type": "step-finish", "reason": "stop", "cost": 0, "tokens": COUNTS}


def build_tool_part(id_: str, output: str = "out", *, compacted: int | None = None, **state: Any) -> dict[str, Any]:
    """Build a tool part that completed, or one with this ``state``."""
    time = {"start": AT, "end": AT} | ({"compacted": compacted} if compacted else {})
    whole = {"status": "completed", "input": {"a": 1}, "output": output, "title": "t", "metadata": {}, "time": time}
    return {"type": "tool", "tool": "bash", "callID": id_, "state": state or whole}


def build_export(*messages: dict[str, Any], **about: Any) -> bytes:
    info = {"id": SESSION, "slug": "calm-fox", "projectID": "p", "directory": "/w", "title": "T", "version": "1.18.33"}
    return json.dumps({"info": info | {"time": {"created": AT, "updated": AT}} | about, "messages": messages}).encode()


TALK = (
    message(1, "user", build_text_part("list")),
    message(
        2, "assistant", START, {"type": "reasoning", "text": "hm", "time": {"start": AT}}, build_tool_part("a"), END
    ),
    message(3, "assistant", START, build_text_part("done"), END),
)


def list_messages(recording: Recording) -> list[str]:
    """Return the messages of the history in short form: role, text, calls as !id, results as =id:text."""
    return [
        _format_message(entry.body.sized_message.message)
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def list_shown(recording: Recording) -> list[str]:
    return [
        _format_message(sized_message.message) for sized_message in build_projection(build_state_at_leaf(recording))
    ]


def _format_message(message: Message) -> str:
    marks = [f"!{call.id}" for call in message.calls]
    marks += [
        f"={result.call_id}:{get_result_text(result)}{'!' if result.is_error else ''}" for result in message.results
    ]
    return " ".join([message.role, *([message.text] if message.text else []), *marks])


# -- reading -----------------------------------------------------------------------------------------------------------


def test_read_splits_tool_parts_and_counts_the_whole_prompt() -> None:
    """Call and result of one part become two messages; the usage is that of the whole prompt, with reasoning apart."""
    recording = read_recording(build_export(*TALK))
    assert (recording.format, recording.session, recording.cwd, recording.title) == ("opencode", SESSION, "/w", "T")
    assert (recording.model, recording.api, recording.problems) == ("m", "anthropic", ())
    assert list_messages(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done"]
    assert [(step.model, step.usage) for step in list_model_calls(recording)] == [("m", Usage(100, 10, 40, 10, 3))] * 2
    assert recording.skipped_counts == {"step-start": 2, "step-finish": 2}


def test_read_detects_reasoning_included_in_the_output() -> None:
    """If the total is that of input and output alone, the output already includes the reasoning."""
    counts = COUNTS | {"total": 107}
    recording = read_recording(build_export(TALK[0], message(2, "assistant", build_text_part("x"), tokens=counts)))
    assert [step.usage for step in list_model_calls(recording)] == [Usage(100, 7, 40, 10, 3)]


def test_read_splits_a_message_of_several_answers() -> None:
    """Older versions wrote several answers into one message; each becomes its own answer, followed by its results."""
    both = message(2, "assistant", START, build_tool_part("a"), END, START, build_text_part("so"), END)
    recording = read_recording(build_export(TALK[0], both))
    assert list_messages(recording) == ["user list", "assistant !a", "tool =a:out", "assistant so"]
    assert len(list_model_calls(recording)) == 2
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == [TALK[0], both]


def test_read_and_export_keep_the_error_of_a_tool() -> None:
    """A failed tool has its error as the result, and is exported unchanged."""
    state = {"status": "error", "input": {}, "error": "gone", "time": {"start": 1, "end": 2}}
    data = build_export(TALK[0], message(2, "assistant", START, build_tool_part("a", **state), END))
    assert list_messages(read_recording(data))[-1] == "tool =a:gone!"
    assert json.loads(export_bytes(read_recording(data), "opencode-json"))["messages"] == json.loads(data)["messages"]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    "state", [{"status": "running", "input": {"a": 1}, "time": {"start": 1}}, {"status": "pending", "input": {}}, {}]
)
def test_read_takes_a_run_that_never_ended_as_interrupted(state: dict[str, Any], goes_on: bool) -> None:
    """A pending or running call, as after a crash, has an error result, which exports and requests have too."""
    tool_part = {"type": "tool", "tool": "bash", "callID": "a", "state": state}
    later = [message(3, "user", build_text_part("go on"))] if goes_on else []
    data = build_export(TALK[0], message(2, "assistant", tool_part, finish=None), *later)
    recording = read_recording(data)
    expected = ["user list", "assistant !a", f"tool =a:{INTERRUPTED_TEXT}!", *(["user go on"] if goes_on else [])]
    assert list_messages(recording) == expected
    for format_name in EXPORT_FORMATS:
        assert INTERRUPTED_TEXT in export_bytes(recording, format_name).decode()
    exported = export_bytes(recording, "opencode-json")
    (part,) = json.loads(exported)["messages"][1]["parts"]
    assert (part["state"]["status"], part["state"]["error"]) == ("error", INTERRUPTED_TEXT)
    assert list_messages(read_recording(exported)) == expected


def test_read_includes_only_parts_sent_to_the_model() -> None:
    """Images are included; files whose text is a part of its own, and parts for the user alone, are not."""
    image = {"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,QUJDRA=="}
    plain = {"type": "file", "mime": "text/plain", "filename": "b", "url": "file:///b"}
    link = {"type": "file", "mime": "application/pdf", "url": "https://x/y.pdf"}
    user_message = message(
        1,
        "user",
        build_text_part("see"),
        image,
        plain,
        link,
        build_text_part("no", ignored=True),
        build_text_part("yes", synthetic=True),
    )
    recording = read_recording(build_export(user_message))
    (shown,) = [entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    assert shown.parts == (
        Text("see"),
        Media("image", "image/png", 4, "a.png", "QUJDRA==", None, "base64"),
        Media("document", "application/pdf", 0, "", "https://x/y.pdf", None, "url"),
        Text("yes"),
    )


def test_read_signs_reasoning_for_its_provider() -> None:
    """A signature that a provider put beside reasoning ties it to that provider's API."""
    signed = {"type": "reasoning", "text": "", "time": {"start": 1}, "metadata": {"anthropic": {"signature": "sig"}}}
    recording = read_recording(build_export(TALK[0], message(2, "assistant", START, signed, build_text_part("x"), END)))
    (_, answer) = [
        entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)
    ]
    assert answer.parts[0] == Thinking("", ProviderSignature("anthropic", "m", "sig"))


COMPACTED = (
    *TALK,
    message(4, "user", {"type": "compaction", "auto": True, "tail_start_id": "msg_000000000002"}),
    message(5, "assistant", START, build_text_part("so far"), END, summary=True, parentID="msg_000000000004"),
    message(6, "user", build_text_part("on", synthetic=True)),
)


def test_read_joins_compaction_request_and_summary() -> None:
    """The request and its summary are one compaction: the context is the summary, the kept tail and later messages."""
    recording = read_recording(build_export(*COMPACTED))
    assert list_shown(recording) == ["user so far", "assistant !a", "tool =a:out", "assistant done", "user on"]
    assert list_messages(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done", "user on"]
    (compaction,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (compaction.first_kept, compaction.trigger, compaction.author) == (1, "auto", "model")
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == list(COMPACTED)


@pytest.mark.parametrize(
    "how", [{"error": {"name": "APIError", "data": {}}}, {"finish": ""}, {"parentID": "msg_000000000001"}]
)
def test_read_ignores_a_failed_or_unrequested_summary(how: dict[str, Any]) -> None:
    """A summary that failed, is incomplete or was not requested compacts nothing."""
    failed = message(5, "assistant", build_text_part("half"), **{"summary": True, "parentID": "msg_000000000004"} | how)
    recording = read_recording(build_export(*COMPACTED[:4], failed, COMPACTED[5]))
    assert list_shown(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done", "user on"]


def test_read_turns_cleared_results_into_a_decision() -> None:
    """A result that opencode cleared is hidden from then on, stays in the history, and is exported unchanged."""
    talk = (TALK[0], message(2, "assistant", START, build_tool_part("a", "long " * 99, compacted=AT + 4), END), TALK[2])
    recording = read_recording(build_export(*talk, message(9, "user", build_text_part("next"))))
    assert list_shown(recording)[2] == f"tool =a:{CLEARED_RESULT_TEXT}"
    assert list_messages(recording)[2].startswith("tool =a:long")
    bodies = [type(entry.body) for entry in get_branch_entries(recording)]
    assert bodies.index(DecisionEntry) == len(bodies) - 2
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"][1] == talk[1]


def test_read_keeps_ids_when_results_are_cleared_between_imports() -> None:
    """A session pruned between two imports adds only the decision, and later messages follow it."""
    before = read_recording(build_export(*TALK))
    pruned = (
        TALK[0],
        message(2, "assistant", START, TALK[1]["parts"][1], build_tool_part("a", compacted=AT + 4), END),
        TALK[2],
    )
    after = read_recording(build_export(*pruned, message(9, "user", build_text_part("next"))))
    assert {entry.id for entry in before.entries} < {entry.id for entry in after.entries}
    with open_store(":memory:") as store:
        store.import_entries("s", before.entries, leaf=before.leaf)
        done = store.import_entries("s", after.entries, leaf=after.leaf)
        assert (done.added_count, done.leaf) == (2, after.leaf)
    again = json.loads(
        export_bytes(
            Recording("opencode", entries=(*before.entries, *_new(before, after)), leaf=after.leaf), "opencode-json"
        )
    )
    assert again["messages"][1]["parts"][2]["state"]["time"]["compacted"] == AT + 4


def _new(before: Recording, after: Recording) -> list[Any]:
    known = {entry.id for entry in before.entries}
    return [entry for entry in after.entries if entry.id not in known]


def test_read_keeps_ids_when_a_message_gets_diffs_later() -> None:
    """opencode adds the diffs of a turn to its message when the turn is over; the message keeps its id."""
    later = [json.loads(json.dumps(stored)) for stored in COMPACTED]
    for message_dict in later:
        if message_dict["info"]["role"] == "user":
            message_dict["info"]["summary"] = {"diffs": [{"file": "a", "patch": "+1"}]}
    assert [entry.id for entry in read_recording(build_export(*later)).entries] == [
        entry.id for entry in read_recording(build_export(*COMPACTED)).entries
    ]


def test_read_starts_a_branch_at_a_changed_message() -> None:
    """If opencode changed a message, no entry of the earlier reading gets other content."""
    last = message(4, "user", build_text_part("on"))
    first = read_recording(build_export(*TALK, last))
    second = read_recording(
        build_export(TALK[0], message(2, "assistant", START, build_tool_part("a", "other"), END), TALK[2], last)
    )
    with open_store(":memory:") as store:
        for recording in (first, second):
            store.import_entries("s", recording.entries, leaf=recording.leaf)
        assert [entry.body for entry in store.read_path("s", second.leaf)] == [
            entry.body for entry in get_branch_entries(second)
        ]


def test_import_of_a_growing_session_adds_only_new_entries() -> None:
    """Read again after each message, no entry changes and the leaf advances."""
    with open_store(":memory:") as store:
        for count in range(1, len(COMPACTED) + 1):
            recording = read_recording(build_export(*COMPACTED[:count]))
            done = store.import_entries("s", recording.entries, leaf=recording.leaf)
            assert (done.added_count > 0, done.leaf) == (True, recording.leaf)
            assert store.import_entries("s", recording.entries, leaf=recording.leaf).is_unchanged


@pytest.mark.parametrize(
    ("revert", "left"), [({"messageID": "msg_000000000003"}, 3), ({"messageID": "msg_000000000001"}, 0)]
)
def test_read_puts_the_leaf_before_reverted_messages(revert: dict[str, Any], left: int) -> None:
    """Reverted messages stay in the tree; only the branch to the leaf is exported."""
    recording = read_recording(build_export(*TALK, revert=revert))
    assert len(list_messages(recording)) == left
    assert sum(isinstance(entry.body, MessageEntry) for entry in recording.entries) == 4
    assert len(json.loads(export_bytes(recording, "opencode-json"))["messages"]) == max(0, left - 1)


def test_read_keeps_the_parts_before_a_reverted_part() -> None:
    """A message with a reverted part keeps the parts before it."""
    talk = (TALK[0], message(2, "assistant", START, build_text_part("one"), build_tool_part("a"), END), TALK[2])
    recording = read_recording(build_export(*talk, revert={"messageID": "msg_000000000002", "partID": "prt_00022"}))
    assert list_messages(recording) == ["user list", "assistant one"]


@pytest.mark.parametrize(
    ("error", "parts", "left"),
    [
        ("APIError", [build_text_part("half")], 1),
        ("MessageAbortedError", [build_text_part("half")], 2),
        ("MessageAbortedError", [], 1),
    ],
)
def test_read_hides_failed_answers_and_keeps_aborted_text(error: str, parts: list[dict[str, Any]], left: int) -> None:
    """As in opencode, a failed answer is hidden and an aborted one shows what it has; neither is a model call."""
    data = build_export(TALK[0], message(2, "assistant", *parts, error={"name": error, "data": {}}))
    recording = read_recording(data)
    assert (len(list_messages(recording)), list_model_calls(recording)) == (left, [])
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == json.loads(data)["messages"]


def test_read_and_export_keep_parts_of_an_unknown_type() -> None:
    """Such a part is kept as a note with its bytes, counted, and exported in its place."""
    odd = {"type": "hologram", "x": [1, 2]}
    data = build_export(TALK[0], message(2, "assistant", START, odd, build_text_part("so"), END))
    recording = read_recording(data)
    assert recording.skipped_counts["hologram"] == 1
    notes = [bytes(entry.body.raw) for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert any(b'"x":[1,2]' in raw for raw in notes)
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == json.loads(data)["messages"]


def test_read_and_export_keep_messages_of_an_unknown_role() -> None:
    """A message of an unknown role is a note, reported, and exported unchanged."""
    recording = read_recording(build_export(*TALK, message(4, "narrator", build_text_part("once"))))
    assert list_messages(recording)[-1] == "assistant done"
    assert "narrator" in recording.problems[0].message
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"][-1] == message(
        4, "narrator", build_text_part("once")
    )


@pytest.mark.parametrize("broken", [{"info": 5, "parts": []}, {"info": {}, "parts": "x"}, 7, None])
def test_read_skips_malformed_messages(broken: object) -> None:
    """A malformed message is reported or empty; the others are read."""
    data = json.loads(build_export(*TALK))
    data["messages"].insert(1, broken)
    assert list_messages(read_recording(json.dumps(data).encode())) == list_messages(
        read_recording(build_export(*TALK))
    )


def test_read_reports_a_replaced_lone_surrogate() -> None:
    """A document in which a lone surrogate was replaced is read, and the replacement is reported."""
    recording = read_recording(build_export(*TALK).replace(b'"list"', rb'"li\ud83d"'))
    assert list_messages(recording)[0] == "user li\ufffd"
    assert "U+FFFD" in recording.problems[0].message


def test_read_rejects_a_document_without_a_session_id() -> None:
    """A document that names no session is not recognized as an opencode export."""
    with pytest.raises(UnrecognizedContent, match="opencode export"):
        read_recording(b'{"info":{},"messages":[]}')


@pytest.mark.parametrize("indent", [None, 2])
def test_read_ignores_insignificant_whitespace(indent: int | None) -> None:
    """The same session printed with and without whitespace has the same entries."""
    spread = json.dumps(json.loads(build_export(*COMPACTED)), indent=indent).encode()
    assert read_recording(spread).entries == read_recording(build_export(*COMPACTED)).entries


# -- writing -----------------------------------------------------------------------------------------------------------


def build_holdfast_log() -> Recording:
    """Build a log by Holdfast: an image, signed thinking, calls, results, a compaction that keeps two messages."""
    log = RecordingBuilder()

    def build_message_entry(*parts: Any, role: Any = "user") -> MessageEntry:
        return MessageEntry(make_sized_message(Message(role, parts), "", None))

    user_id = log.add_entry(
        "u1", None, build_message_entry(Text("one"), Media("image", "image/png", 2, "", "aGk=")), AT, 1
    )
    thought = Thinking("hm", ProviderSignature("anthropic", "model-x", "sig"))
    call = build_message_entry(
        thought, Text("I look"), ToolCall("c1", "bash", '{"a":1}'), ToolCall("c2", "ls"), role="assistant"
    )
    answer_id = log.add_answer(
        "a1", user_id, call, CallMetadata("model-x", Usage(100, 5, 40, 30), "tool_use", 2), AT, 2
    )
    shot = Media("image", "image/png", 2, "", "aGk=")
    results = (ToolResult("c1", "bash", (Text("out"),), is_error=True), ToolResult("c2", "ls", (Text("f"), shot)))
    result_id = log.add_entry("r1", answer_id, build_message_entry(*results, role="tool"), AT, 3)
    compaction_id = log.add_entry(
        "k1",
        result_id,
        CompactionEntry(first_kept=1, summary=Message.from_text("user", "what was"), head_tokens=4),
        AT + 4,
        4,
    )
    leaf = log.add_entry("u2", compaction_id, build_message_entry(Text("next")), AT + 5, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


def test_export_keeps_the_meaning_of_a_holdfast_log() -> None:
    """Messages, usage, signatures, files and a compaction become opencode's records and read back the same."""
    first, second = build_holdfast_log(), read_recording(export_bytes(build_holdfast_log(), "opencode-json"))
    assert list_shown(second) == list_shown(first)
    assert list_messages(second) == list_messages(first)
    assert [(step.model, step.usage) for step in list_model_calls(second)] == [("model-x", Usage(100, 5, 40, 30))]
    before, after = (
        [
            entry.body.sized_message.message
            for entry in get_full_history_entries(recording)
            if isinstance(entry.body, MessageEntry)
        ]
        for recording in (first, second)
    )
    assert after == before
    assert (second.cwd, second.api, second.problems) == ("/w", "anthropic", ())


def test_export_writes_ids_that_sort_like_the_messages() -> None:
    """opencode sorts by time and id: both grow from message to message and from part to part."""
    messages = json.loads(export_bytes(build_holdfast_log(), "opencode-json"))["messages"]
    times = [message["info"]["time"]["created"] for message in messages]
    ids = [message["info"]["id"] for message in messages]
    assert times == sorted(set(times))
    assert ids == sorted(set(ids))
    for message in messages:
        parts = [part["id"] for part in message["parts"]]
        assert parts == sorted(set(parts))
    assert [message["info"]["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[2]["parts"][0]["tail_start_id"] == ids[1]


def test_export_gives_new_messages_later_ids_than_recorded_ones() -> None:
    """New messages after recorded ones get later ids and times, whatever their own time."""
    first = read_recording(build_export(message(0xFFFF00000000, "user", build_text_part("late"))))
    log = RecordingBuilder()
    log.entries, log.message_counts = list(first.entries), log.message_counts | {first.leaf: 1}
    log._last_lines[first.leaf] = 0
    leaf = log.add_entry(
        "n", first.leaf, MessageEntry(make_sized_message(Message.from_text("assistant", "x"), "", None)), 5, 1
    )
    out = json.loads(export_bytes(Recording("opencode", entries=tuple(log.entries), leaf=leaf), "opencode-json"))[
        "messages"
    ]
    assert out[1]["info"]["id"] > out[0]["info"]["id"]
    assert out[1]["info"]["time"]["created"] > out[0]["info"]["time"]["created"]
    assert out[1]["info"]["parentID"] == out[0]["info"]["id"]


def test_export_marks_a_call_without_a_result_as_interrupted() -> None:
    """If the branch ends before the result, the tool part has the error that opencode itself writes."""
    recording = read_recording(build_export(*TALK))
    answer = next(entry for entry in recording.entries if isinstance(entry.body, AnswerEntry))
    cut = Recording("opencode", entries=recording.entries, leaf=answer.id)
    (_, last) = json.loads(export_bytes(cut, "opencode-json"))["messages"]
    assert last["parts"][2]["state"]["status"] == "error"
    assert "interrupted" in last["parts"][2]["state"]["error"]


def test_export_writes_a_shortened_result_short() -> None:
    """With the decisions in force applied, the part holds the shown text; its other fields stay as they were."""
    first = read_recording(
        build_export(TALK[0], message(2, "assistant", START, build_tool_part("a", "long " * 500), END), TALK[2])
    )
    short = ToolResult("a", "bash", (Text("short"),))
    log = RecordingBuilder()
    log.entries, log.message_counts = list(first.entries), log.message_counts | {first.leaf: 4}
    log._last_lines[first.leaf] = 0
    leaf = log.add_entry("d", first.leaf, DecisionEntry((Edit(Span(2, 3, 0), (short,), "trim"),)), AT, 1)
    out = export_bytes(
        apply_decisions_to_messages(Recording("opencode", entries=tuple(log.entries), leaf=leaf)), "opencode-json"
    )
    part = json.loads(out)["messages"][1]["parts"][1]
    assert part["state"] == TALK[1]["parts"][2]["state"] | {"output": "short"}
    assert part["id"] == "prt_00021"


_TEXT = st.text(max_size=3)
_TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=4,
)
_STATE = st.fixed_dictionaries(
    {"status": st.sampled_from(["completed", "error", "running", "odd"]) | _TREE},
    optional={"input": _TREE, "output": _TREE, "error": _TREE, "time": _TREE, "attachments": _TREE},
)
_PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "reasoning", "tool", "file", "step-start", "step-finish", "compaction", "odd"])},
    optional={
        "id": _TEXT, "text": _TREE, "callID": st.sampled_from("ab") | _TREE, "tool": _TEXT, "state": _STATE | _TREE,
        "mime": _TEXT, "url": _TEXT, "tokens": st.just(COUNTS) | _TREE, "metadata": _TREE, "tail_start_id": _TEXT,
    },
)  # fmt: skip
_INFO = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "b", "c"]), "role": st.sampled_from(["user", "assistant", "odd"])},
    optional={"time": _TREE, "summary": st.just(value=True) | _TREE, "parentID": st.sampled_from("ab"), "error": _TREE},
)
_MESSAGE = st.fixed_dictionaries({"info": _INFO | _TREE, "parts": st.lists(_PART | _TREE, max_size=4) | _TREE})


_ABOUT = st.dictionaries(
    st.sampled_from(
        ["revert", "version", "cost", "tokens", "slug", "title", "path", "projectID", "directory", "model"]
    ),
    _TREE | st.just({"input": 2**70, "output": "many"}),
)


@given(st.lists(_MESSAGE | _TREE, max_size=6), _ABOUT)
def test_read_and_export_accept_any_document(messages: list[Any], about: dict[str, Any]) -> None:
    """For any document, ids are unique, parents come first, and it can be stored, written in both forms and read
    again.
    """
    seen: set[str | None] = {None}
    recording = read_recording(json.dumps({"info": {"id": SESSION} | about, "messages": messages}).encode())
    for entry in recording.entries:
        assert entry.parent in seen
        assert entry.id not in seen
        seen.add(entry.id)
    with open_store(":memory:") as store:
        store.import_entries("s", recording.entries, leaf=recording.leaf)
    assert read_recording(export_bytes(recording, "opencode-json")).session == SESSION
    assert build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording)))


def test_read_ignores_numbers_no_database_can_hold() -> None:
    """Times and token counts beyond the range of a database count as unknown."""
    odd = json.dumps(TALK).replace(str(AT), "1e300").replace("50", "-1").replace('"output": 7', '"output": 1e99')
    recording = read_recording(build_export(*json.loads(odd)))
    with open_store(":memory:") as store:
        store.import_entries("s", recording.entries, leaf=recording.leaf)
    assert [step.usage.output for step in list_model_calls(recording)] == [3, 3]
    assert build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording)))


def test_export_replaces_repeated_message_ids() -> None:
    """If a document uses an id twice, the second message and its parts get other ids."""
    data = build_export(TALK[0], TALK[2], TALK[0])
    ids = [
        message["info"]["id"] for message in json.loads(export_bytes(read_recording(data), "opencode-json"))["messages"]
    ]
    assert (len(set(ids)), ids[:2]) == (3, ["msg_000000000001", "msg_000000000003"])


def test_read_keeps_the_message_without_the_tool_output() -> None:
    """The recorded envelope is opencode's message without the output, which is in the result."""
    (_, answer, *_) = [
        entry.body for entry in read_recording(build_export(*TALK)).entries if isinstance(entry.body, MessageEntry)
    ]
    assert isinstance(answer.recording_envelope, Raw)
    assert json.loads(bytes(answer.recording_envelope))["parts"][2]["state"]["output"] is None
