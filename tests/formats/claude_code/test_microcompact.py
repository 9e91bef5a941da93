"""Lines that tell which results Claude Code cleared become decisions, and are written back as they are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats import (
    EXPORT_FORMATS,
    Recording,
    apply_decisions_to_messages,
    build_state_at_leaf,
    export_bytes,
    get_full_history_entries,
    read_recording,
    read_recording_lazily,
    select_new_entries,
)
from holdfast.formats.common.lines import LineFile
from holdfast.messages.message import get_result_text
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT
from holdfast.state.entries import DecisionEntry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection

BIG = "a long listing " * 50


def line(kind: str, uuid: str, parent: str | None, **more: Any) -> dict[str, Any]:
    time = "2026-02-11T20:36:45.618Z"
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "S", "timestamp": time} | more


def user(uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    return line("user", uuid, parent, message={"role": "user", "content": content}, **more)


def result(uuid: str, parent: str, *calls: str, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": f"{call}: {BIG}"} for call in calls]
    return user(uuid, parent, blocks, **more)


def answer(uuid: str, parent: str, *calls: str, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": call, "name": "bash", "input": {}} for call in calls]
    if not blocks:
        blocks = [{"type": "text", "text": uuid}]
    message = {"id": f"m-{uuid}", "role": "assistant", "model": "claude-x", "content": blocks}
    return line("assistant", uuid, parent, message=message | {"usage": {"input_tokens": 9, "output_tokens": 1}}, **more)


def microcompact(uuid: str, parent: str | None, *calls: Any, **more: Any) -> dict[str, Any]:
    metadata = {"trigger": "auto", "preTokens": 900, "tokensSaved": 321, "compactedToolIds": list(calls)}
    fields = {"subtype": "microcompact_boundary", "content": "Context microcompacted", "level": "info"}
    fields |= {"microcompactMetadata": metadata | {"clearedAttachmentUUIDs": []}}
    return line("system", uuid, parent, **fields, **more)


def build_file(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def read(*lines: dict[str, Any]) -> Recording:
    return read_recording(build_file(*lines))


def list_cleared(recording: Recording, leaf: str | None = None) -> list[str]:
    """Return the ids of the results that the context at ``leaf`` shows cleared."""
    found = []
    for sized_message in build_projection(build_state_at_leaf(recording, leaf)):
        for item in sized_message.message.results:
            if get_result_text(item) == CLEARED_RESULT_TEXT:
                found.append(item.call_id)
    return found


def list_decisions(recording: Recording) -> list[DecisionEntry]:
    return [entry.body for entry in recording.entries if isinstance(entry.body, DecisionEntry)]


LINES = (
    user("u1", None, "list all"),
    answer("a1", "u1", "c1", "c2"),
    result("r1", "a1", "c1"),
    result("r2", "a1", "c2"),
    answer("a2", "r2", "c3"),
    result("r3", "a2", "c3"),
    microcompact("k1", "r3", "c1", "c2"),
    answer("a3", "k1"),
)


def test_read_shows_results_cleared_from_their_line_on() -> None:
    """Before the line the model saw the full results; from it on, the placeholder. The history keeps the texts."""
    recording = read(*LINES)
    assert list_cleared(recording) == ["c1", "c2"]
    assert list_cleared(recording, "r3") == []
    texts = [
        get_result_text(item)
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
        for item in entry.body.sized_message.message.results
    ]
    assert texts == [f"{call}: {BIG}" for call in ("c1", "c2", "c3")]
    assert (recording.problems, recording.skipped_counts) == ((), {})


def test_read_tells_who_cleared_and_what_it_saved() -> None:
    """Each edit frees tokens by our estimate; what the tool claims stands in the reason."""
    (decision,) = list_decisions(read(*LINES))
    assert [edit.rule for edit in decision.edits] == ["claude-code"] * 2
    assert all(edit.saves > 100 for edit in decision.edits)
    assert "321 tokens" in decision.edits[0].why


def test_read_finds_a_result_beside_text_in_one_message() -> None:
    """Only the result is cleared where a message holds words too."""
    blocks = [
        {"type": "text", "text": "by the way"},
        {"type": "tool_result", "tool_use_id": "c1", "content": BIG},
    ]
    recording = read(
        user("u1", None, "go"), answer("a1", "u1", "c1"), user("r1", "a1", blocks), microcompact("k", "r1", "c1")
    )
    assert list_cleared(recording) == ["c1"]
    (decision,) = list_decisions(recording)
    assert decision.edits[0].span.part == 1
    assert list(build_projection(build_state_at_leaf(recording)))[-1].message.text == "by the way"


def test_read_clears_each_result_once() -> None:
    """A later line that names the same calls again adds nothing for these."""
    recording = read(*LINES, microcompact("k2", "a3", "c1", "c2", "c3"))
    assert [[edit.span.start for edit in decision.edits] for decision in list_decisions(recording)] == [[2, 3], [5]]
    assert recording.problems == ()


def test_read_reports_calls_that_are_not_there() -> None:
    """Ids without a result before the line change nothing; the problem says how many. Without any, it is a note."""
    recording = read(*LINES[:6], microcompact("k1", "r3", "c1", "elsewhere"), user("u2", "k1", "on"))
    assert list_cleared(recording) == ["c1"]
    (problem,) = recording.problems
    assert (problem.line, problem.reason[:36]) == (7, "1 of the 2 results that Claude Code ")
    unknown = read(*LINES[:6], microcompact("k1", "r3", "elsewhere"), user("u2", "k1", "on"))
    assert list_decisions(unknown) == []
    notes = [entry.body.reason for entry in unknown.entries if isinstance(entry.body, NoteEntry)]
    assert notes == ["claude-code:microcompact_boundary"]


def test_read_accepts_metadata_of_any_shape() -> None:
    """A line without usable metadata clears nothing, and the conversation goes on through it."""
    for metadata in (None, 7, [], {}, {"compactedToolIds": "c1"}, {"compactedToolIds": [1]}):
        recording = read(*LINES[:6], microcompact("k1", "r3") | {"microcompactMetadata": metadata}, *LINES[7:])
        assert list_decisions(recording) == []
        assert len(get_full_history_entries(recording)) == len(get_full_history_entries(read(*LINES)))


def test_read_is_no_compaction() -> None:
    """A boundary of a compaction right behind the line follows it, and its summary takes the place of everything."""
    boundary = line("system", "B", None, subtype="compact_boundary", logicalParentUuid="k1", compactMetadata={})
    recording = read(*LINES[:7], boundary, user("S", "B", "so far", isCompactSummary=True), answer("a4", "S"))
    shown = build_projection(build_state_at_leaf(recording))
    assert [sized_message.message.text for sized_message in shown] == ["so far", "a4"]
    assert len(list_decisions(recording)) == 1


def test_read_keeps_an_answer_together_around_the_line() -> None:
    """Two lines of one answer are one message, also if the line stands between them."""
    first, second = answer("a1", "u1", "c1"), answer("a2", "k1", "c2")
    second["message"]["id"] = first["message"]["id"]
    recording = read(user("u1", None, "go"), first, result("r1", "a1", "c1"), microcompact("k1", "r1"), second)
    calls = [
        [item.id for item in entry.body.sized_message.message.calls]
        for entry in recording.entries
        if isinstance(entry.body, MessageEntry)
    ]
    assert calls == [[], ["c1", "c2"], []]


def test_read_clears_in_the_conversation_of_a_sub_agent() -> None:
    """The line belongs to the conversation that it stands in."""
    more = {"isSidechain": True, "agentId": "ab"}
    side = (
        user("s1", None, "sub", **more),
        answer("s2", "s1", "x1", **more),
        result("s3", "s2", "x1", **more),
        microcompact("s4", "s3", "x1", **more),
        answer("s5", "s4", **more),
    )
    recording = read(*LINES[:6], *side)
    assert list_decisions(recording) == []
    assert list_cleared(recording.sidechains[0]) == ["x1"]


def test_export_writes_the_line_byte_for_byte() -> None:
    """The file that is written is the file that was read, and importing it again adds nothing."""
    data = build_file(*LINES)
    recording = read_recording(data)
    assert export_bytes(recording, "claude-code") == data
    assert select_new_entries(read_recording(data), recording.entries).entries == ()


def test_export_to_every_format_works() -> None:
    """The decision costs no other format its messages."""
    for name in EXPORT_FORMATS:
        assert b"list all" in export_bytes(read(*LINES), name)


def test_export_reduced_reads_back_as_the_same_context() -> None:
    """Written with the results cleared, the file makes the same request; the line clears nothing a second time."""
    recording = read(*LINES)
    again = read_recording(export_bytes(apply_decisions_to_messages(recording), "claude-code"))
    assert list_cleared(again, "r3") == list_cleared(again) == ["c1", "c2"]
    assert export_bytes(again, "anthropic") == export_bytes(recording, "anthropic")
    assert [decision.edits for decision in list_decisions(again)] == [()]


CALLS = [f"c{number}" for number in range(6)]


@given(st.lists(st.lists(st.sampled_from([*CALLS, "missing"]), max_size=4), min_size=1, max_size=4), st.data())
def test_read_clears_what_lines_name_in_any_session(named: list[list[str]], data: st.DataObject) -> None:
    """Lines at any places clear exactly the named results before them; a file that stays open gives the same."""
    lines = [user("u", None, "go")]
    for call in CALLS:
        lines.append(answer(f"a-{call}", lines[-1]["uuid"], call))
        lines.append(result(f"r-{call}", lines[-1]["uuid"], call))
    places = sorted(data.draw(st.lists(st.integers(0, len(CALLS)), min_size=len(named), max_size=len(named))))
    expected: set[str] = set()
    for number, (place, calls) in enumerate(zip(places, named, strict=True)):
        # Each place is behind the results of that many calls, and each earlier line moved it by one.
        position = 1 + 2 * place + number
        parent = lines[position - 1]["uuid"]
        lines.insert(position, microcompact(f"k{number}", parent, *calls))
        if position + 1 < len(lines):
            lines[position + 1] = lines[position + 1] | {"parentUuid": f"k{number}"}
        expected |= set(calls) & set(CALLS[:place])
    written = build_file(*lines)
    recording = read_recording(written)
    assert set(list_cleared(recording)) == expected
    lazy = read_recording_lazily(
        LineFile(lambda: iter(written.splitlines(keepends=True)), lambda start, length: written[start : start + length])
    )
    assert lazy is not None
    assert tuple(lazy.entries) == recording.entries
    assert export_bytes(recording, "claude-code") == written
