"""Trajectories in ATIF, read as conversations. All samples are made up in the shapes that tools write."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, UnrecognizedContent
from holdfast.formats import (
    EXPORT_FORMATS,
    Recording,
    build_state_at_leaf,
    export_bytes,
    get_full_history_entries,
    list_model_calls,
    read_recording,
    select_new_entries,
)
from holdfast.formats.atif.read import read_atif_segments
from holdfast.formats.base import STALE_USAGE_BASIS
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Opaque, Thinking
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    MessageEntry,
    RequestSetup,
    Usage,
)
from holdfast.state.view import build_projection
from tests.support.atif_rules import find_atif_faults

TIME = "2026-03-01T10:00:00.000Z"


def step(source: str, message: Any, **more: Any) -> dict[str, Any]:
    return {"source": source, "timestamp": TIME, "message": message} | more


def agent(message: str, *call_ids: str, results: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    calls = [{"tool_call_id": id_, "function_name": "bash", "arguments": {"command": id_}} for id_ in call_ids]
    fields: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if results is not None:
        fields["observation"] = {"results": results}
    return step("agent", message, **fields, **more)


def build(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": number} | item for number, item in enumerate(steps, 1)]
    agent_fields = {"name": "tool", "version": "1", "model_name": "model-x"}
    return {"schema_version": "ATIF-v1.7", "session_id": "s1", "agent": agent_fields, "steps": numbered} | more


def read(*steps: dict[str, Any], **more: Any) -> Recording:
    return read_recording(json.dumps(build(*steps, **more)).encode())


def list_messages(recording: Recording) -> list[str]:
    """Return the history in short form: role and text, calls as !id, results as =id and their text."""
    entries = get_full_history_entries(recording)
    return [_shorten(entry.body.sized_message.message) for entry in entries if isinstance(entry.body, MessageEntry)]


def list_shown(recording: Recording) -> list[str]:
    return [_shorten(item.message) for item in build_projection(build_state_at_leaf(recording))]


def _shorten(message: Any) -> str:
    marks = [f"!{item.id}" for item in message.calls]
    marks += [f"={item.call_id} {get_result_text(item)}" for item in message.results]
    return " ".join([message.role, *filter(None, [message.text]), *marks])


def test_read_makes_messages_of_steps() -> None:
    """A step of the agent is an answer and its results; the model is the step's, else the agent's."""
    recording = read(
        step("system", "Be brief."),
        step("user", "List."),
        agent("I look.", "c1", results=[{"source_call_id": "c1", "content": "a.py"}], reasoning_content="hm"),
        agent("Done.", model_name="model-y"),
    )
    assert list_messages(recording) == [
        "system Be brief.",
        "user List.",
        "assistant I look. !c1",
        "tool =c1 a.py",
        "assistant Done.",
    ]
    assert [call.model for call in list_model_calls(recording)] == ["model-x", "model-y"]
    assert (recording.format, recording.session, recording.model) == ("atif", "s1", "model-y")
    answer = next(entry.body for entry in recording.entries if isinstance(entry.body, AnswerEntry))
    assert answer.usage == Usage()
    messages = [entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    assert messages[2].parts[0] == Thinking("hm")
    assert recording.entries[-1].time_ms == 1_772_359_200_000


def test_read_assigns_results_without_a_call() -> None:
    """A result without a call belongs to the open one; one for several calls is the outcome of the last of them."""
    one = [{"content": "out"}]
    assert list_messages(read(agent("a", "c1", results=one))) == ["assistant a !c1", "tool =c1 out"]
    assert list_messages(read(agent("a", "c1", "c2", results=one))) == [
        "assistant a !c1 !c2",
        "tool =c1 ",
        "tool =c2 out",
    ]
    both = [{"content": "x"}, {"content": "y"}]
    assert list_messages(read(agent("a", "c1", "c2", results=both)))[1:] == ["tool =c1 x", "tool =c2 y"]
    named = [{"content": "x"}, {"source_call_id": "c1", "content": "y"}]
    assert list_messages(read(agent("a", "c1", "c2", results=named)))[1:] == ["tool =c2 x", "tool =c1 y"]
    assert list_messages(read(agent("a", results=one)))[1:] == ["user out"]
    assert list_messages(read(step("system", "", observation={"results": one}))) == ["user out"]
    missing = [{"source_call_id": "gone", "content": "x"}]
    assert list_messages(read(agent("a", "c1", results=missing)))[1:] == ["tool =gone x"]


def test_read_counts_cached_tokens_in_the_prompt() -> None:
    """The prompt includes what came from the cache. A sum over several calls is paid, but no size of a request."""
    metrics = {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 60, "cost_usd": 0.1}
    recording = read(agent("a", metrics=metrics), agent("b", metrics=metrics, llm_call_count=3))
    assert [call.usage for call in list_model_calls(recording)] == [Usage(100, 7, 60)] * 2
    answers = [entry.body.prefix_digest for entry in recording.entries if isinstance(entry.body, AnswerEntry)]
    assert answers == ["", STALE_USAGE_BASIS]


def test_read_takes_no_call_from_copied_and_own_steps() -> None:
    """Copied steps were answered elsewhere, and a step without any model call was written by the tool."""
    recording = read(
        step("user", "go", is_copied_context=True),
        agent("old", is_copied_context=True),
        agent("own", llm_call_count=0),
        agent("new"),
    )
    assert list_messages(recording) == ["user go", "assistant old", "assistant own", "assistant new"]
    assert len(list_model_calls(recording)) == 1


def test_read_measures_tools() -> None:
    """Definitions of tools are part of each request; their size is known."""
    tools = [{"type": "function", "function": {"name": "bash", "description": "Runs a command. " * 20}}]
    recording = read(step("user", "go"), agent={"name": "t", "version": "1", "tool_definitions": tools})
    (setup,) = [entry.body for entry in recording.entries if isinstance(entry.body, RequestSetup)]
    assert setup.tokens > 50


def test_read_keeps_files_by_reference() -> None:
    """A file at an address can be sent on; one beside the trajectory, and an unknown part, is kept and not sent."""
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"media_type": "image/png", "path": "https://example.org/a.png"}},
        {"type": "image", "source": {"media_type": "image/png", "path": "images/a.png"}},
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav", "duration_sec": 2}},
        {"type": "hologram", "x": 1},
    ]
    document = build(step("user", parts), schema_version="ATIF-v1.8")
    recording = read_recording(json.dumps(document).encode())
    (entry,) = [entry for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    kinds = [(type(part), getattr(part, "kind", "")) for part in entry.body.sized_message.message.parts]
    assert kinds[1:] == [(Media, "image"), (Opaque, "image"), (Opaque, "audio"), (Opaque, "hologram")]
    assert json.loads(export_bytes(recording, "atif"))["steps"] == document["steps"]
    for name in set(EXPORT_FORMATS) - {"atif"}:
        assert b"images/a.png" not in export_bytes(recording, name)


def test_read_keeps_embedded_sub_agents() -> None:
    """Sub-agents, and theirs, are conversations of their own; a reference to them stays in its step."""
    inner = build(step("user", "inner"), trajectory_id="t2")
    side = build(step("user", "sub"), agent("done"), trajectory_id="t1", subagent_trajectories=[inner])
    reference = [{"source_call_id": "c1", "subagent_trajectory_ref": [{"trajectory_id": "t1"}]}]
    recording = read(agent("ask", "c1", results=reference), subagent_trajectories=[side, {"trajectory_id": "empty"}])
    assert [one.session for one in recording.sidechains] == ["t1", "t2"]
    assert [list_messages(one)[0] for one in recording.sidechains] == ["user sub", "user inner"]
    assert "subagent_trajectories[1] has no steps" in recording.problems[0].reason
    written = json.loads(export_bytes(recording, "atif"))
    assert written["steps"][0]["observation"]["results"] == reference
    assert find_atif_faults(written) == []


def test_read_takes_compactions_of_pi() -> None:
    """A converted session of pi has its summaries as steps of the agent; they are no answers."""
    recording = read(
        step("user", "one"),
        agent("two"),
        agent("what was", llm_call_count=1, extra={"pi_event_type": "compaction", "tokens_before": 900}),
        agent("tried", extra={"pi_event_type": "branch_summary"}),
        step("user", "three"),
    )
    assert list_messages(recording) == ["user one", "assistant two", "user three"]
    assert list_shown(recording) == ["user what was", "user tried", "user three"]
    (compaction,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (compaction.tokens_before, compaction.author) == (900, "model")
    assert any(isinstance(entry.body, BranchSummaryEntry) for entry in recording.entries)
    assert "does not say what it kept" in recording.problems[0].reason
    written = json.loads(export_bytes(recording, "atif"))
    assert [item["message"] for item in written["steps"]] == ["one", "two", "what was", "tried", "three"]
    assert written["steps"][2]["extra"] == {"pi_event_type": "compaction", "tokens_before": 900}


REPLACED = {"context_management": {"type": "compaction", "boundary": "replace"}}


def test_read_takes_the_message_behind_a_compaction_as_its_summary() -> None:
    """Terminus and Vibe mark where the context was replaced; the message behind the mark stands for all before."""
    reference = [{"subagent_trajectory_ref": [{"trajectory_path": "summary.json"}]}]
    steps = (
        step("user", "one"),
        agent("two"),
        step("system", "Performed it.", extra=REPLACED, observation={"results": reference}),
        step("user", "handoff"),
        agent("three"),
    )
    recording = read(*steps)
    assert list_messages(recording) == ["user one", "assistant two", "assistant three"]
    assert list_shown(recording) == ["user handoff", "assistant three"]
    assert recording.problems == ()
    document = build(*steps)
    assert json.loads(export_bytes(recording, "atif")) == document
    alone = read(*steps[:3], steps[4])
    assert list_shown(alone) == ["assistant three"]
    assert "does not say what it kept" in alone.problems[0].reason


def test_read_takes_sidechains_out_of_the_conversation() -> None:
    """Steps of Claude Code's sub-agents stand among the others, told apart by what is beside them."""
    side = {"is_sidechain": True, "agent_id": "ab"}
    recording = read(
        step("user", "go", extra={"is_sidechain": False}),
        step("user", "sub", extra=side),
        agent("ask"),
        agent("sub done", extra=side),
        step("user", "other", extra={"is_sidechain": True}),
    )
    assert list_messages(recording) == ["user go", "assistant ask"]
    assert [one.session for one in recording.sidechains] == ["ab", "sidechain"]
    assert list_messages(recording.sidechains[0]) == ["user sub", "assistant sub done"]
    assert [call.model for call in list_model_calls(recording.sidechains[0])] == ["model-x"]
    written = json.loads(export_bytes(recording, "atif"))
    assert find_atif_faults(written) == []
    assert [len(one["steps"]) for one in (written, *written["subagent_trajectories"])] == [2, 2, 1]


FIRST = build(
    step("system", "Be brief."),
    step("user", "List."),
    agent("I look.", "c1", results=[{"source_call_id": "c1", "content": "a.py"}]),
    step("user", "And now?"),
    continued_trajectory_ref="t.cont-1.json",
)
SECOND = build(
    step("system", "Be brief.", is_copied_context=True),
    step("user", "List.", is_copied_context=True),
    step("user", "Summary of the work.", is_copied_context=True),
    step("user", "And now?", is_copied_context=True),
    agent("Done."),
    session_id="s1-cont-1",
)


def test_read_segments_finds_the_compaction_between_files() -> None:
    """What the second file repeats was kept or is shown again; what is new in its beginning is the summary."""
    joined = read_atif_segments([json.dumps(FIRST).encode(), json.dumps(SECOND).encode()])
    assert list_messages(joined) == [
        "system Be brief.",
        "user List.",
        "assistant I look. !c1",
        "tool =c1 a.py",
        "user And now?",
        "assistant Done.",
    ]
    (compaction,) = [entry.body for entry in joined.entries if isinstance(entry.body, CompactionEntry)]
    assert (compaction.first_kept, compaction.restated) == (4, (1,))
    assert list_shown(joined) == [
        "system Be brief.",
        "user Summary of the work.",
        "user List.",
        "user And now?",
        "assistant Done.",
    ]
    assert (joined.session, joined.problems) == ("s1", ())
    assert len(list_model_calls(joined)) == 2
    written = json.loads(export_bytes(joined, "atif"))
    assert find_atif_faults(written) == []
    assert "continued_trajectory_ref" not in written


def test_read_segments_without_copied_steps_go_on() -> None:
    """A file that copies nothing goes on where the one before ends."""
    second = build(agent("Done."))
    joined = read_atif_segments([json.dumps(FIRST).encode(), json.dumps(second).encode()])
    assert list_messages(joined)[-2:] == ["user And now?", "assistant Done."]
    assert list_shown(joined) == list_messages(joined)


def test_read_says_when_the_rest_is_missing() -> None:
    """A file alone is read as far as it goes, and keeps its reference; the second one alone is the context it shows."""
    first = read_recording(json.dumps(FIRST).encode())
    assert "goes on in 't.cont-1.json', which was not read" in first.problems[0].reason
    assert json.loads(export_bytes(first, "atif")) == FIRST
    second = read_recording(json.dumps(SECOND).encode())
    assert list_shown(second)[2] == "user Summary of the work."
    assert len(list_model_calls(second)) == 1


def test_read_reports_steps_that_cannot_be_read() -> None:
    """A step of an unknown source is a note with its path; unknown fields are counted; an empty step is nothing."""
    recording = read(step("user", "go", colour="red"), step("critic", "x"), agent("a"), step("user", 7), future=1)
    assert [problem.reason for problem in recording.problems] == [
        "steps[1] is kept as a note: its source 'critic' is not known"
    ]
    assert recording.skipped_counts == {"step.colour": 1, "trajectory.future": 1}
    assert list_messages(recording) == ["user go", "assistant a", "user"]


@pytest.mark.parametrize("document", [{"schema_version": "ATIF-v1.7", "steps": []}, build(steps=None)])
def test_read_refuses_a_trajectory_without_steps(document: dict[str, Any]) -> None:
    """The error says what is missing and what to give."""
    with pytest.raises(UnrecognizedContent, match="ATIF has no steps; give a file of a run that has begun"):
        read_recording(json.dumps(document).encode())


def test_read_writes_steps_back_as_they_were() -> None:
    """Everything in a file that is valid is in the one that is written, whatever Holdfast makes of it."""
    document = build(
        step("system", "Be brief.", extra={"a": 1}),
        agent(
            "x",
            "c1",
            results=[{"source_call_id": "c1", "content": "y", "extra": {"score": 1}}],
            metrics={"prompt_tokens": 5, "completion_tokens": 2, "logprobs": [-0.5], "cost_usd": 0.25},
            reasoning_effort="high",
            extra={"b": [None]},
        ),
        notes="n",
        extra={"c": {}},
        final_metrics={"total_prompt_tokens": 5, "total_steps": 9},
        trajectory_id="t",
    )
    assert find_atif_faults(document) == []
    recording = read_recording(json.dumps(document).encode())
    assert json.loads(export_bytes(recording, "atif")) == document


def test_read_again_adds_only_what_is_new() -> None:
    """A trajectory that has grown has the entries of the shorter one, also if its totals have changed."""
    steps = [step("user", "go"), agent("a", "c1", results=[{"source_call_id": "c1", "content": "x"}]), agent("b")]
    first = read(*steps[:2], final_metrics={"total_steps": 2})
    assert select_new_entries(read(*steps[:2], final_metrics={"total_steps": 2}), first.entries).entries == ()
    grown = read(*steps, final_metrics={"total_steps": 3})
    new = select_new_entries(grown, first.entries)
    assert [entry.body.sized_message.message.text for entry in new.entries if isinstance(entry.body, MessageEntry)] == [
        "b"
    ]
    again = select_new_entries(grown, (*first.entries, *new.entries))
    assert (again.entries, again.leaf) == ((), new.leaf)


_ODD = st.none() | st.integers() | st.text(max_size=2) | st.lists(st.none() | st.just({"x": 1}), max_size=2)
_PARTS = st.sampled_from(
    [
        {"type": "text", "text": "x"},
        {"type": "image", "source": {"media_type": "image/png", "path": "https://example.org/a.png"}},
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}},
        {"type": "text"},
    ]
)
_CONTENT = st.sampled_from(["", "one"]) | st.lists(_PARTS | _ODD, max_size=2) | _ODD
_IDS = st.sampled_from(["c1", "c2"]) | _ODD
_MARKS = st.fixed_dictionaries(
    {},
    optional={
        "parts": st.lists(
            st.sampled_from([{"thinking": 1}, {"content": True}, {"call": True}, {"thinking": -5}, {}]) | _ODD,
            max_size=3,
        ),
        "compaction": st.fixed_dictionaries(
            {}, optional={"kept_messages": st.integers(-2, 9) | _ODD, "restated": st.lists(st.integers(-1, 9)) | _ODD}
        )
        | _ODD,
        "call_id": _IDS,
        "id": _IDS,
        "arguments": _ODD,
        "is_error": st.booleans() | _ODD,
        "has_no_message": st.booleans() | _ODD,
        "branch_summary": _ODD,
        "usage": st.just(STALE_USAGE_BASIS) | _ODD,
        "signature": _ODD | st.just({"api": "gemini", "data": "x"}),
    },
)
_TOOL_EXTRAS = st.sampled_from(
    [
        {"pi_event_type": "compaction"},
        {"pi_event_type": "branch_summary"},
        REPLACED,
        {"is_sidechain": True, "agent_id": "ab"},
        {"context_management": 7, "is_sidechain": 1},
    ]
)
_EXTRAS = st.builds(lambda mark: {"holdfast": mark}, _MARKS) | _ODD | _TOOL_EXTRAS
_CALLS = st.fixed_dictionaries(
    {}, optional={"tool_call_id": _IDS, "function_name": _ODD, "arguments": st.just({"a": 1}) | _ODD, "extra": _EXTRAS}
)
_RESULTS = st.fixed_dictionaries({}, optional={"source_call_id": _IDS, "content": _CONTENT, "extra": _EXTRAS})
_STEPS = st.fixed_dictionaries(
    {"source": st.sampled_from(["system", "user", "agent"]) | _ODD, "message": _CONTENT},
    optional={
        "step_id": _ODD,
        "timestamp": st.just(TIME) | _ODD,
        "tool_calls": st.lists(_CALLS | _ODD, max_size=2) | _ODD,
        "observation": st.fixed_dictionaries({"results": st.lists(_RESULTS | _ODD, max_size=3) | _ODD}) | _ODD,
        "reasoning_content": _ODD,
        "metrics": st.fixed_dictionaries({"prompt_tokens": st.integers(-1, 99) | _ODD}) | _ODD,
        "is_copied_context": st.booleans() | _ODD,
        "llm_call_count": st.integers(-1, 3) | _ODD,
        "extra": _EXTRAS,
    },
)
_DOCUMENTS = st.fixed_dictionaries(
    {
        "schema_version": st.sampled_from(["ATIF-v1.8", "ATIF-v1.2"]) | _ODD,
        "steps": st.lists(_STEPS | _ODD, max_size=5),
    },
    optional={"agent": _ODD | st.just({"name": "a", "tool_definitions": [1]}), "session_id": _ODD, "extra": _ODD},
)


@given(_DOCUMENTS, st.lists(_DOCUMENTS | _ODD, max_size=2) | _ODD, st.lists(_DOCUMENTS, max_size=2))
def test_read_builds_a_valid_tree_from_any_files(
    document: dict[str, Any], embedded: Any, following: list[dict[str, Any]]
) -> None:
    """For any files, ids are unique, parents come first, all exports work, and written files are read the same."""
    first = document | {"subagent_trajectories": embedded}
    try:
        recording = read_atif_segments([json.dumps(one).encode() for one in (first, *following)])
    except UnrecognizedContent:
        return
    for tree in (recording, *recording.sidechains):
        seen: set[str | None] = {None}
        for entry in tree.entries:
            assert entry.parent in seen
            assert entry.id not in seen
            seen.add(entry.id)
    again = read_recording(export_bytes(recording, "atif"))
    assert list_messages(again) == list_messages(recording)
    for name in EXPORT_FORMATS:
        with suppress(HoldfastError):
            export_bytes(recording, name)
