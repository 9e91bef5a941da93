"""All branches of a session told as one: each entry once, behind what stands before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import Protocol, TypeVar

from holdfast.state.branch.branch import Branch, extended
from holdfast.state.codec.packing import pack
from holdfast.state.entries import OVERFLOW, Answer, Body, Compaction, Entry, Failure, Request, Said


class Telling(Protocol):
    """A fold over the entries of a branch."""

    def take(self, entry: Entry) -> None:
        """Go on with ``entry``."""

    def forget(self) -> None:
        """Go on from here, with nothing told yet."""


T = TypeVar("T", bound=Telling)


def over(entries: Sequence[Entry], telling: T, leaf: str | None) -> tuple[T, list[T]]:
    """Return the telling that ends at ``leaf``, and all others; ``entries`` are the tree, parents first."""
    behind = Counter(entry.parent for entry in entries)
    behind[leaf] += 2  # nothing goes on with that one itself
    there: dict[str | None, T] = {None: telling}
    for entry in entries:
        before = there.get(entry.parent, telling)
        if behind[entry.parent] > 1:
            before = copy(before)
            before.forget()
        else:
            there.pop(entry.parent, None)
        before.take(entry)
        there[entry.id] = before
    last = there.pop(leaf, telling)
    return last, [one for one in there.values() if one is not last]


def branches_at(entries: Sequence[Entry], places: Collection[str]) -> dict[str, Branch]:
    """Return the branch at each of ``places``, which are ids of ``entries``, the tree, parents first.

    Each entry is folded once, with those that stand in a row.
    """
    behind, found = Counter(entry.parent for entry in entries), dict[str, Branch]()
    rows: dict[str | None, tuple[Branch, list[Entry]]] = {}
    for entry in entries:
        before, row = rows.get(entry.parent, (Branch(), []))
        if behind[entry.parent] > 1:
            row = []
        else:
            rows.pop(entry.parent, None)
        row.append(entry)
        if entry.id in places or behind[entry.id] > 1:
            before, row = extended(before, row), []
        if entry.id in places:
            found[entry.id] = before
        if behind[entry.id]:
            rows[entry.id] = before, row
    return found


def repeated(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of the overflows and compactions that only repeat, on a branch, what another one had told.

    What comes behind words and a request of the branch's own is its own too, however alike another one is.
    """
    known, found = set[bytes](), set[str]()
    own, again = _own(entries), _told_above(entries)
    for entry in entries:
        if (told := _told(entry)) is None:
            continue
        if told in known and entry.id not in own and entry.id not in again:
            found.add(entry.id)
        known.add(told)
    return frozenset(found)


def _told(entry: Entry) -> bytes | None:
    """Return what an overflow or compaction told, as bytes that are the same where it is."""
    return pack(entry.body) if isinstance(entry.body, Failure | Compaction) else None


def _told_above(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the overflows and compactions that say what one before them on their branch says."""
    behind = defaultdict[str | None, list[Entry]](list)
    for entry in entries:
        behind[entry.parent].append(entry)
    ids, above, again = {entry.id for entry in entries}, set[bytes](), set[str]()
    way = [one for parent, some in behind.items() if parent not in ids for one in some]
    leave: list[tuple[int, bytes]] = []  # what was told on the way, until no more than so many wait
    while way:
        while leave and len(way) <= leave[-1][0]:
            above.discard(leave.pop()[1])
        entry = way.pop()
        told = _told(entry)
        if told in above:
            again.add(entry.id)
        elif told is not None:
            above.add(told)
            leave.append((len(way), told))
        way += behind.get(entry.id, ())
    return again


def _own(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the entries behind a request that was made, of words said, since their branch parted."""
    behind, made = Counter(entry.parent for entry in entries), set[Body]()
    said, own = set[str](), set[str]()
    for entry in entries:
        parted = behind[entry.parent] > 1
        if isinstance(entry.body, Said) or (entry.parent in said and not parted):
            said.add(entry.id)
        is_made = isinstance(entry.body, Request) and entry.body not in made and entry.id in said
        if is_made or (entry.parent in own and not parted):
            own.add(entry.id)
        if isinstance(entry.body, Request):
            made.add(entry.body)
    return own


def refusals(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of the overflows by which a provider refused a request, in a tree or on a branch.

    The others teach only: what an answer showed by its size, and what was told on another branch.
    """
    by_id, copies = {entry.id: entry for entry in entries}, repeated(entries)
    return frozenset(entry.id for entry in entries if entry.id not in copies and _is_refusal(by_id, entry))


def _is_refusal(by_id: dict[str, Entry], entry: Entry) -> bool:
    body = entry.body
    if not isinstance(body, Failure) or body.kind != OVERFLOW or body.elsewhere:
        return False
    told = (one.body for one in _before(by_id, entry) if isinstance(one.body, Request | Answer | Failure))
    return isinstance(next(told, None), Request)


def _before(by_id: dict[str, Entry], entry: Entry) -> Iterator[Entry]:
    """Yield the entries before ``entry``, the nearest first."""
    while entry.parent is not None and entry.parent in by_id:
        entry = by_id[entry.parent]
        yield entry
