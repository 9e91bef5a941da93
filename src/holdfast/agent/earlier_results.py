"""Results of calls that are open on one branch of a session, and were done on another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.state.entries import Entry, Said
from holdfast.store.base import SessionStore


def results_elsewhere(
    store: SessionStore, key: str, leaf: str, calls: Sequence[ToolCall]
) -> list[tuple[ToolCall, ToolResult]]:
    """Return those of ``calls``, open at ``leaf``, that have a result on another branch, each with that result.

    It costs what was said since the answer that made the calls.
    """
    here = store.entry(key, leaf)
    answer = next(filter(_is_answer, _upwards(store, key, here)), here)
    mine = _results(_since(store, key, answer, here))
    ids = [call.id for call in calls]
    places = [len(mine[id_]) + ids[:number].count(id_) for number, id_ in enumerate(ids)]
    found: dict[int, ToolResult] = {}
    for tip in store.leaves(key):
        theirs = _results(_since(store, key, answer, tip))
        for number, (id_, place) in enumerate(zip(ids, places, strict=True)):
            for result in theirs[id_][place : place + 1]:
                found.setdefault(number, result)
    return [(calls[number], found[number]) for number in sorted(found)]


def _upwards(store: SessionStore, key: str, entry: Entry) -> Iterator[Entry]:
    yield entry
    while entry.parent is not None:
        entry = store.entry(key, entry.parent)
        yield entry


def _since(store: SessionStore, key: str, answer: Entry, tip: Entry) -> list[Entry]:
    """Return what follows ``answer`` up to ``tip``; nothing where that lies on a branch without it."""
    path = list(takewhile(lambda one: one.seq > answer.seq, _upwards(store, key, tip)))
    return path[::-1] if path and path[-1].parent == answer.id else []


def _results(path: Iterable[Entry]) -> defaultdict[str, list[ToolResult]]:
    """Return the results up to the next answer, by the ids of their calls."""
    found = defaultdict[str, list[ToolResult]](list)
    for entry in takewhile(lambda one: not _is_answer(one), path):
        for result in entry.body.slot.message.results if isinstance(entry.body, Said) else ():
            found[result.call_id].append(result)
    return found


def _is_answer(entry: Entry) -> bool:
    return isinstance(entry.body, Said) and entry.body.slot.message.role == "assistant"
