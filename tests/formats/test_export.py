from __future__ import annotations

import json
from itertools import combinations

import pytest
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.formats import (
    Recording,
    build_state_at_leaf,
    export_bytes,
    export_with_loss_notes,
    get_full_history_entries,
    list_model_calls,
    make_recording,
    read_recording,
)
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.registry import API_NAMES
from holdfast.providers.rules.validate import validate_request
from holdfast.replay.session import make_replay_session
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, MessageEntry, Usage
from holdfast.state.view import build_projection

LOGS = ("claude-code", "codex", "pi")
BODIES = ("anthropic", "openai-chat")
TIME = "2026-11-21T01:14:54.000Z"


def encode_lines(lines):
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def build_claude_line(kind, uuid, parent, content="", **more):
    api = {"id": f"m{uuid[0]}", "model": "claude-x", "usage": {"input_tokens": 7}} if kind == "assistant" else {}
    message = {"message": {"role": kind} | api | {"content": content}} if kind != "progress" else {}
    head = {"parentUuid": parent, "isSidechain": False, "type": kind, "sessionId": "S", "uuid": uuid}
    return head | message | {"timestamp": TIME} | more


def build_tool_use(id_):
    return {"type": "tool_use", "id": id_, "name": "bash", "input": {"a": 1}}


def build_tool_result(id_):
    return [{"type": "tool_result", "tool_use_id": id_, "content": "ok"}]


CLAUDE = (
    build_claude_line("user", "u1", None, "one"),
    build_claude_line("progress", "p1", "u1"),
    build_claude_line("assistant", "a1", "p1", [build_tool_use("c1")]),
    build_claude_line("user", "r1", "a1", build_tool_result("c1"), toolUseResult={"stdout": "ok"}),
    build_claude_line("assistant", "a2", "r1", [build_tool_use("c2")]),
    build_claude_line("user", "r2", "a2", build_tool_result("c2")),
    build_claude_line("user", "x1", "r2", "not this"),
    build_claude_line("user", "u2", "r2", "two"),
    {"parentUuid": None, "logicalParentUuid": "u2", "type": "system", "subtype": "compact_boundary", "uuid": "B"}
    | {"compactMetadata": {"trigger": "manual", "preservedMessages": {"uuids": ["u2"]}}, "timestamp": TIME},
    build_claude_line("user", "S", "B", "so far", isCompactSummary=True),
    build_claude_line("assistant", "z1", "S", [{"type": "text", "text": "three"}]),
)


def build_pi_line(kind, id_, parent, **more):
    return {"type": kind, "id": id_, "parentId": parent, "timestamp": TIME} | more


def build_pi_message(id_, parent, role, content, **more):
    return build_pi_line("message", id_, parent, message={"role": role, "content": content} | more)


USED = {"input": 7, "output": 1, "cacheRead": 0, "cacheWrite": 0}
PI = (
    {"type": "session", "version": 3, "id": "S", "timestamp": TIME, "cwd": "/w"},
    build_pi_line("model_change", "s1", None, provider="p", modelId="m"),
    build_pi_message("u1", "s1", "user", "one"),
    build_pi_message(
        "a1", "u1", "assistant", [{"type": "text", "text": "two"}], usage=USED, stopReason="stop", model="m"
    ),
    build_pi_line("compaction", "c1", "a1", summary="so far", firstKeptEntryId="a1", tokensBefore=9),
    build_pi_message("x1", "c1", "user", "not this"),
    build_pi_line("branch_summary", "b1", "c1", fromId="x1", summary="tried"),
    build_pi_message("r1", "b1", "toolResult", [], toolCallId="c", toolName="t", isError=False),
    build_pi_line("label", "l1", "r1", targetId="u1", label="start"),
)


def build_codex_line(kind, **payload):
    return {"timestamp": TIME, "type": kind, "payload": payload}


def build_codex_message(role, text):
    return build_codex_line("response_item", type="message", role=role, content=[{"type": "output_text", "text": text}])


def build_codex_usage(tokens):
    used = {"input_tokens": tokens}
    return build_codex_line("event_msg", type="token_count", info={"last_token_usage": used, "total_token_usage": used})


CODEX = (
    build_codex_line("session_meta", id="T", cwd="/w"),
    build_codex_line("turn_context", cwd="/w", model="m"),
    build_codex_message("user", "one"),
    build_codex_message("assistant", "two"),
    build_codex_usage(7),
    build_codex_message("assistant", "three"),
    build_codex_usage(8),
    build_codex_line(
        "compacted", message="so far", replacement_history=[build_codex_message("user", "so far")["payload"]]
    ),
    build_codex_message("user", "four"),
    build_codex_line("event_msg", type="thread_rolled_back", num_turns=1),
    build_codex_message("user", "five"),
)
SAMPLES = {"claude-code": encode_lines(CLAUDE), "pi": encode_lines(PI), "codex": encode_lines(CODEX)}


def list_digests(recording):
    return [
        entry.body.sized_message.digest
        for entry in get_full_history_entries(recording)
        if hasattr(entry.body, "sized_message")
    ]


def list_all_digests(recording):
    return sorted(
        entry.body.sized_message.digest for entry in recording.entries if hasattr(entry.body, "sized_message")
    )


@pytest.mark.parametrize("name", LOGS)
def test_export_and_read_give_the_same_session(name):
    """Read, written and read again: the same tree of messages, the same model calls, the same context."""
    first = read_recording(SAMPLES[name])
    second = read_recording(export_bytes(first, name))
    assert list_digests(second) == list_digests(first)
    assert list_all_digests(second) == list_all_digests(first)
    assert [(step.usage, step.model) for step in list_model_calls(second)] == [
        (step.usage, step.model) for step in list_model_calls(first)
    ]
    assert [sized_message.digest for sized_message in build_projection(build_state_at_leaf(second))] == [
        sized_message.digest for sized_message in build_projection(build_state_at_leaf(first))
    ]
    assert second.problems == ()


@pytest.mark.parametrize("name", LOGS)
def test_export_writes_untouched_lines_byte_for_byte(name):
    """Every line with a message or a compaction is written unchanged, unless its link pointed to a skipped line."""
    lines = set(SAMPLES[name].split(b"\n"))
    out = export_bytes(read_recording(SAMPLES[name]), name).split(b"\n")
    new = [line for line in out if line not in lines]
    if name == "claude-code":
        assert [json.loads(line) for line in new] == [CLAUDE[2] | {"parentUuid": "u1"}]
    elif name == "pi":
        assert new == []
    else:
        assert {json.loads(line)["type"] for line in new} == {"event_msg"}


def test_export_keeps_lone_surrogates_of_recorded_lines():
    """A line with a surrogate that had to be replaced for reading is written with its own bytes."""
    line = rb'{"type":"user","uuid":"u","parentUuid":null,"sessionId":"S","message":{"role":"user","content":"\ud83d"}}'
    assert export_bytes(read_recording(line), "claude-code") == line + b"\n"


def test_export_splits_an_answer_at_its_recorded_lines():
    """An answer on several lines, one with half a surrogate pair, is written as those lines."""
    lines = encode_lines(
        [
            build_claude_line("user", "u1", None, "go"),
            build_claude_line("assistant", "a1", "u1", [{"type": "text", "text": 'a "quoted" \\ } ] text'}]),
            build_claude_line("assistant", "a2", "a1", [{"type": "text", "text": "HALF"}]),
        ]
    ).replace(b"HALF", rb"cut \ud83d \"")
    assert export_bytes(read_recording(lines), "claude-code") == lines


def test_export_writes_placeholders_for_foreign_blocks():
    """A block of one API is not written as it is for another tool: a placeholder takes its place."""
    lines = encode_lines(
        [build_claude_line("assistant", "a1", None, [{"type": "hologram", "x": 1}, {"type": "text", "text": "hi"}])]
    )
    for name in ("pi", "codex", "openai-chat"):
        out = export_bytes(read_recording(lines), name)
        assert b"[Attached hologram]" in out
        assert b'"x":1' not in out


def build_message_entry(role, *parts):
    return MessageEntry(make_sized_message(Message(role, parts), "", None))


def build_holdfast_log() -> Recording:
    """Build a log that Holdfast wrote: calls, results, an image, a compaction that keeps two messages."""
    log = RecordingBuilder()
    first = log.add_entry(
        "u1", None, build_message_entry("user", Text("one"), Media("image", "image/png", 2, "", "aGk=")), 1_000, 1
    )
    call = build_message_entry("assistant", Thinking("hm"), Text("I look"), ToolCall("c1", "bash", '{"a":1}'))
    two = log.add_answer("a1", first, call, CallMetadata("model-x", Usage(100, 5, 40, 30), "tool_use", 2), 2_000, 2)
    three = log.add_entry(
        "r1", two, build_message_entry("tool", ToolResult("c1", "bash", (Text("out"),), is_error=True)), 3_000, 3
    )
    summary = Message.from_text("user", "what was")
    cut = log.add_entry(
        "k1",
        three,
        CompactionEntry(first_kept=1, summary=summary, head_tokens=4, tokens_before=90, tokens_after=9),
        4_000,
        4,
    )
    leaf = log.add_entry("u2", cut, build_message_entry("user", Text("next")), 5_000, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


@pytest.mark.parametrize("name", LOGS)
def test_export_writes_a_holdfast_log_as_the_tools_records(name):
    """Messages, usage and a compaction become the tool's own records, and read back the same."""
    back = read_recording(export_bytes(build_holdfast_log(), name))
    messages = [
        entry.body.sized_message.message
        for entry in get_full_history_entries(back)
        if isinstance(entry.body, MessageEntry)
    ]
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert [message.text for message in messages] == ["one", "I look", "", "next"]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in messages[1].calls] == [
        ("c1", "bash", {"a": 1})
    ]
    assert messages[0].parts[1].source == "aGk="
    (step,) = list_model_calls(back)
    assert (step.model, step.usage) == ("model-x", Usage(100, 5, 40, 30))
    shown = [sized_message.message for sized_message in build_projection(build_state_at_leaf(back))]
    assert [message.role for message in shown] == ["user", "assistant", "tool", "user"]
    assert (shown[0].text, shown[-1].text) == ("what was", "next")
    assert back.problems == ()


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [("auto", "auto"), ("manual", "manual"), ("overflow", "auto"), ("replay", "auto"), ("fallback", "auto")],
)
def test_export_maps_compaction_triggers_for_claude_code(trigger, expected):
    """Claude Code knows manual and automatic compactions only, so every other trigger is written as automatic."""
    log = build_holdfast_log()
    entries = [
        replace(entry, body=replace(entry.body, trigger=trigger)) if isinstance(entry.body, CompactionEntry) else entry
        for entry in log.entries
    ]
    lines = [json.loads(line) for line in export_bytes(replace(log, entries=entries), "claude-code").splitlines()]
    assert [line["compactMetadata"]["trigger"] for line in lines if "compactMetadata" in line] == [expected]


def test_export_keeps_one_hour_cache_writes_for_claude_code():
    """The lifetime of cache writes reads back the same; a log without it writes no such field."""
    one_hour = Usage(100, 5, 40, 30, cache_write_1h=20)
    for usage in (one_hour, replace(one_hour, cache_write_1h=0)):
        entries = [
            replace(entry, body=replace(entry.body, usage=usage)) if isinstance(entry.body, AnswerEntry) else entry
            for entry in build_holdfast_log().entries
        ]
        out = export_bytes(replace(build_holdfast_log(), entries=tuple(entries)), "claude-code")
        (step,) = list_model_calls(read_recording(out))
        assert (step.usage, b"ephemeral" in out) == (usage, usage == one_hour)


def test_export_writes_a_compaction_for_claude_code():
    """A compaction is a boundary with its link and the kept uuids, followed by a summary line."""
    lines = [json.loads(line) for line in export_bytes(build_holdfast_log(), "claude-code").splitlines()]
    boundary, summary = lines[3], lines[4]
    assert (boundary["subtype"], boundary["parentUuid"]) == ("compact_boundary", None)
    assert boundary["logicalParentUuid"] == lines[2]["uuid"]
    assert boundary["compactMetadata"]["preservedMessages"]["uuids"] == [lines[1]["uuid"], lines[2]["uuid"]]
    assert (summary["isCompactSummary"], summary["parentUuid"]) == (True, boundary["uuid"])
    assert lines[5]["parentUuid"] == summary["uuid"]


def test_export_writes_a_compaction_for_pi():
    """A compaction is a line that names the first kept entry."""
    lines = [json.loads(line) for line in export_bytes(build_holdfast_log(), "pi").splitlines()]
    (cut,) = [line for line in lines if line["type"] == "compaction"]
    assert (cut["summary"], cut["firstKeptEntryId"], cut["parentId"]) == ("what was", "a1", "r1")


@pytest.mark.parametrize("name", BODIES)
def test_export_request_has_the_projected_context(name):
    """A request body holds the normalized context: the summary, the kept tail and later messages."""
    body = json.loads(export_bytes(build_holdfast_log(), name))
    assert body["model"] == "model-x"
    assert body["messages"][0]["role"] == "user"
    assert "what was" in json.dumps(body["messages"][0])
    assert len(body["messages"]) == (3 if name == "anthropic" else 4)


def build_proxied_log(turns: int, spilled: int = 99, keep: int = 0) -> Recording:
    """Build a proxy log of turns, each sent with a cache breakpoint; one is shown shortened, then comes a compaction.

    Messages have about 800 tokens; usage is the size of what each request showed.
    """
    log, at, total_tokens = RecordingBuilder(), None, 0
    for turn in range(turns):
        mark = {"type": "text", "text": f"kelp {turn} " * 400, "cache_control": {"type": "ephemeral"}}
        raw = json.dumps({"role": "user", "content": [mark]}).encode()
        sized_message = make_sized_message(anthropic.decode_message(raw), "anthropic", raw)
        at = log.add_entry(f"u{turn}", at, MessageEntry(sized_message))
        if turn == spilled:
            at = log.add_entry("d", at, DecisionEntry((Edit(Span(2 * turn, 2 * turn + 1, 0), (Text("short"),)),)))
        if keep and turn == turns - 2:
            at = log.add_entry(
                "k", at, CompactionEntry(first_kept=keep, summary=Message.from_text("user", "so far"), head_tokens=4)
            )
        total_tokens += 5 if turn == spilled else sized_message.tokens
        at = log.add_answer(
            f"a{turn}",
            at,
            build_message_entry("assistant", Text("ok")),
            CallMetadata("m", Usage(total_tokens, 5), "end_turn", 1),
            None,
        )
    return log.finish_recording(Recording("anthropic", session="s", model="m", leaf=at))


def test_export_request_keeps_the_newest_four_cache_breakpoints():
    """The messages were sent with more breakpoints than one request may have; the exported request is valid."""
    found = export_bytes(build_proxied_log(11), "anthropic")
    assert found.count(b'"cache_control"') == 4
    assert b'"cache_control"' in found[-300:]
    assert [finding for finding in validate_request(found, "anthropic") if finding.level == "error"] == []


def test_export_for_claude_code_has_no_cache_breakpoints():
    """Claude Code sets its own in what it sends, and at most four are allowed."""
    assert b"cache_control" not in export_bytes(build_proxied_log(11), "claude-code")


@pytest.mark.parametrize("name", LOGS)
def test_export_omits_usage_of_requests_with_shortened_results(name):
    """The written messages are longer than the ones that usage counted; after a compaction of them usage is written
    again.
    """
    used = [
        bool(step.usage.input)
        for step in list_model_calls(read_recording(export_bytes(build_proxied_log(8, spilled=3, keep=9), name)))
    ]
    assert used == [True, True, True, False, False, False, True, True]


def test_replay_ignores_growth_of_requests_with_shortened_results():
    """The token factor comes from growth between requests, and a shortened result grew the messages but not the
    request.
    """
    whole, short = (
        make_replay_session(
            read_recording(export_bytes(build_proxied_log(8, spilled=spilled), "claude-code")), "anthropic"
        )
        for spilled in (99, 3)
    )
    assert short.compute_factor(estimate_text_tokens) == pytest.approx(
        whole.compute_factor(estimate_text_tokens), rel=0.02
    )


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5},
        {"model": "m", "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "hi"}]},
    ],
)
def test_export_returns_an_imported_body_unchanged(body):
    """Fields, their order and the messages are those of the body that was read."""
    data = json.dumps(body, separators=(",", ":")).encode()
    recording = read_recording(data)
    assert export_bytes(recording, recording.format) == data


REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 777,
    "temperature": 0.5,
    "metadata": {"user_id": "u"},
    "system": "be kind",
    "tools": [{"name": "bash", "description": "runs", "input_schema": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [build_tool_use("c1")]},
        {"role": "user", "content": build_tool_result("c1")},
    ],
}


@pytest.mark.parametrize("api", API_NAMES)
def test_export_request_converts_options_to_another_api(api):
    """System prompt, tools and limits are converted, the request is valid, and fields without an equivalent are
    reported.
    """
    result = export_with_loss_notes(read_recording(json.dumps(REQUEST).encode()), api)
    body = result.data.decode()
    assert [word in body for word in ("be kind", "runs", "777", "0.5", '"hi"')] == [True] * 5
    assert [finding for finding in validate_request(result.data, api) if finding.level == "error"] == []
    assert ("user_id" in body) != any("metadata" in note for note in result.left_out)
    assert result.left_out == () or api != "anthropic"


@pytest.mark.parametrize(
    ("form", "expected_text"),
    [
        ("pi", '"thinking":"[Reasoning redacted]","thinkingSignature":"RED==","redacted":true'),
        ("opencode-json", '"metadata":{"anthropic":{"redactedData":"RED=="}}'),
        ("claude-code", '{"type": "redacted_thinking", "data": "RED=="}'),
    ],
)
def test_export_keeps_redacted_thinking_in_its_own_field(form, expected_text):
    """Redacted data is no signature: each tool has its own field for it, and no request has it as a signature."""
    hidden = {"type": "redacted_thinking", "data": "RED=="}
    answer = {"role": "assistant", "content": [hidden, {"type": "text", "text": "yes"}]}
    body = {"model": "m", "thinking": {"type": "adaptive"}, "messages": [{"role": "user", "content": "a"}, answer]}
    body["messages"].append({"role": "user", "content": "b"})
    result = export_bytes(read_recording(json.dumps(body).encode()), form)
    assert expected_text in result.decode()
    assert b"signature" not in export_bytes(read_recording(result), "anthropic")


@pytest.mark.parametrize("form", LOGS)
def test_export_reports_request_fields_a_session_cannot_hold(form):
    """A tool's file holds messages only; every other field of the imported request is named in a note."""
    (note,) = export_with_loss_notes(read_recording(json.dumps(REQUEST).encode()), form).left_out
    assert (
        note == f"max_tokens, temperature, metadata, system, tools: a session of {form} has no place for what its "
        "request asked for"
    )
    assert export_with_loss_notes(read_recording(SAMPLES[form]), form).left_out == ()


def test_export_request_reports_an_unrecorded_system_prompt():
    """If the log knows only its size, the request has no system prompt, and a note says so."""
    meta = build_codex_line("session_meta", id="T", cwd="/w", base_instructions={"text": "be kind " * 100})
    (note,) = export_with_loss_notes(read_recording(encode_lines([meta, *CODEX[1:]])), "openai-responses").left_out
    assert note.startswith("system prompt, tools and settings, ~")


@pytest.mark.parametrize(
    ("form", "dropped"),
    [
        ("atif", ["1 × document", "1 × image"]),
        ("claude-code", []),
        ("codex", ["1 × image"]),
        ("gemini-cli", ["1 × thinking"]),
        ("pi", ["1 × document"]),
        ("opencode-json", []),
        ("anthropic", []),
        ("openai-chat", ["1 × thinking"]),
        ("gemini", ["1 × thinking"]),
    ],
)
def test_export_counts_parts_a_format_cannot_hold(form, dropped):
    """Thinking, pictures and files that are dropped or replaced by a line are counted, whoever wrote the session."""
    shot, page = Media("image", "image/png", 2, "", "aGk="), Media("document", "application/pdf", 2, "d", "aGk=")
    log = RecordingBuilder()
    first = log.add_entry(
        "u", None, MessageEntry(make_sized_message(Message("user", (Text("hi"), page)), "anthropic", None))
    )
    answer = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "m", "sig")), ToolCall("c", "look")))
    two = log.add_answer(
        "a", first, MessageEntry(make_sized_message(answer, "anthropic", None)), CallMetadata("m"), None
    )
    leaf = log.add_entry(
        "r",
        two,
        MessageEntry(make_sized_message(Message("tool", (ToolResult("c", "look", (shot,)),)), "anthropic", None)),
    )
    recording = log.finish_recording(Recording("holdfast", session="s", leaf=leaf))
    assert [note.partition(":")[0] for note in export_with_loss_notes(recording, form).left_out] == dropped


def test_export_for_pi_drops_pictures_given_by_url():
    """pi stores picture data only: a picture given by URL becomes a line of text, and a note says so."""
    parts = Text("look"), Media("image", "image/png", 0, "", "https://x.org/a.png", None, "url")
    log = RecordingBuilder()
    leaf = log.add_entry("u", None, MessageEntry(make_sized_message(Message("user", parts), "anthropic", None)))
    result = export_with_loss_notes(log.finish_recording(Recording("holdfast", session="s", leaf=leaf)), "pi")
    assert b'"image"' not in result.data
    assert result.left_out == ("1 × image: a line or nothing stands there",)


def test_export_reports_dropped_sub_agent_conversations():
    """A format for one conversation drops those of sub-agents, and a note says so."""
    side = build_claude_line("user", "s1", None, "sub", isSidechain=True)
    recording = read_recording(encode_lines([side, *CLAUDE]))
    assert [bool(export_with_loss_notes(recording, form).left_out) for form in LOGS] == [False, True, True]


def test_export_upgrades_pi_version_1_to_version_3():
    """Lines without ids get the fields of version 3, the index of a compaction becomes an id, and the tree is the
    same.
    """
    data = encode_lines(
        [
            {"type": "session", "id": "S", "timestamp": TIME, "cwd": "/w"},
            {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "a"}},
            {"type": "message", "timestamp": TIME, "message": {"role": "hookMessage", "content": "b"}},
            {"type": "compaction", "timestamp": TIME, "summary": "s", "firstKeptEntryIndex": 2, "tokensBefore": 9},
        ]
    )
    out = [json.loads(line) for line in export_bytes(read_recording(data), "pi").splitlines()]
    assert out[0]["version"] == 3
    assert [line.get("parentId") for line in out[1:]] == [None, out[1]["id"], out[2]["id"]]
    assert out[2]["message"]["role"] == "custom"
    assert (out[3]["firstKeptEntryId"], "firstKeptEntryIndex" in out[3]) == (out[2]["id"], False)
    assert list_digests(read_recording(encode_lines(out))) == list_digests(read_recording(data))


def test_export_for_pi_renames_roles_but_not_text():
    """Only the role itself is renamed for version 3; a line that merely contains the word is written unchanged."""
    says = [{"type": "text", "text": "I grep for hookMessage."}]
    lines = [
        PI[0],
        build_pi_message("u1", None, "user", "rename hookMessage"),
        build_pi_message("a1", "u1", "assistant", says),
    ]
    data = encode_lines(lines)
    assert export_bytes(read_recording(data), "pi") == data


@pytest.mark.parametrize("name", LOGS)
def test_export_ends_the_file_at_the_leaf(name):
    """Tools continue from the end of a file, so the file ends at the leaf."""
    recording = read_recording(SAMPLES[name])
    for leaf in [entry.id for entry in recording.entries if isinstance(entry.body, MessageEntry)]:
        moved = replace(recording, leaf=leaf)
        found = list_digests(read_recording(export_bytes(moved, name)))
        assert found[: len(list_digests(moved))] == list_digests(moved)
        assert len(found) <= len(list_digests(moved)) + 1  # the results of an answer come with it


def test_export_accepts_entries_without_a_recording():
    """The entries of a log, as a store has them, can be exported too."""
    recording = read_recording(SAMPLES["pi"])
    assert list_digests(read_recording(export_bytes(recording.entries, "pi"))) == list_digests(recording)
    assert list_digests(read_recording(export_bytes(make_recording(build_holdfast_log().entries), "claude-code"))) != []


def test_export_writes_sidechains_for_claude_code():
    """Sidechains of a Claude Code file stay in the file, and stay separate."""
    side = [
        build_claude_line("user", "s1", None, "sub", isSidechain=True),
        build_claude_line("assistant", "s2", "s1", [], isSidechain=True),
    ]
    recording = read_recording(encode_lines([*side, *CLAUDE]))
    back = read_recording(export_bytes(recording, "claude-code"))
    assert list_digests(back) == list_digests(recording)
    assert [list_digests(side) for side in back.sidechains] == [list_digests(side) for side in recording.sidechains]


def test_export_rejects_an_unknown_format():
    """The error lists the formats that exist."""
    with pytest.raises(FormatError, match="claude-code, codex, gemini-cli, opencode-json, pi, anthropic, openai-chat"):
        export_bytes(build_holdfast_log(), "docx")


BROKEN = (
    build_claude_line("user", "u1", None, "go"),
    build_claude_line("assistant", "a1", "u1", [build_tool_use("c1")]),
    build_claude_line("user", "r1", "a1", build_tool_result("c1")),
    build_claude_line("assistant", "a2", "r1", [build_tool_use("c2")]),
    build_claude_line("user", "r2", "a2", build_tool_result("c2")),
    build_claude_line("user", "u2", "r2", "on"),
)
"""One answer on two lines, the result of its first call between them."""


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(BROKEN[:2], id="open call"),
        pytest.param((BROKEN[0], BROKEN[2]), id="orphan"),
        pytest.param((BROKEN[0], BROKEN[1], BROKEN[5]), id="call without its result"),
        pytest.param(
            (
                BROKEN[0],
                build_claude_line("assistant", "a1", "u1", [{"type": "thinking", "thinking": "hm", "signature": "s"}]),
                build_claude_line("assistant", "a2", "a1", [{"type": "text", "text": "done"}]),
            ),
            id="final thinking",
        ),
    ],
)
def test_export_request_is_valid_for_a_damaged_log(lines, name):
    """What a log leaves open is normalized in the exported request."""
    body = export_bytes(read_recording(encode_lines(lines)), name)
    assert [found for found in validate_request(body, name) if found.level == "error"] == []


@pytest.mark.parametrize("name", BODIES)
def test_export_request_rejects_a_leaf_without_messages(name):
    """A log without a message at its leaf makes no request, and the error says so."""
    with pytest.raises(FormatError, match="no message at the leaf"):
        export_bytes(Recording("holdfast"), name)


@pytest.mark.parametrize("number", range(1, len(BROKEN)))
def test_export_after_a_damaged_line_reads_back_the_same(number):
    """With any line unreadable, the export has the same messages in the same order, without a circle."""
    lines = encode_lines(BROKEN).splitlines()
    first = read_recording(b"\n".join([*lines[:number], b"{oops", *lines[number + 1 :]]))
    second = read_recording(export_bytes(first, "claude-code"))
    assert list_digests(second) == list_digests(first)
    assert second.problems == ()


@pytest.mark.parametrize(("earlier", "number"), list(combinations(range(len(BROKEN)), 2)))
def test_export_after_a_reused_uuid_reads_back_the_same(earlier, number):
    """With any line under the uuid of an earlier one, the export has the same messages in the same order."""
    lines = [dict(line) for line in BROKEN]
    lines[number]["uuid"] = lines[earlier]["uuid"]
    first = read_recording(encode_lines(lines))
    second = read_recording(export_bytes(first, "claude-code"))
    assert list_digests(second) == list_digests(first)


def test_export_for_codex_keeps_error_results():
    """A failed call is still one when the rollout is read again."""
    back = read_recording(export_bytes(build_holdfast_log(), "codex"))
    results = [
        result
        for entry in back.entries
        if isinstance(entry.body, MessageEntry)
        for result in entry.body.sized_message.message.results
    ]
    assert [(result.is_error, get_result_text(result)) for result in results] == [(True, "out")]


def test_export_for_claude_code_keeps_system_messages():
    """Claude Code has no line for system messages; those that Holdfast writes read back as such and are written
    unchanged.
    """
    log = RecordingBuilder()
    first = log.add_entry("s1", None, build_message_entry("system", Text("be brief")), 1_000, 1)
    leaf = log.add_entry("u1", first, build_message_entry("user", Text("hello")), 2_000, 2)
    recording = log.finish_recording(Recording("holdfast", session="ours", leaf=leaf))
    lines = export_bytes(recording, "claude-code")
    assert list_digests(read_recording(lines)) == list_digests(recording)
    assert export_bytes(read_recording(lines), "claude-code") == lines


def test_export_after_damage_inside_an_answer_has_no_circle():
    """A result whose parent is unreadable follows its answer, and the answer's next line follows the result, without
    a circle.
    """
    lines = encode_lines(
        [
            BROKEN[0],
            BROKEN[1],
            build_claude_line("assistant", "a2", "a1", [build_tool_use("c2")]),
            build_claude_line("user", "r1", "a2", build_tool_result("c1")),
            build_claude_line("assistant", "a3", "r1", [build_tool_use("c3")]),
            build_claude_line("user", "r3", "a3", build_tool_result("c3")),
        ]
    ).splitlines()
    first = read_recording(b"\n".join([*lines[:2], b"{oops", *lines[3:]]))
    second = read_recording(export_bytes(first, "claude-code"))
    assert list_digests(second) == list_digests(first)
    assert second.problems == ()
