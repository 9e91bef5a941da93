"""Entries whose words stay in the file they were recorded in until somebody asks for them.

A session file may be larger than the memory that its import should take. What is needed to put its entries in order
(ids, parents, kinds, times) is little; the words are read again, one entry at a time, when the entry is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from msgspec import Struct

from holdfast.state.entries import Entry, EntryBody


class LazyBody(Struct, frozen=True):
    """What an entry says, before it is read."""

    body_type: type[Struct]
    read_body: Callable[[], EntryBody]
    """Return the body; raises ``FormatError`` where the file was changed meanwhile."""


class LazyEntry(Struct, frozen=True):
    """An entry without its body, and how the body is read."""

    id: str
    parent: str | None
    body_type: type[Struct]
    read_body: Callable[[], EntryBody]
    seq: int = 0
    time_ms: int | None = None

    def load(self) -> Entry:
        """Return the whole entry; it is read anew each time."""
        return Entry(self.id, self.parent, self.read_body(), self.seq, self.time_ms)


class LazyEntries(Sequence[Entry]):
    """A sequence of entries of which each is read when it is asked for, and not kept."""

    __slots__ = ("_iterate_all", "headers")

    def __init__(
        self, headers: Sequence[Entry | LazyEntry], in_order: Callable[[], Iterator[Entry]] | None = None
    ) -> None:
        self.headers = headers
        """The entries as they are held: those with a ``body`` are whole."""
        self._iterate_all = in_order
        """What yields all of them in order, where that is quicker than one by one."""

    def __len__(self) -> int:
        return len(self.headers)

    def __iter__(self) -> Iterator[Entry]:
        return map(load_entry, self.headers) if self._iterate_all is None else self._iterate_all()

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> LazyEntries: ...
    def __getitem__(self, index: int | slice) -> Entry | LazyEntries:
        if isinstance(index, slice):
            return LazyEntries(self.headers[index])
        return load_entry(self.headers[index])


def load_entries_lazily(headers: Sequence[Entry | LazyEntry]) -> Sequence[Entry]:
    """Return ``headers`` as entries: a tuple where all of them are whole, else lazily."""
    whole = tuple([entry for entry in headers if isinstance(entry, Entry)])
    return whole if len(whole) == len(headers) else LazyEntries(headers)


def load_entry(entry: Entry | LazyEntry) -> Entry:
    """Return ``entry`` with its body."""
    return entry if isinstance(entry, Entry) else entry.load()


def get_entry_type(entry: Entry | LazyEntry) -> type[Struct]:
    """Return the type of an entry's body without reading it."""
    return type(entry.body) if isinstance(entry, Entry) else entry.body_type


def get_entry_headers(entries: Iterable[Entry]) -> Sequence[Entry | LazyEntry]:
    """Return ``entries`` as they are held, none of them read for it."""
    if isinstance(entries, LazyEntries):
        return entries.headers
    return entries if isinstance(entries, Sequence) else list(entries)
