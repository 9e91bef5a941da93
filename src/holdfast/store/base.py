"""What a store promises: sessions are trees of entries, blobs are texts under their hash.

Everything here is synchronous. A verb that writes is atomic: it returns when its entries are in the log, or raises
and nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self, TypeAlias

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry

MessageDecoder: TypeAlias = Callable[[bytes], Message]
"""How wire bytes become a message."""
LEASE_WAIT = 5.0
"""Seconds that ``writing`` waits for another writer of the session (invariant one-writer): a plan on a busy machine.
[H]
"""
BUSY_WAIT = 5.0
"""Seconds that a verb waits for another process's transaction before it raises ``StoreLocked``."""


ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Is told how much of how much is done."""


def ignore_progress(count: int, total: int) -> None:
    """Tell nobody."""


class SessionInfo(Struct, frozen=True, omit_defaults=True):
    """What a list of sessions shows. ``created_at`` and ``updated_at`` are ms since 1970, for display."""

    key: str
    title: str = ""
    format: str = ""
    """The tool or API that the session was recorded from, or empty."""
    cwd: str = ""
    model: str = ""
    created_at: int | None = None
    updated_at: int | None = None
    entry_count: int = 0
    leaf_id: str | None = None
    """Id of the entry where the session goes on: a label, moved by whoever continues there."""


class AppendResult(Struct, frozen=True):
    """The new leaf, its ``seq``, and whether the session's leaf label moved there (if not, this is a fork)."""

    leaf: str | None
    seq: int
    is_leaf_moved: bool


class ImportResult(Struct, frozen=True):
    """How many entries an import added, how many were there already, and the session's leaf after it."""

    added_count: int
    known_count: int
    leaf: str | None

    @property
    def is_unchanged(self) -> bool:
        """Whether the store holds just what it held before."""
        return self.added_count == 0


class ActiveEntries(Struct, frozen=True):
    """The entries of a branch that a request needs.

    Without a compaction in force that is the whole path, in ``later_entries``. With one, ``head`` holds the pinned
    system messages, ``tail`` the kept messages from slot ``first_kept`` on, and ``later_entries`` the compaction and
    all that came later.
    """

    later_entries: tuple[Entry, ...] = ()
    head: tuple[Entry, ...] = ()
    tail: tuple[Entry, ...] = ()
    checkpoint: bytes | None = None
    """The fold just before the compaction, without the slots that gave way; nothing = begin at the root."""

    @property
    def compaction(self) -> Entry | None:
        """The entry of the compaction that stands for the older turns, if there is one."""
        return self.later_entries[0] if self.checkpoint is not None else None

    @property
    def first_kept(self) -> int:
        """Index of the first slot behind ``head`` that is here: what lies between is in the log only."""
        body = self.compaction.body if self.compaction is not None else None
        return body.first_kept if isinstance(body, CompactionEntry) else 0


class SearchHit(Struct, frozen=True):
    """A place in a session where words were found."""

    entry_id: str
    """Id of the entry that says them, or names the blob that does."""
    seq: int
    role: str
    """Who said it; empty for a blob."""
    time_ms: int | None
    snippet: str
    """The text around the first match on one line, the match between « and »."""
    blob_hash: str = ""
    """The blob that holds the text, where it is not in the entry itself."""


class Quota(Struct, frozen=True, forbid_unknown_fields=True):
    """How much a store takes; 0 is no limit. A write over it is refused with ``QuotaExceeded`` before it begins."""

    session_bytes: int = 0
    """Bytes of one session's entries (messages as they came, decisions, notes), over all its branches."""
    blob_bytes: int = 0
    """Bytes of all blobs together, those that nothing names any more too."""


class BlobItem(Struct, frozen=True):
    """Something in a blob store: a blob, or the draft of one that its writer has not ended."""

    name: str
    """The blob's hash, or the draft's name, which is no hash."""
    size: int
    stored_at: float
    """When it was last stored, in seconds since 1970."""
    is_draft: bool = False


class BlobStore(Protocol):
    """Texts by the SHA-256 of their UTF-8 bytes (lone surrogates as three bytes each).

    What is read was verified against its hash once by this process; damage is ``StoreCorrupt``.
    """

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash; storing it again only tells that it is in use
        (``BlobItem.stored_at``).

        No second copy of the whole is made. ``QuotaExceeded`` where it would not fit under the store's quota.
        """

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop`` without holding more; bytes that are no UTF-8 are U+FFFD.

        The first page of a blob costs one pass over it, the later ones what they hold.
        """

    def count_characters(self, hash_: str) -> int:
        """Return how many characters ``read_text`` has."""

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob is there."""

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""

    def iter_hashes(self) -> Iterator[str]:
        """Yield every hash there is, in no order."""

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob; the caller knows that no entry names it."""

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob and draft there is, in no order."""

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob or draft unless it was stored at ``before`` (seconds since 1970) or later."""


class SessionStore(Protocol):
    """Sessions and their logs. Ids may be given as any unique prefix where a parameter is called ``prefix``."""

    @property
    def blobs(self) -> BlobStore:
        """The blobs that belong to this store."""

    def list_sessions(self) -> list[SessionInfo]:
        """Return every session, the last changed first, without reading an entry."""

    def get_session(self, prefix: str) -> SessionInfo:
        """Return the one session whose key is or begins with ``prefix``; else ``UnknownId`` with the candidates."""

    def create_session(self, key: str, info: SessionInfo | None = None) -> SessionInfo:
        """Create an empty session; ``LogConflict`` if the key is taken."""

    def update_session_info(
        self, key: str, *, title: str | None = None, cwd: str | None = None, model: str | None = None
    ) -> None:
        """Change what the session's list entry says."""

    def append_entries(
        self,
        key: str,
        entries: Iterable[Entry],
        *,
        expected_leaf: str | None = None,
        decode: MessageDecoder | None = None,
        onward: bool = False,
    ) -> AppendResult:
        """Append ``entries`` in one transaction and return the new leaf.

        Each parent must be in the log or earlier in ``entries``; ``seq`` is assigned here. The session's leaf moves
        only if it still is ``expected_leaf`` (default: the first entry's parent); otherwise the entries are a fork, or
        are not written at all if they were to go ``onward``.
        ``decode`` made the messages that have bytes of just those: it need not be proven again.
        """

    def import_entries(
        self, key: str, entries: Iterable[Entry], *, leaf: str | None = None, info: SessionInfo | None = None
    ) -> ImportResult:
        """Import a recording in one transaction; entries that are there already are skipped.

        ``leaf`` (default: the last entry) becomes the session's leaf if that lies behind the stored one. An id that
        is there with other content is a ``LogConflict``.
        """

    def read_path(self, key: str, leaf: str | None = None) -> list[Entry]:
        """Return the entries from the root to ``leaf`` (default: the session's)."""

    def read_active_entries(self, key: str, leaf: str | None = None) -> ActiveEntries:
        """Return the part of ``read_path`` that a request needs, at the cost of that part."""

    def open_state(self, key: str, leaf: str | None = None) -> ConversationState:
        """Return the branch at ``leaf``, opened from its active part.

        Slots keep their numbers from the root; asking for one that gave way to the compaction is a ``LookupError``:
        build the branch from ``read_path`` for that, and after appending a ``revoke``.
        """

    def open_size_state(self, key: str) -> ConversationState:
        """Return the session's branch without what was said: every size that is told of its request is the same.

        Of a session that was imported this costs a few rows, of any other one its active branch.
        """

    def read_entries(self, key: str, kind: str | None = None, *, after: int = 0) -> list[Entry]:
        """Return the whole tree in order of ``seq``, or of it only the entries of ``kind`` (``"decision"``…).

        Kinds are the tags of ``model.entries``. Entries of other kinds are not read, nor is what has no ``seq`` over
        ``after``.
        """

    def read_lazy_entries(self, key: str) -> Sequence[Entry]:
        """Return the whole tree as ``read_entries`` does, each entry read when it is asked for: a long log is never
        held.
        """

    def read_tips(self, key: str) -> list[Entry]:
        """Return the tips of the tree, oldest first; labels hang beside the tree and are no tips."""

    def find_damage(self, key: str) -> list[str]:
        """Return which entries cannot be read and why, a line for each; every entry is read, one at a time."""

    def repair_damage(self, key: str) -> list[str]:
        """Put right what is damaged in the session and can be without loss; return what was done, a line for each.

        All else stays as it is, and reading it stays a ``StoreCorrupt``. Not inside a write of the same store.
        """

    def get_entry(self, key: str, prefix: str) -> Entry:
        """Return the one entry whose id is or begins with ``prefix``; else ``UnknownId`` with the candidates."""

    def set_leaf(self, key: str, prefix: str) -> str:
        """Make that entry the session's leaf and return its id."""

    def label_entry(self, key: str, prefix: str, name: str) -> Entry:
        """Name an entry (an empty name takes the name away); the leaf stays where it is."""

    def read_labels(self, key: str) -> dict[str, str]:
        """Return the names in force by the id of the entry they name."""

    def copy_branch(self, key: str, replacements: Mapping[str, Message], leaf: str | None = None) -> str | None:
        """Say the branch at ``leaf`` again with other messages for some entries; return the new leaf.

        The new branch begins at the parent of the first of them and has new ids, which its compactions, labels, notes
        and revocations name; edits on a replaced message are left out. The old branch stays. The session goes on at
        the new leaf. Nothing happens and nothing is returned if no message on the branch has one of the ids.
        """

    def search_session(
        self, key: str, query: str, limit: int = 20, *, tick: ProgressCallback = ignore_progress
    ) -> list[SearchHit]:
        """Return where the session says ``query``, on any branch, the newest first, also behind what was capped.

        ``tick`` is told how far the index of words is, where that has to be made first.

        A query is words that must all be there, upper and lower case alike, as words or within them; ``"a b"`` in
        double quotes is one. Nothing in it is an error.
        """

    def remove_session(self, key: str) -> None:
        """Delete the session and its log, explicitly and for good; blobs stay until they are collected."""

    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease: one writer over all processes, ``StoreLocked`` after five seconds.

        The lease dies with its holder. Single verbs are safe without it.
        """

    def close(self) -> None:
        """Release files; the store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """Return the store; it is closed at the end of the block."""

    def __exit__(self, *_: object) -> None: ...
