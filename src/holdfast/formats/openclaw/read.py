"""Reader of sessions in OpenClaw's database, whose events are the lines of its older session files.

Those files have the format of pi, and so have these sessions: one that was imported from its file before OpenClaw moved
it into the database goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.formats.base import Recording, RecordingProblem
from holdfast.formats.pi.read import read_pi
from holdfast.messages.text.counts import format_count
from holdfast.providers.common.json.raw_json import encode_json

__all__ = ["UNREADABLE_EVENT", "OpenclawStoredEvent", "OpenclawStoredSession", "build_openclaw_recording"]

UNREADABLE_EVENT = "unreadable event"
"""Type of the line that stands for an event whose JSON cannot be had."""
QUEUED_INPUT = "input that waits"
"""What is counted of messages that OpenClaw accepted and no turn has used yet."""


class OpenclawStoredEvent(Struct, frozen=True):
    """A stored event: its JSON, or why that cannot be had and what else the database knows of it."""

    content: bytes
    fault: str = ""
    id: str = ""
    parent: str | None = None
    """The id of the event before it; None for the first."""


class OpenclawStoredSession(Struct, frozen=True):
    """A stored session, its events in their order."""

    id: str
    title: str = ""
    events: Sequence[OpenclawStoredEvent] = ()
    archived_count: int = 0
    """Events that OpenClaw moved out of the database."""
    queued_count: int = 0
    """Messages that were accepted and wait for a turn."""


def build_openclaw_recording(session: OpenclawStoredSession, sidechains: tuple[Recording, ...] = ()) -> Recording:
    """Return the recording of a session; ``sidechains`` are the recordings of its sub-agents."""
    recording = read_pi(b"".join(_encode_line(event) + b"\n" for event in session.events))
    problems = []
    # Without events there is nothing to complain about but the archive.
    if session.events:
        problems = [RecordingProblem(0, f"event {problem.line}: {problem.reason}") for problem in recording.problems]
    skipped_counts = dict(recording.skipped_counts)
    if session.queued_count:
        skipped_counts[QUEUED_INPUT] = session.queued_count
    return replace(
        recording,
        session=session.id,
        title=session.title or recording.title,
        skipped_counts=skipped_counts,
        problems=(*_describe_missing_events(session), *problems),
        sidechains=sidechains,
    )


def _encode_line(event: OpenclawStoredEvent) -> bytes:
    """Return an event as one line; for one that cannot be read, a line that keeps its place in the tree."""
    if not event.fault:
        # Line breaks in JSON are whitespace: inside a string they are escaped.
        return event.content.replace(b"\n", b" ")
    fields: dict[str, Any] = {"type": UNREADABLE_EVENT}
    if event.id:
        fields |= {"id": event.id, "parentId": event.parent}
    return encode_json(fields)


def _describe_missing_events(session: OpenclawStoredSession) -> list[RecordingProblem]:
    """Return what is to be said of events that are not in the recording."""
    problems = []
    if session.archived_count:
        events = format_count(session.archived_count, "event")
        problems.append(
            RecordingProblem(
                0,
                f"{events} of session {session.id} are in an archive of OpenClaw; open the session there, which brings "
                "them back, and import it again",
            )
        )
    faults = [event.fault for event in session.events if event.fault]
    if faults:
        problems.append(
            RecordingProblem(
                0,
                f"{len(faults):,} of {len(session.events):,} events of session {session.id} cannot be read and are "
                f"left out; the first: {faults[0]}",
            )
        )
    return problems
