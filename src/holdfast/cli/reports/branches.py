"""All branches of a session told as one: each entry once, behind what stands before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import Protocol, TypeVar

from holdfast.state.codec.packing import pack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    AnswerEntry,
    CompactionEntry,
    Entry,
    EntryBody,
    FailureEntry,
    MessageEntry,
    RequestEntry,
)
from holdfast.state.fold.fold_entries import apply_entries


class BranchFold(Protocol):
    """A fold over the entries of a branch."""

    def add_entry(self, entry: Entry) -> None:
        """Go on with ``entry``."""

    def start_branch(self) -> None:
        """Go on from here, with nothing told yet."""


T = TypeVar("T", bound=BranchFold)


def fold_branches(entries: Sequence[Entry], branch_fold: T, leaf: str | None) -> tuple[T, list[T]]:
    """Return the telling that ends at ``leaf``, and all others; ``entries`` are the tree, parents first."""
    behind = Counter(entry.parent for entry in entries)
    behind[leaf] += 2  # nothing goes on with that one itself
    there: dict[str | None, T] = {None: branch_fold}
    for entry in entries:
        before = there.get(entry.parent, branch_fold)
        if behind[entry.parent] > 1:
            before = copy(before)
            before.start_branch()
        else:
            there.pop(entry.parent, None)
        before.add_entry(entry)
        there[entry.id] = before
    last = there.pop(leaf, branch_fold)
    return last, [branch_fold for branch_fold in there.values() if branch_fold is not last]


def build_states_at_entries(entries: Sequence[Entry], places: Collection[str]) -> dict[str, ConversationState]:
    """Return the branch at each of ``places``, which are ids of ``entries``, the tree, parents first.

    Each entry is folded once, with those that stand in a row.
    """
    behind, states_by_id = Counter(entry.parent for entry in entries), dict[str, ConversationState]()
    rows: dict[str | None, tuple[ConversationState, list[Entry]]] = {}
    for entry in entries:
        before, row = rows.get(entry.parent, (ConversationState(), []))
        if behind[entry.parent] > 1:
            row = []
        else:
            rows.pop(entry.parent, None)
        row.append(entry)
        if entry.id in places or behind[entry.id] > 1:
            before, row = apply_entries(before, row), []
        if entry.id in places:
            states_by_id[entry.id] = before
        if behind[entry.id]:
            rows[entry.id] = before, row
    return states_by_id


def find_repeated_entries(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of the overflows and compactions that only repeat, on a branch, what another one had told.

    What comes behind words and a request of the branch's own is its own too, however alike another one is.
    """
    seen_keys, repeated_ids = set[bytes](), set[str]()
    own, again = _find_own_entries(entries), _find_repeats_on_branch(entries)
    for entry in entries:
        if (content_key := _make_repeat_key(entry)) is None:
            continue
        if content_key in seen_keys and entry.id not in own and entry.id not in again:
            repeated_ids.add(entry.id)
        seen_keys.add(content_key)
    return frozenset(repeated_ids)


def _make_repeat_key(entry: Entry) -> bytes | None:
    """Return what an overflow or compaction told, as bytes that are the same where it is."""
    return pack_value(entry.body) if isinstance(entry.body, FailureEntry | CompactionEntry) else None


def _find_repeats_on_branch(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the overflows and compactions that say what one before them on their branch says."""
    behind = defaultdict[str | None, list[Entry]](list)
    for entry in entries:
        behind[entry.parent].append(entry)
    ids, above, again = {entry.id for entry in entries}, set[bytes](), set[str]()
    way = [child for parent, children in behind.items() if parent not in ids for child in children]
    leave: list[tuple[int, bytes]] = []  # what was told on the way, until no more than so many wait
    while way:
        while leave and len(way) <= leave[-1][0]:
            above.discard(leave.pop()[1])
        entry = way.pop()
        content_key = _make_repeat_key(entry)
        if content_key in above:
            again.add(entry.id)
        elif content_key is not None:
            above.add(content_key)
            leave.append((len(way), content_key))
        way += behind.get(entry.id, ())
    return again


def _find_own_entries(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the entries behind a request that was made, of words said, since their branch parted."""
    behind, requests = Counter(entry.parent for entry in entries), set[EntryBody]()
    said_ids, own = set[str](), set[str]()
    for entry in entries:
        is_branching = behind[entry.parent] > 1
        if isinstance(entry.body, MessageEntry) or (entry.parent in said_ids and not is_branching):
            said_ids.add(entry.id)
        is_made = isinstance(entry.body, RequestEntry) and entry.body not in requests and entry.id in said_ids
        if is_made or (entry.parent in own and not is_branching):
            own.add(entry.id)
        if isinstance(entry.body, RequestEntry):
            requests.add(entry.body)
    return own


def find_overflow_refusals(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of the overflows by which a provider refused a request, in a tree or on a branch.

    The others teach only: what an answer showed by its size, and what was told on another branch.
    """
    by_id, copies = {entry.id: entry for entry in entries}, find_repeated_entries(entries)
    return frozenset(entry.id for entry in entries if entry.id not in copies and _is_provider_refusal(by_id, entry))


def _is_provider_refusal(by_id: dict[str, Entry], entry: Entry) -> bool:
    body = entry.body
    if not isinstance(body, FailureEntry) or body.kind != FAILURE_OVERFLOW or body.is_other_branch:
        return False
    earlier_bodies = (
        earlier_entry.body
        for earlier_entry in _iterate_entries_before(by_id, entry)
        if isinstance(earlier_entry.body, RequestEntry | AnswerEntry | FailureEntry)
    )
    return isinstance(next(earlier_bodies, None), RequestEntry)


def _iterate_entries_before(by_id: dict[str, Entry], entry: Entry) -> Iterator[Entry]:
    """Yield the entries before ``entry``, the nearest first."""
    while entry.parent is not None and entry.parent in by_id:
        entry = by_id[entry.parent]
        yield entry
