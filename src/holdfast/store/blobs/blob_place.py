"""Where the blobs of a store in a file are: beside the file, or at a place of their own in object storage.

A store keeps its place, whatever settings say later: the folder beside the file has either the blobs or a file
``location`` that says where they are. In object storage each store has a folder of its own, because whoever collects
garbage in one store knows nothing of what another one names.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.errors import ConfigError, StoreError
from holdfast.store.base import BlobItem, BlobStore, Quota
from holdfast.store.blobs.blobs import LOCATION_FILE, FileBlobStore, MemoryBlobStore
from holdfast.store.blobs.object_location import (
    connect_bucket,
    format_object_location,
    make_subfolder,
    parse_object_location,
)
from holdfast.store.private_files import build_store_error, create_private_file, make_directory, sync_directory

MAX_LOCATION_BYTES = 4_096


def choose_blob_store(folder: Path, wanted: str | None, quota: Quota) -> BlobStore:
    """Return the blobs of the store whose folder for them is ``folder``.

    ``wanted`` is ``s3://BUCKET/PREFIX`` for a store that has no blobs yet; others keep their place. Raises
    ``ConfigError`` if that cannot be a place. Nothing is created or asked.
    """
    if wanted is not None:
        connect_bucket(parse_object_location(wanted))  # a mistake is reported now and not with the first text
    if read_blob_location(folder) is None and (wanted is None or _has_blob_files(folder)):
        return FileBlobStore(folder, quota)
    return PlacedBlobStore(folder, wanted, quota)


def read_blob_location(folder: Path) -> str | None:
    """Return the location that is recorded in ``folder``, or None."""
    path = folder / LOCATION_FILE
    try:
        # A link would have been planted: we make none.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_LOCATION_BYTES).decode("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise build_store_error(error, f"{path}, which says where the texts are, cannot be read") from error


def _has_blob_files(folder: Path) -> bool:
    return next(folder.glob("??/*"), None) is not None


def _record_location(folder: Path, wanted: str) -> str:
    """Record a new place below ``wanted`` and return it, or the one that another process has recorded meanwhile."""
    place = format_object_location(make_subfolder(parse_object_location(wanted), secrets.token_hex(8)))
    path = folder / LOCATION_FILE
    draft = path.with_name(f".{LOCATION_FILE}.{secrets.token_hex(8)}")
    try:
        make_directory(folder)
        with os.fdopen(create_private_file(draft), "wb") as file:
            file.write(place.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a renaming, does not replace what another process was first to record.
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
        sync_directory(folder)
        sync_directory(folder.parent)
    except OSError as error:
        raise build_store_error(error, f"the place of the texts was not recorded in {path}") from error
    recorded = read_blob_location(folder)
    if recorded is None:
        raise StoreError(f"{path} was taken away as soon as it was written; try again")
    return recorded


class PlacedBlobStore:
    """The blobs at the recorded place. One is chosen and recorded before the first blob is stored."""

    def __init__(self, folder: Path, wanted: str | None, quota: Quota) -> None:
        self._folder = folder
        self._wanted = wanted
        self._quota = quota
        self._blobs: BlobStore | None = None

    def _open_blobs(self) -> BlobStore:
        """Return the blobs at the recorded place; while none is recorded, there are none."""
        if self._blobs is not None:
            return self._blobs
        recorded = read_blob_location(self._folder)
        if recorded is not None:
            return self._connect(recorded)
        # Another process may have stored some beside the file, since it was not told of another place.
        return FileBlobStore(self._folder) if _has_blob_files(self._folder) else MemoryBlobStore()

    def _connect(self, recorded: str) -> BlobStore:
        try:
            location = parse_object_location(recorded)
            objects = connect_bucket(location)
        except ConfigError as error:
            # An error of the store, as a disk that refuses is: conversations go on without storing texts away.
            raise StoreError(f"{self._folder / LOCATION_FILE}: {error}") from error
        # After the line before, which says what to install if the client is missing.
        from holdfast.store.blobs.object_blobs import ObjectBlobStore

        self._blobs = ObjectBlobStore(objects, location.name, self._quota)
        return self._blobs

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash."""
        if self._blobs is None:
            self._choose_place()
        return self._open_blobs().store_content(content)

    def _choose_place(self) -> None:
        """Record the place of the blobs unless there is one by now."""
        recorded = read_blob_location(self._folder)
        if recorded is not None:
            self._connect(recorded)
        elif _has_blob_files(self._folder):
            self._blobs = FileBlobStore(self._folder, self._quota)
        elif self._wanted is None:
            msg = f"{self._folder / LOCATION_FILE} was taken away since the store was opened; put it back"
            raise StoreError(msg)
        else:
            self._connect(_record_location(self._folder, self._wanted))

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""
        return self._open_blobs().read_bytes(hash_, start, stop)

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``."""
        return self._open_blobs().read_text(hash_, start, stop)

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""
        return self._open_blobs().count_characters(hash_)

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""
        return self._open_blobs().has_blob(hash_)

    def get_size(self, hash_: str) -> int:
        """Return the length of the blob's text in bytes."""
        return self._open_blobs().get_size(hash_)

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob, in no particular order."""
        return self._open_blobs().iter_hashes()

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob. The caller makes sure that no entry names it."""
        self._open_blobs().remove_blob(hash_)

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob, in no particular order."""
        return self._open_blobs().iter_items()

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob unless it was stored at ``before`` or later; return whether it was deleted."""
        return self._open_blobs().remove_if_older(name, before)
