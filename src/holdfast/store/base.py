"""The protocols of a store: sessions are trees of entries, blobs are texts stored under their hash.

Everything here is synchronous. Methods that write are atomic: they return when the entries are in the log, or raise
and have changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self, TypeAlias, runtime_checkable

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry

MessageDecoder: TypeAlias = Callable[[bytes], Message]
"""Decodes the wire bytes of a message."""
LEASE_WAIT = 5.0
"""Seconds that a writer waits for another writer of the same session before ``StoreLocked`` (invariant one-writer).

Chosen by judgement: another writer holds the lease while it plans a request, which takes up to seconds on a busy
machine; a longer wait would look like a hang to whoever waits.
"""
BUSY_WAIT = 5.0
"""Seconds that an operation waits for another process's transaction before ``StoreLocked``.

Chosen by judgement: transactions take milliseconds, so after five seconds the other process hangs or is stopped.
"""


ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called with the number of items done and their total."""


def ignore_progress(count: int, total: int) -> None:
    """Do nothing: the default ``ProgressCallback``."""


class SessionInfo(Struct, frozen=True, omit_defaults=True):
    """A session as a list shows it. ``created_at`` and ``updated_at`` are ms since 1970, for display only."""

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
    """Id of the entry at which the session continues. It is a label that moves with whoever continues there."""
    recorded_window: int | None = None
    """The context window, in tokens, that the tool recorded for ``model``; None if it recorded none."""


class AppendResult(Struct, frozen=True):
    """The new leaf, its ``seq``, and whether the session's leaf moved there. If it did not, the entries are a fork."""

    leaf: str | None
    seq: int
    is_leaf_moved: bool


class ImportResult(Struct, frozen=True):
    """How many entries an import added, how many were in the log already, and the session's leaf after it."""

    added_count: int
    known_count: int
    leaf: str | None

    @property
    def is_unchanged(self) -> bool:
        """Whether the import added nothing."""
        return self.added_count == 0


class ActiveEntries(Struct, frozen=True):
    """The entries of a branch that a request needs.

    Without a compaction in force that is the whole path, in ``later_entries``. With one, ``head`` has the pinned
    system messages, ``tail`` the kept messages from index ``first_kept`` on, and ``later_entries`` the compaction
    and everything after it.
    """

    later_entries: tuple[Entry, ...] = ()
    head: tuple[Entry, ...] = ()
    tail: tuple[Entry, ...] = ()
    checkpoint: bytes | None = None
    """The state just before the compaction, without the messages it summarized; None if the path begins at the root."""

    @property
    def compaction(self) -> Entry | None:
        """The entry of the compaction in force, or None."""
        if self.checkpoint is not None:
            return self.later_entries[0]
        return None

    @property
    def first_kept(self) -> int:
        """Index of the first message of ``tail``; the messages between ``head`` and it are only in the log."""
        if self.compaction is None or not isinstance(self.compaction.body, CompactionEntry):
            return 0
        return self.compaction.body.first_kept


class SearchHit(Struct, frozen=True):
    """A place in a session where the searched words were found."""

    entry_id: str
    """Id of the entry with the words, or of the entry that names the blob with them."""
    seq: int
    role: str
    """Role of the message; empty for a blob."""
    time_ms: int | None
    snippet: str
    """The text around the first match on one line, the match between « and »."""
    blob_hash: str = ""
    """Hash of the blob with the text; empty if the entry itself has it."""


class Quota(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a store; 0 is no limit. A write that would exceed one raises ``QuotaExceeded`` before it begins."""

    session_bytes: int = 0
    """Bytes of one session's entries over all its branches: messages as received, decisions, notes."""
    blob_bytes: int = 0
    """Bytes of all blobs together, including those that no entry names any more."""


class BlobItem(Struct, frozen=True):
    """A blob in a blob store, or the unfinished draft of one."""

    name: str
    """Hash of the blob, or the name of the draft, which is not a hash."""
    size: int
    """Bytes that it takes in its place: fewer than its text has where blobs are compressed."""
    stored_at: float
    """When it was stored last, in seconds since 1970."""
    is_draft: bool = False


class BlobStore(Protocol):
    """Texts by the SHA-256 of their UTF-8 bytes (lone surrogates are three bytes each).

    Every blob is verified against its hash once in a process before it is read from; damage raises
    ``StoreCorrupt``.
    """

    def store_content(self, content: str | bytes) -> str:
        """Store ``content`` durably and return its hash. If it is stored already, only ``BlobItem.stored_at`` changes.

        The content is not copied as a whole. Raises ``QuotaExceeded`` if it does not fit the store's quota.
        """

    def read_bytes(self, hash_: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes ``start`` to ``stop``."""

    def read_text(self, hash_: str, start: int = 0, stop: int | None = None) -> str:
        """Return characters ``start`` to ``stop``, without reading the rest into memory; bytes that are not UTF-8 are
        U+FFFD.

        The first page of a blob takes one pass over all of it, later pages only the time for themselves.
        """

    def count_characters(self, hash_: str) -> int:
        """Return the number of characters that ``read_text`` can return."""

    def has_blob(self, hash_: str) -> bool:
        """Return whether the blob exists."""

    def get_size(self, hash_: str) -> int:
        """Return the blob's size in bytes."""

    def iter_hashes(self) -> Iterator[str]:
        """Yield the hash of every blob, in no particular order."""

    def remove_blob(self, hash_: str) -> None:
        """Delete the blob. The caller makes sure that no entry names it."""

    def iter_items(self) -> Iterator[BlobItem]:
        """Yield every blob and draft, in no particular order."""

    def remove_if_older(self, name: str, before: float) -> bool:
        """Delete that blob or draft unless it was stored at ``before`` (seconds since 1970) or later; return whether
        it was.
        """


class SchemaVersions(Struct, frozen=True):
    """The schema that a store has, and the newest that this program knows."""

    current: int
    newest: int


@runtime_checkable
class MigratableStore(Protocol):
    """What a store has beside its sessions if its schema changes with versions of this program."""

    def get_schema_versions(self) -> SchemaVersions:
        """Return the versions, without changing anything; raises ``StoreCorrupt`` if the store's is newer than ours."""

    def migrate_schema(self) -> None:
        """Bring the schema to the newest version, all of it or nothing. Every writer of an older store does so too."""


class SessionStore(Protocol):
    """Sessions and their logs. A parameter called ``prefix`` takes an id or any unique prefix of one."""

    @property
    def blobs(self) -> BlobStore:
        """The blobs that belong to this store."""

    def list_sessions(self) -> list[SessionInfo]:
        """Return every session, the most recently changed first, without reading entries."""

    def get_session(self, prefix: str) -> SessionInfo:
        """Return the session with the key ``prefix``, or the only one with a key that begins with it.

        Raises ``UnknownId``, with the candidates, if there is no such session or more than one.
        """

    def create_session(self, key: str, info: SessionInfo | None = None) -> SessionInfo:
        """Create an empty session; raises ``LogConflict`` if the key is taken."""

    def update_session_info(
        self,
        key: str,
        *,
        title: str | None = None,
        cwd: str | None = None,
        model: str | None = None,
    ) -> None:
        """Change the given fields of the session's list entry; None leaves a field unchanged."""

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
        only if it still is ``expected_leaf`` (default: the first entry's parent). Otherwise the entries become a
        fork, or, with ``onward``, are not written at all. ``decode`` is the function that decoded the messages from
        their bytes; such messages are not verified again.
        """

    def import_entries(
        self,
        key: str,
        entries: Iterable[Entry],
        *,
        leaf: str | None = None,
        info: SessionInfo | None = None,
    ) -> ImportResult:
        """Import a recording in one transaction, skipping entries that are in the log already.

        ``leaf`` (default: the last entry) becomes the session's leaf if it continues the stored one. Raises
        ``LogConflict`` if an id is in the log with other content.
        """

    def read_path(self, key: str, leaf: str | None = None) -> list[Entry]:
        """Return the entries from the root to ``leaf`` (default: the session's leaf)."""

    def read_active_entries(self, key: str, leaf: str | None = None) -> ActiveEntries:
        """Return the part of ``read_path`` that a request needs, reading only that part."""

    def open_state(self, key: str, leaf: str | None = None) -> ConversationState:
        """Return the conversation state at ``leaf``, built from the active entries only.

        Messages keep their indexes in the whole history. Access to one that the compaction summarized raises
        ``LookupError``: build the state from ``read_path`` for that, and after appending a ``revoke``.
        """

    def open_size_state(self, key: str) -> ConversationState:
        """Return the session's state without message texts: its request has every size that the real one has.

        For an imported session this reads a few rows, for any other its active branch.
        """

    def read_entries(
        self, key: str, kind: str | None = None, *, after: int = 0, max_tokens: int | None = None
    ) -> list[Entry]:
        """Return all entries of the tree in order of ``seq``, or only those of ``kind`` (``"decision"``…).

        Kinds are the tags of ``state.entries``. Entries of other kinds, those up to ``seq`` ``after``, and messages of
        more than ``max_tokens`` estimated tokens are not read.
        """

    def read_lazy_entries(self, key: str) -> Sequence[Entry]:
        """Return the same entries as ``read_entries``, each read on demand, so that a long log is never in memory."""

    def read_tips(self, key: str) -> list[Entry]:
        """Return the tips of the tree, oldest first. Labels are not part of any branch and do not count as tips."""

    def find_damage(self, key: str) -> list[str]:
        """Return a line for each entry that cannot be read, with the reason. Every entry is read, one at a time."""

    def repair_damage(self, key: str) -> list[str]:
        """Repair damage in the session as far as possible without loss; return a line for each repair.

        Other damage stays, and reading it still raises ``StoreCorrupt``. Must not be called inside a write to the
        same store.
        """

    def get_entry(self, key: str, prefix: str) -> Entry:
        """Return the entry with the id ``prefix``, or the only one with an id that begins with it.

        Raises ``UnknownId``, with the candidates, if there is no such entry or more than one.
        """

    def set_leaf(self, key: str, prefix: str) -> str:
        """Make that entry the session's leaf and return its id."""

    def label_entry(self, key: str, prefix: str, name: str) -> Entry:
        """Give an entry a name (an empty one removes it); the leaf does not move."""

    def read_labels(self, key: str) -> dict[str, str]:
        """Return the names in force by the id of the named entry."""

    def copy_branch(
        self,
        key: str,
        replacements: Mapping[str, Message],
        leaf: str | None = None,
    ) -> str | None:
        """Copy the branch at ``leaf`` with other messages for some entries, by entry id; return the new leaf.

        The copy begins at the parent of the first replaced message. Its entries have new ids, to which its
        compactions, labels, notes and revocations refer; edits on a replaced message are left out. The old branch
        stays, and the session continues at the new leaf. If no message of the branch has one of the ids, returns
        None and changes nothing.
        """

    def search_session(
        self,
        key: str,
        query: str,
        limit: int = 20,
        *,
        tick: ProgressCallback = ignore_progress,
    ) -> list[SearchHit]:
        """Return the places where the session has the words of ``query``, on any branch, the newest first.

        Texts that were moved to blobs when a message was capped are searched too. A query is words that must all
        occur, in any case, as words or inside them; ``"a b"`` in double quotes is one. No query is an error.
        ``tick`` is called with the progress of the word index if that has to be built first.
        """

    def remove_session(self, key: str) -> None:
        """Delete the session and its log for good; blobs stay until they are collected as garbage."""

    def hold_lease(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease: one writer across all processes; ``StoreLocked`` after ``LEASE_WAIT`` seconds.

        The lease ends with its holder. Single operations are safe without it.
        """

    def close(self) -> None:
        """Release the files; the store cannot be used afterwards."""

    def __enter__(self) -> Self:
        """Return the store, which is closed at the end of the block."""

    def __exit__(self, *_: object) -> None: ...
