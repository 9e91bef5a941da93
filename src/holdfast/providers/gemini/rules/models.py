"""Rules of generateContent that depend on the model, or on tools that Google runs."""

from __future__ import annotations

from holdfast.providers.gemini.field_spellings import get_spelled_field
from holdfast.providers.gemini.model_changes import (
    IGNORED_OPTIONS_RULE,
    SAMPLING_OPTIONS,
    SERVER_SIDE_TOOLS_RULE,
    THINKING_LEVEL_RULE,
    find_accepted_level,
    find_thinking_level,
    has_functions,
    ignores_sampling,
    is_older_gemini,
    list_built_in_tools,
    parse_gemini_version,
    takes_both_kinds_of_tools,
)
from holdfast.providers.gemini.rules.request_view import GeminiView
from holdfast.providers.rules.options import is_number
from holdfast.providers.rules.rule import Rule, Violations, format_json_value

_FLAG = "includeServerSideToolInvocations"
_TOOL_COMBINATION_DOCS = "ai.google.dev/gemini-api/docs/generate-content/tool-combination"


def _check_server_side_tools(request: GeminiView) -> Violations:
    """Built-in tools beside functions need includeServerSideToolInvocations, which only Gemini 3 and later know."""
    config_key, config = request.get_field("toolConfig")
    flag_key, flag = get_spelled_field(config, _FLAG)
    path = f"$.{config_key}.{flag_key}"
    built_in_tools = list_built_in_tools(request.body)
    is_mixed = bool(built_in_tools) and has_functions(request.body)
    if not takes_both_kinds_of_tools(request.model):
        if flag is not None:
            yield path, f"{request.model} does not know {flag_key}; leave it out"
        if is_mixed:
            index, name = built_in_tools[0]
            problem = f"{request.model} takes {name} beside functions in no way"
            yield f"$.tools[{index}].{name}", f"{problem}; leave one of them out, or ask Gemini 3 or later"
    elif is_mixed and flag is not True:
        name = built_in_tools[0][1]
        problem = f"{name} stands beside functions, but {flag_key} is {format_json_value(flag)}"
        yield path, f"{problem}; set it to true"


def _check_server_side_mode(request: GeminiView) -> Violations:
    """With includeServerSideToolInvocations the mode of function calls is VALIDATED, not AUTO."""
    config_key, config = request.get_field("toolConfig")
    calling_key, calling = get_spelled_field(config, "functionCallingConfig")
    mode = calling.get("mode") if isinstance(calling, dict) else None
    if mode == "AUTO" and get_spelled_field(config, _FLAG)[1] is True:
        path = f"$.{config_key}.{calling_key}.mode"
        yield path, f"mode AUTO beside {_FLAG}; send VALIDATED, or no mode"


def _check_server_side_pairs(request: GeminiView) -> Violations:
    """Each toolCall has a toolResponse with its id in the same content, and the other way round."""
    ids_by_place: dict[tuple[int, str], set[str]] = {}
    for piece in request.iter_parts("toolCall", "toolResponse"):
        ids_by_place.setdefault((piece.content_index, piece.kind), set()).add(piece.get_id())
    for piece in request.iter_parts("toolCall", "toolResponse"):
        other_kind = "toolResponse" if piece.kind == "toolCall" else "toolCall"
        piece_id = piece.get_id()
        if piece_id and piece_id not in ids_by_place.get((piece.content_index, other_kind), ()):
            problem = f"the id {piece_id} has no {other_kind} in its content"
            yield piece.payload_path, f"{problem}; send all parts as the model returned them"


def _check_thinking_level(request: GeminiView) -> Violations:
    """The model has this thinkingLevel."""
    steps, level = find_thinking_level(request.body)
    if not isinstance(level, str):
        return
    accepted_level = find_accepted_level(request.model, level)
    if accepted_level != level:
        advice = f"send {accepted_level}" if accepted_level is not None else "leave it out, or send a thinkingBudget"
        yield f"$.{'.'.join(steps)}", f"{request.model} does not take the level {level}; {advice}"


def _check_ignored_options(request: GeminiView) -> Violations:
    """Gemini 3.6 and 3.5 Flash-Lite ignore temperature, topP and topK, and Gemini 3 has one candidate only."""
    outer, config = request.get_field("generationConfig")
    version = parse_gemini_version(request.model)
    if ignores_sampling(request.model):
        for name in SAMPLING_OPTIONS:
            key, value = get_spelled_field(config, name)
            if value is not None:
                yield f"$.{outer}.{key}", f"{request.model} ignores {key}, a later one may refuse it; leave it out"
    key, count = get_spelled_field(config, "candidateCount")
    if version >= (3, 0) and is_number(count) and count > 1:
        yield f"$.{outer}.{key}", f"{request.model} gives one candidate, not {count}; leave {key} out"


def _check_call_ids(request: GeminiView) -> Violations:
    """Before Gemini 3 a functionCall and a functionResponse have no id."""
    if not is_older_gemini(request.model, (3, 0)):
        return
    for piece in request.iter_parts("functionCall", "functionResponse"):
        if piece.get_id():
            problem = f"some servers of {request.model} refuse an id"
            yield f"{piece.payload_path}.id", f"{problem}; leave it out, calls are told by their order"


MODEL_RULES: tuple[Rule, ...] = (
    Rule(
        f"gemini.{SERVER_SIDE_TOOLS_RULE}",
        _check_server_side_tools,
        "observed",
        f"{_TOOL_COMBINATION_DOCS}; genkit#4970, 2026-03-20; ag2ai/ag2#3145, 2026-08-10",
        "the flag: Gemini 3 and later",
    ),
    Rule(
        "gemini.server-side-mode",
        _check_server_side_mode,
        "inferred",
        "Pretend-to/mio-chat-backend#30, 2026-05-26",
    ),
    Rule("gemini.server-side-pair", _check_server_side_pairs, "inferred", _TOOL_COMBINATION_DOCS),
    Rule(
        f"gemini.{THINKING_LEVEL_RULE}",
        _check_thinking_level,
        "observed",
        "ai.google.dev/gemini-api/docs/generate-content/thinking; can1357/oh-my-pi#10543, 2026-09-02",
        "by model",
    ),
    Rule(
        f"gemini.{IGNORED_OPTIONS_RULE}",
        _check_ignored_options,
        "inferred",
        "ai.google.dev/gemini-api/docs/changelog, 2026-07-21; for candidateCount GoModel#863, 2026-09-02",
        "by model",
    ),
    Rule(
        "gemini.call-ids",
        _check_call_ids,
        "inferred",
        "JetBrains/koog#735, 2025-09-04; anomalyco/opencode#50504, 2026-09-22",
        "before Gemini 3",
    ),
)
"""The rules by model and about tools that Google runs."""
