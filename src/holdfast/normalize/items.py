"""Items: messages that remember which slots they stand for, and the edits that tell how they differ from those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Span

Reason: TypeAlias = tuple[str, str]
"""The rule of an edit, and why."""
_AND = ", "
"""What stands between the rules of one edit."""


class Item(Struct, frozen=True):
    """A message that stands for slots ``start`` to ``stop`` of the projection, and why it is not what stood there."""

    start: int
    stop: int
    message: Message
    reasons: tuple[Reason, ...] = ()

    def changed(self, message: Message, rule: str, why: str) -> Item:
        """Return the item with another message, for one more reason."""
        return replace(self, message=message, reasons=(*self.reasons, (rule, why)))


def inserted(at: int, message: Message, rule: str, why: str) -> Item:
    """Return an item that stands for no slot, in front of slot ``at``."""
    return Item(at, at, message, ((rule, why),))


def joined(items: Sequence[Item], why: str) -> Item:
    """Return neighbours as one item."""
    roles = {item.message.role for item in items}
    role = items[0].message.role if len(roles) == 1 else "user"
    message = Message(role, tuple(part for item in items for part in item.message.parts))
    reasons = tuple(reason for item in items for reason in item.reasons)
    start, stop = min(item.start for item in items), max(item.stop for item in items)
    return Item(start, stop, message, (*reasons, ("merge", why)))


def speaker(message: Message, dialect: Dialect) -> str:
    """Return the role under which a message is sent: results are a user's where they stand in a user's message."""
    if message.role in {"assistant", "system"}:
        return message.role
    return "user" if dialect.results_grouped or not message.results else "tool"


def lost(before: Iterable[Item], after: Iterable[Item], reason: Reason) -> dict[int, Reason]:
    """Return the slots that ``after`` stands for no longer, with the reason."""
    kept = {slot for item in after for slot in range(item.start, item.stop)}
    return {slot: reason for item in before for slot in range(item.start, item.stop) if slot not in kept}


def edits(before: Sequence[Item], after: Sequence[Item], gone: Mapping[int, Reason]) -> tuple[Edit, ...]:
    """Return the edits, in order and apart, one for each place where ``after`` differs from ``before``."""
    kept = {id(item) for item in before}
    out: list[Edit] = []
    cursor = before[0].start if before else 0
    end = before[-1].stop if before else 0
    for item in after:
        if item.start > cursor:
            out.append(_dropped(cursor, item.start, gone))
        if id(item) not in kept:
            left_out = [gone[slot] for slot in range(item.start, item.stop) if slot in gone]
            out.append(_edit(item.start, item.stop, (item.message,), [*left_out, *item.reasons]))
        cursor = item.stop
    return (*out, _dropped(cursor, end, gone)) if end > cursor else tuple(out)


def _dropped(start: int, stop: int, gone: Mapping[int, Reason]) -> Edit:
    return _edit(start, stop, (), [gone.get(slot, ("drop", "nothing is left to send")) for slot in range(start, stop)])


def _edit(start: int, stop: int, put: tuple[Message, ...], reasons: Sequence[Reason]) -> Edit:
    rules, why = dict.fromkeys(rule for rule, _ in reasons), dict.fromkeys(why for _, why in reasons)
    return Edit(Span(start, stop), put, _AND.join(rules), "; ".join(why))


def rules_of(edit: Edit) -> list[str]:
    """Return the rules of a repair: several where more than one pass changed the same place."""
    return edit.rule.split(_AND)
