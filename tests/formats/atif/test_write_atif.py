"""Logs are written as trajectories in ATIF that pass a strict check, and read back as the same conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.formats import (
    Recording,
    apply_decisions_to_messages,
    build_state_at_leaf,
    export_bytes,
    export_with_loss_notes,
    get_full_history_entries,
    list_model_calls,
    read_recording,
)
from holdfast.formats.atif.read import read_atif_segments
from holdfast.formats.atif.write import write_atif, write_atif_segments
from holdfast.formats.base import STALE_USAGE_BASIS, SYNTHETIC
from holdfast.formats.common.log import CallMetadata, RecordingBuilder
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    MessageEntry,
    Usage,
)
from holdfast.state.view import build_projection
from tests.support.atif_rules import find_atif_faults

PICTURE = Media("image", "image/png", 0, "", "https://example.org/a.png", None, "url")
SOUND = Media("audio", "audio/wav", 0, "", "https://example.org/a.wav", None, "url")


def build_log(*bodies: Any, model: str = "model-x") -> Recording:
    """Return a log of Holdfast with these bodies in a row; an answer is a pair of its message and its call."""
    log = RecordingBuilder()
    leaf: str | None = None
    for number, body in enumerate(bodies):
        at = 1_700_000_000_000 + number
        if isinstance(body, tuple):
            message, call = body
            leaf = log.add_answer(f"e{number}", leaf, MessageEntry(build_sized_message(message)), call, at)
        elif isinstance(body, Message):
            leaf = log.add_entry(f"e{number}", leaf, MessageEntry(build_sized_message(body)), at)
        else:
            leaf = log.add_entry(f"e{number}", leaf, body, at)
    return log.finish_recording(Recording("holdfast", "S", model=model, leaf=leaf))


def flatten(messages: Any) -> list[bytes]:
    """Return what messages say, one result a message: ATIF has no groups of results."""
    digests = []
    for message in messages:
        rest = tuple(part for part in message.parts if not isinstance(part, ToolResult))
        for result in message.results:
            digests.append(build_sized_message(Message("tool", (result,))).digest)
        if rest or not message.results:
            role = "user" if message.role == "tool" else message.role
            digests.append(build_sized_message(Message(role, rest)).digest)
    return digests


def list_history(recording: Recording) -> list[bytes]:
    entries = get_full_history_entries(recording)
    return flatten(
        entry.body.sized_message.message
        for entry in entries
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    )


def list_shown(recording: Recording) -> list[bytes]:
    return flatten(item.message for item in build_projection(build_state_at_leaf(recording)))


def write(recording: Recording) -> dict[str, Any]:
    """Return the trajectory that is written, which must be valid."""
    document: dict[str, Any] = json.loads(export_bytes(recording, "atif"))
    assert find_atif_faults(document) == []
    return document


CALLED = Message("assistant", (Text("I look."), ToolCall("c1", "bash", '{"command": "ls"}')))
USED = CallMetadata("model-y", Usage(100, 9, 40, 30, 4, 0, 10), "tool_use")
SESSION = build_log(
    Message.from_text("system", "Be brief."),
    Message.from_text("user", "List."),
    (CALLED, USED),
    Message("tool", (ToolResult("c1", "bash", (Text("a.py"),)),)),
    (Message.from_text("assistant", "Done."), CallMetadata("model-x")),
)


def test_write_makes_a_step_of_an_answer_and_its_results() -> None:
    """The shape that readers expect: calls and results in the step of the answer, metrics and totals beside them."""
    document = write(SESSION)
    assert (document["schema_version"], document["session_id"]) == ("ATIF-v1.7", "S")
    assert document["agent"] == {"name": "holdfast", "version": "unknown", "model_name": "model-x"}
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    step = document["steps"][2]
    assert step["message"] == "I look."
    call = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}
    assert (step["tool_calls"], step["model_name"], step["llm_call_count"]) == ([call], "model-y", 1)
    assert step["observation"] == {"results": [{"source_call_id": "c1", "content": "a.py"}]}
    extra = {"reasoning_tokens": 4, "cache_creation_input_tokens": 30, "cache_creation_1h_input_tokens": 10}
    assert step["metrics"] == {
        "prompt_tokens": 100,
        "completion_tokens": 9,
        "cached_tokens": 40,
        "extra": {name: value for name, value in extra.items() if name in step["metrics"]["extra"]},
    }
    assert (document["final_metrics"]["total_prompt_tokens"], document["final_metrics"]["total_steps"]) == (100, 4)


def test_write_and_read_give_the_same_session() -> None:
    """Read again: the same messages, usage, stop reasons and model; written again: the same bytes."""
    data = export_bytes(SESSION, "atif")
    again = read_recording(data)
    assert list_history(again) == list_history(SESSION)
    calls = [[(step.model, step.usage, step.stop) for step in list_model_calls(one)] for one in (again, SESSION)]
    assert calls[0] == calls[1]
    assert (again.session, again.problems, again.skipped_counts) == ("S", (), {})
    assert export_bytes(again, "atif") == data


@pytest.mark.parametrize("answer_role", ["user", "tool"])
def test_write_keeps_late_and_orphan_results(answer_role: Any) -> None:
    """A result that stands elsewhere than behind its call has no call in its step; its id is kept beside it."""
    late = Message(answer_role, (ToolResult("c1", "bash", (Text("late"),), is_error=True),))
    log = build_log((CALLED, USED), Message.from_text("user", "wait"), late)
    document = write(log)
    (result,) = document["steps"][2]["observation"]["results"]
    assert result == {"content": "late", "extra": {"holdfast": {"call_id": "c1", "name": "bash", "is_error": True}}}
    assert list_history(read_recording(json.dumps(document).encode())) == list_history(log)
    first = build_log(late)
    assert list_history(read_recording(json.dumps(write(first)).encode())) == list_history(first)


def test_write_keeps_arguments_that_are_no_object() -> None:
    """ATIF requires an object; other arguments, and ids that are empty or repeat, are kept beside the call."""
    calls = (ToolCall("c", "a", "[1]"), ToolCall("c", "b", "cut {"), ToolCall("", "d", ' {"x": 1}'))
    log = build_log(Message("assistant", calls), Message("tool", (ToolResult("c", "a"), ToolResult("c", "b"))))
    document = write(log)
    assert [call["arguments"] for call in document["steps"][0]["tool_calls"]] == [
        {"_raw": "[1]"},
        {"_raw": "cut {"},
        {"x": 1},
    ]
    again = read_recording(json.dumps(document).encode())
    assert list_history(again) == list_history(log)


def test_write_keeps_the_order_of_parts_and_signatures() -> None:
    """Thinking between texts, redacted thinking and signatures of calls come back as they were."""
    seal = ProviderSignature("anthropic", "m", "sig")
    redacted = Raw(b'{"type":"redacted_thinking","data":"xyz"}')
    parts = (
        Thinking("first", seal),
        Text("one"),
        Thinking("", ProviderSignature("anthropic", "m", "xyz"), redacted),
        ToolCall("c1", "bash", "{}", ProviderSignature("gemini", "", "thought")),
        Text("two"),
    )
    log = build_log(Message("assistant", parts))
    again = read_recording(json.dumps(write(log)).encode())
    (entry, _interrupted) = [entry for entry in again.entries if isinstance(entry.body, MessageEntry)]
    assert entry.body.sized_message.message.parts == parts


def test_write_drops_an_order_that_no_longer_fits() -> None:
    """A step that somebody changed is read in the usual order."""
    parts = (Text("one"), Thinking("first"), Text("two"))
    document = write(build_log(Message("assistant", parts)))
    document["steps"][0]["message"] = "changed"
    (entry,) = [
        entry for entry in read_recording(json.dumps(document).encode()).entries if isinstance(entry.body, MessageEntry)
    ]
    assert entry.body.sized_message.message.parts == (Thinking("first"), Text("changed"))


def test_write_refers_to_files_and_reports_data() -> None:
    """Pictures and sound by address are references, sound in version 1.8; data has no place and is reported."""
    log = build_log(Message("user", (Text("see"), PICTURE)))
    assert write(log)["steps"][0]["message"][1] == {
        "type": "image",
        "source": {"media_type": "image/png", "path": "https://example.org/a.png"},
    }
    with_sound = build_log(Message("user", (Text("hear"), SOUND)))
    document = write(with_sound)
    assert document["schema_version"] == "ATIF-v1.8"
    again = read_recording(json.dumps(document).encode())
    assert list_history(again) == list_history(with_sound)
    assert write(again)["schema_version"] == "ATIF-v1.8"
    data = build_log(Message("user", (Text("see"), Media("image", "image/png", 2, "", "aGk="))))
    result = export_with_loss_notes(data, "atif")
    assert result.left_out == ("1 × image: a line or nothing stands there",)
    assert b"[Attached image/png]" in result.data
    assert export_with_loss_notes(log, "atif").left_out == ()


def test_write_counts_no_call_for_answers_of_the_tool() -> None:
    """An answer that no model gave says so; usage that is no size is marked."""
    own = (Message.from_text("assistant", "interrupted"), CallMetadata("", stop=SYNTHETIC))
    stale = (Message.from_text("assistant", "paid"), CallMetadata("m", Usage(50, 5), has_stale_usage=True))
    log = build_log(Message.from_text("user", "go"), own, stale)
    document = write(log)
    assert document["steps"][1]["llm_call_count"] == 0
    again = read_recording(json.dumps(document).encode())
    (call,) = list_model_calls(again)
    assert call.usage == Usage(50, 5)
    bases = [entry.body.prefix_digest for entry in again.entries if type(entry.body).__name__ == "AnswerEntry"]
    assert bases == ["", STALE_USAGE_BASIS]
    assert write(again) == write(log)


def test_write_gives_an_empty_log_one_step() -> None:
    """A trajectory has at least one step; it holds nothing that a reader would show."""
    again = read_recording(json.dumps(write(Recording("holdfast"))).encode())
    assert list_history(again) == []


def compact(first_kept: int, text: str = "so far", **more: Any) -> CompactionEntry:
    return CompactionEntry(first_kept, Message.from_text("user", text), trigger="manual", author="model", **more)


COMPACTED = build_log(
    Message.from_text("system", "Be brief."),
    Message.from_text("user", "List."),
    (CALLED, USED),
    Message("tool", (ToolResult("c1", "bash", (Text("a.py"),)),)),
    Message.from_text("user", "And now?"),
    compact(4, tokens_before=900, tokens_after=90),
    (Message.from_text("assistant", "More."), USED),
    Message.from_text("user", "Last."),
    compact(6, "in short", restated=(1,)),
    (Message.from_text("assistant", "Done."), USED),
)


def test_write_makes_a_step_of_a_compaction() -> None:
    """The whole history stays; a step of the system has the summary, and what is needed to show the same context."""
    document = write(COMPACTED)
    (first, second) = [step for step in document["steps"] if "compaction" in step.get("extra", {}).get("holdfast", {})]
    assert (first["source"], first["message"]) == ("system", "so far")
    assert first["extra"]["holdfast"]["compaction"]["kept_messages"] == 1
    assert second["extra"]["holdfast"]["compaction"]["restated"] == [1]
    again = read_recording(json.dumps(document).encode())
    assert list_history(again) == list_history(COMPACTED)
    assert list_shown(again) == list_shown(COMPACTED)
    bodies = [
        [entry.body for entry in one.entries if isinstance(entry.body, CompactionEntry)] for one in (again, COMPACTED)
    ]
    for read_body, body in zip(*bodies, strict=True):
        assert (read_body.trigger, read_body.author, read_body.tokens_before) == (
            body.trigger,
            body.author,
            body.tokens_before,
        )
    assert write(again) == write(COMPACTED)


def test_write_segments_end_a_file_at_each_compaction() -> None:
    """Each file goes on in the next, which begins with the context after the compaction, copied and without metrics."""
    files = write_atif_segments(COMPACTED, "trajectory.json")
    assert [name for name, _ in files] == ["trajectory.json", "trajectory.cont-1.json", "trajectory.cont-2.json"]
    documents = [json.loads(data) for _, data in files]
    assert [find_atif_faults(document) for document in documents] == [[], [], []]
    assert [document.get("continued_trajectory_ref") for document in documents] == [
        "trajectory.cont-1.json",
        "trajectory.cont-2.json",
        None,
    ]
    assert [document["session_id"] for document in documents] == ["S", "S-cont-1", "S-cont-2"]
    assert documents[1]["agent"]["extra"] == {"continuation_index": 1}
    copied = [step["message"] for step in documents[1]["steps"] if step.get("is_copied_context")]
    assert copied == ["Be brief.", "so far", "And now?"]
    again = read_atif_segments([data for _, data in files])
    assert list_history(again) == list_history(COMPACTED)
    assert list_shown(again) == list_shown(COMPACTED)
    assert len(list_model_calls(again)) == 3
    assert again.problems == ()
    assert again.session == "S"


def test_write_segments_without_compaction_are_one_file() -> None:
    """The one file is the usual one; a name without an ending works too."""
    assert write_atif_segments(SESSION, "run") == [("run", export_bytes(SESSION, "atif"))]
    assert [name for name, _ in write_atif_segments(COMPACTED, "run")] == ["run", "run.cont-1", "run.cont-2"]


def test_write_embeds_sub_agents() -> None:
    """Conversations of sub-agents are trajectories inside, each under an id of its own."""
    sides = (replace(SESSION, session="a"), replace(SESSION, session="a"), replace(SESSION, session=""))
    recording = replace(SESSION, sidechains=sides)
    document = write(recording)
    assert [side["trajectory_id"] for side in document["subagent_trajectories"]] == ["a", "a-2", "sub-agent-3"]
    again = read_recording(json.dumps(document).encode())
    assert [list_history(side) for side in again.sidechains] == [list_history(SESSION)] * 3
    assert export_with_loss_notes(recording, "atif").left_out == ()
    assert write(again) == write(recording)


def test_write_reduced_shows_shortened_results() -> None:
    """With decisions applied, the step is written anew and holds the short text."""
    read = read_recording(export_bytes(SESSION, "atif"))
    short = ToolResult("c1", "bash", (Text("short"),))
    log = RecordingBuilder()
    leaf = None
    for entry in read.entries:
        leaf = log.add_entry(entry.id, leaf, entry.body, entry.time_ms)
    leaf = log.add_entry("d", leaf, DecisionEntry((Edit(Span(3, 4, 0), (short,), "trim"),)))
    edited = log.finish_recording(replace(read, leaf=leaf))
    document = json.loads(export_bytes(apply_decisions_to_messages(edited), "atif"))
    assert find_atif_faults(document) == []
    assert document["steps"][2]["observation"]["results"][0]["content"] == "short"
    again = read_recording(json.dumps(document).encode())
    results = [item.message.results[0] for item in build_projection(build_state_at_leaf(again)) if item.message.results]
    assert [get_result_text(result) for result in results] == ["short"]


def test_write_keeps_branch_summaries() -> None:
    """A summary of another branch is a step of the user that is read as what it is."""
    summary = BranchSummaryEntry(build_sized_message(Message.from_text("user", "tried")), "x1")
    log = build_log(Message.from_text("user", "go"), summary)
    again = read_recording(json.dumps(write(log)).encode())
    (found,) = [entry.body for entry in again.entries if isinstance(entry.body, BranchSummaryEntry)]
    assert (found.sized_message.message.text, found.source_id) == ("tried", "x1")


_TEXTS = st.text(st.sampled_from("ab\n é\u2028\U0001f600"), max_size=4)
_SIGNATURES = st.none() | st.builds(ProviderSignature, st.just("gemini"), st.just("m"), _TEXTS)
_IDS = st.sampled_from(["c1", "c2", ""])
_ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "[]", "cut {", "", ' {"a":1} ', "\\"]) | _TEXTS
_CALLS = st.builds(ToolCall, _IDS, st.just("bash"), _ARGUMENTS, _SIGNATURES)
_WORDS = st.builds(Text, _TEXTS)
_FILES = st.sampled_from([PICTURE, SOUND])
_RESULTS = st.builds(
    ToolResult, _IDS, st.just("bash"), st.lists(_WORDS | _FILES, max_size=3).map(tuple), is_error=st.booleans()
)
_ANSWERS = st.lists(
    st.builds(Thinking, _TEXTS, _SIGNATURES) | st.builds(Text, _TEXTS, _SIGNATURES) | _CALLS, max_size=5
)
_MESSAGES = (
    st.builds(Message, st.just("assistant"), _ANSWERS.map(tuple))
    | st.builds(Message, st.just("tool"), st.lists(_RESULTS, min_size=1, max_size=3).map(tuple))
    | st.builds(Message, st.just("user"), st.lists(_WORDS | _FILES | _RESULTS, max_size=3).map(tuple))
    | st.builds(Message, st.just("system"), st.lists(_WORDS, max_size=2).map(tuple))
)


def insert_compactions(messages: list[Message], places: list[tuple[int, int]]) -> list[Any]:
    """Return messages with compactions between them: each a place and what it keeps, in range and in order."""
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    bodies: list[Any] = list(messages)
    first_kept = leading
    cuts = []
    for place, kept in sorted(places):
        # System messages at the beginning always stay, and no compaction shows again what another one hides.
        stop = max(place, leading)
        if stop <= len(messages):
            first_kept = max(first_kept, min(kept + leading, stop))
            cuts.append((stop, compact(first_kept, f"summary {place}")))
    for stop, body in reversed(cuts):
        bodies.insert(stop, body)
    return bodies


_HISTORIES = st.lists(_MESSAGES, max_size=8)
_PLACES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=2, unique_by=lambda pair: pair[0])


def build_answered_log(messages: list[Message], places: list[tuple[int, int]]) -> Recording:
    bodies = insert_compactions(messages, places)
    return build_log(*[(body, USED) if getattr(body, "role", "") == "assistant" else body for body in bodies])


@given(_HISTORIES, _PLACES)
def test_write_and_read_give_the_same_messages_for_any_log(
    messages: list[Message], places: list[tuple[int, int]]
) -> None:
    """Any messages, whatever is wrong with them, are written as a valid trajectory and come back as they were."""
    log = build_answered_log(messages, places)
    data = write_atif(log)
    assert find_atif_faults(json.loads(data)) == []
    again = read_recording(data)
    assert list_history(again) == list_history(log)
    assert list_shown(again) == list_shown(log)
    assert [step.usage for step in list_model_calls(again)] == [step.usage for step in list_model_calls(log)]
    assert again.problems == ()
    assert write_atif(again) == data


@given(_HISTORIES, _PLACES)
def test_segments_give_the_same_context_for_any_log(messages: list[Message], places: list[tuple[int, int]]) -> None:
    """Files that go on in each other are valid one by one, and joined they are the history and the context again."""
    log = build_answered_log(messages, places)
    files = write_atif_segments(log, "t.json")
    for _, data in files:
        assert find_atif_faults(json.loads(data)) == []
    again = read_atif_segments([data for _, data in files])
    assert list_history(again) == list_history(log)
    assert list_shown(again) == list_shown(log)
    # Steps that came from ATIF are copied; the copies were paid for in the file before.
    for _, data in write_atif_segments(again, "t.json"):
        assert find_atif_faults(json.loads(data)) == []


def test_write_keeps_references_to_files_beside_the_trajectory() -> None:
    """A picture that lies beside the file is no picture for a provider; the reference is written back."""
    raw = Raw(b'{"type":"image","source":{"media_type":"image/png","path":"images/a.png"}}')
    log = build_log(Message("user", (Text("see"), Opaque("image", raw))))
    assert write(log)["steps"][0]["message"][1] == json.loads(bytes(raw))
    assert b"images/a.png" not in export_bytes(log, "anthropic")
