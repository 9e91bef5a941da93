"""Pairing of calls and results: each result has its call, each call at most one result, and missing ones are added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from holdfast.formats.common.writing import make_stable_uuid
from holdfast.formats.repair.findings import DamageKind
from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.trees import RepairTree

ResultLines = dict[str, list[int]]
"""Positions of the lines that hold a result of a call, by call id."""


def pair_results_in_tree(tree: RepairTree) -> None:
    """Remove results without a call and second results on one branch; add missing ones if the tool needs them."""
    calls: set[str] = set()
    for summary in tree.work.summaries:
        calls.update(summary.calls)
    result_lines: ResultLines = defaultdict(list)
    for position, summary in enumerate(tree.work.summaries):
        if summary.results:
            _check_line_results(tree, position, calls, result_lines)
    # Before results are added: they are placed between lines that are linked already.
    tree.attach_children_of_dropped()
    tree.write_replaced_parents()
    if tree.tool.needs_results:
        _add_missing_results(tree, result_lines)


def _check_line_results(
    tree: RepairTree,
    position: int,
    calls: set[str],
    result_lines: ResultLines,
) -> None:
    """Remove the orphans and duplicates among the results of one line, and register the others."""
    summary = tree.work.summaries[position]
    orphans: set[str] = set()
    duplicates: set[str] = set()
    # Either makes every later request fail: providers refuse a result without a call, and a second one for a call.
    for call_id in summary.results:
        if call_id not in calls:
            orphans.add(call_id)
        if call_id in result_lines and _is_duplicate_result(tree, position, call_id, result_lines[call_id]):
            duplicates.add(call_id)
    removed = frozenset(orphans | duplicates)
    for call_id in dict.fromkeys(summary.results):
        if call_id not in removed:
            result_lines[call_id].append(position)
    if not removed:
        return
    kind, message = _describe_result_fault(orphans, duplicates)
    if summary.is_only_results and removed == frozenset(summary.results):
        tree.work.drop_line(position, kind, message)
    else:
        tree.work.get_change(position).removed_results = removed
        tree.work.add_finding(summary.line, kind, message, "taken out of the line")


def _describe_result_fault(orphans: Iterable[str], duplicates: Iterable[str]) -> tuple[DamageKind, str]:
    orphan_ids = ", ".join(sorted(orphans))
    duplicate_ids = ", ".join(sorted(duplicates))
    if not orphan_ids:
        return "duplicate", f"a second result for {duplicate_ids}"
    addition = f", and there is one for {duplicate_ids} already" if duplicate_ids else ""
    return "orphan", f"a result for {orphan_ids}, which nothing in the file called{addition}"


def _is_duplicate_result(tree: RepairTree, position: int, call_id: str, earlier: list[int]) -> bool:
    """Return whether one of the ``earlier`` results is on the branch between this result and its call.

    Results on different branches are no duplicates: each branch needs its own.
    """
    ancestor = tree.parents[position]
    while ancestor >= 0 and call_id not in tree.work.summaries[ancestor].calls:
        if ancestor in earlier and not tree.work.is_dropped(ancestor):
            return True
        ancestor = tree.parents[ancestor]
    return False


# -- missing results ---------------------------------------------------------------------------------------------------


def _add_missing_results(tree: RepairTree, result_lines: ResultLines) -> None:
    """Add an error result for every call that has none although the conversation continues after it.

    A call at the end of a branch is left alone: nothing has been sent after it yet.
    """
    summaries = tree.work.summaries
    next_messages = _find_next_messages(tree)
    for members in _group_answer_lines(tree):
        calls: list[str] = []
        for member in members:
            calls += summaries[member].calls
        missing = tuple(dict.fromkeys(call for call in calls if call not in result_lines))
        if not missing:
            continue
        # The answer's own lines and its results; whatever follows them is where the conversation continues.
        answer_lines = set(members)
        for call in calls:
            answer_lines.update(result_lines.get(call, ()))
        continuations: set[int] = set()
        for position in answer_lines:
            continuations.update(child for child in next_messages[position] if child not in answer_lines)
        children_by_parent: dict[int, list[int]] = defaultdict(list)
        for child in sorted(continuations):
            children_by_parent[tree.parents[child]].append(child)
        for parent, children in children_by_parent.items():
            due = _find_missing_calls(tree, missing, members, parent, children)
            if due:
                _insert_error_results(tree, parent, due, children, summaries[members[0]].line)


def _find_missing_calls(
    tree: RepairTree,
    missing: tuple[str, ...],
    members: list[int],
    parent: int,
    children: list[int],
) -> tuple[str, ...]:
    """Return the calls of an answer that need a result between ``parent`` and ``children``.

    Not the calls on lines of the answer that come after one of the children, and not those for which a result was
    added further up on this branch.
    """
    work = tree.work
    first_line = members[0]
    settled_calls: set[str] = set()
    for member in members:
        if not set(children).isdisjoint(_walk_up(tree, member, first_line)):
            settled_calls.update(work.summaries[member].calls)
    for below, position in pairwise([children[0], *_walk_up(tree, parent, first_line)]):
        change = work.changes.get(position)
        if change is None or not change.added_results:
            continue
        is_on_branch = work.get_change(below).set_fields.get(tree.tool.parent_field) == change.added_id
        if is_on_branch:
            settled_calls.update(change.added_results)
    return tuple(call for call in missing if call not in settled_calls)


def _walk_up(tree: RepairTree, position: int, top: int) -> Iterator[int]:
    """Yield the lines from ``position`` up to ``top``, or to the root if ``top`` is not on the way."""
    while position >= 0:
        yield position
        position = tree.parents[position] if position != top else -1


def _find_next_messages(tree: RepairTree) -> dict[int, list[int]]:
    """Return for each message the messages that come next after it, whatever other lines are in between."""
    summaries = tree.work.summaries
    previous_message = [-1] * len(summaries)
    next_messages: dict[int, list[int]] = defaultdict(list)
    for position in tree.parents_first:
        parent = tree.parents[position]
        if parent >= 0:
            is_after_message = summaries[parent].is_message
            previous_message[position] = parent if is_after_message else previous_message[parent]
        if summaries[position].is_message and not tree.work.is_dropped(position):
            next_messages[previous_message[position]].append(position)
    return next_messages


def _group_answer_lines(tree: RepairTree) -> Iterator[list[int]]:
    """Yield the positions of the lines of each answer that has calls."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    keys_with_calls: set[tuple[str, str]] = set()
    for position, summary in enumerate(tree.work.summaries):
        if not summary.calls and not summary.answer_key:
            continue
        key = (summary.conversation, summary.answer_key or f"line {position}")
        groups[key].append(position)
        if summary.calls:
            keys_with_calls.add(key)
    for key, positions in groups.items():
        if key in keys_with_calls:
            yield positions


def _insert_error_results(
    tree: RepairTree,
    parent: int,
    missing: tuple[str, ...],
    children: list[int],
    line: int,
) -> None:
    """Add a line with error results for ``missing``, called on line number ``line``, before ``children``."""
    change = tree.work.get_change(parent)
    change.added_results += missing
    # The id is made of all results that were added there: a second repair of the same file gives the same line.
    change.added_id = make_stable_uuid(f"{tree.work.summaries[parent].id}+{'+'.join(change.added_results)}")
    for child in children:
        tree.work.get_change(child).set_fields[tree.tool.parent_field] = change.added_id
    message = f"the call {', '.join(missing)} has no result, and the conversation goes on after it"
    tree.work.add_finding(line, "unanswered", message, "an error result was added that says so")


# -- files without links -----------------------------------------------------------------------------------------------


def pair_results_in_order(work: RepairWork) -> None:
    """Match results to calls by occurrence: a result before its call is moved, one without a call is dropped."""
    waiting_calls: dict[str, list[int]] = defaultdict(list)
    early_results: dict[str, list[int]] = defaultdict(list)
    call_ids: set[str] = set()
    for position, summary in enumerate(work.summaries):
        if work.is_dropped(position):
            continue
        for call_id in summary.calls:
            call_ids.add(call_id)
            if early_results[call_id]:
                _move_behind_call(work, early_results[call_id].pop(0), position)
            else:
                waiting_calls[call_id].append(position)
        for call_id in summary.results:
            if waiting_calls[call_id]:
                waiting_calls[call_id].pop(0)
            else:
                early_results[call_id].append(position)
    for call_id, positions in early_results.items():
        for position in positions:
            if call_id in call_ids:
                work.drop_line(position, "duplicate", f"a second result for {call_id}")
            else:
                work.drop_line(position, "orphan", f"a result for {call_id}, which nothing in the file called")


def _move_behind_call(work: RepairWork, position: int, call_position: int) -> None:
    work.get_change(position).move_behind = call_position
    call_line = work.summaries[call_position].line
    message = f"a result before its call on line {call_line:,}"
    work.add_finding(work.summaries[position].line, "order", message, "moved after it")
