"""The parts of a log that an export format has no place for: every export reports them."""

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
"""The format that is a database: it holds what ``opencode-json`` holds, and sub-agents' conversations too."""


def get_request_body_note(recording: Recording) -> NoteEntry | None:
    """Return the first note that keeps the envelope of an imported request body, or None if there was none."""
    for entry in get_branch_entries(recording):
        note = entry.body
        if not isinstance(note, NoteEntry) or note.reason != REQUEST_BODY_NOTE:
            continue
        # A store may hold notes of an API that this version does not know.
        if note.data.get("api") in API_SPECS:
            return note
    return None


def describe_losses(recording: Recording, name: str) -> tuple[str, ...]:
    """Return a note on everything that a session in the tool format ``name`` has no place for."""
    is_database = name == OPENCODE_DATABASE
    session_format = SESSION_FORMATS["opencode-json" if is_database else name]
    lost_counts: Counter[str] = Counter()
    for entry in recording.entries:
        # A message that came from this tool is written back as its own lines, which loses nothing.
        if recording.format == name and _has_origin(entry):
            continue
        lost_counts += _count_lost_parts(entry, session_format)
    holds_one_conversation = session_format.holds_one_conversation and not is_database
    return (
        *_describe_unplaced_fields(recording, name, holds_one_conversation=holds_one_conversation),
        *format_loss_notes(lost_counts),
    )


def describe_missing_setup(recording: Recording) -> Iterator[str]:
    """Yield a note if an exported request lacks its system prompt and tools because nobody recorded them."""
    # The log has size and digest of the setup but not its text, so it can only be reported.
    setup = build_state_at_leaf(recording).setup
    if setup.tokens:
        yield f"system prompt, tools and settings, ~{setup.tokens:,} tokens: no messages, so the request has none"


def _describe_unplaced_fields(recording: Recording, name: str, *, holds_one_conversation: bool) -> Iterator[str]:
    """Yield notes on request fields and on sub-agents' conversations that the format has no place for."""
    note = get_request_body_note(recording)
    if note is not None:
        placed_fields = {"model", API_SPECS[note.data["api"]].messages_field}
        unplaced_fields = []
        for field, value in decode_raw_fields(note.raw).items():
            is_empty = bytes(value) in (b"null", b"[]")
            if field not in placed_fields and not is_empty:
                unplaced_fields.append(field)
        if unplaced_fields:
            yield f"{', '.join(unplaced_fields)}: a session of {name} has no place for what its request asked for"
    if recording.sidechains and holds_one_conversation:
        yield f"{len(recording.sidechains):,} × the conversation of a sub-agent: a file of {name} holds one"


# -- what is said ------------------------------------------------------------------------------------------------------


def count_lossy_parts(messages: Iterable[Message]) -> Counter[str]:
    """Count the parts for which some format has no place, by kind."""
    counts: Counter[str] = Counter()
    for message in messages:
        for part in message.parts:
            counts.update(_iterate_lossy_kinds(part))
    return counts


def format_loss_notes(lost_counts: Counter[str]) -> tuple[str, ...]:
    """Return a note for each kind of part that was lost, with the number of them."""
    notes = []
    for kind, count in lost_counts.items():
        if count > 0:
            notes.append(f"{count:,} × {kind}: a line or nothing stands there")
    return tuple(notes)


def _iterate_lossy_kinds(part: Part) -> Iterator[str]:
    if isinstance(part, Thinking):
        # Redacted thinking is unreadable to everybody but its provider: no reader of an export misses it.
        if not get_redacted_thinking(part):
            yield "thinking"
    elif isinstance(part, Media):
        yield part.kind
    elif isinstance(part, Opaque):
        # Kinds that begin with "message" are fields of the message object, not content.
        if not part.kind.startswith("message"):
            yield part.kind
    elif isinstance(part, ToolResult):
        for inner in part.content:
            yield from _iterate_lossy_kinds(inner)


def _has_origin(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry) and entry.body.recording_envelope is not None


def _count_lost_parts(entry: Entry, session_format: SessionFormat) -> Counter[str]:
    """Count the parts of a message that are missing after it is written to the format and read back, by kind.

    A round trip, and not a table of the parts each format can hold: that would have to follow every change of a writer.
    """
    body = entry.body
    if not isinstance(body, MessageEntry):
        return Counter()
    message = body.sized_message.message
    counts_before = count_lossy_parts([message])
    if not counts_before:
        return Counter()
    log = RecordingBuilder()
    parent = None
    # Writers drop results without a call, which would count their media as lost: give the results their calls.
    calls = tuple(ToolCall(result.call_id, result.name) for result in message.results)
    if calls:
        calling_message = MessageEntry(make_sized_message(Message("assistant", calls), "", None))
        parent = log.add_answer("calls", None, calling_message, CallMetadata("m"), None)
    leaf = log.add_entry("message", parent, body)
    recording = log.finish_recording(Recording("holdfast", session="s", leaf=leaf))
    reread = session_format.read(session_format.write(recording))
    reread_messages = []
    for reread_entry in get_full_history_entries(reread):
        if isinstance(reread_entry.body, MessageEntry):
            reread_messages.append(reread_entry.body.sized_message.message)
    return counts_before - count_lossy_parts(reread_messages)
