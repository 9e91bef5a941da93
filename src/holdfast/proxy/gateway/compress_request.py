"""Read the body of ``POST /v1/compress``: the messages of a conversation, or the part of it that a gateway sends.

Every mistake is a ``FormatError`` with the JSON path and one thing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta, Raw, Struct

from holdfast.engine.request_template import parse_and_measure_body
from holdfast.errors import FormatError
from holdfast.messages.parts import Opaque, ToolResult
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import decode_json, encode_json
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.proxy.conversation.clients import ClientIdentity
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.state.codec.reading import get_decoder

AFFINITY_HEADERS = ("x-headroom-affinity", "x-holdfast-session")
"""Headers that name a conversation, the one of the gateways first."""
RETRIEVAL_MODE = "ccr"
"""``config.mode`` of a gateway that offers its model a tool to read texts back ("compress, cache, retrieve")."""
CHAT_API, MESSAGES_API = "openai-chat", "anthropic"
GATEWAY_APIS = (CHAT_API, MESSAGES_API)
"""The APIs whose messages are understood. Gateways send Chat Completions; some pass a client's Messages body on."""
_MESSAGES_API_BLOCKS = frozenset({"tool_use", "tool_result"})
"""Content blocks that only the Messages API has; one of them tells that the messages are in its form."""
_SCOPE, _EXTRACT_SCOPE = "gateway", "gateway-extract"
"""Scopes of the sessions without and with extracts. They are kept apart, since a compaction hides messages, and a
caller that expects each of its messages back must never get a conversation with some of them hidden."""
_NAMED_SUFFIX = "-thread"
"""End of the keys of sessions that their gateway names (``make_session_key``)."""


class _CompressConfig(Struct, frozen=True):
    """The settings of one call; fields of other services are ignored."""

    mode: str | None = None
    window: Annotated[int, Meta(ge=1)] | None = None
    """The most tokens that the conversation may use; None for the model's window."""
    extract: bool | None = None
    """Whether old messages may be replaced by an extract, so that fewer messages come back than were sent."""


class _CompressFields(Struct, frozen=True):
    """The fields of the body beside the messages."""

    model: str | None = None
    config: _CompressConfig | None = None


class CompressRequest(Struct, frozen=True):
    """Messages to be made smaller."""

    parsed_body: ParsedRequest
    """The messages as a request body of their API, measured."""
    raw_messages: Raw
    """The list of messages as it came."""
    session_key: str
    config: _CompressConfig = _CompressConfig()
    is_partial: bool = False
    """Whether messages are missing: there are tool results whose calls were not sent."""

    @property
    def offers_retrieval(self) -> bool:
        """Whether the model gets a tool that reads texts back by their hash."""
        return self.config.mode == RETRIEVAL_MODE

    @property
    def allows_extract(self) -> bool:
        """Whether fewer messages may come back than were sent."""
        return bool(self.config.extract)


def parse_compress_request(body: bytes, headers: Mapping[str, str]) -> CompressRequest:
    """Parse and measure ``body``; names of ``headers`` are in lower case.

    Raises ``FormatError``, which says where the mistake is, for a body that is none of this endpoint.
    """
    # Some clients cut texts inside a character; a provider would refuse half of one.
    body = replace_surrogates_in_bytes(body)
    raw_messages = parse_body_fields(body).get("messages")
    if raw_messages is None:
        raise FormatError("$.messages is missing; send the conversation as a list of Chat Completions messages")
    other_fields = decode_json(get_decoder(_CompressFields), body, "the body")
    config = other_fields.config or _CompressConfig()
    parsed_body = _parse_messages(raw_messages, other_fields.model or "")
    orphan_index = _find_orphan_result(parsed_body)
    if config.extract and orphan_index is not None:
        raise FormatError(
            f"$.messages[{orphan_index}] answers a call that is not among the messages; send the whole conversation, "
            "or leave config.extract out"
        )
    session_key = _make_gateway_key(parsed_body, get_affinity(headers), allows_extract=bool(config.extract))
    return CompressRequest(parsed_body, raw_messages, session_key, config, is_partial=orphan_index is not None)


def get_affinity(headers: Mapping[str, str]) -> str:
    """Return the name that the gateway gives the conversation, or ``""`` if it gives none."""
    for name in AFFINITY_HEADERS:
        if headers.get(name):
            return headers[name]
    return ""


def list_named_session_keys(affinity: str) -> list[str]:
    """Return the keys that sessions named ``affinity`` can have."""
    keys: list[str] = []
    for scope in (_SCOPE, _EXTRACT_SCOPE):
        keys += [f"{api}-{scope}-{_hash_affinity(affinity)}{_NAMED_SUFFIX}" for api in GATEWAY_APIS]
    return keys


def is_unnamed_session_key(key: str) -> bool:
    """Return whether ``key`` is that of a gateway's conversation that was sent without a name."""
    is_gateway_key = any(key.startswith(f"{api}-{_SCOPE}-") for api in GATEWAY_APIS)
    return is_gateway_key and not key.endswith(_NAMED_SUFFIX)


def _parse_messages(raw_messages: Raw, model: str) -> ParsedRequest:
    """Parse ``raw_messages`` as the body of a request to ``model``, in the form of the API that they are in."""
    # Without the other fields, since those are no part of what the model is sent: they must not count as its setup.
    body = encode_json({"model": model, "messages": raw_messages})
    parsed_body = parse_and_measure_body(body, CHAT_API)
    for sized_message in parsed_body.messages:
        for part in sized_message.message.parts:
            if isinstance(part, Opaque) and part.kind in _MESSAGES_API_BLOCKS:
                return parse_and_measure_body(body, MESSAGES_API)
    return parsed_body


def _find_orphan_result(parsed_body: ParsedRequest) -> int | None:
    """Return the index of the first message with a tool result whose call does not stand before it, or None."""
    call_ids: set[str] = set()
    for index, sized_message in enumerate(parsed_body.messages):
        for part in sized_message.message.parts:
            if isinstance(part, ToolResult) and part.call_id not in call_ids:
                return index
        call_ids.update(call.id for call in sized_message.message.calls)
    return None


def _make_gateway_key(parsed_body: ParsedRequest, affinity: str, *, allows_extract: bool) -> str:
    scope = _EXTRACT_SCOPE if allows_extract else _SCOPE
    if affinity:
        scope = f"{scope}-{_hash_affinity(affinity)}"
    return make_session_key(ClientIdentity("", scope, is_thread=bool(affinity)), parsed_body)


def _hash_affinity(affinity: str) -> str:
    return blake2b(affinity.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
