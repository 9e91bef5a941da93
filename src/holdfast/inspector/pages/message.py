"""One message: its text as it was said, what the newest request shows of it, and what happened in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnknownId
from holdfast.inspector.sources import InspectedStore
from holdfast.planning.extract.user_sentences import has_rule_words
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.messages.message_events import (
    MessageEvent,
    find_capped_note,
    has_decision_about,
    list_message_events,
    read_decision_entries,
)
from holdfast.reports.messages.message_view import view_message
from holdfast.reports.sessions.history import find_revoking_entries
from holdfast.reports.sessions.timeline import Timeline, TimelineRequest
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, Entry, MessageEntry
from holdfast.store.base import SessionInfo

CHARACTERS_PER_PAGE = 20_000
"""Of a text. Chosen by judgement: some screens, which a browser lays out at once."""


class SummaryQuotes(Struct, frozen=True):
    """What the summary of one compaction kept of a message."""

    entry: str
    request: int
    """Number of the first request that showed it; 0 if none did."""
    request_entry: str
    is_undone: bool
    is_in_force: bool
    """Whether the next request shows it."""
    kept_lines: tuple[str, ...]
    """Lines of the message that it quotes; rules are first."""
    dropped_lines: tuple[str, ...]
    """Lines that the summary before it quoted and it does not; rules are first."""
    lost_rules: tuple[str, ...]
    """Other lines that it does not quote and that seem to state a rule."""
    lost_lines: tuple[str, ...]
    """All other lines that it does not quote."""

    @property
    def line_count(self) -> int:
        """Lines of the message that were looked for."""
        return len(self.kept_lines) + len(self.dropped_lines) + len(self.lost_rules) + len(self.lost_lines)


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
    summaries: tuple[SummaryQuotes, ...] = ()
    """What each summary that replaced it kept of it, the newest first; neighbors that kept the same are one."""


MIN_QUOTED_CHARACTERS = 12
"""Of a line that is looked for in a summary: a shorter one may stand there for another reason. Chosen by judgement."""
MAX_LISTED_LINES = 40
"""Lines of a message that are listed as quoted or not. Chosen by judgement: a screen; the page says how many more."""
MAX_COMPARED_SUMMARIES = 10
"""The newest summaries in which lines are looked for. Chosen by judgement: each costs a search for every line, and what
an older one dropped is seen to be gone in the oldest of these."""


def find_message_number(source: InspectedStore, info: SessionInfo, name: str) -> int:
    """Return the number of the message named by its number, or by the beginning of its entry's id."""
    ids = source.load_timeline(info).message_ids
    number = name.removeprefix("#")
    if number.isdecimal() and int(number) < len(ids):
        return int(number)
    matches = [index for index, id_ in enumerate(ids) if name and id_.startswith(name)]
    if len(matches) != 1:
        raise UnknownId(
            f"the current branch of {info.key} has no message {name!r}: it has {len(ids):,}. It may be on another"
            f" branch: `holdfast recall {info.key} {name[:100]}` reads it from any"
        )
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
    summaries: tuple[SummaryQuotes, ...] = ()
    if number >= pinned_count:
        summaries = tuple(compare_summaries(text, number, decisions, timeline))
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
        events=tuple(iterate_events_with_news(events, summaries)),
        message_count=len(timeline.message_ids),
        summaries=summaries,
    )


def compare_summaries(
    text: str, number: int, decisions: Sequence[Entry], timeline: Timeline
) -> Iterator[SummaryQuotes]:
    """Yield what the newest summaries that replaced message ``number`` kept of its ``text``, the newest first.

    ``decisions`` are those of ``read_decision_entries``. Of neighbors that kept the same only the older is yielded,
    since it made the choice; an undone one stands for itself.
    """
    undone_ids = find_revoking_entries(decisions)
    compared: list[SummaryQuotes] = []
    in_force = [entry.id for entry in decisions if is_summary_of(entry, number) and entry.id not in undone_ids][-1:]
    covering = [entry for entry in decisions if is_summary_of(entry, number)]
    for entry in covering[-MAX_COMPARED_SUMMARIES:]:
        assert isinstance(entry.body, CompactionEntry)
        assert entry.body.summary is not None
        before = compared[-1] if compared else None
        kept_lines, lost_lines = divide_by_summary(text, entry.body.summary.text)
        was_kept = set(before.kept_lines) if before is not None else set()
        is_undone = entry.id in undone_ids
        if before is not None and set(kept_lines) == was_kept and is_undone == before.is_undone:
            compared[-1] = replace(before, is_in_force=before.is_in_force or entry.id in in_force)
            continue
        dropped_lines = [line for line in lost_lines if line in was_kept]
        never_kept = [line for line in lost_lines if line not in was_kept]
        request = find_request_after(timeline, entry.id)
        compared.append(
            SummaryQuotes(
                entry=entry.id,
                request=request.number if request is not None else 0,
                request_entry=request.request if request is not None else "",
                is_undone=is_undone,
                is_in_force=entry.id in in_force,
                kept_lines=_put_rules_first(kept_lines),
                dropped_lines=_put_rules_first(dropped_lines),
                lost_rules=tuple(line for line in never_kept if has_rule_words(line)),
                lost_lines=tuple(line for line in never_kept if not has_rule_words(line)),
            )
        )
    return reversed(compared)


def _put_rules_first(lines: Sequence[str]) -> tuple[str, ...]:
    """Return ``lines`` with those that seem to state a rule first: a reader looks for the one that was broken."""
    return tuple(sorted(lines, key=lambda line: not has_rule_words(line)))


def iterate_events_with_news(
    events: Sequence[MessageEvent], summaries: Sequence[SummaryQuotes]
) -> Iterator[MessageEvent]:
    """Yield ``events`` without compactions between the first and the newest that kept the same as the one before."""
    summary_entries = {quotes.entry for quotes in summaries}
    was_hidden = False
    for event in events:
        is_repeated = was_hidden and event.kind == "hidden" and event.is_superseded and not event.is_undone
        was_hidden = was_hidden or event.kind == "hidden"
        if not is_repeated or event.entry in summary_entries:
            yield event


def is_summary_of(entry: Entry, number: int) -> bool:
    """Return whether ``entry`` is a compaction whose summary stands in place of message ``number``."""
    body = entry.body
    return isinstance(body, CompactionEntry) and body.summary is not None and number < body.first_kept


def find_request_after(timeline: Timeline, decision_id: str) -> TimelineRequest | None:
    """Return the first request that a decision, named by its whole id, was made for; None if none was sent since."""
    for request in timeline.requests:
        if any(mark.entry == decision_id for mark in request.marks):
            return request
    return None


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
