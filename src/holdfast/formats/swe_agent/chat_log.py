"""Rows of a trajectory as messages of Chat Completions, added to a recording one after the other.

Both agents keep the rows that they send through LiteLLM, with fields of their own. An answer that has its command as
text in a fence, and not as a tool call, gets a call made of the command, and the row after it becomes its result: as
words of a user, command output could never be shortened. Ids of entries are the number of the row and a digest of the
message, so that a trajectory that has grown repeats them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from holdfast.errors import FormatError
from holdfast.formats.common.lines import DECODE_ERRORS, LenientDecoder, decode_raw_elements
from holdfast.formats.common.log import CallMetadata, RecordingBuilder, make_short_digest, make_sized_message
from holdfast.messages.message import Message
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import items as openai_responses
from holdfast.state.entries import DecisionEntry, EntryBody, MessageEntry, NoteEntry

COMMAND_TOOL = "bash"
"""Tool of the calls made of commands in text: both agents run them in a shell."""


class _ContentBlock(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""


_CONTENT_BLOCK = LenientDecoder(_ContentBlock)


class ChatLog:
    """A recording under construction: each message follows the one before."""

    def __init__(self, log: RecordingBuilder) -> None:
        self.log = log
        self.leaf: str | None = None
        """The newest entry."""

    @property
    def message_count(self) -> int:
        """Number of messages so far."""
        return self.log.message_counts[self.leaf]

    def add_row(self, number: int, path: str, wire: Mapping[str, Any], at: int | None = None) -> Message | None:
        """Append a message given as fields of Chat Completions; return it, or None if it is kept as a note.

        ``path`` is the JSON path of the row, for the report of one that cannot be read.
        """
        raw = encode_json(wire)
        message = self._decode_row(number, path, raw)
        if message is not None:
            self._append(number, raw, _make_entry(message, raw), at)
        return message

    def add_answer_row(
        self,
        number: int,
        path: str,
        wire: Mapping[str, Any],
        call: CallMetadata,
        at: int | None = None,
    ) -> Message | None:
        """Append an answer of the model like ``add_row``, with its model call."""
        raw = encode_json(wire)
        message = self._decode_row(number, path, raw)
        if message is not None:
            name = _make_row_id(number, raw)
            self.leaf = self.log.add_answer(name, self.leaf, _make_entry(message, raw), call, at)
        return message

    def add_items(
        self,
        number: int,
        path: str,
        items: Sequence[Raw],
        call: CallMetadata | None,
        at: int | None,
    ) -> Message | None:
        """Append a message given as items of the Responses API; with ``call`` it is an answer of the model."""
        raw = b"[" + b",".join(bytes(item) for item in items) + b"]"
        try:
            message = openai_responses.decode_message(raw)
        except (FormatError, *DECODE_ERRORS) as error:
            self.add_unreadable(number, path, raw, str(error))
            return None
        body = MessageEntry(make_sized_message(message, openai_responses.API_NAME, raw))
        if call is None:
            self._append(number, raw, body, at)
        else:
            self.leaf = self.log.add_answer(_make_row_id(number, raw), self.leaf, body, call, at)
        return message

    def add_note(self, number: int, reason: str, raw: bytes) -> None:
        """Append something that was not sent as a note."""
        self._append(number, raw, NoteEntry(reason, raw), None)

    def add_decision(self, number: int, decision: DecisionEntry) -> None:
        """Append edits that the requests from here on show."""
        spans = [f"{edit.span.start}.{edit.span.part}" for edit in decision.edits]
        self._append(number, f"shown {' '.join(spans)}".encode(), decision, None)

    def add_unreadable(self, number: int, path: str, raw: bytes, reason: str) -> None:
        """Keep a row that cannot be read as a note, and report it."""
        self.log.report_problem(0, f"{path} is kept as a note: {reason}")
        self.add_note(number, "message that cannot be read", raw)

    def _decode_row(self, number: int, path: str, raw: bytes) -> Message | None:
        try:
            return openai_chat.decode_message(raw)
        except (FormatError, *DECODE_ERRORS) as error:
            self.add_unreadable(number, path, raw, str(error))
            return None

    def _append(self, number: int, raw: bytes, body: EntryBody, at: int | None) -> None:
        self.leaf = self.log.add_entry(_make_row_id(number, raw), self.leaf, body, at)


def _make_entry(message: Message, raw: bytes) -> MessageEntry:
    return MessageEntry(make_sized_message(message, openai_chat.API_NAME, raw))


def _make_row_id(number: int, raw: bytes) -> str:
    return f"m{number:06}-{make_short_digest(raw.decode(errors='replace'))}"


def make_command_call(id_: str, command: str) -> dict[str, Any]:
    """Return a call of the shell, for a command that an answer has as text."""
    arguments = encode_json({"command": command}).decode()
    return {"id": id_, "type": "function", "function": {"name": COMMAND_TOOL, "arguments": arguments}}


def make_answer_wire(content: Raw | str | None, calls: Sequence[Any], reasoning: str) -> dict[str, Any]:
    """Return an answer as fields of Chat Completions; empty ones are left out, and content may be null beside calls."""
    is_empty = not content or (isinstance(content, Raw) and bytes(content) in (b'""', b"null", b"[]"))
    wire: dict[str, Any] = {"role": "assistant", "content": None if is_empty and calls else content or ""}
    if reasoning:
        wire["reasoning_content"] = reasoning
    if calls:
        wire["tool_calls"] = list(calls)
    return wire


def make_result_wire(call_id: str, content: Raw | str) -> dict[str, Any]:
    """Return a result as fields of Chat Completions."""
    return {"role": "tool", "tool_call_id": call_id, "content": content or ""}


def get_content_text(content: Raw) -> str:
    """Return the text of a ``content``, which is a string or a list of blocks; other blocks have none."""
    data = bytes(content)
    if data.startswith(b'"'):
        return _decode_string(content)
    blocks = [_CONTENT_BLOCK.decode_or_default(block) for block in decode_raw_elements(content)]
    return "\n".join(block.text for block in blocks if block.type == "text")


def _decode_string(raw: Raw) -> str:
    block = _CONTENT_BLOCK.decode_or_default(b'{"text":' + bytes(raw) + b"}")
    return block.text


def join_thinking_blocks(blocks: Raw) -> str:
    """Return the text of the thinking that LiteLLM keeps beside an answer, block by block."""
    texts = []
    for raw in decode_raw_elements(blocks):
        block = _CONTENT_BLOCK.decode_or_default(raw)
        if block.thinking:
            texts.append(block.thinking)
    return "\n\n".join(texts)


def count_unknown_fields(log: RecordingBuilder, fields: Iterable[str], known: frozenset[str], where: str) -> None:
    """Count the fields of an object that nobody reads, so that they are told and not dropped silently."""
    for name in fields:
        if name not in known:
            log.skipped[f"{where}.{name}"] += 1
