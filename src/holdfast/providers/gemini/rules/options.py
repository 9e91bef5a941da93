"""Rules of generateContent about fields beside the contents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.providers.gemini.field_spellings import get_spelled_field
from holdfast.providers.gemini.model_changes import parse_gemini_version
from holdfast.providers.gemini.rules.request_view import GeminiView
from holdfast.providers.gemini.tool_schemas import TOOL_SCHEMAS
from holdfast.providers.rules.options import (
    check_foreign_fields,
    check_number_range,
    is_gemini_function_name,
    is_whole_number,
)
from holdfast.providers.rules.rule import (
    GEMINI_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)
from holdfast.providers.rules.tool_schemas import check_tool_schemas

_FOREIGN_FIELDS = (
    "messages",
    "input",
    "system",
    "instructions",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stream",
    "tool_choice",
    "stop",
    "stop_sequences",
    "thinking",
)
"""Top-level fields of other APIs, which a converter may have left behind."""
_FOREIGN_TOOL_FIELDS = ("type", "name", "function", "parameters", "input_schema")
"""Fields of tools of other APIs."""
# Observed in error messages of Gemini 2.5; stop sequences and ranges are from the API reference.
_MAX_OUTPUT_TOKENS = 65_536
_MAX_STOPS = 5
_RANGES = {"temperature": (0, 2), "topP": (0, 1), "candidateCount": (1, 8)}
_CALLING_MODES = (None, "MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


def _check_foreign_fields(request: GeminiView) -> Violations:
    """The body has no fields of other APIs."""
    return check_foreign_fields(request, _FOREIGN_FIELDS)


def _check_system_prompt(request: GeminiView) -> Violations:
    """The field systemInstruction is a content with text parts only."""
    key, value = request.get_field("systemInstruction")
    if value is None:
        return
    parts = value.get("parts") if isinstance(value, dict) else None
    if not isinstance(parts, list) or not parts:
        yield f"$.{key}", f"{key} is {get_json_type_name(value)} without parts; send {{'parts': [{{'text': …}}]}}"
        return
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            yield f"$.{key}.parts[{index}]", "this part of the system instruction is not a text; send text"


# -- tools -------------------------------------------------------------------------------------------------------------


def _iter_declarations(request: GeminiView) -> Iterator[tuple[str, Any]]:
    """Yield path and declaration of each declared function."""
    for tool_index, tool in enumerate(request.get_list("tools")):
        key, declarations = get_spelled_field(tool, "functionDeclarations")
        if not isinstance(declarations, list):
            continue
        for index, declaration in enumerate(declarations):
            yield f"$.tools[{tool_index}].{key}[{index}]", declaration


def _check_tools(request: GeminiView) -> Violations:
    """The field tools is a list of objects with fields of this API, and declared functions have valid names."""
    value = request.body.get("tools")
    is_list_of_objects = isinstance(value, list) and all(isinstance(tool, dict) for tool in value)
    if value is not None and not is_list_of_objects:
        yield "$.tools", f"tools is {get_json_type_name(value)}; send a list of objects"
    for index, tool in enumerate(request.get_list("tools")):
        foreign_fields = []
        for key in _FOREIGN_TOOL_FIELDS:
            if isinstance(tool, dict) and key in tool:
                foreign_fields.append(key)
        if foreign_fields:
            problem = f"a tool has no fields {foreign_fields}"
            yield f"$.tools[{index}]", f"{problem}; declare functions in functionDeclarations"
    for path, declaration in _iter_declarations(request):
        name = declaration.get("name") if isinstance(declaration, dict) else None
        if not is_gemini_function_name(name):
            yield f"{path}.name", f"name {format_json_value(name)} is not valid for a function; rename it"


def _check_tool_names(request: GeminiView) -> Violations:
    """The names of declared functions are unique."""
    seen_names: set[str] = set()
    for path, declaration in _iter_declarations(request):
        name = str(declaration.get("name")) if isinstance(declaration, dict) else ""
        if name in seen_names:
            yield f"{path}.name", f"function {format_json_value(name)} is declared twice; keep one"
        seen_names.add(name)


def _check_calling_mode(request: GeminiView) -> Violations:
    """The mode of functionCallingConfig is AUTO, ANY, NONE or VALIDATED, and allowed functions are declared."""
    outer_key, config = request.get_field("toolConfig")
    inner_key, calling = get_spelled_field(config, "functionCallingConfig")
    path = f"$.{outer_key}.{inner_key}"
    mode = calling.get("mode") if isinstance(calling, dict) else None
    if mode not in _CALLING_MODES:
        yield f"{path}.mode", f"mode is {format_json_value(mode)}; use AUTO, ANY, NONE or VALIDATED"
    key, allowed = get_spelled_field(calling, "allowedFunctionNames")
    if not isinstance(allowed, list):
        return
    declared_names = set()
    for _, declaration in _iter_declarations(request):
        if isinstance(declaration, dict):
            declared_names.add(str(declaration.get("name")))
    for index, name in enumerate(allowed):
        if str(name) not in declared_names:
            problem = f"function {format_json_value(name)} is not declared; declare it, or remove it here"
            yield f"{path}.{key}[{index}]", problem


def _check_cached_content(request: GeminiView) -> Violations:
    """The field cachedContent excludes systemInstruction, tools and toolConfig, which are in the cached content."""
    if request.get_field("cachedContent")[1] is None:
        return
    for name in ("systemInstruction", "tools", "toolConfig"):
        key, value = request.get_field(name)
        if value:
            yield f"$.{key}", f"{key} is not allowed with a cached content; put it into the cached content"


# -- generation --------------------------------------------------------------------------------------------------------


def _get_generation_option(request: GeminiView, name: str) -> tuple[str, Any]:
    """Return path and value of an option in ``generationConfig``."""
    outer, config = request.get_field("generationConfig")
    key, value = get_spelled_field(config, name)
    return f"$.{outer}.{key}", value


def _check_max_tokens(request: GeminiView) -> Violations:
    """The option maxOutputTokens is at least 1, and at most 65,536."""
    path, value = _get_generation_option(request, "maxOutputTokens")
    if value is None:
        return
    if not (is_whole_number(value) and value >= 1):
        yield path, f"maxOutputTokens is {format_json_value(value)}; send a whole number of at least 1"
    elif value > _MAX_OUTPUT_TOKENS and parse_gemini_version(request.model) >= (2, 5):
        yield path, f"maxOutputTokens is {value:,}, but {_MAX_OUTPUT_TOKENS:,} are allowed; lower it"


def _check_sampling(request: GeminiView) -> Violations:
    """Temperature is from 0 to 2, topP from 0 to 1, candidateCount from 1 to 8."""
    for name, within in _RANGES.items():
        path, value = _get_generation_option(request, name)
        yield from check_number_range(path, name, value, within)


def _check_stop_sequences(request: GeminiView) -> Violations:
    """There are at most 5 stop sequences."""
    path, value = _get_generation_option(request, "stopSequences")
    if isinstance(value, list) and len(value) > _MAX_STOPS:
        yield path, f"{len(value)} stop sequences, but {_MAX_STOPS} are allowed; send fewer"


def _check_thinking_config(request: GeminiView) -> Violations:
    """There is only one of thinkingBudget and thinkingLevel."""
    path, config = _get_generation_option(request, "thinkingConfig")
    _, budget = get_spelled_field(config, "thinkingBudget")
    _, level = get_spelled_field(config, "thinkingLevel")
    if budget is not None and level is not None:
        yield path, "both thinkingBudget and thinkingLevel; send only one of them"


def _check_tool_schemas(request: GeminiView) -> Violations:
    """The JSON Schema of a tool is valid, and has only what the API accepts at its place."""
    return check_tool_schemas(request, TOOL_SCHEMAS)


OPTION_RULES: tuple[Rule, ...] = (
    Rule("gemini.foreign-field", _check_foreign_fields, "documented", GEMINI_DOCS),
    Rule("gemini.system-instruction", _check_system_prompt, "documented", GEMINI_DOCS),
    Rule("gemini.tools", _check_tools, "documented", GEMINI_DOCS),
    Rule("gemini.tool-names", _check_tool_names, "recalled", UNVERIFIED_MEMORY),
    Rule("gemini.tool-schema", _check_tool_schemas, "observed", PUBLIC_ERRORS),
    Rule("gemini.tool-config", _check_calling_mode, "documented", GEMINI_DOCS),
    Rule("gemini.cached-content", _check_cached_content, "recalled", UNVERIFIED_MEMORY),
    Rule(
        "gemini.limit",
        _check_max_tokens,
        "observed",
        PUBLIC_ERRORS,
        "the upper limit: Gemini 2.5 and later",
    ),
    Rule("gemini.sampling", _check_sampling, "documented", GEMINI_DOCS),
    Rule("gemini.stop-sequences", _check_stop_sequences, "documented", GEMINI_DOCS),
    Rule("gemini.thinking", _check_thinking_config, "recalled", UNVERIFIED_MEMORY),
)
"""The rules about options."""
