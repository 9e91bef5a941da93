"""One message: its text as it was said, what the newest request shows of it, and what happened in between."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.errors import UnknownId
from holdfast.inspector.sources import InspectedStore
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.message_events import (
    MessageEvent,
    find_capped_note,
    has_decision_about,
    list_message_events,
    read_decision_entries,
)
from holdfast.reports.message_view import view_message
from holdfast.state.entries import BranchSummaryEntry, MessageEntry
from holdfast.store.base import SessionInfo

CHARACTERS_PER_PAGE = 20_000
"""Of a text. Chosen by judgement: some screens, which a browser lays out at once."""


class MessagePage(Struct, frozen=True):
    """A message of a session's current branch."""

    number: int
    entry: str
    role: str
    at: int | None
    tokens: int
    """The estimator's."""
    characters: int
    text: str
    """One page of what was said."""
    page: int
    page_count: int
    state: str
    """``whole``, ``reduced`` or ``hidden``: how the next request shows it."""
    shown_text: str
    """What the next request shows in its place; empty unless it is reduced."""
    shown_tokens: int
    events: tuple[MessageEvent, ...]
    message_count: int
    kept_lines: tuple[str, ...] = ()
    """Lines of it that the summary in force quotes; empty unless the message is hidden."""
    lost_lines: tuple[str, ...] = ()
    """Lines of it that the summary does not quote."""


MIN_QUOTED_CHARACTERS = 12
"""Of a line that is looked for in a summary: a shorter one may stand there for another reason. Chosen by judgement."""
MAX_LISTED_LINES = 40
"""Lines of a message that are listed as quoted or not. Chosen by judgement: a screen; the page says how many more."""


def find_message_number(source: InspectedStore, info: SessionInfo, name: str) -> int:
    """Return the number of the message named by its number, or by the beginning of its entry's id."""
    ids = source.load_timeline(info).message_ids
    number = name.removeprefix("#")
    if number.isdecimal() and int(number) < len(ids):
        return int(number)
    matches = [index for index, id_ in enumerate(ids) if name and id_.startswith(name)]
    if len(matches) != 1:
        raise UnknownId(f"the current branch of {info.key} has no message {name!r}: it has {len(ids):,}")
    return matches[0]


def load_message_page(source: InspectedStore, info: SessionInfo, name: str, page: int = 1) -> MessagePage:
    """Load the page of a message, named as for ``find_message_number``; ``page`` is that of its text."""
    number = find_message_number(source, info, name)
    timeline = source.load_timeline(info)
    entry = source.store.get_entry(info.key, timeline.message_ids[number])
    assert isinstance(entry.body, MessageEntry | BranchSummaryEntry)
    message = entry.body.sized_message
    text = "\n".join(get_message_text_lines([message]))
    page_count = max(1, -(-len(text) // CHARACTERS_PER_PAGE))
    page = min(max(1, page), page_count)
    start = (page - 1) * CHARACTERS_PER_PAGE
    decisions = read_decision_entries(source.store, info.key, timeline)
    pinned_count = _count_system_messages(source, info, timeline.message_ids)
    view = view_message(message, number, len(timeline.message_ids), pinned_count, decisions)
    shown_text = ""
    if view.visibility == "reduced":
        shown_text = "\n".join(get_message_text_lines(view.shown))
    kept_lines: tuple[str, ...] = ()
    lost_lines: tuple[str, ...] = ()
    if view.summary is not None:
        kept_lines, lost_lines = divide_by_summary(text, view.summary.text)
    # What was never reduced or hidden cannot have been read back, and the calls need not be read.
    capped_note = find_capped_note(source.store, info.key, entry)
    can_be_read_back = capped_note is not None or has_decision_about(decisions, number, pinned_count)
    recall_calls = source.load_recall_calls(info) if can_be_read_back else ()
    events = list_message_events(
        timeline,
        decisions,
        number,
        entry,
        pinned_count=pinned_count,
        capped_note=capped_note,
        recall_calls=recall_calls,
    )
    return MessagePage(
        number=number,
        entry=entry.id,
        role=message.message.role,
        at=entry.time_ms,
        tokens=message.tokens,
        characters=len(text),
        text=text[start : start + CHARACTERS_PER_PAGE],
        page=page,
        page_count=page_count,
        state=view.visibility,
        shown_text=shown_text[:CHARACTERS_PER_PAGE],
        shown_tokens=sum(sized_message.tokens for sized_message in view.shown),
        events=tuple(events),
        message_count=len(timeline.message_ids),
        kept_lines=kept_lines,
        lost_lines=lost_lines,
    )


def _count_system_messages(source: InspectedStore, info: SessionInfo, message_ids: Sequence[str]) -> int:
    """Return how many system messages stand at the start of the branch."""
    for number, entry_id in enumerate(message_ids):
        body = source.store.get_entry(info.key, entry_id).body
        if not isinstance(body, MessageEntry) or body.sized_message.message.role != "system":
            return number
    return len(message_ids)


def divide_by_summary(text: str, summary: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of ``text`` that ``summary`` quotes, and those that it does not; blanks do not count."""
    quoted_text = " ".join(summary.split())
    kept: list[str] = []
    lost: list[str] = []
    for line in text.splitlines():
        words = " ".join(line.split())
        if len(words) >= MIN_QUOTED_CHARACTERS:
            (kept if words in quoted_text else lost).append(words)
    return tuple(kept), tuple(lost)
