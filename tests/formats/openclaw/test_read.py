"""Events of OpenClaw's database are read like the lines of its session files."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats import build_state_at_leaf, get_branch_entries
from holdfast.formats.base import Recording, get_full_history_entries
from holdfast.formats.openclaw.read import (
    UNREADABLE_EVENT,
    OpenclawStoredEvent,
    OpenclawStoredSession,
    build_openclaw_recording,
)
from holdfast.formats.pi.read import read_pi
from holdfast.state.entries import MessageEntry, NoteEntry
from holdfast.state.view import build_projection

HEADER = {"type": "session", "version": 3, "id": "S", "timestamp": "2026-10-02T08:00:00.000Z", "cwd": "/w"}
TIME = "2026-10-02T08:00:01.000Z"


def message(id_: str, parent: str | None, words: str, role: str = "user", **more: Any) -> dict[str, Any]:
    content = {"role": role, "content": [{"type": "text", "text": words}]}
    return {"type": "message", "id": id_, "parentId": parent, "timestamp": TIME, "message": content} | more


def store(*lines: dict[str, Any]) -> list[OpenclawStoredEvent]:
    return [OpenclawStoredEvent(json.dumps(line).encode()) for line in lines]


def build(events: list[OpenclawStoredEvent], **more: Any) -> Recording:
    return build_openclaw_recording(OpenclawStoredSession("S", events=events, **more))


def list_texts(recording: Recording) -> list[str]:
    bodies = [entry.body for entry in get_full_history_entries(recording)]
    return [body.sized_message.message.text for body in bodies if isinstance(body, MessageEntry)]


def list_shown(recording: Recording) -> list[str]:
    return [item.message.text for item in build_projection(build_state_at_leaf(recording))]


def test_openclaw_events_are_the_entries_of_the_session_file():
    """A session that OpenClaw moved from its file into the database keeps its entries and ids."""
    lines = (HEADER, message("a", None, "hi"), message("b", "a", "ho", "assistant"), {"type": "x", "id": "c"})
    events = store(*lines)
    from_file = read_pi(b"".join(event.content + b"\n" for event in events))
    assert list(build(events).entries) == list(from_file.entries)
    assert (build(events).format, build(events).cwd) == ("pi", "/w")


def test_openclaw_events_may_be_written_over_several_lines():
    """An event is one JSON value, however it is indented."""
    events = [OpenclawStoredEvent(json.dumps(line, indent=1).encode()) for line in (HEADER, message("a", None, "x\ny"))]
    assert list_texts(build(events)) == ["x\ny"]


def test_openclaw_event_that_cannot_be_read_keeps_its_place():
    """What follows an unreadable event stays in the conversation, and the loss is counted with the first reason."""
    lost = OpenclawStoredEvent(b"", "its compressed content is damaged", "b", "a")
    unknown = OpenclawStoredEvent(b"", "another reason")
    events = [*store(HEADER, message("a", None, "hi")), lost, unknown, *store(message("c", "b", "on"))]
    recording = build(events)
    assert list_texts(recording) == ["hi", "on"]
    assert recording.skipped_counts == {UNREADABLE_EVENT: 2}
    (problem,) = recording.problems
    assert problem.line == 0
    assert "2 of 5 events of session S" in problem.reason
    assert problem.reason.endswith("its compressed content is damaged")


def test_openclaw_event_with_broken_json_is_a_note():
    """Damage is told by the place of the event, since a database has no lines."""
    recording = build([*store(HEADER, message("a", None, "hi")), OpenclawStoredEvent(b'{"type": "mess')])
    assert list_texts(recording) == ["hi"]
    assert [(problem.line, problem.reason[:8]) for problem in recording.problems] == [(0, "event 3:")]
    assert [entry.body.raw for entry in recording.entries if isinstance(entry.body, NoteEntry)][-1] == b'{"type": "mess'


def test_openclaw_session_tells_what_is_not_in_it():
    """Events in an archive are a problem with what to do; words that wait for a turn are counted."""
    recording = build([], archived_count=1_200)
    (problem,) = recording.problems
    assert "1,200 events of session S are in an archive of OpenClaw; open the session there" in problem.reason
    assert build(store(HEADER), queued_count=2).skipped_counts == {"input that waits": 2}


class Writer:
    """Writes what OpenClaw's session manager writes, and keeps the conversation and what the model sees of it."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = [HEADER]
        self.paths: dict[str | None, list[str]] = {None: []}
        """For each id, the texts from the root to it."""
        self.boundaries: dict[str | None, int] = {None: 0}
        """For each id, the number of those texts that the model no longer sees."""
        self.leaf: str | None = None
        self.append_parent: str | None = None
        self.is_beside = False
        self.after_reset: set[str | None] = {None}
        """The ids on branches that contain the newest reset; all while there is none."""

    def append_message(self, names_parent: bool) -> None:
        id_ = f"m{len(self.lines)}"
        base = self.append_parent if self.is_beside else self.leaf
        line = message(id_, self.append_parent, id_) | ({"appendMode": "side"} if self.is_beside else {})
        # Old writers left the parent out. Beside the conversation they did not exist yet.
        if not names_parent and not self.is_beside:
            del line["parentId"]
        self._add(line, id_, [*self.paths[base], id_], self.boundaries[base])

    def reset(self) -> None:
        if self.is_beside:
            return
        id_ = f"r{len(self.lines)}"
        line = {"type": "reset", "id": id_, "parentId": self.append_parent, "timestamp": TIME, "reason": "new"}
        self.after_reset = {self.leaf}
        self._add(line, id_, self.paths[self.leaf], len(self.paths[self.leaf]))
        self.after_reset = {id_}

    def move(self, choice: int, is_beside: bool) -> None:
        targets = [id_ for id_ in self.paths if id_ is None or not id_.startswith("l")]
        target = targets[choice % len(targets)]
        id_ = f"l{len(self.lines)}"
        line = {"type": "leaf", "id": id_, "parentId": self.append_parent, "timestamp": TIME, "targetId": target}
        self.lines.append(line | ({"appendParentId": target, "appendMode": "side"} if is_beside else {}))
        # OpenClaw ignores a move to before the newest reset.
        if target in self.after_reset:
            self.leaf = target
        self.append_parent = self.leaf
        self.is_beside = is_beside

    def leave_side(self) -> None:
        """Go on with the conversation; the next line still names the newest one as its parent."""
        self.is_beside = False

    def _add(self, line: dict[str, Any], id_: str, path: list[str], boundary: int) -> None:
        self.lines.append(line)
        self.paths[id_], self.boundaries[id_] = path, boundary
        base = self.append_parent if self.is_beside else self.leaf
        if base in self.after_reset:
            self.after_reset.add(id_)
        self.append_parent = id_
        if not self.is_beside:
            self.leaf = id_


STEPS = st.one_of(
    st.builds(lambda names: lambda writer: writer.append_message(names), st.booleans()),
    st.builds(lambda choice, beside: lambda writer: writer.move(choice, beside), st.integers(0, 9), st.booleans()),
    st.sampled_from([Writer.reset, Writer.leave_side]),
)


@given(st.lists(STEPS, max_size=14))
def test_openclaw_tree_gives_the_conversation_that_was_written(steps):
    """After any messages, moves, lines beside the conversation and resets, the conversation is OpenClaw's."""
    writer = Writer()
    for step in steps:
        step(writer)
    recording = build(store(*writer.lines))
    path = writer.paths[writer.leaf]
    assert list_texts(recording) == path
    assert list_shown(recording) == path[writer.boundaries[writer.leaf] :]
    assert recording.problems == ()


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2)
IDS = st.sampled_from(["a", "b", "c", "d"])
FIELDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "leaf", "reset", "compaction", "session", "label", "custom", ""]) | JSON},
    optional={
        "id": IDS | JSON,
        "parentId": IDS | JSON,
        "targetId": IDS | JSON,
        "appendParentId": IDS | JSON,
        "appendMode": st.sampled_from(["side", ""]) | JSON,
        "firstKeptEntryId": IDS | JSON,
        "message": st.just({"role": "user", "content": "hi"}) | JSON,
    },
)
EVENTS = st.one_of(
    FIELDS.map(lambda fields: OpenclawStoredEvent(json.dumps(fields).encode())),
    st.binary(max_size=9).map(OpenclawStoredEvent),
    st.builds(lambda id_, parent: OpenclawStoredEvent(b"", "lost", id_, parent), IDS | st.just(""), IDS | st.none()),
)


@given(st.lists(EVENTS, max_size=12))
def test_openclaw_reader_builds_a_valid_recording_from_any_events(events):
    """Every event is in the tree or reported; nothing raises."""
    recording = build(events)
    assert {entry.parent for entry in recording.entries} <= {None, *(entry.id for entry in recording.entries)}
    get_branch_entries(recording)
    build_projection(build_state_at_leaf(recording))
