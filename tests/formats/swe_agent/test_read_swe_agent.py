"""Trajectories of SWE-agent, read as conversations. All samples are made up in the shapes of versions 0.6 to 1.1."""

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
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, Thinking
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.state.entries import DecisionEntry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection

SYSTEM = {"role": "system", "content": "You fix bugs.", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "Fix the bug.", "agent": "main", "message_type": "observation"}
ELIDED = "Old environment output: (3 lines omitted)"


def command(name: str, **more: Any) -> dict[str, Any]:
    """Return an answer with its command in the text."""
    thought = f"I run {name}."
    fields = {"role": "assistant", "content": f"{thought}\n```\n{name}\n```", "thought": thought, "action": name}
    return fields | {"agent": "main", "message_type": "action"} | more


def output(words: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": words, "agent": "main", "message_type": "observation"} | more


def call(id_: str, **more: Any) -> dict[str, Any]:
    """Return an answer with a tool call."""
    function = {"name": "open", "arguments": '{"path":"a.py"}'}
    fields = {"role": "assistant", "content": f"see {id_}", "thought": f"see {id_}", "action": "open a.py"}
    fields |= {"tool_calls": [{"id": id_, "type": "function", "function": function}], "agent": "main"}
    return fields | {"message_type": "action", "thinking_blocks": None} | more


def result(id_: str, words: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": words, "tool_call_ids": [id_], "agent": "main", **more}


def step(row: dict[str, Any], observation: str = "", **more: Any) -> dict[str, Any]:
    """Return the step of the trajectory that belongs to an answer of the history."""
    fields = {"action": row["action"], "thought": row["thought"], "response": row["content"]}
    return fields | {"observation": observation, "state": {}, "execution_time": 0.1} | more


def build_file(history: list[Any], trajectory: list[Any] | None = None, **more: Any) -> bytes:
    config = json.dumps({"agent": {"model": {"name": "model-x"}}, "env": {"token": "secret"}})
    document = {"trajectory": trajectory or [], "history": history, "info": {"exit_status": "submitted"}}
    return json.dumps(document | {"replay_config": config, "environment": "main"} | more, indent=2).encode()


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


def list_decisions(recording: Recording) -> list[DecisionEntry]:
    return [entry.body for entry in recording.entries if isinstance(entry.body, DecisionEntry)]


def test_read_makes_calls_and_results_of_commands_in_text() -> None:
    """A command in the text is a call, what is observed its result: as words of a user it could not be shortened."""
    recording = read_recording(build_file([SYSTEM, TASK, command("ls"), output("a.py"), command("cat a.py")]))
    assert list_messages(recording) == [
        "system You fix bugs.",
        "user Fix the bug.",
        "assistant I run ls. !call-2",
        "tool =call-2 a.py",
        "assistant I run cat a.py. !call-4",
    ]
    calls = [
        item
        for entry in recording.entries
        if isinstance(entry.body, MessageEntry)
        for item in entry.body.sized_message.message.calls
    ]
    assert [(item.name, json.loads(item.arguments)) for item in calls] == [
        ("bash", {"command": "ls"}),
        ("bash", {"command": "cat a.py"}),
    ]
    assert (recording.format, recording.model, recording.api) == ("swe-agent", "model-x", "openai-chat")
    assert [step.model for step in list_model_calls(recording)] == ["model-x"] * 2


def test_read_keeps_tool_calls_as_they_are() -> None:
    """Calls have their own ids and arguments, and results go to the call that they name."""
    rows = [SYSTEM, TASK, call("c1"), result("c1", "text of a.py"), call("c2"), result("c2", "more")]
    assert list_messages(read_recording(build_file(rows)))[2:] == [
        "assistant see c1 !c1",
        "tool =c1 text of a.py",
        "assistant see c2 !c2",
        "tool =c2 more",
    ]


def test_read_makes_one_result_for_each_id_of_a_row() -> None:
    """A row that answers two calls has one text; the second call is answered too, with nothing."""
    row = call("c1")
    row["tool_calls"].append(row["tool_calls"][0] | {"id": "c2"})
    both = result("c1", "text") | {"tool_call_ids": ["c1", "c2"]}
    assert list_messages(read_recording(build_file([TASK, row, both])))[1:] == [
        "assistant see c1 !c1 !c2",
        "tool =c1 text",
        "tool =c2 ",
    ]


def test_read_keeps_words_of_the_user_that_answer_no_command() -> None:
    """After an answer without a command, and before the first, a row of the user is one."""
    talk = {"role": "assistant", "content": "What now?", "agent": "main", "thought": "What now?", "action": ""}
    rows = [SYSTEM, TASK, output("strategy"), talk, output("go on")]
    assert list_messages(read_recording(build_file(rows)))[2:] == ["user strategy", "assistant What now?", "user go on"]


def test_read_takes_demonstrations_as_sent_but_not_as_answers() -> None:
    """Rows of a demonstration were sent, so they are messages; no model was called for them."""
    demo = [command("ls", is_demo=True), output("b.py", is_demo=True)]
    recording = read_recording(build_file([SYSTEM, *demo, TASK, command("pwd"), output("/w")]))
    assert list_messages(recording) == [
        "system You fix bugs.",
        "assistant I run ls. !call-1",
        "tool =call-1 b.py",
        "user Fix the bug.",
        "assistant I run pwd. !call-4",
        "tool =call-4 /w",
    ]
    assert len(list_model_calls(recording)) == 1


def test_read_keeps_thinking_and_pictures() -> None:
    """Thinking of LiteLLM and blocks of a content are parts of the message."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    rows = [TASK, call("c1", thinking_blocks=blocks), result("c1", [{"type": "text", "text": "shot"}, image])]
    recording = read_recording(build_file(rows))
    messages = [entry.body.sized_message.message for entry in recording.entries if isinstance(entry.body, MessageEntry)]
    (thinking,) = [part for part in messages[1].parts if isinstance(part, Thinking)]
    assert thinking.text == "hm"
    text, media = messages[2].results[0].content
    assert isinstance(text, Text)
    assert isinstance(media, Media)


def test_read_counts_answers_that_were_asked_for_again() -> None:
    """A step whose answer is not in the history was refused by the agent and asked for again; it is counted."""
    bad = {"action": "", "thought": "", "response": "no command", "observation": ""}
    first, second = command("ls"), command("pwd")
    recording = read_recording(
        build_file([TASK, first, output("a"), second, output("b")], [step(first), bad, bad, step(second)])
    )
    assert recording.skipped_counts == {"answer that was asked for again": 2}
    assert len(list_model_calls(recording)) == 2


def test_read_appends_what_the_history_leaves_out_at_the_end() -> None:
    """Some versions leave the last step out of the history, others only its result."""
    first, last = command("ls"), command("submit")
    steps = [step(first, "a"), step(last, "diff")]
    for history in ([TASK, first, output("a")], [TASK, first, output("a"), last]):
        found = list_messages(read_recording(build_file(history, steps)))
        assert found[-2:] == [f"assistant I run submit. !{found[-2].partition('!')[2]}", f"{found[-1]}"]
        assert found[-1].startswith("tool =")
        assert found[-1].endswith("diff")
        assert len(found) == 5


def test_read_rebuilds_a_file_without_history() -> None:
    """Some published sets have the trajectory alone: its first request and its steps are the conversation."""
    first, last = command("ls"), command("submit")
    steps = [step(first, "a", query=[SYSTEM, TASK]), step(last, "diff", query=[SYSTEM, TASK, first, output("a")])]
    recording = read_recording(json.dumps({"trajectory": steps}).encode())
    assert list_messages(recording) == [
        "system You fix bugs.",
        "user Fix the bug.",
        "assistant I run ls. !call-2",
        "tool =call-2 a",
        "assistant I run submit. !call-4",
        "tool =call-4 diff",
    ]
    assert "rebuilt from trajectory" in recording.problems[0].reason


@pytest.mark.parametrize("field", ["query", "messages"])
def test_read_takes_elided_results_as_decisions(field: str) -> None:
    """Where a request shows a result otherwise than the history, that is a decision from that request on."""
    rows = [SYSTEM, TASK, call("c1"), result("c1", "one " * 90), call("c2"), result("c2", "two " * 90)]
    rows += [call("c3"), result("c3", "three"), call("c4"), result("c4", "four")]
    # The result stays elided in the last request, which is no second decision.
    elided = [*rows[:3], rows[3] | {"content": ELIDED}, *rows[4:6]]
    requests = [rows[:2], rows[:4], elided, [*elided, *rows[6:8]]]
    if field == "messages":
        # Before 1.1 a step had the messages of the request after it.
        requests = [*requests[1:], rows]
    steps = [step(rows[place], **{field: request}) for place, request in zip((2, 4, 6, 8), requests, strict=True)]
    recording = read_recording(build_file(rows, steps))
    (decision,) = list_decisions(recording)
    assert [(edit.span.start, edit.rule) for edit in decision.edits] == [(3, "swe-agent")]
    assert decision.edits[0].saves > 50
    shown = [item.message for item in build_projection(build_state_at_leaf(recording))]
    assert [get_result_text(item) for message in shown for item in message.results] == [
        ELIDED,
        "two " * 90,
        "three",
        "four",
    ]
    seen = [call.id for call in list_model_calls(recording)]
    before = [item.message for item in build_projection(build_state_at_leaf(recording, seen[1]))]
    assert get_result_text(before[3].results[0]) == "one " * 90
    assert list_messages(recording)[3] == "tool =c1 " + "one " * 90


def test_read_finds_no_decision_in_marks_of_the_cache() -> None:
    """A content that became a list, to carry a cache mark, says the same; a shorter request cannot be compared."""
    rows = [SYSTEM, TASK, call("c1"), result("c1", "one"), call("c2"), result("c2", "two")]
    marked = [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]
    same = [*rows[:3], rows[3] | {"content": marked}]
    steps = [step(rows[2], query=rows[:2]), step(rows[4], query=same)]
    assert list_decisions(read_recording(build_file(rows, steps))) == []
    steps[1]["query"] = [rows[0], rows[3] | {"content": "other"}]
    assert list_decisions(read_recording(build_file(rows, steps))) == []


def test_read_separates_agents() -> None:
    """An agent sends only its own rows: those of another one are a conversation of their own."""
    rows = [SYSTEM, TASK, command("ls"), output("a")]
    other = [row | {"agent": "critic"} for row in (SYSTEM, output("judge it"), command("cat"), output("x"))]
    recording = read_recording(build_file([*rows, *other]))
    assert len(list_messages(recording)) == 4
    (side,) = recording.sidechains
    assert (side.session, list_messages(side)[1]) == ("critic", "user judge it")


def test_read_takes_the_best_attempt_as_the_recording() -> None:
    """The best of several attempts is copied to the top; the others stand beside it. Without a choice the last wins."""
    attempts = []
    for name in ("ls", "pwd", "id"):
        attempts.append(json.loads(build_file([TASK, command(name), output(name)])))
    best = attempts[1] | {"attempts": attempts, "info": {"best_attempt_idx": 1}}
    chosen = read_recording(json.dumps(best).encode())
    assert list_messages(chosen)[2] == "tool =call-1 pwd"
    assert [side.session for side in chosen.sidechains] == ["attempts[0]", "attempts[2]"]
    open_ = read_recording(json.dumps({"attempts": attempts}).encode())
    assert list_messages(open_)[2] == "tool =call-1 id"
    assert [list_messages(side)[2] for side in open_.sidechains] == ["tool =call-1 ls", "tool =call-1 pwd"]


def test_read_keeps_the_outcome_and_no_configuration() -> None:
    """How the run ended is a note. Its configuration, which may hold keys, is not kept."""
    recording = read_recording(build_file([TASK, command("ls")]))
    notes = [entry.body for entry in recording.entries if isinstance(entry.body, NoteEntry)]
    assert json.loads(notes[0].raw) == {"environment": "main", "info": {"exit_status": "submitted"}}
    assert all(b"secret" not in note.raw for note in notes)
    as_object = build_file([TASK, command("ls")], replay_config={"agent": {"model": {"name": "m"}}})
    assert read_recording(as_object).model == "m"


def test_read_reports_rows_that_cannot_be_read() -> None:
    """A row of an unknown role or shape is a note, with its path; unknown fields are counted."""
    rows = [TASK, {"role": "critic", "content": "x"}, {"role": "user", "content": 5}, command("ls", colour="red")]
    recording = read_recording(build_file(rows, version=7))
    assert [problem.reason[:27] for problem in recording.problems] == [
        "history[1] is kept as a not",
        "history[2] is kept as a not",
    ]
    assert recording.skipped_counts == {"file.version": 1, "history.colour": 1}


@pytest.mark.parametrize("document", [{"trajectory": [], "history": []}, {"trajectory": None, "history": 7}])
def test_read_refuses_a_trajectory_without_messages(document: dict[str, Any]) -> None:
    """The error says what is missing and what to give."""
    with pytest.raises(UnrecognizedContent, match="SWE-agent has no messages: history and trajectory are empty; give"):
        read_recording(json.dumps(document).encode())


def test_read_again_adds_only_what_is_new() -> None:
    """A trajectory that has grown has the entries of the shorter one, under the same ids."""
    rows = [SYSTEM, TASK, call("c1"), result("c1", "one"), call("c2"), result("c2", "two")]
    first = read_recording(build_file(rows[:4]))
    assert select_new_entries(read_recording(build_file(rows[:4])), first.entries).entries == ()
    new = select_new_entries(read_recording(build_file(rows)), first.entries)
    messages = [entry.body.sized_message.message for entry in new.entries if isinstance(entry.body, MessageEntry)]
    assert [message.role for message in messages] == ["assistant", "tool"]


_TEXT = st.sampled_from(["", "one", "two", ELIDED])
_ODD = st.none() | st.integers() | st.text(max_size=2) | st.lists(st.none() | st.just({"x": 1}), max_size=2)
_CALLS = st.lists(st.sampled_from(call("c1")["tool_calls"] + call("c2")["tool_calls"]) | _ODD, max_size=2)
_ROWS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "exit"]), "content": _TEXT | _ODD},
    optional={
        "agent": st.sampled_from(["main", "critic"]) | _ODD,
        "action": _TEXT | _ODD,
        "thought": _TEXT | _ODD,
        "is_demo": st.booleans() | _ODD,
        "tool_calls": _CALLS | _ODD,
        "tool_call_ids": st.lists(st.sampled_from(["c1", "c2"]), max_size=2) | _ODD,
        "thinking_blocks": _ODD,
    },
)
_STEPS = st.fixed_dictionaries(
    {"action": _TEXT | _ODD, "response": _TEXT | _ODD, "observation": _TEXT | _ODD},
    optional={"thought": _TEXT | _ODD, "query": st.lists(_ROWS | _ODD, max_size=5), "messages": st.lists(_ROWS)},
)
_FILES = st.fixed_dictionaries(
    {"history": st.lists(_ROWS | _ODD, max_size=6) | _ODD, "trajectory": st.lists(_STEPS | _ODD, max_size=4) | _ODD},
    optional={"info": _ODD, "replay_config": _ODD, "environment": _ODD},
)


@given(_FILES, st.lists(_FILES | _ODD, max_size=2) | _ODD)
def test_read_builds_a_valid_tree_from_any_file(document: dict[str, Any], attempts: Any) -> None:
    """For any file, ids are unique, parents come first, raw bytes say the message, and all exports work."""
    try:
        recording = read_recording(json.dumps(document | {"attempts": attempts}).encode())
    except UnrecognizedContent:
        return
    for tree in (recording, *recording.sidechains):
        seen: set[str | None] = {None}
        for entry in tree.entries:
            assert entry.parent in seen
            assert entry.id not in seen
            seen.add(entry.id)
            if isinstance(entry.body, MessageEntry):
                raw = entry.body.sized_message.raw
                assert isinstance(entry.body.sized_message.message, Message)
                assert openai_chat.decode_message(raw or b"") == entry.body.sized_message.message
        build_state_at_leaf(tree)
    for name in EXPORT_FORMATS:
        with suppress(HoldfastError):
            export_bytes(recording, name)
