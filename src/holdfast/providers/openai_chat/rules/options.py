"""Rules of Chat Completions about fields beside the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.common.openai.model_changes import LIMIT_FIELD, OLD_LIMIT_FIELD
from holdfast.providers.common.openai.model_rules import (
    OPENAI_MODEL_SOURCES,
    OPENAI_NOVEMBER_DOCS,
    check_breakpoint_count,
    check_cache_retention,
    check_model_effort,
    check_model_sampling,
    check_model_shut_down,
    check_safety_identifier,
    check_service_tier,
)
from holdfast.providers.common.openai.model_traits import get_openai_traits
from holdfast.providers.common.openai.tool_schemas import CHAT_TOOL_SCHEMAS
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.options import (
    check_foreign_fields,
    check_model_named,
    check_number_fields,
    is_tool_name,
    is_whole_number,
)
from holdfast.providers.rules.rule import (
    OPENAI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)
from holdfast.providers.rules.tool_schemas import check_tool_schemas

# Limits in OpenAI's API reference.
_MAX_NAME_CHARS = 64
_MAX_TOOLS = 128
_FOREIGN_FIELDS = (
    "contents",
    "input",
    "instructions",
    "max_output_tokens",
    "stop_sequences",
    "system",
    "systemInstruction",
    "generationConfig",
    "anthropic_version",
)
"""Top-level fields of other APIs, which a converter may have left behind."""
# Ranges and number of stop sequences in OpenAI's API reference.
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
_MAX_STOPS = 4
_REASONING_MODELS = "o-series, gpt-5 and later"
# The reference says so of the o-series; gpt-5 to 5.4: llm-gateway#1849, copilot-eclipse-feedback#170, jcode#190 (2026).
_LIMIT_SOURCE = "OpenAI's API reference, max_tokens"


def _check_foreign_fields(request: ChatView) -> Violations:
    """The body has no fields of other APIs."""
    return check_foreign_fields(request, _FOREIGN_FIELDS)


def _check_tools(request: ChatView) -> Violations:
    """The field tools is a list of 1 to 128 objects with a type."""
    tools = request.body.get("tools")
    if tools is not None and not (isinstance(tools, list) and 1 <= len(tools) <= _MAX_TOOLS):
        count = len(tools) if isinstance(tools, list) else get_json_type_name(tools)
        yield (
            "$.tools",
            f"tools must be a list of 1 to {_MAX_TOOLS}, but is {count}; shorten it, or leave the field out",
        )
    for index, tool in enumerate(request.get_list("tools")):
        path = f"$.tools[{index}]"
        if not isinstance(tool, dict):
            yield path, f"the tool is {get_json_type_name(tool)}; send an object with a type"
            continue
        # A tool without a type is only refused if it is surely a function of another API's form.
        has_no_type = not isinstance(tool.get("type"), str)
        if has_no_type and (_holds_foreign_functions(tool) or "name" in tool):
            yield path, "the tool has no type; send a function under the type 'function'"


def _holds_foreign_functions(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool without a type declares functions as Gemini or the Messages API does."""
    if any(isinstance(tool.get(key), list) for key in ("functionDeclarations", "function_declarations")):
        return True
    return tool.get("type") is None and isinstance(tool.get("input_schema"), Mapping)


def _check_tool_names(request: ChatView) -> Violations:
    """The name of a function in tools matches ^[a-zA-Z0-9_-]{1,64}$."""
    for index, tool in enumerate(request.get_list("tools")):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            continue
        definition = tool.get(kind)
        name = definition.get("name") if isinstance(definition, dict) else None
        if not is_tool_name(name, _MAX_NAME_CHARS):
            path = f"$.tools[{index}].{kind}.name"
            yield path, f"tool name {format_json_value(name)} does not match ^[a-zA-Z0-9_-]{{1,64}}$; rename it"


def _check_tool_choice(request: ChatView) -> Violations:
    """tool_choice and parallel_tool_calls need tools."""
    for key in ("tool_choice", "parallel_tool_calls"):
        value = request.body.get(key)
        # Without tools, "none" asks for nothing and is accepted.
        if value not in (None, "none") and not request.body.get("tools"):
            yield f"$.{key}", f"{key} without tools; send tools, or drop {key}"


def _check_max_tokens(request: ChatView) -> Violations:
    """max_tokens and max_completion_tokens are at least 1."""
    for key in ("max_tokens", "max_completion_tokens"):
        value = request.body.get(key)
        if value is not None and not (is_whole_number(value) and value >= 1):
            yield f"$.{key}", f"{key} is {format_json_value(value)}; send a whole number of at least 1"


def _check_single_limit(request: ChatView) -> Violations:
    """There is only one of max_tokens and max_completion_tokens."""
    if request.body.get("max_tokens") is not None and request.body.get("max_completion_tokens") is not None:
        yield "$.max_tokens", "both max_tokens and max_completion_tokens; send only max_completion_tokens"


def _check_sampling(request: ChatView) -> Violations:
    """Temperature is from 0 to 2, top_p from 0 to 1, penalties are from -2 to 2."""
    return check_number_fields(request, _RANGES)


def _check_stop_sequences(request: ChatView) -> Violations:
    """There are at most 4 stop sequences."""
    count = len(request.get_list("stop"))
    if count > _MAX_STOPS:
        yield "$.stop", f"{count} stop sequences, but {_MAX_STOPS} are allowed; send fewer"


def _check_stream_options(request: ChatView) -> Violations:
    """stream_options needs stream: true."""
    if request.body.get("stream_options") is not None and not request.body.get("stream"):
        yield "$.stream_options", "stream_options without stream; send stream: true, or leave stream_options out"


# -- rules by model ----------------------------------------------------------------------------------------------------


def _check_model_sampling(request: ChatView) -> Violations:
    """Temperature, top_p, log probabilities and penalties are only sent to a model that takes them at its effort."""
    return check_model_sampling(request, request.body.get("reasoning_effort"))


def _check_model_limit(request: ChatView) -> Violations:
    """The limit of an answer has the name max_completion_tokens for a model that reasons."""
    if get_openai_traits(request.model) is not None and request.body.get(OLD_LIMIT_FIELD) is not None:
        yield f"$.{OLD_LIMIT_FIELD}", f"{request.model} does not take {OLD_LIMIT_FIELD}; send {LIMIT_FIELD}"


def _check_model_effort(request: ChatView) -> Violations:
    """The reasoning effort is one that the model has in Chat Completions."""
    return check_model_effort(request, "$.reasoning_effort", request.body.get("reasoning_effort"), is_chat=True)


def _check_model_tools(request: ChatView) -> Violations:
    """Tools are only sent to a model that takes them in Chat Completions, at an effort with which it takes them."""
    traits = get_openai_traits(request.model)
    tools_field = next((key for key in ("tools", "functions") if request.get_list(key)), "")
    if traits is None or not tools_field:
        return
    effort = request.body.get("reasoning_effort")
    if traits.chat_tools == "never":
        problem = f"{request.model} takes tools only in the Responses API"
        yield f"$.{tools_field}", f"{problem}; send the request there (holdfast fix --to openai-responses)"
    elif traits.chat_tools == "only_none" and effort != "none":
        problem = f"{request.model} takes tools in Chat Completions only at the reasoning effort none"
        yield "$.reasoning_effort", f"{problem}; send none, or send the request to the Responses API"
    elif traits.chat_tools == "no_effort" and effort not in (None, "none"):
        problem = f"{request.model} takes tools in Chat Completions only without a reasoning effort"
        yield "$.reasoning_effort", f"{problem}; leave it out, or send the request to the Responses API"


def _check_cache_retention(request: ChatView) -> Violations:
    """prompt_cache_retention is one that the model has."""
    return check_cache_retention(request)


def _check_service_tier(request: ChatView) -> Violations:
    """service_tier is one that the model has."""
    return check_service_tier(request)


def _check_safety_identifier(request: ChatView) -> Violations:
    """safety_identifier has at most 128 characters."""
    return check_safety_identifier(request)


def _check_breakpoint_count(request: ChatView) -> Violations:
    """There are at most 4 cache breakpoints."""
    paths = []
    for message_index, part_index, part, _role in request.parts:
        if isinstance(part, dict) and part.get("prompt_cache_breakpoint") is not None:
            paths.append(f"$.messages[{message_index}].content[{part_index}].prompt_cache_breakpoint")
    return check_breakpoint_count(paths)


def _check_model_shut_down(request: ChatView) -> Violations:
    """The model is one that OpenAI still serves."""
    return check_model_shut_down(request)


def _check_tool_schemas(request: ChatView) -> Violations:
    """The JSON Schema of a tool is valid, and has only what the API accepts at its place."""
    return check_tool_schemas(request, CHAT_TOOL_SCHEMAS)


OPTION_RULES: tuple[Rule, ...] = (
    Rule("openai-chat.foreign-field", _check_foreign_fields, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-chat.tools", _check_tools, "documented", OPENAI_DOCS),
    Rule("openai-chat.tool-names", _check_tool_names, "documented", OPENAI_DOCS),
    Rule("openai-chat.tool-schema", _check_tool_schemas, "observed", PUBLIC_ERRORS),
    Rule("openai-chat.tool-choice", _check_tool_choice, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-chat.limits", _check_max_tokens, "documented", OPENAI_DOCS),
    Rule("openai-chat.one-limit", _check_single_limit, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-chat.sampling", _check_sampling, "documented", OPENAI_DOCS),
    Rule("openai-chat.stop", _check_stop_sequences, "documented", OPENAI_DOCS),
    Rule("openai-chat.stream-options", _check_stream_options, "documented", OPENAI_DOCS),
    Rule("openai-chat.model-sampling", _check_model_sampling, "observed", OPENAI_MODEL_SOURCES, _REASONING_MODELS),
    Rule("openai-chat.model-limit", _check_model_limit, "documented", _LIMIT_SOURCE, _REASONING_MODELS),
    Rule("openai-chat.model-effort", _check_model_effort, "observed", OPENAI_MODEL_SOURCES, _REASONING_MODELS),
    Rule("openai-chat.model-tools", _check_model_tools, "observed", OPENAI_MODEL_SOURCES, "gpt-5.4 and later"),
    Rule("openai-chat.cache-retention", _check_cache_retention, "observed", OPENAI_MODEL_SOURCES, "gpt-5.5 and later"),
    Rule("openai-chat.service-tier", _check_service_tier, "documented", "guide to gpt-6.2", "gpt-6.2"),
    Rule("openai-chat.safety-identifier", _check_safety_identifier, "documented", OPENAI_NOVEMBER_DOCS),
    Rule("openai-chat.breakpoints", _check_breakpoint_count, "inferred", OPENAI_NOVEMBER_DOCS),
    Rule("openai-chat.shut-down", _check_model_shut_down, "inferred", "page on deprecations, October 2026"),
)
"""The rules about options."""


REQUIRED_RULES = (Rule("openai-chat.required", check_model_named, "documented", OPENAI_DOCS),)
