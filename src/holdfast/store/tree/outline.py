"""What is known at the leaf of a branch, without a word of what was said: enough to tell how large its request is.

An import writes it beside the leaf, as a checkpoint stands beside a compaction: a session that another tool recorded
may be far larger than any window, and a list of sessions must not read it. It is derived like those: where it is
missing, damaged or of another version the active branch is read.
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
    """The plain fields of a branch, and the APIs of its messages in the order in which they came."""

    fold_version: int
    apis: tuple[str, ...]
    state_fields: bytes
    digest: bytes = b""
    """Of all the others, as in a checkpoint."""


def reduce_to_sizes(state: ConversationState) -> ConversationState:
    """Return a branch whose request has every size that ``state``'s has, with an empty message for each API."""
    blank = _build_blank_state(dict.fromkeys(sized_message.api for sized_message in build_projection(state)))
    measurement = state.usage.measured_request
    if measurement is not None:
        measurement = replace(
            measurement,
            message_count=0,
            projection_digest=compute_leading_digest(blank) if get_valid_measured_request(state) is not None else b"",
        )
    sizes = restore_checkpoint_fields(blank, collect_checkpoint_fields(state))
    return replace(
        sizes,
        view=replace(sizes.view, pinned_count=0),
        usage=replace(sizes.usage, measured_request=measurement),
    )


def encode_outline(branch: ConversationState) -> bytes:
    """Return the outline of ``branch``."""
    plain = reduce_to_sizes(branch)
    state = pack_value(collect_checkpoint_fields(plain))
    outline = SizeOutline(
        FOLD_VERSION, tuple(sized_message.api for sized_message in plain.history.sized_messages), state
    )
    return pack_value(replace(outline, digest=_hash_outline(outline)))


def strip_entry_text(entry: Entry) -> Entry:
    """Return what the fold asks of an entry that no edit changed: roles, sizes, calls and media, without texts.

    An import may be larger than memory; folding it needs no word of what was said, nor a line that a note keeps.
    """
    body = entry.body
    if isinstance(body, NoteEntry) and body.reason != NOTE_QUEUED:
        return replace(entry, body=replace(body, raw=b""))
    if not isinstance(body, MessageEntry | BranchSummaryEntry):
        return entry
    parts = tuple([light for part in body.sized_message.message.parts if (light := _strip_part_text(part)) is not None])
    sized_message = replace(body.sized_message, message=Message(body.sized_message.message.role, parts), raw=None)
    return replace(
        entry,
        body=MessageEntry(sized_message)
        if isinstance(body, MessageEntry)
        else replace(body, sized_message=sized_message),
    )


def _strip_part_text(part: Part) -> Part | None:
    if isinstance(part, ToolCall):
        return ToolCall(part.id, part.name)
    if isinstance(part, ToolResult):
        media = tuple([replace(item, raw=None) for item in part.content if isinstance(item, Media)])
        return ToolResult(part.call_id, part.name, media)
    return replace(part, raw=None) if isinstance(part, Media) else None


def decode_outline(data: bytes | None) -> ConversationState | None:
    """Return the bare branch of the outline ``data``; nothing if it is none, damaged or not of this version."""
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


def _build_blank_state(apis: dict[str, None] | tuple[str, ...]) -> ConversationState:
    bodies = (MessageEntry(SizedMessage(Message("user", ()), 0, b"", api)) for api in apis)
    return ConversationState.from_entries(Entry("", None, body) for body in bodies)


def _hash_outline(outline: SizeOutline) -> bytes:
    return blake2b(pack_value(replace(outline, digest=b"")), digest_size=16).digest()
