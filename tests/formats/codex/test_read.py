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


def build_message_line(role, words, id_=None, **more):
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


def build_file(*lines):
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def list_messages(recording):
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{call.id}" for call in message.calls] + [f"={result.call_id}" for result in message.results]
            out.append(" ".join([message.role, *([message.text] if message.text else []), *marks]))
    return out


TURN = (
    META,
    CONTEXT,
    build_message_line("developer", "rules"),
    build_message_line("user", "list"),
    item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="XX"),
    build_message_line("assistant", "I look."),
    call("c1"),
    call("c2"),
    usage(100),
    output("c1"),
    output("c2"),
    build_message_line("assistant", "done"),
    usage(150),
)


def test_read_joins_adjacent_items_of_the_model():
    """Reasoning, text and calls of one response are one message; outputs and user messages are their own."""
    recording = codex.read_codex(build_file(*TURN))
    assert list_messages(recording) == [
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


def test_read_signs_encrypted_reasoning_for_its_model():
    """Encrypted reasoning can be sent back only to the model that made it."""
    answer = next(
        entry.body.sized_message.message
        for entry in codex.read_codex(build_file(*TURN)).entries
        if isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "assistant"
    )
    assert answer.parts[0] == Thinking("hm", ProviderSignature("openai-responses", "gpt-x", "XX"))
    assert answer.parts[2] == ToolCall("c1", "exec", '{"cmd":"ls"}')


def test_read_turns_instructions_into_the_request_setup():
    """The base instructions are a request setup at the root, with their size."""
    (setup,) = [
        entry.body for entry in codex.read_codex(build_file(*TURN)).entries if isinstance(entry.body, RequestSetup)
    ]
    assert setup.tokens > 3
    assert setup.digest


def test_read_assigns_late_usage_and_ignores_repeated_totals():
    """A count after a tool's output belongs to the answer before it; a repeated total counts nothing."""
    first = usage(10)
    lines = (
        META,
        build_message_line("user", "a"),
        call("c"),
        output("c"),
        first,
        build_message_line("assistant", "b"),
        first,
        usage(20),
    )
    assert [step.usage.input for step in list_model_calls(codex.read_codex(build_file(*lines)))] == [10, 20]


def test_read_ends_an_answer_at_its_reported_usage():
    """Model items after a reported usage are the next answer."""
    lines = (
        META,
        build_message_line("user", "a"),
        build_message_line("assistant", "b"),
        usage(5),
        build_message_line("assistant", "c"),
        usage(6),
    )
    assert list_messages(codex.read_codex(build_file(*lines))) == ["user a", "assistant b", "assistant c"]


def test_list_model_calls_skips_an_aborted_answer():
    """An answer that the user interrupted leaves its text in the history but is no model call."""
    abort = line("event_msg", {"type": "turn_aborted", "reason": "interrupted"})
    recording = codex.read_codex(
        build_file(
            META,
            build_message_line("user", "a"),
            build_message_line("assistant", "b"),
            abort,
            build_message_line("user", "c"),
        )
    )
    assert list_messages(recording) == ["user a", "assistant b", "user c"]
    assert list_model_calls(recording) == []


def build_compacted_line(message, *items):
    return line("compacted", {"message": message, "replacement_history": [item["payload"] for item in items]})


def test_read_local_compaction_hides_the_summarizer_answer():
    """The summarizer's answer is no part of the history; the context starts with the replacement history."""
    summarizer_answer = build_message_line("assistant", "SUM", metadata={"compaction_output": True})
    new = (
        build_message_line("developer", "rules"),
        build_message_line("user", "list"),
        build_message_line("user", "earlier: SUM"),
    )
    lines = (
        *TURN,
        summarizer_answer,
        usage(500),
        build_compacted_line("earlier: SUM", *new),
        build_message_line("user", "next"),
        build_message_line("assistant", "yes"),
    )
    recording = codex.read_codex(build_file(*lines))
    assert list_messages(recording)[-3:] == ["assistant done", "user next", "assistant yes"]
    assert len(list_model_calls(recording)) == 3
    assert [sized_message.message.text for sized_message in build_projection(build_state_at_leaf(recording))] == [
        "rules",
        "list\nearlier: SUM",
        "next",
        "yes",
    ]
    assert recording.skipped_counts["item of the summariser"] == 1


def test_read_compaction_recognizes_a_kept_tail():
    """If the replacement history ends with the last messages, those are the kept tail and not part of the summary."""
    new = (build_message_line("user", "earlier: SUM"), output("c2"), build_message_line("assistant", "done"))
    state = build_state_at_leaf(codex.read_codex(build_file(*TURN, build_compacted_line("earlier: SUM", *new))))
    assert [sized_message.message.role for sized_message in build_projection(state)] == [
        "system",
        "user",
        "tool",
        "assistant",
    ]


def test_read_remote_compaction_keeps_the_native_items():
    """The provider's compaction items are kept as they are, beside the readable text."""
    sealed = item("compaction", encrypted_content="YY")
    recording = codex.read_codex(
        build_file(
            *TURN,
            build_compacted_line("", build_message_line("user", "list"), sealed),
            build_message_line("user", "next"),
        )
    )
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert json.loads(bytes(body.native))["items"][1]["encrypted_content"] == "YY"
    assert body.summary.text == "list"


def test_read_rollback_starts_a_branch():
    """Rolled back turns stay in the tree; user messages that Codex itself inserted do not count as turns."""
    lines = (
        META,
        build_message_line("user", "<environment_context>here</environment_context>"),
        build_message_line("user", "a"),
        build_message_line("assistant", "b"),
        build_message_line("user", "c"),
        build_message_line("assistant", "d"),
        line("event_msg", {"type": "thread_rolled_back", "num_turns": 2}),
        build_message_line("user", "e"),
    )
    recording = codex.read_codex(build_file(*lines))
    assert list_messages(recording) == ["user <environment_context>here</environment_context>", "user e"]
    assert sum(isinstance(entry.body, MessageEntry) for entry in recording.entries) == 6


def test_read_accepts_older_files_of_bare_items():
    """A bare header and bare items are read like today's lines."""
    head = {"id": "T", "timestamp": TIME, "instructions": "Be kind.", "git": {}}
    lines = [build_message_line("user", "a"), call("c"), output("c"), build_message_line("assistant", "b")]
    recording = codex.read_codex(build_file(head, {"record_type": "state"}, *[item["payload"] for item in lines]))
    assert list_messages(recording) == ["user a", "assistant !c", "tool =c", "assistant b"]
    assert (recording.session, recording.skipped_counts) == ("T", {"state": 1})
    assert any(isinstance(entry.body, RequestSetup) for entry in recording.entries)


def test_read_converts_items_of_every_kind():
    """Custom and shell calls become calls with JSON arguments, unknown items opaque parts, and images media."""
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
        for entry in codex.read_codex(build_file(META, *lines)).entries
        if isinstance(entry.body, MessageEntry)
    ]
    assert answer.calls == (
        ToolCall("c1", "patch", '"*** Begin"'),
        ToolCall("c2", "local_shell", '{"command": ["ls"]}'),
    )
    assert isinstance(answer.parts[2], Opaque)
    assert (get_result_text(first.results[0]), first.results[0].is_error) == ("bad", True)
    assert second.results[0].content == (Media("image", "image/png", 2, "", "aGk="),)


def test_read_turns_damaged_lines_and_unknown_roles_into_notes():
    """Torn lines and unknown items are kept with their bytes and reported by line number."""
    recording = codex.read_codex(
        build_file(
            META,
            build_message_line("user", "a"),
            b'{"type":',
            build_message_line("narrator", "x"),
            build_message_line("user", "b"),
        )
    )
    assert list_messages(recording) == ["user a", "user b"]
    assert [problem.line for problem in recording.problems] == [3, 4]
    assert [b"narrator" in entry.body.raw for entry in recording.entries[-2:] if isinstance(entry.body, NoteEntry)] == [
        False,
        True,
    ]


def test_decode_codex_item_reads_the_raw_bytes_of_a_message():
    """A message's raw bytes are its items, one or a list; ``decode_codex_item`` reads both."""
    for entry in codex.read_codex(build_file(*TURN)).entries:
        if isinstance(entry.body, MessageEntry):
            model = "gpt-x" if entry.body.sized_message.message.role == "assistant" else ""
            assert codex.decode_codex_item(entry.body.sized_message.raw, model) == entry.body.sized_message.message
    assert codex.decode_codex_item(b'{"type":"message","role":"user","content":"hi"}').parts == (Text("hi"),)
    with pytest.raises(FormatError, match="cannot be read"):
        codex.decode_codex_item(b"7")


def test_read_keeps_the_newest_window_that_a_line_states():
    """``model_context_window`` of the last line that has one is the recording's window; impossible values are none."""
    started = line("event_msg", {"type": "task_started", "model_context_window": 258_400})
    counted = line("event_msg", {"type": "token_count", "info": {"model_context_window": 96_000}})
    odd = [
        line("event_msg", {"type": "task_started", "model_context_window": window})
        for window in (None, "large", 0, 10**20)
    ]
    said = build_message_line("user", "hi")
    assert codex.read_codex(build_file(META, said)).window is None
    assert codex.read_codex(build_file(META, started, said)).window == 258_400
    assert codex.read_codex(build_file(META, started, said, counted, *odd)).window == 96_000
