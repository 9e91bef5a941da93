"""The verbs of a session store over a dozen questions that each store answers in its own way.

What is the same for every store stands here: which ids are meant, when the leaf moves, what an import skips, which
entries a request needs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, suppress
from os import urandom
from typing import Self

from msgspec.structs import replace

from holdfast.errors import LogConflict, StoreCorrupt, UnknownId
from holdfast.messages.message import Message
from holdfast.state.branch.branch import Branch, extended
from holdfast.state.entries import Compaction, Decision, Entry, Label
from holdfast.state.lazy_entries import LazyEntry, headers_of, kind_of, load
from holdfast.store.base import Active, Appended, BlobStore, Decode, Found, Imported, SessionInfo, Tick, nobody
from holdfast.store.search.search import search, terms
from holdfast.store.sql.rows import identity, time_of
from holdfast.store.tree.active import checkpoint, restored, resume, slotted
from holdfast.store.tree.branch_copy import copied
from holdfast.store.tree.outline import bare, drawn, outlined, without_words
from holdfast.store.tree.placing import Node, Placed, check_key, place

ENTRIES_AT_ONCE = 100
"""Entries of an import that are read and written together: with more it is no quicker. [M]"""
FEW = 64
"""[H] Entries of a session that are read as quickly as an outline."""
SHOWN = 5
"""How many candidates an ambiguous prefix lists."""


def new_id() -> str:
    """Return an id that no other entry has."""
    return urandom(16).hex()


def new_ids(count: int) -> list[str]:
    """Return so many of them in ascending order, so that an index takes them in at few places."""
    drawn = urandom(16 * count).hex()
    return sorted([drawn[at : at + 32] for at in range(0, len(drawn), 32)])


def now_ms() -> int:
    """Return the time as ms since 1970: for display, nothing is decided by it."""
    return time.time_ns() // 1_000_000


class TreeStore(ABC):
    """The verbs of ``SessionStore``; a subclass says how rows are read, written and made atomic."""

    def __init__(self, blobs: BlobStore, clock: Callable[[], int] = now_ms) -> None:
        self._blobs = blobs
        self._clock = clock

    # -- what a store answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[None]:
        """Everything written inside is in the store at its end, or nothing is."""

    @abstractmethod
    def _all(self) -> list[SessionInfo]: ...

    @abstractmethod
    def _info(self, key: str) -> SessionInfo | None: ...

    @abstractmethod
    def _keys(self, prefix: str) -> list[str]:
        """Return a few more keys with ``prefix`` than a message shows."""

    @abstractmethod
    def _save(self, info: SessionInfo) -> None:
        """Create or change the session of ``info.key``."""

    @abstractmethod
    def _forget(self, key: str) -> None: ...

    @abstractmethod
    def _last(self) -> int:
        """Return the highest ``seq`` in the store, or 0."""

    @abstractmethod
    def _node(self, key: str, id_: str) -> Node | None: ...

    @abstractmethod
    def _ids(self, key: str, prefix: str) -> list[str]:
        """Return a few more entry ids with ``prefix`` than a message shows."""

    @abstractmethod
    def _identity(self, key: str, id_: str) -> bytes | None: ...

    @abstractmethod
    def _insert(self, key: str, placed: Sequence[Placed], decode: Decode | None) -> None: ...

    @abstractmethod
    def _get(self, key: str, ids: Sequence[str]) -> list[Entry]: ...

    @abstractmethod
    def _up(self, key: str, seq: int, keep: int, base: int) -> list[Entry]:
        """Return the path to ``seq`` in order: what has a depth over ``keep``, or comes after ``base``, or is it."""

    @abstractmethod
    def _every(self, key: str, kind: str | None = None, after: int = 0) -> list[Entry]: ...

    @abstractmethod
    def _tips(self, key: str) -> list[str]: ...

    @abstractmethod
    def _checkpoint(self, key: str, seq: int) -> bytes | None: ...

    @abstractmethod
    def _save_checkpoint(self, key: str, seq: int, state: bytes) -> None: ...

    @abstractmethod
    def _unreadable(self, key: str) -> Iterator[str]:
        """Yield why each entry that cannot be read cannot."""

    @abstractmethod
    def _ready(self, key: str, wanted: Sequence[str], tick: Tick) -> None:
        """Make ready what ``_matching`` needs; it may do without."""

    @abstractmethod
    def _matching(self, key: str, wanted: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries that may hold all of ``wanted``, the newest first."""

    @abstractmethod
    def writing(self, key: str) -> AbstractContextManager[None]:
        """Hold the session's lease."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; the store cannot be used afterwards."""

    # -- sessions ------------------------------------------------------------------------------------------------------

    @property
    def blobs(self) -> BlobStore:
        """The blobs that belong to this store."""
        return self._blobs

    def __enter__(self) -> Self:
        """Return the store; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sessions(self) -> list[SessionInfo]:
        """Return every session, the last changed first."""
        with self._reading():
            return sorted(self._all(), key=lambda info: (-(info.updated or 0), info.key))

    def session(self, prefix: str) -> SessionInfo:
        """Return the one session whose key is or begins with ``prefix``."""
        with self._reading():
            exact = self._info(prefix)
            if exact is not None:
                return exact
            return self._known(_only(self._keys(prefix) if prefix else [], prefix, "session"))

    def create(self, key: str, info: SessionInfo | None = None) -> SessionInfo:
        """Create an empty session and return it."""
        check_key(key)
        with self._writing():
            if self._info(key) is not None:
                msg = f"session {key!r} exists already; append to it, or choose another key"
                raise LogConflict(msg)
            return self._begin(key, info)

    def describe(self, key: str, *, title: str | None = None, cwd: str | None = None, model: str | None = None) -> None:
        """Change what the session's list entry says; nothing leaves a field as it is."""
        changes = {"title": title, "cwd": cwd, "model": model}
        with self._writing():
            info = self._known(key)
            self._save(replace(info, **{name: value for name, value in changes.items() if value is not None}))

    def remove(self, key: str) -> None:
        """Delete the session and its log."""
        with self._writing():
            self._forget(self._known(key).key)

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(
        self,
        key: str,
        entries: Iterable[Entry],
        *,
        expected_leaf: str | None = None,
        decode: Decode | None = None,
        onward: bool = False,
    ) -> Appended:
        """Append ``entries`` in one transaction and return the new leaf."""
        new = list(entries)
        with self._writing():
            info = self._known(key)
            moved = bool(new) and info.leaf == (new[0].parent if expected_leaf is None else expected_leaf)
            if not new or (onward and not moved):
                return Appended(info.leaf, 0, moved=False)
            last = self._add(info, new, decode)
            leaf = new[-1].id if moved else info.leaf
            self._save(replace(info, entries=info.entries + len(new), leaf=leaf, updated=self._clock()))
            return Appended(new[-1].id, last, moved)

    def put(
        self, key: str, entries: Iterable[Entry], *, leaf: str | None = None, info: SessionInfo | None = None
    ) -> Imported:
        """Import a recording in one transaction; entries that are there already are skipped."""
        check_key(key)
        given = headers_of(entries)
        with self._writing():
            known = self._info(key) or self._begin(key, info, given)
            added = self._import(known, given)
            if not added:
                self._outline(known)
                return Imported(0, len(given), known.leaf)
            count = known.entries + len(added)
            known = _told(known, info, entries=count, updated=_latest(info, added) or self._clock())
            known = replace(known, leaf=self._onward(key, known.leaf, leaf or given[-1].id))
            self._save(known)
            self._outline(known, added)
            return Imported(len(added), len(given) - len(added), known.leaf)

    def _import(self, info: SessionInfo, given: Sequence[Entry | LazyEntry]) -> list[Entry]:
        """Write those of ``given`` that are not in the log, a good many at once; return what a fold needs of them."""
        holds_edits = any(map(_is_editing, given))
        names = None if info.entries else set[str]()
        added: list[Entry] = []
        for start in range(0, len(given), ENTRIES_AT_ONCE):
            new = self._unknown(info, [load(entry) for entry in given[start : start + ENTRIES_AT_ONCE]], names)
            if not new:
                continue
            self._add(info, new)
            info = replace(info, entries=info.entries + len(new))
            added += new if holds_edits else map(without_words, new)
            if names is not None:
                names.update(entry.id for entry in new)
        return added

    def set_leaf(self, key: str, prefix: str) -> str:
        """Make that entry the session's leaf and return its id."""
        with self._writing():
            id_ = self._found(key, prefix)
            self._save(replace(self._known(key), leaf=id_))
            return id_

    def label(self, key: str, prefix: str, name: str) -> Entry:
        """Name an entry; the label hangs on it, beside the branch, and moves no leaf."""
        with self._writing():
            info = self._known(key)
            target = self._found(key, prefix)
            entry = Entry(new_id(), target, Label(target, name), at=self._clock())
            seq = self._add(info, [entry])
            self._save(replace(info, entries=info.entries + 1))
            return replace(entry, seq=seq)

    def branch_with(self, key: str, replacements: Mapping[str, Message], leaf: str | None = None) -> str | None:
        """Say the branch at ``leaf`` again with other messages for some entries; return the new leaf."""
        with self._writing():
            info, node = self._known(key), self._leaf(key, leaf)
            path = [] if node is None else self._up(key, node.seq, 0, 0)
            new = copied(path, replacements, self._names(key), new_id)
            if not new:
                return None
            self._add(info, new)
            last = next(entry.id for entry in reversed(new) if not isinstance(entry.body, Label))
            self._save(replace(info, entries=info.entries + len(new), leaf=last, updated=self._clock()))
            return last

    # -- reading -------------------------------------------------------------------------------------------------------

    def path(self, key: str, leaf: str | None = None) -> list[Entry]:
        """Return the entries from the root to ``leaf``."""
        with self._reading():
            node = self._leaf(key, leaf)
            return [] if node is None else self._up(key, node.seq, 0, 0)

    def active(self, key: str, leaf: str | None = None) -> Active:
        """Return the part of ``path`` that a request needs."""
        with self._reading():
            node = self._leaf(key, leaf)
            return Active() if node is None else self._active(key, node)

    def branch(self, key: str, leaf: str | None = None) -> Branch:
        """Return the branch at ``leaf``, opened from its active part."""
        return resume(self.active(key, leaf))

    def bare(self, key: str) -> Branch:
        """Return the session's branch as far as its size goes, from the outline at its leaf if there is one."""
        with self._reading():
            node = self._leaf(key, None)
            found = drawn(self._checkpoint(key, node.seq)) if node is not None else None
        return bare(self.branch(key)) if found is None else found

    def entries(self, key: str, kind: str | None = None, *, after: int = 0) -> list[Entry]:
        """Return the whole tree in order of ``seq``, or the entries of ``kind``; of those what is behind ``after``."""
        with self._reading():
            return self._every(self._known(key).key, kind, after)

    def lazy_entries(self, key: str) -> Sequence[Entry]:
        """Return what ``entries`` does, but each entry is read from the store when it is asked for, and not held."""
        with self._reading():
            return self._lazily(self._known(key).key)

    def _lazily(self, key: str) -> Sequence[Entry]:
        return self._every(key)

    def leaves(self, key: str) -> list[Entry]:
        """Return the tips of the tree, oldest first."""
        with self._reading():
            return self._get(key, self._tips(self._known(key).key))

    def damage(self, key: str) -> list[str]:
        """Return which entries cannot be read and why, a line for each; nothing where all can be."""
        with self._reading():
            return list(self._unreadable(self._known(key).key))

    def repair(self, key: str) -> list[str]:
        """Return what was damaged and put right: nothing, where no file is that could be."""
        self.session(key)
        return []

    def entry(self, key: str, prefix: str) -> Entry:
        """Return the one entry whose id is or begins with ``prefix``."""
        with self._reading():
            return self._get(key, [self._found(key, prefix)])[0]

    def labels(self, key: str) -> dict[str, str]:
        """Return the names in force by the id of the entry they name."""
        with self._reading():
            return self._names(self._known(key).key)

    def search(self, key: str, query: str, limit: int = 20, *, tick: Tick = nobody) -> list[Found]:
        """Return where the session says ``query``, the newest first."""
        wanted = terms(query)
        with self._reading():
            self._known(key)
        self._ready(key, wanted, tick)
        with self._reading():
            return search(self._matching(self._known(key).key, wanted), self._blobs, wanted, limit)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _nodes(self, info: SessionInfo, ids: Sequence[str]) -> dict[str, Node]:
        """Return where those of ``ids`` stand that are in the log; others that are may be there too."""
        found = [(id_, self._node(info.key, id_)) for id_ in ids]
        return {id_: node for id_, node in found if node is not None}

    def _known(self, key: str) -> SessionInfo:
        info = self._info(key)
        if info is None:
            raise unknown("session", key)
        return info

    def _names(self, key: str) -> dict[str, str]:
        """Return the labels in force by what they name."""
        bodies = [entry.body for entry in self._every(key, "label")]
        named = {body.target: body.name for body in bodies if isinstance(body, Label)}
        return {target: name for target, name in named.items() if name}

    def _found(self, key: str, prefix: str) -> str:
        self._known(key)
        return prefix if self._node(key, prefix) else _only(self._ids(key, prefix) if prefix else [], prefix, "entry")

    def _leaf(self, key: str, leaf: str | None) -> Node | None:
        info = self._known(key)
        id_ = info.leaf if leaf is None else self._found(key, leaf)
        return None if id_ is None else self._node(key, id_)

    def _begin(self, key: str, info: SessionInfo | None, entries: Sequence[Entry | LazyEntry] = ()) -> SessionInfo:
        """Save a session without entries."""
        born = min((at for at in map(time_of, entries) if at is not None), default=self._clock())
        info = info or SessionInfo(key)
        created = born if info.created is None else info.created
        info = replace(info, key=key, created=created, updated=info.updated or created, entries=0, leaf=None)
        self._save(info)
        return info

    def _add(self, info: SessionInfo, new: Sequence[Entry], decode: Decode | None = None) -> int:
        """Write ``new`` and the checkpoints of its compactions; return the last ``seq``."""
        named = {id_ for entry in new for id_ in (entry.id, entry.parent) if id_ is not None} if info.entries else ()
        there = self._nodes(info, list(named)) if named else {}
        placed = place(new, there.get, self._last() + 1)
        self._insert(info.key, placed, decode)
        for one in placed:
            if isinstance(one.entry.body, Compaction) and one.entry.parent is not None:
                self._check_in(info.key, one.seq, one.entry.parent, one.entry.body)
        return placed[-1].seq

    def _check_in(self, key: str, seq: int, parent: str, body: Compaction) -> None:
        """Save the checkpoint of a compaction, from the active part before it where that holds all it keeps."""
        before = self._node(key, parent)
        if before is None:
            return
        active = self._active(key, before)
        state = _settled(active, body)
        if state is None and active.state is not None:  # it keeps more than the compaction before it did
            state = _settled(Active(tuple(self._up(key, before.seq, 0, 0))), body)
        if state is not None:
            self._save_checkpoint(key, seq, state)

    def _outline(self, info: SessionInfo, new: Sequence[Entry] = ()) -> None:
        """Save the outline at a session's leaf unless it is there; ``new`` entries need not be read again.

        A compaction has its checkpoint in that place, and what it keeps is little to read.
        """
        key, at = info.key, info.leaf
        node = None if at is None or info.entries < FEW else self._node(key, at)
        if node is None or node.seq == node.base or drawn(self._checkpoint(key, node.seq)) is not None:
            return
        fresh, way = {entry.id: entry for entry in new}, list[Entry]()
        while at is not None and at in fresh:
            way.append(fresh[at])
            at = fresh[at].parent
        up = None if at is None else self._node(key, at)
        with suppress(StoreCorrupt, LookupError, ValueError, TypeError):  # the log takes what the fold does not
            before = Branch() if up is None else resume(self._active(key, up))
            self._save_checkpoint(key, node.seq, outlined(extended(before, way[::-1])))

    def _active(self, key: str, node: Node) -> Active:
        state = self._checkpoint(key, node.base) if node.base else None
        point = restored(state)
        if point is None:
            return Active(tuple(self._up(key, node.seq, 0, 0)))
        entries = self._up(key, node.seq, point.keep, node.base)
        rest = tuple([entry for entry in entries if entry.seq >= node.base])
        tail = tuple(slotted(entry for entry in entries if entry.seq < node.base))
        return Active(rest, tuple(self._get(key, point.head)), tail, state)

    def _unknown(self, known: SessionInfo, given: Sequence[Entry], names: AbstractSet[str] | None) -> list[Entry]:
        """Return those of ``given`` that are not in the log; ``LogConflict`` if an id is there with other content.

        ``names`` are the ids that the log has, where they are known.
        """
        new: dict[str, Entry] = {}
        for entry in given:
            twin = new.get(entry.id)
            is_looked_up = names is None or entry.id in names
            stored = identity(twin) if twin else self._identity(known.key, entry.id) if is_looked_up else None
            if stored is None:
                new[entry.id] = entry
            elif stored != identity(entry):
                msg = (
                    f"entry {entry.id!r} is in session {known.key!r} with other content; nothing was written: "
                    "import the file under another id (`holdfast import --as ID`)"
                )
                raise LogConflict(msg)
        return list(new.values())

    def _onward(self, key: str, old: str | None, new: str) -> str:
        """Return the leaf after an import: ``new`` if it continues ``old``, which is never left for another branch."""
        there = self._node(key, new)
        if there is None:
            msg = f"leaf {new!r} is not among the entries; nothing was written"
            raise LogConflict(msg)
        if old is None:
            return new
        here = self._node(key, old)
        onward = here is not None and any(entry.id == old for entry in self._up(key, there.seq, here.depth, here.seq))
        return new if onward else old


def _is_editing(header: Entry | LazyEntry) -> bool:
    """Return whether an entry changes how others are shown, for which the fold asks for their words."""
    if kind_of(header) is not Compaction:
        return kind_of(header) is Decision
    body = load(header).body
    return isinstance(body, Compaction) and bool(body.edits)


def _settled(active: Active, body: Compaction) -> bytes | None:
    """Return the checkpoint of compaction ``body`` behind ``active``.

    Nothing where there can be none: the log takes what the fold does not, and such a branch is walked from its root.
    """
    try:
        branch = resume(active)
        head = slotted([*active.head, *active.tail, *active.rest])[: branch.pinned]
        return checkpoint(branch, [entry.id for entry in head], body)
    except (LookupError, ValueError, TypeError):
        return None


def _told(known: SessionInfo, info: SessionInfo | None, *, entries: int, updated: int) -> SessionInfo:
    """Return ``known`` with what a newer reading of the same recording says."""
    new = info or known
    return replace(
        known,
        title=new.title or known.title,
        cwd=new.cwd or known.cwd,
        model=new.model or known.model,
        entries=entries,
        updated=max(updated, known.updated or 0),
    )


def _latest(info: SessionInfo | None, entries: Iterable[Entry]) -> int | None:
    if info is not None and info.updated is not None:
        return info.updated
    return max((at for at in map(time_of, entries) if at is not None), default=None)


def _only(found: Sequence[str], prefix: str, what: str) -> str:
    """Return the only one ``found``, or the one whose name the others go on from with a ``+``; else raise with them."""
    shortest = min(found, key=len, default="")
    if found and all(one == shortest or one.startswith(f"{shortest}+") for one in found):
        return shortest
    if not found:
        raise unknown(what, prefix)
    more = ", and more" if len(found) > SHOWN else ""
    msg = f"{prefix[:80]!r} could be any of these: {', '.join(found[:SHOWN])}{more}; give more of the {what}'s id"
    raise UnknownId(msg)


def unknown(what: str, name: str) -> UnknownId:
    """Return the error that nothing has this name."""
    where = "`holdfast ls` lists the sessions" if what == "session" else "`holdfast show` lists the entries"
    return UnknownId(f"no {what} is {name[:80]!r} or begins with it; {where}")
