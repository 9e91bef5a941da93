"""The lens: a request body as slots, and slots as a request body, losing nothing in between.

What no edit touched keeps its bytes: the fields beside the messages, every slot with bytes of its own, and inside an
edited message every other part. Without an edit the very body object comes back. Opening a body reads it and nothing
more; ``measure_parsed_request`` counts its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.equality import is_message_field
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, Thinking
from holdfast.messages.size.tokens import build_sized_message, estimate_byte_tokens, measure_messages
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.providers.anthropic import cache_control as breakpoints
from holdfast.providers.api_spec import ApiSpec, FieldPath, MessageGroup
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json,
    decode_json_fields,
    encode_json,
    replace_json_fields,
)
from holdfast.providers.foreign.foreign_bytes import drop_foreign_bytes
from holdfast.providers.registry import API_SPECS, get_api_spec
from holdfast.providers.requests.recognize import recognize_api
from holdfast.state.entries import RequestSetup
from holdfast.state.persistent_sequence import count_shared_prefix_items
from holdfast.state.plan import PlanOptions

_RAW_LIST_DECODER = Decoder(list[Raw])
_ELEMENT_GAP = re.compile(rb"[\s,\[]*")


class ParsedRequest(Struct, frozen=True):
    """A request body, opened: ``messages`` are its messages; ``fields`` all its top-level fields."""

    api: str
    model: str
    body: bytes
    fields: dict[str, Raw]
    messages: tuple[SizedMessage, ...]
    requested_max_tokens: int | None = None
    """The most output tokens the caller asked for."""
    measured_setup: RequestSetup | None = None
    """The frame, where it was measured."""

    @property
    def setup(self) -> RequestSetup:
        """Digest and estimated tokens of what stands before the messages, cache breakpoints aside."""
        return measure_request_setup(self.api, self.fields) if self.measured_setup is None else self.measured_setup

    @property
    def min_output_tokens(self) -> int:
        """The least that an answer may be limited to: more than its model may think in, where the API is told that."""
        thought = _parse_raw_int(_get_raw_at_path(self.fields, ("thinking", "budget_tokens")))
        return min(thought + 1, self.requested_max_tokens or thought + 1) if thought else 0

    @property
    def is_streaming(self) -> bool:
        """Whether the body asks for events; where the address says that (Gemini), no body does."""
        return bytes(self.fields.get("stream", b"")) == b"true"

    @property
    def decode_message(self) -> Callable[[bytes], Message] | None:
        """What made each message of its own bytes; nothing where others had a say."""
        spec = API_SPECS[self.api]
        return spec.decode_message if spec.group_items is None and spec.link_results is None else None


def measure_body_as_setup(parsed_request: ParsedRequest) -> RequestSetup:
    """Return digest and tokens of all that a body holds, where other messages go behind its own."""
    setup = parsed_request.setup
    if not parsed_request.messages:
        return setup
    sized_messages = [build_sized_message(sized_message.message) for sized_message in parsed_request.messages]
    digest = blake2b(
        b"\x00".join([setup.digest.encode(), *(sized_message.digest for sized_message in sized_messages)]),
        digest_size=16,
    ).hexdigest()
    return RequestSetup(digest, setup.tokens + sum(sized_message.tokens for sized_message in sized_messages))


def parse_request(body: bytes, api: str | None = None) -> ParsedRequest:
    """Return the lens of a request body; the API is told from its keys when it is not given.

    Raises ``UnrecognizedContent`` for a body of another API and ``FormatError`` for one that does not decode.
    """
    raw_fields = parse_body_fields(body)
    spec = get_api_spec(recognize_api(raw_fields) if api is None else api)
    return build_parsed_request(spec, body, raw_fields, parse_message_list(spec, raw_fields.get(spec.messages_field)))


def build_parsed_request(
    spec: ApiSpec, body: bytes, fields: dict[str, Raw], sized_messages: tuple[SizedMessage, ...]
) -> ParsedRequest:
    """Return the lens of a body that has these fields, and among them these messages."""
    return ParsedRequest(
        spec.api,
        _parse_raw_string(fields.get("model")),
        body,
        fields,
        sized_messages,
        _find_requested_max_tokens(spec, fields),
    )


def parse_message_list(spec: ApiSpec, raw_list: Raw | None) -> tuple[SizedMessage, ...]:
    """Return the messages of a list; ``FormatError`` for one that does not decode."""
    messages, raws = _decode_message_list(spec, raw_list)
    if spec.link_results is not None:
        messages = spec.link_results(messages)
    return tuple([SizedMessage(message, 0, b"", spec.api, raw) for message, raw in zip(messages, raws, strict=True)])


def measure_parsed_request(parsed_request: ParsedRequest) -> ParsedRequest:
    """Return ``parsed_request`` with the size and the digest of every slot, and of its frame."""
    pairs = zip(
        parsed_request.messages,
        measure_messages([sized_message.message for sized_message in parsed_request.messages]),
        strict=True,
    )
    sized_messages = [
        SizedMessage(sized_message.message, size, digest, sized_message.api, sized_message.raw)
        for sized_message, (size, digest) in pairs
    ]
    return replace(parsed_request, messages=tuple(sized_messages), measured_setup=parsed_request.setup)


def render_request(
    parsed_request: ParsedRequest, sized_messages: Sequence[SizedMessage], options: PlanOptions = PlanOptions()
) -> bytes:
    """Return the request body that shows ``sized_messages`` in place of the lens's own.

    The same body object comes back when they are its own and ``options`` change nothing. ``options.markers`` are
    positions in ``sized_messages``; where there is no room for all beside those that stand, the first ones go first. Of
    those that other slots than the lens's own bring along, the newest stay that there is room for.
    """
    return _render_body(parsed_request, sized_messages, options)


def _render_body(
    parsed_request: ParsedRequest,
    sized_messages: Sequence[SizedMessage],
    options: PlanOptions,
    unmarked_from: int | None = None,
) -> bytes:
    """Return the body that shows ``sized_messages``, which bring no breakpoints along from the one at
    ``unmarked_from`` on.
    """
    own = _has_same_bytes(sized_messages, parsed_request.messages)
    if own and options == PlanOptions():
        return parsed_request.body
    spec = API_SPECS[parsed_request.api]
    new_fields = _build_max_tokens_field(parsed_request, options)
    if own and not (spec.supports_cache_control and (options.cache_breakpoints or options.setup_breakpoint)):
        return (
            replace_json_fields(parsed_request.body, parsed_request.fields, new_fields)
            if new_fields
            else parsed_request.body
        )
    encoded_groups = encode_sized_messages(spec, sized_messages)
    if spec.supports_cache_control and not own:
        max_breakpoints = (
            breakpoints.MAX_BREAKPOINTS - len(breakpoints.list_setup_breakpoint_ttls(parsed_request.fields))
            if unmarked_from is None
            else 0
        )
        encoded_groups[unmarked_from or 0 :] = breakpoints.keep_newest_breakpoints(
            encoded_groups[unmarked_from or 0 :], max_breakpoints
        )
    if spec.supports_cache_control and (options.cache_breakpoints or options.setup_breakpoint):
        new_fields |= _set_cache_breakpoints(parsed_request, encoded_groups, options)
        if (
            own
            and not new_fields
            and all(
                wire == bytes(sized_message.raw or b"")
                for sized_message, wire in _pair_with_encoded_bytes(sized_messages, encoded_groups)
            )
        ):
            return parsed_request.body
    flat = [wire for group in encoded_groups for wire in group]
    return replace_json_fields(
        parsed_request.body,
        parsed_request.fields,
        {**new_fields, spec.messages_field: _join_list_elements(spec, parsed_request, flat)},
    )


def _pair_with_encoded_bytes(
    sized_messages: Sequence[SizedMessage], encoded: Sequence[Sequence[JsonBytes]]
) -> Iterator[tuple[SizedMessage, bytes]]:
    """Yield each slot with what is shown of it."""
    for sized_message, group in zip(sized_messages, encoded, strict=True):
        yield sized_message, b",".join(group)


def build_request_body(
    api: str,
    model: str,
    sized_messages: Sequence[SizedMessage],
    *,
    setup_fields: Mapping[str, Any] = MappingProxyType({}),
    options: PlanOptions = PlanOptions(),
) -> bytes:
    """Return a request body made from ``sized_messages`` without one to start from; ``setup_fields`` are its other
    fields.

    Messages among these stand before all others: the system prompt of an API that has no field for it. Breakpoints that
    ``sized_messages`` bring along are those of other requests, and go.
    """
    spec = get_api_spec(api)
    lead = (
        _count_leading_system_messages(spec, sized_messages)
        if spec.system_fields and not setup_fields.keys() & set(spec.system_fields)
        else 0
    )
    words = [
        sized_message.message.text for sized_message in sized_messages[:lead] if sized_message.message.text.strip()
    ]
    body_fields = {**build_system_field(spec, words), **setup_fields}
    first = body_fields.pop(spec.messages_field, [])
    model_fields = {"model": model} if spec.has_model_field else {}
    base_request = parse_request(encode_json({**model_fields, **body_fields, spec.messages_field: first}), api)
    further = len(base_request.messages) - lead
    shifted_options = replace(
        options, cache_breakpoints=tuple(place + further for place in options.cache_breakpoints if place >= lead)
    )
    return _render_body(
        base_request,
        [*base_request.messages, *sized_messages[lead:]],
        shifted_options,
        unmarked_from=len(base_request.messages),
    )


def build_system_field(spec: ApiSpec, words: Sequence[str]) -> dict[str, Any]:
    """Return the field that holds ``words`` as the system prompt; nothing without words, or without such a field."""
    if not words or not spec.system_fields:
        return {}
    texts = [{"text": text} for text in words]
    return {
        spec.system_fields[0]: [{"type": "text", **text} for text in texts]
        if spec.supports_cache_control
        else {"parts": texts}
    }


def _count_leading_system_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage]) -> int:
    """Return how many system messages with words alone stand first: this API has a field of its own for them."""
    for index, sized_message in enumerate(sized_messages):
        message = _strip_foreign_data(spec, sized_message)
        if message.role != "system" or any(not isinstance(part, Text) for part in message.parts):
            return index
    return len(sized_messages)


# -- reading -----------------------------------------------------------------------------------------------------------


def _decode_message_list(spec: ApiSpec, raw: Raw | None) -> tuple[list[Message], Sequence[Raw]]:
    """Return the messages of the list, and of each the element, or the stretch from its first element to its last."""
    if raw is None:
        return [], []
    if spec.accepts_plain_text and bytes(memoryview(raw)[:1]) == b'"':
        return [spec.decode_message(raw)], [raw]
    raws = decode_json(_RAW_LIST_DECODER, raw, f"$.{spec.messages_field}")
    if spec.group_items is None:
        return _decode_elements(spec, raws), raws
    groups = spec.group_items(raws)
    stretches = raws if len(groups) == len(raws) else [*_slice_group_bytes(bytes(raw), raws, groups)]
    return [group[2] for group in groups], stretches


def _slice_group_bytes(data: bytes, raws: Sequence[Raw], groups: Sequence[MessageGroup]) -> Iterator[Raw]:
    """Yield the bytes of each group of objects, with what stands between them."""
    position = 0
    for start, stop, _ in groups:
        first = data.index(b"{", position)
        position = first + memoryview(raws[start]).nbytes
        if stop == start + 1:
            yield raws[start]
            continue
        for raw in raws[start + 1 : stop]:
            position = data.index(b"{", position) + memoryview(raw).nbytes
        yield Raw(data[first:position])


def _decode_elements(spec: ApiSpec, raws: Sequence[Raw]) -> list[Message]:
    decode, messages = spec.decode_message, list[Message]()
    try:
        for raw in raws:
            messages.append(decode(raw))
    except FormatError as error:
        raise FormatError(f"$.{spec.messages_field}[{len(messages)}]: {error}") from None
    return messages


def _find_requested_max_tokens(spec: ApiSpec, fields: Mapping[str, Raw]) -> int | None:
    """Return the first limit that a body sets."""
    return next(
        (
            number
            for path in spec.max_tokens_paths
            if (number := _parse_raw_int(_get_raw_at_path(fields, path))) is not None
        ),
        None,
    )


def _get_raw_at_path(fields: Mapping[str, Raw], path: FieldPath) -> Raw | None:
    """Return what stands at ``path``, if anything does."""
    raw = fields.get(path[0])
    if raw is None or len(path) == 1:
        return raw
    return _get_raw_at_path(decode_json_fields(raw), path[1:]) if bytes(memoryview(raw)[:1]) == b"{" else None


def _parse_raw_int(raw: Raw | None) -> int | None:
    text = b"" if raw is None else bytes(raw)
    return int(text) if text.isdigit() and len(text) < 16 else None


def _parse_raw_string(raw: Raw | None) -> str:
    data = b"" if raw is None else bytes(raw)
    return str(msgspec.json.decode(data)) if data.startswith(b'"') else ""


def measure_request_setup(api: str, fields: Mapping[str, Raw]) -> RequestSetup:
    """Return digest and estimated tokens of what stands before the messages, cache breakpoints aside."""
    pieces = [(key, _strip_field_cache_control(fields[key])) for key in API_SPECS[api].setup_fields if key in fields]
    pieces = [(key, data) for key, data in pieces if data not in (b"null", b"[]", b'""')]
    if not pieces:
        return RequestSetup()
    digest = blake2b(b"\x00".join(key.encode() + data for key, data in pieces), digest_size=16).hexdigest()
    return RequestSetup(digest, sum(estimate_byte_tokens(_unescape_json_bytes(data)) for _, data in pieces))


def _strip_field_cache_control(raw: Raw) -> bytes:
    """Return the bytes of a field without the ``cache_control`` of its blocks."""
    data = bytes(raw)
    if b'"cache_control"' not in data or not data.startswith(b"["):
        return data
    try:
        blocks = [decode_json_fields(block) for block in _RAW_LIST_DECODER.decode(data)]
    except (FormatError, msgspec.DecodeError):
        return data
    return encode_json([{key: value for key, value in block.items() if key != "cache_control"} for block in blocks])


def _unescape_json_bytes(data: bytes) -> bytes:
    """Return JSON as about the text a model sees of it: without the escapes."""
    return data.replace(b"\\n", b"\n").replace(b'\\"', b'"') if b"\\" in data else data


# -- writing -----------------------------------------------------------------------------------------------------------


def _has_same_bytes(sized_messages: Sequence[SizedMessage], parsed: Sequence[SizedMessage]) -> bool:
    """Whether ``sized_messages`` are the very bytes of ``parsed``, of which one slot may hold several."""
    first = count_shared_prefix_items(sized_messages, parsed)
    if len(sized_messages) != len(parsed):
        remaining_slots = iter(parsed[first:])
        return (
            len(sized_messages) < len(parsed)
            and all(_is_next_run(sized_message, remaining_slots) for sized_message in sized_messages[first:])
            and not [*remaining_slots]
        )
    return all(
        a is b or (a.raw is not None and a.api == b.api and a.raw == b.raw)
        for a, b in zip(sized_messages[first:], parsed[first:], strict=True)
    )


def _is_next_run(sized_message: SizedMessage, parsed: Iterator[SizedMessage]) -> bool:
    """Whether ``sized_message`` is the bytes of what comes next of ``parsed``, which is taken."""
    candidate, expected_raw = next(parsed, None), sized_message.raw
    if candidate is sized_message:
        return True
    if expected_raw is None or candidate is None or candidate.raw is None or candidate.api != sized_message.api:
        return False
    joined_raw = candidate.raw
    while (
        len(joined_raw) < len(expected_raw)
        and (candidate := next(parsed, None)) is not None
        and candidate.raw is not None
    ):
        joined_raw = Raw(b"%b,%b" % (joined_raw, candidate.raw))
    return joined_raw == expected_raw


def encode_sized_messages(spec: ApiSpec, sized_messages: Sequence[SizedMessage]) -> list[list[JsonBytes]]:
    """Return the elements of each slot: its own bytes, or its value written anew."""
    messages: Sequence[Message | None] = [None] * len(sized_messages)
    fresh = [
        sized_message for sized_message in sized_messages if sized_message.raw is None or sized_message.api != spec.api
    ]
    if spec.link_results is not None and any(sized_message.message.results for sized_message in fresh):
        messages = spec.link_results([_strip_foreign_data(spec, sized_message) for sized_message in sized_messages])
    out = [
        _encode_sized_message(spec, sized_message, message)
        for sized_message, message in zip(sized_messages, messages, strict=True)
    ]
    return out if spec.adapt_outputs is None or not fresh else spec.adapt_outputs(out)


def _encode_sized_message(spec: ApiSpec, sized_message: SizedMessage, message: Message | None) -> list[JsonBytes]:
    if sized_message.raw is not None and sized_message.api == spec.api:
        return [sized_message.raw if spec.to_list_bytes is None else spec.to_list_bytes(sized_message.raw)]
    message = _strip_foreign_data(spec, sized_message) if message is None else message
    if sized_message.api in ("", spec.api):
        return [*spec.encode_message(*_drop_parts_client_omits(spec, message, sized_message.base_raw))]
    return [*spec.encode_message(message, None)] if message.parts else []


def _drop_parts_client_omits(spec: ApiSpec, message: Message, base: Raw | None) -> tuple[Message, Raw | None]:
    """Return ``message`` without what its ``base``, as its client sent that, leaves out of an answer; and the base.

    That is reasoning, and fields beside the content. A base of several messages is none.
    """
    if base is None:
        return message, None
    pieces = (
        [base] if spec.group_items is not None else decode_json(_RAW_LIST_DECODER, b"[%b]" % base, "the base message")
    )
    if message.role == "assistant" and any(map(_can_be_omitted_by_client, message.parts)):
        sent_bytes = {bytes(part.raw or b"") for piece in pieces for part in spec.decode_message(piece).parts}
        parts = (
            part
            for part in message.parts
            if not _can_be_omitted_by_client(part) or bytes(part.raw or b"") in sent_bytes
        )
        message = Message(message.role, tuple(parts))
    return message, base if len(pieces) == 1 else None


def _can_be_omitted_by_client(part: Part) -> bool:
    """Whether clients leave ``part`` out of an answer that they send back, and it came with bytes of its own."""
    return part.raw is not None and (
        isinstance(part, Thinking) or (isinstance(part, Opaque) and is_message_field(part))
    )


def _strip_foreign_data(spec: ApiSpec, sized_message: SizedMessage) -> Message:
    """Return the message of a slot with nothing of another API's in it."""
    if sized_message.api == spec.api:
        return sized_message.message
    return (
        strip_foreign_content(sized_message.message, spec.api)
        if sized_message.api
        else drop_foreign_bytes(sized_message.message, spec.api)
    )


def _build_max_tokens_field(parsed_request: ParsedRequest, options: PlanOptions) -> dict[str, bytes]:
    """Return the field that holds the most output tokens, if options set another number: more than what is thought."""
    if options.max_tokens is None:
        return {}
    max_tokens = max(options.max_tokens, parsed_request.min_output_tokens)
    if max_tokens == parsed_request.requested_max_tokens:
        return {}
    paths = API_SPECS[parsed_request.api].max_tokens_paths
    path = next((path for path in paths if _get_raw_at_path(parsed_request.fields, path) is not None), None)
    path = path or next((path for path in paths if path[0] in parsed_request.fields), paths[0])
    number = str(max_tokens).encode()
    if len(path) == 1:
        return {path[0]: number}
    raw = parsed_request.fields.get(path[0], Raw(b"{}"))
    outer = bytes(raw) if bytes(raw).startswith(b"{") else b"{}"
    return {path[0]: replace_json_fields(outer, decode_json_fields(outer), {path[1]: number})}


def _set_cache_breakpoints(
    parsed_request: ParsedRequest, encoded: list[list[JsonBytes]], options: PlanOptions
) -> dict[str, bytes]:
    """Set breakpoints in ``encoded``; return the fields of the frame that got one.

    The first position goes first, then the frame, then the others in turn, as long as fewer than four stand.
    """
    wires = [[bytes(wire) for wire in group] for group in encoded]
    standing = [breakpoints.list_message_breakpoint_ttls(wire) for group in wires for wire in group]
    automatic = parsed_request.fields.get("cache_control")
    used = len(breakpoints.list_setup_breakpoint_ttls(parsed_request.fields)) + sum(map(len, standing))
    positions = [place for place in options.cache_breakpoints if 0 <= place < len(wires) and wires[place]]
    queue: list[int] = [*positions[:1], *([-1] if options.setup_breakpoint else []), *positions[1:]]
    new_fields: dict[str, bytes] = {}
    hour = len(wires) if automatic is not None and b'"1h"' in bytes(automatic) else _find_last_hour_breakpoint(wires)
    for position in queue:
        if used >= breakpoints.MAX_BREAKPOINTS:
            break
        if position < 0:
            new_fields = _mark_setup_field(parsed_request, "1h" if hour >= 0 else "5m")
            used += bool(new_fields)
            continue
        new = breakpoints.add_message_breakpoint(wires[position][-1], "1h" if position < hour else "5m")
        used += new != wires[position][-1]
        wires[position][-1] = encoded[position][-1] = new
    return new_fields


def _find_last_hour_breakpoint(wires: list[list[bytes]]) -> int:
    """Return the last position whose message carries a one-hour breakpoint, or -1: none before it may be shorter."""
    for position in range(len(wires) - 1, -1, -1):
        if any("1h" in breakpoints.list_message_breakpoint_ttls(wire) for wire in wires[position]):
            return position
    return -1


def _mark_setup_field(parsed_request: ParsedRequest, lifetime: str) -> dict[str, bytes]:
    """Return the last part of the frame, system before tools, with a breakpoint; nothing when it has one."""
    for key in ("system", "tools"):
        data = bytes(parsed_request.fields.get(key, Raw(b"")))
        if key == "system" and data.startswith(b'"') and msgspec.json.decode(data).strip():
            data = encode_json([{"type": "text", "text": Raw(data)}])
        if not data.startswith(b"["):
            continue
        blocks = _RAW_LIST_DECODER.decode(data)
        if not blocks:
            continue
        if key == "tools" and "1h" in breakpoints.list_breakpoint_ttls(parsed_request.fields.get("system")):
            lifetime = "1h"
        new = breakpoints.add_breakpoint_to_blocks(blocks, lifetime)
        return {} if new is None else {key: encode_json(new)}
    return {}


def _join_list_elements(
    spec: ApiSpec, parsed_request: ParsedRequest, wires: Sequence[JsonBytes]
) -> list[JsonBytes | memoryview]:
    """Return the list of messages in pieces, spaced as the body spaces its own."""
    old = memoryview(parsed_request.fields.get(spec.messages_field, Raw(b"[]")))
    raws = [sized_message.raw for sized_message in parsed_request.messages if sized_message.raw is not None]
    if not raws or not wires or bytes(old[:1]) != b"[":
        return [b"[", *_interleave_separator(b",", wires), b"]"]
    start = _skip_element_gap(old, 0)
    first = start + memoryview(raws[0]).nbytes
    between = old[first : _skip_element_gap(old, first)] if len(raws) > 1 else b","
    last = old.nbytes - 1
    while old[last - 1] in b" \t\r\n":
        last -= 1
    return [old[:start], *_interleave_separator(between, wires), old[last:]]


def _skip_element_gap(data: memoryview, position: int) -> int:
    """Return where what stands between two elements ends."""
    match = _ELEMENT_GAP.match(data, position)
    return position if match is None else match.end()


def _interleave_separator(mark: JsonBytes | memoryview, wires: Sequence[JsonBytes]) -> Iterator[JsonBytes | memoryview]:
    for index, wire in enumerate(wires):
        if index:
            yield mark
        yield wire
