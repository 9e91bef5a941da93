"""What the model saw in one request, message by message, and what the log holds in its place.

Reads the messages that the request shows and no others, so it takes as long for a long session as for a short one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.reports.describe import get_message_text_lines, summarize_message
from holdfast.reports.requests.context_parts import RequestKindCounter
from holdfast.reports.sessions.history import list_active_decisions, list_shown_edits
from holdfast.reports.sessions.timeline import TimelineRequest
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry
from holdfast.state.view import build_projection, list_projection_origins
from holdfast.store.base import SessionInfo, SessionStore

ShownAs: TypeAlias = Literal["whole", "reduced", "summary"]
CachePart: TypeAlias = Literal["read", "written", "fresh", ""]
SUMMARY_NUMBER = -1
"""Number of a summary, which is no message of the conversation."""


class ShownMessage(Struct, frozen=True):
    """A message as a request shows it. Tokens are estimates, scaled to the provider's count if it gave one."""

    number: int
    """Its number in the conversation; ``SUMMARY_NUMBER`` for a summary."""
    role: str
    shown_as: ShownAs
    tokens: int
    said_tokens: int
    """What it has in the log; the same as ``tokens`` if it is shown whole."""
    cache: CachePart
    """Whether the provider read it from its cache, wrote it there, or neither; empty if it reported nothing."""
    summary: str
    """Its parts on one line."""
    text: str
    edits: tuple[Edit, ...] = ()
    """The decisions that reduced it."""


class HiddenMessages(Struct, frozen=True):
    """Neighboring messages that a request does not show."""

    first: int
    last: int
    tokens: int
    """What they have in the log."""

    @property
    def count(self) -> int:
        """How many messages they are."""
        return self.last - self.first + 1


class DecisionInForce(Struct, frozen=True):
    """A decision that a request repeats."""

    entry: str
    kind: Literal["decision", "compaction"]
    rules: dict[str, int]
    """How many of its edits are on messages that the request shows, by rule."""
    saves: int


class RequestView(Struct, frozen=True):
    """The contents of one request."""

    setup_tokens: int
    items: tuple[ShownMessage | HiddenMessages, ...]
    """In the order of the request; hidden messages stand where they would be."""
    kinds: dict[str, int]
    """Tokens by kind of content, as in ``context_parts``."""
    decisions: tuple[DecisionInForce, ...]
    """Oldest first."""
    tokens: int
    is_counted: bool
    """Whether ``tokens`` is the provider's count."""

    @property
    def hidden_tokens(self) -> int:
        """Tokens of the messages that it does not show."""
        return sum(item.tokens for item in self.items if isinstance(item, HiddenMessages))

    @property
    def shown_count(self) -> int:
        """How many messages it shows."""
        return sum(isinstance(item, ShownMessage) for item in self.items)


def load_request_view(store: SessionStore, info: SessionInfo, request: TimelineRequest) -> RequestView:
    """Load the contents of ``request``, one of the session's timeline.

    Raises ``UnknownId`` if its entry is gone, and ``StoreCorrupt`` if one of its messages cannot be read.
    """
    return build_request_view(store.open_state(info.key, request.request), request)


def build_request_view(state: ConversationState, request: TimelineRequest) -> RequestView:
    """Build the contents of ``request`` from the state at its entry."""
    usage = request.usage
    shown_messages = [_measure(sized_message) for sized_message in build_projection(state)]
    estimated_tokens = state.setup.tokens + sum(message.tokens for message in shown_messages)
    scale = usage.input / estimated_tokens if usage.input and estimated_tokens else 1.0
    setup_tokens = round(scale * state.setup.tokens)
    position: float = setup_tokens
    items: list[ShownMessage | HiddenMessages] = []
    # A summary stands before the first message after those that it stands for.
    summaries: list[ShownMessage] = []
    next_number = 0
    for sized_message, number in zip(shown_messages, list_projection_origins(state), strict=True):
        position += scale * sized_message.tokens
        shown = _make_shown(state, sized_message, number, scale, _find_cache_part(request, position))
        if number == SUMMARY_NUMBER:
            summaries.append(shown)
            continue
        if number > next_number:
            items.append(_make_hidden(state, next_number, number - 1, scale))
        items += [*summaries, shown]
        summaries = []
        next_number = max(next_number, number + 1)
    items += summaries
    return RequestView(
        setup_tokens=setup_tokens,
        items=tuple(items),
        kinds=RequestKindCounter().count(state, usage.input),
        decisions=_list_decisions(state, scale),
        tokens=usage.input or estimated_tokens,
        is_counted=usage.input > 0,
    )


def _measure(message: SizedMessage) -> SizedMessage:
    """Return ``message`` with its size: what a decision put in a message's place may not have been measured yet."""
    return message if message.tokens else build_sized_message(message.message)


def _make_shown(
    state: ConversationState, message: SizedMessage, number: int, scale: float, cache: CachePart
) -> ShownMessage:
    edits = () if number == SUMMARY_NUMBER else state.view.edits.get(number, ())
    shown_as: ShownAs = "whole"
    said_tokens = message.tokens
    if number == SUMMARY_NUMBER:
        shown_as = "summary"
    elif edits:
        shown_as = "reduced"
        said_tokens = state.history.sized_messages[number].tokens
    return ShownMessage(
        number=number,
        role=message.message.role,
        shown_as=shown_as,
        tokens=round(scale * message.tokens),
        said_tokens=round(scale * said_tokens),
        cache=cache,
        summary=summarize_message(message.message),
        text="\n".join(get_message_text_lines([message])),
        edits=edits,
    )


def _make_hidden(state: ConversationState, first: int, last: int, scale: float) -> HiddenMessages:
    cumulative = state.history.cumulative_tokens
    tokens = cumulative[last] - (cumulative[first - 1] if first else 0)
    return HiddenMessages(first, last, round(scale * tokens))


def _find_cache_part(request: TimelineRequest, end: float) -> CachePart:
    """Return what the cache did with a message that ends ``end`` tokens into the request."""
    usage = request.usage
    if not (usage.cache_read or usage.cache_write):
        return ""
    # Half a token of rounding for each of the messages before does not make one fresh.
    if end <= usage.cache_read + 1:
        return "read"
    if end <= usage.cache_read + usage.cache_write + 1:
        return "written"
    return "fresh"


def _list_decisions(state: ConversationState, scale: float) -> tuple[DecisionInForce, ...]:
    decisions = []
    for entry_id, body in list_active_decisions(state):
        rules: dict[str, int] = {}
        edits = list_shown_edits(state, body)
        for edit in edits:
            rules[edit.rule] = rules.get(edit.rule, 0) + 1
        saves = sum(edit.saves for edit in edits)
        if isinstance(body, CompactionEntry):
            saves += max(0, body.tokens_before - body.tokens_after)
        kind: Literal["decision", "compaction"] = "decision" if isinstance(body, DecisionEntry) else "compaction"
        decisions.append(DecisionInForce(entry_id, kind, rules, round(scale * saves)))
    return tuple(decisions)
