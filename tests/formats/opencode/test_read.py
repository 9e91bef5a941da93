"""Sessions of opencode as entries, and entries as sessions of opencode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.errors import UnrecognizedContent
from holdfast.formats import (
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
    held = [
        one | {"id": f"prt_{number:04}{at}", "sessionID": SESSION, "messageID": id_} for at, one in enumerate(parts)
    ]
    return {"info": {"role": role} | about.get(role, {}) | more | owner, "parts": held}


def words(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | more


START = {"type": "step-start", "snapshot": "abc"}
END = {"type": "step-finish", "reason": "stop", "cost": 0, "tokens": COUNTS}


def ran(id_: str, output: str = "out", *, compacted: int | None = None, **state: Any) -> dict[str, Any]:
    """Return the part of a tool that ended well, or as ``state`` says."""
    time = {"start": AT, "end": AT} | ({"compacted": compacted} if compacted else {})
    whole = {"status": "completed", "input": {"a": 1}, "output": output, "title": "t", "metadata": {}, "time": time}
    return {"type": "tool", "tool": "bash", "callID": id_, "state": state or whole}


def exported(*messages: dict[str, Any], **about: Any) -> bytes:
    info = {"id": SESSION, "slug": "calm-fox", "projectID": "p", "directory": "/w", "title": "T", "version": "1.18.33"}
    return json.dumps({"info": info | {"time": {"created": AT, "updated": AT}} | about, "messages": messages}).encode()


TALK = (
    message(1, "user", words("list")),
    message(2, "assistant", START, {"type": "reasoning", "text": "hm", "time": {"start": AT}}, ran("a"), END),
    message(3, "assistant", START, words("done"), END),
)


def told(recording: Recording) -> list[str]:
    """Return what was said: role, words, ``!`` calls and ``=`` results with theirs."""
    return [
        _told(entry.body.sized_message.message)
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def shown(recording: Recording) -> list[str]:
    return [_told(slot.message) for slot in build_projection(build_state_at_leaf(recording))]


def _told(said: Message) -> str:
    marks = [f"!{one.id}" for one in said.calls]
    marks += [f"={one.call_id}:{get_result_text(one)}{'!' if one.is_error else ''}" for one in said.results]
    return " ".join([said.role, *([said.text] if said.text else []), *marks])


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_session() -> None:
    """Call and result of one part become two messages; tokens are those of the whole prompt, reasoning apart."""
    recording = read_recording(exported(*TALK))
    assert (recording.format, recording.session, recording.cwd, recording.title) == ("opencode", SESSION, "/w", "T")
    assert (recording.model, recording.api, recording.problems) == ("m", "anthropic", ())
    assert told(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done"]
    assert [(step.model, step.usage) for step in list_model_calls(recording)] == [("m", Usage(100, 10, 40, 10, 3))] * 2
    assert recording.skipped_counts == {"step-start": 2, "step-finish": 2}


def test_reasoning_may_be_counted_in_the_output() -> None:
    """Where the total is that of input and output alone, the output holds the reasoning already."""
    counts = COUNTS | {"total": 107}
    recording = read_recording(exported(TALK[0], message(2, "assistant", words("x"), tokens=counts)))
    assert [step.usage for step in list_model_calls(recording)] == [Usage(100, 7, 40, 10, 3)]


def test_an_answer_of_several_steps() -> None:
    """Older versions wrote several answers into one message; each is one, with its results behind it."""
    both = message(2, "assistant", START, ran("a"), END, START, words("so"), END)
    recording = read_recording(exported(TALK[0], both))
    assert told(recording) == ["user list", "assistant !a", "tool =a:out", "assistant so"]
    assert len(list_model_calls(recording)) == 2
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == [TALK[0], both]


@pytest.mark.parametrize(
    ("state", "last"),
    [
        ({"status": "error", "input": {}, "error": "gone", "time": {"start": 1, "end": 2}}, "tool =a:gone!"),
        ({"status": "running", "input": {}, "time": {"start": 1}}, "assistant !a"),
        ({"status": "pending", "input": {}, "raw": "{"}, "assistant !a"),
    ],
)
def test_how_far_a_tool_is(state: dict[str, Any], last: str) -> None:
    """A tool that failed has its error as the result; one that has not ended has none, and goes out as it is."""
    data = exported(TALK[0], message(2, "assistant", START, ran("a", **state), END))
    assert told(read_recording(data))[-1] == last
    assert json.loads(export_bytes(read_recording(data), "opencode-json"))["messages"] == json.loads(data)["messages"]


def test_files_and_texts() -> None:
    """An image is shown; a file whose text stands beside it is not, nor is what the user is to see alone."""
    image = {"type": "file", "mime": "image/png", "filename": "a.png", "url": "data:image/png;base64,QUJDRA=="}
    plain = {"type": "file", "mime": "text/plain", "filename": "b", "url": "file:///b"}
    link = {"type": "file", "mime": "application/pdf", "url": "https://x/y.pdf"}
    asked = message(
        1, "user", words("see"), image, plain, link, words("no", ignored=True), words("yes", synthetic=True)
    )
    recording = read_recording(exported(asked))
    (said,) = [entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    assert said.parts == (
        Text("see"),
        Media("image", "image/png", 4, "a.png", "QUJDRA==", None, "base64"),
        Media("document", "application/pdf", 0, "", "https://x/y.pdf", None, "url"),
        Text("yes"),
    )


def test_what_is_signed() -> None:
    """Signatures that a provider put beside reasoning seal it for that provider's API."""
    signed = {"type": "reasoning", "text": "", "time": {"start": 1}, "metadata": {"anthropic": {"signature": "sig"}}}
    recording = read_recording(exported(TALK[0], message(2, "assistant", START, signed, words("x"), END)))
    (_, answer) = [
        entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)
    ]
    assert answer.parts[0] == Thinking("", ProviderSignature("anthropic", "m", "sig"))


COMPACTED = (
    *TALK,
    message(4, "user", {"type": "compaction", "auto": True, "tail_start_id": "msg_000000000002"}),
    message(5, "assistant", START, words("so far"), END, summary=True, parentID="msg_000000000004"),
    message(6, "user", words("on", synthetic=True)),
)


def test_a_compaction() -> None:
    """The request and its summary are one compaction: the summary, the kept tail, what came later."""
    recording = read_recording(exported(*COMPACTED))
    assert shown(recording) == ["user so far", "assistant !a", "tool =a:out", "assistant done", "user on"]
    assert told(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done", "user on"]
    (made,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (made.first_kept, made.trigger, made.author) == (1, "auto", "model")
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == list(COMPACTED)


@pytest.mark.parametrize(
    "how", [{"error": {"name": "APIError", "data": {}}}, {"finish": ""}, {"parentID": "msg_000000000001"}]
)
def test_a_summary_that_did_not_come(how: dict[str, Any]) -> None:
    """A summary that failed, is not whole, or was not asked for, compacts nothing."""
    failed = message(5, "assistant", words("half"), **{"summary": True, "parentID": "msg_000000000004"} | how)
    recording = read_recording(exported(*COMPACTED[:4], failed, COMPACTED[5]))
    assert shown(recording) == ["user list", "assistant !a", "tool =a:out", "assistant done", "user on"]


def test_results_that_were_cleared() -> None:
    """What opencode cleared is shown cleared from then on, is there in the history, and goes out as it came."""
    talk = (TALK[0], message(2, "assistant", START, ran("a", "long " * 99, compacted=AT + 4), END), TALK[2])
    recording = read_recording(exported(*talk, message(9, "user", words("next"))))
    assert shown(recording)[2] == f"tool =a:{CLEARED_RESULT_TEXT}"
    assert told(recording)[2].startswith("tool =a:long")
    bodies = [type(entry.body) for entry in get_branch_entries(recording)]
    assert bodies.index(DecisionEntry) == len(bodies) - 2
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"][1] == talk[1]


def test_what_was_cleared_after_an_import_changes_no_id() -> None:
    """A session that was pruned between two imports adds the decision alone, and what came later hangs on it."""
    before = read_recording(exported(*TALK))
    pruned = (TALK[0], message(2, "assistant", START, TALK[1]["parts"][1], ran("a", compacted=AT + 4), END), TALK[2])
    after = read_recording(exported(*pruned, message(9, "user", words("next"))))
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


def test_what_is_told_about_a_message_later_changes_no_id() -> None:
    """opencode adds the diffs of a turn to its message when the turn is over: that is the same message."""
    later = [json.loads(json.dumps(one)) for one in COMPACTED]
    for one in later:
        if one["info"]["role"] == "user":
            one["info"]["summary"] = {"diffs": [{"file": "a", "patch": "+1"}]}
    assert [one.id for one in read_recording(exported(*later)).entries] == [
        one.id for one in read_recording(exported(*COMPACTED)).entries
    ]


def test_a_message_that_changed_begins_a_branch() -> None:
    """Where opencode changed what was said, nothing of the earlier reading gets other content."""
    last = message(4, "user", words("on"))
    first = read_recording(exported(*TALK, last))
    second = read_recording(exported(TALK[0], message(2, "assistant", START, ran("a", "other"), END), TALK[2], last))
    with open_store(":memory:") as store:
        for one in (first, second):
            store.import_entries("s", one.entries, leaf=one.leaf)
        assert [entry.body for entry in store.read_path("s", second.leaf)] == [
            entry.body for entry in get_branch_entries(second)
        ]


def test_a_session_that_grows_adds_what_is_new() -> None:
    """Read again after each message, no entry changes, and the leaf goes on."""
    with open_store(":memory:") as store:
        for count in range(1, len(COMPACTED) + 1):
            one = read_recording(exported(*COMPACTED[:count]))
            done = store.import_entries("s", one.entries, leaf=one.leaf)
            assert (done.added_count > 0, done.leaf) == (True, one.leaf)
            assert store.import_entries("s", one.entries, leaf=one.leaf).is_unchanged


@pytest.mark.parametrize(
    ("revert", "left"), [({"messageID": "msg_000000000003"}, 3), ({"messageID": "msg_000000000001"}, 0)]
)
def test_what_was_reverted(revert: dict[str, Any], left: int) -> None:
    """The leaf stands before what was reverted, which stays in the tree; only the way to the leaf is written."""
    recording = read_recording(exported(*TALK, revert=revert))
    assert len(told(recording)) == left
    assert sum(isinstance(entry.body, MessageEntry) for entry in recording.entries) == 4
    assert len(json.loads(export_bytes(recording, "opencode-json"))["messages"]) == max(0, left - 1)


def test_a_part_that_was_reverted() -> None:
    """Of a message from which a part was reverted stands what came before that part."""
    talk = (TALK[0], message(2, "assistant", START, words("one"), ran("a"), END), TALK[2])
    recording = read_recording(exported(*talk, revert={"messageID": "msg_000000000002", "partID": "prt_00022"}))
    assert told(recording) == ["user list", "assistant one"]


@pytest.mark.parametrize(
    ("error", "parts", "left"),
    [("APIError", [words("half")], 1), ("MessageAbortedError", [words("half")], 2), ("MessageAbortedError", [], 1)],
)
def test_answers_that_failed(error: str, parts: list[dict[str, Any]], left: int) -> None:
    """As in opencode, a failed answer is not shown, one that was cut off is as far as it came; neither is a step."""
    data = exported(TALK[0], message(2, "assistant", *parts, error={"name": error, "data": {}}))
    recording = read_recording(data)
    assert (len(told(recording)), list_model_calls(recording)) == (left, [])
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == json.loads(data)["messages"]


def test_parts_of_an_unknown_type_are_notes() -> None:
    """Such a part is kept with its bytes and counted, and goes out again in its place."""
    odd = {"type": "hologram", "x": [1, 2]}
    data = exported(TALK[0], message(2, "assistant", START, odd, words("so"), END))
    recording = read_recording(data)
    assert recording.skipped_counts["hologram"] == 1
    notes = [bytes(entry.body.raw) for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert any(b'"x":[1,2]' in raw for raw in notes)
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"] == json.loads(data)["messages"]


def test_roles_that_are_not_known() -> None:
    """A message of an unknown role is a note, reported, and goes out as it came."""
    recording = read_recording(exported(*TALK, message(4, "narrator", words("once"))))
    assert told(recording)[-1] == "assistant done"
    assert "narrator" in recording.problems[0].message
    assert json.loads(export_bytes(recording, "opencode-json"))["messages"][-1] == message(4, "narrator", words("once"))


@pytest.mark.parametrize("broken", [{"info": 5, "parts": []}, {"info": {}, "parts": "x"}, 7, None])
def test_messages_that_are_none(broken: object) -> None:
    """What is no message is reported, or empty; the others are read."""
    data = json.loads(exported(*TALK))
    data["messages"].insert(1, broken)
    assert told(read_recording(json.dumps(data).encode())) == told(read_recording(exported(*TALK)))


def test_half_a_surrogate_is_reported() -> None:
    """A document that had to be mended is read, and says so."""
    recording = read_recording(exported(*TALK).replace(b'"list"', rb'"li\ud83d"'))
    assert told(recording)[0] == "user li\ufffd"
    assert "U+FFFD" in recording.problems[0].message


def test_without_an_id() -> None:
    """A document that names no session is none."""
    with pytest.raises(UnrecognizedContent, match="opencode export"):
        read_recording(b'{"info":{},"messages":[]}')


@pytest.mark.parametrize("indent", [None, 2])
def test_blanks_do_not_count(indent: int | None) -> None:
    """The same session with and without blanks, as two commands print it, has the same entries."""
    spread = json.dumps(json.loads(exported(*COMPACTED)), indent=indent).encode()
    assert read_recording(spread).entries == read_recording(exported(*COMPACTED)).entries


# -- writing -----------------------------------------------------------------------------------------------------------


def ours() -> Recording:
    """Return a log of our own: an image, a sealed thought, calls, results, a compaction that keeps two messages."""
    log = RecordingBuilder()

    def said(*parts: Any, role: Any = "user") -> MessageEntry:
        return MessageEntry(make_sized_message(Message(role, parts), "", None))

    one = log.add_entry("u1", None, said(Text("one"), Media("image", "image/png", 2, "", "aGk=")), AT, 1)
    thought = Thinking("hm", ProviderSignature("anthropic", "model-x", "sig"))
    call = said(thought, Text("I look"), ToolCall("c1", "bash", '{"a":1}'), ToolCall("c2", "ls"), role="assistant")
    two = log.add_answer("a1", one, call, CallMetadata("model-x", Usage(100, 5, 40, 30), "tool_use", 2), AT, 2)
    shot = Media("image", "image/png", 2, "", "aGk=")
    results = (ToolResult("c1", "bash", (Text("out"),), is_error=True), ToolResult("c2", "ls", (Text("f"), shot)))
    three = log.add_entry("r1", two, said(*results, role="tool"), AT, 3)
    cut = log.add_entry(
        "k1",
        three,
        CompactionEntry(first_kept=1, summary=Message.from_text("user", "what was"), head_tokens=4),
        AT + 4,
        4,
    )
    leaf = log.add_entry("u2", cut, said(Text("next")), AT + 5, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


def test_a_log_of_our_own() -> None:
    """Messages, usage, seals, files and a compaction of ours become opencode's, and mean the same there."""
    first, second = ours(), read_recording(export_bytes(ours(), "opencode-json"))
    assert shown(second) == shown(first)
    assert told(second) == told(first)
    assert [(step.model, step.usage) for step in list_model_calls(second)] == [("model-x", Usage(100, 5, 40, 30))]
    before, after = (
        [
            entry.body.sized_message.message
            for entry in get_full_history_entries(one)
            if isinstance(entry.body, MessageEntry)
        ]
        for one in (first, second)
    )
    assert after == before
    assert (second.cwd, second.api, second.problems) == ("/w", "anthropic", ())


def test_ids_sort_as_the_messages_do() -> None:
    """opencode sorts by time and id and compares ids: both grow from message to message and from part to part."""
    messages = json.loads(export_bytes(ours(), "opencode-json"))["messages"]
    times = [one["info"]["time"]["created"] for one in messages]
    ids = [one["info"]["id"] for one in messages]
    assert times == sorted(set(times))
    assert ids == sorted(set(ids))
    for one in messages:
        parts = [part["id"] for part in one["parts"]]
        assert parts == sorted(set(parts))
    assert [one["info"]["role"] for one in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[2]["parts"][0]["tail_start_id"] == ids[1]


def test_what_goes_on_behind_a_session_of_opencode_sorts_behind_it() -> None:
    """New messages behind recorded ones get later ids, whatever their time."""
    first = read_recording(exported(message(0xFFFF00000000, "user", words("late"))))
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


def test_a_call_without_a_result_was_interrupted() -> None:
    """Where the way ends before the result, opencode is told what it tells itself."""
    recording = read_recording(exported(*TALK))
    answer = next(entry for entry in recording.entries if isinstance(entry.body, AnswerEntry))
    cut = Recording("opencode", entries=recording.entries, leaf=answer.id)
    (_, last) = json.loads(export_bytes(cut, "opencode-json"))["messages"]
    assert last["parts"][2]["state"]["status"] == "error"
    assert "interrupted" in last["parts"][2]["state"]["error"]


def test_a_shortened_result_is_written_short() -> None:
    """With decisions in force applied, the part holds the words that are shown now; the rest stays as it was."""
    first = read_recording(exported(TALK[0], message(2, "assistant", START, ran("a", "long " * 500), END), TALK[2]))
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
    lambda one: st.lists(one, max_size=2) | st.dictionaries(_TEXT, one, max_size=2),
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
def test_any_document_becomes_a_tree_that_can_be_written(messages: list[Any], about: dict[str, Any]) -> None:
    """Whatever a document says: ids are unique, parents come first, it is stored, written in both forms, read again."""
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


def test_numbers_that_nothing_can_count() -> None:
    """Times and tokens beyond all that a database holds count as not told."""
    odd = json.dumps(TALK).replace(str(AT), "1e300").replace("50", "-1").replace('"output": 7', '"output": 1e99')
    recording = read_recording(exported(*json.loads(odd)))
    with open_store(":memory:") as store:
        store.import_entries("s", recording.entries, leaf=recording.leaf)
    assert [step.usage.output for step in list_model_calls(recording)] == [3, 3]
    assert build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording)))


def test_ids_that_are_taken() -> None:
    """Where a document uses an id twice, the second message gets another, and so do its parts."""
    data = exported(TALK[0], TALK[2], TALK[0])
    ids = [one["info"]["id"] for one in json.loads(export_bytes(read_recording(data), "opencode-json"))["messages"]]
    assert (len(set(ids)), ids[:2]) == (3, ["msg_000000000001", "msg_000000000003"])


def test_raws_are_json() -> None:
    """The origin of a message is what opencode has, without the output that stands in the result."""
    (_, answer, *_) = [
        entry.body for entry in read_recording(exported(*TALK)).entries if isinstance(entry.body, MessageEntry)
    ]
    assert isinstance(answer.recording_envelope, Raw)
    assert json.loads(bytes(answer.recording_envelope))["parts"][2]["state"]["output"] is None
