from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError
from holdfast.formats.base import build_state_at_leaf, get_full_history_entries, list_model_calls
from holdfast.formats.codex import read as codex
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry, RequestSetup, Usage
from holdfast.state.view import build_projection

TIME = "2026-11-21T01:12:48.115Z"


def line(kind, payload, **more):
    return {"timestamp": TIME, "type": kind, "payload": payload} | more


def item(kind, **fields):
    return line("response_item", {"type": kind} | fields)


def said(role, words, id_=None, **more):
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": words}]
    return item("message", role=role, content=content, **({"id": id_} if id_ else {})) | more


def call(id_, name="exec"):
    return item("function_call", name=name, arguments='{"cmd":"ls"}', call_id=id_)


def output(id_, words="ok"):
    return item("function_call_output", call_id=id_, output=words)


TOTAL = [0]


def usage(tokens):
    TOTAL[0] += tokens
    last = {"input_tokens": tokens, "cached_input_tokens": 3, "output_tokens": 2}
    return line(
        "event_msg",
        {"type": "token_count", "info": {"last_token_usage": last, "total_token_usage": {"input_tokens": TOTAL[0]}}},
    )


META = line("session_meta", {"id": "T", "cwd": "/w", "base_instructions": {"text": "Be a coding agent."}})
CONTEXT = line("turn_context", {"cwd": "/w", "model": "gpt-x"})


def file(*lines):
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def told(recording):
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{one.id}" for one in message.calls] + [f"={one.call_id}" for one in message.results]
            out.append(" ".join([message.role, *([message.text] if message.text else []), *marks]))
    return out


TURN = (
    META,
    CONTEXT,
    said("developer", "rules"),
    said("user", "list"),
    item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="XX"),
    said("assistant", "I look."),
    call("c1"),
    call("c2"),
    usage(100),
    output("c1"),
    output("c2"),
    said("assistant", "done"),
    usage(150),
)


def test_what_the_model_said_without_a_break_is_one_answer():
    """Reasoning, words and calls of one response are one message; outputs and users are their own."""
    recording = codex.read_codex(file(*TURN))
    assert told(recording) == [
        "system rules",
        "user list",
        "assistant I look. !c1 !c2",
        "tool =c1",
        "tool =c2",
        "assistant done",
    ]
    assert [(step.usage, step.model) for step in list_model_calls(recording)] == [
        (Usage(100, 2, 3, 0), "gpt-x"),
        (Usage(150, 2, 3, 0), "gpt-x"),
    ]
    assert (recording.session, recording.cwd, recording.model, recording.api) == (
        "T",
        "/w",
        "gpt-x",
        "openai-responses",
    )


def test_reasoning_is_sealed_for_its_model():
    """Encrypted reasoning goes nowhere but back to the model that made it."""
    answer = next(
        entry.body.sized_message.message
        for entry in codex.read_codex(file(*TURN)).entries
        if isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "assistant"
    )
    assert answer.parts[0] == Thinking("hm", ProviderSignature("openai-responses", "gpt-x", "XX"))
    assert answer.parts[2] == ToolCall("c1", "exec", '{"cmd":"ls"}')


def test_instructions_are_the_frame():
    """The base instructions stand as a frame at the root, measured."""
    (frame,) = [entry.body for entry in codex.read_codex(file(*TURN)).entries if isinstance(entry.body, RequestSetup)]
    assert frame.tokens > 3
    assert frame.digest


def test_usage_that_comes_late_or_twice():
    """A count behind the tool's output is the answer's before it; a repeated total counts nothing."""
    first = usage(10)
    lines = (META, said("user", "a"), call("c"), output("c"), first, said("assistant", "b"), first, usage(20))
    assert [step.usage.input for step in list_model_calls(codex.read_codex(file(*lines)))] == [10, 20]


def test_answers_in_a_row():
    """A reported usage ends an answer: what follows is the next one."""
    lines = (META, said("user", "a"), said("assistant", "b"), usage(5), said("assistant", "c"), usage(6))
    assert told(codex.read_codex(file(*lines))) == ["user a", "assistant b", "assistant c"]


def test_aborted_answer_is_no_step():
    """A turn that the user cut off while the model spoke leaves words, but no step."""
    abort = line("event_msg", {"type": "turn_aborted", "reason": "interrupted"})
    recording = codex.read_codex(file(META, said("user", "a"), said("assistant", "b"), abort, said("user", "c")))
    assert told(recording) == ["user a", "assistant b", "user c"]
    assert list_model_calls(recording) == []


def replaced(message, *items):
    return line("compacted", {"message": message, "replacement_history": [one["payload"] for one in items]})


def test_local_compaction():
    """The summariser's answer is no part of the history; the context is what replaced it."""
    made = said("assistant", "SUM", metadata={"compaction_output": True})
    new = (said("developer", "rules"), said("user", "list"), said("user", "earlier: SUM"))
    lines = (*TURN, made, usage(500), replaced("earlier: SUM", *new), said("user", "next"), said("assistant", "yes"))
    recording = codex.read_codex(file(*lines))
    assert told(recording)[-3:] == ["assistant done", "user next", "assistant yes"]
    assert len(list_model_calls(recording)) == 3
    assert [slot.message.text for slot in build_projection(build_state_at_leaf(recording))] == [
        "rules",
        "list\nearlier: SUM",
        "next",
        "yes",
    ]
    assert recording.skipped_counts["item of the summariser"] == 1


def test_compaction_that_keeps_the_end():
    """Where the new history ends with what was said last, those messages are the kept tail, not part of the summary."""
    new = (said("user", "earlier: SUM"), output("c2"), said("assistant", "done"))
    branch = build_state_at_leaf(codex.read_codex(file(*TURN, replaced("earlier: SUM", *new))))
    assert [slot.message.role for slot in build_projection(branch)] == ["system", "user", "tool", "assistant"]


def test_remote_compaction():
    """What the provider made is kept as it is, beside words that can be read."""
    sealed = item("compaction", encrypted_content="YY")
    recording = codex.read_codex(file(*TURN, replaced("", said("user", "list"), sealed), said("user", "next")))
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert json.loads(bytes(body.native))["items"][1]["encrypted_content"] == "YY"
    assert body.summary.text == "list"


def test_rollback_starts_a_branch():
    """Turns that were taken back stay in the tree; what Codex itself put in as user is no turn."""
    lines = (
        META,
        said("user", "<environment_context>here</environment_context>"),
        said("user", "a"),
        said("assistant", "b"),
        said("user", "c"),
        said("assistant", "d"),
        line("event_msg", {"type": "thread_rolled_back", "num_turns": 2}),
        said("user", "e"),
    )
    recording = codex.read_codex(file(*lines))
    assert told(recording) == ["user <environment_context>here</environment_context>", "user e"]
    assert sum(isinstance(entry.body, MessageEntry) for entry in recording.entries) == 6


def test_older_files_of_bare_items():
    """A bare header and bare items are read like the lines of today."""
    head = {"id": "T", "timestamp": TIME, "instructions": "Be kind.", "git": {}}
    lines = [said("user", "a"), call("c"), output("c"), said("assistant", "b")]
    recording = codex.read_codex(file(head, {"record_type": "state"}, *[one["payload"] for one in lines]))
    assert told(recording) == ["user a", "assistant !c", "tool =c", "assistant b"]
    assert (recording.session, recording.skipped_counts) == ("T", {"state": 1})
    assert any(isinstance(entry.body, RequestSetup) for entry in recording.entries)


def test_items_of_every_kind():
    """Custom and shell calls are calls with their input as JSON text, unknown items are opaque, images are media."""
    lines = (
        item("custom_tool_call", name="patch", input="*** Begin", call_id="c1"),
        item("local_shell_call", call_id="c2", action={"command": ["ls"]}),
        item("web_search_call", id="ws", status="completed"),
        item("custom_tool_call_output", call_id="c1", output={"content": "bad", "success": False}),
        item(
            "function_call_output",
            call_id="c2",
            output=[{"type": "input_image", "image_url": "data:image/png;base64,aGk="}],
        ),
    )
    answer, first, second = [
        entry.body.sized_message.message
        for entry in codex.read_codex(file(META, *lines)).entries
        if isinstance(entry.body, MessageEntry)
    ]
    assert answer.calls == (
        ToolCall("c1", "patch", '"*** Begin"'),
        ToolCall("c2", "local_shell", '{"command": ["ls"]}'),
    )
    assert isinstance(answer.parts[2], Opaque)
    assert (get_result_text(first.results[0]), first.results[0].is_error) == ("bad", True)
    assert second.results[0].content == (Media("image", "image/png", 2, "", "aGk="),)


def test_damage_and_unknown_roles_are_notes():
    """Torn lines and items nobody knows are kept with their bytes and reported by number."""
    recording = codex.read_codex(file(META, said("user", "a"), b'{"type":', said("narrator", "x"), said("user", "b")))
    assert told(recording) == ["user a", "user b"]
    assert [problem.line for problem in recording.problems] == [3, 4]
    assert [b"narrator" in entry.body.raw for entry in recording.entries[-2:] if isinstance(entry.body, NoteEntry)] == [
        False,
        True,
    ]


def test_raw_items_decode_to_the_slot():
    """A slot's bytes are its items, one or a list; ``decode_codex_item`` reads both."""
    for entry in codex.read_codex(file(*TURN)).entries:
        if isinstance(entry.body, MessageEntry):
            model = "gpt-x" if entry.body.sized_message.message.role == "assistant" else ""
            assert codex.decode_codex_item(entry.body.sized_message.raw, model) == entry.body.sized_message.message
    assert codex.decode_codex_item(b'{"type":"message","role":"user","content":"hi"}').parts == (Text("hi"),)
    with pytest.raises(FormatError, match="cannot be read"):
        codex.decode_codex_item(b"7")
