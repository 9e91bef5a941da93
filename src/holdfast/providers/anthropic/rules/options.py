"""Rules of the Messages API about fields beside the messages: limits, system prompt, tools, thinking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.anthropic.models import (
    FORCED_TOOL_CHOICES,
    find_refused_sampling,
    find_retirement,
    is_bedrock_model,
)
from holdfast.providers.anthropic.rules.block_kinds import THINKING_BLOCK_KINDS, is_paused_turn
from holdfast.providers.anthropic.rules.request_view import AnthropicView, TurnView
from holdfast.providers.anthropic.tool_schemas import TOOL_SCHEMAS
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.options import (
    check_foreign_fields,
    check_model_named,
    check_number_fields,
    is_tool_name,
    is_whole_number,
)
from holdfast.providers.rules.rule import (
    ANTHROPIC_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
)
from holdfast.providers.rules.tool_schemas import check_tool_schemas

# Documented limits of a request with a thinking budget.
MIN_THINKING_BUDGET = 1024
_MIN_THINKING_TOP_P = 0.95
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_INTERLEAVED_BETA_PREFIX = "interleaved-thinking"
_FOREIGN_FIELDS = ("contents", "input", "instructions", "max_completion_tokens", "max_output_tokens", "stop",
            "response_format", "reasoning_effort", "reasoning", "n", "frequency_penalty", "presence_penalty",
            "logit_bias", "stream_options", "parallel_tool_calls", "systemInstruction", "generationConfig")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
_TOOL_CHOICES = ("auto", "any", "tool", "none")
_OUTPUT_FORMAT_BETA_PREFIX = "structured-outputs-"
_OLD_COMPUTER_TOOL_PREFIX = "computer_2"
_SAMPLING_SOURCE = "API reference of 2026-09-19 and the page on version 2026-10-21; pr-agent#2456, AionUi#912"
_DEFERRED_SOURCE = "page on the tool search tool, 2026-08-21; CLIProxyAPI#4561, claude-code#86743"
_MODEL_PAGES = "pages on what is new in each model, 2026-09-01 to 2026-11-09"
_RELEASE_NOTES = "release notes of 2026"
_DEPRECATIONS = "release notes of 2026 and page on model deprecations"


_CLOUD_VERSION_PREFIXES = ("bedrock", "vertex")
"""Beginnings of ``anthropic_version`` on clouds that name the model in the address."""


def _names_cloud(request: RequestView) -> bool:
    """Return whether the body is one for Bedrock or Google Cloud."""
    return str(request.body.get("anthropic_version")).startswith(_CLOUD_VERSION_PREFIXES)


def _check_foreign_fields(request: AnthropicView) -> Violations:
    """The body has no fields of other APIs."""
    return check_foreign_fields(request, _FOREIGN_FIELDS)


def _check_retired_model(request: AnthropicView) -> Violations:
    """The model is one that Anthropic still serves."""
    retirement = find_retirement(request.model)
    if retirement is not None and not _names_cloud(request):
        day, successor = retirement
        yield "$.model", f"Anthropic retired {request.model} on {day}; use {successor}"


# -- limits and sampling -----------------------------------------------------------------------------------------------


def _check_max_tokens(request: AnthropicView) -> Violations:
    """max_tokens is a whole number, 0 or more."""
    value = request.body.get("max_tokens")
    if value is not None and not (is_whole_number(value) and value >= 0):
        yield "$.max_tokens", f"max_tokens is {format_json_value(value)}; send a whole number, 0 only to warm the cache"


def _check_sampling(request: AnthropicView) -> Violations:
    """Temperature and top_p are from 0 to 1."""
    return check_number_fields(request, {"temperature": (0, 1), "top_p": (0, 1)})


def _check_model_sampling(request: AnthropicView) -> Violations:
    """The model and the API version take the given temperature, top_p and top_k."""
    for name, reason in find_refused_sampling(request.body, request.model, request.version).items():
        yield f"$.{name}", f"{name} {format_json_value(request.body[name])} {reason}; leave it out"


def _check_speed(request: AnthropicView) -> Violations:
    """Opus 4.7 has no fast mode."""
    traits = request.claude_traits
    if request.body.get("speed") == "fast" and traits is not None and not traits.takes_fast_speed:
        yield "$.speed", f"{request.model} has no speed 'fast'; leave the field out"


def _check_output_format(request: AnthropicView) -> Violations:
    """output_format needs the beta structured-outputs-2025-11-13; without it the field is output_config.format."""
    if request.betas is None or request.body.get("output_format") is None:
        return
    if not any(beta.startswith(_OUTPUT_FORMAT_BETA_PREFIX) for beta in request.betas):
        yield "$.output_format", "output_format is the name of an ended beta; send output_config.format"


def _check_stop_sequences(request: AnthropicView) -> Violations:
    """A stop sequence has more than white space."""
    for index, value in enumerate(request.get_list("stop_sequences")):
        if not isinstance(value, str) or not value.strip():
            yield f"$.stop_sequences[{index}]", "the stop sequence has only white space; remove it"


def _check_system_prompt(request: AnthropicView) -> Violations:
    """The system prompt is a string or a list of text blocks that are not empty."""
    system = request.body.get("system")
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):  # a plain string was accepted above
        yield "$.system", "system is neither a string nor a list of text blocks; send one of them"
        return
    for index, block in enumerate(system):
        if isinstance(block, dict) and block.get("type") == "text":
            text = block.get("text")
        else:
            text = None
        if not isinstance(text, str):
            yield f"$.system[{index}]", "this block of the system prompt is not a text block; send text"
        elif not text.strip():
            yield f"$.system[{index}].text", "this text block of the system prompt is empty; drop it"


# -- tools -------------------------------------------------------------------------------------------------------------


def _check_tool_shape(request: AnthropicView) -> Violations:
    """A tool has an input_schema and a name that matches ^[a-zA-Z0-9_-]{1,128}$, and its type is not function."""
    tools = request.body.get("tools")
    if tools is not None and not isinstance(tools, list):
        yield "$.tools", "tools is not a list; send a list of tools"
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        path = f"$.tools[{index}]"
        if not isinstance(tool, dict):
            yield path, "the tool is not an object; send an object with name and input_schema"
            continue
        if tool.get("type") == "function":
            yield path, "type 'function' is the form of another API; send name and input_schema, without a type"
            continue
        if tool.get("type") not in (None, "custom"):  # run by the server, with fields of its own
            continue
        name = format_json_value(tool.get("name"))
        if not is_tool_name(tool.get("name")):
            yield f"{path}.name", f"tool name {name} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename it"
        if not isinstance(tool.get("input_schema"), dict):
            yield f"{path}.input_schema", f"tool {name} has no input_schema; send a JSON schema"


def _check_tool_names(request: AnthropicView) -> Violations:
    """Tool names are unique."""
    seen_names: set[str] = set()
    for index, tool in enumerate(request.list_tools()):
        name = tool.get("name")
        if not isinstance(name, str):
            continue
        if name in seen_names:
            yield f"$.tools[{index}].name", f"tool name {format_json_value(name)} occurs twice; keep one of the tools"
        seen_names.add(name)


def _is_deferred(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool is deferred, or a toolset with all its members."""
    if tool.get("defer_loading") is True:
        return True
    default_config, configs = tool.get("default_config"), tool.get("configs")
    if not isinstance(default_config, dict) or default_config.get("defer_loading") is not True:
        return False
    members = configs.values() if isinstance(configs, dict) else ()
    return not any(isinstance(member, dict) and member.get("defer_loading") is False for member in members)


def _check_deferred_cache(request: AnthropicView) -> Violations:
    """A tool with defer_loading has no cache breakpoint."""
    for index, tool in enumerate(request.get_list("tools")):
        if isinstance(tool, dict) and _is_deferred(tool) and tool.get("cache_control") is not None:
            name = format_json_value(tool.get("name") or tool.get("type"))
            problem = f"tool {name} has defer_loading and a cache breakpoint"
            yield f"$.tools[{index}].cache_control", f"{problem}; put the breakpoint on a tool that is not deferred"


def _check_deferred_all(request: AnthropicView) -> Violations:
    """At least one tool has no defer_loading."""
    tools = request.list_tools()
    # The tools of an MCP server without a toolset are not deferred, and of those in a toolset some may not be.
    toolset_servers = {str(tool.get("mcp_server_name")) for tool in tools if tool.get("type") == "mcp_toolset"}
    servers = [server for server in request.get_list("mcp_servers") if isinstance(server, dict)]
    has_other_tools = any(str(server.get("name")) not in toolset_servers for server in servers)
    if tools and all(_is_deferred(tool) for tool in tools) and not has_other_tools:
        yield "$.tools", f"all {len(tools)} tools have defer_loading; leave it out of the tool search tool"


def _check_tool_model(request: AnthropicView) -> Violations:
    """The 5.5 models and Fable 5.2 take no computer tool of the types computer_2…, except on Bedrock."""
    traits = request.claude_traits
    if traits is None or traits.takes_old_computer_tool or is_bedrock_model(request.model):
        return
    for index, tool in enumerate(request.get_list("tools")):
        kind = str(tool.get("type")) if isinstance(tool, dict) else ""
        if kind.startswith(_OLD_COMPUTER_TOOL_PREFIX):
            problem = f"{request.model} does not take the tool {kind!r}"
            yield f"$.tools[{index}].type", f"{problem}; declare computer_toolset_20260801"


def _check_forced_tool(request: AnthropicView) -> Violations:
    """Fable and Mythos from 5.1 on, Opus 5.5 and Sonnet 5.5 cannot be forced to call a tool."""
    kind = request.get_option("tool_choice", "type")
    traits = request.claude_traits
    if kind in FORCED_TOOL_CHOICES and traits is not None and not traits.takes_forced_tools:
        yield "$.tool_choice.type", f"tool_choice {kind!r} is not supported by {request.model}; use auto"


def _check_tool_choice(request: AnthropicView) -> Violations:
    """tool_choice needs tools; a tool that it names is among them."""
    choice = request.body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in _TOOL_CHOICES:
        yield (
            "$.tool_choice.type",
            f"tool_choice {format_json_value(kind)} is not one of {_TOOL_CHOICES}; use one of them",
        )
    elif not request.list_tools() and not request.body.get("mcp_servers"):
        yield "$.tool_choice", "tool_choice without tools; send tools, or drop tool_choice"
    elif kind == "tool" and choice.get("name") not in [tool.get("name") for tool in request.list_tools()]:
        yield "$.tool_choice.name", f"tool {format_json_value(choice.get('name'))} is not in tools; declare it"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _get_thinking_mode(request: AnthropicView) -> str:
    return str(request.get_option("thinking", "type") or "")


def _check_thinking_mode(request: AnthropicView) -> Violations:
    """The model supports this type of thinking."""
    mode = _get_thinking_mode(request)
    traits = request.claude_traits
    model = request.body.get("model")
    path = "$.thinking.type"
    if request.body.get("thinking") is not None and mode not in ("enabled", "adaptive", "disabled", "between_tools"):
        yield path, f"thinking type {format_json_value(mode)} is not known; use adaptive, enabled or disabled"
    if traits is None:
        return
    # A trait of None means unknown, which refuses nothing.
    if mode == "enabled" and traits.manual_thinking is False:
        yield path, f"{model} does not support a thinking budget; use adaptive"
    if mode == "adaptive" and traits.adaptive_thinking is False:
        yield path, f"{model} does not support adaptive thinking; use enabled with a budget"
    if mode == "disabled" and traits.can_disable_thinking is False:
        advice = "use between_tools" if traits.thinks_between_tools else "leave the field out"
        yield path, f"thinking of {model} cannot be disabled; {advice}"
    effort = request.get_option("output_config", "effort")
    if mode == "between_tools" and effort in ("xhigh", "max"):
        yield path, f"{model} has no between_tools at effort {format_json_value(effort)}; lower the effort"
    if mode == "disabled" and not traits.can_disable_at_any_effort and effort in ("xhigh", "max"):
        yield path, f"{model} cannot disable thinking at effort {format_json_value(effort)}; lower the effort"


def _check_thinking_budget(request: AnthropicView) -> Violations:
    """A thinking budget is at least 1,024 tokens and less than max_tokens."""
    if _get_thinking_mode(request) != "enabled":
        return
    budget = request.get_option("thinking", "budget_tokens")
    max_tokens = request.body.get("max_tokens")
    path = "$.thinking.budget_tokens"
    if not is_whole_number(budget) or budget < MIN_THINKING_BUDGET:
        yield path, f"the budget is {format_json_value(budget)} tokens; send at least {MIN_THINKING_BUDGET}"
        return
    # With interleaved thinking the budget covers all answers of a turn, while max_tokens limits each of them.
    is_interleaved = any(beta.startswith(_INTERLEAVED_BETA_PREFIX) for beta in request.betas or ())
    if is_whole_number(max_tokens) and budget >= max_tokens and not is_interleaved:
        yield path, f"the budget of {budget} is not less than max_tokens {max_tokens}; raise max_tokens"


def _check_thinking_options(request: AnthropicView) -> Violations:
    """A thinking budget excludes temperature, top_k, top_p under 0.95, and a forced tool."""
    if _get_thinking_mode(request) != "enabled":
        return
    if request.body.get("temperature") not in (None, 1):
        yield "$.temperature", "temperature is not allowed with a thinking budget; leave it out"
    if request.body.get("top_k") is not None:
        yield "$.top_k", "top_k is not allowed with a thinking budget; leave it out"
    top_p = request.body.get("top_p")
    if isinstance(top_p, int | float) and top_p < _MIN_THINKING_TOP_P:
        yield "$.top_p", f"top_p {top_p} with a thinking budget; send at least {_MIN_THINKING_TOP_P} or leave it out"
    if request.get_option("tool_choice", "type") in ("any", "tool"):
        yield "$.tool_choice.type", "a forced tool is not allowed with a thinking budget; use auto"


def _check_thinking_first(request: AnthropicView) -> Violations:
    """With a thinking budget, the current assistant turn starts with thinking."""
    if _get_thinking_mode(request) != "enabled" or not request.turns or is_paused_turn(request):
        return
    last = request.turns[-1]
    start: TurnView | None = None
    if last.role == "assistant":
        start = last
    elif last.role == "user" and last.get_blocks("tool_result"):
        start = _find_turn_start(request.turns)
    if start is None or not start.blocks:
        return
    first_block = start.blocks[0]
    if first_block.kind not in (*THINKING_BLOCK_KINDS, "compaction"):
        problem = f"the current assistant turn starts with {first_block.kind}, but must start with thinking"
        yield f"{first_block.path}.type", f"{problem}; turn thinking off for this turn"


def _find_turn_start(turns: list[TurnView]) -> TurnView | None:
    """Return the first answer after the newest message in the user's own words, or None if nothing follows it."""
    start: TurnView | None = None
    for turn in reversed(turns):
        if turn.role == "assistant":
            start = turn
        elif not turn.get_blocks("tool_result"):
            return start
    return start


def _check_thinking_off(request: AnthropicView) -> Violations:
    """A final assistant message has no thinking blocks if thinking is off."""
    if request.get_last_message().get("role") != "assistant" or not request.turns:
        return
    if request.body.get("compaction") is not None or is_paused_turn(request) or not _is_thinking_off(request):
        return
    for block in request.turns[-1].get_blocks(*THINKING_BLOCK_KINDS):
        yield block.path, "the final assistant message has a thinking block, but thinking is off; drop the block"


def _is_thinking_off(request: AnthropicView) -> bool:
    """Return whether the model does not think: it was told not to, or was not told to and does not by default."""
    mode = _get_thinking_mode(request)
    if mode:
        return mode == "disabled"
    thinks_by_default = request.claude_traits is not None and request.claude_traits.adaptive_thinking is True
    return not thinks_by_default


def _check_binding_beta(request: AnthropicView) -> Violations:
    """thinking.block_binding needs the beta thinking-binding-controls-2026-08-01."""
    if request.get_option("thinking", "block_binding") and _BINDING_BETA not in (request.betas or ()):
        yield (
            "$.thinking.block_binding",
            f"block_binding needs the beta {_BINDING_BETA}; send the beta, or remove the field",
        )


def _check_tool_schemas(request: AnthropicView) -> Violations:
    """The JSON Schema of a tool, or of the answer's format, is valid, and has only what the API accepts there."""
    return check_tool_schemas(request, TOOL_SCHEMAS)


OPTION_RULES: tuple[Rule, ...] = (
    Rule("anthropic.foreign-field", _check_foreign_fields, "documented", ANTHROPIC_DOCS),
    # A gateway may send the request to another model.
    Rule("anthropic.retired", _check_retired_model, "inferred", _DEPRECATIONS, "by name"),
    Rule("anthropic.max-tokens", _check_max_tokens, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.sampling", _check_sampling, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.model-sampling", _check_model_sampling, "documented", _SAMPLING_SOURCE, "by model and version"),
    Rule("anthropic.speed", _check_speed, "documented", _RELEASE_NOTES, "Opus 4.7"),
    Rule("anthropic.output-format", _check_output_format, "documented", _RELEASE_NOTES),
    Rule("anthropic.stop-sequences", _check_stop_sequences, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.system-prompt", _check_system_prompt, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.tool-shape", _check_tool_shape, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.tool-names", _check_tool_names, "observed", PUBLIC_ERRORS),
    Rule("anthropic.tool-schema", _check_tool_schemas, "observed", PUBLIC_ERRORS),
    Rule("anthropic.deferred-cache", _check_deferred_cache, "documented", _DEFERRED_SOURCE),
    Rule("anthropic.deferred-all", _check_deferred_all, "documented", _DEFERRED_SOURCE),
    Rule("anthropic.tool-model", _check_tool_model, "documented", _MODEL_PAGES, "5.5 models, Fable and Mythos 5.2"),
    Rule(
        "anthropic.forced-tool",
        _check_forced_tool,
        "documented",
        _MODEL_PAGES,
        "Opus and Sonnet 5.5, Fable and Mythos from 5.1 on",
    ),
    Rule("anthropic.tool-choice", _check_tool_choice, "recalled", UNVERIFIED_MEMORY),
    Rule(
        "anthropic.thinking-mode",
        _check_thinking_mode,
        "documented",
        ANTHROPIC_DOCS,
        "by model",
    ),
    Rule("anthropic.thinking-budget", _check_thinking_budget, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.thinking-company", _check_thinking_options, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.thinking-first", _check_thinking_first, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.thinking-off", _check_thinking_off, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.binding-beta", _check_binding_beta, "documented", ANTHROPIC_DOCS),
)
"""The rules about options."""


def _check_required(request: RequestView) -> Violations:
    """A whole request has max_tokens, and a model unless the URL of the cloud names it."""
    if not _names_cloud(request):
        yield from check_model_named(request)
    if request.body.get("max_tokens") is None:
        yield "$.max_tokens", "the request has no max_tokens; add the largest number of tokens that the answer may have"


REQUIRED_RULES = (Rule("anthropic.required", _check_required, "documented", ANTHROPIC_DOCS),)
