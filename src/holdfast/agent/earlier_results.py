"""Results of calls that are open on one branch of a session, and were done on another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.state.entries import Entry, MessageEntry
from holdfast.store.base import SessionStore


def find_results_on_other_branches(
    store: SessionStore, key: str, leaf: str, calls: Sequence[ToolCall]
) -> list[tuple[ToolCall, ToolResult]]:
    """Return those of ``calls``, open at ``leaf``, that have a result on another branch, each with that result.

    It costs what was said since the answer that made the calls.
    """
    here = store.get_entry(key, leaf)
    answer = next(filter(_is_answer_entry, _iter_ancestors(store, key, here)), here)
    own_results = _collect_results_by_call(_list_entries_since(store, key, answer, here))
    ids = [call.id for call in calls]
    places = [len(own_results[id_]) + ids[:number].count(id_) for number, id_ in enumerate(ids)]
    results_by_number: dict[int, ToolResult] = {}
    for tip in store.read_tips(key):
        tip_results = _collect_results_by_call(_list_entries_since(store, key, answer, tip))
        for number, (id_, place) in enumerate(zip(ids, places, strict=True)):
            for result in tip_results[id_][place : place + 1]:
                results_by_number.setdefault(number, result)
    return [(calls[number], results_by_number[number]) for number in sorted(results_by_number)]


def _iter_ancestors(store: SessionStore, key: str, entry: Entry) -> Iterator[Entry]:
    yield entry
    while entry.parent is not None:
        entry = store.get_entry(key, entry.parent)
        yield entry


def _list_entries_since(store: SessionStore, key: str, answer: Entry, tip: Entry) -> list[Entry]:
    """Return what follows ``answer`` up to ``tip``; nothing where that lies on a branch without it."""
    path = list(takewhile(lambda entry: entry.seq > answer.seq, _iter_ancestors(store, key, tip)))
    return path[::-1] if path and path[-1].parent == answer.id else []


def _collect_results_by_call(path: Iterable[Entry]) -> defaultdict[str, list[ToolResult]]:
    """Return the results up to the next answer, by the ids of their calls."""
    results_by_id = defaultdict[str, list[ToolResult]](list)
    for entry in takewhile(lambda path_entry: not _is_answer_entry(path_entry), path):
        for result in entry.body.sized_message.message.results if isinstance(entry.body, MessageEntry) else ():
            results_by_id[result.call_id].append(result)
    return results_by_id


def _is_answer_entry(entry: Entry) -> bool:
    return isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "assistant"
