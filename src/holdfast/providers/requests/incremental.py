"""A body that grew out of one that is known: what both begin with is not read again.

A client sends the whole conversation each time, and most of it in the bytes of last time. What stands in those bytes
is what it was, so only the rest is opened: as a body of its own, with nothing but the new messages in it.
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
from holdfast.providers.requests.request_body import (
    ParsedRequest,
    build_parsed_request,
    measure_parsed_request,
    parse_message_list,
)

_MESSAGE_GAP = re.compile(rb"[\s,]*")
_COMPACT_MESSAGE_START = b",{"
"""What stands between messages in bodies without white space, as most clients write them, and how the next begins."""


class IndexedRequest(Struct, frozen=True):
    """An opened body, and where its messages stand in it."""

    request: ParsedRequest
    list_start: int
    """Where the list of messages begins."""
    message_ends: tuple[int, ...]
    """Where each message ends."""


def index_request(
    parsed_request: ParsedRequest, previous: IndexedRequest | None = None, shared_messages: int = 0
) -> IndexedRequest | None:
    """Return ``parsed_request`` with the places of its messages; the first ``shared_messages`` are those of
    ``previous``.

    Nothing for a body whose messages are no list.
    """
    start = _find_list_start(parsed_request) if previous is None else previous.list_start
    if start is None:
        return None
    ends, new = previous.message_ends[:shared_messages] if previous is not None else (), list[int]()
    position = ends[-1] if ends else start + 1
    for sized_message in parsed_request.messages[len(ends) :]:
        position = _skip_message_gap(parsed_request.body, position) + len(sized_message.raw or b"")
        new.append(position)
    return IndexedRequest(parsed_request, start, ends + tuple(new))


def parse_appended_request(body: bytes, api: str, previous: IndexedRequest) -> tuple[ParsedRequest, int] | None:
    """Return the lens of ``body``, measured, and how many of its slots are those of ``previous``; nothing where none
    is.

    The lens is the one that ``parse_request`` gives. Raises as that does.
    """
    spec, old = get_api_spec(api), previous.request
    if old.api != api:
        return None
    is_longer = bool(previous.message_ends) and body.startswith(memoryview(old.body)[: previous.message_ends[-1]])
    shared_messages = (
        len(previous.message_ends)
        if is_longer
        else bisect_right(previous.message_ends, count_shared_prefix_bytes(body, old.body))
    )
    shared_messages = _count_settled_messages(spec, old.messages, shared_messages)
    if not shared_messages:
        return None
    tail_start = _skip_message_gap(body, previous.message_ends[shared_messages - 1])
    short_body = body[: previous.list_start + 1] + body[tail_start:]
    fields = parse_body_fields(short_body)
    raw_list = fields.get(spec.messages_field)
    size = 0 if raw_list is None else memoryview(raw_list).nbytes
    if raw_list is None or short_body[previous.list_start : previous.list_start + size] != bytes(raw_list):
        return None  # the field stands there twice
    is_framed = all(fields.get(name) == old.fields.get(name) for name in spec.setup_fields)
    new = parse_message_list(
        spec, Raw(bytes(raw_list))
    )  # read from a list of their own: none holds on to the body around it
    whole = Raw(memoryview(body)[previous.list_start : tail_start + size - 1])
    tail = build_parsed_request(spec, body, {**fields, spec.messages_field: whole}, new)
    tail = measure_parsed_request(replace(tail, measured_setup=old.measured_setup if is_framed else None))
    return replace(tail, messages=old.messages[:shared_messages] + tail.messages), shared_messages


def _find_list_start(parsed_request: ParsedRequest) -> int | None:
    """Return where the list of messages begins; nothing where they are no list."""
    try:
        start = find_field_spans(parsed_request.body, parsed_request.fields)[
            get_api_spec(parsed_request.api).messages_field
        ][0]
    except (FormatError, KeyError):
        return None
    return start if parsed_request.body.startswith(b"[", start) else None


def count_shared_prefix_bytes(first: bytes, second: bytes) -> int:
    """Return how many bytes both begin with."""
    view, max_length, at = memoryview(second), min(len(first), len(second)), 0
    step = 1 << max_length.bit_length()
    while at < max_length and step:
        end = min(at + step, max_length)
        if first.startswith(view[at:end], at):
            at = end
        else:
            step //= 2
    return at


def _skip_message_gap(body: bytes, position: int) -> int:
    """Return where the next message begins, or the list ends."""
    if body.startswith(_COMPACT_MESSAGE_START, position):
        return position + 1
    match = _MESSAGE_GAP.match(body, position)
    return position if match is None else match.end()


def _count_settled_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage], count: int) -> int:
    """Return how many of the first ``count`` messages say the same whatever follows them.

    Elements may join the message before them, and results are tied to calls by what stands between.
    """
    if spec.group_items is not None:
        count -= 1
    if spec.link_results is not None:
        while 0 < count < len(sized_messages) and sized_messages[count].message.role != "assistant":
            count -= 1
        if count == len(sized_messages):
            count = next((at for at in reversed(range(count)) if sized_messages[at].message.role == "assistant"), 0)
    return max(count, 0)
