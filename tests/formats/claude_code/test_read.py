from __future__ import annotations

import json

import pytest

from holdfast.formats.base import build_state_at_leaf, get_full_history_entries, list_model_calls
from holdfast.formats.claude_code import read as claude_code
from holdfast.messages.parts import Opaque
from holdfast.planning.extract.previous_summary import EXTRACT_OPENING
from holdfast.providers.anthropic import messages as anthropic
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.view import build_projection


def line(kind, uuid, parent, **more):
    time = "2026-02-11T20:36:45.618Z"
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "S", "cwd": "/w", "timestamp": time} | more


def build_user_line(uuid, parent, content, **more):
    return line("user", uuid, parent, message={"role": "user", "content": content}, **more)


def result(uuid, parent, call, text="ok", **more):
    return build_user_line(uuid, parent, [{"type": "tool_result", "tool_use_id": call, "content": text}], **more)


def build_assistant_line(uuid, parent, mid, *blocks, out=1, model="claude-x", **more):
    usage = {"input_tokens": 2, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 400, "output_tokens": out}
    message = {"id": mid, "role": "assistant", "model": model, "content": list(blocks), "usage": usage}
    return line("assistant", uuid, parent, requestId=f"req-{mid}", message=message, **more)


def text(words):
    return {"type": "text", "text": words}


def call(id_, name="bash"):
    return {"type": "tool_use", "id": id_, "name": name, "input": {}}


def build_progress_line(uuid, parent):
    return line("progress", uuid, parent, data={"type": "hook_progress"})


def build_boundary(uuid, logical, **metadata):
    fields = {"trigger": "auto", "preTokens": 900, **metadata}
    return line("system", uuid, None, subtype="compact_boundary", logicalParentUuid=logical, compactMetadata=fields)


def summary(uuid, parent, words="summary"):
    return build_user_line(uuid, parent, words, isCompactSummary=True, isVisibleInTranscriptOnly=True)


def build_file(*lines):
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def list_messages(recording):
    """Return the messages of the history in short form: role and text, calls as !id, results as =id."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            words = [message.text] if message.text else []
            marks = [f"!{call.id}" for call in message.calls] + [f"={result.call_id}" for result in message.results]
            out.append(f"{message.role}: {' '.join(words + marks)}")
    return out


PARALLEL = build_file(
    build_progress_line("p0", None),
    build_user_line("u1", "p0", "do it"),
    build_assistant_line("a1", "u1", "m1", text("\n\n")),
    build_assistant_line("a2", "a1", "m1", call("c1"), out=10),
    build_progress_line("p1", "a2"),
    build_assistant_line("a3", "p1", "m1", call("c2"), out=20),
    build_progress_line("p2", "a3"),
    result("r2", "a3", "c2"),
    result("r1", "a2", "c1"),
    build_progress_line("p3", "r2"),
    build_assistant_line("b1", "p3", "m2", text("done"), out=5),
)


def test_read_joins_lines_of_a_message_and_orders_parallel_results():
    """Lines with one ``message.id`` are one message; results of parallel calls follow in call order, whatever the
    links say.
    """
    recording = claude_code.read_claude_code(PARALLEL)
    assert list_messages(recording) == [
        "user: do it",
        "assistant: \n\n !c1 !c2",
        "tool: =c1",
        "tool: =c2",
        "assistant: done",
    ]
    assert recording.skipped_counts == {"progress": 4}
    assert recording.problems == ()


def test_read_counts_usage_once_for_each_message():
    """The last line of a message has its usage; the input is the sum of new, written and cached tokens."""
    found = list_model_calls(claude_code.read_claude_code(PARALLEL))
    assert [step.usage for step in found] == [Usage(432, 20, 400, 30), Usage(432, 5, 400, 30)]
    assert [step.model for step in found] == ["claude-x", "claude-x"]
    assert found[0].at == 1770842205618


def test_read_moves_results_behind_a_streamed_message():
    """A message may continue after the results of its first calls; the results still follow the whole message."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, "go"),
            build_assistant_line("a1", "u1", "m1", call("c1")),
            result("r1", "a1", "c1"),
            build_assistant_line("a2", "r1", "m1", call("c2")),
            result("r2", "a2", "c2"),
            build_assistant_line("b", "r2", "m2", text("end")),
        )
    )
    assert list_messages(recording) == ["user: go", "assistant: !c1 !c2", "tool: =c1", "tool: =c2", "assistant: end"]
    assert len(list_model_calls(recording)) == 2


def test_read_keeps_the_exact_bytes_of_content_blocks():
    """The raw message is made of the exact bytes of its blocks, and decodes to the message."""
    content = b'[{"type": "text",  "text":"\\u00e9"}]'
    odd = b'{"type":"user","uuid":"u","parentUuid":null,"message":{"role":"user","content":' + content + b"}}"
    sized_message = next(
        entry.body.sized_message
        for entry in claude_code.read_claude_code(odd).entries
        if isinstance(entry.body, MessageEntry)
    )
    assert bytes(sized_message.raw) == b'{"role":"user","content":' + content + b"}"
    for entry in claude_code.read_claude_code(PARALLEL).entries:
        if isinstance(entry.body, MessageEntry):
            assert anthropic.decode_message(entry.body.sized_message.raw) == entry.body.sized_message.message
            assert entry.body.sized_message.api == "anthropic"


def test_list_model_calls_skips_synthetic_answers_and_sidechains():
    """Synthetic answers, API errors and sidechains are no model calls; all stay in the log."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, "hi"),
            build_assistant_line("a1", "u1", "e1", text("No response requested."), model="<synthetic>"),
            build_assistant_line("a2", "a1", "e2", text("API Error: 500"), model="<synthetic>", isApiErrorMessage=True),
            build_assistant_line("a3", "a2", "m1", text("ho")),
            build_user_line("s1", None, "sub", isSidechain=True),
            build_assistant_line("s2", "s1", "m9", text("sub done"), isSidechain=True),
        )
    )
    assert [step.id for step in list_model_calls(recording)] == ["a3"]
    assert len(list_messages(recording)) == 4
    (side,) = recording.sidechains
    assert list_messages(side) == ["user: sub", "assistant: sub done"]


def test_read_takes_a_file_of_sidechain_lines_as_a_conversation():
    """A file with nothing but sidechain lines is read as a conversation of its own, named after its agent."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("s1", None, "sub", isSidechain=True, agentId="ab12"),
            build_assistant_line("s2", "s1", "m9", text("done"), isSidechain=True, agentId="ab12"),
        )
    )
    assert (list_messages(recording), recording.session) == (["user: sub", "assistant: done"], "ab12")


def test_read_keeps_rewound_lines_on_a_side_branch():
    """Rewound messages stay in the tree, beside the branch to the last message."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, "one"),
            build_assistant_line("a1", "u1", "m1", text("first")),
            build_user_line("u2", "a1", "wrong"),
            build_assistant_line("a2", "u2", "m2", text("oops")),
            build_user_line("u3", "a1", "right"),
        )
    )
    assert list_messages(recording) == ["user: one", "assistant: first", "user: right"]
    assert {entry.id for entry in recording.entries} >= {"u2", "a2"}


COMPACTED = (
    build_user_line("u1", None, "one"),
    build_assistant_line("a1", "u1", "m1", text("two")),
    build_user_line("u2", "a1", "three"),
    build_boundary("B", "u2", preservedMessages={"uuids": ["a1", "u2"]}, postTokens=90),
    summary("S", "B"),
    line("attachment", "at", "S", attachment={}),
    build_assistant_line("a2", "at", "m2", text("four")),
)


def test_read_shows_a_compaction_in_the_context_but_not_the_history():
    """The history has every real message once and no summary; the context shows the summary, the kept tail and later
    messages.
    """
    recording = claude_code.read_claude_code(build_file(*COMPACTED))
    assert list_messages(recording) == ["user: one", "assistant: two", "user: three", "assistant: four"]
    assert [sized_message.message.text for sized_message in build_projection(build_state_at_leaf(recording))] == [
        "summary",
        "two",
        "three",
        "four",
    ]
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (body.first_kept, body.tokens_before, body.tokens_after, body.trigger) == (1, 900, 90, "auto")


def test_read_compaction_without_preserved_messages_keeps_none():
    """Without preserved messages the summary replaces everything before it."""
    lines = (*COMPACTED[:3], build_boundary("B", "u2"), *COMPACTED[4:])
    assert [
        sized_message.message.text
        for sized_message in build_projection(build_state_at_leaf(claude_code.read_claude_code(build_file(*lines))))
    ] == ["summary", "four"]


def test_read_takes_an_extract_after_a_boundary_for_its_summary():
    """Our plugin's extract is in the file without a mark. Kept messages follow it under new uuids, as a copy."""
    extract = EXTRACT_OPENING + "2 messages).\n## Goal\nUser: one"
    lines = (
        *COMPACTED[:3],
        build_boundary("B", "u2"),
        build_user_line("S", "B", extract),
        build_user_line("u3", "S", "three"),
    )
    recording = claude_code.read_claude_code(build_file(*lines))
    assert not recording.problems
    shown = build_projection(build_state_at_leaf(recording))
    assert [sized_message.message.text for sized_message in shown] == [extract, "three"]
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert body.author == ""


def test_read_takes_no_other_message_after_a_boundary_for_its_summary():
    """A compaction that was not finished hides nothing, whatever the user says next."""
    lines = (*COMPACTED[:3], build_boundary("B", "u2"), build_user_line("u3", "B", "What did we do?"))
    recording = claude_code.read_claude_code(build_file(*lines))
    assert len(recording.problems) == 1
    assert len(build_projection(build_state_at_leaf(recording))) == 4


def test_read_counts_a_message_repeated_after_a_boundary_once():
    """A message written again after the boundary under its uuid is in the history once."""
    recording = claude_code.read_claude_code(
        build_file(*COMPACTED[:5], COMPACTED[2] | {"timestamp": "later"}, COMPACTED[6])
    )
    assert list_messages(recording) == ["user: one", "assistant: two", "user: three", "assistant: four"]
    assert recording.skipped_counts == {"copy of an earlier line": 1}


@pytest.mark.parametrize("logical", [None, "never-written", "u1"])
def test_read_attaches_a_boundary_with_a_bad_link_to_the_message_before(logical):
    """A boundary whose link is missing, or points before an older boundary, follows the message before it."""
    first = build_file(
        build_user_line("u1", None, "one"),
        build_boundary("B1", "u1"),
        summary("S1", "B1"),
        build_user_line("u2", "S1", "two"),
    )
    recording = claude_code.read_claude_code(
        first + build_file(build_boundary("B2", logical), summary("S2", "B2"), build_user_line("u3", "S2", "three"))
    )
    assert list_messages(recording) == ["user: one", "user: two", "user: three"]
    assert [bool(recording.problems)] == [logical is not None]


def test_read_ignores_a_boundary_without_a_summary():
    """An unfinished compaction becomes a note; all messages stay in the context."""
    recording = claude_code.read_claude_code(
        build_file(build_user_line("u1", None, "one"), build_boundary("B", "u1"), build_user_line("u2", "B", "two"))
    )
    assert [sized_message.message.text for sized_message in build_projection(build_state_at_leaf(recording))] == [
        "one",
        "two",
    ]
    assert "hides nothing" in recording.problems[0].reason


def test_read_turns_damaged_lines_into_notes():
    """Welded, torn and broken lines become notes with their bytes, are reported, and do not break the branch."""
    welded = json.dumps(build_assistant_line("a1", "u1", "m1", text("x"))).encode() * 2
    data = build_file(
        build_user_line("u1", None, "one"), welded, build_user_line("u2", "a1", "two"), b'{"type":"user","uu'
    ).removesuffix(b"\n")
    recording = claude_code.read_claude_code(data)
    assert list_messages(recording) == ["user: one", "user: two"]
    assert [problem.line for problem in recording.problems] == [2, 3, 4]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)] == [
        welded,
        b'{"type":"user","uu',
    ]


def test_read_replaces_lone_surrogates_and_keeps_the_line():
    """Values get U+FFFD, the request bytes are valid, and the recorded line stays as it was."""
    odd = rb'{"type":"user","uuid":"u","parentUuid":null,"message":{"role":"user","content":"cut \ud83d"}}'
    recording = claude_code.read_claude_code(odd)
    (body,) = [entry.body for entry in recording.entries]
    assert body.sized_message.message.text == "cut \ufffd"
    assert bytes(body.recording_envelope) == odd
    assert json.loads(bytes(body.sized_message.raw))["content"] == "cut \ufffd"
    assert len(recording.problems) == 1


def test_read_cuts_a_circle_of_parents():
    """Lines that are each other's parents are all read; the circle is cut and reported."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", "u2", "one"), build_user_line("u2", "u1", "two"), build_progress_line("p", "p")
        )
    )
    assert list_messages(recording) == ["user: one", "user: two"]
    assert "circle" in recording.problems[0].reason


def test_read_ends_a_circle_of_skipped_lines():
    """A circle of links through progress lines leads to no parent."""
    recording = claude_code.read_claude_code(
        build_file(build_progress_line("p1", "p2"), build_progress_line("p2", "p1"), build_user_line("u", "p1", "one"))
    )
    assert list_messages(recording) == ["user: one"]


def test_read_keeps_two_messages_with_one_uuid():
    """Both messages are kept, the second under another id, and the reuse is reported."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, "one"), build_user_line("u1", None, "other"), build_user_line("u2", "u1", "two")
        )
    )
    assert list_messages(recording) == ["user: one", "user: two"]
    assert [entry.id for entry in recording.entries] == ["u1", "u1~2", "u2"]
    assert "used again" in recording.problems[0].reason


def test_read_prefers_a_message_over_a_snapshot_with_its_uuid():
    """Records that are no messages may reuse a uuid; the id belongs to the message."""
    recording = claude_code.read_claude_code(
        build_file(
            line("file-history-snapshot", "u1", None),
            build_user_line("u1", None, "one"),
            build_user_line("u2", "u1", "two"),
        )
    )
    assert list_messages(recording) == ["user: one", "user: two"]


def test_read_splits_answers_with_one_id_from_different_requests():
    """A server that gives every answer the same id does not turn the conversation into one message."""
    first, second = build_assistant_line("a1", "u1", "m", text("x")), build_assistant_line("a2", "u2", "m", text("y"))
    recording = claude_code.read_claude_code(
        build_file(build_user_line("u1", None, "1"), first, build_user_line("u2", "a1", "2"), second)
    )
    assert list_messages(recording) == ["user: 1", "assistant: x", "user: 2", "assistant: y"]


def test_read_keeps_unknown_blocks_and_counts_unknown_lines():
    """Unknown blocks are opaque parts, unknown roles are notes, and unknown kinds of lines are counted."""
    odd = line("user", "u2", "u1", message={"role": "narrator", "content": "x"})
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, [{"type": "hologram", "x": 1}]),
            odd,
            line("marble-commit", "m", "u2"),
            build_user_line("u3", "m", "y"),
        )
    )
    (part,) = recording.entries[0].body.sized_message.message.parts
    assert (type(part), part.kind) == (Opaque, "hologram")
    assert recording.skipped_counts == {"user (unreadable)": 1, "marble-commit": 1}
    assert "narrator" in recording.problems[0].reason
    assert any(isinstance(entry.body, NoteEntry) and b"narrator" in entry.body.raw for entry in recording.entries)


def test_read_includes_meta_messages():
    """Lines marked ``isMeta`` were sent and are part of the conversation; local commands of the system kind are not."""
    recording = claude_code.read_claude_code(
        build_file(
            build_user_line("u1", None, "caveat", isMeta=True),
            line("system", "s", "u1", subtype="local_command"),
            build_user_line("u2", "s", "go"),
        )
    )
    assert list_messages(recording) == ["user: caveat", "user: go"]
    assert recording.skipped_counts == {"system:local_command": 1}


def test_read_takes_title_model_and_session_from_their_lines():
    """A custom title wins over a generated one; the model is that of the last answer."""
    generated = {"type": "summary", "summary": "made", "leafUuid": "x"}
    custom = {"type": "custom-title", "customTitle": "given", "sessionId": "S"}
    recording = claude_code.read_claude_code(
        build_file(generated, custom, build_user_line("u1", None, "x"), build_assistant_line("a", "u1", "m", text("y")))
    )
    assert (recording.title, recording.model, recording.session, recording.cwd) == ("given", "claude-x", "S", "/w")


def test_read_never_reuses_an_id_as_the_file_grows():
    """Whichever beginning of the file is read first, an id always means the same entry."""
    known = {}
    for data in (PARALLEL, build_file(*COMPACTED)):
        lines = data.splitlines(keepends=True)
        for count in range(1, len(lines) + 1):
            for entry in claude_code.read_claude_code(b"".join(lines[:count])).entries:
                content = (entry.parent, entry.body)
                assert known.setdefault((lines[0], entry.id), content) == content
