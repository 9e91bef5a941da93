"""The section of a summary that lists what is still open, as text and back.

It is a text of its own beside the summary, so that a later one takes its place whole. It is also read back: who keeps
only the messages that were sent, and not the log, has the items from there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.open_work.work_events import (
    STARTED_KINDS,
    NoteReader,
    OpenItem,
    TodoItem,
    TodosReplaced,
    WorkEnded,
    WorkEvent,
    WorkKind,
    WorkStarted,
)

OPEN_WORK_HEADING = "## Still Open"
"""First line of the section."""
MAX_NAME_CHARS = 64
"""Characters of what an item is about. With kind and id a line then has some 25 tokens at most."""
MAX_TODO_CHARS = 90
"""Characters of a to-do item. It has no id to be found by, so more of its words are kept."""
MAX_SECTION_TOKENS = 1_500
"""Estimator tokens of the section: some sixty items. A list beyond that is not read by anybody; ids of the rest are
named in one line. Chosen by judgement."""
SECTION_SHARE = 0.25
"""Share of a summary's budget for the section; in a small window the rest is still needed for the user's words. Chosen
by judgement."""
MIN_SECTION_TOKENS = 120
"""Estimator tokens for the section however small its share is: the ids of a dozen items. Chosen by judgement."""

_KIND_ORDER: tuple[WorkKind, ...] = get_args(WorkKind)
_OLD_PLAN_OPENING = "The plan as it stands:"
"""First line of the to-do list in summaries of older versions."""


def compute_section_budget(summary_tokens: float) -> int:
    """Return the estimator tokens of the section beside a summary of ``summary_tokens``."""
    return int(min(MAX_SECTION_TOKENS, max(MIN_SECTION_TOKENS, SECTION_SHARE * summary_tokens)))


def select_hidden_items(items: Sequence[OpenItem], keep: int) -> list[OpenItem]:
    """Return the items that no message from index ``keep`` on tells of."""
    return [item for item in items if item.last_told < keep]


def render_open_work(items: Sequence[OpenItem], budget: int) -> str:
    """Return the section for ``items`` in about ``budget`` estimator tokens, or an empty string without items.

    If not all fit, the newest of each kind have a line, and a last line names the ids of the others.
    """
    if not items:
        return ""
    ordered = sorted(items, key=_rank_item)
    lines = [_format_item(item) for item in ordered]
    count = len(lines)
    if estimate_text_tokens(_join_section(lines, [], budget)) > budget:
        # How much the line about the others takes depends on how many have none of their own.
        count = bisect_left(
            range(len(lines)), 1, key=lambda count: _is_over(lines[: count + 1], ordered[count + 1 :], budget)
        )
    return _join_section(lines[:count], ordered[count:], budget)


def is_open_work_section(text: str) -> bool:
    """Return whether ``text`` is a section made here."""
    return text.startswith(OPEN_WORK_HEADING)


def format_open_note(item: OpenItem, *, has_ended: bool = False) -> str:
    """Return the line that a shortened text has about an item that it told of."""
    return f"[{'ended' if has_ended else 'still open'}: {format_item_reference(item)}]"


def read_section_kinds(text: str) -> dict[str, WorkKind]:
    """Return the ids that a section lists as open, each with its kind; none if ``text`` is no section."""
    return {event.id: event.kind for event in _read_section(text) if isinstance(event, WorkStarted)}


def format_item_reference(item: OpenItem) -> str:
    """Return kind and id of an item, as a few words."""
    return f"{item.kind} {item.id}".strip()


def _rank_item(item: OpenItem) -> tuple[int, int]:
    order = _KIND_ORDER.index(item.kind)
    # To-do items keep the order of their list; of other items the newest come first.
    return order, 0 if item.kind == "to-do" else -item.since


def _format_item(item: OpenItem) -> str:
    max_chars = MAX_TODO_CHARS if item.kind in ("to-do", "message") else MAX_NAME_CHARS
    name = flatten_to_line(item.name, max_chars)
    state = f" [{item.state}]" if item.state else ""
    about = f": {name}" if name else ""
    return f"- {format_item_reference(item)}{state}{about}"


def _is_over(lines: Sequence[str], others: Sequence[OpenItem], budget: int) -> bool:
    return estimate_text_tokens(_join_section(lines, others, budget)) > budget


def _join_section(lines: Sequence[str], others: Sequence[OpenItem], budget: int) -> str:
    section = [OPEN_WORK_HEADING, *lines]
    if others:
        section.append(_format_others(others, budget))
    return "\n".join(section)


def _format_others(others: Sequence[OpenItem], budget: int) -> str:
    """Return the line about items without a line of their own, with as many of their ids as fit into ``budget``."""
    references: list[str] = []
    tokens = 0
    for item in others:
        if item.id and item.kind != "to-do":
            reference = format_item_reference(item)
            tokens += estimate_text_tokens(reference) + 1
            if tokens > budget:
                break
            references.append(reference)
    names = f": {', '.join(references)}" if references else ""
    return f"[{len(others)} more{names}]"


# -- read back ---------------------------------------------------------------------------------------------------------

_STARTED_KIND = "|".join(STARTED_KINDS)
_ITEM_LINE = re.compile(rf"^- ({_STARTED_KIND}) (\S+?)(?: \[([^\]\n]*)\])?(?:: (.*))?$")
_TODO_LINE = re.compile(r"^- to-do(?: ([^\s:\[]+))?(?: \[([^\]\n]*)\])?(?:: (.*))?$")
_OTHER_REFERENCE = re.compile(rf"(?:: |, )({_STARTED_KIND}) ([^\s,\]]+)(?=[,\]])")
_OPEN_NOTE = re.compile(rf"^\[(still open|ended): ({_STARTED_KIND}) (\S+)\]$", re.MULTILINE)
_OLD_PLAN_LINE = re.compile(r"^- \[([^\]\n]*)\] (.*)$", re.MULTILINE)


def _read_section(text: str) -> Iterator[WorkEvent]:
    if not is_open_work_section(text):
        return
    todos: list[TodoItem] = []
    for line in text.split("\n")[1:]:
        item = _ITEM_LINE.match(line)
        todo = _TODO_LINE.match(line)
        if item is not None:
            kind: WorkKind = item[1]  # type: ignore[assignment]
            yield WorkStarted(kind, item[2], item[4] or "", item[3] or "")
        elif todo is not None:
            todos.append(TodoItem(todo[3] or "", todo[2] or "", todo[1] or ""))
        elif line.startswith("["):
            for other_kind, id_ in _OTHER_REFERENCE.findall(line):
                yield WorkStarted(other_kind, id_)
    if todos:
        yield TodosReplaced(tuple(todos))


def read_open_notes(text: str) -> Iterator[WorkEvent]:
    """Yield what the notes at the end of a shortened text tell; see ``format_open_note``."""
    for word, kind, id_ in _OPEN_NOTE.findall(text):
        yield WorkStarted(kind, id_) if word == "still open" else WorkEnded(id_)


def _read_old_plan(text: str) -> Iterator[WorkEvent]:
    if text.startswith(_OLD_PLAN_OPENING):
        yield TodosReplaced(tuple(TodoItem(item, status) for status, item in _OLD_PLAN_LINE.findall(text)))


SECTION_READERS: Mapping[str, NoteReader] = {OPEN_WORK_HEADING: _read_section, _OLD_PLAN_OPENING: _read_old_plan}
"""Readers of what earlier summaries tell, by marker."""
