"""Render sized messages as a request body: back into the body that they were parsed from, or into a new one.

Bytes that no edit touched are kept: the fields beside the messages, every sized message with bytes of its own, and
inside an edited message every other part. Without an edit the very same body object comes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.messages.equality import is_message_field
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, Thinking
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.api_spec import ApiSpec, FieldPath
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    replace_json_fields,
)
from holdfast.providers.foreign.foreign_bytes import drop_foreign_bytes
from holdfast.providers.registry import API_SPECS, get_api_spec
from holdfast.providers.requests.parsed_request import ParsedRequest, get_raw_at_path, parse_request
from holdfast.state.persistent_sequence import count_shared_prefix_items
from holdfast.state.plan import PlanOptions

_RAW_LIST_DECODER = Decoder(list[Raw])
# Whitespace, the comma between two elements of a list, and the bracket that opens it.
_ELEMENT_GAP = re.compile(rb"[\s,\[]*")


def render_request(
    parsed_request: ParsedRequest, sized_messages: Sequence[SizedMessage], options: PlanOptions = PlanOptions()
) -> bytes:
    """Render ``parsed_request`` with ``sized_messages`` in place of its own messages.

    The same body object comes back if they are the request's own messages and ``options`` change nothing.
    ``options.cache_breakpoints`` are positions in ``sized_messages``; if they and the breakpoints already there are
    more than the API allows, the first positions win. Of breakpoints that replaced messages carry, the newest that fit
    stay.
    """
    return _render_body(parsed_request, sized_messages, options)


def _render_body(
    parsed_request: ParsedRequest,
    sized_messages: Sequence[SizedMessage],
    options: PlanOptions,
    unmarked_from: int | None = None,
) -> bytes:
    """Render the body with ``sized_messages``; those from ``unmarked_from`` on lose the breakpoints they carry."""
    spec = API_SPECS[parsed_request.api]
    is_unchanged = _has_same_bytes(sized_messages, parsed_request.messages)
    if is_unchanged and options == PlanOptions():
        return parsed_request.body
    breakpoint_format = spec.breakpoints
    has_planned_breakpoints = bool(options.cache_breakpoints) or options.setup_breakpoint
    places_breakpoints = breakpoint_format is not None and has_planned_breakpoints
    new_fields: dict[str, bytes] = _build_max_tokens_field(parsed_request, options)
    if is_unchanged and not places_breakpoints:
        if not new_fields:
            return parsed_request.body
        return replace_json_fields(parsed_request.body, parsed_request.fields, new_fields)
    encoded_groups = encode_sized_messages(spec, sized_messages)
    if breakpoint_format is not None and not is_unchanged:
        # Stored messages still carry the breakpoints of the requests they were first sent in. Together they soon exceed
        # the number that the API takes, so old ones are dropped before new ones are placed.
        if unmarked_from is None:
            encoded_groups = breakpoint_format.keep_newest(parsed_request.fields, encoded_groups)
        else:
            encoded_groups[unmarked_from:] = breakpoint_format.strip(encoded_groups[unmarked_from:])
    if breakpoint_format is not None and has_planned_breakpoints:
        new_fields |= breakpoint_format.place(parsed_request.fields, encoded_groups, options)
        if is_unchanged and not new_fields and _matches_own_bytes(sized_messages, encoded_groups):
            return parsed_request.body
    elements = [element for group in encoded_groups for element in group]
    new_list = _join_list_elements(spec, parsed_request, elements)
    return replace_json_fields(
        parsed_request.body, parsed_request.fields, {**new_fields, spec.messages_field: new_list}
    )


def _matches_own_bytes(sized_messages: Sequence[SizedMessage], encoded_groups: Sequence[Sequence[JsonBytes]]) -> bool:
    """Return whether every message was encoded as the bytes it already has, so that no breakpoint was added."""
    for sized_message, group in zip(sized_messages, encoded_groups, strict=True):
        if b",".join(group) != bytes(sized_message.raw or b""):
            return False
    return True


def build_request_body(
    api: str,
    model: str,
    sized_messages: Sequence[SizedMessage],
    *,
    setup_fields: Mapping[str, Any] = MappingProxyType({}),
    options: PlanOptions = PlanOptions(),
) -> bytes:
    """Build a request body from ``sized_messages`` alone, with ``setup_fields`` as its other fields.

    Messages in ``setup_fields`` precede all others: the system prompt of an API that has no field for it. For an API
    that has one, leading system messages become that field unless ``setup_fields`` fill it. Breakpoints that
    ``sized_messages`` carry belong to other requests and are dropped. ``options.cache_breakpoints`` are positions in
    ``sized_messages``.
    """
    spec = get_api_spec(api)
    # How many messages at the front go into the system field instead of the list.
    leading_count = 0
    if spec.system_fields and setup_fields.keys().isdisjoint(spec.system_fields):
        leading_count = _count_leading_system_messages(spec, sized_messages)
    leading_texts = [sized_message.message.text for sized_message in sized_messages[:leading_count]]
    system_texts = [text for text in leading_texts if text.strip()]
    body_fields = {**build_system_field(spec, system_texts), **setup_fields}
    setup_messages = body_fields.pop(spec.messages_field, [])
    model_fields = {"model": model} if spec.has_model_field else {}
    base_body = encode_json({**model_fields, **body_fields, spec.messages_field: setup_messages})
    # The body is encoded without ``sized_messages`` and parsed again, because ``_render_body`` puts messages into a
    # parsed request: so a new body and a client's body are made by the same code.
    base_request = parse_request(base_body, api)
    setup_message_count = len(base_request.messages)
    # A planned breakpoint is at a position in ``sized_messages``. In the list of the body the leading messages are
    # missing, and those of ``setup_fields`` come first. A leading message has no place there, so its breakpoint is
    # dropped.
    shift = setup_message_count - leading_count
    positions = []
    for position in options.cache_breakpoints:
        if position >= leading_count:
            positions.append(position + shift)
    inner_breakpoint = options.inner_breakpoint
    if inner_breakpoint is not None:
        inner_breakpoint = (inner_breakpoint[0] + shift, inner_breakpoint[1])
    return _render_body(
        base_request,
        [*base_request.messages, *sized_messages[leading_count:]],
        replace(options, cache_breakpoints=tuple(positions), inner_breakpoint=inner_breakpoint),
        unmarked_from=setup_message_count,
    )


def build_system_field(spec: ApiSpec, words: Sequence[str]) -> dict[str, Any]:
    """Return the field with ``words`` as the system prompt; empty without words, or if the API has no such field."""
    if not words or not spec.system_fields:
        return {}
    field = spec.system_fields[0]
    if spec.supports_cache_control:
        return {field: [{"type": "text", "text": text} for text in words]}
    return {field: {"parts": [{"text": text} for text in words]}}


def _count_leading_system_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage]) -> int:
    """Count the system messages at the front that consist of text alone, and so fit the API's system field."""
    for index, sized_message in enumerate(sized_messages):
        message = _strip_foreign_data(spec, sized_message)
        if message.role != "system":
            return index
        if any(not isinstance(part, Text) for part in message.parts):
            return index
    return len(sized_messages)


def _has_same_bytes(sized_messages: Sequence[SizedMessage], parsed: Sequence[SizedMessage]) -> bool:
    """Return whether ``sized_messages`` are the bytes of ``parsed``; one of the former may hold several of the latter.

    Messages that the planner left alone are the same objects, so the shared beginning costs no comparison of bytes.
    """
    first = count_shared_prefix_items(sized_messages, parsed)
    if len(sized_messages) > len(parsed):
        return False
    if len(sized_messages) < len(parsed):
        remaining = iter(parsed[first:])
        for sized_message in sized_messages[first:]:
            if not _take_matching_run(sized_message, remaining):
                return False
        return next(remaining, None) is None
    for left, right in zip(sized_messages[first:], parsed[first:], strict=True):
        if left is right:
            continue
        if left.raw is None or left.api != right.api or left.raw != right.raw:
            return False
    return True


def _take_matching_run(sized_message: SizedMessage, remaining: Iterator[SizedMessage]) -> bool:
    """Take messages from ``remaining`` and return whether they are, joined by commas, the bytes of ``sized_message``.

    One stored message may hold several elements of the list, such as a provider's compaction and the message beside it.
    """
    candidate = next(remaining, None)
    if candidate is sized_message:
        return True
    expected = sized_message.raw
    if expected is None or candidate is None or candidate.raw is None or candidate.api != sized_message.api:
        return False
    joined = candidate.raw
    while len(joined) < len(expected):
        candidate = next(remaining, None)
        if candidate is None or candidate.raw is None:
            break
        joined = Raw(b"%b,%b" % (joined, candidate.raw))
    return joined == expected


def encode_sized_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage]) -> list[list[JsonBytes]]:
    """Encode each message as elements of the API's list: its own bytes if it has any, else its value written anew."""
    fresh = [message for message in sized_messages if not _has_bytes_of(spec, message)]
    messages: Sequence[Message | None] = [None] * len(sized_messages)
    # Where ids are optional (Gemini), a result that is written anew needs the id and name of its call, which may be in
    # any message before it, so all of them are linked together.
    if spec.link_results is not None and any(sized_message.message.results for sized_message in fresh):
        messages = spec.link_results([_strip_foreign_data(spec, sized_message) for sized_message in sized_messages])
    encoded_groups = []
    for sized_message, message in zip(sized_messages, messages, strict=True):
        encoded_groups.append(_encode_sized_message(spec, sized_message, message))
    if spec.adapt_outputs is None or not fresh:
        return encoded_groups
    return spec.adapt_outputs(encoded_groups)


def _has_bytes_of(spec: ApiSpec, sized_message: SizedMessage) -> bool:
    """Return whether a message has bytes of its own in the form of this API."""
    return sized_message.raw is not None and sized_message.api == spec.api


def _encode_sized_message(spec: ApiSpec, sized_message: SizedMessage, message: Message | None) -> list[JsonBytes]:
    """Encode one message; ``message`` is its value if results were linked, else None."""
    raw = sized_message.raw
    if raw is not None and sized_message.api == spec.api:
        return [raw if spec.to_list_bytes is None else spec.to_list_bytes(raw)]
    if message is None:
        message = _strip_foreign_data(spec, sized_message)
    if sized_message.api not in ("", spec.api):
        # A message of another API that lost all its parts in the conversion says nothing here. Its base is in the other
        # API's form and of no use.
        if message.parts:
            return [*spec.encode_message(message, None)]
        return []
    message, base = _drop_parts_client_omits(spec, message, sized_message.base_raw)
    return [*spec.encode_message(message, base)]


def _drop_parts_client_omits(spec: ApiSpec, message: Message, base: Raw | None) -> tuple[Message, Raw | None]:
    """Return an answer without the reasoning and message fields that the client left out of it, and the base to use.

    The log holds an answer as the provider sent it, while ``base`` is the message as the client sent it back. Writing
    the parts that the client dropped would change the prompt it expects, and miss the prompt cache. A base of several
    messages cannot serve as a model for one, so None is returned for it.
    """
    if base is None:
        return message, None
    base_elements = [base]
    if spec.group_items is None:
        base_elements = decode_json(_RAW_LIST_DECODER, b"[%b]" % base, "the base message")
    if message.role == "assistant" and any(map(_can_be_omitted_by_client, message.parts)):
        sent_bytes: set[bytes] = set()
        sent_items: set[object] = set()
        for element in base_elements:
            sent_parts = spec.decode_message(element).parts
            sent_bytes.update(bytes(part.raw or b"") for part in sent_parts)
            sent_items.update(map(_get_reasoning_item, sent_parts))
        sent_items.discard(None)
        kept_parts = []
        for part in message.parts:
            is_sent = bytes(part.raw or b"") in sent_bytes or _get_reasoning_item(part) in sent_items
            if is_sent or not _can_be_omitted_by_client(part):
                kept_parts.append(part)
        message = Message(message.role, tuple(kept_parts))
    return message, base if len(base_elements) == 1 else None


def _get_reasoning_item(part: Part) -> object:
    """Return what tells an item of reasoning from others whatever its form is, or None for any other part."""
    if not isinstance(part, Thinking) or part.raw is None:
        return None
    try:
        id_ = _ITEM_ID_DECODER.decode(part.raw).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (id_, part.text, part.signature) if id_ else None


class _ItemId(msgspec.Struct):
    id: str = ""


_ITEM_ID_DECODER = Decoder(_ItemId)


def _can_be_omitted_by_client(part: Part) -> bool:
    """Return whether ``part`` came over the wire and clients commonly drop it from answers they send back."""
    if part.raw is None:
        return False
    return isinstance(part, Thinking) or (isinstance(part, Opaque) and is_message_field(part))


def _strip_foreign_data(spec: ApiSpec, sized_message: SizedMessage) -> Message:
    """Return the message without bytes and parts that only another API can read."""
    if sized_message.api == spec.api:
        return sized_message.message
    if sized_message.api:
        return strip_foreign_content(sized_message.message, spec.api)
    # Messages of callers do not say which API read them; their bytes tell.
    return drop_foreign_bytes(sized_message.message, spec.api)


def _build_max_tokens_field(parsed_request: ParsedRequest, options: PlanOptions) -> dict[str, bytes]:
    """Return the top-level field with the planned output limit; empty if the body already has that limit."""
    if options.max_tokens is None:
        return {}
    max_tokens = max(options.max_tokens, parsed_request.min_output_tokens)
    if max_tokens == parsed_request.requested_max_tokens:
        return {}
    path = _choose_max_tokens_path(parsed_request, options.max_tokens_field)
    number = str(max_tokens).encode()
    if len(path) == 1:
        return {path[0]: number}
    raw = bytes(parsed_request.fields.get(path[0], Raw(b"{}")))
    outer = raw if raw.startswith(b"{") else b"{}"
    return {
        path[0]: replace_json_fields(
            outer,
            decode_json_fields(outer),
            {path[1]: number},
        )
    }


def _choose_max_tokens_path(parsed_request: ParsedRequest, default_field: str) -> FieldPath:
    """Return where to write the output limit: where the body has one, else in an object that it has, else by default.

    Chat has two names for the limit and refuses a body that uses both. Some of its providers know only the older one,
    so ``default_field`` may name it.
    """
    paths = API_SPECS[parsed_request.api].max_tokens_paths
    for path in paths:
        if get_raw_at_path(parsed_request.fields, path) is not None:
            return path
    for path in paths:
        if path[0] in parsed_request.fields:
            return path
    return (default_field,) if default_field else paths[0]


def _join_list_elements(
    spec: ApiSpec, parsed_request: ParsedRequest, wires: Sequence[JsonBytes]
) -> list[JsonBytes | memoryview]:
    """Return the list of messages in pieces, with the whitespace of the old list around and between its elements.

    Keeping the client's own spacing keeps the unchanged beginning of the body byte for byte.
    """
    old = memoryview(parsed_request.fields.get(spec.messages_field, Raw(b"[]")))
    raws = []
    for sized_message in parsed_request.messages:
        if sized_message.raw is not None:
            raws.append(sized_message.raw)
    if not raws or not wires or bytes(old[:1]) != b"[":
        return [b"[", *_interleave_separator(b",", wires), b"]"]
    start = _skip_element_gap(old, 0)
    first_end = start + memoryview(raws[0]).nbytes
    separator: bytes | memoryview = b","
    if len(raws) > 1:
        separator = old[first_end : _skip_element_gap(old, first_end)]
    last_end = old.nbytes - 1
    while old[last_end - 1] in b" \t\r\n":
        last_end -= 1
    return [old[:start], *_interleave_separator(separator, wires), old[last_end:]]


def _skip_element_gap(data: memoryview, position: int) -> int:
    """Return the position after the whitespace and comma at ``position``."""
    match = _ELEMENT_GAP.match(data, position)
    return position if match is None else match.end()


def _interleave_separator(
    separator: JsonBytes | memoryview, wires: Sequence[JsonBytes]
) -> Iterator[JsonBytes | memoryview]:
    for index, wire in enumerate(wires):
        if index:
            yield separator
        yield wire
