"""Compare two requests of one session message by message: same, changed, hidden, new or back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.requests.request_size import RequestSize
from holdfast.reports.sessions.history import BranchHistory
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.state.view import build_projection, list_projection_origins

ChangeKind: TypeAlias = Literal["same", "changed", "hidden", "new", "back"]
"""The change of a message. A *hidden* message is no longer shown; *back* means it was hidden and is shown again."""
ShownKey: TypeAlias = tuple[str, int]
"""The entry that a shown message comes from, and its number among the messages shown for that entry."""


class DiffedMessage(Struct, frozen=True):
    """A message as one of the two requests holds it; ``number`` is -1 for a summary."""

    number: int
    entry: str
    position: float
    """Its place among the messages of the log."""
    sized_message: SizedMessage

    @property
    def tokens(self) -> int:
        """Its size in the estimator's tokens."""
        return self.sized_message.tokens or build_sized_message(self.sized_message.message).tokens


class MessageChange(Struct, frozen=True, omit_defaults=True):
    """The change of one message between the two requests."""

    kind: ChangeKind
    number: int
    entry: str
    role: str
    before: int = 0
    after: int = 0
    """Tokens before and after."""
    rule: str = ""
    why: str = ""
    decided_by: str = ""
    """The decision or compaction that made the change, or whose undo did."""
    removed_lines: tuple[str, ...] = ()
    """Lines that only the first request holds."""
    added_lines: tuple[str, ...] = ()
    """Lines that only the second request holds."""


class RequestComparison(Struct, frozen=True):
    """The first request compared with the second."""

    before: int
    after: int
    """Tokens of both: of the messages by the estimator, or of whole requests after ``scale_comparison``."""
    before_messages: int
    after_messages: int
    changes: tuple[MessageChange, ...]


def compare_requests(first: BranchHistory, second: BranchHistory) -> RequestComparison:
    """Compare the request that ``first`` makes with the one that ``second`` makes, message by message."""
    old_messages = list_shown_messages(first)
    new_messages = list_shown_messages(second)
    causes = _ChangeCauses(first, second)
    known_entries = {entry.id for entry in first.message_entries}

    # In the order of the log; of two versions at one place the old one comes first, as in a textual diff.
    placed = sorted(
        {**old_messages, **new_messages}.items(),
        key=lambda item: (item[1].position, item[0] in new_messages, item[0][1]),
    )
    changes = []
    for key, _ in placed:
        changes.append(_compare_message(old_messages.get(key), new_messages.get(key), causes, known_entries))
    return RequestComparison(
        before=sum(message.tokens for message in old_messages.values()),
        after=sum(message.tokens for message in new_messages.values()),
        before_messages=len(old_messages),
        after_messages=len(new_messages),
        changes=tuple(changes),
    )


def scale_comparison(
    comparison: RequestComparison,
    before: int,
    after: int,
    size: RequestSize,
) -> RequestComparison:
    """Return ``comparison`` with the given request sizes, and with the sizes of messages scaled by ``size``."""
    changes = []
    for change in comparison.changes:
        before_tokens = size.scale_tokens(change.before)
        after_tokens = size.scale_tokens(change.after)
        changes.append(replace(change, before=before_tokens, after=after_tokens))
    return replace(comparison, before=before, after=after, changes=tuple(changes))


def list_shown_messages(log: BranchHistory) -> dict[ShownKey, DiffedMessage]:
    """Return the messages that the request of ``log`` holds, in order."""
    shown: dict[ShownKey, DiffedMessage] = {}
    counts: Counter[str] = Counter()
    for sized_message, number in zip(build_projection(log.state), list_projection_origins(log.state), strict=True):
        if number >= 0:
            entry = log.message_entries[number].id
            position = float(number)
        else:
            # A summary stands between the messages it replaces and the first one kept.
            entry = _get_summary_entry(log)
            position = log.state.view.first_kept - 0.5
        shown[entry, counts[entry]] = DiffedMessage(number, entry, position, sized_message)
        counts[entry] += 1
    return shown


def _get_summary_entry(log: BranchHistory) -> str:
    """Return the id of the compaction whose summary is in the request, or an empty string."""
    for id_, body in reversed(log.state.view.active_decisions):
        if isinstance(body, CompactionEntry):
            return id_
    return ""


def _compare_message(
    old: DiffedMessage | None,
    new: DiffedMessage | None,
    causes: _ChangeCauses,
    known_entries: set[str],
) -> MessageChange:
    """Describe the change of a message that at least one of the two requests holds."""
    message = new or old
    assert message is not None
    role = message.sized_message.message.role
    before = old.tokens if old else 0
    after = new.tokens if new else 0
    if old is not None and new is not None and old.sized_message.digest == new.sized_message.digest:
        return MessageChange("same", message.number, message.entry, role, before, after)
    kind: ChangeKind
    if old is not None and new is not None:
        kind = "changed"
    elif old is not None:
        kind = "hidden"
    elif message.entry in known_entries:
        # The first request knew the message and did not show it.
        kind = "back"
    else:
        kind = "new"
    rule = why = decided_by = ""
    # A new message comes from the conversation and not from a decision.
    if kind != "new":
        rule, why, decided_by = causes.get_cause(message.number)
    old_lines = get_message_text_lines([old.sized_message]) if old is not None else []
    new_lines = get_message_text_lines([new.sized_message]) if new is not None else []
    removed_lines, added_lines = _strip_common_lines(old_lines, new_lines)
    return MessageChange(
        kind=kind,
        number=message.number,
        entry=message.entry,
        role=role,
        before=before,
        after=after,
        rule=rule,
        why=why,
        decided_by=decided_by,
        removed_lines=removed_lines,
        added_lines=added_lines,
    )


class _ChangeCauses:
    """The decisions in force on one side only, which explain the changes; the newest of the second side come first."""

    def __init__(self, first: BranchHistory, second: BranchHistory) -> None:
        self._edits: dict[int, tuple[str, str, str]] = {}
        """Rule, reason and entry, by message number."""
        self._compactions: list[tuple[int, tuple[str, str, str]]] = []
        """For each compaction that hides more than those added before it: its first kept message, and the cause."""
        # The first cause that is found for a message stays, so the order of these two decides.
        self._add_decisions_missing_in(second, first)
        self._add_decisions_missing_in(first, second)

    def get_cause(self, number: int) -> tuple[str, str, str]:
        """Return rule, reason and entry behind the change of message ``number`` (-1: the summary), or empty strings."""
        if number in self._edits:
            return self._edits[number]
        for first_kept, cause in self._compactions:
            if number < first_kept:
                return cause
        return "", "", ""

    def _add_decisions_missing_in(self, log: BranchHistory, other: BranchHistory) -> None:
        other_ids = {id_ for id_, _ in other.state.view.active_decisions}
        for id_, body in reversed(log.state.view.active_decisions):
            if id_ not in other_ids:
                self._add_decision(id_, body)

    def _add_decision(self, id_: str, body: DecisionEntry | CompactionEntry) -> None:
        """Assign ``body`` as the cause for the messages that no earlier added decision explains."""
        last_first_kept = self._compactions[-1][0] if self._compactions else -1
        for edit in body.edits:
            # Messages below are hidden by a compaction, which explains them better than an older edit.
            start = max(edit.span.start, last_first_kept)
            for number in range(start, edit.span.end):
                self._edits.setdefault(number, (edit.rule, edit.why, id_))
        if isinstance(body, CompactionEntry) and body.first_kept > last_first_kept:
            why = "replaced by a summary" if body.summary else "removed from requests"
            self._compactions.append((body.first_kept, ("compaction", why, id_)))


def _strip_common_lines(old: list[str], new: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of each side without their common first and last lines."""
    max_common = min(len(old), len(new))
    start = 0
    while start < max_common and old[start] == new[start]:
        start += 1
    # The end must not reach into the common start: of two equal lines against one, one is removed.
    end = 0
    while end < max_common - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return tuple(old[start : len(old) - end]), tuple(new[start : len(new) - end])


def group_message_changes(changes: tuple[MessageChange, ...]) -> Iterator[list[MessageChange]]:
    """Yield the changes in groups: neighbors with the same kind and cause together, all others alone."""
    group: list[MessageChange] = []
    for change in changes:
        if group and not _can_group(group[-1], change):
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _can_group(first: MessageChange, second: MessageChange) -> bool:
    """Return whether two neighbors are shown on one line; changed messages and summaries stand alone."""
    if first.kind != second.kind or first.kind == "changed":
        return False
    return first.decided_by == second.decided_by and min(first.number, second.number) >= 0
