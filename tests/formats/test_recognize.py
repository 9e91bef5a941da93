from __future__ import annotations

import json
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FormatError, HoldfastError, UnrecognizedContent
from holdfast.formats import (
    Recording,
    build_state_at_leaf,
    export_bytes,
    get_full_history_entries,
    list_model_calls,
    read_recording,
)
from holdfast.formats.export import EXPORT_FORMATS
from holdfast.providers.registry import API_NAMES
from holdfast.state.entries import MessageEntry

CLAUDE = b'{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"S","message":{"role":"user","content":"hi"}}'
PI = b'{"type":"session","version":3,"id":"S","timestamp":"t","cwd":"/x"}'
PI_MESSAGE = b'{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{"role":"user","content":"x"}}'
CODEX = b'{"timestamp":"t","type":"session_meta","payload":{"id":"T"}}'
ITEM = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}'
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    ("data", "format_"),
    [
        (CLAUDE, "claude-code"),
        (b'{"type":"file-history-snapshot","messageId":"m","snapshot":{}}\n' + CLAUDE, "claude-code"),
        (b'{"type":"queue-operation","operation":"enqueue","sessionId":"S"}', "claude-code"),
        (b'{"type":"summary","summary":"x","leafUuid":"y"}', "claude-code"),
        (b'{"type":"of-tomorrow","uuid":"y","parentUuid":null}', "claude-code"),
        (b'{"sessionId":"S","projectHash":"h","kind":"main"}', "gemini-cli"),
        (b'{"sessionId":"S","projectHash":"h","messages":[]}', "gemini-cli"),
        (b'{"$set":{"lastUpdated":"t"}}', "gemini-cli"),
        (b'{"id":"a","timestamp":"t","type":"gemini","content":""}', "gemini-cli"),
        (PI, "pi"),
        (b"damaged\n" + PI_MESSAGE, "pi"),
        (CODEX, "codex"),
        (b'{"id":"T","timestamp":"t","instructions":null}\n' + ITEM, "codex"),
        (ITEM, "codex"),
        (CHAT, "openai-chat"),
        (json.dumps(json.loads(CHAT), indent=1).encode(), "openai-chat"),
        (b'[{"role":"user","content":"hi"}]', "openai-chat"),
        (b"\xef\xbb\xbf" + CLAUDE, "claude-code"),
        (b'{"info":{"mini_version":"2"},"messages":[{"role":"user","content":"x"}]}', "mini-swe-agent"),
        (b'[{"role":"assistant","content":"```mswea_bash_command\\nls\\n```"}]', "mini-swe-agent"),
        (b'{"schema_version":"ATIF-v1.7","steps":[{"source":"user","message":"x"}]}', "atif"),
        (b'{"agent":{},"steps":[{"source":"user","message":"x"}]}', "atif"),
        (b'{"trajectory":[{"action":"ls","observation":""}]}', "swe-agent"),
        (b'{\n"history":[{"role":"user","content":"x","agent":"main"}]}', "swe-agent"),
        (
            b'{"type":"user","uuid":"\\ud800","parentUuid":null,"sessionId":"S","message":{"role":"user","content":"x"}}',
            "claude-code",
        ),
    ],
)
def test_read_recording_recognizes_a_format_by_content(data, format_):
    """The content decides, never the file name; damage before the first good line does not matter."""
    assert read_recording(data, "misleading.db").format == format_


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", FormatError, "empty (0 bytes)"),
        (b" \n\n", FormatError, "empty (3 bytes)"),
        (b"\x7fELF\x00\x01", FormatError, "binary file (a NUL byte at 4)"),
        (b"caf\xe9 au lait\n", FormatError, "not UTF-8 text (byte 3"),
        (b"SQLite format 3\x00" + bytes(100), UnrecognizedContent, "opencode"),
        (b'{"contents":[{}]}', UnrecognizedContent, "Gemini"),
        (b'{"model":"m","input":[5]}', UnrecognizedContent, "Responses"),
        (b'{"mapping":{},"current_node":"x"}', UnrecognizedContent, "ChatGPT"),
        (b'{"name":"x","version":1}', UnrecognizedContent, "with the keys name, version"),
        (b"hello\nworld\n", UnrecognizedContent, "no line of the file is a JSON object with fields: all its 2 lines"),
        (b"{}\n", UnrecognizedContent, "no line of the file is a JSON object with fields: its one line"),
        (b"[" * 1_000_000, UnrecognizedContent, "the JSON in it is nested too deeply"),
        (b'{"messages":' + b"[" * 1_000_000, UnrecognizedContent, "the JSON in it is nested too deeply"),
        (b'{"messages":[]}', UnrecognizedContent, "messages"),
    ],
)
def test_read_recording_rejects_other_files_with_a_description(data, error, says):
    """The error names the file and says what was seen and what is understood."""
    with pytest.raises(error, match=r"^that\.file: ") as raised:
        read_recording(data, "that.file")
    assert says in str(raised.value)
    assert "Completions" in str(raised.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_read_recording_names_utf_16_and_utf_32(encoding):
    """Text in two or four bytes a character is no binary file: the error names the encoding and what to do."""
    with pytest.raises(FormatError, match=rf"{encoding[:6].upper()}, and sessions are UTF-8; write it anew"):
        read_recording('{"type":"user"}\n'.encode(encoding))


@given(st.binary(max_size=400))
def test_read_recording_accepts_or_rejects_any_bytes(data):
    """No bytes raise anything but a ``HoldfastError``."""
    with suppress(HoldfastError):
        assert isinstance(read_recording(data), Recording)


IDS = st.sampled_from(["a", "b", "c", "d", "missing"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id", "role"]), inner),
    max_leaves=6,
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "toolCall", "thinking", "output_text", "odd"])},
    optional={"text": JSON, "id": IDS, "tool_use_id": IDS, "name": JSON, "input": JSON, "content": JSON},
)
CONTENT = st.lists(BLOCKS, max_size=3) | st.text(max_size=5) | JSON
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "tool", "system", "robot"]), "content": CONTENT},
    optional={"id": IDS, "usage": JSON, "model": JSON, "toolCallId": IDS, "stopReason": JSON},
)
KINDS = ["user", "assistant", "system", "progress", "session", "message", "compaction", "label", "custom_message"]
KINDS += ["attachment", "queue-operation"]
SUBTYPES = ["compact_boundary", "microcompact_boundary"]
CODEX_KINDS = ["session_meta", "response_item", "event_msg", "compacted", "turn_context"]
PAYLOADS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "token_count"])},
    optional={"role": st.sampled_from(["user", "assistant"]), "content": CONTENT, "call_id": IDS, "arguments": JSON}
    | {"output": JSON, "info": JSON, "replacement_history": st.lists(JSON, max_size=2), "message": JSON}
    | {"history_mode": JSON, "history_base": st.fixed_dictionaries({"thread_id": IDS, "end_ordinal_exclusive": JSON})},
)
ATTACHMENTS = st.fixed_dictionaries(
    {"type": st.just("queued_command"), "prompt": CONTENT}, optional={"commandMode": JSON}
)
LINES = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS + CODEX_KINDS)},
    optional={"uuid": IDS | JSON, "parentUuid": IDS | JSON, "logicalParentUuid": IDS, "id": IDS, "parentId": IDS | JSON}
    | {"message": MESSAGES | JSON, "payload": PAYLOADS | JSON, "timestamp": JSON, "sessionId": IDS, "summary": JSON}
    | {"isSidechain": st.booleans(), "isCompactSummary": st.booleans(), "subtype": st.sampled_from(SUBTYPES)}
    | {"microcompactMetadata": st.fixed_dictionaries({"compactedToolIds": st.lists(IDS, max_size=3) | JSON}) | JSON}
    | {"compactMetadata": JSON, "firstKeptEntryId": IDS | JSON, "firstKeptEntryIndex": JSON, "content": CONTENT}
    | {"targetId": JSON, "label": JSON, "version": JSON, "requestId": IDS, "ordinal": st.integers(-1, 9) | JSON}
    | {
        "operation": st.sampled_from(["enqueue", "dequeue", "remove", "popAll"]) | JSON,
        "attachment": ATTACHMENTS | JSON,
    },
)


@given(st.lists(LINES | JSON, max_size=8))
def test_read_recording_builds_a_valid_tree_from_any_lines(lines):
    """For any lines, ids are unique, parents come first, and all views and writers work on the result."""
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    try:
        recording = read_recording(data)
    except HoldfastError:
        return
    for tree in (recording, *recording.sidechains):
        seen: set[str] = set()
        for entry in tree.entries:
            assert entry.id not in seen
            assert entry.parent is None or entry.parent in seen
            seen.add(entry.id)
        assert tree.leaf is None or tree.leaf in seen
        get_full_history_entries(tree), build_state_at_leaf(tree), list_model_calls(tree)
    for format_ in EXPORT_FORMATS:
        is_request = format_ in API_NAMES
        with suppress(FormatError) if is_request else nullcontext():  # a request needs a message
            export_bytes(recording, format_)


def test_read_recording_reports_a_deeply_nested_line():
    """A line nested 1,000,000 deep costs that line only."""
    deep = b'{"type":"user","uuid":"x","message":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    recording = read_recording(CLAUDE + b"\n" + deep + b"\n")
    assert [problem.line for problem in recording.problems] == [2]
    assert "nested too deeply" in recording.problems[0].reason


def test_read_recording_keeps_unicode_separators_in_text():
    """U+2028, U+2029 and U+0085 in a message are text."""
    words = "a\u2028b\u2029c\u0085d"
    line = json.dumps(json.loads(CLAUDE) | {"message": {"role": "user", "content": words}}, ensure_ascii=False)
    recording = read_recording(line.encode() + b"\r\n")
    (entry,) = [entry for entry in get_full_history_entries(recording) if isinstance(entry.body, MessageEntry)]
    assert entry.body.sized_message.message.text == words


def test_read_recording_reads_a_large_line():
    """A line of several megabytes is read like any other."""
    words = "lorem ipsum " * 400_000
    line = json.dumps(json.loads(CLAUDE) | {"message": {"role": "user", "content": words}}).encode()
    recording = read_recording(line)
    assert recording.problems == ()
    assert len(recording.entries[0].body.sized_message.message.text) == len(words)
