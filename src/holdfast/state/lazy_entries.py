"""Entries whose content stays in the file they were recorded in until it is needed.

A session file may be larger than the memory its import should take. Putting its entries in order needs only ids,
parents, kinds and times, which is little; the content is read again, one entry at a time, when the entry is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from msgspec import Struct

from holdfast.state.entries import Entry, EntryBody


class LazyBody(Struct, frozen=True):
    """The body of an entry that was not read yet."""

    body_type: type[Struct]
    read_body: Callable[[], EntryBody]
    """Return the body; raises ``FormatError`` if the file was changed meanwhile."""


class LazyEntry(Struct, frozen=True):
    """An entry without its body, and a function that reads the body.

    A long log has tens of thousands of these, so those of one session share their function: fewer objects for the
    garbage collector to go through.
    """

    id: str
    parent: str | None
    body_type: type[Struct]
    read_body: Callable[[str], EntryBody]
    """Returns the body of the entry with the given id."""
    seq: int = 0
    time_ms: int | None = None
    tokens: int = 0
    """Estimated tokens of the message, if it comes from a store and is one."""

    def load(self) -> Entry:
        """Return the whole entry. It is read anew at each call."""
        return Entry(self.id, self.parent, self.read_body(self.id), self.seq, self.time_ms)


class LazyEntries(Sequence[Entry]):
    """A sequence of entries that are read when they are asked for, and not kept."""

    __slots__ = ("_iterate_all", "headers")

    def __init__(
        self, headers: Sequence[Entry | LazyEntry], iterate_all: Callable[[], Iterator[Entry]] | None = None
    ) -> None:
        self.headers = headers
        """The entries as they are held; those with a ``body`` are complete."""
        self._iterate_all = iterate_all
        """Yields all entries in order, where that is faster than reading them one by one."""

    def __len__(self) -> int:
        return len(self.headers)

    def __iter__(self) -> Iterator[Entry]:
        if self._iterate_all is not None:
            return self._iterate_all()
        return map(load_entry, self.headers)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> LazyEntries: ...
    def __getitem__(self, index: int | slice) -> Entry | LazyEntries:
        if isinstance(index, slice):
            return LazyEntries(self.headers[index])
        return load_entry(self.headers[index])


def load_entries_lazily(headers: Sequence[Entry | LazyEntry]) -> Sequence[Entry]:
    """Return ``headers`` as entries: as a tuple if all of them are complete, else as ``LazyEntries``."""
    complete = tuple([entry for entry in headers if isinstance(entry, Entry)])
    return complete if len(complete) == len(headers) else LazyEntries(headers)


def load_entry(entry: Entry | LazyEntry) -> Entry:
    """Return ``entry`` with its body."""
    return entry if isinstance(entry, Entry) else entry.load()


def get_entry_type(entry: Entry | LazyEntry) -> type[Struct]:
    """Return the type of an entry's body, without reading the body."""
    return type(entry.body) if isinstance(entry, Entry) else entry.body_type


def get_entry_headers(entries: Iterable[Entry]) -> Sequence[Entry | LazyEntry]:
    """Return ``entries`` as they are held, without reading any body."""
    if isinstance(entries, LazyEntries):
        return entries.headers
    return entries if isinstance(entries, Sequence) else list(entries)
