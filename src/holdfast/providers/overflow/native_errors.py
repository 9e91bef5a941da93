"""Errors said in the client's own API, so that the client knows what to do: above all that its prompt does not fit.

Clients know their own provider's wording and no other: Claude Code reads both numbers out of ``prompt is too long: A
tokens > B maximum``, Codex looks for ``context_length_exceeded`` in a ``response.failed`` event. What is rendered here
is what ``holdfast.providers.overflow.classify`` reads back: the same kind, limit and requested.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import Unrecognised, check_types
from holdfast.providers.overflow.report import OVERFLOWS, Kind, Verdict

JSON = "application/json"


class Native(Struct, frozen=True):
    """A response as a provider would give it."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


class _Form(Struct, frozen=True):
    """How an API says one kind: the status, the names that go with it, and a text when none is given."""

    status: int
    type: str
    code: str | None = None
    text: str = ""


_SAID_AS: dict[str, Kind] = {
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
_OWN_FORM = frozenset({"context_window", "input_plus_output", "request_bytes"})
_TEXTS: dict[str, str] = {
    "invalid_request": "The request is not valid.",
    "auth": "No valid API key was given.",
    "model": "The model was not found: it does not exist.",
    "rate_limit": "Rate limit reached. Please try again later.",
    "server": "Internal server error.",
    "overloaded": "The service is overloaded. Please try again later.",
}
_ANTHROPIC = {
    "context_window": _Form(400, "invalid_request_error"),
    "input_plus_output": _Form(400, "invalid_request_error"),
    "request_bytes": _Form(413, "request_too_large", text="Request exceeds the maximum size"),
    "invalid_request": _Form(400, "invalid_request_error"),
    "auth": _Form(401, "authentication_error", text="invalid x-api-key"),
    "model": _Form(404, "not_found_error"),
    "rate_limit": _Form(429, "rate_limit_error"),
    "server": _Form(500, "api_error", text="Internal server error"),
    "overloaded": _Form(529, "overloaded_error", text="Overloaded"),
}
_OPENAI = {
    "context_window": _Form(400, "invalid_request_error", "context_length_exceeded"),
    "input_plus_output": _Form(400, "invalid_request_error", "context_length_exceeded"),
    "request_bytes": _Form(413, "invalid_request_error", "request_too_large", "Request body is too large."),
    "invalid_request": _Form(400, "invalid_request_error"),
    "auth": _Form(401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    "model": _Form(404, "invalid_request_error", "model_not_found"),
    "rate_limit": _Form(429, "requests", "rate_limit_exceeded"),
    "server": _Form(500, "server_error", "server_error", "The server had an error while processing your request."),
    "overloaded": _Form(503, "service_unavailable_error", "server_is_overloaded"),
}
_GEMINI = {
    "context_window": _Form(400, "INVALID_ARGUMENT"),
    "input_plus_output": _Form(400, "INVALID_ARGUMENT"),
    "request_bytes": _Form(400, "INVALID_ARGUMENT", text="Request payload size exceeds the limit."),
    "invalid_request": _Form(400, "INVALID_ARGUMENT", text="Request contains an invalid argument."),
    "auth": _Form(401, "UNAUTHENTICATED", text="API key not valid. Please pass a valid API key."),
    "model": _Form(404, "NOT_FOUND"),
    "rate_limit": _Form(429, "RESOURCE_EXHAUSTED", text="Resource exhausted. Please try again later."),
    "server": _Form(500, "INTERNAL", text="An internal error has occurred."),
    "overloaded": _Form(503, "UNAVAILABLE", text="The model is overloaded. Please try again later."),
}
_FORMS = {"anthropic": _ANTHROPIC, "openai-chat": _OPENAI, "openai-responses": _OPENAI, "gemini": _GEMINI}
"""Statuses and names of each API's documentation of errors; ``server_is_overloaded`` as Codex reads it."""


def said_as(kind: Kind) -> Kind:
    """Return the kind that a client is told for ``kind``: every overflow that is not one of bytes is one of the window.

    A client can make its conversation smaller; it knows nothing of tiers, of the limits a minute, or of silence.
    """
    if kind in OVERFLOWS:
        return kind if kind in _OWN_FORM else "context_window"
    return _SAID_AS.get(kind, kind)


def render(api: str, verdict: Verdict, *, output: int | None = None, message: str = "", status: int = 0) -> Native:
    """Return ``verdict`` as a response of ``api``, with its true numbers.

    ``output`` is the room asked for the answer, which the wordings of ``input_plus_output`` name. ``message`` is said
    instead of the API's own words for what is no overflow, and behind them where the request has too many bytes.
    ``status`` stands above the API's own.
    """
    form, error = _error(api, verdict, output, message, status)
    headers = {"content-type": JSON}
    if verdict.retry_after is not None:
        headers["retry-after"] = f"{verdict.retry_after:g}"
    return Native(form.status, _json(_body(api, error)), headers)


def stream_event(api: str, verdict: Verdict, *, output: int | None = None, message: str = "", number: int = 0) -> bytes:
    """Return ``verdict`` as the last server-sent event of a stream that has begun with HTTP 200.

    ``number`` is the event's place in a stream of Responses. Codex understands an overflow in this form alone, so a
    streaming request of Responses is to be answered with it and not with a status.
    """
    _, error = _error(api, verdict, output, message)
    if api == "anthropic":
        return b"event: error\ndata: " + _json(_body(api, error)) + b"\n\n"
    if api == "openai-responses":
        return b"event: response.failed\ndata: " + _json(_failed(error, number)) + b"\n\n"
    return b"data: " + _json(_body(api, error)) + b"\n\n"


def _error(
    api: str, verdict: Verdict, output: int | None, message: str, status: int = 0
) -> tuple[_Form, dict[str, Any]]:
    """Return the form of an error, and the error object of ``api``."""
    check_types(TypeError, verdict=(verdict, Verdict))
    if not isinstance(api, str) or api not in _FORMS:
        raise Unrecognised(f"no error can be said for {api!r}; the APIs are {', '.join(_FORMS)}")
    kind = said_as(verdict.kind)
    form = _FORMS[api][kind]
    form = replace(form, status=status or form.status)
    if kind in {"context_window", "input_plus_output"}:
        text = _WORDINGS[api](kind, verdict.limit, verdict.requested, output)
    elif kind == "request_bytes" and message:
        text = f"{form.text.rstrip('.')}: {message}"
    else:
        text = (message if kind not in OVERFLOWS else "") or form.text or _TEXTS[kind]
    if api == "anthropic":
        return form, {"type": form.type, "message": text}
    if api == "gemini":
        return form, {"code": form.status, "message": text, "status": form.type}
    return form, {"message": text, "type": form.type, "param": _param(api, kind), "code": form.code}


def _param(api: str, kind: Kind) -> str | None:
    if kind not in OVERFLOWS:
        return None
    return "input" if api == "openai-responses" else "messages"


def _body(api: str, error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error", "error": error} if api == "anthropic" else {"error": error}


def _failed(error: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the event ``response.failed``, with all that the SDK's type requires."""
    response = {
        "id": "resp_failed", "object": "response", "created_at": 0, "status": "failed", "model": "", "output": [],
        "error": {"code": error["code"] or error["type"], "message": error["message"]}, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto",
        "tools": [], "top_p": None, "usage": None,
    }  # fmt: skip
    return {"type": "response.failed", "sequence_number": number, "response": response}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


# -- wordings ----------------------------------------------------------------------------------------------------------


def _in_anthropic(kind: str, limit: int | None, requested: int | None, output: int | None) -> str:
    if kind == "input_plus_output":
        said = "input length and `max_tokens` exceed context limit"
        numbers = _plus(limit, requested, output)
        return f"{said}{numbers and ': '}{numbers}, decrease input length or `max_tokens` and try again"
    if limit is not None and requested is not None:
        return f"prompt is too long: {requested} tokens > {limit} maximum"
    numbers = f": {requested} tokens" if requested is not None else ""
    return f"prompt is too long{numbers}" if limit is None else f"prompt is too long: at most {limit} tokens fit"


def _plus(limit: int | None, requested: int | None, output: int | None) -> str:
    """Return the sum as far as it is known."""
    if limit is not None and requested is not None:
        return f"{requested} + {'max_tokens' if output is None else output} > {limit}"
    if limit is not None:
        return f"at most {limit} tokens"
    return f"input has {requested} tokens" if requested is not None else ""


def _in_openai(kind: str, limit: int | None, requested: int | None, output: int | None) -> str:
    known = "" if limit is None else f"This model's maximum context length is {limit} tokens. "
    if kind == "input_plus_output":
        return f"{known}{_shares(requested, output)} Please reduce the length of the messages or completion."
    if requested is not None:
        asked = f"your messages resulted in {requested} tokens. "
        known += f"However, {asked}" if known else asked.capitalize()
    return f"{known}Please reduce the length of the messages."


def _shares(requested: int | None, output: int | None) -> str:
    if requested is None:
        return "The sum of prompt and completion tokens exceeds it."
    if output is None:
        return f"However, you requested more ({requested} in the messages, and the completion)."
    total = requested + output
    return f"However, you requested {total} tokens ({requested} in the messages, {output} in the completion)."


def _in_responses(kind: str, limit: int | None, requested: int | None, output: int | None) -> str:
    plain = "Your input exceeds the context window of this model. Please adjust your input and try again."
    if kind == "context_window" and limit is None and requested is None:
        return plain
    return _in_openai(kind, limit, requested, output)


def _in_gemini(kind: str, limit: int | None, requested: int | None, output: int | None) -> str:
    if kind == "input_plus_output":
        numbers = _plus(limit, requested, output)
        return f"The input length and max_tokens exceed context limit{numbers and ': '}{numbers}."
    asked = "" if requested is None else f" ({requested})"
    allowed = "" if limit is None else f" ({limit})"
    return f"The input token count{asked} exceeds the maximum number of tokens allowed{allowed}."


_WORDINGS = {
    "anthropic": _in_anthropic,
    "openai-chat": _in_openai,
    "openai-responses": _in_responses,
    "gemini": _in_gemini,
}
