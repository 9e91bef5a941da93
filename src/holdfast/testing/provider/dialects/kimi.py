"""Kimi (``https://api.moonshot.ai/v1``): thinking must come back, sampling is fixed, schemas are of its own flavour."""

from __future__ import annotations

from typing import Any

from holdfast.testing.provider.dialects.openai_only import OPENAI_MODEL_RULES
from holdfast.testing.provider.dialects.server_dialect import (
    AnswerForm,
    ServerDialect,
    ServerError,
    ServerErrors,
    ServerRule,
)
from holdfast.testing.provider.dialects.server_request import (
    Fields,
    ServerRequest,
    get_image_url,
    iter_assistants,
    iter_schema_nodes,
    list_calls,
    list_parts,
)

_MAX_MESSAGE_BYTES = 2_097_152
"""MoonshotAI/kimi-code#476: "total message size 10176584 exceeds limit 2097152", in bytes."""
_FIXED_SAMPLING = {"top_p": 0.95, "n": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Values beside the temperature that the kimi models take, and no others."""
_ALWAYS_THINKING = ("k2.7-code", "k2-thinking", "kimi-k3", "k3.1", "k3-256k")


def _is_kimi_series(request: ServerRequest) -> bool:
    """Return whether the model is of the kimi series; moonshot-v1 neither thinks nor fixes its sampling."""
    return "moonshot-v1" not in request.model


def _is_k3(request: ServerRequest) -> bool:
    return request.is_model("kimi-k3", "k3.1") or request.model in ("k3", "k3-256k")


def is_kimi_thinking(request: ServerRequest) -> bool:
    """Return whether the model thinks: K2.7 code, K3 and later always, the others unless it is disabled."""
    if not _is_kimi_series(request):
        return False
    if _is_k3(request) or request.is_model(*_ALWAYS_THINKING):
        return True
    return bool(request.get_option("thinking", "type") != "disabled")


# -- messages ----------------------------------------------------------------------------------------------------------


def _check_empty_assistant(request: ServerRequest) -> ServerErrors:
    """A message of the assistant without calls is not empty."""
    for index, message in iter_assistants(request):
        if message.get("content") in (None, "", []) and not list_calls(message):
            problem = f"the message at position {index} with role 'assistant' must not be empty"
            yield ServerError(f"Invalid request: {problem}")


def _check_reasoning_returned(request: ServerRequest) -> ServerErrors:
    """While the model thinks, a message with calls has reasoning_content, and it is not an empty string."""
    if not is_kimi_thinking(request):
        return
    for index, message in iter_assistants(request):
        if list_calls(message) and not message.get("reasoning_content"):
            problem = "reasoning_content is missing in assistant tool call message at index"
            yield ServerError(f"thinking is enabled but {problem} {index}")


def _check_message_size(request: ServerRequest) -> ServerErrors:
    """The body has at most 2,097,152 bytes."""
    if request.size > _MAX_MESSAGE_BYTES:
        yield ServerError(f"total message size {request.size} exceeds limit {_MAX_MESSAGE_BYTES}")


def _check_media(request: ServerRequest) -> ServerErrors:
    """Images and videos are data URLs or ms://FILE, and of a kind that it reads; it fetches nothing."""
    for _, message in request.messages:
        for _, part in list_parts(message):
            url = get_image_url(part)
            kind = url.removeprefix("data:").partition(";")[0]
            if url.startswith("http"):
                yield ServerError("Invalid request: unsupported image url, use base64 encoded data or a file id")
            elif url.startswith("data:") and not kind.startswith(("image/", "video/")):
                yield ServerError(f"Invalid request: unsupported image format: {kind}")


# -- options -----------------------------------------------------------------------------------------------------------


def _check_thinking(request: ServerRequest) -> ServerErrors:
    """K2.7 code takes only type enabled, keep is null or all, and K2 takes thinking or reasoning_effort, not both."""
    thinking = request.body.get("thinking")
    if not isinstance(thinking, dict) or _is_k3(request):
        return
    if request.is_model("k2.7-code") and thinking.get("type") != "enabled":
        yield ServerError("invalid thinking: only type=enabled is allowed for this model")
    if thinking.get("keep") not in (None, "all"):
        yield ServerError('invalid thinking.keep: only null or "all" is allowed')
    if request.body.get("reasoning_effort") is not None:
        yield ServerError("cannot specify both 'thinking' and 'reasoning_effort'")


def _check_sampling(request: ServerRequest) -> ServerErrors:
    """The kimi models take only their own temperature (1, or 0.6 without thinking), top_p, n and penalties."""
    if not _is_kimi_series(request):
        return
    allowed = {"temperature": 1 if is_kimi_thinking(request) else 0.6} | _FIXED_SAMPLING
    for name, value in allowed.items():
        if request.body.get(name) not in (None, value):
            yield ServerError(f"invalid {name}: only {value} is allowed for this model")


def _check_forced_tools(request: ServerRequest) -> ServerErrors:
    """While the model thinks, no tool is forced by its name, and on K2 required is refused too."""
    choice = request.body.get("tool_choice")
    if not is_kimi_thinking(request):
        return
    if isinstance(choice, dict):
        yield ServerError("tool_choice 'specified' is incompatible with thinking enabled")
    if choice == "required" and not _is_k3(request):
        yield ServerError("tool_choice 'required' is incompatible with thinking enabled")


# -- schemas -----------------------------------------------------------------------------------------------------------


def _check_tool_names(request: ServerRequest) -> ServerErrors:
    """The name of a tool begins with a letter."""
    for _, function in request.functions:
        name = str(function.get("name"))
        if not name[:1].isalpha():
            text = "Invalid request: function name is invalid, must start with a letter and can contain letters,"
            yield ServerError(f"{text} numbers, underscores, and dashes")


def _check_schema_root(request: ServerRequest) -> ServerErrors:
    """The root of a tool's schema has the type object."""
    for _, function in request.functions:
        parameters = function.get("parameters")
        if isinstance(parameters, dict) and parameters.get("type") != "object":
            yield ServerError('tools.function.parameters.type is required and must be "object"')


def _check_schema(request: ServerRequest) -> ServerErrors:
    """A tool's schema is of Moonshot's flavour, if not told otherwise: no type beside anyOf, whole items and so on."""
    for _, function in request.functions:
        if function.get("strict") is False:  # platform.kimi.ai/docs/api/tool-use
            continue
        for steps, node in iter_schema_nodes(function.get("parameters")):
            problem = _find_schema_problem(node)
            if problem:
                place = ".".join(steps) or "root"
                yield ServerError(
                    "tools.function.parameters is not a valid moonshot flavored json schema, details:"
                    f" <At path '{place}': {problem}>"
                )


def _find_schema_problem(node: Any) -> str:
    """Return what is wrong with one schema, or an empty string."""
    if not isinstance(node, dict):
        return ""
    if "anyOf" in node and "type" in node:
        return "when using anyOf, type should be defined in anyOf items instead of the parent schema"
    if "items" in node and not isinstance(node["items"], dict):
        return "items must be an object"
    return _find_reference_problem(node) or _find_property_problem(node)


def _find_reference_problem(node: Fields) -> str:
    reference = node.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/$defs/"):
        return "references must start with #/$defs/"
    if reference is not None and "type" in node:
        return "when using $ref, type should be defined in the referenced schema instead of the parent schema"
    if reference is not None and "description" in node:
        return "conflicting keywords found after $ref expansion: description"
    return ""


def _find_property_problem(node: Fields) -> str:
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return ""
    for name, child in properties.items():
        if not isinstance(child, dict):
            return f"property schema for '{name}' must be an object"
    required = node.get("required")
    for name in required if isinstance(required, list) else []:
        if name not in properties:
            return f"required property '{name}' is not defined in properties"
    return ""


def _encode_error(error: ServerError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind or "invalid_request_error"}}


def _adapt_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Put the cached tokens at the top level."""
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")} | {
        "cached_tokens": cached_tokens
    }


def _make_call_id(digest: str, name: str, index: int) -> str:
    # The count goes on over the whole conversation; the digest keeps it apart here.
    return f"{name}:{int(digest[:4], 16) + index}"


KIMI = ServerDialect(
    name="kimi",
    title="Kimi (Moonshot AI)",
    default_model="kimi-k3",
    rules=(
        ServerRule("kimi.message-size", _check_message_size, "MoonshotAI/kimi-code#476"),
        ServerRule(
            "kimi.empty-assistant",
            _check_empty_assistant,
            "AIDotNet/OpenCowork#10, 2026-03-12; MoonshotAI/kimi-code#1985, 2026-07-21",
        ),
        ServerRule(
            "kimi.reasoning-returned",
            _check_reasoning_returned,
            "continuedev/continue#11711, 2026-03-22; farion1231/cc-switch#2365;"
            " platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model",
        ),
        ServerRule(
            "kimi.media",
            _check_media,
            "enricoros/big-AGI#1161, 2026-07-17; docs.anyfast.ai; vercel/ai fixture of an image format. The wording for"
            " a web address is not known",
        ),
        ServerRule(
            "kimi.thinking",
            _check_thinking,
            "vercel/ai fixture k2.7-disabled-thinking-error; HKUDS/nanobot#3939, 2026-05-20;"
            " platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model",
        ),
        ServerRule(
            "kimi.sampling",
            _check_sampling,
            "platform.kimi.ai/docs/guide/migrating-from-openai-to-kimi; cecli-dev/cecli#484, 2026-04-13;"
            " CherryHQ/cherry-studio#12691; vercel/ai fixture kimi-k3-temperature-rejection",
        ),
        ServerRule(
            "kimi.forced-tools",
            _check_forced_tools,
            "UKGovernmentBEIS/inspect_ai#5152, 2026-08-31; enricoros/big-AGI#1161, 2026-07-17",
        ),
        ServerRule("kimi.tool-names", _check_tool_names, "MoonshotAI/kimi-cli#2531, 2026-07-22"),
        ServerRule(
            "kimi.schema-root",
            _check_schema_root,
            "MoonshotAI/walle docs/mfjs-spec.md",
        ),
        ServerRule(
            "kimi.schema",
            _check_schema,
            "MoonshotAI/walle docs/mfjs-spec.md; MoonshotAI/kimi-code#2661; MoonshotAI/kimi-cli#2061;"
            " can1357/oh-my-pi#5952; MoonshotAI/kimi-code#1610; vercel/ai#18921. Type beside anyOf was not refused on"
            " 2026-09-21 (14790897/MiqroForge-Desktop#1165)",
        ),
    ),
    missing_rules=OPENAI_MODEL_RULES
    | {
        "openai-chat.ids",  # ids are free
        "openai-chat.foreign-field",  # unknown fields are ignored
        "openai-chat.stop",  # up to 5
        "openai-chat.part-fields",  # image_url may be a string
        "openai-chat.unknown-part",
        "openai-chat.tool-schema",  # the rows above are its own
    },
    encode_error=_encode_error,
    overflow="moonshot",
    answers=AnswerForm(is_kimi_thinking, make_call_id=_make_call_id, adapt_usage=_adapt_usage),
    base_paths=("/coding/v1",),
)
