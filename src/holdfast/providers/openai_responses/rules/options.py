"""Rules of the Responses API about fields beside the input."""

from __future__ import annotations

from holdfast.providers.common.openai.model_changes import LOGPROBS_INCLUDE
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
from holdfast.providers.common.openai.tool_schemas import RESPONSES_TOOL_SCHEMAS
from holdfast.providers.openai_responses.rules.request_view import CONTENT_FIELD_BY_KIND, ResponsesView
from holdfast.providers.rules.envelope import RequestView
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

_FOREIGN_FIELDS = ("messages", "contents", "max_tokens", "max_completion_tokens", "stop", "stop_sequences", "system",
            "systemInstruction", "generationConfig", "response_format", "reasoning_effort", "n")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
# Limits in OpenAI's OpenAPI specification, except the lowest output limit, which is from memory.
_MIN_OUTPUT_TOKENS = 16
_MIN_COMPACTION_THRESHOLD = 1000
_MAX_CACHE_KEY_CHARS = 64
_RANGES = {"temperature": (0, 2), "top_p": (0, 1), "top_logprobs": (0, 20)}
_TOOL_CHOICES = ("none", "auto", "required")
_TOOL_BRINGING_ITEMS = frozenset({"additional_tools", "tool_search_output", "item_reference"})
"""Items that may declare tools."""
_TOOL_CONTAINERS = frozenset({"namespace", "tool_search", "mcp"})
"""Tools that contain others."""
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY_CHARS = 64
_MAX_METADATA_VALUE_CHARS = 512
_COMPLETION_WINDOWS = ("2h", "8h")
"""Windows of a background request at a lower price (SDK 3.57 types)."""
_REASONING_MODELS = "o-series, gpt-5 and later"
_LONG_CACHE = "gpt-5.5 and later"


def _check_foreign_fields(request: ResponsesView) -> Violations:
    """The body has no fields of other APIs."""
    return check_foreign_fields(request, _FOREIGN_FIELDS)


def _check_history_source(request: ResponsesView) -> Violations:
    """There is only one of previous_response_id and conversation."""
    if request.body.get("previous_response_id") is not None and request.body.get("conversation") is not None:
        yield "$.previous_response_id", "both previous_response_id and conversation; send only one of them"


def _check_context_management(request: ResponsesView) -> Violations:
    """context_management is a list of compactions whose threshold is at least 1,000 tokens."""
    value = request.body.get("context_management")
    if value is not None and not isinstance(value, list):
        yield "$.context_management", f"context_management is {get_json_type_name(value)}; send a list"
    for index, entry in enumerate(request.get_list("context_management")):
        path = f"$.context_management[{index}]"
        if not isinstance(entry, dict) or entry.get("type") != "compaction":
            yield f"{path}.type", "the type of the entry is not compaction; send {'type': 'compaction'}"
            continue
        threshold = entry.get("compact_threshold")
        if threshold is not None and not (is_whole_number(threshold) and threshold >= _MIN_COMPACTION_THRESHOLD):
            problem = f"the threshold is {format_json_value(threshold)} tokens"
            advice = f"send a whole number of at least {_MIN_COMPACTION_THRESHOLD:,}"
            yield f"{path}.compact_threshold", f"{problem}; {advice}"


def _check_tools(request: ResponsesView) -> Violations:
    """The field tools is a list of objects with a type; the name of a function matches ^[a-zA-Z0-9_-]{1,128}$."""
    value = request.body.get("tools")
    if value is not None and not isinstance(value, list):
        yield "$.tools", f"tools is {get_json_type_name(value)}; send a list of tools"
    for index, tool in enumerate(request.get_list("tools")):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            yield f"$.tools[{index}]", f"the tool is {get_json_type_name(tool)} without a type; add its type"
        elif tool["type"] in ("function", "custom"):
            name = tool.get("name")
            if not is_tool_name(name):
                problem = f"tool name {format_json_value(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$"
                yield f"$.tools[{index}].name", f"{problem}; rename it"


def _check_tool_choice(request: ResponsesView) -> Violations:
    """tool_choice is none, auto or required, or names one of the tools."""
    choice = request.body.get("tool_choice")
    if isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            problem = f"tool_choice {format_json_value(choice)} is not one of {_TOOL_CHOICES}"
            yield "$.tool_choice", f"{problem}; use one of them"
        return
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return
    # Tools may also come from items of the input and from inside other tools, where their names are not known here.
    tools = request.list_tools()
    has_hidden_tools = not _TOOL_BRINGING_ITEMS.isdisjoint(request.items_by_kind) or any(
        str(tool.get("type")) in _TOOL_CONTAINERS for tool in tools
    )
    name = choice.get("name")
    if not has_hidden_tools and name not in [tool.get("name") for tool in tools]:
        yield "$.tool_choice.name", f"function {format_json_value(name)} is not in tools; declare it"


def _check_max_tokens(request: ResponsesView) -> Violations:
    """max_output_tokens is at least 16."""
    value = request.body.get("max_output_tokens")
    if value is not None and not (is_whole_number(value) and value >= _MIN_OUTPUT_TOKENS):
        yield (
            "$.max_output_tokens",
            f"max_output_tokens is {format_json_value(value)}; send at least {_MIN_OUTPUT_TOKENS}",
        )


def _check_sampling(request: ResponsesView) -> Violations:
    """Temperature is from 0 to 2, top_p from 0 to 1, top_logprobs from 0 to 20."""
    return check_number_fields(request, _RANGES)


def _check_truncation(request: ResponsesView) -> Violations:
    """The field truncation is auto or disabled."""
    value = request.body.get("truncation")
    # ``auto`` is valid, though it drops the oldest items silently.
    if value not in (None, "auto", "disabled"):
        yield "$.truncation", f"truncation is {format_json_value(value)}; send disabled"


def _check_cache_key(request: ResponsesView) -> Violations:
    """prompt_cache_key has at most 64 characters."""
    value = request.body.get("prompt_cache_key")
    if isinstance(value, str) and len(value) > _MAX_CACHE_KEY_CHARS:
        yield (
            "$.prompt_cache_key",
            f"prompt_cache_key has {len(value)} characters, but {_MAX_CACHE_KEY_CHARS} are allowed; shorten it",
        )


def _check_metadata(request: ResponsesView) -> Violations:
    """The field metadata has at most 16 pairs, with keys of up to 64 characters and strings of up to 512."""
    value = request.body.get("metadata")
    if value is None:
        return
    if not isinstance(value, dict) or len(value) > _MAX_METADATA_PAIRS:
        count = len(value) if isinstance(value, dict) else get_json_type_name(value)
        yield (
            "$.metadata",
            f"metadata must be an object of at most {_MAX_METADATA_PAIRS} pairs, but is {count}; send fewer",
        )
        return
    for key, text in value.items():
        is_valid_text = isinstance(text, str) and len(text) <= _MAX_METADATA_VALUE_CHARS
        if len(key) > _MAX_METADATA_KEY_CHARS or not is_valid_text:
            problem = f"the key has {len(key)} characters and its value is {get_json_type_name(text)}"
            advice = f"send up to {_MAX_METADATA_KEY_CHARS}, and a string of up to {_MAX_METADATA_VALUE_CHARS}"
            yield f"$.metadata.{key[:_MAX_METADATA_KEY_CHARS]}", f"{problem}; {advice}"


def _check_background_options(request: ResponsesView) -> Violations:
    """background_options needs background: true, and no stream; its completion_window is 2h or 8h."""
    value = request.body.get("background_options")
    if value is None:
        return
    if request.body.get("background") is not True:
        yield "$.background_options", "background_options without background; send background: true, or leave it out"
    elif request.body.get("stream") is True:
        yield "$.background_options", "background_options with a stream; leave one of the two out"
    window = request.get_option("background_options", "completion_window")
    if window is not None and window not in _COMPLETION_WINDOWS:
        problem = f"completion_window is {format_json_value(window)}"
        yield "$.background_options.completion_window", f"{problem}; send {' or '.join(_COMPLETION_WINDOWS)}"


def _check_prompt_object(request: ResponsesView) -> Violations:
    """There is no stored prompt: OpenAI ends them on November 30, 2026."""
    if request.body.get("prompt") is not None:
        problem = "OpenAI ends stored prompts (v1/prompts) on November 30, 2026"
        yield "$.prompt", f"{problem}; send the text of the prompt as a developer message"


# -- rules by model ----------------------------------------------------------------------------------------------------


def _check_model_sampling(request: ResponsesView) -> Violations:
    """Temperature, top_p and log probabilities are only sent to a model that takes them at its effort."""
    effort = request.get_option("reasoning", "effort")
    yield from check_model_sampling(request, effort)
    traits = get_openai_traits(request.model)
    if traits is None or not traits.is_reasoning_at(effort):
        return
    for index, entry in enumerate(request.get_list("include")):
        if entry == LOGPROBS_INCLUDE:
            problem = f"{request.model} gives no log probabilities while it reasons"
            yield f"$.include[{index}]", f"{problem}; leave the entry out"


def _check_model_effort(request: ResponsesView) -> Violations:
    """The reasoning effort is one that the model has."""
    effort = request.get_option("reasoning", "effort")
    return check_model_effort(request, "$.reasoning.effort", effort, is_chat=False)


def _check_cache_retention(request: ResponsesView) -> Violations:
    """prompt_cache_retention is one that the model has."""
    return check_cache_retention(request)


def _check_connector(request: ResponsesView) -> Violations:
    """A connector_id is only sent to models from before September 2026: later ones deprecate it."""
    traits = get_openai_traits(request.model)
    if traits is None or traits.takes_connectors:
        return
    for index, tool in enumerate(request.get_list("tools")):
        if isinstance(tool, dict) and tool.get("type") == "mcp" and tool.get("connector_id") is not None:
            problem = f"connector_id is deprecated for models after September 1, 2026, such as {request.model}"
            yield f"$.tools[{index}].connector_id", f"{problem}; name the server by its server_url"


def _check_service_tier(request: ResponsesView) -> Violations:
    """service_tier is one that the model has."""
    return check_service_tier(request)


def _check_safety_identifier(request: ResponsesView) -> Violations:
    """safety_identifier has at most 128 characters."""
    return check_safety_identifier(request)


def _check_breakpoint_count(request: ResponsesView) -> Violations:
    """There are at most 4 cache breakpoints."""
    paths = []
    for item, index, part in request.parts:
        if isinstance(part, dict) and part.get("prompt_cache_breakpoint") is not None:
            paths.append(f"{item.path}.{CONTENT_FIELD_BY_KIND[item.kind]}[{index}].prompt_cache_breakpoint")
    return check_breakpoint_count(paths)


def _check_instructions_place(request: ResponsesView) -> Violations:
    """Standing instructions are a first developer message for a model that reads instructions after the input."""
    traits = get_openai_traits(request.model)
    if traits is not None and traits.appends_instructions and request.body.get("instructions"):
        problem = f"{request.model} reads instructions after the input, and does not cache them"
        yield "$.instructions", f"{problem}; send what always holds as a developer message at the start of the input"


def _check_model_shut_down(request: ResponsesView) -> Violations:
    """The model is one that OpenAI still serves."""
    return check_model_shut_down(request)


def _check_tool_schemas(request: ResponsesView) -> Violations:
    """The JSON Schema of a tool is valid, and has only what the API accepts at its place."""
    return check_tool_schemas(request, RESPONSES_TOOL_SCHEMAS)


OPTION_RULES: tuple[Rule, ...] = (
    Rule("openai-responses.foreign-field", _check_foreign_fields, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.history", _check_history_source, "documented", OPENAI_DOCS),
    Rule("openai-responses.context-management", _check_context_management, "documented", OPENAI_DOCS),
    Rule("openai-responses.tools", _check_tools, "documented", OPENAI_DOCS),
    Rule("openai-responses.tool-schema", _check_tool_schemas, "observed", PUBLIC_ERRORS),
    Rule("openai-responses.tool-choice", _check_tool_choice, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.limit", _check_max_tokens, "recalled", UNVERIFIED_MEMORY),
    Rule("openai-responses.sampling", _check_sampling, "documented", OPENAI_DOCS),
    Rule("openai-responses.truncation", _check_truncation, "documented", OPENAI_DOCS),
    Rule("openai-responses.cache-key", _check_cache_key, "documented", OPENAI_DOCS),
    Rule("openai-responses.metadata", _check_metadata, "documented", OPENAI_DOCS),
    Rule("openai-responses.background", _check_background_options, "documented", OPENAI_NOVEMBER_DOCS),
    Rule("openai-responses.prompt-object", _check_prompt_object, "inferred", "guide to prompts, June 3, 2026"),
    Rule("openai-responses.model-sampling", _check_model_sampling, "observed", OPENAI_MODEL_SOURCES, _REASONING_MODELS),
    Rule("openai-responses.model-effort", _check_model_effort, "observed", OPENAI_MODEL_SOURCES, _REASONING_MODELS),
    Rule("openai-responses.cache-retention", _check_cache_retention, "observed", OPENAI_MODEL_SOURCES, _LONG_CACHE),
    Rule("openai-responses.connector", _check_connector, "inferred", OPENAI_NOVEMBER_DOCS, "gpt-6 and later"),
    Rule("openai-responses.service-tier", _check_service_tier, "documented", "guide to gpt-6.2", "gpt-6.2"),
    Rule("openai-responses.safety-identifier", _check_safety_identifier, "documented", OPENAI_NOVEMBER_DOCS),
    Rule("openai-responses.breakpoints", _check_breakpoint_count, "inferred", OPENAI_NOVEMBER_DOCS),
    Rule("openai-responses.instructions-place", _check_instructions_place, "inferred", "guide to gpt-6.2", "gpt-6.2"),
    Rule("openai-responses.shut-down", _check_model_shut_down, "inferred", "page on deprecations, October 2026"),
)
"""The rules about options."""


def _check_model_or_prompt(request: RequestView) -> Violations:
    """A whole request names its model, or a stored prompt that has one."""
    if request.body.get("prompt") is None:
        yield from check_model_named(request)


REQUIRED_RULES = (Rule("openai-responses.required", _check_model_or_prompt, "recalled", UNVERIFIED_MEMORY),)
