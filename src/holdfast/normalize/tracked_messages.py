"""Messages that remember their positions in the projection, and the edits that turn one list into another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Span

EditReason: TypeAlias = tuple[str, str]
"""The rule of an edit, and why."""
# Joins the rules of an edit that several passes contributed to.
_RULE_SEPARATOR = ", "


class TrackedMessage(Struct, frozen=True):
    """A message for positions ``start`` to ``stop`` of the projection, and why it differs from what stood there.

    Passes compare items by identity: a pass that changes nothing must return the same object.
    """

    start: int
    stop: int
    message: Message
    reasons: tuple[EditReason, ...] = ()

    def replace_message(self, message: Message, rule: str, why: str) -> TrackedMessage:
        """Return the item with another message and one more reason."""
        return replace(self, message=message, reasons=(*self.reasons, (rule, why)))


def create_inserted_message(at: int, message: Message, rule: str, why: str) -> TrackedMessage:
    """Return an item for a new message in front of position ``at``."""
    return TrackedMessage(at, at, message, ((rule, why),))


def merge_tracked_messages(items: Sequence[TrackedMessage], why: str) -> TrackedMessage:
    """Merge neighbours into one item; those of a user and of tools become a user's."""
    parts: list[Part] = []
    reasons: list[EditReason] = []
    for item in items:
        parts += item.message.parts
        reasons += item.reasons
    roles = {item.message.role for item in items}
    role = items[0].message.role if len(roles) == 1 else "user"
    start = min(item.start for item in items)
    stop = max(item.stop for item in items)
    return TrackedMessage(
        start,
        stop,
        Message(role, tuple(parts)),
        (*reasons, ("merge", why)),
    )


def get_wire_role(message: Message, dialect: Dialect) -> str:
    """Return the role under which a message is sent.

    Results have a role of their own, unless the API groups those of one answer in a user's message.
    """
    if message.role in {"assistant", "system"}:
        return message.role
    if dialect.results_grouped or not message.results:
        return "user"
    return "tool"


def find_dropped_positions(
    before: Iterable[TrackedMessage], after: Iterable[TrackedMessage], reason: EditReason
) -> dict[int, EditReason]:
    """Return the positions of ``before`` that no item of ``after`` stands for, each with ``reason``."""
    kept_positions: set[int] = set()
    for item in after:
        kept_positions.update(range(item.start, item.stop))
    dropped: dict[int, EditReason] = {}
    for item in before:
        for position in range(item.start, item.stop):
            if position not in kept_positions:
                dropped[position] = reason
    return dropped


def build_normalization_edits(
    before: Sequence[TrackedMessage], after: Sequence[TrackedMessage], dropped: Mapping[int, EditReason]
) -> tuple[Edit, ...]:
    """Return the edits that turn ``before`` into ``after``, in order and without overlap.

    ``dropped`` has the reasons of positions that a pass left out.
    """
    original_ids = {id(item) for item in before}
    edits: list[Edit] = []
    position = before[0].start if before else 0
    end = before[-1].stop if before else 0
    for item in after:
        if item.start > position:
            edits.append(_build_drop_edit(position, item.start, dropped))
        if id(item) not in original_ids:
            reasons: list[EditReason] = []
            for index in range(item.start, item.stop):
                if index in dropped:
                    reasons.append(dropped[index])
            reasons += item.reasons
            edits.append(_build_span_edit(item.start, item.stop, (item.message,), reasons))
        position = item.stop
    if end > position:
        edits.append(_build_drop_edit(position, end, dropped))
    return tuple(edits)


def _build_drop_edit(start: int, stop: int, dropped: Mapping[int, EditReason]) -> Edit:
    default_reason = ("drop", "nothing is left to send")
    reasons = [dropped.get(position, default_reason) for position in range(start, stop)]
    return _build_span_edit(start, stop, (), reasons)


def _build_span_edit(
    start: int,
    stop: int,
    replacement: tuple[Message, ...],
    reasons: Sequence[EditReason],
) -> Edit:
    # Each rule and each reason once, in the order of the passes.
    rules = dict.fromkeys(rule for rule, _ in reasons)
    explanations = dict.fromkeys(why for _, why in reasons)
    return Edit(
        Span(start, stop),
        replacement,
        _RULE_SEPARATOR.join(rules),
        "; ".join(explanations),
    )


def split_edit_rules(edit: Edit) -> list[str]:
    """Return the rules of a normalization edit: several if more than one pass changed the same place."""
    return edit.rule.split(_RULE_SEPARATOR)
