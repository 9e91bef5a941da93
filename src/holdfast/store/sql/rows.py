"""Entries as rows of columns, and back; messages keep the bytes that they were received in.

A message from the wire is stored as those bytes alone if decoding them gives its value. If the value has more (a
name that a reader looked up), it is stored beside the bytes, and it is stored alone if there are no bytes.
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
"""For each API, the function that decodes the wire bytes of a message."""

_FORMAT_DECODER_PATHS = {
    "openai-responses": "holdfast.formats.codex.read:decode_codex_item",
    "pi": "holdfast.formats.pi.read:decode_pi_message",
}
"""Decoders for messages of recorded sessions whose bytes differ from those in requests: Codex has items of Responses.
"""
_MESSAGE_KIND = KIND_BY_TYPE[MessageEntry]
_TYPE_BY_KIND: dict[str, type] = {name: kind for kind, name in KIND_BY_TYPE.items()}
_ENCODE_MSGPACK = msgspec.msgpack.Encoder().encode
_READ_ERRORS = (ValueError, LookupError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Exceptions of decoders for bytes that are not the expected value."""
MAX_TIME = 2**63 - 1
"""Largest time (and integer) that a column holds."""


class EntryRow(Struct, frozen=True, gc=False):
    """The columns with the content of an entry; its place in the tree is in other columns."""

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
"""Names of those columns."""
WIRE_ONLY_COLUMNS = ROW_COLUMNS[: ROW_COLUMNS.index("body")]
"""The columns of a message that is stored as its wire bytes alone."""
RowColumns = tuple[Any, ...]
"""Values of ``ROW_COLUMNS`` or of ``WIRE_ONLY_COLUMNS``."""
_CONTENT_START = ROW_COLUMNS.index("raw")
"""Index of the first column whose bytes count for a quota."""


@cache
def load_message_decoders() -> MessageDecoders:
    """Return the decoders of every wire form that this version reads."""
    specs: Mapping[str, Any] = import_module("holdfast.providers.registry").API_SPECS
    decoders_by_api: dict[str, MessageDecoder] = {api: spec.decode_message for api, spec in specs.items()}
    # Imported by name and on demand: a store that holds no such session does not load the readers.
    for api, path in _FORMAT_DECODER_PATHS.items():
        module, name = path.split(":")
        try:
            decoders_by_api[api] = getattr(import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    return decoders_by_api


def compute_entry_identity(entry: Entry) -> bytes:
    """Return the digest of an entry's content and parent.

    Equal digests mean the same entry. Times, sizes and envelopes are left out: two readings of one file may differ in
    them.
    """
    kind = KIND_BY_TYPE[type(entry.body)]
    sized_message = _find_sized_message(entry.body)
    if sized_message is not None and sized_message.raw is not None:
        return _hash_identity(kind, entry.parent, bytes(sized_message.raw))
    return _hash_identity(kind, entry.parent, None, *split_raw_bytes(_strip_column_fields(entry.body)))


def encode_entry_row(entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None) -> EntryRow:
    """Return ``entry`` as columns; raises ``LogConflict`` if it could not be read back from them.

    A message that ``decode`` made from its bytes is not decoded again to check that, if reading uses the same decoder.
    """
    body = entry.body
    kind = KIND_BY_TYPE[type(body)]
    sized_message = _find_sized_message(body)
    if sized_message is None:
        text, raws = _encode_body(entry)
        return EntryRow(
            kind=kind,
            at=get_storable_time(entry),
            api="",
            size=0,
            digest=b"",
            identity=_hash_identity(kind, entry.parent, None, text, raws),
            raw=None,
            body=text,
            raws=raws,
            origin=None,
        )
    value: bytes | None = None
    raws = None
    # Wire bytes that decode to the same message are stored alone: most messages are stored once, not twice.
    is_wire_only = (
        isinstance(body, MessageEntry) and _get_sufficient_raw(sized_message, wire_decoders, decode) is not None
    )
    if not is_wire_only:
        value, raws = _encode_body(entry)
    origin = body.recording_envelope if isinstance(body, MessageEntry) else None
    raw = None if sized_message.raw is None else bytes(sized_message.raw)
    return EntryRow(
        kind=kind,
        at=get_storable_time(entry),
        api=sized_message.api,
        size=sized_message.tokens,
        digest=sized_message.digest,
        identity=_hash_identity(kind, entry.parent, raw, value, raws),
        raw=raw,
        body=value,
        raws=raws,
        origin=None if origin is None else bytes(origin),
    )


def encode_full_columns(
    entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None
) -> RowColumns:
    """Return the columns of ``encode_entry_row`` as a tuple."""
    return astuple(encode_entry_row(entry, wire_decoders, decode))


def encode_minimal_columns(
    entry: Entry, wire_decoders: MessageDecoders, decode: MessageDecoder | None = None
) -> RowColumns:
    """Return the columns of ``encode_entry_row``, only ``WIRE_ONLY_COLUMNS`` for a message stored as its bytes alone.

    Bytes are passed as ``bytearray``: for other types than numbers, text and ``bytearray``, ``sqlite3`` looks for an
    adapter first, which measured a fifth of the whole time.
    """
    body = entry.body
    if not isinstance(body, MessageEntry) or body.recording_envelope is not None:
        return encode_full_columns(entry, wire_decoders, decode)
    sized_message = body.sized_message
    wire_bytes = _get_sufficient_raw(sized_message, wire_decoders, decode)
    if wire_bytes is None:
        return encode_full_columns(entry, wire_decoders, decode)
    raw = bytearray(wire_bytes)
    return (
        _MESSAGE_KIND,
        get_storable_time(entry),
        sized_message.api,
        sized_message.tokens,
        bytearray(sized_message.digest),
        bytearray(_hash_identity(_MESSAGE_KIND, entry.parent, raw)),
        raw,
    )


def get_entry_body_type(name: str) -> type[Struct]:
    """Return the body type of a kind; for a kind that this version does not know, a type that no body has."""
    return _TYPE_BY_KIND.get(name, Struct)


def get_storable_time(entry: Entry | LazyEntry) -> int | None:
    """Return the entry's time in ms since 1970, or None if it has none that a column can hold."""
    if entry.time_ms is None or abs(entry.time_ms) > MAX_TIME:
        return None
    return entry.time_ms


def count_content_bytes(columns_by_entry: Iterable[RowColumns]) -> int:
    """Return the bytes of content in these columns, as a quota counts them."""
    total = 0
    for columns in columns_by_entry:
        for content in columns[_CONTENT_START:]:
            total += len(content or b"")
    return total


def compute_row_identity(row: EntryRow, parent: str | None) -> bytes:
    """Return the digest of a row under ``parent``. If it equals the stored one, neither has changed."""
    return _hash_identity(row.kind, parent, row.raw, row.body, row.raws)


def try_decode_entry_body(row: EntryRow, wire_decoders: MessageDecoders) -> EntryBody | None:
    """Return the body in ``row``, without checking its digest, or None if it cannot be decoded."""
    try:
        return _decode_body(row, wire_decoders)
    except _READ_ERRORS:
        return None


def check_entry_storable(entry: Entry) -> None:
    """Raise ``LogConflict``, naming the field, if ``entry`` could not be read back once it is stored."""
    _encode_body(entry)


def _encode_body(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return the body of ``entry`` as bytes from which it can be decoded.

    They are decoded once to make sure: values are constructed without a check of their types.
    """
    try:
        text, raws = split_raw_bytes(_strip_column_fields(entry.body))
        join_raw_bytes(text, None, type(entry.body))
    except _READ_ERRORS as error:
        raise _build_type_error(entry, error) from error
    return text, raws


def decode_entry_row(place: tuple[str, str | None, int], row: EntryRow, wire_decoders: MessageDecoders) -> Entry:
    """Return the entry of ``row``; ``place`` is its id, parent and ``seq``.

    Raises ``StoreCorrupt`` if the bytes are not those that were stored, or cannot be decoded.
    """
    entry_id, parent, seq = place
    # Checked on every read: SQLite does not notice bytes that changed on disk.
    if compute_row_identity(row, parent) != row.identity:
        raise _build_entry_damage_error(entry_id, seq, "its bytes are not those that were stored")
    try:
        return Entry(entry_id, parent, _decode_body(row, wire_decoders), seq, row.at)
    except _READ_ERRORS as error:
        raise _build_entry_damage_error(entry_id, seq, str(error)) from error


def _decode_body(row: EntryRow, wire_decoders: MessageDecoders) -> EntryBody:
    if row.body is None:
        return _decode_wire_message(row, wire_decoders)
    body: EntryBody = join_raw_bytes(row.body, row.raws, _TYPE_BY_KIND[row.kind])
    sized_message = _find_sized_message(body)
    if sized_message is None:
        return body
    raw = None if row.raw is None else Raw(row.raw)
    stored_message = replace(
        sized_message,
        tokens=row.size,
        digest=row.digest,
        raw=raw,
    )
    body = replace(body, sized_message=stored_message)
    if row.origin is None:
        return body
    return replace(body, recording_envelope=Raw(row.origin))


def _decode_wire_message(row: EntryRow, wire_decoders: MessageDecoders) -> MessageEntry:
    if row.raw is None or row.api not in wire_decoders:
        msg = f"it has the form {row.api!r}, which this version does not read: update holdfast"
        raise LookupError(msg)
    message = wire_decoders[row.api](row.raw)
    sized_message = SizedMessage(message, row.size, row.digest, row.api, Raw(row.raw))
    origin = None if row.origin is None else Raw(row.origin)
    return MessageEntry(sized_message, origin)


def _get_sufficient_raw(
    sized_message: SizedMessage, wire_decoders: MessageDecoders, decoder_used: MessageDecoder | None
) -> Raw | None:
    """Return the wire bytes of a message if they alone give its value when decoded, else None.

    ``decoder_used`` is the function that made the value from the bytes, if known; it is not run again.
    """
    decode = wire_decoders.get(sized_message.api)
    raw = sized_message.raw
    if decode is None or raw is None or sized_message.base_raw is not None:
        return None
    if decode is decoder_used:
        return raw
    try:
        is_same_value = decode(bytes(raw)) == sized_message.message
    except _READ_ERRORS:
        return None
    return raw if is_same_value else None


def _hash_identity(
    kind: str,
    parent: str | None,
    raw: bytes | bytearray | None,
    text: bytes | None = None,
    raws: bytes | None = None,
) -> bytes:
    # Wire bytes identify a message however its value is stored: another version may store it with or without.
    identity_fields = (kind, parent, raw, None) if raw is not None else (kind, parent, text, raws)
    encoded_fields = _ENCODE_MSGPACK(identity_fields)
    return blake2b(encoded_fields, digest_size=16).digest()


def _strip_column_fields(body: EntryBody) -> EntryBody:
    """Return ``body`` without the fields that have columns of their own."""
    if isinstance(body, MessageEntry):
        return MessageEntry(
            replace(
                body.sized_message,
                tokens=0,
                digest=b"",
                raw=None,
            )
        )
    if isinstance(body, BranchSummaryEntry):
        return replace(
            body,
            sized_message=replace(
                body.sized_message,
                tokens=0,
                digest=b"",
                raw=None,
            ),
        )
    return body


def _find_sized_message(body: EntryBody) -> SizedMessage | None:
    if isinstance(body, (MessageEntry, BranchSummaryEntry)):
        return body.sized_message
    return None


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
