"""Blobs as rows of PostgreSQL: pieces of one size, compressed each by itself, so that a page reads only its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from math import inf

import zstandard

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.store.base import BlobItem, Quota
from holdfast.store.blobs.blob_total import BLOB_QUOTA_ADVICE, check_quota
from holdfast.store.blobs.blobs import MAX_TEXT_INDEXES, check_hash, hash_content
from holdfast.store.blobs.text_pages import (
    BLOB_PIECE_BYTES,
    BlobTextIndex,
    index_blob_text,
    iter_content_bytes,
    read_blob_characters,
)
from holdfast.store.postgres.database import PostgresDatabase

PIECE_BYTES = 4 * BLOB_PIECE_BYTES
"""Bytes of a piece before compression, the last one has fewer.

Chosen by judgement: a page of a few thousand characters reads one or two pieces; smaller ones compress worse and are
more rows.
"""
BLOBS_LOCK = 0x484F4C44_424C4F42
"""Key of the advisory lock under which the blobs are counted for a quota: "HOLDBLOB" in ASCII."""
LISTED_AT_ONCE = 10_000
"""Blobs that are listed by one statement, so that a long list is not in memory as a whole."""
_SELECT_SIZE = "SELECT size FROM blobs WHERE tenant = %s AND hash = %s"
_SELECT_PIECES = """
    SELECT number, is_compressed, content FROM blob_pieces
    WHERE tenant = %s AND hash = %s AND number = %s"""
_TOUCH = "UPDATE blobs SET stored_at = greatest(stored_at, %s) WHERE tenant = %s AND hash = %s"
_INSERT = """
    INSERT INTO blobs (tenant, hash, size, stored_at) VALUES (%s, %s, %s, %s)
    ON CONFLICT (tenant, hash) DO UPDATE SET stored_at = excluded.stored_at, size = excluded.size"""
_INSERT_PIECE = """
    INSERT INTO blob_pieces (tenant, hash, number, is_compressed, content) VALUES (%s, %s, %s, %s, %s)"""
_LIST = """
    SELECT hash, size, stored_at FROM blobs WHERE tenant = %s AND hash > %s ORDER BY hash LIMIT %s"""


class PostgresBlobStore:
    """Blobs of one tenant."""

    def __init__(
        self, database: PostgresDatabase, quota: Quota = Quota(), clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._tenant = database.location.tenant
        self._quota = quota.blob_bytes
        self._clock = clock
        self._indexes: dict[str, BlobTextIndex] = {}
        """Text indexes by hash, the least recently used first. A blob that has one was verified."""
        self._turn = threading.Lock()
        """Held while that changes."""

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; if it is stored already, only its time changes."""
        hash_, length = hash_content(content)
        if self._touch_intact(hash_, length):
            return hash_
        key = (self._tenant, bytes.fromhex(hash_))
        with self._database.write_transaction():
            transaction = self._database.transaction
            if self._quota:
                transaction.execute("SELECT pg_advisory_xact_lock(%s)", [BLOBS_LOCK])
                row = transaction.fetch_one(
                    "SELECT coalesce(sum(size), 0)::bigint FROM blobs WHERE tenant = %s AND hash <> %s", key
                )
                check_quota(row[0] if row else 0, length, self._quota, "the blobs", BLOB_QUOTA_ADVICE)
            # The row's lock comes first: two who store the same content write its pieces one after the other.
            transaction.execute(_INSERT, (*key, length, self._clock()))
            # What is there is damaged, or was written by the other one just now.
            transaction.execute("DELETE FROM blob_pieces WHERE tenant = %s AND hash = %s", key)
            for number, piece in enumerate(_cut_into_pieces(content)):
                transaction.execute(_INSERT_PIECE, (*key, number, *_compress(piece)))
        return hash_

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        start = max(0, start)
        with self._database.read_transaction():
            size = self.get_size(hash_)
            end = size if stop is None else min(max(0, stop), size)
            self._get_text_index(hash_)
            data = bytearray()
            for piece in self._iter_bytes(hash_, start):
                data += piece
                if len(data) >= end - start:
                    break
        return bytes(data[: max(0, end - start)])

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""
        with self._database.read_transaction():
            text_index = self._get_text_index(hash_)
            return read_blob_characters(lambda offset: self._iter_bytes(hash_, offset), text_index, start, stop)

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""
        return self._get_text_index(hash_).characters

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""
        return self._find_size(hash_) is not None

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""
        size = self._find_size(hash_)
        if size is None:
            raise UnknownId(f"blob {hash_} is not in the store; restore the database from a backup")
        return size

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob."""
        for item in self.iter_items():
            yield item.name

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob; there are no drafts, since a transaction writes all of one or nothing."""
        last_hash = b""
        while True:
            with self._database.read_transaction():
                if not self._database.has_tables:
                    return
                rows = self._database.transaction.fetch_all(_LIST, (self._tenant, last_hash, LISTED_AT_ONCE))
            for hash_, size, stored_at in rows:
                yield BlobItem(hash_.hex(), size, stored_at)
            if len(rows) < LISTED_AT_ONCE:
                return
            last_hash = rows[-1][0]

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob. The caller makes sure that no entry names it."""
        self.remove_if_older(hash_, inf)

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later; return whether it was deleted."""
        key = (self._tenant, bytes.fromhex(check_hash(name)))
        with self._database.write_transaction():
            # Its pieces go with it.
            query = "DELETE FROM blobs WHERE tenant = %s AND hash = %s AND stored_at < %s"
            is_removed = bool(self._database.transaction.execute(query, (*key, before)))
        if is_removed:
            with self._turn:
                self._indexes.pop(name, None)
        return is_removed

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _touch_intact(self, hash_: str, length: int) -> bool:
        """If the blob is stored whole, renew its time and return True."""
        with self._database.read_transaction():
            if self._find_size(hash_) != length:
                return False
            try:
                self._get_text_index(hash_)
            except StoreCorrupt:
                return False
        with self._database.write_transaction():
            # It may have been removed in between: no row is changed then.
            values = (self._clock(), self._tenant, bytes.fromhex(hash_))
            return bool(self._database.transaction.execute(_TOUCH, values))

    def _find_size(self, hash_: str) -> int | None:
        key = (self._tenant, bytes.fromhex(check_hash(hash_)))
        with self._database.read_transaction():
            if not self._database.has_tables:
                return None
            row = self._database.transaction.fetch_one(_SELECT_SIZE, key)
        return None if row is None else int(row[0])

    def _get_text_index(self, hash_: str) -> BlobTextIndex:
        """Return the index of a blob, built once; raises ``StoreCorrupt`` if its content has another hash."""
        with self._turn:
            text_index = self._indexes.pop(hash_, None)
            if text_index is not None:
                self._indexes[hash_] = text_index
        if text_index is not None and self.has_blob(hash_):
            return text_index
        with self._database.read_transaction():
            self.get_size(hash_)
            text_index = index_blob_text(lambda start: self._iter_bytes(hash_, start))
        if text_index.hash != hash_:
            raise _build_damage_error(hash_)
        with self._turn:
            self._indexes[hash_] = text_index
            for old_hash in list(self._indexes)[:-MAX_TEXT_INDEXES]:
                del self._indexes[old_hash]
        return text_index

    def _iter_bytes(self, hash_: str, start: int) -> Iterator[bytes]:
        """Yield the content from byte ``start`` on, a piece at a time."""
        key = (self._tenant, bytes.fromhex(hash_))
        number, skipped_bytes = divmod(start, PIECE_BYTES)
        while True:
            row = self._database.transaction.fetch_one(_SELECT_PIECES, (*key, number))
            if row is None:
                return
            _, is_compressed, content = row
            piece = _decompress(content, hash_) if is_compressed else content
            for offset in range(skipped_bytes, len(piece), BLOB_PIECE_BYTES):
                yield piece[offset : offset + BLOB_PIECE_BYTES]
            if len(piece) < PIECE_BYTES:
                return
            skipped_bytes = 0
            number += 1


def _cut_into_pieces(content: str | bytes) -> Iterator[bytes]:
    """Yield the bytes of ``content`` in pieces of ``PIECE_BYTES``, without a second copy of the whole."""
    piece = bytearray()
    for part in iter_content_bytes(content):
        piece += part
        while len(piece) >= PIECE_BYTES:
            yield bytes(piece[:PIECE_BYTES])
            del piece[:PIECE_BYTES]
    if piece:
        yield bytes(piece)


def _compress(piece: bytes) -> tuple[bool, bytes]:
    """Return whether the piece is compressed, and its content: as it is where compression saves nothing."""
    compressed = zstandard.compress(piece)
    if len(compressed) < len(piece):
        return True, compressed
    return False, piece


def _decompress(content: bytes, hash_: str) -> bytes:
    try:
        return zstandard.decompress(content, max_output_size=PIECE_BYTES)
    except zstandard.ZstdError as error:
        raise _build_damage_error(hash_) from error


def _build_damage_error(hash_: str) -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} has content that does not match its hash; restore the database from a backup")
