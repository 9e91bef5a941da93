"""Parse a body that extends an earlier one, reading only the part that is new.

A client sends the whole conversation with every request, most of it in the same bytes as the last time. Messages in
shared bytes are taken from the earlier parse; only the rest is parsed, as a short body that holds nothing but the new
messages. Without this, the work of a conversation grows with the square of its length.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import find_field_spans
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.parsed_request import (
    ParsedRequest,
    build_parsed_request,
    measure_parsed_request,
    parse_message_list,
)

_MESSAGE_GAP = re.compile(rb"[\s,]*")
_COMPACT_MESSAGE_START = b",{"
"""The separator and the first byte of the next message in a body without whitespace, as most clients write them."""


class IndexedRequest(Struct, frozen=True):
    """A parsed body and the positions of its messages, in bytes from the start of the body."""

    request: ParsedRequest
    list_start: int
    """Position of the bracket that opens the list of messages."""
    message_ends: tuple[int, ...]
    """Position after each message."""


def index_request(
    parsed_request: ParsedRequest, previous: IndexedRequest | None = None, shared_messages: int = 0
) -> IndexedRequest | None:
    """Index the positions of the messages in a parsed body, or return None if its messages are not a list.

    The first ``shared_messages`` positions are taken from ``previous``.
    """
    shared_ends: tuple[int, ...] = ()
    if previous is None:
        start = _find_list_start(parsed_request)
    else:
        start = previous.list_start
        shared_ends = previous.message_ends[:shared_messages]
    if start is None:
        return None
    new_ends: list[int] = []
    position = shared_ends[-1] if shared_ends else start + 1
    for sized_message in parsed_request.messages[len(shared_ends) :]:
        position = _skip_message_gap(parsed_request.body, position) + len(sized_message.raw or b"")
        new_ends.append(position)
    return IndexedRequest(parsed_request, start, shared_ends + tuple(new_ends))


def parse_appended_request(body: bytes, api: str, previous: IndexedRequest) -> tuple[ParsedRequest, int] | None:
    """Parse and measure ``body``, reusing the messages it shares with ``previous``.

    Return the same as ``parse_request``, measured, and the number of messages reused; None if no message is shared.
    Raises the same errors as ``parse_request``.
    """
    spec = get_api_spec(api)
    old = previous.request
    if old.api != api:
        return None
    shared_messages = _count_settled_messages(spec, old.messages, _count_shared_messages(body, previous))
    if not shared_messages:
        return None
    # A short body: all of the new one but the shared messages. What it costs to parse depends on what is new.
    tail_start = _skip_message_gap(body, previous.message_ends[shared_messages - 1])
    short_body = body[: previous.list_start + 1] + body[tail_start:]
    fields = parse_body_fields(short_body)
    raw_list = fields.get(spec.messages_field)
    if raw_list is None:
        return None
    size = memoryview(raw_list).nbytes
    if short_body[previous.list_start : previous.list_start + size] != bytes(raw_list):
        return None  # the list is not the one at the old position: the body has the field twice
    has_same_setup = all(
        fields.get(name) == old.fields.get(name) for name in (*spec.setup_fields, *spec.cache_option_fields)
    )
    # Copied, so that the new messages keep their own list alive and not the whole body around it.
    new_messages = parse_message_list(spec, Raw(bytes(raw_list)))
    whole_list = Raw(memoryview(body)[previous.list_start : tail_start + size - 1])
    whole_fields = {**fields, spec.messages_field: whole_list}
    tail = build_parsed_request(spec, body, whole_fields, new_messages)
    if has_same_setup:
        tail = replace(tail, measured_setup=old.measured_setup)
    tail = measure_parsed_request(tail)
    all_messages = old.messages[:shared_messages] + tail.messages
    return replace(tail, messages=all_messages), shared_messages


def _count_shared_messages(body: bytes, previous: IndexedRequest) -> int:
    """Count the messages of ``previous`` that ``body`` begins with, byte for byte."""
    ends = previous.message_ends
    old_body = previous.request.body
    if ends and body.startswith(memoryview(old_body)[: ends[-1]]):
        return len(ends)
    return bisect_right(ends, count_shared_prefix_bytes(body, old_body))


def _find_list_start(parsed_request: ParsedRequest) -> int | None:
    """Return the position of the list of messages in the body, or None if the messages are not a list."""
    messages_field = get_api_spec(parsed_request.api).messages_field
    try:
        start, _ = find_field_spans(parsed_request.body, parsed_request.fields)[messages_field]
    except (FormatError, KeyError):
        return None
    return start if parsed_request.body.startswith(b"[", start) else None


def count_shared_prefix_bytes(first: bytes, second: bytes) -> int:
    """Count the bytes that both begin with."""
    # Compare ever smaller blocks with ``startswith``: a loop over single bytes in Python would take seconds for a body
    # of some megabytes.
    view = memoryview(second)
    max_length = min(len(first), len(second))
    at = 0
    step = 1 << max_length.bit_length()
    while at < max_length and step:
        end = min(at + step, max_length)
        if first.startswith(view[at:end], at):
            at = end
        else:
            step //= 2
    return at


def _skip_message_gap(body: bytes, position: int) -> int:
    """Return the position where the next message begins, or where the list ends."""
    if body.startswith(_COMPACT_MESSAGE_START, position):
        return position + 1
    match = _MESSAGE_GAP.match(body, position)
    return position if match is None else match.end()


def _count_settled_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage], count: int) -> int:
    """Count the messages, of the first ``count``, that mean the same whatever follows them.

    Where neighbouring elements form one message (Responses), the next element may still join the last one. Where
    results are linked to calls by order (Gemini), an answer and all the results after it are read together.
    """
    if spec.group_items is not None:
        count -= 1
    if spec.link_results is not None:
        while 0 < count < len(sized_messages) and sized_messages[count].message.role != "assistant":
            count -= 1
        if count == len(sized_messages):
            count = _find_last_answer(sized_messages)
    return max(count, 0)


def _find_last_answer(sized_messages: Sequence[SizedMessage]) -> int:
    """Return the index of the last assistant message, or 0 without one."""
    for index in reversed(range(len(sized_messages))):
        if sized_messages[index].message.role == "assistant":
            return index
    return 0
