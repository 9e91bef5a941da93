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
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import base_mark, project
from holdfast.state.codec.packing import pack, unpack
from holdfast.state.entries import QUEUED, BranchSummary, Entry, Note, Said
from holdfast.store.tree.active import CARRIED, FOLD, State


class Outline(Struct, frozen=True):
    """The plain fields of a branch, and the APIs of its messages in the order in which they came."""

    fold: int
    apis: tuple[str, ...]
    state: bytes
    digest: bytes = b""
    """Of all the others, as in a checkpoint."""


def bare(branch: Branch) -> Branch:
    """Return a branch whose request has every size that ``branch``'s has, with an empty message for each API."""
    blank = _blank(dict.fromkeys(slot.api for slot in project(branch)))
    told = branch.measured
    if told is not None:
        told = replace(told, slots=0, mark=base_mark(blank) if branch.anchor is not None else b"")
    carried = {name: getattr(branch, name) for name in CARRIED}
    return replace(blank, **carried | {"pinned": 0, "measured": told})


def outlined(branch: Branch) -> bytes:
    """Return the outline of ``branch``."""
    plain = bare(branch)
    state = pack(State(*(getattr(plain, name) for name in CARRIED)))
    made = Outline(FOLD, tuple(slot.api for slot in plain.slots), state)
    return pack(replace(made, digest=_digest(made)))


def without_words(entry: Entry) -> Entry:
    """Return what the fold asks of an entry that no edit changed: roles, sizes, calls and media, without texts.

    An import may be larger than memory; folding it needs no word of what was said, nor a line that a note keeps.
    """
    body = entry.body
    if isinstance(body, Note) and body.reason != QUEUED:
        return replace(entry, body=replace(body, raw=b""))
    if not isinstance(body, Said | BranchSummary):
        return entry
    parts = tuple([light for part in body.slot.message.parts if (light := _part_without_words(part)) is not None])
    slot = replace(body.slot, message=Message(body.slot.message.role, parts), raw=None)
    return replace(entry, body=Said(slot) if isinstance(body, Said) else replace(body, slot=slot))


def _part_without_words(part: Part) -> Part | None:
    if isinstance(part, ToolCall):
        return ToolCall(part.id, part.name)
    if isinstance(part, ToolResult):
        media = tuple([replace(one, raw=None) for one in part.content if isinstance(one, Media)])
        return ToolResult(part.call_id, part.name, media)
    return replace(part, raw=None) if isinstance(part, Media) else None


def drawn(saved: bytes | None) -> Branch | None:
    """Return the bare branch of the outline ``saved``; nothing if it is none, damaged or not of this version."""
    if saved is None:
        return None
    try:
        found = unpack(saved, Outline)
        state = unpack(found.state, State)
    except (ValueError, TypeError):
        return None
    if found.fold != FOLD or found.digest != _digest(found):
        return None
    return replace(_blank(found.apis), **{name: getattr(state, name) for name in CARRIED})


def _blank(apis: dict[str, None] | tuple[str, ...]) -> Branch:
    said = (Said(Slot(Message("user", ()), 0, b"", api)) for api in apis)
    return Branch.build(Entry("", None, one) for one in said)


def _digest(outline: Outline) -> bytes:
    return blake2b(pack(replace(outline, digest=b"")), digest_size=16).digest()
