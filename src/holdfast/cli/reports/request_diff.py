"""Two requests of one session compared, message by message: what is the same, changed, hidden, new or back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.reports.describe import words
from holdfast.cli.reports.history import Log
from holdfast.cli.reports.request_size import Measured
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.view import origins, project
from holdfast.state.entries import Compaction, Decision

Kind: TypeAlias = Literal["same", "changed", "hidden", "new", "back"]
"""What became of a message; *hidden* is no longer shown, *back* was not shown and is again."""
Key: TypeAlias = tuple[str, int]
"""The entry that a shown message came from, and which of those it is that stand for it."""


class Held(Struct, frozen=True):
    """A message as one of the two requests holds it. ``number`` is -1 for a summary."""

    number: int
    entry: str
    place: float
    """Where it stands among the messages of the log."""
    slot: Slot

    @property
    def tokens(self) -> int:
        """Its size in the estimator's tokens."""
        return self.slot.size or measure(self.slot.message).size


class Change(Struct, frozen=True, omit_defaults=True):
    """What became of one message between the two requests."""

    kind: Kind
    number: int
    entry: str
    role: str
    before: int = 0
    after: int = 0
    """Tokens that it took before and after."""
    rule: str = ""
    why: str = ""
    by: str = ""
    """The decision or compaction that did it, or is gone."""
    gone: tuple[str, ...] = ()
    """Lines that only the first request holds."""
    come: tuple[str, ...] = ()
    """Lines that only the second holds."""


class Comparison(Struct, frozen=True):
    """What the model saw in the first request and in the second."""

    before: int
    after: int
    """Tokens of either: of the messages by the estimator, of the whole request once it is ``sized``."""
    before_messages: int
    after_messages: int
    changes: tuple[Change, ...]


def compare(first: Log, second: Log) -> Comparison:
    """Return what became of each message from the request that ``first`` makes to that of ``second``."""
    old, new, causes = held(first), held(second), _Causes(first, second)
    known = {one.id for one in first.said}
    places = sorted({**old, **new}.items(), key=lambda one: (one[1].place, one[0] in new, one[0][1]))
    changes = tuple(_change(old.get(key), new.get(key), causes, known) for key, _ in places)
    return Comparison(
        sum(one.tokens for one in old.values()), sum(one.tokens for one in new.values()), len(old), len(new), changes
    )


def sized(found: Comparison, before: int, after: int, size: Measured) -> Comparison:
    """Return ``found`` of requests of so many tokens, what is in them by ``size``."""
    changes = (replace(one, before=size.of(one.before), after=size.of(one.after)) for one in found.changes)
    return replace(found, before=before, after=after, changes=tuple(changes))


def held(log: Log) -> dict[Key, Held]:
    """Return what the request of ``log`` holds, in its order."""
    out, shown = dict[Key, Held](), Counter[str]()
    for slot, number in zip(project(log.branch), origins(log.branch), strict=True):
        entry = log.said[number].id if number >= 0 else _summary(log)
        place = number if number >= 0 else log.branch.keep - 0.5
        out[entry, shown[entry]] = Held(number, entry, place, slot)
        shown[entry] += 1
    return out


def _summary(log: Log) -> str:
    """Return the compaction whose summary stands in the request."""
    return next((id_ for id_, body in reversed(log.branch.law) if isinstance(body, Compaction)), "")


def _change(old: Held | None, new: Held | None, causes: _Causes, known: set[str]) -> Change:
    """Return what became of a message that one of the two requests holds at least."""
    one = new or old
    assert one is not None
    role = one.slot.message.role
    before, after = old.tokens if old else 0, new.tokens if new else 0
    if old is not None and new is not None and old.slot.digest == new.slot.digest:
        return Change("same", one.number, one.entry, role, before, after)
    kind: Kind = "changed" if old and new else "hidden" if old else "back" if one.entry in known else "new"
    rule, why, by = causes.of(one.number) if kind != "new" else ("", "", "")
    gone, come = _apart(words([old.slot]) if old else [], words([new.slot]) if new else [])
    return Change(kind, one.number, one.entry, role, before, after, rule, why, by, gone, come)


class _Causes:
    """Why messages are shown otherwise: what is in force on one side only, the newest of the second side first."""

    def __init__(self, first: Log, second: Log) -> None:
        sides = [{id_ for id_, _ in log.branch.law} for log in (first, second)]
        self._edits: dict[int, tuple[str, str, str]] = {}
        self._folds: list[tuple[int, tuple[str, str, str]]] = []
        """Of compactions that concern more than those before them, where the first message stands that they leave."""
        for log, other in zip((second, first), sides, strict=True):
            for id_, body in reversed(log.branch.law):
                if id_ not in other:
                    self._take(id_, body)

    def of(self, number: int) -> tuple[str, str, str]:
        """Return rule, reason and entry of what concerns message ``number``; a summary is -1."""
        folds = (told for keep, told in self._folds if number < keep)
        return self._edits.get(number) or next(folds, ("", "", ""))

    def _take(self, id_: str, body: Decision | Compaction) -> None:
        """Let ``body`` concern those messages that nothing taken before it does."""
        folded = self._folds[-1][0] if self._folds else -1
        for edit in body.edits:
            for number in range(max(edit.span.start, folded), max(edit.span.stop, edit.span.start + 1)):
                self._edits.setdefault(number, (edit.rule, edit.why, id_))
        if isinstance(body, Compaction) and body.keep > folded:
            why = "a summary stands for it" if body.summary else "nothing stands for it"
            self._folds.append((body.keep, ("compaction", why, id_)))


def _apart(old: list[str], new: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of each side without those that both begin and end with."""
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    end = next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)
    return tuple(old[start : len(old) - end]), tuple(new[start : len(new) - end])


def runs(changes: tuple[Change, ...]) -> Iterator[list[Change]]:
    """Yield the changes one by one, but neighbours that stayed, went, came or came back together as one."""
    run: list[Change] = []
    for one in changes:
        together = (
            run
            and run[-1].kind == one.kind != "changed"
            and run[-1].by == one.by
            and min(run[-1].number, one.number) >= 0
        )
        if run and not together:
            yield run
            run = []
        run.append(one)
    if run:
        yield run
