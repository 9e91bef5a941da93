"""Two requests of one session compared, message by message: what is the same, changed, hidden, new or back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.reports.describe import get_message_text_lines
from holdfast.cli.reports.history import BranchHistory
from holdfast.cli.reports.request_size import RequestSize
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.state.view import build_projection, list_projection_origins

ChangeKind: TypeAlias = Literal["same", "changed", "hidden", "new", "back"]
"""What became of a message; *hidden* is no longer shown, *back* was not shown and is again."""
ShownKey: TypeAlias = tuple[str, int]
"""The entry that a shown message came from, and which of those it is that stand for it."""


class ShownMessage(Struct, frozen=True):
    """A message as one of the two requests holds it. ``number`` is -1 for a summary."""

    number: int
    entry: str
    position: float
    """Where it stands among the messages of the log."""
    sized_message: SizedMessage

    @property
    def tokens(self) -> int:
        """Its size in the estimator's tokens."""
        return self.sized_message.tokens or build_sized_message(self.sized_message.message).tokens


class MessageChange(Struct, frozen=True, omit_defaults=True):
    """What became of one message between the two requests."""

    kind: ChangeKind
    number: int
    entry: str
    role: str
    before: int = 0
    after: int = 0
    """Tokens that it took before and after."""
    rule: str = ""
    why: str = ""
    decided_by: str = ""
    """The decision or compaction that did it, or is gone."""
    removed_lines: tuple[str, ...] = ()
    """Lines that only the first request holds."""
    added_lines: tuple[str, ...] = ()
    """Lines that only the second holds."""


class RequestComparison(Struct, frozen=True):
    """What the model saw in the first request and in the second."""

    before: int
    after: int
    """Tokens of either: of the messages by the estimator, of the whole request once it is ``scale_comparison``."""
    before_messages: int
    after_messages: int
    changes: tuple[MessageChange, ...]


def compare_requests(first: BranchHistory, second: BranchHistory) -> RequestComparison:
    """Return what became of each message from the request that ``first`` makes to that of ``second``."""
    old, new, causes = list_shown_messages(first), list_shown_messages(second), _ChangeCauses(first, second)
    known_entries = {item.id for item in first.message_entries}
    places = sorted({**old, **new}.items(), key=lambda item: (item[1].position, item[0] in new, item[0][1]))
    changes = tuple(_compare_message(old.get(key), new.get(key), causes, known_entries) for key, _ in places)
    return RequestComparison(
        sum(item.tokens for item in old.values()),
        sum(item.tokens for item in new.values()),
        len(old),
        len(new),
        changes,
    )


def scale_comparison(comparison: RequestComparison, before: int, after: int, size: RequestSize) -> RequestComparison:
    """Return ``comparison`` of requests of so many tokens, what is in them by ``size``."""
    changes = (
        replace(change, before=size.scale_tokens(change.before), after=size.scale_tokens(change.after))
        for change in comparison.changes
    )
    return replace(comparison, before=before, after=after, changes=tuple(changes))


def list_shown_messages(log: BranchHistory) -> dict[ShownKey, ShownMessage]:
    """Return what the request of ``log`` holds, in its order."""
    out, counts = dict[ShownKey, ShownMessage](), Counter[str]()
    for sized_message, number in zip(build_projection(log.state), list_projection_origins(log.state), strict=True):
        entry = log.message_entries[number].id if number >= 0 else _get_summary_entry(log)
        place = number if number >= 0 else log.state.view.first_kept - 0.5
        out[entry, counts[entry]] = ShownMessage(number, entry, place, sized_message)
        counts[entry] += 1
    return out


def _get_summary_entry(log: BranchHistory) -> str:
    """Return the compaction whose summary stands in the request."""
    return next(
        (id_ for id_, body in reversed(log.state.view.active_decisions) if isinstance(body, CompactionEntry)), ""
    )


def _compare_message(
    old: ShownMessage | None, new: ShownMessage | None, causes: _ChangeCauses, known_entries: set[str]
) -> MessageChange:
    """Return what became of a message that one of the two requests holds at least."""
    message = new or old
    assert message is not None
    role = message.sized_message.message.role
    before, after = old.tokens if old else 0, new.tokens if new else 0
    if old is not None and new is not None and old.sized_message.digest == new.sized_message.digest:
        return MessageChange("same", message.number, message.entry, role, before, after)
    kind: ChangeKind = (
        "changed" if old and new else "hidden" if old else "back" if message.entry in known_entries else "new"
    )
    rule, why, by = causes.get_cause(message.number) if kind != "new" else ("", "", "")
    removed_lines, come = _strip_common_lines(
        get_message_text_lines([old.sized_message]) if old else [],
        get_message_text_lines([new.sized_message]) if new else [],
    )
    return MessageChange(kind, message.number, message.entry, role, before, after, rule, why, by, removed_lines, come)


class _ChangeCauses:
    """Why messages are shown otherwise: what is in force on one side only, the newest of the second side first."""

    def __init__(self, first: BranchHistory, second: BranchHistory) -> None:
        sides = [{id_ for id_, _ in log.state.view.active_decisions} for log in (first, second)]
        self._edits: dict[int, tuple[str, str, str]] = {}
        self._compactions: list[tuple[int, tuple[str, str, str]]] = []
        """Of compactions that concern more than those before them, where the first message stands that they leave."""
        for log, other_ids in zip((second, first), sides, strict=True):
            for id_, body in reversed(log.state.view.active_decisions):
                if id_ not in other_ids:
                    self._add_decision(id_, body)

    def get_cause(self, number: int) -> tuple[str, str, str]:
        """Return rule, reason and entry of what concerns message ``number``; a summary is -1."""
        folds = (cause for keep, cause in self._compactions if number < keep)
        return self._edits.get(number) or next(folds, ("", "", ""))

    def _add_decision(self, id_: str, body: DecisionEntry | CompactionEntry) -> None:
        """Let ``body`` concern those messages that nothing taken before it does."""
        previous_keep = self._compactions[-1][0] if self._compactions else -1
        for edit in body.edits:
            for number in range(max(edit.span.start, previous_keep), max(edit.span.stop, edit.span.start + 1)):
                self._edits.setdefault(number, (edit.rule, edit.why, id_))
        if isinstance(body, CompactionEntry) and body.first_kept > previous_keep:
            why = "a summary stands for it" if body.summary else "nothing stands for it"
            self._compactions.append((body.first_kept, ("compaction", why, id_)))


def _strip_common_lines(old: list[str], new: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of each side without those that both begin and end with."""
    max_common = min(len(old), len(new))
    start = next((at for at in range(max_common) if old[at] != new[at]), max_common)
    end = next((at for at in range(max_common - start) if old[-1 - at] != new[-1 - at]), max_common - start)
    return tuple(old[start : len(old) - end]), tuple(new[start : len(new) - end])


def group_message_changes(changes: tuple[MessageChange, ...]) -> Iterator[list[MessageChange]]:
    """Yield the changes one by one, but neighbours that stayed, went, came or came back together as one."""
    run: list[MessageChange] = []
    for change in changes:
        together = (
            run
            and run[-1].kind == change.kind != "changed"
            and run[-1].decided_by == change.decided_by
            and min(run[-1].number, change.number) >= 0
        )
        if run and not together:
            yield run
            run = []
        run.append(change)
    if run:
        yield run
