"""A request as the provider reads it, or why it cannot be read at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.calls import Asked, Refusal

MAX_BYTES = {
    "anthropic": 32 * 1024 * 1024,
    "openai-chat": 50_000_000,
    "openai-responses": 50_000_000,
    "gemini": 20_971_520,
}
"""Bytes of a body by API: Anthropic's request limits page; OpenAI's vision guide; Gemini's own error text."""
_OUTPUT = {
    "anthropic": ("max_tokens",),
    "openai-chat": ("max_completion_tokens", "max_tokens"),
    "openai-responses": ("max_output_tokens",),
}
_INSIDE = "generateContentRequest"
"""The field of Gemini's ``countTokens`` that may hold a whole request to come, in place of contents."""
_REQUIRED = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}


class Request(Struct, frozen=True):
    """A body that is a JSON object and names a model that exists."""

    asked: Asked
    body: dict[str, Any]
    model: str
    betas: frozenset[str]
    conversation: str = ""
    """Responses: the conversation that it goes on with."""
    completed: bool = False
    """Whether the body is no longer the one received: what it named was put in its place, or stood inside it."""

    @property
    def received(self) -> bytes | dict[str, Any]:
        """The body as it is to be judged: the bytes received, unless it was completed from what the server stored."""
        if not self.completed:
            return self.asked.body
        return {key: value for key, value in self.body.items() if key != "store"}

    @property
    def api(self) -> str:
        """The API it speaks."""
        return self.asked.api

    @property
    def output(self) -> int | None:
        """The tokens of output asked for at most, where the request says it."""
        return next((value for value in _limits(self.api, self.body) if _is_count(value)), None)

    def option(self, *names: str) -> Any:
        """Return a field of the body, or of the objects inside it; nothing when one is missing."""
        value: Any = self.body
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value


def read(asked: Asked, max_bytes: int | None = None, models: tuple[str, ...] = ()) -> Request | Refusal:
    """Return the request, or the refusal of one that is too large, no JSON, or names no known model."""
    limit = MAX_BYTES[asked.api] if max_bytes is None else max_bytes
    if len(asked.body) > limit:
        return _too_large(asked.api, limit, len(asked.body))
    body = _json(asked.body)
    if isinstance(body, str):
        return unreadable(asked.api, body)
    is_inside = asked.api == "gemini" and asked.endpoint == "count" and isinstance(body.get(_INSIDE), dict)
    if is_inside:
        body = body[_INSIDE]
    model = asked.model or body.get("model")
    missing = _missing(asked, body, model)
    if missing is not None:
        return missing
    if not isinstance(_told(body), list | None):
        return _wrong_betas(asked.api)
    if models and model not in models:
        return _no_model(asked.api, str(model))
    goes_on = _conversation(body.get("conversation"))
    return Request(asked, body, str(model), _betas(asked.headers, body), goes_on, completed=is_inside)


def _json(data: bytes) -> dict[str, Any] | str:
    """Return the object, or why there is none."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return str(error)
    return body if isinstance(body, dict) else "expected an object"


def _betas(headers: Mapping[str, str], body: Mapping[str, Any]) -> frozenset[str]:
    """Return the beta features asked for by the header, or by the body as clouds have it."""
    listed = _told(body)
    told = [name.strip() for name in headers.get("anthropic-beta", "").split(",")]
    told += [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return frozenset(filter(None, told))


def _told(body: Mapping[str, Any]) -> Any:
    return body.get("betas", body.get("anthropic_beta"))


def _conversation(value: object) -> str:
    return str(value.get("id")) if isinstance(value, dict) else str(value or "")


def _limits(api: str, body: Mapping[str, Any]) -> list[Any]:
    if api in _OUTPUT:
        return [body.get(name) for name in _OUTPUT[api]]
    config = body.get("generationConfig", body.get("generation_config"))
    return [config.get("maxOutputTokens", config.get("max_output_tokens"))] if isinstance(config, dict) else []


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# -- refusals ----------------------------------------------------------------------------------------------------------


def _too_large(api: str, limit: int, size: int) -> Refusal:
    if api == "anthropic":
        return Refusal(413, "request_too_large", "Request exceeds the maximum size")
    if api == "gemini":
        return Refusal(400, "INVALID_ARGUMENT", f"Request payload size exceeds the limit: {limit} bytes.")
    return Refusal(413, "request_too_large", f"Maximum content size limit ({limit}) exceeded ({size} bytes read)")


def unreadable(api: str, why: str) -> Refusal:
    """Return the refusal of a body that is not JSON."""
    if api == "anthropic":
        return Refusal(400, "invalid_request_error", f"The request body is not valid JSON: {why}")
    if api == "gemini":
        return Refusal(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {why}")
    return Refusal(400, "", f"We could not parse the JSON body of your request: {why}")


def _missing(asked: Asked, body: Mapping[str, Any], model: object) -> Refusal | None:
    """Return the refusal of a request that leaves out what the API cannot do without."""
    wanted = {"model": model, _REQUIRED[asked.api]: body.get(_REQUIRED[asked.api])}
    if asked.api == "anthropic" and asked.endpoint == "generate":
        wanted["max_tokens"] = body.get("max_tokens")
    if asked.api == "openai-responses" and _has_history(body):
        wanted.pop("input")
    for name, value in wanted.items():
        if value is None or (name == "model" and not (isinstance(value, str) and value)):
            return _required(asked.api, name)
    return None


def _has_history(body: Mapping[str, Any]) -> bool:
    return bool(body.get("previous_response_id") or body.get("conversation") or body.get("prompt"))


def _required(api: str, name: str) -> Refusal:
    if api == "anthropic":
        return Refusal(400, "invalid_request_error", f"{name}: Field required")
    if api == "gemini" and name == "model":
        return Refusal(404, "NOT_FOUND", "models/ is not found for API version v1beta.")
    if api == "gemini":
        return Refusal(400, "INVALID_ARGUMENT", f"* GenerateContentRequest.{name}: {name} is not specified")
    text = f"Missing required parameter: '{name}'."
    return Refusal(400, "missing_required_parameter", text, details={"param": name})


def _wrong_betas(api: str) -> Refusal:
    code = {"anthropic": "invalid_request_error", "gemini": "INVALID_ARGUMENT"}.get(api, "unknown_parameter")
    return Refusal(400, code, "betas: Input should be a valid list")


def _no_model(api: str, model: str) -> Refusal:
    if api == "anthropic":
        return Refusal(404, "not_found_error", f"model: {model}")
    if api == "gemini":
        text = f"models/{model} is not found for API version v1beta, or is not supported for generateContent."
        return Refusal(404, "NOT_FOUND", text)
    text = f"The model `{model}` does not exist or you do not have access to it."
    return Refusal(404, "model_not_found", text, details={"param": "model"})
