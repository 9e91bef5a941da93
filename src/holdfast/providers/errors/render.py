"""Render errors in the wording of the client's own API, so that the client understands them.

Clients know only their own provider's wording: Claude Code reads both numbers out of ``prompt is too long: A tokens > B
maximum``, Codex looks for ``context_length_exceeded`` in a ``response.failed`` event. ``classify_error`` reads rendered
errors back with the same kind, limit and requested tokens (a tested law).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent, raise_if_wrong_type
from holdfast.providers.common.error_forms import ErrorForm, ErrorFormat, encode_error_json
from holdfast.providers.errors.report import OVERFLOW_KINDS, Verdict, VerdictKind
from holdfast.providers.registry import API_SPECS

JSON_MIME = "application/json"


class ErrorResponse(Struct, frozen=True):
    """An HTTP response, as a provider would send it."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


_CLIENT_KINDS: dict[str, VerdictKind] = {
    "quota": "rate_limit",
    "billing": "rate_limit",
    "network": "server",
    "config": "server",
    "unknown": "server",
    "content": "server",
    "output_limit": "invalid_request",
    "media": "invalid_request",
    "invalid_history": "invalid_request",
}
"""The kinds that clients are told in place of kinds without a form of their own.

Our settings, connections and quotas mean nothing to a client; all that it can do is try again.
"""
_KINDS_WITH_FORM = frozenset({"context_window", "input_plus_output", "request_bytes"})
_DEFAULT_TEXTS: dict[str, str] = {
    "invalid_request": "The request is not valid.",
    "auth": "No valid API key was given.",
    "model": "The model was not found: it does not exist.",
    "rate_limit": "Rate limit reached. Please try again later.",
    "server": "Internal server error.",
    "overloaded": "The service is overloaded. Please try again later.",
}


def map_to_client_error_kind(kind: VerdictKind) -> VerdictKind:
    """Return the kind to tell a client for ``kind``: every overflow without a form becomes ``context_window``.

    A client can make its conversation smaller, but knows nothing of tiers, limits a minute, or silent overflows.
    """
    if kind in _KINDS_WITH_FORM:
        return kind
    if kind in OVERFLOW_KINDS:
        return "context_window"
    return _CLIENT_KINDS.get(kind, kind)


def render_error_response(
    api: str,
    verdict: Verdict,
    *,
    output: int | None = None,
    message: str = "",
    status: int = 0,
) -> ErrorResponse:
    """Render ``verdict`` as a response of ``api``, with the verdict's own numbers.

    ``output`` is the number of tokens asked for the answer, which the wordings of ``input_plus_output`` name.
    ``message`` replaces the API's own text, except in overflows: it follows that of ``request_bytes`` and is left out
    of the others, which clients read by their exact wording. ``status`` overrides the API's own HTTP status.
    """
    api_format, form, text = _choose_form_and_text(
        api,
        verdict,
        output,
        message,
        status,
    )
    headers = {"content-type": JSON_MIME}
    if verdict.retry_after is not None:
        headers["retry-after"] = f"{verdict.retry_after:g}"
    return ErrorResponse(form.status, encode_error_json(_build_body(api_format, form, text, verdict)), headers)


def render_error_event(
    api: str,
    verdict: Verdict,
    *,
    output: int | None = None,
    message: str = "",
    sequence_number: int = 0,
) -> bytes:
    """Render ``verdict`` as the last server-sent event of a stream that began with HTTP 200.

    ``sequence_number`` is the position of the event in a stream of the Responses API. Codex recognizes an overflow only
    in this form, so answer a streaming request of Responses with it rather than with an error status.
    """
    api_format, form, text = _choose_form_and_text(api, verdict, output, message)
    return api_format.render_event(_build_body(api_format, form, text, verdict), sequence_number)


def _build_body(
    api_format: ErrorFormat,
    form: ErrorForm,
    text: str,
    verdict: Verdict,
) -> dict[str, Any]:
    return api_format.build_body(form, text, verdict.kind in OVERFLOW_KINDS)


def _choose_form_and_text(
    api: str,
    verdict: Verdict,
    output: int | None,
    message: str,
    status: int = 0,
) -> tuple[ErrorFormat, ErrorForm, str]:
    """Choose the error format of ``api``, the form in it for ``verdict``, and the text to send."""
    raise_if_wrong_type(TypeError, verdict=(verdict, Verdict))
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no API is called {api!r}; the APIs are {', '.join(API_SPECS)}")
    api_format = API_SPECS[api].errors
    kind = map_to_client_error_kind(verdict.kind)
    form = api_format.forms[kind]
    form = replace(form, status=status or form.status)
    if kind in {"context_window", "input_plus_output"}:
        # Clients read the numbers out of the exact wording, so no other text may replace it.
        text = api_format.word_overflow(kind, verdict.limit, verdict.requested, output)
    elif kind == "request_bytes" and message:
        text = f"{form.text.rstrip('.')}: {message}"
    else:
        own_text = "" if kind in OVERFLOW_KINDS else message
        text = own_text or form.text or _DEFAULT_TEXTS[kind]
    return api_format, form, text
