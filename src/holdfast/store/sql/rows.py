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
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.codec.packing import join_raw_bytes, split_raw_bytes
from holdfast.state.entries import BranchSummaryEntry, Entry, EntryBody, MessageEntry
from holdfast.state.lazy_entries import LazyEntry
from holdfast.store.base import MessageDecoder
from holdfast.store.tree.placing import KIND_BY_TYPE

MessageDecoders = Mapping[str, MessageDecoder]
"""How the wire bytes of each API become a message."""

_FORMAT_DECODER_PATHS = {
    "openai-responses": "holdfast.formats.codex.read:decode_codex_item",
    "pi": "holdfast.formats.pi.read:decode_pi_message",
}
"""What reads bytes that stand in a recorded session otherwise than in a request: Codex wraps the items of Responses."""
_MESSAGE_KIND = KIND_BY_TYPE[MessageEntry]
_TYPE_BY_KIND: dict[str, type] = {name: kind for kind, name in KIND_BY_TYPE.items()}
_ENCODE_MSGPACK = msgspec.msgpack.Encoder().encode
_READ_ERRORS = (ValueError, LookupError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What bytes that are no such value make their readers raise."""
MAX_TIME = 2**63 - 1
"""The largest time (and integer) a column holds."""


class EntryRow(Struct, frozen=True, gc=False):
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


ROW_COLUMNS = EntryRow.__struct_fields__
"""Their names."""
WIRE_ONLY_COLUMNS = ROW_COLUMNS[: ROW_COLUMNS.index("body")]
"""Those of a message of which nothing is stored but its bytes."""
RowColumns = tuple[Any, ...]
"""The values of ``ROW_COLUMNS``, or of ``WIRE_ONLY_COLUMNS``."""
_CONTENT_START = ROW_COLUMNS.index("raw")
"""Where among them that begins which a quota counts."""


@cache
def load_message_decoders() -> MessageDecoders:
    """Return the decoders of every wire form this version reads."""
    specs: Mapping[str, Any] = import_module("holdfast.providers.registry").API_SPECS
    decoders_by_api: dict[str, MessageDecoder] = {api: spec.decode_message for api, spec in specs.items()}
    for api, place in _FORMAT_DECODER_PATHS.items():
        module, name = place.split(":")
        try:
            decoders_by_api[api] = getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    return decoders_by_api


def compute_entry_identity(entry: Entry) -> bytes:
    """Return the digest of what ``entry`` says and of where it hangs.

    Equal digests mean the same entry: times, sizes and envelopes may differ between two readings of one file.
    """
    sized_message = _find_sized_message(entry.body)
    raw = None if sized_message is None or sized_message.raw is None else bytes(sized_message.raw)
    text_and_raws = split_raw_bytes(_strip_column_fields(entry.body)) if raw is None else (None, None)
    return _hash_identity(KIND_BY_TYPE[type(entry.body)], entry.parent, raw, *text_and_raws)


def encode_entry_row(entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None) -> EntryRow:
    """Return ``entry`` as columns, from which it can be read again; ``LogConflict`` where it could not.

    A message that came of its bytes by ``decode`` is not read again, where that is who will read them.
    """
    body, sized_message, kind, at = (
        entry.body,
        _find_sized_message(entry.body),
        KIND_BY_TYPE[type(entry.body)],
        get_storable_time(entry),
    )
    if sized_message is None:
        text, raws = _encode_body(entry)
        return EntryRow(
            kind, at, "", 0, b"", _hash_identity(kind, entry.parent, None, text, raws), None, text, raws, None
        )
    raw = None if sized_message.raw is None else bytes(sized_message.raw)
    is_wire_only = (
        isinstance(body, MessageEntry) and _get_sufficient_raw(sized_message, wire_decoders, decode) is not None
    )
    value, raws = (None, None) if is_wire_only else _encode_body(entry)
    origin = (
        bytes(body.recording_envelope)
        if isinstance(body, MessageEntry) and body.recording_envelope is not None
        else None
    )
    mark = _hash_identity(kind, entry.parent, raw, value, raws)
    return EntryRow(
        kind, at, sized_message.api, sized_message.tokens, sized_message.digest, mark, raw, value, raws, origin
    )


def encode_full_columns(
    entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None
) -> RowColumns:
    """Return the columns of ``encode_entry_row``, in order."""
    return astuple(encode_entry_row(entry, wire_decoders, decode))


def encode_minimal_columns(
    entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None
) -> RowColumns:
    """Return the columns of ``encode_entry_row``; of a message of which nothing is stored but its bytes, no more than
    ``WIRE_ONLY_COLUMNS``.

    ``sqlite3`` looks for somebody who adapts what is no number, text or ``bytearray``: a fifth of the whole time. [M]
    """
    body = entry.body
    if (
        not isinstance(body, MessageEntry)
        or body.recording_envelope is not None
        or (wire_bytes := _get_sufficient_raw(body.sized_message, wire_decoders, decode)) is None
    ):
        return encode_full_columns(entry, wire_decoders, decode)
    sized_message, raw = body.sized_message, bytearray(wire_bytes)
    mark = _hash_identity(_MESSAGE_KIND, entry.parent, raw)
    return (
        _MESSAGE_KIND,
        get_storable_time(entry),
        sized_message.api,
        sized_message.tokens,
        bytearray(sized_message.digest),
        bytearray(mark),
        raw,
    )


def get_entry_body_type(name: str) -> type[Struct]:
    """Return the type of the bodies of a kind; of a kind that this version does not know, one that no entry has."""
    return _TYPE_BY_KIND.get(name, Struct)


def get_storable_time(entry: Entry | LazyEntry) -> int | None:
    """Return when ``entry`` was made, where a column holds that."""
    return entry.time_ms if entry.time_ms is not None and abs(entry.time_ms) <= MAX_TIME else None


def count_content_bytes(columns_by_entry: Iterable[RowColumns]) -> int:
    """Return how many bytes of content columns store, as a quota counts them."""
    return sum([len(content) for columns in columns_by_entry for content in columns[_CONTENT_START:] if content])


def compute_row_identity(row: EntryRow, parent: str | None) -> bytes:
    """Return the digest that ``row`` has behind ``parent``: where it is the stored one, both are what was stored."""
    return _hash_identity(row.kind, parent, row.raw, row.body, row.raws)


def try_decode_entry_body(row: EntryRow, wire_decoders: MessageDecoders) -> EntryBody | None:
    """Return what ``row`` says, unproven, or nothing if it cannot be read."""
    try:
        return _decode_body(row, wire_decoders)
    except _READ_ERRORS:
        return None


def check_entry_storable(entry: Entry) -> None:
    """Raise ``LogConflict``, which names the field, unless ``entry`` can be read again once it is stored."""
    _encode_body(entry)


def _encode_body(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return what ``entry`` says as bytes that its type can be read from: values are made without being checked."""
    try:
        text, raws = split_raw_bytes(_strip_column_fields(entry.body))
        join_raw_bytes(text, None, type(entry.body))
    except _READ_ERRORS as error:
        raise _build_type_error(entry, error) from error
    return text, raws


def decode_entry_row(place: tuple[str, str | None, int], row: EntryRow, wire_decoders: MessageDecoders) -> Entry:
    """Return the entry ``(id, parent, seq)`` of ``row``; ``StoreCorrupt`` if its bytes are not what was stored."""
    id_, parent, seq = place
    if _hash_identity(row.kind, parent, row.raw, row.body, row.raws) != row.identity:
        raise _build_entry_damage_error(id_, seq, "its bytes are not those that were stored")
    try:
        return Entry(id_, parent, _decode_body(row, wire_decoders), seq, row.at)
    except _READ_ERRORS as error:
        raise _build_entry_damage_error(id_, seq, str(error)) from error


def _decode_body(row: EntryRow, wire_decoders: MessageDecoders) -> EntryBody:
    if row.body is None:
        return _decode_wire_message(row, wire_decoders)
    body: EntryBody = join_raw_bytes(row.body, row.raws, _TYPE_BY_KIND[row.kind])
    sized_message = _find_sized_message(body)
    if sized_message is None:
        return body
    sized_message = replace(
        sized_message, tokens=row.size, digest=row.digest, raw=None if row.raw is None else Raw(row.raw)
    )
    body = replace(body, sized_message=sized_message)
    return replace(body, recording_envelope=Raw(row.origin)) if row.origin is not None else body


def _decode_wire_message(row: EntryRow, wire_decoders: MessageDecoders) -> MessageEntry:
    if row.raw is None or row.api not in wire_decoders:
        msg = f"it has the form {row.api!r}, which this version does not read: update holdfast"
        raise LookupError(msg)
    sized_message = SizedMessage(wire_decoders[row.api](row.raw), row.size, row.digest, row.api, Raw(row.raw))
    return MessageEntry(sized_message, None if row.origin is None else Raw(row.origin))


def _get_sufficient_raw(
    sized_message: SizedMessage, wire_decoders: MessageDecoders, decoder_used: MessageDecoder | None
) -> Raw | None:
    """Return the bytes that alone tell the message, which ``decoder_used`` made of them, if anybody did; or nothing."""
    decode = wire_decoders.get(sized_message.api)
    if decode is None or sized_message.raw is None or sized_message.base_raw is not None:
        return None
    if decode is decoder_used:
        return sized_message.raw
    try:
        return sized_message.raw if decode(bytes(sized_message.raw)) == sized_message.message else None
    except _READ_ERRORS:
        return None


def _hash_identity(
    kind: str, parent: str | None, raw: bytes | bytearray | None, text: bytes | None = None, raws: bytes | None = None
) -> bytes:
    identity_fields = (kind, parent, raw, None) if raw is not None else (kind, parent, text, raws)
    return blake2b(_ENCODE_MSGPACK(identity_fields), digest_size=16).digest()


def _strip_column_fields(body: EntryBody) -> EntryBody:
    """Return ``body`` without what has a column of its own."""
    if isinstance(body, MessageEntry):
        return MessageEntry(replace(body.sized_message, tokens=0, digest=b"", raw=None))
    if isinstance(body, BranchSummaryEntry):
        return replace(body, sized_message=replace(body.sized_message, tokens=0, digest=b"", raw=None))
    return body


def _find_sized_message(body: EntryBody) -> SizedMessage | None:
    return body.sized_message if isinstance(body, (MessageEntry, BranchSummaryEntry)) else None


def _build_type_error(entry: Entry, error: Exception) -> LogConflict:
    kind_name = KIND_BY_TYPE[type(entry.body)].replace("_", " ")
    return LogConflict(
        f"{kind_name} {entry.id!r} could not be read again: {error}; nothing was written: give a value of that type"
    )


def _build_entry_damage_error(id_: str, seq: int, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"entry {id_} (number {seq}) is damaged: {why}; `holdfast doctor` lists what else is, `holdfast repair` "
        "puts it aside"
    )
