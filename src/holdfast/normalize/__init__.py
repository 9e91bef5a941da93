"""Hygiene: repairs that make a projection valid for its API. Recomputed for each request, never stored.

Passes over *items*, messages that remember which slots they stand for: clean each message, put every result where its
call wants it, place who speaks, join neighbours, close the ends. The edits are what differs when they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.messages.message import Message
from holdfast.messages.parts import Thinking
from holdfast.normalize.dropped_calls import disown
from holdfast.normalize.fast_path import tidy
from holdfast.normalize.ids import NONE
from holdfast.normalize.items import Item, Reason, edits, lost
from holdfast.normalize.media_limit import fit_media
from holdfast.normalize.misplaced_results import drop_unseen, name, set_free, tie
from holdfast.normalize.pairing import MISSING, drop_unfinished, orphans, pair
from holdfast.normalize.parts import OWN, clean, tells
from holdfast.normalize.result_media import show_media
from holdfast.normalize.roles import answer_results, close_ends, ends_well, join, joins_summary, place_system
from holdfast.normalize.server_tools import pair_servers
from holdfast.normalize.signatures import RULE as SIGNED
from holdfast.normalize.signatures import sign
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit

__all__ = ["ALONE", "MISSING", "SIGNED", "UNTHOUGHT", "orphans", "repairs"]

_NOWHERE: frozenset[int] = frozenset()
UNBOUND = "thinking-binding"
"""Rule of the edits that leave out thinking whose signature no longer fits what stands before it."""
UNTHOUGHT = frozenset({UNBOUND, "thinking"})
"""Rules of the edits that leave out thinking: that, and what another model or nobody has signed."""
ALONE = OWN | UNTHOUGHT
"""Rules of the edits that are of one message: what stands around it changes nothing in them."""


def repairs(
    messages: Sequence[Message],
    dialect: Dialect,
    first: int = 0,
    loose: frozenset[int] = _NOWHERE,
    cut: frozenset[int] = _NOWHERE,
    *,
    lead: bool = True,
    summary: int = -1,
    before: frozenset[str] = NONE,
) -> tuple[Edit, ...]:
    """Return the edits that make ``messages`` valid, the last of which ends the request; spans count from ``first``.

    ``loose`` are positions whose thinking no longer fits what stands before it, on a model that checks; ``cut`` those
    of answers that failed or were interrupted. ``lead`` is true where system messages at the start go into a field of
    their own, as those of values do; in a body of an API that has such a field none may stand among the messages.
    ``summary`` is the message that stands for older turns, if there is one. Calls with the ids ``before`` are sent in
    front of ``messages``.
    """
    told = not lead or any(map(tells, messages))
    lead = lead and first == 0
    if (
        not (loose or cut or joins_summary(messages, dialect, summary))
        and (dialect.as_written or ends_well(messages, dialect, first))
        and tidy(messages, dialect, lead=lead, before=before)
    ):
        return ()
    given = [Item(first + at, first + at + 1, message) for at, message in enumerate(messages)]
    items = [_without_thinking(item) if item.start in loose else item for item in given]
    gone: dict[int, Reason] = {}
    for step, reason in _passes(dialect, first, cut, first + summary, before, lead=lead, told=told):
        after = step(items, dialect)
        gone |= lost(items, after, reason)
        items = after
    return edits(given, items, gone)


def _passes(
    dialect: Dialect,
    first: int,
    cut: frozenset[int],
    summary: int,
    before: frozenset[str],
    *,
    lead: bool,
    told: bool,
) -> tuple[tuple[Callable[[list[Item], Dialect], list[Item]], Reason], ...]:
    """Return the passes in their order, each with what is said of a message that it leaves out."""
    if dialect.as_written:
        return (
            (clean, ("empty", "another model sealed all that it held")),
            (partial(join, summary=summary), ("merge", "neighbours of one role")),
            (fit_media, ("drop", "")),
        )
    paired = (
        partial(pair_servers, before=before),
        ("server-pair", "half of a call that the server answered was all it held"),
    )
    return (
        (set_free, ("drop", "")),
        (tie, ("drop", "")),
        (name, ("drop", "")),
        (partial(disown, cut=cut), ("drop", "")),
        (partial(drop_unfinished, cut=cut), ("drop", "")),
        (show_media, ("drop", "")),
        (drop_unseen, ("pairing", "a call for a screenshot that never came was all it held")),
        (clean, ("empty", "nothing in it may be sent")),
        (partial(pair, before=before), ("pairing", "its results stand behind their calls, or answer none")),
        paired,
        (
            partial(place_system, lead=lead),
            ("system", "no system message stands here, and it held nothing that others may say"),
        ),
        paired,
        (partial(join, summary=summary), ("merge", "neighbours of one role")),
        (answer_results, ("drop", "")),
        (sign, ("drop", "")),
        (partial(close_ends, first=first, told=told), ("end", "nothing is left of the last message")),
        (fit_media, ("drop", "")),
    )


def _without_thinking(item: Item) -> Item:
    parts = tuple(part for part in item.message.parts if not isinstance(part, Thinking))
    why = "it was signed over what stood before it, and that has changed"
    return item.changed(Message(item.message.role, parts), UNBOUND, why)
