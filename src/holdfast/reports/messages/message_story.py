"""The history of one message, as ``holdfast why`` tells it: what was said, what requests show now, each decision.

The inspector's page of a message reads less of the log (``message_events.py``, ``message_view.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.messages.sized_message import SizedMessage
from holdfast.reports.describe import get_message_text_lines
from holdfast.reports.messages.read_backs import list_recall_calls, select_read_backs
from holdfast.reports.requests.changed_fields import FieldChange, list_message_field_changes
from holdfast.reports.requests.request_size import RequestSize
from holdfast.reports.sessions.history import (
    BranchHistory,
    MessageAction,
    MessageState,
    get_shown_messages,
    iter_message_actions,
    list_message_visibility,
)
from holdfast.reports.sessions.history import sum_message_sizes as size_of
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, RequestEntry
from holdfast.store.base import SessionInfo


class MessageReplacement(Struct, frozen=True, omit_defaults=True):
    """The text shown in place of a message: the reduced message, or the summary of the compaction ``entry``."""

    tokens: int
    text: str
    entry: str = ""


class ReadBack(Struct, frozen=True):
    """A call of the recall tool with which the model read a message back."""

    entry: str
    """Id of the entry of the message with the call."""
    at: int | None
    text_id: str
    """The id that the call named."""
    request: int
    """Number of the request that it was the answer to, counted from 1; 0 if none is recorded before it."""


class MessageStory(Struct, frozen=True):
    """The history of a message. Tokens are estimates, as in ``holdfast context``."""

    session: str
    message: int
    entry: str
    role: str
    at: int | None
    tokens: int
    """The size of the message as its entry holds it, like ``text``."""
    characters: int
    """Its original length; more than ``text`` has, if it was too long for an entry."""
    text: str
    state: MessageState
    replacement: MessageReplacement | None
    """The text that requests show for it, or None."""
    actions: tuple[MessageAction, ...]
    changed_fields: tuple[FieldChange, ...] = ()
    """Fields that messages of its role are sent with changed, since a server refused them."""
    read_backs: tuple[ReadBack, ...] = ()
    """When the model read it back, oldest first."""


def explain_message(
    info: SessionInfo,
    log: BranchHistory,
    number: int,
    characters: int,
    size: RequestSize,
) -> MessageStory:
    """Explain message ``number``, which originally had ``characters``; tokens are measured by ``size``."""
    entry = log.message_entries[number]
    sized_message = log.state.history.sized_messages[number]
    state = list_message_visibility(log.state)[number]
    actions = tuple(iter_message_actions(log, number, info.format, size))
    return MessageStory(
        session=info.key,
        message=number,
        entry=entry.id,
        role=sized_message.message.role,
        at=entry.time_ms,
        tokens=size.scale_tokens(sized_message.tokens),
        characters=characters,
        text=_join_message_text([sized_message]),
        state=state,
        replacement=_find_replacement(log, number, state, size),
        actions=actions,
        changed_fields=list_message_field_changes(log.state, sized_message.message.role),
        read_backs=tuple(_find_read_backs(log, entry.id, actions)),
    )


def _find_read_backs(log: BranchHistory, said_id: str, actions: Iterable[MessageAction]) -> Iterator[ReadBack]:
    """Yield the calls with which the model read a message back, whose decisions are ``actions``."""
    handles = [handle for action in actions for handle in action.recall]
    request_count = 0
    for entry in log.entries:
        if isinstance(entry.body, RequestEntry):
            request_count += 1
        for call in select_read_backs(list_recall_calls([entry]), said_id, handles):
            yield ReadBack(call.entry, call.at, call.text_id, request_count)


def _find_replacement(
    log: BranchHistory,
    number: int,
    state: MessageState,
    size: RequestSize,
) -> MessageReplacement | None:
    if state != "hidden":
        sized_messages = get_shown_messages(log.state, number)
        return MessageReplacement(size.scale_tokens(size_of(sized_messages)), _join_message_text(sized_messages))
    # An edit that merges several messages shows its text at the first of them.
    covering_index = _find_covering_message(log.state, number)
    if covering_index is not None:
        sized_messages = get_shown_messages(log.state, covering_index)
        if sized_messages:
            return MessageReplacement(size.scale_tokens(size_of(sized_messages)), _join_message_text(sized_messages))
        return None
    # The newest compaction hides the message now; the summaries before it are part of what it replaced.
    for id_, body in reversed(log.state.view.active_decisions):
        if isinstance(body, CompactionEntry):
            if body.summary is None:
                return None
            text = _join_message_text([SizedMessage(body.summary)])
            return MessageReplacement(size.scale_tokens(body.head_tokens), text, id_)
    return None


def _find_covering_message(state: ConversationState, number: int) -> int | None:
    """Return the number of the kept message with an edit that also covers ``number``, or None."""
    for edits in state.view.edits.values():
        for edit in edits:
            is_shown = edit.span.start >= state.view.first_kept
            if edit.span.part is None and edit.span.covers(number) and is_shown:
                return edit.span.start
    return None


def _join_message_text(messages: list[SizedMessage] | tuple[SizedMessage, ...]) -> str:
    return "\n".join(get_message_text_lines(messages))
