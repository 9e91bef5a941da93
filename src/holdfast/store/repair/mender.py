"""A store put right inside the transaction that is going on: its rows first, then all that is derived from them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from holdfast.errors import StoreCorrupt, StoreError, UnknownId
from holdfast.messages.message import result_text
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.text.cutting import fingerprint
from holdfast.state.codec.packing import unpack
from holdfast.state.entries import BranchSummary, Compaction, Entry, Said
from holdfast.store.blobs.blob_names import blobs_of
from holdfast.store.blobs.blobs import FileBlobs
from holdfast.store.repair.session import LOST, Log, Place
from holdfast.store.repair.values import Kind, Mended
from holdfast.store.search import index as indexing
from holdfast.store.sqlite import SqliteStore, of_kind
from holdfast.store.tree.active import FOLD, Checkpoint, restored
from holdfast.store.tree.outline import Outline, drawn
from holdfast.store.tree.placing import COMPACTION

_ADOPT = """
    INSERT INTO sessions (session, key, title, format, cwd, model, entries) VALUES (?, ?, '', '', '', '', 0)"""
_STRAYS = "SELECT DISTINCT session FROM entries WHERE session NOT IN (SELECT session FROM sessions)"
_OF = "SELECT e.id FROM entries e WHERE e.session = (SELECT session FROM sessions WHERE key = ?)"
_OUTLINES = """
    SELECT c.seq FROM checkpoints c JOIN entries e ON e.seq = c.seq
    WHERE e.session = (SELECT session FROM sessions WHERE key = ?) AND e.kind <> 'compaction'"""
_TRUE = """
    SELECT count(*), coalesce(sum(coalesce(length(body), 0) + coalesce(length(raws), 0)
    + coalesce(length(origin), 0) + coalesce(length(raw), 0)), 0) FROM entries WHERE session = ?"""


class Mender(SqliteStore):
    """A store being put right."""

    found: list[Mended]
    entries_seen = 0
    """Entries that were looked at."""

    def mend(self, tick: Callable[[], None]) -> tuple[Mended, ...]:
        """Put right what can be, and return what was found; whoever calls has begun to write."""
        self.found = []
        self._adopt()
        for number, key in self._file.db.execute("SELECT session, key FROM sessions ORDER BY session").fetchall():
            self._session(number, key, tick)
        self._words()
        return tuple(self.found)

    def mend_session(self, key: str) -> tuple[Mended, ...]:
        """Put right what can be in one session without losing anything of it; whoever calls has begun to write."""
        self.found = []
        row = self._file.db.execute("SELECT session FROM sessions WHERE key = ?", (key,)).fetchone()
        if row is not None:
            self._session(row[0], key, lambda: None, without_loss=True)
        return tuple(self.found)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is there at its end, or nothing is."""
        with self._writing():
            yield self._file.db

    def looking(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return self._reading()

    def use(self, blobs: FileBlobs) -> None:
        """Take ``blobs`` for those of this store."""
        self._blobs = blobs

    def count(self) -> int:
        """Return how many entries there are to be looked at."""
        return int(self._file.db.execute("SELECT count(*) FROM entries").fetchone()[0])

    def _adopt(self) -> None:
        """Give entries whose session is not in the list one of their own."""
        for (number,) in self._file.db.execute(_STRAYS).fetchall():
            key = f"{LOST}-{number}"
            self._file.db.execute(_ADOPT, (number, key))
            what = "entries of a session that is not in the list"
            self.found.append(Mended("session", what, f"it is listed as {key} now", key))

    def _session(self, number: int, key: str, tick: Callable[[], None], *, without_loss: bool = False) -> None:
        before = len(self.found)

        def tell(kind: Kind, what: str, done: str, entry: str) -> None:
            self.found.append(Mended(kind, what, done, key, entry))

        log = Log(self._file.db, number, key, self._forms, tell, without_loss=without_loss)
        log.mend(tick)
        self.entries_seen += len(log.places)
        self._about(number, key, list(log.places.values()), moves_leaf=not without_loss)
        self._checkpoints(key, list(log.places.values()), anew=len(self.found) > before)

    # -- what is derived -----------------------------------------------------------------------------------------------

    def _about(self, number: int, key: str, places: list[Place], *, moves_leaf: bool) -> None:
        """Make the list of sessions say what is so: where it goes on, how many entries, how many bytes."""
        query = "SELECT entries, bytes, leaf FROM sessions WHERE session = ?"
        told: tuple[int, int, str | None] = self._file.db.execute(query, (number,)).fetchone()
        count, size = self._file.db.execute(_TRUE, (number,)).fetchone()
        leaf = told[2]
        if moves_leaf and (leaf is None or all(place.id != leaf for place in places)):
            last = max((place for place in places if place.kind != "label"), key=lambda one: one.node.seq, default=None)
            leaf = last.id if last is not None and (leaf is not None or told[0] == 0) else None
        if told == (count, size, leaf):
            return
        self._file.db.execute(
            "UPDATE sessions SET entries = ?, bytes = ?, leaf = ? WHERE session = ?", (count, size, leaf, number)
        )
        if told[2] != leaf:
            what = f"it goes on at {told[2]}, which is not in it"
            self.found.append(Mended("session", what, f"it goes on at {leaf} now", key))
        elif not any(one.session == key for one in self.found):
            what = f"it is listed with {told[0]:,} entries of {told[1]:,} bytes and has {count:,} of {size:,}"
            self.found.append(Mended("index", what, "counted anew", key))

    def _checkpoints(self, key: str, places: Iterable[Place], *, anew: bool) -> None:
        """Make checkpoints anew where they cannot be read, or where the session is not what it was."""
        wrong = 0
        for place in places:
            if place.kind == COMPACTION:
                saved = self._checkpoint(key, place.node.seq)
                is_damaged = saved is not None and _is_damaged(saved, restored, Checkpoint)
                wrong += is_damaged
                if is_damaged or anew:
                    self._check_in_anew(key, place)
        wrong += self._outlines(key, anew=anew)
        if wrong:
            what = f"{wrong:,} checkpoints cannot be read"
            self.found.append(Mended("index", what, "made anew", key))

    def _outlines(self, key: str, *, anew: bool) -> int:
        """Draw the outline at the leaf anew where it, or the session, is not what it was; return how many were not."""
        db, wrong = self._file.db, 0
        for (seq,) in db.execute(_OUTLINES, (key,)).fetchall():
            is_damaged = _is_damaged(self._checkpoint(key, seq) or b"", drawn, Outline)
            wrong += is_damaged
            if is_damaged or anew:
                db.execute("DELETE FROM checkpoints WHERE seq = ?", (seq,))
        if wrong or anew:
            self._outline(self._known(key))
        return wrong

    def _check_in_anew(self, key: str, place: Place) -> None:
        self._file.db.execute("DELETE FROM checkpoints WHERE seq = ?", (place.node.seq,))
        with suppress(StoreCorrupt):  # something before it has a form of another version: it does without
            for entry in self._get(key, [place.id]):
                if isinstance(entry.body, Compaction) and entry.parent is not None:
                    self._check_in(key, entry.seq, entry.parent, entry.body)

    def _words(self) -> None:
        """Have the index of words made anew where it is damaged, or where entries are not what they were."""
        db = self._file.db
        if not indexing.is_there(db):
            return
        is_sound = indexing.is_sound(db)
        if not is_sound:
            self.found.append(Mended("index", "the index of words is damaged", "the next search makes it anew"))
        if not is_sound or any(one.kind in ("entry", "parent") for one in self.found):
            indexing.drop(db)

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def mend_blobs(self, *, dry_run: bool) -> tuple[Mended, ...]:
        """Store texts again that entries name and whose blobs are gone or damaged, where the log still says them."""
        out = []
        for key in [info.key for info in self._all()]:
            wrong = ((hash_, id_, self._fault(hash_)) for hash_, id_ in self._blobs_named(key))
            lost = {hash_: (id_, fault) for hash_, id_, fault in wrong if fault}
            said = self._said_of(key, set(lost)) if lost else {}
            for hash_, (id_, fault) in lost.items():
                what = f"blob {hash_[:12]} is {fault}"
                done = "its text is in no message: it is lost"
                if hash_ in said:
                    done = "stored again from the message it was taken from"
                    if not dry_run:
                        self.blobs.put(said[hash_])
                out.append(Mended("blob", what, done, key, id_))
        return tuple(out)

    def _blobs_named(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield each blob that a session names, with the first entry that does."""
        seen: set[str] = set()
        for kind in ("decision", "compaction", "note"):
            for entry in self._readable(key, kind):
                for hash_ in blobs_of(entry.body):
                    if hash_ not in seen:
                        seen.add(hash_)
                        yield hash_, entry.id

    def _readable(self, key: str, kind: str) -> Iterator[Entry]:
        """Yield the entries of a kind, but those of a form that this version does not read."""
        for id_ in self._file.db.execute(f"{_OF} AND {of_kind(kind)} ORDER BY e.seq", (key, kind)).fetchall():
            try:
                yield from self._get(key, id_)
            except StoreCorrupt:
                continue

    def _fault(self, hash_: str) -> str:
        """Return what is wrong with a blob, or nothing."""
        try:
            self.blobs.get(hash_)
        except UnknownId:
            return "gone"
        except StoreError:
            return "damaged"
        return ""

    def _said_of(self, key: str, lost: set[str]) -> dict[str, str]:
        """Return the texts of the session's results and words whose hash is in ``lost``."""
        found: dict[str, str] = {}
        for kind in ("message", "branch_summary"):
            for entry in self._readable(key, kind):
                for text in _texts(entry):
                    if (hash_ := fingerprint(text)) in lost:
                        found[hash_] = text
        return found


def _texts(entry: Entry) -> Iterator[str]:
    """Yield the texts of a message that may have been moved to a blob."""
    if isinstance(entry.body, Said | BranchSummary):
        for part in entry.body.slot.message.parts:
            if isinstance(part, ToolResult):
                yield result_text(part)
                yield from (one.text for one in part.content if isinstance(one, Text))
            elif isinstance(part, Text):
                yield part.text


def _is_damaged(saved: bytes, read: Callable[[bytes], object], kind: type[Checkpoint | Outline]) -> bool:
    """Return whether a checkpoint cannot be read; one of another version can."""
    if read(saved) is not None:
        return False
    try:
        return unpack(saved, kind).fold == FOLD
    except (ValueError, TypeError):
        return True
