"""What a log holds and a form has no place for: told with every export, never lost in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from holdfast.formats.base import Recording, build_state_at_leaf, get_branch_entries, get_full_history_entries
from holdfast.formats.common.lines import decode_raw_fields
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_sized_message
from holdfast.formats.common.writing import get_redacted_thinking
from holdfast.formats.registry import SESSION_FORMATS, SessionFormat
from holdfast.formats.request_bodies import REQUEST_BODY_NOTE
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Thinking, ToolCall, ToolResult
from holdfast.providers.registry import API_SPECS
from holdfast.state.entries import Entry, MessageEntry, NoteEntry

OPENCODE_DATABASE = "opencode"
"""The form that is no text: it holds what ``opencode-json`` does, and the conversations of sub-agents."""


def get_request_body_note(recording: Recording) -> NoteEntry | None:
    """Return what is kept of the request body that the way to the leaf came from, if it came from one."""
    notes = (
        entry.body
        for entry in get_branch_entries(recording)
        if isinstance(entry.body, NoteEntry) and entry.body.reason == REQUEST_BODY_NOTE
    )
    return next((note for note in notes if note.data.get("api") in API_SPECS), None)


def describe_losses(recording: Recording, name: str) -> tuple[str, ...]:
    """Return a note on each thing for which a session in the form ``name`` of a tool has no place."""
    form = SESSION_FORMATS["opencode-json"] if name == OPENCODE_DATABASE else SESSION_FORMATS[name]
    lost_counts: Counter[str] = Counter()
    for entry in recording.entries:
        lost_counts += (
            _count_lost_parts(entry, form) if recording.format != name or not _has_origin(entry) else Counter()
        )
    return (
        *_describe_unplaced_fields(recording, name, is_one=form.holds_one_conversation and name != OPENCODE_DATABASE),
        *format_loss_notes(lost_counts),
    )


def describe_missing_setup(recording: Recording) -> Iterator[str]:
    """Yield that a request lacks what every request has beside its messages, where nobody kept that."""
    setup = build_state_at_leaf(recording).setup
    if setup.tokens:
        yield f"system prompt, tools and settings, ~{setup.tokens:,} tokens: no messages, so the request has none"


def _describe_unplaced_fields(recording: Recording, name: str, *, is_one: bool) -> Iterator[str]:
    note = get_request_body_note(recording)
    own = {"model", API_SPECS[note.data["api"]].messages_field} if note is not None else set()
    request_fields = decode_raw_fields(note.raw) if note is not None else {}
    unplaced_fields = [
        field for field, value in request_fields.items() if field not in own and bytes(value) not in (b"null", b"[]")
    ]
    if unplaced_fields:
        yield f"{', '.join(unplaced_fields)}: a session of {name} has no place for what its request asked for"
    if recording.sidechains and is_one:
        yield f"{len(recording.sidechains):,} × the conversation of a sub-agent: a file of {name} holds one"


# -- what is said ------------------------------------------------------------------------------------------------------


def count_lossy_parts(messages: Iterable[Message]) -> Counter[str]:
    """Return how often there is what not every form has a place for."""
    counts: Counter[str] = Counter()
    for message in messages:
        counts.update(kind for part in message.parts for kind in _iterate_lossy_kinds(part))
    return counts


def format_loss_notes(lost_counts: Counter[str]) -> tuple[str, ...]:
    """Return a note on each kind of part that has no place."""
    return tuple(
        f"{number:,} × {kind}: a line or nothing stands there" for kind, number in lost_counts.items() if number > 0
    )


def _iterate_lossy_kinds(part: Part) -> Iterator[str]:
    if isinstance(part, Thinking):
        yield from () if get_redacted_thinking(part) else ("thinking",)
    elif isinstance(part, Media):
        yield part.kind
    elif isinstance(part, Opaque):
        yield from () if part.kind.startswith("message") else (part.kind,)
    elif isinstance(part, ToolResult):
        for inner in part.content:
            yield from _iterate_lossy_kinds(inner)


def _has_origin(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry) and entry.body.recording_envelope is not None


def _count_lost_parts(entry: Entry, session_format: SessionFormat) -> Counter[str]:
    """Return what of a message is not read again where ``session_format`` holds that message alone."""
    body = entry.body
    before = count_lossy_parts([body.sized_message.message]) if isinstance(body, MessageEntry) else Counter[str]()
    if not before or not isinstance(body, MessageEntry):
        return Counter()
    log, parent = RecordingBuilder(), None
    calls = tuple(ToolCall(item.call_id, item.name) for item in body.sized_message.message.results)
    if calls:
        parent = log.add_answer(
            "calls",
            None,
            MessageEntry(make_sized_message(Message("assistant", calls), "", None)),
            CallMetadata("m"),
            None,
        )
    leaf = log.add_entry("message", parent, body)
    again = session_format.read(
        session_format.write(log.finish_recording(Recording("holdfast", session="s", leaf=leaf)))
    )
    return before - count_lossy_parts(
        item.body.sized_message.message
        for item in get_full_history_entries(again)
        if isinstance(item.body, MessageEntry)
    )
