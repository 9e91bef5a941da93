"""Calls and results: each result has its call, each call at most one, and none is passed over where that is fatal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from holdfast.formats.repairing.trees import Tree
from holdfast.formats.repairing.values import What
from holdfast.formats.repairing.work import Work
from holdfast.formats.writing import uuid_of

Answered = dict[str, list[int]]
"""The lines that hold results, by the call."""


def pair_in_tree(tree: Tree) -> None:
    """Take out results without a call and second ones on the same way; where the tool needs it, add missing ones."""
    calls = {call for sketch in tree.work.sketches for call in sketch.calls}
    answered: Answered = defaultdict(list)
    for at, sketch in enumerate(tree.work.sketches):
        if sketch.results:
            _results(tree, at, calls, answered)
    tree.settle()
    if tree.tool.answers:
        _answer(tree, answered)


def _results(tree: Tree, at: int, calls: set[str], answered: Answered) -> None:
    """Judge the results on one line."""
    sketch = tree.work.sketches[at]
    orphans = frozenset(id_ for id_ in sketch.results if id_ not in calls)
    again = frozenset(id_ for id_ in sketch.results if id_ in answered and _is_second(tree, at, id_, answered[id_]))
    for id_ in dict.fromkeys(sketch.results):
        if id_ not in orphans | again:
            answered[id_].append(at)
    if not orphans | again:
        return
    kind, what = _fault(orphans, again)
    if sketch.alone and orphans | again == frozenset(sketch.results):
        tree.work.drop(at, kind, what)
    else:
        tree.work.change(at).without = orphans | again
        tree.work.found(sketch.line, kind, what, "taken out of the line")


def _fault(orphans: Iterable[str], again: Iterable[str]) -> tuple[What, str]:
    alone, second = ", ".join(sorted(orphans)), ", ".join(sorted(again))
    if alone:
        also = f", and there is one for {second} already" if second else ""
        return "orphan", f"a result for {alone}, which nothing in the file called{also}"
    return "duplicate", f"a second result for {second}"


def _is_second(tree: Tree, at: int, id_: str, earlier: list[int]) -> bool:
    """Return whether an earlier result stands on the way from this one up to its call."""
    above = tree.up[at]
    while above >= 0 and id_ not in tree.work.sketches[above].calls:
        if above in earlier and not tree.work.is_gone(above):
            return True
        above = tree.up[above]
    return False


# -- calls that were passed over ---------------------------------------------------------------------------------------


def _answer(tree: Tree, answered: Answered) -> None:
    """Give an error result to every call that has none although the conversation went on behind it."""
    children = _children(tree)
    bears = _bearing(tree)
    for members in _answers(tree):
        calls = [call for at in members for call in tree.work.sketches[at].calls]
        missing = tuple(dict.fromkeys(call for call in calls if call not in answered))
        if missing:
            family = {*members, *(at for call in calls for at in answered.get(call, ()))}
            for at in sorted(family):
                later = [child for child in children[at] if child not in family]
                if any(bears[child] for child in later):
                    _insert(tree, at, missing, later)


def _children(tree: Tree) -> dict[int, list[int]]:
    """Return what hangs on each line that stays."""
    children: dict[int, list[int]] = defaultdict(list)
    for at, sketch in enumerate(tree.work.sketches):
        if sketch.id is not None and not tree.work.is_gone(at):
            children[tree.up[at]].append(at)
    return children


def _bearing(tree: Tree) -> list[bool]:
    """Return for each line whether it, or something behind it, is a message."""
    bears = [sketch.said and not tree.work.is_gone(at) for at, sketch in enumerate(tree.work.sketches)]
    for at in reversed(tree.parents_first):
        above = tree.up[at]
        if above >= 0 and bears[at]:
            bears[above] = True
    return bears


def _answers(tree: Tree) -> Iterator[list[int]]:
    """Yield the answers that call for something, each as its lines."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    calling: dict[tuple[str, str], bool] = {}
    for at, sketch in enumerate(tree.work.sketches):
        if sketch.calls or sketch.answer:
            key = (sketch.chain, sketch.answer or f"line {at}")
            groups[key].append(at)
            calling[key] = calling.get(key, False) or bool(sketch.calls)
    yield from (groups[key] for key, calls in calling.items() if calls)


def _insert(tree: Tree, at: int, missing: tuple[str, ...], later: list[int]) -> None:
    """Put error results for ``missing`` between a line and what comes ``later``."""
    work, sketch = tree.work, tree.work.sketches[at]
    change = work.change(at)
    change.answers, change.named = missing, uuid_of(f"{sketch.id}+{'+'.join(missing)}")
    for child in later:
        work.change(child).put[tree.tool.link] = change.named
    what = f"the call {', '.join(missing)} has no result, and the conversation goes on behind it"
    work.found(sketch.line, "unanswered", what, "an error result was added that says so")


# -- files without links -----------------------------------------------------------------------------------------------


def pair_in_order(work: Work) -> None:
    """Match results to calls by occurrence: one that stands before its call is moved, one without a call goes."""
    waiting: dict[str, list[int]] = defaultdict(list)
    early: dict[str, list[int]] = defaultdict(list)
    known: set[str] = set()
    for at, sketch in enumerate(work.sketches):
        if work.is_gone(at):
            continue
        for call in sketch.calls:
            known.add(call)
            if early[call]:
                _move(work, early[call].pop(0), at)
            else:
                waiting[call].append(at)
        for id_ in sketch.results:
            if waiting[id_]:
                waiting[id_].pop(0)
            else:
                early[id_].append(at)
    for id_, places in early.items():
        for at in places:
            if id_ in known:
                work.drop(at, "duplicate", f"a second result for {id_}")
            else:
                work.drop(at, "orphan", f"a result for {id_}, which nothing in the file called")


def _move(work: Work, at: int, call: int) -> None:
    sketch, owner = work.sketches[at], work.sketches[call]
    work.change(at).behind = call
    work.found(sketch.line, "order", f"a result that stands before its call on line {owner.line:,}", "moved behind it")
