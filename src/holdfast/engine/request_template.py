"""Requests as they are handed in: words to say, or a whole body of a provider's API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import SummaryWriter
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.upstream.upstream import Upstream, UpstreamRequest
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.common.compaction import add_beta_header
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.native_compaction import find_required_betas
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.recognize import recognize_expected_api
from holdfast.providers.requests.request_body import (
    ParsedRequest,
    build_request_body,
    measure_body_as_setup,
    measure_parsed_request,
    parse_request,
    render_request,
)
from holdfast.state.target import Target

MessageInput: TypeAlias = str | Message | SizedMessage
"""Something to say: a text is the user's."""
RequestInput: TypeAlias = MessageInput | Sequence[MessageInput] | bytes | Mapping[str, Any] | ParsedRequest | None
"""Words to append · a body with the whole conversation, or one that was opened · nothing, to go on with what the log
holds."""
DEFAULT_OUTPUT_TOKENS = 16_000
"""[H] Tokens asked for where an API must be told a limit and nobody says one: few answers of an agent are longer."""


class RequestOptions(Struct, frozen=True):
    """What a request says beside its body: where it goes, and how."""

    stream: bool | None = None
    """Whether the provider is asked for events; by default as the body says, and for words it is."""
    model: str = ""
    """The model of a body that names none (Gemini says it in the address)."""
    upstream: Upstream | None = None
    """Who is asked, where it is not whom the engine asks."""
    observe_only: bool = False
    """Whether the body goes out whatever is decided: it is looked at and written down, no more."""
    writers: tuple[SummaryWriter, ...] = ()
    """Models that write summaries for this request, before those of the engine."""


class RequestTemplate(Struct, frozen=True):
    """What goes out beside the messages that are planned: a target, and the fields or the body they stand in."""

    target: Target
    fields: Mapping[str, Any] = MappingProxyType({})
    parsed_body: ParsedRequest | None = None
    """The body that the caller handed in, where it was one: what nothing touched keeps its bytes."""
    stream: bool = True
    max_output: int | None = None
    """The most tokens that the answer may have, where recovery asks for fewer than the caller does."""
    accepts_empty_answer: bool = False
    """Whether an answer that says nothing is taken as it comes: it was asked again for one already."""
    request_options: RequestOptions = RequestOptions()

    def render_body(
        self, prepared_request: PreparedRequest, sized_messages: Sequence[SizedMessage] | None = None
    ) -> bytes:
        """Return the body that shows ``sized_messages``, those of ``prepared_request`` by default."""
        if self.request_options.observe_only and self.parsed_body is not None:
            return self.parsed_body.body
        shown_messages, options = (
            prepared_request.messages if sized_messages is None else sized_messages,
            prepared_request.plan.options,
        )
        if options.max_tokens is None:
            options = replace(options, max_tokens=self.max_output)
        if self.parsed_body is not None:
            return render_request(self.parsed_body, shown_messages, options)
        api, model = self.target.api, self.target.model
        return build_request_body(api, model, shown_messages, setup_fields=self.fields, options=options)

    def is_client_body(self, body: bytes) -> bool:
        """Whether ``body`` is the caller's own, untouched."""
        return self.parsed_body is not None and body is self.parsed_body.body

    def build_upstream_request(
        self, prepared_request: PreparedRequest, sized_messages: Sequence[SizedMessage] | None = None
    ) -> UpstreamRequest:
        """Return what goes to the provider."""
        api, request_body = self.target.api, self.render_body(prepared_request, sized_messages)
        is_relayed = self.request_options.upstream is not None and self.is_client_body(
            request_body
        )  # its client says what it needs
        beta_features = () if is_relayed else find_required_betas(api, request_body)
        return UpstreamRequest(
            api, request_body, self.target.model, stream=self.stream, headers=add_beta_header({}, beta_features)
        )


def build_template_from_fields(
    target: Target, fields: Mapping[str, Any], request_options: RequestOptions = RequestOptions()
) -> RequestTemplate:
    """Return the request to ``target`` with ``fields`` beside its messages."""
    stream = request_options.stream is not False
    stream_fields = get_api_spec(target.api).options.stream_fields if stream else {}
    all_fields = {**_get_required_fields(target), **stream_fields, **fields}
    try:
        head = parse_request(build_request_body(target.api, target.model, (), setup_fields=all_fields), target.api)
    except (TypeError, msgspec.EncodeError) as error:
        raise FormatError(f"the fields beside the messages are no JSON: {error}; give plain values") from None
    limits = replace(target.limits, requested_output=head.requested_max_tokens, min_output=head.min_output_tokens)
    return RequestTemplate(
        replace(target, setup=measure_body_as_setup(head), limits=limits),
        all_fields,
        stream=stream,
        request_options=request_options,
    )


def _get_required_fields(target: Target) -> dict[str, int]:
    """Return the field that an API must be told, where nobody else says it: how long an answer may be."""
    if not get_api_spec(target.api).options.requires_max_tokens:
        return {}
    return {"max_tokens": min(target.limits.max_output or DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)}


def add_setup_to_target(target: Target, fields: Mapping[str, Any] = MappingProxyType({})) -> Target:
    """Return ``target`` with what the fields beside the messages say: the frame, and the output asked for."""
    return build_template_from_fields(target, fields, RequestOptions(stream=False)).target


def render_prepared_request(
    prepared_request: PreparedRequest, fields: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Return the body of a prepared request that has ``fields`` beside its messages, and what its API must be told."""
    return RequestTemplate(
        prepared_request.target, {**_get_required_fields(prepared_request.target), **fields}
    ).render_body(prepared_request)


def build_template_from_body(
    target: Target, parsed_body: ParsedRequest, request_options: RequestOptions = RequestOptions()
) -> RequestTemplate:
    """Return the request that the opened body ``parsed_body`` is; ``request_options`` says whether it streams where
    the body does not.
    """
    limits = replace(
        target.limits, requested_output=parsed_body.requested_max_tokens, min_output=parsed_body.min_output_tokens
    )
    stream = bool(request_options.stream) or parsed_body.is_streaming
    return RequestTemplate(
        replace(target, setup=parsed_body.setup, limits=limits),
        parsed_body=parsed_body,
        stream=stream,
        request_options=request_options,
    )


def parse_and_measure_body(
    body: bytes | Mapping[str, Any] | ParsedRequest, api: str | None = None, *, is_api_certain: bool = True
) -> ParsedRequest:
    """Return a body with its messages measured; ``FormatError`` for what is none.

    ``api`` is what it speaks; a body with no messages there may be one of another API. Where that is not
    certain, a body of another API may also be known by what only that has.
    """
    if isinstance(body, ParsedRequest):
        return body if body.measured_setup is not None else measure_parsed_request(body)
    try:
        data = body if isinstance(body, bytes) else encode_json(body)
    except (TypeError, ValueError) as error:
        raise FormatError(f"this body is no JSON: {error}; give plain dicts, lists, texts and numbers") from None
    if api is not None and not is_api_certain:
        api = recognize_expected_api(parse_body_fields(data), api)
    parsed_request = parse_request(data, api)
    if api is not None and get_api_spec(api).messages_field not in parsed_request.fields:
        parsed_request = parse_request(data)
    return measure_parsed_request(parsed_request)


def coerce_messages(request_input: RequestInput) -> list[Message | SizedMessage]:
    """Return what is to be said, a text as the user's; ``FormatError`` for what is nothing to say."""
    if request_input is None:
        return []
    items: Iterable[Any] = (
        request_input
        if isinstance(request_input, Sequence) and not isinstance(request_input, str | bytes)
        else [request_input]
    )
    return [_coerce_message(item) for item in items]


def _coerce_message(value: Any) -> Message | SizedMessage:
    if isinstance(value, str):
        return Message.from_text("user", value)
    if isinstance(value, Message | SizedMessage):
        return value
    raise FormatError(
        f"a {type(value).__name__} is nothing to say; give a text or a Message, a whole body to session.run"
    )
