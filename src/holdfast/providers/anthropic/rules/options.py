"""Rules of the Messages API about what stands beside the messages: limits, system prompt, tools, thinking."""

from __future__ import annotations

from holdfast.providers.anthropic.rules.block_kinds import THINKING, paused
from holdfast.providers.anthropic.rules.view import Request, Turn
from holdfast.providers.rules.options import foreign, is_count, is_name, out_of_range
from holdfast.providers.rules.rule import DOCS, KNOWN, MET, Broken, Rule, quoted

_LEAST_BUDGET = 1024
_LEAST_TOP_P = 0.95
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_INTERLEAVED = "interleaved-thinking"
_FOREIGN = ("contents", "input", "instructions", "max_completion_tokens", "max_output_tokens", "stop",
            "response_format", "reasoning_effort", "reasoning", "n", "frequency_penalty", "presence_penalty",
            "logit_bias", "stream_options", "parallel_tool_calls", "systemInstruction", "generationConfig")  # fmt: skip
"""Top-level fields of other APIs, which a converter may have left behind."""
_CHOICES = ("auto", "any", "tool", "none")


def _foreign(request: Request) -> Broken:
    """The body has no fields of other APIs."""
    return foreign(request, _FOREIGN)


# -- limits and sampling -----------------------------------------------------------------------------------------------


def _max_tokens(request: Request) -> Broken:
    """max_tokens is a whole number, 0 or more."""
    value = request.body.get("max_tokens")
    if value is not None and not (is_count(value) and value >= 0):
        yield "$.max_tokens", f"max_tokens is {quoted(value)}; send a whole number, 0 only to warm the cache"


def _sampling(request: Request) -> Broken:
    """Temperature and top_p lie from 0 to 1."""
    return out_of_range(request, {"temperature": (0, 1), "top_p": (0, 1)})


def _stops(request: Request) -> Broken:
    """A stop sequence is more than white space."""
    for index, value in enumerate(request.listed("stop_sequences")):
        if not isinstance(value, str) or not value.strip():
            yield f"$.stop_sequences[{index}]", "the stop sequence is nothing but white space; take it out"


def _system(request: Request) -> Broken:
    """The system prompt is a string or text blocks with words in them."""
    system = request.body.get("system")
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        yield "$.system", "system is neither a string nor a list of text blocks; send one of them"
        return
    for index, block in enumerate(system):
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
        if not isinstance(text, str):
            yield f"$.system[{index}]", "a block of the system prompt is no text block; send text"
        elif not text.strip():
            yield f"$.system[{index}].text", "a text block of the system prompt is empty; drop it"


# -- tools -------------------------------------------------------------------------------------------------------------


def _tool_shape(request: Request) -> Broken:
    """A tool has a name of the pattern and an input_schema; none is of the type function."""
    listed = request.body.get("tools")
    if listed is not None and not isinstance(listed, list):
        yield "$.tools", "tools is no list; send a list of tools"
    for index, tool in enumerate(listed if isinstance(listed, list) else ()):
        path = f"$.tools[{index}]"
        if not isinstance(tool, dict):
            yield path, "the tool is no object; send name and input_schema"
        elif tool.get("type") == "function":
            yield path, "tools of the type 'function' are another API's; send name and input_schema"
        elif tool.get("type") in (None, "custom"):
            if not is_name(tool.get("name")):
                yield (
                    f"{path}.name",
                    f"tool name {quoted(tool.get('name'))} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename it",
                )
            if not isinstance(tool.get("input_schema"), dict):
                yield f"{path}.input_schema", f"tool {quoted(tool.get('name'))} has no input_schema; send a JSON schema"


def _tool_names(request: Request) -> Broken:
    """Tool names are unique."""
    seen: set[str] = set()
    for index, tool in enumerate(request.tools()):
        name = tool.get("name")
        if isinstance(name, str):
            if name in seen:
                yield f"$.tools[{index}].name", f"tool name {quoted(name)} stands twice; keep one"
            seen.add(name)


def _tool_choice(request: Request) -> Broken:
    """tool_choice needs tools and names one of them."""
    choice = request.body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in _CHOICES:
        yield "$.tool_choice.type", f"tool_choice {quoted(kind)} is not one of {_CHOICES}; use one of them"
    elif not request.tools() and not request.body.get("mcp_servers"):
        yield "$.tool_choice", "tool_choice without tools; send tools or drop it"
    elif kind == "tool" and choice.get("name") not in [tool.get("name") for tool in request.tools()]:
        yield "$.tool_choice.name", f"tool {quoted(choice.get('name'))} is not in tools; declare it"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _mode(request: Request) -> str:
    return str(request.option("thinking", "type") or "")


def _thinking_mode(request: Request) -> Broken:
    """The model takes this kind of thinking."""
    mode, known = _mode(request), request.traits
    model = request.body.get("model")
    if request.body.get("thinking") is not None and mode not in ("enabled", "adaptive", "disabled", "between_tools"):
        yield "$.thinking.type", f"thinking type {quoted(mode)} is not known; use adaptive, enabled or disabled"
    if known is None:
        return
    if mode == "enabled" and known.manual is False:
        yield "$.thinking.type", f"{model} takes no thinking budget; use adaptive"
    if mode == "adaptive" and known.adaptive is False:
        yield "$.thinking.type", f"{model} has no adaptive thinking; use enabled with a budget"
    if mode == "disabled" and known.disabled is False:
        yield "$.thinking.type", f"thinking of {model} cannot be disabled; leave the field out"
    effort = request.option("output_config", "effort")
    if mode == "disabled" and not known.disabled_at_any_effort and effort in ("xhigh", "max"):
        yield "$.thinking.type", f"{model} cannot disable thinking at effort {quoted(effort)}; lower the effort"


def _budget(request: Request) -> Broken:
    """A thinking budget is at least 1,024 and under max_tokens."""
    if _mode(request) != "enabled":
        return
    budget, most = request.option("thinking", "budget_tokens"), request.body.get("max_tokens")
    loose = request.betas is not None and any(beta.startswith(_INTERLEAVED) for beta in request.betas)
    if not is_count(budget) or budget < _LEAST_BUDGET:
        yield "$.thinking.budget_tokens", f"a budget of {quoted(budget)} tokens; at least {_LEAST_BUDGET} are needed"
    elif is_count(most) and budget >= most and not loose:
        yield "$.thinking.budget_tokens", f"a budget of {budget} is not under max_tokens {most}; raise max_tokens"


def _thinking_company(request: Request) -> Broken:
    """A thinking budget goes without temperature, top_k, low top_p and forced tools."""
    if _mode(request) != "enabled":
        return
    if request.body.get("temperature") not in (None, 1):
        yield "$.temperature", "temperature does not go with a thinking budget; leave it out"
    if request.body.get("top_k") is not None:
        yield "$.top_k", "top_k does not go with a thinking budget; leave it out"
    top_p = request.body.get("top_p")
    if isinstance(top_p, int | float) and top_p < _LEAST_TOP_P:
        yield "$.top_p", f"top_p {top_p} with a thinking budget; send at least {_LEAST_TOP_P} or leave it out"
    if request.option("tool_choice", "type") in ("any", "tool"):
        yield "$.tool_choice.type", "a forced tool does not go with a thinking budget; use auto"


def _thinking_first(request: Request) -> Broken:
    """With a budget, the turn under way starts with thinking."""
    if _mode(request) != "enabled" or not request.turns or paused(request):
        return
    last = request.turns[-1]
    start: Turn | None = last if last.role == "assistant" else None
    if last.role == "user" and last.of("tool_result"):
        start = _loop_start(request.turns)
    if start is not None and start.blocks and start.blocks[0].kind not in (*THINKING, "compaction"):
        found = start.blocks[0]
        yield (
            f"{found.path}.type",
            f"{found.kind} where thinking must stand: the turn under way lost it; turn thinking off for this turn",
        )


def _loop_start(turns: list[Turn]) -> Turn | None:
    """Return the first answer to the newest message that is the user's own words."""
    start: Turn | None = None
    for turn in reversed(turns):
        if turn.role == "assistant":
            start = turn
        elif not turn.of("tool_result"):
            return start
    return start


def _thinking_off(request: Request) -> Broken:
    """A final assistant message holds no thinking while thinking is off."""
    if request.last().get("role") != "assistant" or not request.turns or request.body.get("compaction") is not None:
        return
    for block in request.turns[-1].of(*THINKING) if _is_off(request) and not paused(request) else ():
        yield block.path, "the final assistant message holds thinking while thinking is off; drop the block"


def _is_off(request: Request) -> bool:
    """Return whether the model does not think: nobody asked it to, and it does not by itself."""
    by_itself = request.traits is not None and request.traits.adaptive is True
    return _mode(request) == "disabled" or (_mode(request) == "" and not by_itself)


def _binding_beta(request: Request) -> Broken:
    """thinking.block_binding needs its beta."""
    if request.option("thinking", "block_binding") and _BINDING_BETA not in (request.betas or ()):
        yield "$.thinking.block_binding", f"block_binding needs the beta {_BINDING_BETA}; ask for it or take it out"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.foreign-field", _foreign, "documented", DOCS),
    Rule("anthropic.max-tokens", _max_tokens, "documented", DOCS),
    Rule("anthropic.sampling", _sampling, "documented", DOCS),
    Rule("anthropic.stop-sequences", _stops, "recalled", KNOWN),
    Rule("anthropic.system-prompt", _system, "documented", DOCS),
    Rule("anthropic.tool-shape", _tool_shape, "documented", DOCS),
    Rule("anthropic.tool-names", _tool_names, "observed", MET),
    Rule("anthropic.tool-choice", _tool_choice, "recalled", KNOWN),
    Rule("anthropic.thinking-mode", _thinking_mode, "documented", DOCS, "by model"),
    Rule("anthropic.thinking-budget", _budget, "documented", DOCS),
    Rule("anthropic.thinking-company", _thinking_company, "recalled", KNOWN),
    Rule("anthropic.thinking-first", _thinking_first, "recalled", MET),
    Rule("anthropic.thinking-off", _thinking_off, "recalled", KNOWN),
    Rule("anthropic.binding-beta", _binding_beta, "documented", DOCS),
)
"""The rules about options."""
