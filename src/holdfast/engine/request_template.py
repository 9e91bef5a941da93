"""Request templates: the target and fields, or the client's body, that planned messages are put into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from holdfast.providers.dialects.registry import get_provider_rules
from holdfast.providers.dialects.request_provider import get_dialect_provider
from holdfast.providers.native_compaction import find_required_betas
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.parsed_request import (
    ParsedRequest,
    measure_body_as_setup,
    measure_parsed_request,
    parse_request,
)
from holdfast.providers.requests.recognize import recognize_expected_api
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.state.target import Target

MessageInput: TypeAlias = str | Message | SizedMessage
"""A message to append; a plain text is a user message."""
RequestInput: TypeAlias = MessageInput | Sequence[MessageInput] | bytes | Mapping[str, Any] | ParsedRequest | None
"""Messages to append · a body with the whole conversation, parsed or not · None, to continue the log as it is."""
# Few answers of an agent are longer, and the reserve for the answer is taken from the window. Chosen by judgement.
DEFAULT_OUTPUT_TOKENS = 16_000
"""Output limit sent to an API that requires one, if the caller sets none."""


class RequestOptions(Struct, frozen=True):
    """Options of one request that are not in its body."""

    stream: bool | None = None
    """Whether the provider is asked for events; None = as the body says, and True for requests made from messages."""
    model: str = ""
    """The model of a body that names none (Gemini names it in the URL)."""
    upstream: Upstream | None = None
    """The upstream to send to; None = the engine's."""
    observe_only: bool = False
    """Whether the body is sent unchanged: the conversation is recorded and planned, but the plan is not applied."""
    writers: tuple[SummaryWriter, ...] = ()
    """Models that write summaries for this request, before those of the engine."""


class RequestTemplate(Struct, frozen=True):
    """Everything of a request except the planned messages: the target, and the fields or the body around them."""

    target: Target
    fields: Mapping[str, Any] = MappingProxyType({})
    parsed_body: ParsedRequest | None = None
    """The caller's body, if there is one; all parts of it that no edit touches keep their bytes."""
    stream: bool = True
    max_output: int | None = None
    """Output limit set by recovery, below the caller's; None if it has set none."""
    accepts_empty_answer: bool = False
    """Whether an empty answer is accepted: the request was sent again because of one already."""
    request_options: RequestOptions = RequestOptions()

    def render_body(
        self, prepared_request: PreparedRequest, sized_messages: Sequence[SizedMessage] | None = None
    ) -> bytes:
        """Return the body that shows ``sized_messages``, by default those of ``prepared_request``."""
        if self.request_options.observe_only and self.parsed_body is not None:
            return self.parsed_body.body
        shown_messages = prepared_request.messages if sized_messages is None else sized_messages
        options = prepared_request.plan.options
        if options.max_tokens is None:
            options = replace(options, max_tokens=self.max_output)
        if options.max_tokens is not None:
            options = replace(options, max_tokens_field=self.target.dialect.max_tokens_field)
        if self.parsed_body is not None:
            return render_request(self.parsed_body, shown_messages, options)
        api, model = self.target.api, self.target.model
        return build_request_body(
            api,
            model,
            shown_messages,
            setup_fields=self.fields,
            options=options,
        )

    def is_client_body(self, body: bytes) -> bool:
        """Return whether ``body`` is the caller's own bytes object, untouched."""
        return self.parsed_body is not None and body is self.parsed_body.body

    def build_upstream_request(
        self, prepared_request: PreparedRequest, sized_messages: Sequence[SizedMessage] | None = None
    ) -> UpstreamRequest:
        """Return the request to send: its body, and the beta headers that the body needs."""
        api = self.target.api
        body = self.render_body(prepared_request, sized_messages)
        # A relayed body comes with its client's own headers, which say what it needs.
        is_relayed = self.request_options.upstream is not None and self.is_client_body(body)
        betas = () if is_relayed else find_required_betas(api, body)
        return UpstreamRequest(
            api,
            body,
            self.target.model,
            stream=self.stream,
            headers=add_beta_header({}, betas),
        )


def build_template_from_fields(
    target: Target, fields: Mapping[str, Any], request_options: RequestOptions = RequestOptions()
) -> RequestTemplate:
    """Build a template for ``target`` with ``fields`` beside the messages.

    Raises ``FormatError`` if the fields cannot be encoded as JSON.
    """
    stream = request_options.stream is not False
    stream_fields = _get_stream_fields(target) if stream else {}
    all_fields = {**_get_required_fields(target), **stream_fields, **fields}
    try:
        body_without_messages = build_request_body(target.api, target.model, (), setup_fields=all_fields)
        parsed_fields = parse_request(body_without_messages, target.api)
    except (TypeError, msgspec.EncodeError) as error:
        raise FormatError(f"the fields beside the messages are not JSON: {error}; give plain values") from None
    limits = replace(
        target.limits,
        requested_output=parsed_fields.requested_max_tokens,
        min_output=parsed_fields.min_output_tokens,
    )
    return RequestTemplate(
        replace(target, setup=measure_body_as_setup(parsed_fields), limits=limits),
        all_fields,
        stream=stream,
        request_options=request_options,
    )


def _get_stream_fields(target: Target) -> Mapping[str, Any]:
    """Return the fields that ask the target's provider for a stream."""
    fields = get_api_spec(target.api).options.stream_fields
    rules = get_provider_rules(target.api, target.model, target.dialect.provider)
    if rules is None or get_dialect_provider(target.dialect).is_guess or rules.refused_stream_fields.isdisjoint(fields):
        return fields
    return {key: value for key, value in fields.items() if key not in rules.refused_stream_fields}


def _get_required_fields(target: Target) -> dict[str, int]:
    """Return the fields that the API requires of every request: for some, a limit for the answer."""
    if not get_api_spec(target.api).options.requires_max_tokens:
        return {}
    return {"max_tokens": min(target.limits.max_output or DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)}


def add_setup_to_target(target: Target, fields: Mapping[str, Any] = MappingProxyType({})) -> Target:
    """Return ``target`` with the setup and the output limits that ``fields`` give its requests."""
    return build_template_from_fields(target, fields, RequestOptions(stream=False)).target


def render_prepared_request(
    prepared_request: PreparedRequest, fields: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Return the body of ``prepared_request`` with ``fields``, and the fields that its API requires."""
    target = prepared_request.target
    template = RequestTemplate(target, {**_get_required_fields(target), **fields})
    return template.render_body(prepared_request)


def build_template_from_body(
    target: Target, parsed_body: ParsedRequest, request_options: RequestOptions = RequestOptions()
) -> RequestTemplate:
    """Build a template around a caller's body; ``request_options`` decides about streaming if the body does not."""
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
    """Parse a body and measure its messages. Raises ``FormatError`` if it is not a request of a known API.

    ``api`` is the API it is expected to be of. Unless ``is_api_certain``, fields that only another API has tell that it
    is of that one. In either case, a body without the expected API's messages is recognized by its fields.
    """
    if isinstance(body, ParsedRequest):
        if body.measured_setup is not None:
            return body
        return measure_parsed_request(body)
    try:
        data = body if isinstance(body, bytes) else encode_json(body)
    except (TypeError, ValueError) as error:
        raise FormatError(f"this body is not JSON: {error}; give plain dicts, lists, texts and numbers") from None
    if api is not None and not is_api_certain:
        api = recognize_expected_api(parse_body_fields(data), api)
    parsed_request = parse_request(data, api)
    if api is not None and get_api_spec(api).messages_field not in parsed_request.fields:
        parsed_request = parse_request(data)
    return measure_parsed_request(parsed_request)


def coerce_messages(request_input: RequestInput) -> list[Message | SizedMessage]:
    """Return the messages in ``request_input``; a text becomes a user message. Raises ``FormatError`` for others."""
    if request_input is None:
        return []
    if isinstance(request_input, Sequence) and not isinstance(request_input, str | bytes):
        return [_coerce_message(item) for item in request_input]
    return [_coerce_message(request_input)]


def _coerce_message(value: Any) -> Message | SizedMessage:
    if isinstance(value, str):
        return Message.from_text("user", value)
    if isinstance(value, Message | SizedMessage):
        return value
    raise FormatError(
        f"a {type(value).__name__} is not a message; give a text or a Message, or a whole body to session.run"
    )
