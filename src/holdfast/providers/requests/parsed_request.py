"""Parse a request body into sized messages that keep their bytes.

Parsing only reads the body; ``measure_parsed_request`` counts its tokens. ``request_body.py`` writes the messages back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message, estimate_byte_tokens, measure_messages
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.api_spec import ApiSpec, FieldPath, MessageGroup
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import decode_json, decode_json_fields, encode_json
from holdfast.providers.registry import API_SPECS, get_api_spec
from holdfast.providers.requests.recognize import recognize_api
from holdfast.state.entries import RequestSetup

_RAW_LIST_DECODER = Decoder(list[Raw])
# They only tell one version of a field from the next within a session, so eight bytes are more than enough.
FIELD_DIGEST_BYTES = 8
"""Bytes of the digest of a single field of a request's setup."""


class ParsedRequest(Struct, frozen=True):
    """A parsed request body: its top-level ``fields`` in their order, and its ``messages``."""

    api: str
    model: str
    body: bytes
    fields: dict[str, Raw]
    messages: tuple[SizedMessage, ...]
    requested_max_tokens: int | None = None
    """The output limit that the caller set, in tokens."""
    measured_setup: RequestSetup | None = None
    """Digest and size of the setup, once ``measure_parsed_request`` has computed them."""

    @property
    def setup(self) -> RequestSetup:
        """Digest and estimated tokens of the fields that precede the messages; cache breakpoints do not count."""
        if self.measured_setup is not None:
            return self.measured_setup
        return measure_request_setup(self.api, self.fields)

    @property
    def min_output_tokens(self) -> int:
        """The smallest output limit this request may be given; 0 unless it sets a thinking budget.

        The Messages API answers 400 unless ``max_tokens`` is above ``thinking.budget_tokens``. A caller that set a
        lower limit keeps it: the mistake is the caller's, and the provider should report it.
        """
        thinking_budget = _parse_raw_int(get_raw_at_path(self.fields, ("thinking", "budget_tokens")))
        if not thinking_budget:
            return 0
        above_budget = thinking_budget + 1
        return min(above_budget, self.requested_max_tokens or above_budget)

    @property
    def is_streaming(self) -> bool:
        """Whether the body asks for a stream. Always false for Gemini, where the address says it."""
        return bytes(self.fields.get("stream", b"")) == b"true"

    @property
    def decode_message(self) -> Callable[[bytes], Message] | None:
        """The function that decodes each message from its own bytes alone.

        None for APIs where neighbouring elements matter too: items grouped into one message (Responses), results linked
        to calls by order (Gemini).
        """
        spec = API_SPECS[self.api]
        if spec.group_items is not None or spec.link_results is not None:
            return None
        return spec.decode_message


def measure_body_as_setup(parsed_request: ParsedRequest) -> RequestSetup:
    """Measure a whole body as setup, its messages included, for requests that append their messages to these."""
    setup = parsed_request.setup
    if not parsed_request.messages:
        return setup
    digests = [setup.digest.encode()]
    tokens = setup.tokens
    for parsed_message in parsed_request.messages:
        sized_message = build_sized_message(parsed_message.message)
        digests.append(sized_message.digest)
        tokens += sized_message.tokens
    return RequestSetup(blake2b(b"\x00".join(digests), digest_size=16).hexdigest(), tokens)


def parse_request(body: bytes, api: str | None = None) -> ParsedRequest:
    """Parse a request body. Without ``api``, recognize the API by the fields of the body.

    Raises ``UnrecognizedContent`` for a body of another API and ``FormatError`` for one that does not decode.
    """
    raw_fields = parse_body_fields(body)
    spec = get_api_spec(recognize_api(raw_fields) if api is None else api)
    return build_parsed_request(spec, body, raw_fields, parse_message_list(spec, raw_fields.get(spec.messages_field)))


def build_parsed_request(
    spec: ApiSpec,
    body: bytes,
    fields: dict[str, Raw],
    sized_messages: tuple[SizedMessage, ...],
) -> ParsedRequest:
    """Build the parsed form of ``body`` from fields and messages that the caller has already read."""
    return ParsedRequest(
        spec.api,
        _parse_raw_string(fields.get("model")),
        body,
        fields,
        sized_messages,
        _find_requested_max_tokens(spec, fields),
    )


def parse_message_list(spec: ApiSpec, raw_list: Raw | None) -> tuple[SizedMessage, ...]:
    """Parse a list of messages, without measuring them. Raises ``FormatError`` if it does not decode."""
    messages, raws = _decode_message_list(spec, raw_list)
    if spec.link_results is not None:
        messages = spec.link_results(messages)
    sized_messages = []
    for message, raw in zip(messages, raws, strict=True):
        sized_messages.append(SizedMessage(message, 0, b"", spec.api, raw))
    return tuple(sized_messages)


def measure_parsed_request(parsed_request: ParsedRequest) -> ParsedRequest:
    """Return ``parsed_request`` with tokens and digest of every message and of the setup filled in."""
    messages = [sized_message.message for sized_message in parsed_request.messages]
    sized_messages = []
    for old, (tokens, digest) in zip(parsed_request.messages, measure_messages(messages), strict=True):
        sized_messages.append(
            SizedMessage(
                old.message,
                tokens,
                digest,
                old.api,
                old.raw,
            )
        )
    return replace(parsed_request, messages=tuple(sized_messages), measured_setup=parsed_request.setup)


def _decode_message_list(spec: ApiSpec, raw: Raw | None) -> tuple[list[Message], Sequence[Raw]]:
    """Decode a list of messages; return them with the bytes of each: an element, or a run of elements."""
    if raw is None:
        return [], []
    # Responses takes a string in place of the list: it is one message of the user's.
    if spec.accepts_plain_text and bytes(memoryview(raw)[:1]) == b'"':
        return [spec.decode_message(raw)], [raw]
    elements = decode_json(_RAW_LIST_DECODER, raw, f"$.{spec.messages_field}")
    if spec.group_items is None:
        return _decode_elements(spec, elements), elements
    groups = spec.group_items(elements)
    messages = [message for _, _, message in groups]
    if len(groups) == len(elements):
        return messages, elements
    return messages, [*_slice_group_bytes(bytes(raw), elements, groups)]


def _slice_group_bytes(data: bytes, raws: Sequence[Raw], groups: Sequence[MessageGroup]) -> Iterator[Raw]:
    """Yield the bytes of each group of objects in ``data``, with the separators between its objects."""
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
    """Return the output limit of a body, from the first of the API's fields that holds a number."""
    for path in spec.max_tokens_paths:
        number = _parse_raw_int(get_raw_at_path(fields, path))
        if number is not None:
            return number
    return None


def get_raw_at_path(fields: Mapping[str, Raw], path: FieldPath) -> Raw | None:
    """Return the value at ``path``, or None if a step of it is missing."""
    raw = fields.get(path[0])
    if raw is None or len(path) == 1:
        return raw
    if bytes(memoryview(raw)[:1]) != b"{":
        return None
    return get_raw_at_path(decode_json_fields(raw), path[1:])


def _parse_raw_int(raw: Raw | None) -> int | None:
    text = b"" if raw is None else bytes(raw)
    # 15 digits fit a 64-bit integer; a longer number is garbage, and int() of a huge one raises.
    return int(text) if text.isdigit() and len(text) < 16 else None


def _parse_raw_string(raw: Raw | None) -> str:
    data = b"" if raw is None else bytes(raw)
    if not data.startswith(b'"'):
        return ""
    return str(msgspec.json.decode(data))


def measure_request_setup(api: str, fields: Mapping[str, Raw]) -> RequestSetup:
    """Measure the fields that precede the messages (tools, system prompt): digest and estimated tokens.

    Cache breakpoints do not count, since clients move them and the prompt stays the same. Options that part the cache
    are no content, and have only a digest of their own.
    """
    pieces: list[tuple[str, bytes]] = []
    for key in API_SPECS[api].setup_fields:
        if key not in fields:
            continue
        data = _strip_field_cache_control(fields[key])
        if data not in (b"null", b"[]", b'""'):
            pieces.append((key, data))
    if not pieces:
        return RequestSetup()
    digest = blake2b(b"\x00".join(key.encode() + data for key, data in pieces), digest_size=16).hexdigest()
    tokens = sum(estimate_byte_tokens(_unescape_json_bytes(data)) for _, data in pieces)
    options = [(key, bytes(fields[key])) for key in API_SPECS[api].cache_option_fields if key in fields]
    field_digests = []
    for key, data in (*pieces, *options):
        field_digests.append((key, blake2b(data, digest_size=FIELD_DIGEST_BYTES).hexdigest()))
    return RequestSetup(digest, tokens, field_digests=tuple(field_digests))


def _strip_field_cache_control(raw: Raw) -> bytes:
    """Return the bytes of a field without the ``cache_control`` of its blocks."""
    data = bytes(raw)
    if b'"cache_control"' not in data or not data.startswith(b"["):
        return data
    try:
        blocks = [decode_json_fields(block) for block in _RAW_LIST_DECODER.decode(data)]
    except (FormatError, msgspec.DecodeError):
        return data
    for block in blocks:
        block.pop("cache_control", None)
    return encode_json(blocks)


def _unescape_json_bytes(data: bytes) -> bytes:
    """Return JSON without its most frequent escapes, which is roughly the text that the model is charged for."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\n", b"\n").replace(b'\\"', b'"')
