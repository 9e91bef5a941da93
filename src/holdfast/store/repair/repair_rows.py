"""Repair of a store inside an open transaction: first its rows, then everything that is derived from them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from holdfast.errors import StoreCorrupt, StoreError, UnknownId
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.text.text_cuts import hash_text
from holdfast.state.codec.packing import unpack_value
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry
from holdfast.store.blobs.blob_names import iter_named_hashes
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.repair.findings import DamageKind, StoreRepairFinding
from holdfast.store.repair.session_rows import NOTE_LOST, IntactEntry, SessionRowRepairer
from holdfast.store.search import index as indexing
from holdfast.store.sqlite import SqliteStore, build_kind_condition
from holdfast.store.tree.active import FOLD_VERSION, Checkpoint, decode_checkpoint
from holdfast.store.tree.outline import SizeOutline, decode_outline
from holdfast.store.tree.placing import COMPACTION_KIND

_INSERT_STRAY_SESSION = """
    INSERT INTO sessions (session, key, title, format, cwd, model, entries) VALUES (?, ?, '', '', '', '', 0)"""
_SELECT_STRAY_SESSIONS = "SELECT DISTINCT session FROM entries WHERE session NOT IN (SELECT session FROM sessions)"
_SELECT_ENTRY_IDS = "SELECT e.id FROM entries e WHERE e.session = (SELECT session FROM sessions WHERE key = ?)"
_SELECT_OUTLINES = """
    SELECT c.seq FROM checkpoints c JOIN entries e ON e.seq = c.seq
    WHERE e.session = (SELECT session FROM sessions WHERE key = ?) AND e.kind <> 'compaction'"""
_SELECT_TOTALS = """
    SELECT count(*), coalesce(sum(coalesce(length(body), 0) + coalesce(length(raws), 0)
    + coalesce(length(origin), 0) + coalesce(length(raw), 0)), 0) FROM entries WHERE session = ?"""


class StoreRepairer(SqliteStore):
    """A store that is being repaired."""

    findings: list[StoreRepairFinding]
    entries_seen = 0
    """Number of entries checked."""

    def repair_all_sessions(self, tick: Callable[[], None]) -> tuple[StoreRepairFinding, ...]:
        """Repair all sessions, and return the findings. The caller holds the write transaction."""
        self.findings = []
        self._list_stray_sessions()  # first, so that their entries are repaired below
        for number, key in self._file.db.execute("SELECT session, key FROM sessions ORDER BY session").fetchall():
            self._repair_session(number, key, tick)
        self._repair_word_index()
        return tuple(self.findings)

    def repair_one_session(self, key: str) -> tuple[StoreRepairFinding, ...]:
        """Repair one session as far as possible without loss, and return the findings. The caller holds the write
        transaction.
        """
        self.findings = []
        row = self._file.db.execute("SELECT session FROM sessions WHERE key = ?", (key,)).fetchone()
        if row is not None:
            self._repair_session(row[0], key, lambda: None, without_loss=True)
        return tuple(self.findings)

    @contextmanager
    def write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all writes of the block together at its end, or roll all of them back."""
        with self._write_transaction():
            yield self._file.db

    def read_transaction(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return self._read_transaction()

    def set_blobs(self, blobs: FileBlobStore) -> None:
        """Use ``blobs`` as the blobs of this store: those of a copy are beside the original."""
        self._blobs = blobs

    def count_entries(self) -> int:
        """Return the number of entries to check."""
        return int(self._file.db.execute("SELECT count(*) FROM entries").fetchone()[0])

    def _list_stray_sessions(self) -> None:
        """Add sessions to the list for entries of sessions that are not in it."""
        for (number,) in self._file.db.execute(_SELECT_STRAY_SESSIONS).fetchall():
            key = f"{NOTE_LOST}-{number}"
            self._file.db.execute(_INSERT_STRAY_SESSION, (number, key))
            problem = "entries of a session that is not in the list"
            self.findings.append(StoreRepairFinding("session", problem, f"it is listed as {key} now", key))

    def _repair_session(
        self,
        number: int,
        key: str,
        tick: Callable[[], None],
        *,
        without_loss: bool = False,
    ) -> None:
        old_count = len(self.findings)

        def report(kind: DamageKind, problem: str, action: str, entry: str) -> None:
            self.findings.append(StoreRepairFinding(kind, problem, action, key, entry))

        repairer = SessionRowRepairer(
            self._file.db,
            number,
            key,
            self._message_decoders,
            report,
            without_loss=without_loss,
        )
        repairer.repair_rows(tick)
        entries = list(repairer.intact_entries.values())
        self.entries_seen += len(entries)
        self._repair_session_info(number, key, entries, moves_leaf=not without_loss)
        # Last: checkpoints are made from the repaired rows, and all of them if a row changed.
        self._repair_checkpoints(key, entries, remakes_all=len(self.findings) > old_count)

    # -- derived data --------------------------------------------------------------------------------------------------

    def _repair_session_info(
        self,
        number: int,
        key: str,
        entries: list[IntactEntry],
        *,
        moves_leaf: bool,
    ) -> None:
        """Correct the session's row in the list: its leaf, its number of entries, its bytes."""
        query = "SELECT entries, bytes, leaf FROM sessions WHERE session = ?"
        listed: tuple[int, int, str | None] = self._file.db.execute(query, (number,)).fetchone()
        listed_count, listed_bytes, listed_leaf = listed
        count, size = self._file.db.execute(_SELECT_TOTALS, (number,)).fetchone()
        leaf = listed_leaf
        has_leaf = leaf is not None and any(entry.id == leaf for entry in entries)
        if moves_leaf and not has_leaf:
            # A session listed with entries and no leaf had none; one listed with nothing was not written to its end.
            needs_leaf = listed_leaf is not None or listed_count == 0
            leaf = _find_newest_branch_entry(entries) if needs_leaf else None
        if listed == (count, size, leaf):
            return
        update = "UPDATE sessions SET entries = ?, bytes = ?, leaf = ? WHERE session = ?"
        self._file.db.execute(update, (count, size, leaf, number))
        if listed_leaf != leaf:
            problem = f"its leaf is {listed_leaf}, which is not in it"
            self.findings.append(StoreRepairFinding("session", problem, f"its leaf is {leaf} now", key))
        elif not any(finding.session_key == key for finding in self.findings):
            # After other repairs the numbers are expected to differ, which is no finding of its own.
            problem = (
                f"it is listed with {listed_count:,} entries of {listed_bytes:,} bytes and has {count:,} of {size:,}"
            )
            self.findings.append(StoreRepairFinding("index", problem, "counted anew", key))

    def _repair_checkpoints(
        self,
        key: str,
        entries: Iterable[IntactEntry],
        *,
        remakes_all: bool,
    ) -> None:
        """Make checkpoints anew: those that cannot be read, or all if the session has changed."""
        damaged_count = 0
        for entry in entries:
            if entry.kind != COMPACTION_KIND:
                continue
            data = self._read_checkpoint(key, entry.node.seq)
            is_damaged = data is not None and _is_damaged_checkpoint(data, decode_checkpoint, Checkpoint)
            damaged_count += is_damaged
            if is_damaged or remakes_all:
                self._rewrite_checkpoint(key, entry)
        damaged_count += self._repair_outlines(key, remakes_all=remakes_all)
        if damaged_count:
            problem = f"{damaged_count:,} checkpoints cannot be read"
            self.findings.append(StoreRepairFinding("index", problem, "made anew", key))

    def _repair_outlines(self, key: str, *, remakes_all: bool) -> int:
        """Remove outlines that cannot be read, or all, and save one at the leaf; return how many were damaged."""
        db = self._file.db
        damaged_count = 0
        for (seq,) in db.execute(_SELECT_OUTLINES, (key,)).fetchall():
            is_damaged = _is_damaged_checkpoint(self._read_checkpoint(key, seq) or b"", decode_outline, SizeOutline)
            damaged_count += is_damaged
            if is_damaged or remakes_all:
                db.execute("DELETE FROM checkpoints WHERE seq = ?", (seq,))
        if damaged_count or remakes_all:
            self._save_outline(self._require_info(key))
        return damaged_count

    def _rewrite_checkpoint(self, key: str, intact_entry: IntactEntry) -> None:
        self._file.db.execute("DELETE FROM checkpoints WHERE seq = ?", (intact_entry.node.seq,))
        # An entry before it may have a form that this version cannot read; the compaction then has no checkpoint.
        with suppress(StoreCorrupt):
            for entry in self._read_entries_by_id(key, [intact_entry.id]):
                if isinstance(entry.body, CompactionEntry) and entry.parent is not None:
                    self._create_checkpoint(key, entry.seq, entry.parent, entry.body)

    def _repair_word_index(self) -> None:
        """Drop the word index if it is damaged or if entries have changed; the next search builds it again."""
        db = self._file.db
        if not indexing.has_word_index(db):
            return
        is_intact = indexing.is_word_index_intact(db)
        if not is_intact:
            self.findings.append(
                StoreRepairFinding("index", "the index of words is damaged", "the next search makes it anew")
            )
        has_changed_entries = any(finding.kind in ("entry", "parent") for finding in self.findings)
        if not is_intact or has_changed_entries:
            indexing.drop_word_index(db)

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def repair_blobs(self, *, dry_run: bool) -> tuple[StoreRepairFinding, ...]:
        """Store missing or damaged blobs again if their text is still in a message; return the findings."""
        findings = []
        for info in self._list_infos():
            damaged_blobs: dict[str, tuple[str, str]] = {}
            for hash_, entry_id in self._iter_named_blobs(info.key):
                fault = self._find_blob_fault(hash_)
                if fault:
                    damaged_blobs[hash_] = (entry_id, fault)
            if not damaged_blobs:
                continue
            texts = self._find_texts_by_hash(info.key, set(damaged_blobs))
            for hash_, (entry_id, fault) in damaged_blobs.items():
                problem = f"blob {hash_[:12]} is {fault}"
                action = "its text is in no message: it is lost"
                if hash_ in texts:
                    action = "stored again from the message it was taken from"
                    if not dry_run:
                        self.blobs.store_content(texts[hash_])
                findings.append(
                    StoreRepairFinding(
                        "blob",
                        problem,
                        action,
                        info.key,
                        entry_id,
                    )
                )
        return tuple(findings)

    def _iter_named_blobs(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield each blob that a session names, with the id of the first entry that does."""
        seen_hashes: set[str] = set()
        for kind in ("decision", "compaction", "note"):
            for entry in self._iter_readable_entries(key, kind):
                for hash_ in iter_named_hashes(entry.body):
                    # Each blob is read and hashed once, however many entries name it.
                    if hash_ not in seen_hashes:
                        seen_hashes.add(hash_)
                        yield hash_, entry.id

    def _iter_readable_entries(self, key: str, kind: str) -> Iterator[Entry]:
        """Yield the entries of a kind, without those in a form that this version cannot read."""
        query = f"{_SELECT_ENTRY_IDS} AND {build_kind_condition(kind)} ORDER BY e.seq"
        for (entry_id,) in self._file.db.execute(query, (key, kind)).fetchall():
            try:
                yield from self._read_entries_by_id(key, [entry_id])
            except StoreCorrupt:
                continue

    def _find_blob_fault(self, hash_: str) -> str:
        """Return the fault of a blob in a word, or "" if it is intact."""
        try:
            self.blobs.read_bytes(hash_)
        except UnknownId:
            return "gone"
        except StoreError:
            return "damaged"
        return ""

    def _find_texts_by_hash(self, key: str, hashes: set[str]) -> dict[str, str]:
        """Return those texts of the session's results and messages that have one of these hashes, by hash."""
        texts: dict[str, str] = {}
        for kind in ("message", "branch_summary"):
            for entry in self._iter_readable_entries(key, kind):
                for text in _iter_message_texts(entry):
                    hash_ = hash_text(text)
                    if hash_ in hashes:
                        texts[hash_] = text
        return texts


def _find_newest_branch_entry(entries: list[IntactEntry]) -> str | None:
    """Return the id of the newest entry that is not a label, or None if all are labels."""
    branch_entries = [entry for entry in entries if entry.kind != "label"]
    if not branch_entries:
        return None
    return max(branch_entries, key=lambda entry: entry.node.seq).id


def _iter_message_texts(entry: Entry) -> Iterator[str]:
    """Yield the texts of a message that may have been moved to a blob."""
    if not isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        return
    for part in entry.body.sized_message.message.parts:
        if isinstance(part, ToolResult):
            # A result is spilled as a whole or text by text.
            yield get_result_text(part)
            for item in part.content:
                if isinstance(item, Text):
                    yield item.text
        elif isinstance(part, Text):
            yield part.text


def _is_damaged_checkpoint(data: bytes, parse: Callable[[bytes], object], kind: type[Checkpoint | SizeOutline]) -> bool:
    """Return whether a checkpoint cannot be decoded; one of another version is not damaged, only unused."""
    if parse(data) is not None:
        return False
    try:
        return unpack_value(data, kind).fold_version == FOLD_VERSION
    except (ValueError, TypeError):
        return True
