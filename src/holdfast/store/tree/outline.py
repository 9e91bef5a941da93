"""The state at the leaf of a branch without any message text: enough to tell the size of its request.

An import writes it beside the leaf, like the checkpoint beside a compaction. A recorded session may be far larger
than any window, and a list of sessions must not read it to show its size. An outline is derived: if it is missing,
damaged or of another version, the active branch is read instead.
"""

from __future__ import annotations

from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Part, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import pack_value, unpack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_QUEUED, BranchSummaryEntry, Entry, MessageEntry, NoteEntry
from holdfast.state.view import build_projection, compute_leading_digest, get_valid_measured_request
from holdfast.store.tree.active import (
    FOLD_VERSION,
    StateFields,
    collect_checkpoint_fields,
    restore_checkpoint_fields,
)


class SizeOutline(Struct, frozen=True, rename={"fold_version": "fold", "state_fields": "state"}):
    """The plain fields of a state, and the API of each of its blank messages in order."""

    fold_version: int
    apis: tuple[str, ...]
    state_fields: bytes
    digest: bytes = b""
    """Digest of the other fields, as in a checkpoint."""


def reduce_to_sizes(state: ConversationState) -> ConversationState:
    """Return a state whose request has every size that ``state``'s has, with one empty message for each API.

    The messages are needed because a size depends on the APIs that the history was written for.
    """
    apis = dict.fromkeys(sized_message.api for sized_message in build_projection(state))
    blank = _build_blank_state(tuple(apis))
    measurement = state.usage.measured_request
    if measurement is not None:
        # A measurement that is valid for ``state`` must be valid for the blank messages, and an invalid one not.
        is_valid = get_valid_measured_request(state) is not None
        digest = compute_leading_digest(blank) if is_valid else b""
        measurement = replace(measurement, message_count=0, projection_digest=digest)
    # The restored fields are of the real history; the pinned messages among them are not here.
    sizes = restore_checkpoint_fields(blank, collect_checkpoint_fields(state))
    return replace(
        sizes,
        view=replace(sizes.view, pinned_count=0),
        usage=replace(sizes.usage, measured_request=measurement),
    )


def encode_outline(state: ConversationState) -> bytes:
    """Return the outline of ``state``."""
    sizes = reduce_to_sizes(state)
    apis = tuple(sized_message.api for sized_message in sizes.history.sized_messages)
    outline = SizeOutline(FOLD_VERSION, apis, pack_value(collect_checkpoint_fields(sizes)))
    return pack_value(replace(outline, digest=_hash_outline(outline)))


def strip_entry_text(entry: Entry) -> Entry:
    """Return an entry with only the parts that the fold uses if no edit applies to it: roles, sizes, calls, media.

    An import may be larger than memory, and folding it needs neither texts nor the lines that notes keep.
    """
    body = entry.body
    if isinstance(body, NoteEntry) and body.reason != NOTE_QUEUED:
        return replace(entry, body=replace(body, raw=b""))
    if not isinstance(body, MessageEntry | BranchSummaryEntry):
        return entry
    message = body.sized_message.message
    stripped_parts = [_strip_part_text(part) for part in message.parts]
    parts = tuple([part for part in stripped_parts if part is not None])
    sized_message = replace(body.sized_message, message=Message(message.role, parts), raw=None)
    if isinstance(body, MessageEntry):
        return replace(entry, body=MessageEntry(sized_message))
    return replace(entry, body=replace(body, sized_message=sized_message))


def _strip_part_text(part: Part) -> Part | None:
    if isinstance(part, ToolCall):
        return ToolCall(part.id, part.name)
    if isinstance(part, ToolResult):
        media = []
        for item in part.content:
            if isinstance(item, Media):
                media.append(replace(item, raw=None))
        return ToolResult(part.call_id, part.name, tuple(media))
    if isinstance(part, Media):
        return replace(part, raw=None)
    return None


def decode_outline(data: bytes | None) -> ConversationState | None:
    """Return the state without texts in ``data``, or None if it is missing, damaged or of another version."""
    if data is None:
        return None
    try:
        outline = unpack_value(data, SizeOutline)
        state = unpack_value(outline.state_fields, StateFields)
    except (ValueError, TypeError):
        return None
    if outline.fold_version != FOLD_VERSION or outline.digest != _hash_outline(outline):
        return None
    return restore_checkpoint_fields(_build_blank_state(outline.apis), state)


def _build_blank_state(apis: tuple[str, ...]) -> ConversationState:
    bodies = (MessageEntry(SizedMessage(Message("user", ()), 0, b"", api)) for api in apis)
    return ConversationState.from_entries(Entry("", None, body) for body in bodies)


def _hash_outline(outline: SizeOutline) -> bytes:
    return blake2b(pack_value(replace(outline, digest=b"")), digest_size=16).digest()
