"""Reports over all branches of a session: fold each entry once, and tell new entries from copies on a fork."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    """A report that grows by the entries of one branch."""

    def add_entry(self, entry: Entry) -> None:
        """Add ``entry`` to the report."""

    def start_branch(self) -> None:
        """Empty the report but keep the conversation so far: the next entries are those of a new branch."""


T = TypeVar("T", bound=BranchFold)


def fold_branches(entries: Sequence[Entry], branch_fold: T, leaf: str | None) -> tuple[T, list[T]]:
    """Fold the tree ``entries`` (parents first), starting from ``branch_fold``.

    A new fold begins wherever the tree splits, so there is one for each part of a branch without a split. Returns the
    fold that ends at ``leaf``, and all others. Each entry is in the report of exactly one of them.
    """
    # A fold is copied only where the tree splits. Where an entry has a single child, the fold of the entry becomes that
    # of the child, so a long log takes linear time.
    child_counts = _count_children(entries)
    # Entries after the leaf must be added to copies of the fold that ends there. Two more children make it a split.
    child_counts[leaf] += 2
    folds_by_last_id: dict[str | None, T] = {None: branch_fold}
    for entry in entries:
        fold = folds_by_last_id.get(entry.parent, branch_fold)
        if child_counts[entry.parent] > 1:
            fold = copy(fold)
            fold.start_branch()
        else:
            folds_by_last_id.pop(entry.parent, None)
        fold.add_entry(entry)
        folds_by_last_id[entry.id] = fold
    leaf_fold = folds_by_last_id.pop(leaf, branch_fold)
    other_folds = [fold for fold in folds_by_last_id.values() if fold is not leaf_fold]
    return leaf_fold, other_folds


def build_states_at_entries(entries: Sequence[Entry], entry_ids: Collection[str]) -> dict[str, ConversationState]:
    """Return the state after each entry of ``entry_ids``, by its id; ``entries`` is the tree, parents first.

    Each entry is folded only once. Entries are collected until a state is asked for or the tree splits, and are then
    folded together, which is faster than one by one.
    """
    child_counts = _count_children(entries)
    states_by_id = dict[str, ConversationState]()
    # By entry id: the newest state that was folded on its branch, and the entries since then.
    unfinished: dict[str | None, tuple[ConversationState, list[Entry]]] = {}
    for entry in entries:
        state, pending = unfinished.get(entry.parent, (ConversationState(), []))
        if child_counts[entry.parent] > 1:
            # The state at a split has no pending entries. Each child collects its own.
            pending = []
        else:
            unfinished.pop(entry.parent, None)
        pending.append(entry)
        if entry.id in entry_ids or child_counts[entry.id] > 1:
            state = apply_entries(state, pending)
            pending = []
        if entry.id in entry_ids:
            states_by_id[entry.id] = state
        if child_counts[entry.id]:
            unfinished[entry.id] = state, pending
    return states_by_id


def find_repeated_entries(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of failures and compactions that are copies of an entry on another branch.

    A fork copies the compactions that its messages need from the branch that it leaves, and a report over all branches
    must count them once. Failures are compared in the same way, so that a copied refusal does not count twice either.
    An entry is no copy if it equals an earlier entry on its own path (the same thing happened twice), or if its branch
    sent a new request before it (see ``_find_entries_after_new_request``).
    """
    content_keys = set[bytes]()
    repeated_ids = set[str]()
    ids_after_new_request = _find_entries_after_new_request(entries)
    ids_repeating_own_path = _find_entries_repeating_own_path(entries)
    for entry in entries:
        content_key = _make_content_key(entry)
        if content_key is None:
            continue
        is_new = entry.id in ids_after_new_request or entry.id in ids_repeating_own_path
        if content_key in content_keys and not is_new:
            repeated_ids.add(entry.id)
        content_keys.add(content_key)
    return frozenset(repeated_ids)


def _count_children(entries: Iterable[Entry]) -> Counter[str | None]:
    """Return how many entries have each entry id as their parent; None is the parent of the first entry."""
    return Counter(entry.parent for entry in entries)


def _make_content_key(entry: Entry) -> bytes | None:
    """Return the content of a failure or compaction as bytes, equal for equal content; None for other entries."""
    if isinstance(entry.body, FailureEntry | CompactionEntry):
        return pack_value(entry.body)
    return None


def _find_entries_repeating_own_path(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of failures and compactions with the same content as an entry before them on their own path."""
    children = defaultdict[str | None, list[Entry]](list)
    for entry in entries:
        children[entry.parent].append(entry)
    ids = {entry.id for entry in entries}
    repeating_ids = set[str]()
    # A depth-first walk with a stack of its own: a long session would exceed Python's recursion limit.
    stack: list[Entry] = []
    for parent, siblings in children.items():
        if parent not in ids:
            stack += siblings
    keys_on_path = set[bytes]()
    # Each key on the path with the length of the stack below its entry. Once the stack is that short again, everything
    # after the entry was visited, and the walk leaves its path.
    keys_to_remove: list[tuple[int, bytes]] = []
    while stack:
        while keys_to_remove and len(stack) <= keys_to_remove[-1][0]:
            _, finished_key = keys_to_remove.pop()
            keys_on_path.discard(finished_key)
        entry = stack.pop()
        content_key = _make_content_key(entry)
        if content_key in keys_on_path:
            repeating_ids.add(entry.id)
        elif content_key is not None:
            keys_on_path.add(content_key)
            keys_to_remove.append((len(stack), content_key))
        stack += children.get(entry.id, ())
    return repeating_ids


def _find_entries_after_new_request(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of entries that come after a new request of their branch, and of these requests.

    A branch begins at the first entry after a split of the tree. Its request is new if the branch added a message
    before it, and if no earlier entry of the tree records the same request. What follows such a request happened on
    this branch and cannot be a copy.
    """
    child_counts = _count_children(entries)
    earlier_requests = set[EntryBody]()
    ids_after_new_message = set[str]()
    ids_after_new_request = set[str]()
    for entry in entries:
        is_branch_start = child_counts[entry.parent] > 1
        if isinstance(entry.body, MessageEntry) or (entry.parent in ids_after_new_message and not is_branch_start):
            ids_after_new_message.add(entry.id)
        is_new_request = (
            isinstance(entry.body, RequestEntry)
            and entry.body not in earlier_requests
            and entry.id in ids_after_new_message
        )
        if is_new_request or (entry.parent in ids_after_new_request and not is_branch_start):
            ids_after_new_request.add(entry.id)
        if isinstance(entry.body, RequestEntry):
            earlier_requests.add(entry.body)
    return ids_after_new_request


def find_overflow_refusals(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the ids of overflow entries that record a provider's refusal; ``entries`` is a tree or one branch.

    Other overflow entries record no refusal and only adjust a limit: they were derived from the size of an answer, or
    are copies of an entry on another branch.
    """
    entries_by_id = {entry.id: entry for entry in entries}
    repeated_ids = find_repeated_entries(entries)
    refusal_ids = set[str]()
    for entry in entries:
        if entry.id not in repeated_ids and _is_provider_refusal(entries_by_id, entry):
            refusal_ids.add(entry.id)
    return frozenset(refusal_ids)


def _is_provider_refusal(entries_by_id: dict[str, Entry], entry: Entry) -> bool:
    """Return whether ``entry`` is an overflow that directly answers a request of its own branch."""
    body = entry.body
    if not isinstance(body, FailureEntry) or body.kind != FAILURE_OVERFLOW or body.is_other_branch:
        return False
    # A refusal comes right after its request; after an answer or failure the entry has another source.
    for earlier_entry in _iterate_ancestors(entries_by_id, entry):
        if isinstance(earlier_entry.body, RequestEntry | AnswerEntry | FailureEntry):
            return isinstance(earlier_entry.body, RequestEntry)
    return False


def _iterate_ancestors(entries_by_id: dict[str, Entry], entry: Entry) -> Iterator[Entry]:
    """Yield the entries before ``entry`` on its path, the nearest first."""
    while entry.parent is not None and entry.parent in entries_by_id:
        entry = entries_by_id[entry.parent]
        yield entry
