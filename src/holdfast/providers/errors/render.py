"""Errors said in the client's own API, so that the client knows what to do: above all that its prompt does not fit.

Clients know their own provider's wording and no other: Claude Code reads both numbers out of ``prompt is too long: A
tokens > B maximum``, Codex looks for ``context_length_exceeded`` in a ``response.failed`` event. What is rendered here
is what ``holdfast.providers.errors.classify_error`` reads back: the same kind, limit and requested.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnrecognizedContent, raise_if_wrong_type
from holdfast.providers.errors.report import OVERFLOW_KINDS, Verdict, VerdictKind

JSON_MIME = "application/json"


class ErrorResponse(Struct, frozen=True):
    """A response as a provider would give it."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


class _ErrorForm(Struct, frozen=True):
    """How an API says one kind: the status, the names that go with it, and a text when none is given."""

    status: int
    type: str
    code: str | None = None
    text: str = ""


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
"""Kinds without a form of their own. A client can do nothing about our settings and connections but try again."""
_KINDS_WITH_FORM = frozenset({"context_window", "input_plus_output", "request_bytes"})
_DEFAULT_TEXTS: dict[str, str] = {
    "invalid_request": "The request is not valid.",
    "auth": "No valid API key was given.",
    "model": "The model was not found: it does not exist.",
    "rate_limit": "Rate limit reached. Please try again later.",
    "server": "Internal server error.",
    "overloaded": "The service is overloaded. Please try again later.",
}
_ANTHROPIC_FORMS = {
    "context_window": _ErrorForm(400, "invalid_request_error"),
    "input_plus_output": _ErrorForm(400, "invalid_request_error"),
    "request_bytes": _ErrorForm(413, "request_too_large", text="Request exceeds the maximum size"),
    "invalid_request": _ErrorForm(400, "invalid_request_error"),
    "auth": _ErrorForm(401, "authentication_error", text="invalid x-api-key"),
    "model": _ErrorForm(404, "not_found_error"),
    "rate_limit": _ErrorForm(429, "rate_limit_error"),
    "server": _ErrorForm(500, "api_error", text="Internal server error"),
    "overloaded": _ErrorForm(529, "overloaded_error", text="Overloaded"),
}
_OPENAI_FORMS = {
    "context_window": _ErrorForm(400, "invalid_request_error", "context_length_exceeded"),
    "input_plus_output": _ErrorForm(400, "invalid_request_error", "context_length_exceeded"),
    "request_bytes": _ErrorForm(413, "invalid_request_error", "request_too_large", "Request body is too large."),
    "invalid_request": _ErrorForm(400, "invalid_request_error"),
    "auth": _ErrorForm(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    "model": _ErrorForm(404, "invalid_request_error", "model_not_found"),
    "rate_limit": _ErrorForm(429, "requests", "rate_limit_exceeded"),
    "server": _ErrorForm(500, "server_error", "server_error", "The server had an error while processing your request."),
    "overloaded": _ErrorForm(503, "service_unavailable_error", "server_is_overloaded"),
}
_GEMINI_FORMS = {
    "context_window": _ErrorForm(400, "INVALID_ARGUMENT"),
    "input_plus_output": _ErrorForm(400, "INVALID_ARGUMENT"),
    "request_bytes": _ErrorForm(400, "INVALID_ARGUMENT", text="Request payload size exceeds the limit."),
    "invalid_request": _ErrorForm(400, "INVALID_ARGUMENT", text="Request contains an invalid argument."),
    "auth": _ErrorForm(401, "UNAUTHENTICATED", text="API key not valid. Please pass a valid API key."),
    "model": _ErrorForm(404, "NOT_FOUND"),
    "rate_limit": _ErrorForm(429, "RESOURCE_EXHAUSTED", text="Resource exhausted. Please try again later."),
    "server": _ErrorForm(500, "INTERNAL", text="An internal error has occurred."),
    "overloaded": _ErrorForm(503, "UNAVAILABLE", text="The model is overloaded. Please try again later."),
}
_ERROR_FORMS = {
    "anthropic": _ANTHROPIC_FORMS,
    "openai-chat": _OPENAI_FORMS,
    "openai-responses": _OPENAI_FORMS,
    "gemini": _GEMINI_FORMS,
}
"""Statuses and names of each API's documentation of errors; ``server_is_overloaded`` as Codex reads it."""


def map_to_client_error_kind(kind: VerdictKind) -> VerdictKind:
    """Return the kind that a client is told for ``kind``: every overflow that is not one of bytes is one of the window.

    A client can make its conversation smaller; it knows nothing of tiers, of the limits a minute, or of silence.
    """
    if kind in OVERFLOW_KINDS:
        return kind if kind in _KINDS_WITH_FORM else "context_window"
    return _CLIENT_KINDS.get(kind, kind)


def render_error_response(
    api: str, verdict: Verdict, *, output: int | None = None, message: str = "", status: int = 0
) -> ErrorResponse:
    """Return ``verdict`` as a response of ``api``, with its true numbers.

    ``output`` is the room asked for the answer, which the wordings of ``input_plus_output`` name. ``message`` is said
    instead of the API's own words for what is no overflow, and behind them where the request has too many bytes.
    ``status`` stands above the API's own.
    """
    form, error = _build_error_object(api, verdict, output, message, status)
    headers = {"content-type": JSON_MIME}
    if verdict.retry_after is not None:
        headers["retry-after"] = f"{verdict.retry_after:g}"
    return ErrorResponse(form.status, _encode_error_json(_wrap_error_object(api, error)), headers)


def render_error_event(
    api: str, verdict: Verdict, *, output: int | None = None, message: str = "", sequence_number: int = 0
) -> bytes:
    """Return ``verdict`` as the last server-sent event of a stream that has begun with HTTP 200.

    ``sequence_number`` is the event's place in a stream of Responses. Codex understands an overflow in this form alone,
    so a streaming request of Responses is to be answered with it and not with a status.
    """
    _, error = _build_error_object(api, verdict, output, message)
    if api == "anthropic":
        return b"event: error\ndata: " + _encode_error_json(_wrap_error_object(api, error)) + b"\n\n"
    if api == "openai-responses":
        return (
            b"event: response.failed\ndata: "
            + _encode_error_json(_build_failed_event(error, sequence_number))
            + b"\n\n"
        )
    return b"data: " + _encode_error_json(_wrap_error_object(api, error)) + b"\n\n"


def _build_error_object(
    api: str, verdict: Verdict, output: int | None, message: str, status: int = 0
) -> tuple[_ErrorForm, dict[str, Any]]:
    """Return the form of an error, and the error object of ``api``."""
    raise_if_wrong_type(TypeError, verdict=(verdict, Verdict))
    if not isinstance(api, str) or api not in _ERROR_FORMS:
        raise UnrecognizedContent(f"no error can be said for {api!r}; the APIs are {', '.join(_ERROR_FORMS)}")
    kind = map_to_client_error_kind(verdict.kind)
    form = _ERROR_FORMS[api][kind]
    form = replace(form, status=status or form.status)
    if kind in {"context_window", "input_plus_output"}:
        text = _OVERFLOW_WORDINGS[api](kind, verdict.limit, verdict.requested, output)
    elif kind == "request_bytes" and message:
        text = f"{form.text.rstrip('.')}: {message}"
    else:
        text = (message if kind not in OVERFLOW_KINDS else "") or form.text or _DEFAULT_TEXTS[kind]
    if api == "anthropic":
        return form, {"type": form.type, "message": text}
    if api == "gemini":
        return form, {"code": form.status, "message": text, "status": form.type}
    return form, {"message": text, "type": form.type, "param": _get_error_param(api, kind), "code": form.code}


def _get_error_param(api: str, kind: VerdictKind) -> str | None:
    if kind not in OVERFLOW_KINDS:
        return None
    return "input" if api == "openai-responses" else "messages"


def _wrap_error_object(api: str, error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": error} if api == "anthropic" else {"error": error}


def _build_failed_event(error: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the event ``response.failed``, with all that the SDK's type requires."""
    response = {
        "id": "resp_failed", "object": "response", "created_at": 0, "status": "failed", "model": "", "output": [],
        "error": {"code": error["code"] or error["type"], "message": error["message"]}, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto",
        "tools": [], "top_p": None, "usage": None,
    }  # fmt: skip
    return {"type": "response.failed", "sequence_number": number, "response": response}


def _encode_error_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


# -- wordings ----------------------------------------------------------------------------------------------------------


def _word_anthropic_overflow(kind: str, limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    if kind == "input_plus_output":
        problem = "input length and `max_tokens` exceed context limit"
        numbers = _format_token_sum(limit, requested_tokens, output)
        return f"{problem}{numbers and ': '}{numbers}, decrease input length or `max_tokens` and try again"
    if limit is not None and requested_tokens is not None:
        return f"prompt is too long: {requested_tokens} tokens > {limit} maximum"
    numbers = f": {requested_tokens} tokens" if requested_tokens is not None else ""
    return f"prompt is too long{numbers}" if limit is None else f"prompt is too long: at most {limit} tokens fit"


def _format_token_sum(limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    """Return the sum as far as it is known."""
    if limit is not None and requested_tokens is not None:
        return f"{requested_tokens} + {'max_tokens' if output is None else output} > {limit}"
    if limit is not None:
        return f"at most {limit} tokens"
    return f"input has {requested_tokens} tokens" if requested_tokens is not None else ""


def _word_openai_overflow(kind: str, limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    limit_text = "" if limit is None else f"This model's maximum context length is {limit} tokens. "
    if kind == "input_plus_output":
        return (
            f"{limit_text}{_format_token_shares(requested_tokens, output)} Please reduce the length of the "
            "messages or completion."
        )
    if requested_tokens is not None:
        request_text = f"your messages resulted in {requested_tokens} tokens. "
        limit_text += f"However, {request_text}" if limit_text else request_text.capitalize()
    return f"{limit_text}Please reduce the length of the messages."


def _format_token_shares(requested_tokens: int | None, output: int | None) -> str:
    if requested_tokens is None:
        return "The sum of prompt and completion tokens exceeds it."
    if output is None:
        return f"However, you requested more ({requested_tokens} in the messages, and the completion)."
    total = requested_tokens + output
    return f"However, you requested {total} tokens ({requested_tokens} in the messages, {output} in the completion)."


def _word_responses_overflow(kind: str, limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    plain = "Your input exceeds the context window of this model. Please adjust your input and try again."
    if kind == "context_window" and limit is None and requested_tokens is None:
        return plain
    return _word_openai_overflow(kind, limit, requested_tokens, output)


def _word_gemini_overflow(kind: str, limit: int | None, requested_tokens: int | None, output: int | None) -> str:
    if kind == "input_plus_output":
        numbers = _format_token_sum(limit, requested_tokens, output)
        return f"The input length and max_tokens exceed context limit{numbers and ': '}{numbers}."
    count_text = "" if requested_tokens is None else f" ({requested_tokens})"
    allowed = "" if limit is None else f" ({limit})"
    return f"The input token count{count_text} exceeds the maximum number of tokens allowed{allowed}."


_OVERFLOW_WORDINGS = {
    "anthropic": _word_anthropic_overflow,
    "openai-chat": _word_openai_overflow,
    "openai-responses": _word_responses_overflow,
    "gemini": _word_gemini_overflow,
}
