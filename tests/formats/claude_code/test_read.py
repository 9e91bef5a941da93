from __future__ import annotations

import json

import pytest

from holdfast.formats.base import build_state_at_leaf, get_full_history_entries, list_model_calls
from holdfast.formats.claude_code import read as claude_code
from holdfast.messages.parts import Opaque
from holdfast.providers.anthropic import messages as anthropic
from holdfast.state.entries import CompactionEntry, MessageEntry, NoteEntry, Usage
from holdfast.state.view import build_projection


def line(kind, uuid, parent, **more):
    time = "2026-02-11T20:36:45.618Z"
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "S", "cwd": "/w", "timestamp": time} | more


def user(uuid, parent, content, **more):
    return line("user", uuid, parent, message={"role": "user", "content": content}, **more)


def result(uuid, parent, call, text="ok", **more):
    return user(uuid, parent, [{"type": "tool_result", "tool_use_id": call, "content": text}], **more)


def assistant(uuid, parent, mid, *blocks, out=1, model="claude-x", **more):
    usage = {"input_tokens": 2, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 400, "output_tokens": out}
    message = {"id": mid, "role": "assistant", "model": model, "content": list(blocks), "usage": usage}
    return line("assistant", uuid, parent, requestId=f"req-{mid}", message=message, **more)


def text(words):
    return {"type": "text", "text": words}


def call(id_, name="bash"):
    return {"type": "tool_use", "id": id_, "name": name, "input": {}}


def progress(uuid, parent):
    return line("progress", uuid, parent, data={"type": "hook_progress"})


def boundary(uuid, logical, **metadata):
    told = {"trigger": "auto", "preTokens": 900, **metadata}
    return line("system", uuid, None, subtype="compact_boundary", logicalParentUuid=logical, compactMetadata=told)


def summary(uuid, parent, words="summary"):
    return user(uuid, parent, words, isCompactSummary=True, isVisibleInTranscriptOnly=True)


def file(*lines):
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def told(recording):
    """The messages of the history in short: role and words, calls as !id, results as =id."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            words = [message.text] if message.text else []
            marks = [f"!{one.id}" for one in message.calls] + [f"={one.call_id}" for one in message.results]
            out.append(f"{message.role}: {' '.join(words + marks)}")
    return out


PARALLEL = file(
    progress("p0", None),
    user("u1", "p0", "do it"),
    assistant("a1", "u1", "m1", text("\n\n")),
    assistant("a2", "a1", "m1", call("c1"), out=10),
    progress("p1", "a2"),
    assistant("a3", "p1", "m1", call("c2"), out=20),
    progress("p2", "a3"),
    result("r2", "a3", "c2"),
    result("r1", "a2", "c1"),
    progress("p3", "r2"),
    assistant("b1", "p3", "m2", text("done"), out=5),
)


def test_lines_of_one_message_are_one_answer_with_its_results_behind():
    """One ``message.id`` is one message; results of parallel calls follow in call order, whatever the links say."""
    recording = claude_code.read_claude_code(PARALLEL)
    assert told(recording) == ["user: do it", "assistant: \n\n !c1 !c2", "tool: =c1", "tool: =c2", "assistant: done"]
    assert recording.skipped_counts == {"progress": 4}
    assert recording.problems == ()


def test_usage_counts_once_a_message():
    """A message's last line has its usage; the whole prompt is what was new, written and read."""
    found = list_model_calls(claude_code.read_claude_code(PARALLEL))
    assert [step.usage for step in found] == [Usage(432, 20, 400, 30), Usage(432, 5, 400, 30)]
    assert [step.model for step in found] == ["claude-x", "claude-x"]
    assert found[0].at == 1770842205618


def test_results_between_the_lines_of_a_streamed_message():
    """A message goes on behind the results of its first calls; they still stand after all of it."""
    recording = claude_code.read_claude_code(
        file(
            user("u1", None, "go"),
            assistant("a1", "u1", "m1", call("c1")),
            result("r1", "a1", "c1"),
            assistant("a2", "r1", "m1", call("c2")),
            result("r2", "a2", "c2"),
            assistant("b", "r2", "m2", text("end")),
        )
    )
    assert told(recording) == ["user: go", "assistant: !c1 !c2", "tool: =c1", "tool: =c2", "assistant: end"]
    assert len(list_model_calls(recording)) == 2


def test_wire_bytes_are_the_blocks_own():
    """A slot's raw message is made of the exact bytes of its blocks, and decodes to the message."""
    content = b'[{"type": "text",  "text":"\\u00e9"}]'
    odd = b'{"type":"user","uuid":"u","parentUuid":null,"message":{"role":"user","content":' + content + b"}}"
    slot = next(
        entry.body.sized_message
        for entry in claude_code.read_claude_code(odd).entries
        if isinstance(entry.body, MessageEntry)
    )
    assert bytes(slot.raw) == b'{"role":"user","content":' + content + b"}"
    for entry in claude_code.read_claude_code(PARALLEL).entries:
        if isinstance(entry.body, MessageEntry):
            assert anthropic.decode_message(entry.body.sized_message.raw) == entry.body.sized_message.message
            assert entry.body.sized_message.api == "anthropic"


def test_steps_leave_out_what_no_model_said():
    """Synthetic answers, API errors and sidechains are no steps; all stay in the log."""
    recording = claude_code.read_claude_code(
        file(
            user("u1", None, "hi"),
            assistant("a1", "u1", "e1", text("No response requested."), model="<synthetic>"),
            assistant("a2", "a1", "e2", text("API Error: 500"), model="<synthetic>", isApiErrorMessage=True),
            assistant("a3", "a2", "m1", text("ho")),
            user("s1", None, "sub", isSidechain=True),
            assistant("s2", "s1", "m9", text("sub done"), isSidechain=True),
        )
    )
    assert [step.id for step in list_model_calls(recording)] == ["a3"]
    assert len(told(recording)) == 4
    (side,) = recording.sidechains
    assert told(side) == ["user: sub", "assistant: sub done"]


def test_file_of_a_sub_agent_is_its_conversation():
    """A file in which all is sidechain is read as a conversation of its own, named by its agent."""
    recording = claude_code.read_claude_code(
        file(
            user("s1", None, "sub", isSidechain=True, agentId="ab12"),
            assistant("s2", "s1", "m9", text("done"), isSidechain=True, agentId="ab12"),
        )
    )
    assert (told(recording), recording.session) == (["user: sub", "assistant: done"], "ab12")


def test_rewound_lines_are_a_side_branch():
    """What was taken back stays in the tree, beside the way to the last message."""
    recording = claude_code.read_claude_code(
        file(
            user("u1", None, "one"),
            assistant("a1", "u1", "m1", text("first")),
            user("u2", "a1", "wrong"),
            assistant("a2", "u2", "m2", text("oops")),
            user("u3", "a1", "right"),
        )
    )
    assert told(recording) == ["user: one", "assistant: first", "user: right"]
    assert {entry.id for entry in recording.entries} >= {"u2", "a2"}


COMPACTED = (
    user("u1", None, "one"),
    assistant("a1", "u1", "m1", text("two")),
    user("u2", "a1", "three"),
    boundary("B", "u2", preservedMessages={"uuids": ["a1", "u2"]}, postTokens=90),
    summary("S", "B"),
    line("attachment", "at", "S", attachment={}),
    assistant("a2", "at", "m2", text("four")),
)


def test_compaction_is_undone_in_the_history_and_done_in_the_context():
    """The history has every real message once and no summary; the branch shows summary, kept tail, what came later."""
    recording = claude_code.read_claude_code(file(*COMPACTED))
    assert told(recording) == ["user: one", "assistant: two", "user: three", "assistant: four"]
    assert [slot.message.text for slot in build_projection(build_state_at_leaf(recording))] == [
        "summary",
        "two",
        "three",
        "four",
    ]
    (body,) = [entry.body for entry in recording.entries if isinstance(entry.body, CompactionEntry)]
    assert (body.first_kept, body.tokens_before, body.tokens_after, body.trigger) == (1, 900, 90, "auto")


def test_compaction_that_kept_nothing():
    """Without preserved messages the summary stands for all that was said before."""
    lines = (*COMPACTED[:3], boundary("B", "u2"), *COMPACTED[4:])
    assert [
        slot.message.text for slot in build_projection(build_state_at_leaf(claude_code.read_claude_code(file(*lines))))
    ] == ["summary", "four"]


def test_kept_messages_listed_again_count_once():
    """A message that is written again behind the boundary, under its uuid, is there once."""
    recording = claude_code.read_claude_code(file(*COMPACTED[:5], COMPACTED[2] | {"timestamp": "later"}, COMPACTED[6]))
    assert told(recording) == ["user: one", "assistant: two", "user: three", "assistant: four"]
    assert recording.skipped_counts == {"copy of an earlier line": 1}


@pytest.mark.parametrize("logical", [None, "never-written", "u1"])
def test_compaction_follows_what_was_said_before(logical):
    """A boundary whose link is missing, or points before an older boundary, hangs on the message before it."""
    first = file(user("u1", None, "one"), boundary("B1", "u1"), summary("S1", "B1"), user("u2", "S1", "two"))
    recording = claude_code.read_claude_code(
        first + file(boundary("B2", logical), summary("S2", "B2"), user("u3", "S2", "three"))
    )
    assert told(recording) == ["user: one", "user: two", "user: three"]
    assert [bool(recording.problems)] == [logical is not None]


def test_boundary_without_summary_hides_nothing():
    """A compaction that was not finished is a note; all messages stay in the context."""
    recording = claude_code.read_claude_code(file(user("u1", None, "one"), boundary("B", "u1"), user("u2", "B", "two")))
    assert [slot.message.text for slot in build_projection(build_state_at_leaf(recording))] == ["one", "two"]
    assert "hides nothing" in recording.problems[0].reason


def test_damaged_line_costs_that_line():
    """Welded, torn and broken lines become notes with their bytes, are reported, and cut the way nowhere."""
    welded = json.dumps(assistant("a1", "u1", "m1", text("x"))).encode() * 2
    data = file(user("u1", None, "one"), welded, user("u2", "a1", "two"), b'{"type":"user","uu').removesuffix(b"\n")
    recording = claude_code.read_claude_code(data)
    assert told(recording) == ["user: one", "user: two"]
    assert [problem.line for problem in recording.problems] == [2, 3, 4]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)] == [
        welded,
        b'{"type":"user","uu',
    ]


def test_half_surrogates_are_mended_and_kept():
    """Values get U+FFFD, the request bytes are valid, the line stays as it was."""
    odd = rb'{"type":"user","uuid":"u","parentUuid":null,"message":{"role":"user","content":"cut \ud83d"}}'
    recording = claude_code.read_claude_code(odd)
    (body,) = [entry.body for entry in recording.entries]
    assert body.sized_message.message.text == "cut \ufffd"
    assert bytes(body.recording_envelope) == odd
    assert json.loads(bytes(body.sized_message.raw))["content"] == "cut \ufffd"
    assert len(recording.problems) == 1


def test_circle_of_parents_ends():
    """Lines that are each other's parents are all read; the circle is cut and reported."""
    recording = claude_code.read_claude_code(file(user("u1", "u2", "one"), user("u2", "u1", "two"), progress("p", "p")))
    assert told(recording) == ["user: one", "user: two"]
    assert "circle" in recording.problems[0].reason


def test_circle_of_skipped_lines_ends():
    """Links through progress lines that lead in a circle lead nowhere."""
    recording = claude_code.read_claude_code(file(progress("p1", "p2"), progress("p2", "p1"), user("u", "p1", "one")))
    assert told(recording) == ["user: one"]


def test_same_uuid_with_other_words():
    """Two messages that share a uuid are both kept, and reported."""
    recording = claude_code.read_claude_code(
        file(user("u1", None, "one"), user("u1", None, "other"), user("u2", "u1", "two"))
    )
    assert told(recording) == ["user: one", "user: two"]
    assert [entry.id for entry in recording.entries] == ["u1", "u1~2", "u2"]
    assert "used again" in recording.problems[0].reason


def test_uuid_of_a_snapshot_does_not_hide_a_message():
    """Records that are no messages may reuse a uuid; the message has it."""
    recording = claude_code.read_claude_code(
        file(line("file-history-snapshot", "u1", None), user("u1", None, "one"), user("u2", "u1", "two"))
    )
    assert told(recording) == ["user: one", "user: two"]


def test_same_message_id_from_another_request_is_another_answer():
    """Servers that give every answer one id do not make the conversation one message."""
    first, second = assistant("a1", "u1", "m", text("x")), assistant("a2", "u2", "m", text("y"))
    recording = claude_code.read_claude_code(file(user("u1", None, "1"), first, user("u2", "a1", "2"), second))
    assert told(recording) == ["user: 1", "assistant: x", "user: 2", "assistant: y"]


def test_what_is_unknown_is_kept_or_counted():
    """Unknown blocks are opaque parts, unknown roles notes, unknown kinds of lines counted."""
    odd = line("user", "u2", "u1", message={"role": "narrator", "content": "x"})
    recording = claude_code.read_claude_code(
        file(
            user("u1", None, [{"type": "hologram", "x": 1}]),
            odd,
            line("marble-commit", "m", "u2"),
            user("u3", "m", "y"),
        )
    )
    (part,) = recording.entries[0].body.sized_message.message.parts
    assert (type(part), part.kind) == (Opaque, "hologram")
    assert recording.skipped_counts == {"user (unreadable)": 1, "marble-commit": 1}
    assert "narrator" in recording.problems[0].reason
    assert any(isinstance(entry.body, NoteEntry) and b"narrator" in entry.body.raw for entry in recording.entries)


def test_meta_messages_were_sent():
    """Lines marked ``isMeta`` are part of the conversation; local commands of the system kind are not."""
    recording = claude_code.read_claude_code(
        file(
            user("u1", None, "caveat", isMeta=True),
            line("system", "s", "u1", subtype="local_command"),
            user("u2", "s", "go"),
        )
    )
    assert told(recording) == ["user: caveat", "user: go"]
    assert recording.skipped_counts == {"system:local_command": 1}


def test_title_model_and_session():
    """The given title wins over the made one; the model is the last answer's."""
    made = {"type": "summary", "summary": "made", "leafUuid": "x"}
    given = {"type": "custom-title", "customTitle": "given", "sessionId": "S"}
    recording = claude_code.read_claude_code(
        file(made, given, user("u1", None, "x"), assistant("a", "u1", "m", text("y")))
    )
    assert (recording.title, recording.model, recording.session, recording.cwd) == ("given", "claude-x", "S", "/w")


def test_file_that_grew_gives_no_id_to_two_things():
    """Reading any beginning of the file and then all of it, an id always means the same entry."""
    known = {}
    for data in (PARALLEL, file(*COMPACTED)):
        lines = data.splitlines(keepends=True)
        for count in range(1, len(lines) + 1):
            for entry in claude_code.read_claude_code(b"".join(lines[:count])).entries:
                said = (entry.parent, entry.body)
                assert known.setdefault((lines[0], entry.id), said) == said
