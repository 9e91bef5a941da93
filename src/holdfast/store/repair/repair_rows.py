"""A store put right inside the transaction that is going on: its rows first, then all that is derived from them."""

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
    """A store being put right."""

    findings: list[StoreRepairFinding]
    entries_seen = 0
    """Entries that were looked at."""

    def repair_all_sessions(self, tick: Callable[[], None]) -> tuple[StoreRepairFinding, ...]:
        """Put right what can be, and return what was found; whoever calls has begun to write."""
        self.findings = []
        self._list_stray_sessions()
        for number, key in self._file.db.execute("SELECT session, key FROM sessions ORDER BY session").fetchall():
            self._repair_session(number, key, tick)
        self._repair_word_index()
        return tuple(self.findings)

    def repair_one_session(self, key: str) -> tuple[StoreRepairFinding, ...]:
        """Put right what can be in one session without losing anything of it; whoever calls has begun to write."""
        self.findings = []
        row = self._file.db.execute("SELECT session FROM sessions WHERE key = ?", (key,)).fetchone()
        if row is not None:
            self._repair_session(row[0], key, lambda: None, without_loss=True)
        return tuple(self.findings)

    @contextmanager
    def write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is there at its end, or nothing is."""
        with self._write_transaction():
            yield self._file.db

    def read_transaction(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return self._read_transaction()

    def set_blobs(self, blobs: FileBlobStore) -> None:
        """Take ``blobs`` for those of this store."""
        self._blobs = blobs

    def count_entries(self) -> int:
        """Return how many entries there are to be looked at."""
        return int(self._file.db.execute("SELECT count(*) FROM entries").fetchone()[0])

    def _list_stray_sessions(self) -> None:
        """Give entries whose session is not in the list one of their own."""
        for (number,) in self._file.db.execute(_SELECT_STRAY_SESSIONS).fetchall():
            key = f"{NOTE_LOST}-{number}"
            self._file.db.execute(_INSERT_STRAY_SESSION, (number, key))
            problem = "entries of a session that is not in the list"
            self.findings.append(StoreRepairFinding("session", problem, f"it is listed as {key} now", key))

    def _repair_session(self, number: int, key: str, tick: Callable[[], None], *, without_loss: bool = False) -> None:
        before = len(self.findings)

        def tell(kind: DamageKind, problem: str, action: str, entry: str) -> None:
            self.findings.append(StoreRepairFinding(kind, problem, action, key, entry))

        log = SessionRowRepairer(self._file.db, number, key, self._message_decoders, tell, without_loss=without_loss)
        log.repair_rows(tick)
        self.entries_seen += len(log.standing_rows)
        self._repair_session_info(number, key, list(log.standing_rows.values()), moves_leaf=not without_loss)
        self._repair_checkpoints(key, list(log.standing_rows.values()), anew=len(self.findings) > before)

    # -- what is derived -----------------------------------------------------------------------------------------------

    def _repair_session_info(self, number: int, key: str, places: list[IntactEntry], *, moves_leaf: bool) -> None:
        """Make the list of sessions say what is so: where it goes on, how many entries, how many bytes."""
        query = "SELECT entries, bytes, leaf FROM sessions WHERE session = ?"
        listed_values: tuple[int, int, str | None] = self._file.db.execute(query, (number,)).fetchone()
        count, size = self._file.db.execute(_SELECT_TOTALS, (number,)).fetchone()
        leaf = listed_values[2]
        if moves_leaf and (leaf is None or all(place.id != leaf for place in places)):
            last = max(
                (place for place in places if place.kind != "label"), key=lambda item: item.node.seq, default=None
            )
            leaf = last.id if last is not None and (leaf is not None or listed_values[0] == 0) else None
        if listed_values == (count, size, leaf):
            return
        self._file.db.execute(
            "UPDATE sessions SET entries = ?, bytes = ?, leaf = ? WHERE session = ?", (count, size, leaf, number)
        )
        if listed_values[2] != leaf:
            problem = f"it goes on at {listed_values[2]}, which is not in it"
            self.findings.append(StoreRepairFinding("session", problem, f"it goes on at {leaf} now", key))
        elif not any(item.session_key == key for item in self.findings):
            problem = (
                f"it is listed with {listed_values[0]:,} entries of {listed_values[1]:,} bytes and has "
                f"{count:,} of {size:,}"
            )
            self.findings.append(StoreRepairFinding("index", problem, "counted anew", key))

    def _repair_checkpoints(self, key: str, places: Iterable[IntactEntry], *, anew: bool) -> None:
        """Make checkpoints anew where they cannot be read, or where the session is not what it was."""
        wrong = 0
        for place in places:
            if place.kind == COMPACTION_KIND:
                data = self._read_checkpoint(key, place.node.seq)
                is_damaged = data is not None and _is_damaged_checkpoint(data, decode_checkpoint, Checkpoint)
                wrong += is_damaged
                if is_damaged or anew:
                    self._rewrite_checkpoint(key, place)
        wrong += self._repair_outlines(key, anew=anew)
        if wrong:
            problem = f"{wrong:,} checkpoints cannot be read"
            self.findings.append(StoreRepairFinding("index", problem, "made anew", key))

    def _repair_outlines(self, key: str, *, anew: bool) -> int:
        """Draw the outline at the leaf anew where it, or the session, is not what it was; return how many were not."""
        db, wrong = self._file.db, 0
        for (seq,) in db.execute(_SELECT_OUTLINES, (key,)).fetchall():
            is_damaged = _is_damaged_checkpoint(self._read_checkpoint(key, seq) or b"", decode_outline, SizeOutline)
            wrong += is_damaged
            if is_damaged or anew:
                db.execute("DELETE FROM checkpoints WHERE seq = ?", (seq,))
        if wrong or anew:
            self._save_outline(self._require_info(key))
        return wrong

    def _rewrite_checkpoint(self, key: str, place: IntactEntry) -> None:
        self._file.db.execute("DELETE FROM checkpoints WHERE seq = ?", (place.node.seq,))
        with suppress(StoreCorrupt):  # something before it has a form of another version: it does without
            for entry in self._read_entries_by_id(key, [place.id]):
                if isinstance(entry.body, CompactionEntry) and entry.parent is not None:
                    self._create_checkpoint(key, entry.seq, entry.parent, entry.body)

    def _repair_word_index(self) -> None:
        """Have the index of words made anew where it is damaged, or where entries are not what they were."""
        db = self._file.db
        if not indexing.has_word_index(db):
            return
        is_sound = indexing.is_word_index_intact(db)
        if not is_sound:
            self.findings.append(
                StoreRepairFinding("index", "the index of words is damaged", "the next search makes it anew")
            )
        if not is_sound or any(finding.kind in ("entry", "parent") for finding in self.findings):
            indexing.drop_word_index(db)

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def repair_blobs(self, *, dry_run: bool) -> tuple[StoreRepairFinding, ...]:
        """Store texts again that entries name and whose blobs are gone or damaged, where the log still says them."""
        out = []
        for key in [info.key for info in self._list_infos()]:
            wrong = ((hash_, id_, self._find_blob_fault(hash_)) for hash_, id_ in self._iter_named_blobs(key))
            damaged_blobs = {hash_: (id_, fault) for hash_, id_, fault in wrong if fault}
            texts = self._find_texts_by_hash(key, set(damaged_blobs)) if damaged_blobs else {}
            for hash_, (id_, fault) in damaged_blobs.items():
                problem = f"blob {hash_[:12]} is {fault}"
                action = "its text is in no message: it is lost"
                if hash_ in texts:
                    action = "stored again from the message it was taken from"
                    if not dry_run:
                        self.blobs.store_content(texts[hash_])
                out.append(StoreRepairFinding("blob", problem, action, key, id_))
        return tuple(out)

    def _iter_named_blobs(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield each blob that a session names, with the first entry that does."""
        seen_hashes: set[str] = set()
        for kind in ("decision", "compaction", "note"):
            for entry in self._iter_readable_entries(key, kind):
                for hash_ in iter_named_hashes(entry.body):
                    if hash_ not in seen_hashes:
                        seen_hashes.add(hash_)
                        yield hash_, entry.id

    def _iter_readable_entries(self, key: str, kind: str) -> Iterator[Entry]:
        """Yield the entries of a kind, but those of a form that this version does not read."""
        for id_ in self._file.db.execute(
            f"{_SELECT_ENTRY_IDS} AND {build_kind_condition(kind)} ORDER BY e.seq", (key, kind)
        ).fetchall():
            try:
                yield from self._read_entries_by_id(key, id_)
            except StoreCorrupt:
                continue

    def _find_blob_fault(self, hash_: str) -> str:
        """Return what is wrong with a blob, or nothing."""
        try:
            self.blobs.read_bytes(hash_)
        except UnknownId:
            return "gone"
        except StoreError:
            return "damaged"
        return ""

    def _find_texts_by_hash(self, key: str, hashes: set[str]) -> dict[str, str]:
        """Return the texts of the session's results and words whose hash is in ``hashes``."""
        texts: dict[str, str] = {}
        for kind in ("message", "branch_summary"):
            for entry in self._iter_readable_entries(key, kind):
                for text in _iter_message_texts(entry):
                    if (hash_ := hash_text(text)) in hashes:
                        texts[hash_] = text
        return texts


def _iter_message_texts(entry: Entry) -> Iterator[str]:
    """Yield the texts of a message that may have been moved to a blob."""
    if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
        for part in entry.body.sized_message.message.parts:
            if isinstance(part, ToolResult):
                yield get_result_text(part)
                yield from (item.text for item in part.content if isinstance(item, Text))
            elif isinstance(part, Text):
                yield part.text


def _is_damaged_checkpoint(data: bytes, parse: Callable[[bytes], object], kind: type[Checkpoint | SizeOutline]) -> bool:
    """Return whether a checkpoint cannot be read; one of another version can."""
    if parse(data) is not None:
        return False
    try:
        return unpack_value(data, kind).fold_version == FOLD_VERSION
    except (ValueError, TypeError):
        return True
