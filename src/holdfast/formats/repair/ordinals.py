"""Numbers of lines: Codex reads a paginated rollout only as far as each line has the number after the one before.

A line with a number that was used already freezes the thread as it was there, although everything later is in the file
(codex#41566, 2026-08-29; #41079; #41657). So does a gap, as a line leaves that had to be left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.formats.repair.repair_lines import RepairWork
from holdfast.formats.repair.tools import LineSummary

ORDINAL_FIELD = "ordinal"


def number_lines_on(work: RepairWork) -> None:
    """Give every line that stays the number after the one before it; a file without a numbered header is left alone.

    Called last: lines that are left out or moved change the order.
    """
    if not work.summaries:
        return
    first = work.summaries[0].first_ordinal
    if first is None:
        return
    expected = first
    previous = first - 1
    for position in list(_iter_final_order(work)):
        summary = work.summaries[position]
        # A line that goes on from a wrong number is a consequence, and no finding of its own.
        if summary.ordinal != previous + 1:
            repair = "this line and those after it are numbered anew"
            work.add_finding(summary.line, "ordinal", _describe_fault(summary, previous), repair)
        if summary.ordinal != expected:
            work.get_change(position).set_fields[ORDINAL_FIELD] = expected
        previous = previous + 1 if summary.ordinal is None else summary.ordinal
        expected += 1


def _describe_fault(summary: LineSummary, previous: int) -> str:
    """Describe the number of a line that is not the one after ``previous``."""
    ordinal = summary.ordinal
    if ordinal is None and summary.ordinal_fault:
        return f"the number (ordinal) of the line {summary.ordinal_fault}"
    if ordinal is None:
        return "the line has no number (ordinal)"
    if ordinal <= previous:
        return f"the number (ordinal) {ordinal:,} comes after {previous:,}: Codex shows nothing from here on"
    return f"the number (ordinal) {ordinal:,} comes after {previous:,}, with a gap between them"


def _iter_final_order(work: RepairWork) -> Iterator[int]:
    """Yield the positions of the lines that stay, in the order of the repaired file."""
    moved: dict[int, list[int]] = {}
    for moved_position, moved_change in work.changes.items():
        if moved_change.move_behind is not None:
            moved.setdefault(moved_change.move_behind, []).append(moved_position)
    for position in range(len(work.summaries)):
        change = work.changes.get(position)
        if change is not None and change.move_behind is not None:
            continue
        stack = [position]
        while stack:
            current = stack.pop()
            if not work.is_dropped(current):
                yield current
            stack += sorted(moved.get(current, ()), reverse=True)
