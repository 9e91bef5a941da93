"""Find results, on other branches of a session, of tool calls that are still open on this one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.state.entries import Entry, MessageEntry
from holdfast.store.base import SessionStore


def find_results_on_other_branches(
    store: SessionStore,
    key: str,
    leaf: str,
    calls: Sequence[ToolCall],
) -> list[tuple[ToolCall, ToolResult]]:
    """Return those of ``calls``, open at ``leaf``, that have a result on another branch, each with that result.

    A fork begins before the results, but the work was done: doing it again could do harm. The cost is proportional to
    the entries since the answer that made the calls.
    """
    leaf_entry = store.get_entry(key, leaf)
    answer = _find_newest_answer(store, key, leaf_entry)
    own_results = _collect_results_by_call(_list_entries_since(store, key, answer, leaf_entry))
    # Ids repeat within an answer. The open call is the one after as many as have results here, and its result on
    # another branch is at the same place among those of its id.
    next_occurrences: Counter[str] = Counter()
    occurrences: list[int] = []
    for call in calls:
        occurrences.append(len(own_results[call.id]) + next_occurrences[call.id])
        next_occurrences[call.id] += 1
    results_by_number: dict[int, ToolResult] = {}
    for tip in store.read_tips(key):
        tip_results = _collect_results_by_call(_list_entries_since(store, key, answer, tip))
        for number, call in enumerate(calls):
            results = tip_results[call.id]
            if number not in results_by_number and len(results) > occurrences[number]:
                results_by_number[number] = results[occurrences[number]]
    return [(calls[number], results_by_number[number]) for number in sorted(results_by_number)]


def _find_newest_answer(store: SessionStore, key: str, leaf_entry: Entry) -> Entry:
    """Return the newest answer up to ``leaf_entry``, or ``leaf_entry`` itself if there is no answer."""
    for entry in _iter_ancestors(store, key, leaf_entry):
        if _is_answer_entry(entry):
            return entry
    return leaf_entry


def _iter_ancestors(store: SessionStore, key: str, entry: Entry) -> Iterator[Entry]:
    yield entry
    while entry.parent is not None:
        entry = store.get_entry(key, entry.parent)
        yield entry


def _list_entries_since(store: SessionStore, key: str, answer: Entry, tip: Entry) -> list[Entry]:
    """Return the entries after ``answer`` up to ``tip``, or an empty list if ``tip`` does not descend from it."""
    path: list[Entry] = []
    # An entry has a higher number than its parent, so there is no need to walk beyond the answer.
    for entry in _iter_ancestors(store, key, tip):
        if entry.seq <= answer.seq:
            break
        path.append(entry)
    is_descendant = bool(path) and path[-1].parent == answer.id
    if not is_descendant:
        return []
    path.reverse()
    return path


def _collect_results_by_call(path: Iterable[Entry]) -> defaultdict[str, list[ToolResult]]:
    """Return the results before the next answer by the ids of their calls, in order."""
    results_by_id = defaultdict[str, list[ToolResult]](list)
    for entry in path:
        # Results after the next answer belong to the calls of that answer.
        if _is_answer_entry(entry):
            break
        if isinstance(entry.body, MessageEntry):
            for result in entry.body.sized_message.message.results:
                results_by_id[result.call_id].append(result)
    return results_by_id


def _is_answer_entry(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "assistant"
