"""Blobs in object storage: one compressed object for each text, named by the text's hash.

Only the operations that every S3-compatible server has are needed: put, get (with ranges), list and delete, with the
strong consistency that S3 has had since 2020.

*Storing.* A put is atomic: an object is there as a whole, or not. A text is always written, also if it is there: that
makes it young, as the collector of garbage has to see, and replaces an object that was damaged, without downloading it.
The condition "only if absent" would save nothing, since a server decides on it after it has received the object, and
not every server knows it.

*Removing.* The collector looks when an object was stored, and deletes it if that was long ago. A writer that stores the
same text in between would lose it. So each writing of a text makes another object (``compressed_text``), and the
deletion is made on condition that the object is still the one that was looked at (``If-Match``). A server that ignores
this condition deletes all the same: what then remains is the time between the look and the deletion, some milliseconds,
for a text that nobody had named for the whole grace period. ``docs/stores.md`` lists what each server does.

*Large texts* are uploaded in parts and never held as a whole. An upload that fails is taken back. One whose process was
killed stays in the bucket, invisible to everybody, until the bucket's own rule for incomplete uploads removes it; so
there are no drafts to list here.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256
from itertools import chain
from math import floor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from holdfast.errors import StoreCorrupt, StoreError, UnknownId
from holdfast.store.base import BlobItem, Quota
from holdfast.store.blobs.blob_total import BLOB_QUOTA_ADVICE, check_quota
from holdfast.store.blobs.blobs import HASH_PATTERN, MAX_TEXT_INDEXES, check_hash, hash_content
from holdfast.store.blobs.compressed_text import (
    HEADER_BYTES,
    DamagedObject,
    TextFrame,
    compress_text,
    iter_text_frames,
    read_text_length,
)
from holdfast.store.blobs.object_errors import (
    ERROR_CODE,
    ServerUnavailable,
    build_object_error,
    describe_refusal,
    describe_silence,
    is_missing_object,
)
from holdfast.store.blobs.text_pages import (
    BlobTextIndex,
    PieceReader,
    index_blob_text,
    iter_content_bytes,
    read_blob_characters,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
PART_BYTES = 5 << 20
"""Bytes of a part of an upload: the least that S3 accepts. A text that is shorter is put at once."""
PARTS_AT_ONCE = 2
"""Parts that are sent at the same time, so that compressing and sending overlap. Each takes ``PART_BYTES``."""
WHOLE_BYTES = 1 << 20
"""Bytes of an object up to which the first page of a text takes one download instead of two.

Chosen by judgement: the texts of nearly all tool results are below it, and it is held only during the call.
"""
MAX_FRAMES_AT_ONCE = 32
"""Frames that one request for a part of a text asks for at most: 8 MB of text. The first asks for one, each next for
twice as many, so that a page is one request and a long text takes few.
"""
RECOUNT_SECONDS = 60.0
"""Seconds for which the sum of all blobs is believed, plus what this process adds, before it is counted again.

Chosen by judgement: counting lists the bucket, a request for every thousand blobs. Several processes may exceed a quota
by what they write in a minute.
"""
CLOCK_TOLERANCE = 2.0
"""Seconds by which the server's clock may differ without being taken to differ: its times are in whole seconds."""
PAUSE_SECONDS = 10.0
"""Seconds for which a server that did not answer is not asked again; every operation fails at once meanwhile.

Chosen by judgement: one failure takes up to ``RETRY_SECONDS``, and a request may need many texts, each of which would
wait as long with a user behind it.
"""
_DELETE_SECONDS = 60
"""Seconds for which the signature of a deletion is valid."""
_READ_ATTEMPTS = 3
"""How often a text is read if it is stored again during the reading."""


class _ObjectIndex(NamedTuple):
    """What one pass over an object found out: its text is that of the hash, and where each frame begins."""

    text_index: BlobTextIndex
    e_tag: str | None
    object_bytes: int
    text_starts: tuple[int, ...]
    object_starts: tuple[int, ...]


class _ObjectChanged(Exception):
    """The object was written again since its index was made."""


class ObjectBlobStore:
    """Blobs as objects ``ab/cdef…`` in a store of obstore, which may have a prefix.

    ``name`` is how messages call the place. May be used by several threads.
    """

    def __init__(self, objects: ObjectStore, name: str, quota: Quota = Quota()) -> None:
        self._objects = objects
        self.name = name
        self._quota = quota.blob_bytes
        self._total: tuple[float, int] | None = None
        """When the bytes of all blobs were counted (monotonic seconds), and how many they are with ours since."""
        self._clock_offset: float | None = None
        """Seconds by which the server's clock is ahead of ours; None if it was not asked yet."""
        self._paused_until = 0.0
        """Until when the server is not asked, in monotonic seconds."""
        self._indexes: dict[str, _ObjectIndex] = {}
        """Indexes by hash, the least recently used first."""

    # -- writing -------------------------------------------------------------------------------------------------------

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; if it is stored already, it is written again."""
        hash_, length = hash_content(content)
        subject = f"blob {hash_[:12]} ({length:,} bytes) was not stored"
        if self._quota:
            self._check_quota(hash_, length)
        frames = compress_text(iter_content_bytes(content), length)
        with self._translate_errors(subject):
            if length <= PART_BYTES:
                obstore.put(self._objects, _get_key(hash_), b"".join(frames), use_multipart=False)
            else:
                obstore.put(
                    self._objects,
                    _get_key(hash_),
                    frames,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
        return hash_

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob. The caller makes sure that no entry names it."""
        key = _get_key(check_hash(hash_))
        self._indexes.pop(hash_, None)
        try:
            with self._translate_errors(f"blob {hash_[:12]} was not removed"):
                obstore.delete(self._objects, key)
        except UnknownId:  # some servers say so, others do not
            return
        finally:
            self._total = None

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later, by this machine's clock; return whether."""
        hash_ = check_hash(name)
        if self._clock_offset is None:
            self._clock_offset = self._measure_clock_offset()
        subject = f"blob {hash_[:12]} was not removed"
        try:
            _, meta = self._read_header(hash_)
        except UnknownId:
            return False
        stored_at = meta["last_modified"].timestamp() - self._clock_offset
        # Whole seconds: lists of some servers have fractions of which their answers about one object have none.
        if floor(stored_at) >= floor(before):
            return False
        is_removed = self._delete_if_unchanged(hash_, meta["e_tag"], subject)
        if is_removed:
            self._indexes.pop(hash_, None)
            self._total = None
        return is_removed

    def _delete_if_unchanged(self, hash_: str, e_tag: str | None, subject: str) -> bool:
        """Delete the object on condition that it still has this ETag; return whether it was deleted."""
        key = _get_key(hash_)
        if not isinstance(self._objects, S3Store) or e_tag is None:
            with self._translate_errors(subject):
                obstore.delete(self._objects, key)
            return True
        with self._translate_errors(subject):
            url = obstore.sign(self._objects, "DELETE", key, timedelta(seconds=_DELETE_SECONDS))
        # obstore has no deletion with a condition, so its client signs one that is sent from here.
        status, code, _ = _send("DELETE", url, {"If-Match": e_tag})
        if not status:
            raise describe_silence(subject, self.name)
        if status in {"404", "409", "412"} and code != "NoSuchBucket":
            return False
        if not status.startswith("2"):
            raise describe_refusal(status, code, subject, self.name)
        return True

    def _check_quota(self, hash_: str, length: int) -> None:
        """Raise ``QuotaExceeded`` if a new blob of ``length`` bytes does not fit; one that is there takes no more."""
        if self.has_blob(hash_):
            return
        now = time.monotonic()
        if self._total is None or now - self._total[0] > RECOUNT_SECONDS:
            self._total = (now, sum(item.size for item in self.iter_items()))
        counted_at, total = self._total
        check_quota(total, length, self._quota, "the blobs", BLOB_QUOTA_ADVICE)
        self._total = (counted_at, total + length)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        first = max(0, start)
        if first == 0 and stop is None:
            return self._read_whole(hash_)

        def read_part(_: BlobTextIndex, read_pieces: PieceReader) -> bytes:
            return _join_part(read_pieces(first), None if stop is None else max(0, stop - first))

        return self._read_verified(hash_, read_part)

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, read piece by piece."""

        def read_page(text_index: BlobTextIndex, read_pieces: PieceReader) -> str:
            return read_blob_characters(read_pieces, text_index, start, stop)

        return self._read_verified(hash_, read_page)

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""
        self.get_size(hash_)  # a blob that was removed since is an error
        return self._read_verified(hash_, lambda text_index, _: text_index.characters)

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""
        check_hash(hash_)
        try:
            self._read_header(hash_)
        except UnknownId:
            return False
        return True

    def get_size(self, hash_: str) -> int:
        """Return the length of the blob's text in bytes."""
        header, _ = self._read_header(check_hash(hash_))
        with self._translate_damage(hash_):
            return read_text_length(header)

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob, in no particular order."""
        for item in self.iter_items():
            yield item.name

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob, in no particular order; the size is that of the compressed object."""
        offset = self._clock_offset = self._measure_clock_offset()
        with self._translate_errors("the blobs were not listed"):
            for metas in obstore.list(self._objects):
                for meta in metas:
                    hash_ = meta["path"].replace("/", "", 1)
                    if HASH_PATTERN.match(hash_) and meta["path"] == _get_key(hash_):
                        yield BlobItem(hash_, meta["size"], meta["last_modified"].timestamp() - offset)

    def _read_header(self, hash_: str) -> tuple[bytes, obstore.ObjectMeta]:
        """Return the first bytes of an object, and when it was stored; raises ``UnknownId`` if there is none."""
        key = _get_key(hash_)
        with self._translate_errors(f"blob {hash_[:12]} was not looked for", hash_):
            try:
                # Not "head": its answer has no body, which alone tells a missing bucket from a missing object.
                result = obstore.get(self._objects, key, options={"range": (0, HEADER_BYTES)})
                return bytes(result.bytes()), result.meta
            except BaseError:
                # An empty object, which somebody has cut, has no such range.
                meta = obstore.head(self._objects, key)
                if meta["size"]:
                    raise
                return b"", meta

    def _read_whole(self, hash_: str) -> bytes:
        digest = sha256()
        pieces = []
        with (
            self._translate_errors(f"blob {check_hash(hash_)[:12]} was not read", hash_),
            self._translate_damage(hash_),
        ):
            result = obstore.get(self._objects, _get_key(hash_))
            for frame in iter_text_frames(_iter_chunks(result)):
                digest.update(frame.text)
                pieces.append(frame.text)
        if digest.hexdigest() != hash_:
            raise _build_damage_error(hash_, self.name)
        return b"".join(pieces)

    def _read_verified(self, hash_: str, read: Callable[[BlobTextIndex, PieceReader], T]) -> T:
        """Return what ``read`` makes of a blob's index and pieces; raises ``StoreCorrupt`` if the hash is wrong.

        An index is made by one pass over the object; while it is kept, only the wanted frames are asked for.
        """
        subject = f"blob {check_hash(hash_)[:12]} was not read"
        for _ in range(_READ_ATTEMPTS):
            try:
                with self._translate_errors(subject, hash_), self._translate_damage(hash_):
                    index = self._indexes.pop(hash_, None)
                    read_pieces: PieceReader | None = None
                    if index is None:
                        index, read_pieces = self._build_index(hash_)
                    self._keep_index(hash_, index)
                    return read(index.text_index, read_pieces or self._make_range_reader(hash_, index))
            except _ObjectChanged:
                self._indexes.pop(hash_, None)
        raise StoreError(f"{subject}: it was stored again {_READ_ATTEMPTS} times meanwhile; try again")

    def _build_index(self, hash_: str) -> tuple[_ObjectIndex, PieceReader | None]:
        """Return the index of an object, and a reader of its pieces if all of it is in memory."""
        result = obstore.get(self._objects, _get_key(hash_))
        meta = result.meta
        text_starts: list[int] = []
        object_starts: list[int] = []

        def note_frames(frames: Iterator[TextFrame]) -> Iterator[bytes]:
            text_starts.clear()
            object_starts.clear()
            for frame in frames:
                text_starts.append(frame.text_start)
                object_starts.append(frame.object_start)
                yield frame.text

        data = bytes(result.bytes()) if meta["size"] <= WHOLE_BYTES else None
        is_first_pass = True

        def read_pieces(_: int) -> Iterator[bytes]:
            nonlocal is_first_pass
            if data is not None:
                return note_frames(iter_text_frames([data]))
            # The second pass, for bytes that are not UTF-8, downloads the object again.
            source = result if is_first_pass else obstore.get(self._objects, _get_key(hash_))
            is_first_pass = False
            return note_frames(iter_text_frames(_iter_chunks(source)))

        text_index = index_blob_text(read_pieces)
        if text_index.hash != hash_:
            raise _build_damage_error(hash_, self.name)
        index = _ObjectIndex(text_index, meta["e_tag"], meta["size"], tuple(text_starts), tuple(object_starts))
        if data is None:
            return index, None
        return index, lambda start: _cut_pieces(_iter_known_frames(data, index, start), start)

    def _keep_index(self, hash_: str, index: _ObjectIndex) -> None:
        self._indexes[hash_] = index
        for old_hash in list(self._indexes)[:-MAX_TEXT_INDEXES]:
            self._indexes.pop(old_hash, None)  # another thread may have removed it

    def _make_range_reader(self, hash_: str, index: _ObjectIndex) -> PieceReader:
        return lambda start: _cut_pieces(self._iter_ranges(hash_, index, start), start)

    def _iter_ranges(self, hash_: str, index: _ObjectIndex, start: int) -> Iterator[TextFrame]:
        """Yield the frames of the text from byte ``start`` on, asking for more of them with each request."""
        number = _find_frame(index, start)
        count = 1
        while number < len(index.object_starts):
            object_start = index.object_starts[number]
            after = number + count
            object_stop = index.object_starts[after] if after < len(index.object_starts) else index.object_bytes
            chunk = self._get_range(hash_, index.e_tag, object_start, object_stop)
            yield from iter_text_frames([chunk], index.text_starts[number], object_start)
            number = after
            count = min(count * 2, MAX_FRAMES_AT_ONCE)

    def _get_range(self, hash_: str, e_tag: str | None, start: int, stop: int) -> bytes:
        """Return bytes of the object; raises ``_ObjectChanged`` if it has another ETag by now."""
        options: obstore.GetOptions = {"range": (start, stop)}
        if e_tag is not None:
            options["if_match"] = e_tag
        try:
            chunk = bytes(obstore.get(self._objects, _get_key(hash_), options=options).bytes())
        except PreconditionError as error:
            raise _ObjectChanged from error
        if len(chunk) != stop - start:
            raise DamagedObject(f"{len(chunk):,} bytes instead of {stop - start:,}")
        return chunk

    # -- the server ----------------------------------------------------------------------------------------------------

    def _measure_clock_offset(self) -> float:
        """Return the seconds by which the server's clock is ahead of ours, 0 if they are hardly different.

        ``stored_at`` is compared with times of this machine, so that a wrong clock here would make young blobs old.
        """
        if not isinstance(self._objects, S3Store):
            return 0.0
        with self._translate_errors("the time of the server was not read"):
            url = obstore.sign(self._objects, "HEAD", "clock", timedelta(seconds=_DELETE_SECONDS))
        before = time.time()
        _, _, date = _send("HEAD", url, {})
        now = (before + time.time()) / 2
        try:
            # Whole seconds were cut off: the server's time is half a second later on average.
            offset = parsedate_to_datetime(date).timestamp() + 0.5 - now
        except ValueError:
            return 0.0
        return round(offset) if abs(offset) > CLOCK_TOLERANCE else 0.0

    @contextmanager
    def _translate_errors(self, subject: str, hash_: str = "") -> Iterator[None]:
        """Turn errors of the client into ours; a missing object is ``UnknownId``."""
        _require_process(self.name)
        if time.monotonic() < self._paused_until:
            raise describe_silence(subject, self.name)
        try:
            yield
        except ServerUnavailable:
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            raise
        except StoreError:
            raise
        except (BaseError, OSError) as error:
            if is_missing_object(error):
                raise _build_missing_error(hash_, self.name) from None
            store_error = build_object_error(error, subject, self.name)
            if isinstance(store_error, ServerUnavailable):
                self._paused_until = time.monotonic() + PAUSE_SECONDS
            # Without its cause: a traceback would print what may quote credentials.
            raise store_error from None

    @contextmanager
    def _translate_damage(self, hash_: str) -> Iterator[None]:
        try:
            yield
        except DamagedObject as error:
            raise _build_damage_error(hash_, self.name, str(error)) from error


_processes: set[int] = set()
"""The process that uses obstore. A child that it forks inherits this, and threads of obstore that do not run there."""


def _require_process(name: str) -> None:
    """Raise ``StoreError`` in a child that was forked from a user of object storage: it would wait forever."""
    if _processes and os.getpid() not in _processes:
        msg = (
            f"{name} was used in another process, from which this one was forked; start this one by spawn, not by fork"
        )
        raise StoreError(msg)
    _processes.add(os.getpid())


def _get_key(hash_: str) -> str:
    return f"{hash_[:2]}/{hash_[2:]}"


def _iter_chunks(result: obstore.GetResult) -> Iterator[bytes]:
    for chunk in result.stream(min_chunk_size=PART_BYTES // 4):
        yield bytes(chunk)


def _find_frame(index: _ObjectIndex, start: int) -> int:
    """Return the number of the frame that has byte ``start`` of the text."""
    return max(0, bisect_right(index.text_starts, start) - 1)


def _iter_known_frames(data: bytes, index: _ObjectIndex, start: int) -> Iterator[TextFrame]:
    """Yield the frames of an object in memory from the one with byte ``start`` of the text on."""
    if not index.object_starts:
        return iter(())
    number = _find_frame(index, start)
    object_start = index.object_starts[number]
    return iter_text_frames([data[object_start:]], index.text_starts[number], object_start)


def _cut_pieces(frames: Iterator[TextFrame], start: int) -> Iterator[bytes]:
    """Yield the texts of ``frames`` from byte ``start`` of the whole text on."""
    for frame in frames:
        piece = frame.text[max(0, start - frame.text_start) :]
        if piece:
            yield piece


def _join_part(pieces: Iterator[bytes], count: int | None) -> bytes:
    """Return the first ``count`` bytes of ``pieces``, or all."""
    if count is None:
        return b"".join(pieces)
    part = bytearray()
    for piece in chain([b""], pieces):
        part += piece[: count - len(part)]
        if len(part) >= count:
            break
    return bytes(part)


def _send(method: str, url: str, headers: dict[str, str]) -> tuple[str, str, str]:
    """Send a signed request; return the status, the server's code for an error, and its time. Empty without answer."""
    import httpx2

    try:
        response = httpx2.request(method, url, headers=headers, timeout=30.0)
    except httpx2.HTTPError:
        return "", "", ""
    match = ERROR_CODE.search(response.text)
    return str(response.status_code), match[1] if match else "", response.headers.get("date", "")


def _build_missing_error(hash_: str, name: str) -> UnknownId:
    return UnknownId(f"blob {hash_} is not in {name}; restore the object from a backup of the bucket")


def _build_damage_error(hash_: str, name: str, problem: str = "its text does not match its hash") -> StoreCorrupt:
    return StoreCorrupt(f"blob {hash_} in {name} is damaged ({problem}); restore the object from a backup")
