"""Items: messages that remember which slots they stand for, and the edits that tell how they differ from those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Span

EditReason: TypeAlias = tuple[str, str]
"""The rule of an edit, and why."""
_RULE_SEPARATOR = ", "
"""What stands between the rules of one edit."""


class TrackedMessage(Struct, frozen=True):
    """A message that stands for slots ``start`` to ``stop`` of the projection, and why it is not what stood there."""

    start: int
    stop: int
    message: Message
    reasons: tuple[EditReason, ...] = ()

    def replace_message(self, message: Message, rule: str, why: str) -> TrackedMessage:
        """Return the item with another message, for one more reason."""
        return replace(self, message=message, reasons=(*self.reasons, (rule, why)))


def create_inserted_message(at: int, message: Message, rule: str, why: str) -> TrackedMessage:
    """Return an item that stands for no slot, in front of slot ``at``."""
    return TrackedMessage(at, at, message, ((rule, why),))


def merge_tracked_messages(items: Sequence[TrackedMessage], why: str) -> TrackedMessage:
    """Return neighbours as one item."""
    roles = {item.message.role for item in items}
    role = items[0].message.role if len(roles) == 1 else "user"
    message = Message(role, tuple(part for item in items for part in item.message.parts))
    reasons = tuple(reason for item in items for reason in item.reasons)
    start, stop = min(item.start for item in items), max(item.stop for item in items)
    return TrackedMessage(start, stop, message, (*reasons, ("merge", why)))


def get_wire_role(message: Message, dialect: Dialect) -> str:
    """Return the role under which a message is sent: results are a user's where they stand in a user's message."""
    if message.role in {"assistant", "system"}:
        return message.role
    return "user" if dialect.results_grouped or not message.results else "tool"


def find_dropped_positions(
    before: Iterable[TrackedMessage], after: Iterable[TrackedMessage], reason: EditReason
) -> dict[int, EditReason]:
    """Return the slots that ``after`` stands for no longer, with the reason."""
    remaining_indexes = {slot for item in after for slot in range(item.start, item.stop)}
    return {slot: reason for item in before for slot in range(item.start, item.stop) if slot not in remaining_indexes}


def build_normalization_edits(
    before: Sequence[TrackedMessage], after: Sequence[TrackedMessage], dropped: Mapping[int, EditReason]
) -> tuple[Edit, ...]:
    """Return the edits, in order and apart, one for each place where ``after`` differs from ``before``."""
    original_ids = {id(item) for item in before}
    out: list[Edit] = []
    cursor = before[0].start if before else 0
    end = before[-1].stop if before else 0
    for item in after:
        if item.start > cursor:
            out.append(_build_drop_edit(cursor, item.start, dropped))
        if id(item) not in original_ids:
            left_out = [dropped[slot] for slot in range(item.start, item.stop) if slot in dropped]
            out.append(_build_span_edit(item.start, item.stop, (item.message,), [*left_out, *item.reasons]))
        cursor = item.stop
    return (*out, _build_drop_edit(cursor, end, dropped)) if end > cursor else tuple(out)


def _build_drop_edit(start: int, stop: int, dropped: Mapping[int, EditReason]) -> Edit:
    return _build_span_edit(
        start, stop, (), [dropped.get(slot, ("drop", "nothing is left to send")) for slot in range(start, stop)]
    )


def _build_span_edit(start: int, stop: int, replacement: tuple[Message, ...], reasons: Sequence[EditReason]) -> Edit:
    rules, why = dict.fromkeys(rule for rule, _ in reasons), dict.fromkeys(why for _, why in reasons)
    return Edit(Span(start, stop), replacement, _RULE_SEPARATOR.join(rules), "; ".join(why))


def split_edit_rules(edit: Edit) -> list[str]:
    """Return the rules of a repair: several where more than one pass changed the same place."""
    return edit.rule.split(_RULE_SEPARATOR)
