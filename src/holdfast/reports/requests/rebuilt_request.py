"""Rebuild the body of a request that was sent, as exactly as the log can tell.

The log holds messages and decisions, not bodies: a body repeats nearly all of the one before it. So it is written again
by the code that wrote it, from the state at the request. What the log does not hold is left out and named.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Catalog
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.counts import format_count
from holdfast.normalize.projection import normalize_projection
from holdfast.providers.registry import API_NAMES, API_SPECS
from holdfast.providers.requests.request_body import build_request_body
from holdfast.reports.requests.changed_fields import describe_field_change, list_changed_fields
from holdfast.state.conversation_state import ConversationState
from holdfast.state.dialect import Dialect
from holdfast.state.view import apply_normalization, build_projection, compute_prefix_digest
from holdfast.store.base import SessionInfo, SessionStore


class RebuiltRequest(Struct, frozen=True):
    """The body of a request, and how much of it is certain."""

    api: str
    body: bytes
    """JSON, without what the log does not hold."""
    message_count: int
    """Messages that it shows; an API may write one of them as several elements of its list."""
    own_bytes_count: int
    """How many of them are in the bytes in which they were received; the others are written by Holdfast."""
    is_confirmed: bool
    """Whether the digest that was recorded when the request was sent is that of these messages."""
    is_recorded_elsewhere: bool
    """Whether the request was not sent by Holdfast but read from the recording of another tool."""
    setup_tokens: int
    """Size of the system prompt and the tools that were sent beside the messages; 0 if the log does not say."""
    setup_fields: tuple[str, ...]
    """Names of the fields beside the messages, as far as the log has them."""
    changed_fields: tuple[str, ...]
    """What was done about fields that the provider refuses, each in a sentence."""


def load_rebuilt_request(store: SessionStore, info: SessionInfo, request_id: str, catalog: Catalog) -> RebuiltRequest:
    """Rebuild the body of the request whose entry is ``request_id``.

    Raises ``UnknownId`` if there is no such entry, and ``StoreCorrupt`` if one of its messages cannot be read.
    """
    return rebuild_request(store.open_state(info.key, request_id), catalog, model=info.model)


def rebuild_request(state: ConversationState, catalog: Catalog, *, model: str = "") -> RebuiltRequest:
    """Rebuild the request whose entry is the newest of ``state``; ``model`` is the session's, if that names none."""
    projection = build_projection(state)
    model = state.last_request.model or model
    api = _find_api(state, projection, catalog, model)
    spec = API_SPECS[api]
    normalization, _ = normalize_projection(state, _find_dialect(state, projection, catalog, api, model))
    sized_messages = apply_normalization(projection, normalization)
    body = build_request_body(api, model, sized_messages)
    if spec.containers is not None:
        body = spec.containers.name(body, state.history.container, state.history.expired_containers)
    changes = [change for change in list_changed_fields(state) if change.model in ("", model)]
    return RebuiltRequest(
        api=api,
        body=body,
        message_count=len(sized_messages),
        own_bytes_count=sum(message.raw is not None and message.api == api for message in sized_messages),
        is_confirmed=state.last_request.prefix_digest == compute_prefix_digest(state),
        is_recorded_elsewhere=not state.last_request.prefix_digest,
        setup_tokens=state.setup.tokens,
        setup_fields=tuple(name for name, _ in state.setup.field_digests),
        changed_fields=tuple(describe_field_change(change) for change in changes),
    )


def _find_api(state: ConversationState, projection: Sequence[SizedMessage], catalog: Catalog, model: str) -> str:
    """Return the API that the request names, or else that of its messages, or else that of its model."""
    apis = [state.last_request.api, *(message.api for message in projection), catalog.find_api(model)]
    for api in apis:
        if api in API_SPECS:
            return api
    return API_NAMES[0]


def _find_dialect(
    state: ConversationState, projection: Sequence[SizedMessage], catalog: Catalog, api: str, model: str
) -> Dialect:
    """Return the rules by which the messages were made valid: looser ones for what a client wrote itself."""
    is_from_client = any(message.raw is not None and message.message.role != "assistant" for message in projection)
    dialect = catalog.get_dialect(api, model, trusting=is_from_client)
    if state.usage.learned_limits.requires_strict_form:
        return replace(dialect, keeps_client_content=False)
    return dialect


# -- in words ----------------------------------------------------------------------------------------------------------


def describe_certainty(rebuilt: RebuiltRequest, recording_format: str = "") -> list[str]:
    """Return sentences that say what of the body is exact, what is rebuilt and what is missing.

    ``recording_format`` is the tool or API that the session was read from, if it was.
    """
    spec = API_SPECS[rebuilt.api]
    form = f"written in the form of the {spec.display_name} API"
    if rebuilt.is_recorded_elsewhere:
        origin = (
            f"This request was read from a recording of {recording_format or 'another tool'}, not sent by Holdfast. "
            f"Its messages are {form}; the tool may have sent them in another."
        )
    elif rebuilt.is_confirmed:
        origin = (
            f"The messages, {form}, have the content that was planned to be sent: the digest that was recorded with "
            "the request is the same. What a hook, or a check against the API's rules, changed after that is not in "
            "the log."
        )
    else:
        origin = (
            f"The messages, {form}, may differ from those that were sent: the digest that was recorded with the "
            "request is another one, so the log was changed since."
        )
    sentences = [origin, _describe_bytes(rebuilt), _describe_missing_setup(rebuilt)]
    if spec.breakpoints is not None:
        sentences.append(
            "Marks for the cache (cache_control) are left out: the log does not hold which ones it carried. A text "
            "that carried one may stand here as a plain string."
        )
    sentences += [f"It was sent with a change: {change}." for change in rebuilt.changed_fields]
    return sentences


def _describe_bytes(rebuilt: RebuiltRequest) -> str:
    written_count = rebuilt.message_count - rebuilt.own_bytes_count
    own = f"{rebuilt.own_bytes_count:,} of {format_count(rebuilt.message_count, 'message')}"
    if not written_count:
        return f"{own} are in the bytes in which they were received."
    return (
        f"{own} are in the bytes in which they were received; {written_count:,} are written anew (summaries, shortened "
        "texts, answers, and what was given as values), so spaces and the order of fields may differ."
    )


def _describe_missing_setup(rebuilt: RebuiltRequest) -> str:
    names = f" ({', '.join(rebuilt.setup_fields)})" if rebuilt.setup_fields else ""
    size = f", about {rebuilt.setup_tokens:,} tokens" if rebuilt.setup_tokens else ""
    return (
        f"Not in the log: what was sent beside the messages{names}{size}. That is tools, options such as the output "
        "limit, and the system prompt where the API takes it in a field of its own."
    )
