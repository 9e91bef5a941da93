"""Calls and results: each result has its call, each call at most one, and none is passed over where that is fatal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from holdfast.formats.common.writing import uuid_of
from holdfast.formats.repair.trees import Tree
from holdfast.formats.repair.values import What
from holdfast.formats.repair.work import Work

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
    """Give an error result to every call that has none although something was said behind it."""
    sketches, next_ = tree.work.sketches, _said_next(tree)
    for members in _answers(tree):
        calls = [call for at in members for call in sketches[at].calls]
        missing = tuple(dict.fromkeys(call for call in calls if call not in answered))
        if missing:
            family = {*members, *(at for call in calls for at in answered.get(call, ()))}
            later: dict[int, list[int]] = defaultdict(list)
            for child in sorted(child for at in family for child in next_[at]):
                if child not in family:
                    later[tree.up[child]].append(child)
            for above, children in later.items():
                due = _due(tree, missing, members, above, children)
                if due:
                    _insert(tree, above, due, children, sketches[members[0]].line)


def _due(tree: Tree, missing: tuple[str, ...], members: list[int], above: int, children: list[int]) -> tuple[str, ...]:
    """Return the calls of an answer to be answered before ``children``: not made behind them, not answered above."""
    work, top = tree.work, members[0]
    gone = {call for at in members if set(_way(tree, at, top)) & {*children} for call in work.sketches[at].calls}
    for below, at in pairwise([children[0], *_way(tree, above, top)]):
        change = work.changes.get(at)
        if change is not None and change.answers and work.change(below).put.get(tree.tool.link) == change.named:
            gone |= {*change.answers}
    return tuple(call for call in missing if call not in gone)


def _way(tree: Tree, at: int, top: int) -> Iterator[int]:
    """Yield the lines from ``at`` up to ``top``, or to the root."""
    while at >= 0:
        yield at
        at = tree.up[at] if at != top else -1


def _said_next(tree: Tree) -> dict[int, list[int]]:
    """Return the messages that come next behind each message, whatever else lies between."""
    sketches, work = tree.work.sketches, tree.work
    near = [-1] * len(sketches)
    found: dict[int, list[int]] = defaultdict(list)
    for at in tree.parents_first:
        above = tree.up[at]
        if above >= 0:
            near[at] = above if sketches[above].said else near[above]
        if sketches[at].said and not work.is_gone(at):
            found[near[at]].append(at)
    return found


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


def _insert(tree: Tree, at: int, missing: tuple[str, ...], later: list[int], line: int) -> None:
    """Put error results for ``missing``, called on ``line``, between line ``at`` and what was said next."""
    change = tree.work.change(at)
    change.answers += missing
    change.named = uuid_of(f"{tree.work.sketches[at].id}+{'+'.join(change.answers)}")
    for child in later:
        tree.work.change(child).put[tree.tool.link] = change.named
    what = f"the call {', '.join(missing)} has no result, and the conversation goes on behind it"
    tree.work.found(line, "unanswered", what, "an error result was added that says so")


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
