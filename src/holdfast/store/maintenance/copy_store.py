"""Copy all sessions of one store into another, of whatever kind each is, and verify the copy.

A session is copied as it is at one moment: its blobs first, then its entries in one transaction, so an interrupted copy
has each session as a whole or not at all, and never an entry whose blob is missing. Doing it again adds what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.errors import LogConflict, StoreCorrupt, UnknownId
from holdfast.state.entries import Entry
from holdfast.state.lazy_entries import get_entry_headers
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import read_session_blobs
from holdfast.store.sql.rows import compute_entry_identity, get_storable_time

CopyOutcome: TypeAlias = Literal["copied", "extended", "unchanged", "failed"]
MAX_PROBLEMS = 20
"""Problems of one session that are listed; the rest is like them. Chosen by judgement."""


class SessionCopy(Struct, frozen=True):
    """What became of one session: new in the target, extended there, unchanged, or not copied."""

    key: str
    outcome: CopyOutcome
    entry_count: int = 0
    """Entries that the session had in the source at the moment of the copy."""
    added_count: int = 0
    blob_count: int = 0
    """Blobs that its entries name, as far as they were found; each was read from the target and has its hash."""
    stored_blob_count: int = 0
    """Blobs among them that this copy stored."""
    stored_bytes: int = 0
    """Bytes of the texts of those."""
    problems: tuple[str, ...] = ()
    """What the target lacks, or has otherwise; a line for each, with one thing to do."""


class _BlobCounts(Struct):
    """Blobs of one session, counted while they are copied."""

    found: int = 0
    stored: int = 0
    bytes: int = 0


def iter_session_copies(
    source: SessionStore, target: SessionStore, keys: Sequence[str] | None = None
) -> Iterator[SessionCopy]:
    """Copy the sessions ``keys`` (default: all), one at each step, and yield what became of each.

    A session that was removed from the source meanwhile is left out. A problem of one session ends none of the others;
    errors that concern all of them, such as a full disk, are raised.
    """
    if keys is None:
        # The oldest first: those that are being written come last, and most of what they have is copied then.
        keys = [info.key for info in reversed(source.list_sessions())]
    for key in keys:
        info = _find_session(source, key)
        if info is not None:
            copy = _copy_session(source, target, info)
            if copy is not None:
                yield copy


def _copy_session(source: SessionStore, target: SessionStore, info: SessionInfo) -> SessionCopy | None:
    """Copy one session as it was when ``info`` was read; return None if somebody removes it meanwhile."""
    key = info.key
    counts = _BlobCounts()
    try:
        all_entries = source.read_lazy_entries(key)
        entries = _select_first_entries(all_entries, info)
        old_info = _find_session(target, key)
        problems = _copy_blobs(source, target, key, counts, is_known=old_info is not None)
        added_count = _copy_entries(target, info, entries, old_info)
        # Read through all of them: in order they are read in batches, which a part of them is not.
        problems += _compare_entries(target, key, islice(all_entries, len(entries)))
    except UnknownId as error:
        if _find_session(source, key) is None:
            return None
        return SessionCopy(key, "failed", info.entry_count, problems=(str(error),))
    except LogConflict as error:
        what = str(error).partition(";")[0]
        problem = f"{what}; copy into a new store, or remove the session there (holdfast rm)"
        return SessionCopy(key, "failed", info.entry_count, problems=(problem,))
    except StoreCorrupt as error:
        what = str(error).partition(";")[0]
        return SessionCopy(key, "failed", info.entry_count, problems=(f"{what}; run holdfast repair on its store",))
    outcome: CopyOutcome = "copied"
    if old_info is not None:
        outcome = "extended" if added_count else "unchanged"
    return SessionCopy(
        key,
        outcome,
        entry_count=len(entries),
        added_count=added_count,
        blob_count=counts.found,
        stored_blob_count=counts.stored,
        stored_bytes=counts.bytes,
        problems=tuple(problems[:MAX_PROBLEMS]),
    )


def _select_first_entries(entries: Sequence[Entry], info: SessionInfo) -> Sequence[Entry]:
    """Return those of a session's ``entries`` that it had when ``info`` was read, each read on demand.

    The log is only appended to, so these are its first ones. If the leaf is not among them, a repair has changed their
    number without counting them again; then all are meant.
    """
    first_entries = entries[: info.entry_count]
    if info.leaf_id is None or _has_entry(first_entries, info.leaf_id):
        return first_entries
    return entries


def _find_session(store: SessionStore, key: str) -> SessionInfo | None:
    """Return the session with exactly this key, or None."""
    with suppress(UnknownId):
        info = store.get_session(key)
        if info.key == key:
            return info
    return None


# -- blobs -------------------------------------------------------------------------------------------------------------


def _copy_blobs(
    source: SessionStore, target: SessionStore, key: str, counts: _BlobCounts, *, is_known: bool
) -> list[str]:
    """Copy the blobs that the session names, and count them; return a line for each that the target lacks."""
    # A blob that an entry in the target names already is safe from its collector of garbage. Any other is stored again,
    # also if it is there, which makes it young.
    safe_hashes = set(read_session_blobs(target, key)) if is_known else set()
    problems = []
    for hash_, entry_id in read_session_blobs(source, key).items():
        if hash_ in safe_hashes and _is_intact(target, hash_):
            counts.found += 1
            continue
        try:
            content = source.blobs.read_bytes(hash_)
        except (UnknownId, StoreCorrupt) as error:
            if _is_intact(target, hash_):
                counts.found += 1
            else:
                problems.append(f"entry {entry_id}: {error}")
            continue
        target.blobs.store_content(content)
        counts.stored += 1
        counts.bytes += len(content)
        if _is_intact(target, hash_):
            counts.found += 1
        else:
            problems.append(f"entry {entry_id}: blob {hash_} was stored and cannot be read back; copy again")
    return problems


def _is_intact(store: SessionStore, hash_: str) -> bool:
    """Return whether the store has the blob with the content of its hash: all of it is read."""
    try:
        store.blobs.count_characters(hash_)
    except (UnknownId, StoreCorrupt):
        return False
    return True


# -- entries -----------------------------------------------------------------------------------------------------------


def _copy_entries(
    target: SessionStore, info: SessionInfo, entries: Sequence[Entry], old_info: SessionInfo | None
) -> int:
    """Add the entries that the target lacks, and what its list says of the session; return how many were added."""
    key = info.key
    added_count = 0
    if entries:
        added_count = target.import_entries(key, entries, leaf=info.leaf_id, info=info).added_count
    elif old_info is None:
        target.create_session(key, info)
    # The target is newer where it is a store in use, and the source a backup from which lost blobs are brought back.
    if old_info is not None and (old_info.updated_at or 0) > (info.updated_at or 0):
        return added_count
    new_info = target.get_session(key)
    if (new_info.title, new_info.cwd, new_info.model) != (info.title, info.cwd, info.model):
        target.update_session_info(key, title=info.title, cwd=info.cwd, model=info.model)
    # An import moves the leaf only onwards. It is moved elsewhere too, unless somebody went on in the target.
    is_leaf_wanted = info.leaf_id is not None and new_info.leaf_id != info.leaf_id
    if is_leaf_wanted and (new_info.leaf_id is None or _has_entry(entries, new_info.leaf_id)):
        target.set_leaf(key, info.leaf_id or "")
    return added_count


def _has_entry(entries: Sequence[Entry], entry_id: str) -> bool:
    return any(header.id == entry_id for header in get_entry_headers(entries))


def _compare_entries(target: SessionStore, key: str, entries: Iterable[Entry]) -> list[str]:
    """Return a line for each of ``entries`` that the target lacks or has with other content.

    Both logs are read once, in order: the target has the same order, with entries of its own between them.
    """
    problems = []
    copies = iter(target.read_lazy_entries(key))
    for entry in entries:
        copy = next((found for found in copies if found.id == entry.id), None)
        if copy is None:
            problems.append(f"entry {entry.id} is not where it belongs in the target; copy into a new store")
            break
        is_same = compute_entry_identity(copy) == compute_entry_identity(entry) and copy.parent == entry.parent
        if not is_same or get_storable_time(copy) != get_storable_time(entry):
            problems.append(f"entry {entry.id} differs in the target; copy into a new store")
    return problems
