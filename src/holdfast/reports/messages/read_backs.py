"""When the model read a message back: its calls of the recall tool that name the message or a text stored of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.engine.recall import RECALL_TOOL_NAME
from holdfast.engine.recall_sources import MIN_ID_PREFIX
from holdfast.messages.message import Message
from holdfast.state.entries import Entry, MessageEntry

RECALL_NAMES = frozenset({RECALL_TOOL_NAME, "fetch_result"})
"""Names of the tool; the reference agent calls it ``fetch_result``. Over MCP the server's name stands before it."""
MAX_CALL_TOKENS = 2_000
"""Estimated tokens of a message that is searched for calls in a large log. Chosen by judgement: a model writes little
beside such a call, and results, which are nearly all of a log's bytes, are not read."""
MIN_HANDLE_CHARS = 6
"""Characters from which the beginning of a stored text's hash is taken for it, as the recall tool does."""
_SERVER_PREFIX = re.compile(r"^.*(?:__|[./:])")
_SUFFIX = re.compile(r"\.(?:txt|json)\Z")


class RecallCall(Struct, frozen=True):
    """A call of the recall tool for one text."""

    entry: str
    """Id of the entry of the message with the call."""
    seq: int
    at: int | None
    text_id: str
    """The id that it asked for: the beginning of a stored text's hash, or of an entry's id."""


def iterate_recall_ids(message: Message) -> Iterator[str]:
    """Yield the id of each text that the calls in ``message`` read back; a search without an id names none."""
    for call in message.calls:
        if _SERVER_PREFIX.sub("", call.name) not in RECALL_NAMES:
            continue
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            continue
        text_id = arguments.get("id") if isinstance(arguments, dict) else None
        if isinstance(text_id, str | int) and str(text_id).strip():
            yield _SUFFIX.sub("", str(text_id).strip())


def list_recall_calls(entries: Iterable[Entry]) -> list[RecallCall]:
    """List the calls of the recall tool in ``entries``, in order."""
    calls: list[RecallCall] = []
    for entry in entries:
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            calls += [
                RecallCall(entry.id, entry.seq, entry.time_ms, text_id) for text_id in iterate_recall_ids(message)
            ]
    return calls


def select_read_backs(calls: Iterable[RecallCall], said_id: str, handles: Iterable[str]) -> list[RecallCall]:
    """Select the calls that read one message back.

    ``said_id`` is the id of its entry; ``handles`` are the short ids of the texts that were stored of it.
    """
    known_handles = tuple(handles)
    selected: list[RecallCall] = []
    for call in calls:
        text_id = call.text_id
        is_of_message = said_id == text_id or (len(text_id) >= MIN_ID_PREFIX and said_id.startswith(text_id))
        is_of_text = len(text_id) >= MIN_HANDLE_CHARS and any(
            handle.startswith(text_id.lower()) or text_id.lower().startswith(handle) for handle in known_handles
        )
        if is_of_message or is_of_text:
            selected.append(call)
    return selected
