"""Find what is still open in a conversation: what was started, less what has ended, in order.

Everything is found in the log, from its first message on, so that an item outlives any number of compactions. Only
results of tools that a convention names and texts with a client's marker are looked at closely: the rest costs a look
at the name of the tool or a search for a few words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain

import msgspec
from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolCall, ToolResult
from holdfast.messages.text.memo import cache_by_identity
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.open_work.conventions.claude_code import CLAUDE_CODE
from holdfast.planning.open_work.conventions.codex import CODEX
from holdfast.planning.open_work.conventions.copilot_cli import COPILOT_CLI
from holdfast.planning.open_work.conventions.goose import GOOSE
from holdfast.planning.open_work.conventions.openclaw import OPENCLAW
from holdfast.planning.open_work.conventions.opencode import OPENCODE
from holdfast.planning.open_work.conventions.status_objects import STARTING_TOOL, read_status_object
from holdfast.planning.open_work.conventions.todo_lists import PLANNING_TOOL, read_todo_list
from holdfast.planning.open_work.open_items import OpenItems
from holdfast.planning.open_work.section import SECTION_READERS, read_open_notes
from holdfast.planning.open_work.work_events import (
    Convention,
    NoteReader,
    OpenItem,
    ResultReader,
    ToolExchange,
    WorkEvent,
)
from holdfast.state.codec.reading import get_decoder

CONVENTIONS: tuple[Convention, ...] = (CLAUDE_CODE, CODEX, OPENCODE, OPENCLAW, COPILOT_CLI, GOOSE)
"""The conventions of clients. All are tried on every conversation: none says which client wrote it, and a proxy sees
several. Their words differ enough that none reads another's."""

_MAX_MESSAGE_CHARS = 200
"""Characters of a waiting message of the user that an item keeps."""
_EVENT_BYTES = 512
"""Bytes in memory of an event with its texts, about. They bound the memo."""
# An approval of OpenAI's MCP tools; the response is a message with the id of the request.
_APPROVAL_REQUEST_KIND, _APPROVAL_RESPONSE_KIND = "mcp_approval_request", "message"


def _collect_note_readers() -> dict[str, NoteReader]:
    readers: dict[str, NoteReader] = dict(SECTION_READERS)
    for convention in CONVENTIONS:
        readers.update(convention.note_readers)
    return readers


_NOTE_READERS: Mapping[str, NoteReader] = _collect_note_readers()


@lru_cache(maxsize=1024)
def find_result_readers(tool_name: str) -> tuple[ResultReader, ...]:
    """Return the functions that read results of the tool of this name; empty for a tool that starts nothing.

    Names are compared without case, and without the name of a server or a namespace before them.
    """
    name = tool_name.lower()
    bare_name = name.replace(".", "__").replace("/", "__").rpartition("__")[2]
    readers: dict[ResultReader, None] = {}
    for convention in CONVENTIONS:
        reader = convention.result_readers.get(name) or convention.result_readers.get(bare_name)
        if reader is not None:
            readers[reader] = None
    if STARTING_TOOL.search(bare_name):
        readers[read_status_object] = None
    return tuple(readers)


def read_result(call: ToolCall, result: ToolResult) -> Sequence[WorkEvent]:
    """Return what a result says about open work."""
    return read_exchange(call, result) if find_result_readers(call.name) else ()


def _estimate_exchange_memory(events: Sequence[WorkEvent], call: ToolCall, result: ToolResult) -> int:
    text_chars = sum(len(part.text) for part in result.content if type(part) is Text)
    # The memo keeps the whole result alive, with its pictures and what the provider sent.
    media_chars = sum(len(part.source) for part in result.content if type(part) is Media)
    return _EVENT_BYTES * len(events) + len(call.arguments) + text_chars + media_chars


@cache_by_identity(_estimate_exchange_memory)
def read_exchange(call: ToolCall, result: ToolResult) -> Sequence[WorkEvent]:
    """Read a call and its result. Nearly all of a conversation were read for the last compaction too."""
    exchange = ToolExchange(call, result)
    events = list(chain.from_iterable(reader(exchange) for reader in find_result_readers(call.name)))
    # A copy of a branch may hold the shortened text only, with our note in place of the client's words.
    events += read_open_notes(exchange.end)
    return tuple(events)


def read_note(text: str) -> list[WorkEvent]:
    """Return what a text outside of results says about open work; nothing unless a client wrote it."""
    events: list[WorkEvent] = []
    for marker, reader in _NOTE_READERS.items():
        if marker in text:
            events += reader(text)
    return events


def list_open_work(messages: Sequence[Message]) -> tuple[OpenItem, ...]:
    """Return what is still open after ``messages``, a conversation from its beginning, oldest first.

    To-do items come last, in the order of their list.
    """
    reader = _ConversationReader(messages)
    for index, message in enumerate(messages):
        reader.read_message(message, index)
    return reader.list_open_items()


class _ConversationReader:
    """Reads a conversation message by message and keeps what is open."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._items = OpenItems()
        self._calls: dict[str, ToolCall] = {}
        """Calls whose results a convention reads, as long as they wait for one."""
        self._unanswered_messages: list[OpenItem] = []
        """Messages of the user that came since the newest answer."""

    def read_message(self, message: Message, index: int) -> None:
        """Take in message ``index``."""
        if message.role == "assistant":
            self._unanswered_messages.clear()
            for part in message.parts:
                self._read_answer_part(part, index)
            return
        is_from_client = False
        for part in message.parts:
            if type(part) is Text:
                events = read_note(part.text)
                self._items.apply(events, index)
                is_from_client |= bool(events)
            else:
                self._read_response_part(part, index)
        if message.is_turn_start and not is_from_client:
            self._add_unanswered_message(message, index)

    def list_open_items(self) -> tuple[OpenItem, ...]:
        """Return all that is open."""
        # The newest message is the one to be answered; those before it wait.
        waiting_messages = self._unanswered_messages[:-1]
        unanswered_calls = _list_unanswered_calls(self._messages)
        return (*self._items.work, *unanswered_calls, *waiting_messages, *self._items.todos)

    def _read_answer_part(self, part: Part, index: int) -> None:
        if type(part) is Opaque:
            if part.kind == _APPROVAL_REQUEST_KIND and part.signature is not None:
                id_ = part.signature.data
                name = _read_approval_name(part)
                self._items.add(OpenItem("approval", id_, name, "", index, index))
            return
        if type(part) is not ToolCall:
            return
        if find_result_readers(part.name):
            self._calls[part.id] = part
        if PLANNING_TOOL.search(part.name) and part.id not in self._failed_ids:
            todos = read_todo_list(part)
            if todos is not None:
                self._items.apply([todos], index)

    def _read_response_part(self, part: Part, index: int) -> None:
        if type(part) is ToolResult:
            call = self._calls.pop(part.call_id, None)
            if call is not None:
                self._items.apply(read_result(call, part), index)
        elif type(part) is Opaque and part.kind == _APPROVAL_RESPONSE_KIND and part.signature is not None:
            self._items.remove(part.signature.data)

    def _add_unanswered_message(self, message: Message, index: int) -> None:
        text = flatten_to_line(message.text, _MAX_MESSAGE_CHARS)
        if text:
            item = OpenItem("message", "", text, "", index, index)
            self._unanswered_messages.append(item)

    @cached_property
    def _failed_ids(self) -> frozenset[str]:
        """Ids of calls that failed: what they wrote never came into force. Collected only if a to-do list is found."""
        failed_ids: set[str] = set()
        for message in self._messages:
            for part in message.parts:
                if type(part) is ToolResult and part.is_error:
                    failed_ids.add(part.call_id)
        return frozenset(failed_ids)


class _ApprovalRequest(Struct):
    name: str = ""
    server_label: str = ""


def _read_approval_name(part: Opaque) -> str:
    """Return what a request for an approval asks for; empty if it cannot be decoded."""
    if part.raw is None:
        return ""
    try:
        request = get_decoder(_ApprovalRequest).decode(part.raw)
    except msgspec.MsgspecError:
        return ""
    return f"{request.server_label} {request.name}".strip()


def _list_unanswered_calls(messages: Sequence[Message]) -> Iterator[OpenItem]:
    """Yield the calls of the newest answer without a result: they run, or wait for an approval or an answer."""
    answered_ids: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant":
            for call in message.calls:
                if call.id not in answered_ids:
                    yield OpenItem("call", call.id, call.name, "", index, index)
            return
        answered_ids.update(result.call_id for result in message.results)
