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


def packed(lines):
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def claude(kind, uuid, parent, content="", **more):
    api = {"id": f"m{uuid[0]}", "model": "claude-x", "usage": {"input_tokens": 7}} if kind == "assistant" else {}
    message = {"message": {"role": kind} | api | {"content": content}} if kind != "progress" else {}
    head = {"parentUuid": parent, "isSidechain": False, "type": kind, "sessionId": "S", "uuid": uuid}
    return head | message | {"timestamp": TIME} | more


def called(id_):
    return {"type": "tool_use", "id": id_, "name": "bash", "input": {"a": 1}}


def came(id_):
    return [{"type": "tool_result", "tool_use_id": id_, "content": "ok"}]


CLAUDE = (
    claude("user", "u1", None, "one"),
    claude("progress", "p1", "u1"),
    claude("assistant", "a1", "p1", [called("c1")]),
    claude("user", "r1", "a1", came("c1"), toolUseResult={"stdout": "ok"}),
    claude("assistant", "a2", "r1", [called("c2")]),
    claude("user", "r2", "a2", came("c2")),
    claude("user", "x1", "r2", "not this"),
    claude("user", "u2", "r2", "two"),
    {"parentUuid": None, "logicalParentUuid": "u2", "type": "system", "subtype": "compact_boundary", "uuid": "B"}
    | {"compactMetadata": {"trigger": "manual", "preservedMessages": {"uuids": ["u2"]}}, "timestamp": TIME},
    claude("user", "S", "B", "so far", isCompactSummary=True),
    claude("assistant", "z1", "S", [{"type": "text", "text": "three"}]),
)


def pi(kind, id_, parent, **more):
    return {"type": kind, "id": id_, "parentId": parent, "timestamp": TIME} | more


def pi_said(id_, parent, role, content, **more):
    return pi("message", id_, parent, message={"role": role, "content": content} | more)


USED = {"input": 7, "output": 1, "cacheRead": 0, "cacheWrite": 0}
PI = (
    {"type": "session", "version": 3, "id": "S", "timestamp": TIME, "cwd": "/w"},
    pi("model_change", "s1", None, provider="p", modelId="m"),
    pi_said("u1", "s1", "user", "one"),
    pi_said("a1", "u1", "assistant", [{"type": "text", "text": "two"}], usage=USED, stopReason="stop", model="m"),
    pi("compaction", "c1", "a1", summary="so far", firstKeptEntryId="a1", tokensBefore=9),
    pi_said("x1", "c1", "user", "not this"),
    pi("branch_summary", "b1", "c1", fromId="x1", summary="tried"),
    pi_said("r1", "b1", "toolResult", [], toolCallId="c", toolName="t", isError=False),
    pi("label", "l1", "r1", targetId="u1", label="start"),
)


def codex(kind, **payload):
    return {"timestamp": TIME, "type": kind, "payload": payload}


def spoken(role, text):
    return codex("response_item", type="message", role=role, content=[{"type": "output_text", "text": text}])


def counted(tokens):
    used = {"input_tokens": tokens}
    return codex("event_msg", type="token_count", info={"last_token_usage": used, "total_token_usage": used})


CODEX = (
    codex("session_meta", id="T", cwd="/w"),
    codex("turn_context", cwd="/w", model="m"),
    spoken("user", "one"),
    spoken("assistant", "two"),
    counted(7),
    spoken("assistant", "three"),
    counted(8),
    codex("compacted", message="so far", replacement_history=[spoken("user", "so far")["payload"]]),
    spoken("user", "four"),
    codex("event_msg", type="thread_rolled_back", num_turns=1),
    spoken("user", "five"),
)
SAMPLES = {"claude-code": packed(CLAUDE), "pi": packed(PI), "codex": packed(CODEX)}


def digests(recording):
    return [
        entry.body.sized_message.digest
        for entry in get_full_history_entries(recording)
        if hasattr(entry.body, "sized_message")
    ]


def everything(recording):
    return sorted(
        entry.body.sized_message.digest for entry in recording.entries if hasattr(entry.body, "sized_message")
    )


@pytest.mark.parametrize("name", LOGS)
def test_there_and_back(name):
    """Read, written and read again: the same tree of messages, the same steps, the same context."""
    first = read_recording(SAMPLES[name])
    second = read_recording(export_bytes(first, name))
    assert digests(second) == digests(first)
    assert everything(second) == everything(first)
    assert [(step.usage, step.model) for step in list_model_calls(second)] == [
        (step.usage, step.model) for step in list_model_calls(first)
    ]
    assert [slot.digest for slot in build_projection(build_state_at_leaf(second))] == [
        slot.digest for slot in build_projection(build_state_at_leaf(first))
    ]
    assert second.problems == ()


@pytest.mark.parametrize("name", LOGS)
def test_lines_that_nothing_touched_come_out_as_they_were(name):
    """Every line with a message or a compaction is written byte for byte, unless its link had to be led on."""
    lines = set(SAMPLES[name].split(b"\n"))
    out = export_bytes(read_recording(SAMPLES[name]), name).split(b"\n")
    new = [line for line in out if line not in lines]
    if name == "claude-code":
        assert [json.loads(line) for line in new] == [CLAUDE[2] | {"parentUuid": "u1"}]
    elif name == "pi":
        assert new == []
    else:
        assert {json.loads(line)["type"] for line in new} == {"event_msg"}


def test_half_surrogates_survive_an_export():
    """A line that had to be mended for reading goes out with its own bytes."""
    line = rb'{"type":"user","uuid":"u","parentUuid":null,"sessionId":"S","message":{"role":"user","content":"\ud83d"}}'
    assert export_bytes(read_recording(line), "claude-code") == line + b"\n"


def test_lines_of_one_answer_part_where_they_did():
    """An answer on several lines, one with half a surrogate pair, is written as those lines."""
    lines = packed(
        [
            claude("user", "u1", None, "go"),
            claude("assistant", "a1", "u1", [{"type": "text", "text": 'a "quoted" \\ } ] text'}]),
            claude("assistant", "a2", "a1", [{"type": "text", "text": "HALF"}]),
        ]
    ).replace(b"HALF", rb"cut \ud83d \"")
    assert export_bytes(read_recording(lines), "claude-code") == lines


def test_parts_that_another_tool_does_not_know():
    """Blocks of one API do not travel as they are: another tool gets a placeholder."""
    lines = packed([claude("assistant", "a1", None, [{"type": "hologram", "x": 1}, {"type": "text", "text": "hi"}])])
    for name in ("pi", "codex", "openai-chat"):
        out = export_bytes(read_recording(lines), name)
        assert b"[Attached hologram]" in out
        assert b'"x":1' not in out


def said(role, *parts):
    return MessageEntry(make_sized_message(Message(role, parts), "", None))


def ours() -> Recording:
    """A log of our own: calls, results, an image, a compaction that keeps two messages."""
    log = RecordingBuilder()
    one = log.add_entry("u1", None, said("user", Text("one"), Media("image", "image/png", 2, "", "aGk=")), 1_000, 1)
    call = said("assistant", Thinking("hm"), Text("I look"), ToolCall("c1", "bash", '{"a":1}'))
    two = log.add_answer("a1", one, call, CallMetadata("model-x", Usage(100, 5, 40, 30), "tool_use", 2), 2_000, 2)
    three = log.add_entry("r1", two, said("tool", ToolResult("c1", "bash", (Text("out"),), is_error=True)), 3_000, 3)
    summary = Message.from_text("user", "what was")
    cut = log.add_entry(
        "k1",
        three,
        CompactionEntry(first_kept=1, summary=summary, head_tokens=4, tokens_before=90, tokens_after=9),
        4_000,
        4,
    )
    leaf = log.add_entry("u2", cut, said("user", Text("next")), 5_000, 5)
    return log.finish_recording(
        Recording("holdfast", session="ours", cwd="/w", model="model-x", api="anthropic", leaf=leaf)
    )


@pytest.mark.parametrize("name", LOGS)
def test_what_was_never_a_line_is_written_anew(name):
    """Messages, usage and a compaction of ours become the tool's own records, and mean the same there."""
    back = read_recording(export_bytes(ours(), name))
    messages = [
        entry.body.sized_message.message
        for entry in get_full_history_entries(back)
        if isinstance(entry.body, MessageEntry)
    ]
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert [message.text for message in messages] == ["one", "I look", "", "next"]
    assert [(one.id, one.name, json.loads(one.arguments)) for one in messages[1].calls] == [("c1", "bash", {"a": 1})]
    assert messages[0].parts[1].source == "aGk="
    (step,) = list_model_calls(back)
    assert (step.model, step.usage) == ("model-x", Usage(100, 5, 40, 30))
    shown = [slot.message for slot in build_projection(build_state_at_leaf(back))]
    assert [message.role for message in shown] == ["user", "assistant", "tool", "user"]
    assert (shown[0].text, shown[-1].text) == ("what was", "next")
    assert back.problems == ()


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [("auto", "auto"), ("manual", "manual"), ("overflow", "auto"), ("replay", "auto"), ("fallback", "auto")],
)
def test_a_compaction_has_a_trigger_that_claude_code_knows(trigger, expected):
    """Claude Code tells compactions that were asked for from its own, and has no word for what made us compact."""
    log = ours()
    entries = [
        replace(one, body=replace(one.body, trigger=trigger)) if isinstance(one.body, CompactionEntry) else one
        for one in log.entries
    ]
    lines = [json.loads(line) for line in export_bytes(replace(log, entries=entries), "claude-code").splitlines()]
    assert [line["compactMetadata"]["trigger"] for line in lines if "compactMetadata" in line] == [expected]


def test_what_was_written_for_an_hour_stays_so_in_claude_code():
    """How long the cache keeps what was written comes back, and of a log that does not tell it nothing is said."""
    told = Usage(100, 5, 40, 30, cache_write_1h=20)
    for usage in (told, replace(told, cache_write_1h=0)):
        entries = [
            replace(one, body=replace(one.body, usage=usage)) if isinstance(one.body, AnswerEntry) else one
            for one in ours().entries
        ]
        out = export_bytes(replace(ours(), entries=tuple(entries)), "claude-code")
        (step,) = list_model_calls(read_recording(out))
        assert (step.usage, b"ephemeral" in out) == (usage, usage == told)


def test_our_compaction_in_claude_code():
    """A boundary with its link and the kept uuids, and a summary line behind it."""
    lines = [json.loads(line) for line in export_bytes(ours(), "claude-code").splitlines()]
    boundary, summary = lines[3], lines[4]
    assert (boundary["subtype"], boundary["parentUuid"]) == ("compact_boundary", None)
    assert boundary["logicalParentUuid"] == lines[2]["uuid"]
    assert boundary["compactMetadata"]["preservedMessages"]["uuids"] == [lines[1]["uuid"], lines[2]["uuid"]]
    assert (summary["isCompactSummary"], summary["parentUuid"]) == (True, boundary["uuid"])
    assert lines[5]["parentUuid"] == summary["uuid"]


def test_our_compaction_in_pi():
    """A line that names the first entry that was kept."""
    lines = [json.loads(line) for line in export_bytes(ours(), "pi").splitlines()]
    (cut,) = [line for line in lines if line["type"] == "compaction"]
    assert (cut["summary"], cut["firstKeptEntryId"], cut["parentId"]) == ("what was", "a1", "r1")


@pytest.mark.parametrize("name", BODIES)
def test_body_is_the_projected_context(name):
    """A request holds what the branch shows, repaired: the summary, the kept tail, what came later."""
    body = json.loads(export_bytes(ours(), name))
    assert body["model"] == "model-x"
    assert body["messages"][0]["role"] == "user"
    assert "what was" in json.dumps(body["messages"][0])
    assert len(body["messages"]) == (3 if name == "anthropic" else 4)


def proxied(turns: int, spilled: int = 99, keep: int = 0) -> Recording:
    """A log of as many turns, each said with a cache breakpoint; one result is shown short, then there is a compaction.

    Results are 800 tokens; usage is what the requests held.
    """
    log, at, held = RecordingBuilder(), None, 0
    for turn in range(turns):
        mark = {"type": "text", "text": f"kelp {turn} " * 400, "cache_control": {"type": "ephemeral"}}
        raw = json.dumps({"role": "user", "content": [mark]}).encode()
        slot = make_sized_message(anthropic.decode_message(raw), "anthropic", raw)
        at = log.add_entry(f"u{turn}", at, MessageEntry(slot))
        if turn == spilled:
            at = log.add_entry("d", at, DecisionEntry((Edit(Span(2 * turn, 2 * turn + 1, 0), (Text("short"),)),)))
        if keep and turn == turns - 2:
            at = log.add_entry(
                "k", at, CompactionEntry(first_kept=keep, summary=Message.from_text("user", "so far"), head_tokens=4)
            )
        held += 5 if turn == spilled else slot.tokens
        at = log.add_answer(
            f"a{turn}", at, said("assistant", Text("ok")), CallMetadata("m", Usage(held, 5), "end_turn", 1), None
        )
    return log.finish_recording(Recording("anthropic", session="s", model="m", leaf=at))


def test_a_request_of_many_requests_words_has_as_many_breakpoints_as_one_may():
    """The newest four of them: the provider takes what is written."""
    found = export_bytes(proxied(11), "anthropic")
    assert found.count(b'"cache_control"') == 4
    assert b'"cache_control"' in found[-300:]
    assert [one for one in validate_request(found, "anthropic") if one.level == "error"] == []


def test_no_transcript_has_breakpoints():
    """Claude Code sets its own in what it sends, and there is room for four."""
    assert b"cache_control" not in export_bytes(proxied(11), "claude-code")


@pytest.mark.parametrize("name", LOGS)
def test_usage_of_a_request_that_showed_less_is_left_out(name):
    """What is written is longer than what that usage is of; behind a compaction of it usage is told again."""
    used = [
        bool(step.usage.input)
        for step in list_model_calls(read_recording(export_bytes(proxied(8, spilled=3, keep=9), name)))
    ]
    assert used == [True, True, True, False, False, False, True, True]


def test_a_replay_takes_no_measure_of_requests_that_showed_less():
    """Growth tells what a token is, and a result that was shown short grew the messages and not the request."""
    whole, short = (
        make_replay_session(read_recording(export_bytes(proxied(8, spilled=spilled), "claude-code")), "anthropic")
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
def test_imported_body_comes_out_as_it_was(body):
    """Fields, their order and the messages are those of the body that was read."""
    data = json.dumps(body, separators=(",", ":")).encode()
    recording = read_recording(data)
    assert export_bytes(recording, recording.format) == data


ASKED = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 777,
    "temperature": 0.5,
    "metadata": {"user_id": "u"},
    "system": "be kind",
    "tools": [{"name": "bash", "description": "runs", "input_schema": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [called("c1")]},
        {"role": "user", "content": came("c1")},
    ],
}


@pytest.mark.parametrize("api", API_NAMES)
def test_a_body_for_another_api_asks_for_the_same(api):
    """System prompt, tools and limits go along, the request is valid, and what has no form there is told."""
    made = export_with_loss_notes(read_recording(json.dumps(ASKED).encode()), api)
    body = made.data.decode()
    assert [word in body for word in ("be kind", "runs", "777", "0.5", '"hi"')] == [True] * 5
    assert [one for one in validate_request(made.data, api) if one.level == "error"] == []
    there = ("user_id" in body) != any("metadata" in note for note in made.left_out)
    assert there
    assert made.left_out == () or api != "anthropic"


@pytest.mark.parametrize(
    ("form", "written_so"),
    [
        ("pi", '"thinking":"[Reasoning redacted]","thinkingSignature":"RED==","redacted":true'),
        ("opencode-json", '"metadata":{"anthropic":{"redactedData":"RED=="}}'),
        ("claude-code", '{"type": "redacted_thinking", "data": "RED=="}'),
    ],
)
def test_thinking_that_nobody_is_shown_becomes_no_other_thinking(form, written_so):
    """What stands for it is no signature: each tool has its own field for it, and no request holds it as one."""
    hidden = {"type": "redacted_thinking", "data": "RED=="}
    answer = {"role": "assistant", "content": [hidden, {"type": "text", "text": "yes"}]}
    asked = {"model": "m", "thinking": {"type": "adaptive"}, "messages": [{"role": "user", "content": "a"}, answer]}
    asked["messages"].append({"role": "user", "content": "b"})
    made = export_bytes(read_recording(json.dumps(asked).encode()), form)
    assert written_so in made.decode()
    assert b"signature" not in export_bytes(read_recording(made), "anthropic")


@pytest.mark.parametrize("form", LOGS)
def test_what_a_tool_has_no_place_for_is_told(form):
    """A tool's file holds what was said; of what the imported request asked for beside it every field is named."""
    (note,) = export_with_loss_notes(read_recording(json.dumps(ASKED).encode()), form).left_out
    assert (
        note == f"max_tokens, temperature, metadata, system, tools: a session of {form} has no place for what its "
        "request asked for"
    )
    assert export_with_loss_notes(read_recording(SAMPLES[form]), form).left_out == ()


def test_a_request_without_the_system_prompt_says_so():
    """Where the log knows only how large it was, the request has none, and the export tells that."""
    meta = codex("session_meta", id="T", cwd="/w", base_instructions={"text": "be kind " * 100})
    (note,) = export_with_loss_notes(read_recording(packed([meta, *CODEX[1:]])), "openai-responses").left_out
    assert note.startswith("system prompt, tools and settings, ~")


@pytest.mark.parametrize(
    ("form", "lost"),
    [
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
def test_parts_without_a_place_are_told(form, lost):
    """Thinking, pictures and files for which a line or nothing stands are counted, whoever wrote the session."""
    shot, page = Media("image", "image/png", 2, "", "aGk="), Media("document", "application/pdf", 2, "d", "aGk=")
    log = RecordingBuilder()
    one = log.add_entry(
        "u", None, MessageEntry(make_sized_message(Message("user", (Text("hi"), page)), "anthropic", None))
    )
    answer = Message("assistant", (Thinking("hm", ProviderSignature("anthropic", "m", "sig")), ToolCall("c", "look")))
    two = log.add_answer("a", one, MessageEntry(make_sized_message(answer, "anthropic", None)), CallMetadata("m"), None)
    leaf = log.add_entry(
        "r",
        two,
        MessageEntry(make_sized_message(Message("tool", (ToolResult("c", "look", (shot,)),)), "anthropic", None)),
    )
    recording = log.finish_recording(Recording("holdfast", session="s", leaf=leaf))
    assert [note.partition(":")[0] for note in export_with_loss_notes(recording, form).left_out] == lost


def test_pi_is_given_no_address_for_a_picture():
    """pi holds pictures themselves alone: of one that lies elsewhere a line tells, and the export says so."""
    parts = Text("look"), Media("image", "image/png", 0, "", "https://x.org/a.png", None, "url")
    log = RecordingBuilder()
    leaf = log.add_entry("u", None, MessageEntry(make_sized_message(Message("user", parts), "anthropic", None)))
    made = export_with_loss_notes(log.finish_recording(Recording("holdfast", session="s", leaf=leaf)), "pi")
    assert b'"image"' not in made.data
    assert made.left_out == ("1 × image: a line or nothing stands there",)


def test_sub_agents_without_a_place_are_told():
    """A file of one conversation leaves out those of sub-agents, and says how many."""
    side = claude("user", "s1", None, "sub", isSidechain=True)
    recording = read_recording(packed([side, *CLAUDE]))
    assert [bool(export_with_loss_notes(recording, form).left_out) for form in LOGS] == [False, True, True]


def test_version_1_of_pi_becomes_version_3():
    """Lines without ids get what version 3 asks for, the index of a compaction an id; the tree is the same."""
    data = packed(
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
    assert digests(read_recording(packed(out))) == digests(read_recording(data))


def test_words_of_another_version_change_no_role():
    """Only the role itself is renamed for version 3: a line that merely holds that word leaves as it came."""
    says = [{"type": "text", "text": "I grep for hookMessage."}]
    lines = [PI[0], pi_said("u1", None, "user", "rename hookMessage"), pi_said("a1", "u1", "assistant", says)]
    data = packed(lines)
    assert export_bytes(read_recording(data), "pi") == data


@pytest.mark.parametrize("name", LOGS)
def test_leaf_that_is_not_the_last_entry_comes_last(name):
    """Tools go on from the end of a file, so the file ends where the conversation stands."""
    recording = read_recording(SAMPLES[name])
    for leaf in [entry.id for entry in recording.entries if isinstance(entry.body, MessageEntry)]:
        moved = replace(recording, leaf=leaf)
        found = digests(read_recording(export_bytes(moved, name)))
        assert found[: len(digests(moved))] == digests(moved)
        assert len(found) <= len(digests(moved)) + 1  # the results of an answer come with it


def test_entries_alone_are_enough():
    """A log without its recording, as a store has it, is written too."""
    recording = read_recording(SAMPLES["pi"])
    assert digests(read_recording(export_bytes(recording.entries, "pi"))) == digests(recording)
    assert digests(read_recording(export_bytes(make_recording(ours().entries), "claude-code"))) != []


def test_sub_agents_are_written_with_their_session():
    """Sidechains of a Claude Code file stay in the file, and stay apart."""
    side = [claude("user", "s1", None, "sub", isSidechain=True), claude("assistant", "s2", "s1", [], isSidechain=True)]
    recording = read_recording(packed([*side, *CLAUDE]))
    back = read_recording(export_bytes(recording, "claude-code"))
    assert digests(back) == digests(recording)
    assert [digests(one) for one in back.sidechains] == [digests(one) for one in recording.sidechains]


def test_unknown_format():
    """An unknown name raises with the list of those there are."""
    with pytest.raises(FormatError, match="claude-code, codex, gemini-cli, opencode-json, pi, anthropic, openai-chat"):
        export_bytes(ours(), "docx")


BROKEN = (
    claude("user", "u1", None, "go"),
    claude("assistant", "a1", "u1", [called("c1")]),
    claude("user", "r1", "a1", came("c1")),
    claude("assistant", "a2", "r1", [called("c2")]),
    claude("user", "r2", "a2", came("c2")),
    claude("user", "u2", "r2", "on"),
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
                claude("assistant", "a1", "u1", [{"type": "thinking", "thinking": "hm", "signature": "s"}]),
                claude("assistant", "a2", "a1", [{"type": "text", "text": "done"}]),
            ),
            id="final thinking",
        ),
    ],
)
def test_body_is_one_that_the_provider_takes(lines, name):
    """What a log leaves open is repaired in the request that it becomes."""
    body = export_bytes(read_recording(packed(lines)), name)
    assert [found for found in validate_request(body, name) if found.level == "error"] == []


@pytest.mark.parametrize("name", BODIES)
def test_body_without_a_message_is_refused(name):
    """A log with no words at its leaf makes no request, and the message says so."""
    with pytest.raises(FormatError, match="no message at the leaf"):
        export_bytes(Recording("holdfast"), name)


@pytest.mark.parametrize("number", range(1, len(BROKEN)))
def test_a_damaged_line_does_not_disturb_an_export(number):
    """With any line unreadable, the export is read as the same messages in the same order, without a circle."""
    lines = packed(BROKEN).splitlines()
    first = read_recording(b"\n".join([*lines[:number], b"{oops", *lines[number + 1 :]]))
    second = read_recording(export_bytes(first, "claude-code"))
    assert digests(second) == digests(first)
    assert second.problems == ()


@pytest.mark.parametrize(("earlier", "number"), list(combinations(range(len(BROKEN)), 2)))
def test_a_reused_uuid_does_not_disturb_an_export(earlier, number):
    """With any line under the uuid of an earlier one, the export is read as the same messages in the same order."""
    lines = [dict(line) for line in BROKEN]
    lines[number]["uuid"] = lines[earlier]["uuid"]
    first = read_recording(packed(lines))
    second = read_recording(export_bytes(first, "claude-code"))
    assert digests(second) == digests(first)


def test_codex_keeps_that_a_result_is_an_error():
    """A failed call is still one when the rollout is read again."""
    back = read_recording(export_bytes(ours(), "codex"))
    results = [
        one
        for entry in back.entries
        if isinstance(entry.body, MessageEntry)
        for one in entry.body.sized_message.message.results
    ]
    assert [(one.is_error, get_result_text(one)) for one in results] == [(True, "out")]


def test_system_messages_come_back_from_claude_code():
    """That tool has no line for them; those we write are read as what they were, and written again as they came."""
    log = RecordingBuilder()
    one = log.add_entry("s1", None, said("system", Text("be brief")), 1_000, 1)
    leaf = log.add_entry("u1", one, said("user", Text("hello")), 2_000, 2)
    first = log.finish_recording(Recording("holdfast", session="ours", leaf=leaf))
    lines = export_bytes(first, "claude-code")
    assert digests(read_recording(lines)) == digests(first)
    assert export_bytes(read_recording(lines), "claude-code") == lines


def test_a_damaged_line_inside_an_answer_makes_no_circle():
    """A result whose parent is unreadable hangs on its answer, whose next line hangs on the result: not in a circle."""
    lines = packed(
        [
            BROKEN[0],
            BROKEN[1],
            claude("assistant", "a2", "a1", [called("c2")]),
            claude("user", "r1", "a2", came("c1")),
            claude("assistant", "a3", "r1", [called("c3")]),
            claude("user", "r3", "a3", came("c3")),
        ]
    ).splitlines()
    first = read_recording(b"\n".join([*lines[:2], b"{oops", *lines[3:]]))
    second = read_recording(export_bytes(first, "claude-code"))
    assert digests(second) == digests(first)
    assert second.problems == ()
