"""Fold all branches of a session into one report: each entry once, after the entries before it."""

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
        """Continue with ``entry``."""

    def start_branch(self) -> None:
        """Continue as a new branch, with an empty report."""


T = TypeVar("T", bound=BranchFold)


def fold_branches(entries: Sequence[Entry], branch_fold: T, leaf: str | None) -> tuple[T, list[T]]:
    """Fold the tree of ``entries``, parents first; return the fold that ends at ``leaf``, and all others."""
    # Folds are copied only where a branch splits; along a chain one fold is moved on, so a long log stays linear.
    behind = Counter(entry.parent for entry in entries)
    behind[leaf] += 2  # keeps the fold at the leaf: later entries continue with copies of it
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
    """Return the state at each of ``places``, ids in the tree ``entries`` (parents first).

    Each entry is folded once, together with others that follow each other without a branch.
    """
    behind = Counter(entry.parent for entry in entries)
    states_by_id = dict[str, ConversationState]()
    rows: dict[str | None, tuple[ConversationState, list[Entry]]] = {}
    for entry in entries:
        before, row = rows.get(entry.parent, (ConversationState(), []))
        if behind[entry.parent] > 1:
            row = []
        else:
            rows.pop(entry.parent, None)
        row.append(entry)
        if entry.id in places or behind[entry.id] > 1:
            before = apply_entries(before, row)
            row = []
        if entry.id in places:
            states_by_id[entry.id] = before
        if behind[entry.id]:
            rows[entry.id] = before, row
    return states_by_id


def find_repeated_entries(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of overflows and compactions that only repeat, on their branch, an entry of another branch.

    Entries after new messages and a request of the branch's own are its own, even if they equal another's.
    """
    seen_keys = set[bytes]()
    repeated_ids = set[str]()
    own = _find_own_entries(entries)
    again = _find_repeats_on_branch(entries)
    for entry in entries:
        if (content_key := _make_repeat_key(entry)) is None:
            continue
        if content_key in seen_keys and entry.id not in own and entry.id not in again:
            repeated_ids.add(entry.id)
        seen_keys.add(content_key)
    return frozenset(repeated_ids)


def _make_repeat_key(entry: Entry) -> bytes | None:
    """Return the content of an overflow or compaction as bytes, equal for equal entries; None for other entries."""
    if isinstance(entry.body, FailureEntry | CompactionEntry):
        return pack_value(entry.body)
    return None


def _find_repeats_on_branch(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of overflows and compactions that equal an earlier entry of their own branch."""
    behind = defaultdict[str | None, list[Entry]](list)
    for entry in entries:
        behind[entry.parent].append(entry)
    ids = {entry.id for entry in entries}
    above = set[bytes]()
    again = set[str]()
    # A depth-first walk with a stack of its own: a long session would exceed Python's recursion limit.
    stack: list[Entry] = []
    for parent, children in behind.items():
        if parent not in ids:
            stack += children
    keys_to_forget: list[tuple[int, bytes]] = []  # (length of the stack at which the branch is done, key)
    while stack:
        while keys_to_forget and len(stack) <= keys_to_forget[-1][0]:
            _, content_key_above = keys_to_forget.pop()
            above.discard(content_key_above)
        entry = stack.pop()
        content_key = _make_repeat_key(entry)
        if content_key in above:
            again.add(entry.id)
        elif content_key is not None:
            above.add(content_key)
            keys_to_forget.append((len(stack), content_key))
        stack += behind.get(entry.id, ())
    return again


def _find_own_entries(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of entries after a new request with new messages since their branch split off."""
    behind = Counter(entry.parent for entry in entries)
    requests = set[EntryBody]()
    said_ids = set[str]()
    own = set[str]()
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
    """Return the ids of overflows by which a provider refused a request, in a tree or on a branch.

    Other overflow entries only adjust a limit: they come from the size of an answer, or repeat another branch.
    """
    by_id = {entry.id: entry for entry in entries}
    repeated_ids = find_repeated_entries(entries)
    refusals = set()
    for entry in entries:
        if entry.id not in repeated_ids and _is_provider_refusal(by_id, entry):
            refusals.add(entry.id)
    return frozenset(refusals)


def _is_provider_refusal(by_id: dict[str, Entry], entry: Entry) -> bool:
    body = entry.body
    if not isinstance(body, FailureEntry) or body.kind != FAILURE_OVERFLOW or body.is_other_branch:
        return False
    # A refusal comes right after its request; after an answer or failure the entry has another source.
    for earlier_entry in _iterate_entries_before(by_id, entry):
        if isinstance(earlier_entry.body, RequestEntry | AnswerEntry | FailureEntry):
            return isinstance(earlier_entry.body, RequestEntry)
    return False


def _iterate_entries_before(by_id: dict[str, Entry], entry: Entry) -> Iterator[Entry]:
    """Yield the entries before ``entry``, the nearest first."""
    while entry.parent is not None and entry.parent in by_id:
        entry = by_id[entry.parent]
        yield entry
