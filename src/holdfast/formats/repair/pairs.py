"""Calls and results: each result has its call, each call at most one, and none is passed over where that is fatal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from holdfast.formats.common.writing import make_stable_uuid
from holdfast.formats.repair.findings import DamageKind
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.trees import RepairTree

ResultLines = dict[str, list[int]]
"""The lines that hold results, by the call."""


def pair_results_in_tree(tree: RepairTree) -> None:
    """Take out results without a call and second ones on the same way; where the tool needs it, add missing ones."""
    calls = {call for sketch in tree.work.summaries for call in sketch.calls}
    result_lines: ResultLines = defaultdict(list)
    for at, sketch in enumerate(tree.work.summaries):
        if sketch.results:
            _check_line_results(tree, at, calls, result_lines)
    tree.relink_dropped()
    if tree.tool.needs_results:
        _add_missing_results(tree, result_lines)


def _check_line_results(tree: RepairTree, at: int, calls: set[str], result_lines: ResultLines) -> None:
    """Judge the results on one line."""
    sketch = tree.work.summaries[at]
    orphans = frozenset(id_ for id_ in sketch.results if id_ not in calls)
    again = frozenset(
        id_ for id_ in sketch.results if id_ in result_lines and _is_duplicate_result(tree, at, id_, result_lines[id_])
    )
    for id_ in dict.fromkeys(sketch.results):
        if id_ not in orphans | again:
            result_lines[id_].append(at)
    if not orphans | again:
        return
    kind, message = _describe_result_fault(orphans, again)
    if sketch.is_only_results and orphans | again == frozenset(sketch.results):
        tree.work.drop_line(at, kind, message)
    else:
        tree.work.get_change(at).removed_results = orphans | again
        tree.work.add_finding(sketch.line, kind, message, "taken out of the line")


def _describe_result_fault(orphans: Iterable[str], duplicates: Iterable[str]) -> tuple[DamageKind, str]:
    alone, second = ", ".join(sorted(orphans)), ", ".join(sorted(duplicates))
    if alone:
        also = f", and there is one for {second} already" if second else ""
        return "orphan", f"a result for {alone}, which nothing in the file called{also}"
    return "duplicate", f"a second result for {second}"


def _is_duplicate_result(tree: RepairTree, at: int, id_: str, earlier: list[int]) -> bool:
    """Return whether an earlier result stands on the way from this one up to its call."""
    above = tree.parents[at]
    while above >= 0 and id_ not in tree.work.summaries[above].calls:
        if above in earlier and not tree.work.is_dropped(above):
            return True
        above = tree.parents[above]
    return False


# -- calls that were passed over ---------------------------------------------------------------------------------------


def _add_missing_results(tree: RepairTree, result_lines: ResultLines) -> None:
    """Give an error result to every call that has none although something was said behind it."""
    sketches, following = tree.work.summaries, _find_next_messages(tree)
    for members in _group_answer_lines(tree):
        calls = [call for at in members for call in sketches[at].calls]
        missing = tuple(dict.fromkeys(call for call in calls if call not in result_lines))
        if missing:
            family = {*members, *(at for call in calls for at in result_lines.get(call, ()))}
            later: dict[int, list[int]] = defaultdict(list)
            for child in sorted(child for at in family for child in following[at]):
                if child not in family:
                    later[tree.parents[child]].append(child)
            for above, children in later.items():
                due = _find_missing_calls(tree, missing, members, above, children)
                if due:
                    _insert_error_results(tree, above, due, children, sketches[members[0]].line)


def _find_missing_calls(
    tree: RepairTree, missing: tuple[str, ...], members: list[int], above: int, children: list[int]
) -> tuple[str, ...]:
    """Return the calls of an answer to be answered before ``children``: not made behind them, not answered above."""
    work, top = tree.work, members[0]
    settled_calls = {
        call for at in members if set(_walk_up(tree, at, top)) & {*children} for call in work.summaries[at].calls
    }
    for below, at in pairwise([children[0], *_walk_up(tree, above, top)]):
        change = work.changes.get(at)
        if (
            change is not None
            and change.added_results
            and work.get_change(below).set_fields.get(tree.tool.parent_field) == change.added_id
        ):
            settled_calls |= {*change.added_results}
    return tuple(call for call in missing if call not in settled_calls)


def _walk_up(tree: RepairTree, at: int, top: int) -> Iterator[int]:
    """Yield the lines from ``at`` up to ``top``, or to the root."""
    while at >= 0:
        yield at
        at = tree.parents[at] if at != top else -1


def _find_next_messages(tree: RepairTree) -> dict[int, list[int]]:
    """Return the messages that come next behind each message, whatever else lies between."""
    sketches, work = tree.work.summaries, tree.work
    near = [-1] * len(sketches)
    next_messages: dict[int, list[int]] = defaultdict(list)
    for at in tree.parents_first:
        above = tree.parents[at]
        if above >= 0:
            near[at] = above if sketches[above].is_message else near[above]
        if sketches[at].is_message and not work.is_dropped(at):
            next_messages[near[at]].append(at)
    return next_messages


def _group_answer_lines(tree: RepairTree) -> Iterator[list[int]]:
    """Yield the answers that call for something, each as its lines."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    calling: dict[tuple[str, str], bool] = {}
    for at, sketch in enumerate(tree.work.summaries):
        if sketch.calls or sketch.answer_key:
            key = (sketch.conversation, sketch.answer_key or f"line {at}")
            groups[key].append(at)
            calling[key] = calling.get(key, False) or bool(sketch.calls)
    yield from (groups[key] for key, calls in calling.items() if calls)


def _insert_error_results(tree: RepairTree, at: int, missing: tuple[str, ...], later: list[int], line: int) -> None:
    """Put error results for ``missing``, called on ``line``, between line ``at`` and what was said next."""
    change = tree.work.get_change(at)
    change.added_results += missing
    change.added_id = make_stable_uuid(f"{tree.work.summaries[at].id}+{'+'.join(change.added_results)}")
    for child in later:
        tree.work.get_change(child).set_fields[tree.tool.parent_field] = change.added_id
    message = f"the call {', '.join(missing)} has no result, and the conversation goes on behind it"
    tree.work.add_finding(line, "unanswered", message, "an error result was added that says so")


# -- files without links -----------------------------------------------------------------------------------------------


def pair_results_in_order(work: RepairWork) -> None:
    """Match results to calls by occurrence: one that stands before its call is moved, one without a call goes."""
    waiting: dict[str, list[int]] = defaultdict(list)
    early: dict[str, list[int]] = defaultdict(list)
    call_ids: set[str] = set()
    for at, sketch in enumerate(work.summaries):
        if work.is_dropped(at):
            continue
        for call in sketch.calls:
            call_ids.add(call)
            if early[call]:
                _move_behind_call(work, early[call].pop(0), at)
            else:
                waiting[call].append(at)
        for id_ in sketch.results:
            if waiting[id_]:
                waiting[id_].pop(0)
            else:
                early[id_].append(at)
    for id_, places in early.items():
        for at in places:
            if id_ in call_ids:
                work.drop_line(at, "duplicate", f"a second result for {id_}")
            else:
                work.drop_line(at, "orphan", f"a result for {id_}, which nothing in the file called")


def _move_behind_call(work: RepairWork, at: int, call: int) -> None:
    sketch, owner = work.summaries[at], work.summaries[call]
    work.get_change(at).move_behind = call
    work.add_finding(
        sketch.line, "order", f"a result that stands before its call on line {owner.line:,}", "moved behind it"
    )
