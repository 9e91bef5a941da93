"""An entry as a row of columns, and back: messages keep the bytes they came in.

A message that came over a wire is stored as those bytes alone where they decode to its value; the value is stored
beside them where it says more (a name that a reader looked up), and alone where there are no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple, replace

from holdfast.errors import LogConflict, StoreCorrupt
from holdfast.messages.sized_message import Slot
from holdfast.state.codec.packing import join, split
from holdfast.state.entries import Body, BranchSummary, Entry, Said
from holdfast.state.lazy_entries import LazyEntry
from holdfast.store.base import Decode
from holdfast.store.tree.placing import KIND

Decoders = Mapping[str, Decode]
"""How the wire bytes of each API become a message."""

_KNOWN = {
    "anthropic": "holdfast.providers.anthropic.messages:decode",
    "openai-chat": "holdfast.providers.openai_chat.messages:decode",
    "openai-responses": "holdfast.formats.codex.read:decode_item",
    "gemini": "holdfast.providers.gemini.messages:decode",
    "pi": "holdfast.formats.pi.read:decode_message",
}
_SAID = KIND[Said]
_KINDS: dict[str, type] = {name: kind for kind, name in KIND.items()}
_ENCODE = msgspec.msgpack.Encoder().encode
_UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What bytes that are no such value make their readers raise."""
LATEST = 2**63 - 1
"""The largest time (and integer) a column holds."""


class Row(Struct, frozen=True, gc=False):
    """The columns of an entry that say what it is; where it hangs is the tree's business."""

    kind: str
    at: int | None
    api: str
    size: int
    digest: bytes
    identity: bytes
    raw: bytes | None
    body: bytes | None
    raws: bytes | None
    origin: bytes | None


COLUMNS = Row.__struct_fields__
"""Their names."""
BARE = COLUMNS[: COLUMNS.index("body")]
"""Those of a message of which nothing is stored but its bytes."""
Columns = tuple[Any, ...]
"""The values of ``COLUMNS``, or of ``BARE``."""
_CONTENT = COLUMNS.index("raw")
"""Where among them that begins which a quota counts."""


@cache
def decoders() -> Decoders:
    """Return the decoders of every wire form this version reads."""
    found: dict[str, Decode] = {}
    for api, place in _KNOWN.items():
        module, name = place.split(":")
        try:
            found[api] = getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    return found


def identity(entry: Entry) -> bytes:
    """Return the digest of what ``entry`` says and of where it hangs.

    Equal digests mean the same entry: times, sizes and envelopes may differ between two readings of one file.
    """
    slot = _slot(entry.body)
    raw = None if slot is None or slot.raw is None else bytes(slot.raw)
    told = split(_stripped(entry.body)) if raw is None else (None, None)
    return _identity(KIND[type(entry.body)], entry.parent, raw, *told)


def to_row(entry: Entry, known: Decoders, decode: Decode | None = None) -> Row:
    """Return ``entry`` as columns, from which it can be read again; ``LogConflict`` where it could not.

    A message that came of its bytes by ``decode`` is not read again, where that is who will read them.
    """
    body, slot, kind, at = entry.body, _slot(entry.body), KIND[type(entry.body)], time_of(entry)
    if slot is None:
        text, raws = _packed(entry)
        return Row(kind, at, "", 0, b"", _identity(kind, entry.parent, None, text, raws), None, text, raws, None)
    raw = None if slot.raw is None else bytes(slot.raw)
    told = isinstance(body, Said) and _alone(slot, known, decode) is not None
    value, raws = (None, None) if told else _packed(entry)
    origin = bytes(body.origin) if isinstance(body, Said) and body.origin is not None else None
    mark = _identity(kind, entry.parent, raw, value, raws)
    return Row(kind, at, slot.api, slot.size, slot.digest, mark, raw, value, raws, origin)


def full(entry: Entry, known: Decoders, decode: Decode | None = None) -> Columns:
    """Return the columns of ``to_row``, in order."""
    return astuple(to_row(entry, known, decode))


def bare(entry: Entry, known: Decoders, decode: Decode | None = None) -> Columns:
    """Return the columns of ``to_row``; of a message of which nothing is stored but its bytes, no more than ``BARE``.

    ``sqlite3`` looks for somebody who adapts what is no number, text or ``bytearray``: a fifth of the whole time. [M]
    """
    said = entry.body
    if not isinstance(said, Said) or said.origin is not None or (told := _alone(said.slot, known, decode)) is None:
        return full(entry, known, decode)
    slot, raw = said.slot, bytearray(told)
    mark = _identity(_SAID, entry.parent, raw)
    return _SAID, time_of(entry), slot.api, slot.size, bytearray(slot.digest), bytearray(mark), raw


def kind_named(name: str) -> type[Struct]:
    """Return the type of the bodies of a kind; of a kind that this version does not know, one that no entry has."""
    return _KINDS.get(name, Struct)


def time_of(entry: Entry | LazyEntry) -> int | None:
    """Return when ``entry`` was made, where a column holds that."""
    return entry.at if entry.at is not None and abs(entry.at) <= LATEST else None


def weight(says: Iterable[Columns]) -> int:
    """Return how many bytes of content columns store, as a quota counts them."""
    return sum([len(content) for columns in says for content in columns[_CONTENT:] if content])


def digest_of(row: Row, parent: str | None) -> bytes:
    """Return the digest that ``row`` has behind ``parent``: where it is the stored one, both are what was stored."""
    return _identity(row.kind, parent, row.raw, row.body, row.raws)


def body_of(row: Row, known: Decoders) -> Body | None:
    """Return what ``row`` says, unproven, or nothing if it cannot be read."""
    try:
        return _body(row, known)
    except _UNREADABLE:
        return None


def check_types(entry: Entry) -> None:
    """Raise ``LogConflict``, which names the field, unless ``entry`` can be read again once it is stored."""
    _packed(entry)


def _packed(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return what ``entry`` says as bytes that its type can be read from: values are made without being checked."""
    try:
        text, raws = split(_stripped(entry.body))
        join(text, None, type(entry.body))
    except _UNREADABLE as error:
        raise _untyped(entry, error) from error
    return text, raws


def from_row(place: tuple[str, str | None, int], row: Row, known: Decoders) -> Entry:
    """Return the entry ``(id, parent, seq)`` of ``row``; ``StoreCorrupt`` if its bytes are not what was stored."""
    id_, parent, seq = place
    if _identity(row.kind, parent, row.raw, row.body, row.raws) != row.identity:
        raise _damaged(id_, seq, "its bytes are not those that were stored")
    try:
        return Entry(id_, parent, _body(row, known), seq, row.at)
    except _UNREADABLE as error:
        raise _damaged(id_, seq, str(error)) from error


def _body(row: Row, known: Decoders) -> Body:
    if row.body is None:
        return _from_wire(row, known)
    body: Body = join(row.body, row.raws, _KINDS[row.kind])
    slot = _slot(body)
    if slot is None:
        return body
    slot = replace(slot, size=row.size, digest=row.digest, raw=None if row.raw is None else Raw(row.raw))
    body = replace(body, slot=slot)
    return replace(body, origin=Raw(row.origin)) if row.origin is not None else body


def _from_wire(row: Row, known: Decoders) -> Said:
    if row.raw is None or row.api not in known:
        msg = f"it has the form {row.api!r}, which this version does not read: update holdfast"
        raise LookupError(msg)
    slot = Slot(known[row.api](row.raw), row.size, row.digest, row.api, Raw(row.raw))
    return Said(slot, None if row.origin is None else Raw(row.origin))


def _alone(slot: Slot, known: Decoders, before: Decode | None) -> Raw | None:
    """Return the bytes that alone tell the message, which ``before`` made of them, if anybody did; or nothing."""
    decode = known.get(slot.api)
    if decode is None or slot.raw is None or slot.base is not None:
        return None
    if decode is before:
        return slot.raw
    try:
        return slot.raw if decode(bytes(slot.raw)) == slot.message else None
    except _UNREADABLE:
        return None


def _identity(
    kind: str, parent: str | None, raw: bytes | bytearray | None, text: bytes | None = None, raws: bytes | None = None
) -> bytes:
    told = (kind, parent, raw, None) if raw is not None else (kind, parent, text, raws)
    return blake2b(_ENCODE(told), digest_size=16).digest()


def _stripped(body: Body) -> Body:
    """Return ``body`` without what has a column of its own."""
    if isinstance(body, Said):
        return Said(replace(body.slot, size=0, digest=b"", raw=None))
    if isinstance(body, BranchSummary):
        return replace(body, slot=replace(body.slot, size=0, digest=b"", raw=None))
    return body


def _slot(body: Body) -> Slot | None:
    return body.slot if isinstance(body, (Said, BranchSummary)) else None


def _untyped(entry: Entry, error: Exception) -> LogConflict:
    what = KIND[type(entry.body)].replace("_", " ")
    return LogConflict(
        f"{what} {entry.id!r} could not be read again: {error}; nothing was written: give a value of that type"
    )


def _damaged(id_: str, seq: int, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"entry {id_} (number {seq}) is damaged: {why}; `holdfast doctor` lists what else is, `holdfast repair` "
        "puts it aside"
    )
