"""Parse a request as the provider does, or refuse one that is unreadable or incomplete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.calls import IncomingRequest, RefusalReply

MAX_BYTES = {
    "anthropic": 32 * 1024 * 1024,
    "openai-chat": 50_000_000,
    "openai-responses": 50_000_000,
    "gemini": 20_971_520,
}
"""Largest body in bytes, by API: from Anthropic's request limits page, OpenAI's vision guide, Gemini's error text."""
_OUTPUT_FIELDS = {
    "anthropic": ("max_tokens",),
    "openai-chat": ("max_completion_tokens", "max_tokens"),
    "openai-responses": ("max_output_tokens",),
}
_WRAPPED_REQUEST = "generateContentRequest"
"""The field of Gemini's ``countTokens`` that may hold a whole request in place of contents."""
_HISTORY_FIELD = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}


class ProviderRequest(Struct, frozen=True):
    """A request with a body that is a JSON object and a model that exists."""

    incoming: IncomingRequest
    body: dict[str, Any]
    model: str
    betas: frozenset[str]
    conversation: str = ""
    """The id of the stored conversation that the request continues (Responses)."""
    is_completed: bool = False
    """Whether ``body`` differs from the one received: references were resolved, or a request inside it was taken."""

    @property
    def version(self) -> str:
        """The header ``anthropic-version``, or an empty string."""
        return self.incoming.headers.get("anthropic-version", "")

    @property
    def received(self) -> bytes | dict[str, Any]:
        """The body to validate: the bytes received, unless it was completed.

        A completed body has no ``store``, since the items that it refers to are in it now.
        """
        if not self.is_completed:
            return self.incoming.body
        return {key: value for key, value in self.body.items() if key != "store"}

    @property
    def api(self) -> str:
        """The API that the request speaks."""
        return self.incoming.api

    @property
    def max_output(self) -> int | None:
        """The output limit of the request in tokens, or None if it has none."""
        for limit in _list_output_limits(self.api, self.body):
            if _is_plain_int(limit):
                return int(limit)
        return None

    def get_option(self, *names: str) -> Any:
        """Return a field of the body, nested under ``names``, or None if it or an object around it is missing."""
        value: Any = self.body
        for name in names:
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value


def parse_provider_request(
    request: IncomingRequest,
    max_bytes: int | None = None,
    models: tuple[str, ...] = (),
    default_model: str = "",
) -> ProviderRequest | RefusalReply:
    """Parse a request, or return the refusal of one that is too large, not JSON, incomplete or of an unknown model.

    ``default_model`` is the model of a request that names none, at a server that allows that.
    """
    # The size comes first: it is checked at the edge, before anything parses the body.
    limit = MAX_BYTES[request.api] if max_bytes is None else max_bytes
    if len(request.body) > limit:
        return _refuse_body_size(request.api, limit, len(request.body))
    body = _decode_object(request.body)
    if isinstance(body, str):
        return make_unreadable_json_refusal(request.api, body)
    is_gemini_count = request.api == "gemini" and request.endpoint == "count"
    is_wrapped = is_gemini_count and isinstance(body.get(_WRAPPED_REQUEST), dict)
    if is_wrapped:
        body = body[_WRAPPED_REQUEST]
    model = request.model or body.get("model") or default_model
    refusal = _check_required_fields(request, body, model)
    if refusal is not None:
        return refusal
    if not isinstance(_get_body_betas(body), list | None):
        return _refuse_betas(request.api)
    if models and model not in models:
        return _refuse_unknown_model(request.api, str(model))
    return ProviderRequest(
        incoming=request,
        body=body,
        model=str(model),
        betas=_collect_betas(request.headers, body),
        conversation=_get_conversation_id(body.get("conversation")),
        is_completed=is_wrapped,
    )


def _decode_object(data: bytes) -> dict[str, Any] | str:
    """Decode a JSON object, or return the reason if it is not one."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return str(error)
    return body if isinstance(body, dict) else "expected an object"


def _collect_betas(headers: Mapping[str, str], body: Mapping[str, Any]) -> frozenset[str]:
    """Return the beta features of the header and of the body, where clouds have them."""
    names = [name.strip() for name in headers.get("anthropic-beta", "").split(",")]
    body_betas = _get_body_betas(body)
    if isinstance(body_betas, list):
        names += [name for name in body_betas if isinstance(name, str)]
    return frozenset(filter(None, names))


def _get_body_betas(body: Mapping[str, Any]) -> Any:
    return body.get("betas", body.get("anthropic_beta"))


def _get_conversation_id(value: object) -> str:
    return str(value.get("id")) if isinstance(value, dict) else str(value or "")


def _list_output_limits(api: str, body: Mapping[str, Any]) -> list[Any]:
    if api in _OUTPUT_FIELDS:
        return [body.get(name) for name in _OUTPUT_FIELDS[api]]
    config = body.get("generationConfig", body.get("generation_config"))
    if isinstance(config, dict):
        return [config.get("maxOutputTokens", config.get("max_output_tokens"))]
    return []


def _is_plain_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refuse_body_size(api: str, limit: int, size: int) -> RefusalReply:
    if api == "anthropic":
        return RefusalReply(413, "request_too_large", "Request exceeds the maximum size")
    if api == "gemini":
        return RefusalReply(400, "INVALID_ARGUMENT", f"Request payload size exceeds the limit: {limit} bytes.")
    return RefusalReply(413, "request_too_large", f"Maximum content size limit ({limit}) exceeded ({size} bytes read)")


def make_unreadable_json_refusal(api: str, why: str) -> RefusalReply:
    """Build the refusal of a body that is not JSON."""
    if api == "anthropic":
        return RefusalReply(400, "invalid_request_error", f"The request body is not valid JSON: {why}")
    if api == "gemini":
        return RefusalReply(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {why}")
    return RefusalReply(400, "", f"We could not parse the JSON body of your request: {why}")


def _check_required_fields(request: IncomingRequest, body: Mapping[str, Any], model: object) -> RefusalReply | None:
    """Return the refusal of a request that lacks a required field, or None if it has all."""
    required_fields = {"model": model, _HISTORY_FIELD[request.api]: body.get(_HISTORY_FIELD[request.api])}
    if request.api == "anthropic" and request.endpoint == "generate":
        required_fields["max_tokens"] = body.get("max_tokens")
    # A request that continues stored history may add nothing to it.
    if request.api == "openai-responses" and _has_stored_history(body):
        required_fields.pop("input")
    for name, value in required_fields.items():
        is_bad_model = name == "model" and not (isinstance(value, str) and value)
        if value is None or is_bad_model:
            return _refuse_missing_field(request.api, name)
    return None


def _has_stored_history(body: Mapping[str, Any]) -> bool:
    return bool(body.get("previous_response_id") or body.get("conversation") or body.get("prompt"))


def _refuse_missing_field(api: str, name: str) -> RefusalReply:
    if api == "anthropic":
        return RefusalReply(400, "invalid_request_error", f"{name}: Field required")
    if api == "gemini" and name == "model":
        return RefusalReply(404, "NOT_FOUND", "models/ is not found for API version v1beta.")
    if api == "gemini":
        return RefusalReply(400, "INVALID_ARGUMENT", f"* GenerateContentRequest.{name}: {name} is not specified")
    text = f"Missing required parameter: '{name}'."
    return RefusalReply(400, "missing_required_parameter", text, details={"param": name})


def _refuse_betas(api: str) -> RefusalReply:
    code = {"anthropic": "invalid_request_error", "gemini": "INVALID_ARGUMENT"}.get(api, "unknown_parameter")
    return RefusalReply(400, code, "betas: Input should be a valid list")


def _refuse_unknown_model(api: str, model: str) -> RefusalReply:
    if api == "anthropic":
        return RefusalReply(404, "not_found_error", f"model: {model}")
    if api == "gemini":
        text = f"models/{model} is not found for API version v1beta, or is not supported for generateContent."
        return RefusalReply(404, "NOT_FOUND", text)
    text = f"The model `{model}` does not exist or you do not have access to it."
    return RefusalReply(404, "model_not_found", text, details={"param": "model"})
