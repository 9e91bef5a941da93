"""Trajectories of mini-swe-agent, read as conversations. All samples are made up in the shapes of versions 1 and 2."""

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
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Thinking
from holdfast.state.entries import MessageEntry, NoteEntry, Usage

SYSTEM = {"role": "system", "content": "You run commands."}
TASK = {"role": "user", "content": "Fix the bug."}
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
EXIT = {"role": "exit", "content": "done", "extra": {"exit_status": "Submitted", "submission": "diff"}}


def call(id_: str, command: str = "ls", **more: Any) -> dict[str, Any]:
    """Return an answer with a tool call, as version 2 writes it by default."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    response = {"model": "model-y", "usage": USAGE, "choices": [{"finish_reason": "tool_calls"}]}
    extra = {"actions": [{"command": command, "tool_call_id": id_}], "cost": 0.1, "timestamp": 1_700_000_000.25}
    fields = {"role": "assistant", "content": None, "function_call": None, "provider_specific_fields": None}
    fields |= {"tool_calls": [{"id": id_, "type": "function", "function": function}]}
    return fields | {"extra": extra | {"response": response}} | more


def result(id_: str, words: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": words, "extra": {"raw_output": words, "returncode": 0}}


def say(words: str, *commands: str, fence: str = "mswea_bash_command") -> dict[str, Any]:
    """Return an answer with commands in its text."""
    blocks = [f"```{fence}\n{command}\n```" for command in commands]
    return {"role": "assistant", "content": "\n\n".join([words, *blocks])}


def output(words: str, **extra: Any) -> dict[str, Any]:
    return {"role": "user", "content": words} | ({"extra": extra} if extra else {})


def build_file(*messages: Any, **more: Any) -> bytes:
    config = {"model": {"model_name": "model-x", "model_kwargs": {"api_key": "secret"}}, "environment": {"cwd": "/w"}}
    info = {"model_stats": {"api_calls": 2}, "config": config, "mini_version": "2.4.6", "exit_status": "Submitted"}
    document = {"info": info, "messages": list(messages), "trajectory_format": "mini-swe-agent-1.1"}
    return json.dumps(document | more, indent=2).encode()


def list_messages(recording: Recording) -> list[str]:
    """Return the history in short form: role and text, calls as !id, results as =id and their text."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{item.id}" for item in message.calls]
            marks += [f"={item.call_id} {get_result_text(item)}" for item in message.results]
            out.append(" ".join([message.role, *filter(None, [message.text]), *marks]))
    return out


def test_read_takes_calls_usage_and_times_from_a_file_of_version_2() -> None:
    """Messages are as sent; model, usage, stop reason and time stand in what the agent keeps beside them."""
    recording = read_recording(build_file(SYSTEM, TASK, call("c1"), result("c1", "a.py"), call("c2"), EXIT))
    assert list_messages(recording) == [
        "system You run commands.",
        "user Fix the bug.",
        "assistant !c1",
        "tool =c1 a.py",
        "assistant !c2",
    ]
    calls = list_model_calls(recording)
    assert [(step.model, step.usage, step.stop, step.at) for step in calls] == [
        ("model-y", Usage(100, 7, 60), "tool_calls", 1_700_000_000_250)
    ] * 2
    assert (recording.format, recording.cwd, recording.api) == ("mini-swe-agent", "/w", "openai-chat")
    assert (recording.skipped_counts, recording.problems) == ({"exit": 1}, ())


def test_read_keeps_no_configuration() -> None:
    """The configuration repeats the messages and may hold keys; how the run ended is kept as a note."""
    recording = read_recording(build_file(TASK, call("c1"), EXIT, instance_id="repo-1"))
    notes = [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert b"secret" not in b"".join(notes)
    assert json.loads(notes[0])["info"]["mini_version"] == "2.4.6"
    assert json.loads(notes[1]) == EXIT
    assert recording.title == "repo-1"


@pytest.mark.parametrize("fence", ["mswea_bash_command", "bash"])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_read_makes_calls_of_commands_in_text(fence: str, *, is_recorded: bool) -> None:
    """The one command in the fence is a call without its text, and the row behind it is its result."""
    answer = say("I look.", "ls -la", fence=fence)
    if is_recorded:
        answer["extra"] = {"actions": [{"command": "ls -la"}]}
    recording = read_recording(build_file(SYSTEM, TASK, answer, output("a.py"), say("Done."), output("thanks")))
    assert list_messages(recording)[2:] == [
        "assistant I look. !call-3",
        "tool =call-3 a.py",
        "assistant Done.",
        "user thanks",
    ]


def test_read_makes_no_call_of_several_commands() -> None:
    """An answer with two commands runs none: what follows is a complaint of the agent."""
    answer = say("Both.", "ls", "pwd")
    recording = read_recording(build_file(TASK, answer, output("one at a time", interrupt_type="FormatError")))
    assert list_messages(recording)[1:] == [f"assistant {answer['content']}", "user one at a time"]


def test_read_keeps_an_interruption_apart_from_the_output() -> None:
    """Words of the user that interrupt a command are no output of it."""
    recording = read_recording(
        build_file(TASK, say("I look.", "ls"), output("stop", interrupt_type="UserInterruption"))
    )
    assert list_messages(recording)[-1] == "user stop"


def test_read_takes_answers_of_the_responses_api() -> None:
    """Rows that are whole answers of the Responses API are read as items, without the nulls that LiteLLM adds."""
    items = [
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}], "status": None},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command":"ls"}', "id": "f1"},
    ]
    answer = {"object": "response", "model": "model-z", "status": "completed", "output": items}
    answer |= {"usage": {"input_tokens": 50, "output_tokens": 5}, "extra": {"actions": [{"command": "ls"}]}}
    out = {"type": "function_call_output", "call_id": "c1", "output": "a.py", "extra": {"returncode": 0}}
    words = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "good"}], "extra": {}}
    recording = read_recording(build_file(SYSTEM, TASK, answer, out, words))
    assert list_messages(recording)[2:] == ["assistant !c1", "tool =c1 a.py", "user good"]
    (step,) = list_model_calls(recording)
    assert (step.model, step.usage.input, step.stop) == ("model-z", 50, "completed")
    assert recording.api == "openai-responses"
    message = next(
        entry.body.sized_message
        for entry in recording.entries
        if isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "assistant"
    )
    assert b"null" not in bytes(message.raw or b"")


def test_read_keeps_thinking_once() -> None:
    """LiteLLM repeats the thinking in two fields; it is one part."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    answer = call("c1", reasoning_content="hm", thinking_blocks=blocks)
    for row in (answer, call("c1", thinking_blocks=blocks)):
        recording = read_recording(build_file(TASK, row))
        messages = [
            entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)
        ]
        assert [part.text for part in messages[1].parts if isinstance(part, Thinking)] == ["hm"]


def test_read_accepts_a_bare_list_of_messages() -> None:
    """A list with the fence of the agent is a trajectory; any other list stays one of Chat Completions."""
    rows = [SYSTEM, TASK, say("I look.", "ls"), output("a.py")]
    recording = read_recording(json.dumps(rows).encode())
    assert (recording.format, list_messages(recording)[3]) == ("mini-swe-agent", "tool =call-3 a.py")
    plain = [*rows[:2], say("I look.", "ls", fence="bash"), TASK | {"content": "```mswea_bash_command"}]
    assert read_recording(json.dumps(plain).encode()).format == "openai-chat"


def test_read_recognizes_a_file_without_a_format() -> None:
    """The first version named no format; an export of opencode has the same keys and is not taken for one."""
    document = {"info": {"exit_status": "Submitted", "submission": ""}, "messages": [TASK]}
    assert read_recording(json.dumps(document).encode()).format == "mini-swe-agent"
    opencode = {"info": {"id": "ses_1"}, "messages": []}
    assert read_recording(json.dumps(opencode).encode()).format == "opencode"


def test_read_reports_rows_that_cannot_be_read() -> None:
    """A row of an unknown role or shape is a note, with its path; unknown fields are counted."""
    rows = [TASK, {"role": "critic", "content": "x"}, {"role": "user", "content": 5}, TASK | {"colour": "red"}, 7]
    recording = read_recording(build_file(*rows))
    assert [problem.reason[:28] for problem in recording.problems] == [
        "messages[1] is kept as a not",
        "messages[2] is kept as a not",
        "messages[4] is kept as a not",
    ]
    assert recording.skipped_counts == {"messages.colour": 1}
    assert list_messages(recording) == ["user Fix the bug."] * 2


def test_read_refuses_a_trajectory_without_messages() -> None:
    """The error says what is missing and what to give."""
    with pytest.raises(UnrecognizedContent, match="mini-swe-agent has no messages; give"):
        read_recording(build_file())


def test_read_again_adds_only_what_is_new() -> None:
    """A trajectory that has grown has the entries of the shorter one, under the same ids."""
    rows = [SYSTEM, TASK, call("c1"), result("c1", "a.py"), call("c2"), EXIT]
    first = read_recording(build_file(*rows[:4]))
    new = select_new_entries(read_recording(build_file(*rows)), first.entries)
    messages = [entry.body.sized_message.message for entry in new.entries if isinstance(entry.body, MessageEntry)]
    assert [message.role for message in messages] == ["assistant"]


_ODD = st.none() | st.integers() | st.text(max_size=2) | st.lists(st.none() | st.just({"x": 1}), max_size=2)
_TEXT = st.sampled_from(["", "one", say("x", "ls")["content"], say("x", "ls", "pwd")["content"]])
_ITEMS = st.lists(
    st.sampled_from([{"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}, {"type": None}])
    | _ODD,
    max_size=2,
)
_EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "actions": st.lists(st.just({"command": "ls"}) | _ODD, max_size=2) | _ODD,
        "timestamp": st.just(1_700_000_000.5) | st.floats() | _ODD,
        "response": st.just({"model": "m", "usage": USAGE, "choices": [{}]}) | _ODD,
        "interrupt_type": _ODD,
        "exit_status": _ODD,
    },
)
_ROWS = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool", "exit"]) | _ODD,
        "type": st.sampled_from(["function_call_output", "message"]) | _ODD,
        "object": st.just("response") | _ODD,
        "content": _TEXT | _ODD,
        "tool_calls": st.just(call("c1")["tool_calls"]) | _ODD,
        "tool_call_id": st.just("c1") | _ODD,
        "call_id": st.just("c1") | _ODD,
        "output": _ITEMS | _ODD,
        "usage": _ODD,
        "reasoning_content": _ODD,
        "thinking_blocks": _ODD,
        "extra": _EXTRAS | _ODD,
    },
)


@given(st.lists(_ROWS | _ODD, max_size=6))
def test_read_builds_a_valid_tree_from_any_rows(rows: list[Any]) -> None:
    """For any rows, ids are unique, parents come first, and all views and exports work."""
    try:
        recording = read_recording(build_file(*rows))
    except UnrecognizedContent:
        return
    seen: set[str | None] = {None}
    for entry in recording.entries:
        assert entry.parent in seen
        assert entry.id not in seen
        seen.add(entry.id)
    build_state_at_leaf(recording)
    for name in EXPORT_FORMATS:
        with suppress(HoldfastError):
            export_bytes(recording, name)
