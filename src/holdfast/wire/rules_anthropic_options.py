"""Rules of the Messages API about what stands beside the messages: limits, tools, thinking, cache, compaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.wire.rule import Block, Broken, Request, Rule, Turn
from holdfast.wire.rules_anthropic import paused

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_MARKERS = 4
_LEAST_BUDGET = 1024
_LEAST_TRIGGER = 50_000
"""A threshold of server-side compaction below this many input tokens is refused."""
_LEAST_TOP_P = 0.95
_THINKING = ("thinking", "redacted_thinking")
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_COMPACT_BETA = "compact-2026-09-04"
_EDIT_BETAS = {
    "compact_20260112": "compact-2026-01-12",
    "clear_tool_uses_20250919": "context-management-2025-06-27",
    "clear_thinking_20251015": "context-management-2025-06-27",
}
_INTERLEAVED = "interleaved-thinking"
_CHOICES = ("auto", "any", "tool", "none")


# -- limits and sampling -----------------------------------------------------------------------------------------------


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _max_tokens(request: Request) -> Broken:
    value = request.body.get("max_tokens")
    if value is not None and (not _is_count(value) or value < 0):
        yield "$.max_tokens", f"max_tokens is {value!r}; send a whole number, 0 only to warm the cache"


def _sampling(request: Request) -> Broken:
    for key in ("temperature", "top_p"):
        value = request.body.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
            yield f"$.{key}", f"{key} is {value!r}; send a number from 0 to 1"


def _system(request: Request) -> Broken:
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
    listed = request.body.get("tools")
    if listed is not None and not isinstance(listed, list):
        yield "$.tools", "tools is no list; send a list of tools"
    for index, tool in enumerate(listed if isinstance(listed, list) else ()):
        path = f"$.tools[{index}]"
        if not isinstance(tool, dict):
            yield path, "the tool is no object; send name and input_schema"
        elif tool.get("type") in (None, "custom"):
            if not isinstance(tool.get("name"), str) or not _NAME.match(tool["name"]):
                yield f"{path}.name", f"tool name {tool.get('name')!r} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename it"
            if not isinstance(tool.get("input_schema"), dict):
                yield f"{path}.input_schema", f"tool {tool.get('name')!r} has no input_schema; send a JSON schema"


def _tool_names(request: Request) -> Broken:
    seen: set[str] = set()
    for index, tool in enumerate(request.tools()):
        name = tool.get("name")
        if isinstance(name, str):
            if name in seen:
                yield f"$.tools[{index}].name", f"tool name {name!r} stands twice; keep one"
            seen.add(name)


def _tool_choice(request: Request) -> Broken:
    choice = request.body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in _CHOICES:
        yield "$.tool_choice.type", f"tool_choice {kind!r} is not one of {_CHOICES}; use one of them"
    elif not request.tools() and not request.body.get("mcp_servers"):
        yield "$.tool_choice", "tool_choice without tools; send tools or drop it"
    elif kind == "tool" and choice.get("name") not in {tool.get("name") for tool in request.tools()}:
        yield "$.tool_choice.name", f"tool {choice.get('name')!r} is not in tools; declare it"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _mode(request: Request) -> str:
    return str(request.option("thinking", "type") or "")


def _thinking_mode(request: Request) -> Broken:
    mode, known = _mode(request), request.traits
    model = request.body.get("model")
    if request.body.get("thinking") is not None and mode not in ("enabled", "adaptive", "disabled", "between_tools"):
        yield "$.thinking.type", f"thinking type {mode!r} is not known; use adaptive, enabled or disabled"
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
        yield "$.thinking.type", f"{model} cannot disable thinking at effort {effort!r}; lower the effort"


def _budget(request: Request) -> Broken:
    if _mode(request) != "enabled":
        return
    budget, most = request.option("thinking", "budget_tokens"), request.body.get("max_tokens")
    loose = request.betas is not None and any(beta.startswith(_INTERLEAVED) for beta in request.betas)
    if not _is_count(budget) or budget < _LEAST_BUDGET:
        yield "$.thinking.budget_tokens", f"a budget of {budget!r} tokens; at least {_LEAST_BUDGET} are needed"
    elif _is_count(most) and budget >= most and not loose:
        yield "$.thinking.budget_tokens", f"a budget of {budget} is not under max_tokens {most}; raise max_tokens"


def _thinking_company(request: Request) -> Broken:
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
    """In manual mode, a turn with tools under way starts with thinking, and so does a final assistant message."""
    if _mode(request) != "enabled" or not request.turns or paused(request):
        return
    last = request.turns[-1]
    start: Turn | None = last if last.role == "assistant" else None
    if last.role == "user" and last.of("tool_result"):
        start = _loop_start(request.turns)
    if start is not None and start.blocks and start.blocks[0].kind not in (*_THINKING, "compaction"):
        found = start.blocks[0]
        yield (
            f"{found.path}.type",
            f"{found.kind} where thinking must stand: the turn under way has lost its thinking; turn thinking off for it",
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
    if _mode(request) in ("", "disabled") and request.last().get("role") == "assistant" and not paused(request):
        for block in request.turns[-1].of(*_THINKING) if request.turns else ():
            yield block.path, "the final assistant message holds thinking while thinking is off; drop the block"


def _binding_beta(request: Request) -> Broken:
    if request.option("thinking", "block_binding") and _BINDING_BETA not in (request.betas or ()):
        yield "$.thinking.block_binding", f"block_binding needs the beta {_BINDING_BETA}; ask for it or take it out"


# -- cache -------------------------------------------------------------------------------------------------------------


class _Marker(Struct):
    path: str
    value: Any
    kind: str
    blank: bool


def _markers(request: Request) -> Iterator[_Marker]:
    """Yield every breakpoint in the order of the prompt: tools, system, messages."""
    for name in ("tools", "system"):
        listed = request.body.get(name)
        for index, block in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(block, dict) and block.get("cache_control") is not None:
                yield _marker(f"$.{name}[{index}]", block, name)
    found = [block for blocks in request.blocks.values() for block in blocks if block.value.get("cache_control") is not None]
    for block in sorted(found, key=_place):
        yield _marker(block.path, block.value, block.kind)


def _place(block: Block) -> tuple[int, int, float]:
    """Return where a block stands in the prompt; a tool result ends behind what is in it."""
    return block.at, block.index, block.inner if block.inner >= 0 else float("inf")


def _marker(path: str, block: Mapping[str, Any], kind: str) -> _Marker:
    text = block.get("text")
    return _Marker(f"{path}.cache_control", block["cache_control"], kind, isinstance(text, str) and not text.strip())


def _cache_count(request: Request) -> Broken:
    found = list(_markers(request))
    if len(found) > _MARKERS:
        yield found[_MARKERS].path, f"{len(found)} cache breakpoints, {_MARKERS} are allowed; take the oldest out"
    elif len(found) == _MARKERS and request.body.get("cache_control") is not None:
        yield "$.cache_control", f"automatic caching beside {_MARKERS} breakpoints; take one of them out"


def _cache_shape(request: Request) -> Broken:
    top = request.body.get("cache_control")
    ours = [_Marker("$.cache_control", top, "", blank=False)] if top is not None else []
    for marker in (*_markers(request), *ours):
        value = marker.value
        if not isinstance(value, dict) or value.get("type") != "ephemeral" or value.get("ttl") not in (None, "5m", "1h"):
            yield marker.path, f"cache_control {value!r}; send type ephemeral with ttl 5m or 1h"


def _cache_order(request: Request) -> Broken:
    short = ""
    for marker in _markers(request):
        hour = isinstance(marker.value, dict) and marker.value.get("ttl") == "1h"
        if hour and short:
            yield marker.path, f"a 1h breakpoint behind the 5m one at {short}; put longer ones first"
        short = short or ("" if hour else marker.path)


def _cache_place(request: Request) -> Broken:
    for marker in _markers(request):
        if marker.kind in _THINKING:
            yield marker.path, f"a cache breakpoint on {marker.kind}; set it on the block before or behind"
        elif marker.blank:
            yield marker.path, "a cache breakpoint on an empty text; drop the block"


# -- compaction and context editing ------------------------------------------------------------------------------------


def _edits(request: Request) -> list[Mapping[str, Any]]:
    edits = request.option("context_management", "edits")
    return [edit for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []


def _by_threshold(request: Request) -> bool:
    """Return whether the server compacts by itself; its blocks then stand where they came."""
    if any(str(edit.get("type")).startswith("compact_") for edit in _edits(request)):
        return True
    betas = request.betas or frozenset()
    return "compact-2026-01-12" in betas and _COMPACT_BETA not in betas


def _compactions(request: Request) -> list[Block]:
    return [block for block in request.blocks.get("compaction", []) if block.value.get("content") is not None]


def _compaction_content(request: Request) -> Broken:
    for block in request.blocks.get("compaction", []):
        content = block.value.get("content")
        if content is not None and (not isinstance(content, str) or not content):
            yield f"{block.path}.content", "an empty compaction block; send it as it came or null where it failed"


def _compaction_first(request: Request) -> Broken:
    for block in _compactions(request) if not _by_threshold(request) else ():
        if (block.at, block.index) != (0, 0):
            yield block.path, "a compaction block must be the first block of the conversation; drop what lies before it"
            return


def _compaction_single(request: Request) -> Broken:
    found = _compactions(request) if not _by_threshold(request) else []
    if len(found) > 1:
        yield found[1].path, f"{len(found)} compaction blocks with content; keep the newest, first"


def _compaction_meets_edit(request: Request) -> Broken:
    if any(str(edit.get("type")).startswith("compact_") for edit in _edits(request)):
        for block in _compactions(request):
            if block.value.get("signature"):
                yield block.path, "a block made on demand meets a compact_ edit; use one of the two ways"


def _compaction_exclusive(request: Request) -> Broken:
    if request.body.get("compaction") is None:
        return
    others = {
        "$.context_management": request.body.get("context_management"),
        "$.stop_sequences": request.body.get("stop_sequences"),
        "$.output_format": request.body.get("output_format"),
        "$.output_config.format": request.option("output_config", "format"),
        "$.tool_choice": request.option("tool_choice", "type") in ("any", "tool"),
    }
    for path, value in others.items():
        if value:
            yield path, f"{path[2:]} does not go with compaction; leave it out of this request"


def _compaction_shape(request: Request) -> Broken:
    value = request.body.get("compaction")
    if value is not None and (not isinstance(value, dict) or value.get("type") != "summarize"):
        yield "$.compaction.type", "the only compaction on demand is {'type': 'summarize'}; send that"


def _compaction_turn(request: Request) -> Broken:
    if request.body.get("compaction") is None or not request.turns:
        return
    last = request.turns[-1]
    if last.role == "assistant" and (last.of("tool_use") or (paused(request) and last.blocks[-1].kind.endswith("_use"))):
        at = len(request.messages) - 1
        yield f"$.messages[{at}]", "a compaction request ends on a turn that is not finished; answer its calls first"


def _compaction_something(request: Request) -> Broken:
    if request.body.get("compaction") is not None:
        blocks = (block for turn in request.turns for block in turn.blocks)
        if request.messages and all(block.kind == "compaction" for block in blocks):
            yield "$.messages", "there is nothing to summarise but an earlier compaction; send the messages behind it"


def _compaction_beta(request: Request) -> Broken:
    if request.body.get("compaction") is not None and _COMPACT_BETA not in (request.betas or ()):
        yield "$.compaction", f"compaction on demand needs the beta {_COMPACT_BETA}; ask for it"


def _edit_betas(request: Request) -> Broken:
    for index, edit in enumerate(_edits(request) if request.betas is not None else ()):
        beta = _EDIT_BETAS.get(str(edit.get("type")))
        if beta is not None and beta not in (request.betas or ()):
            yield f"$.context_management.edits[{index}]", f"{edit.get('type')} needs the beta {beta}; ask for it"


def _edit_order(request: Request) -> Broken:
    for index, edit in enumerate(_edits(request)):
        if index and str(edit.get("type")).startswith("clear_thinking"):
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking must be the first edit; move it to the front"


def _edit_trigger(request: Request) -> Broken:
    for index, edit in enumerate(_edits(request)):
        trigger = edit.get("trigger")
        value = trigger.get("value") if isinstance(trigger, dict) else None
        if str(edit.get("type")).startswith("compact_") and _is_count(value) and value < _LEAST_TRIGGER:
            path = f"$.context_management.edits[{index}].trigger.value"
            yield path, f"a compaction trigger of {value:,} tokens; at least {_LEAST_TRIGGER:,} are needed"


def _edit_thinking(request: Request) -> Broken:
    for index, edit in enumerate(_edits(request)):
        if str(edit.get("type")).startswith("clear_thinking") and _mode(request) == "disabled":
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking while thinking is disabled; turn thinking on or leave the edit out"


_DOCS = "Messages API reference and SDK 2.11 types"
_MET = "error texts in public issues"
_KNOWN = "long-standing behaviour, not re-read"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.max-tokens", "max_tokens is a whole number, 0 or more.", "documented", _DOCS, _max_tokens),
    Rule("anthropic.sampling", "temperature and top_p lie from 0 to 1.", "documented", _DOCS, _sampling),
    Rule("anthropic.system-prompt", "The system prompt is a string or text blocks with words in them.", "documented", _DOCS, _system),
    Rule("anthropic.tool-shape", "A tool has a name of the pattern and an input_schema.", "documented", _DOCS, _tool_shape),
    Rule("anthropic.tool-names", "Tool names are unique.", "observed", _MET, _tool_names),
    Rule("anthropic.tool-choice", "tool_choice needs tools and names one of them.", "recalled", _KNOWN, _tool_choice),
    Rule("anthropic.thinking-mode", "The model takes this kind of thinking.", "documented", _DOCS, _thinking_mode),
    Rule("anthropic.thinking-budget", "A thinking budget is at least 1,024 and under max_tokens.", "documented", _DOCS, _budget),
    Rule("anthropic.thinking-company", "A thinking budget goes without temperature, top_k, low top_p and forced tools.", "recalled", _KNOWN, _thinking_company),
    Rule("anthropic.thinking-first", "With a budget, the turn under way starts with thinking.", "recalled", _MET, _thinking_first),
    Rule("anthropic.thinking-off", "A final assistant message holds no thinking while thinking is off.", "recalled", _KNOWN, _thinking_off),
    Rule("anthropic.binding-beta", "thinking.block_binding needs its beta.", "documented", _DOCS, _binding_beta),
    Rule("anthropic.cache-count", "There are at most 4 cache breakpoints; automatic caching takes one.", "observed", _MET, _cache_count),
    Rule("anthropic.cache-shape", "A breakpoint is ephemeral, for 5m or 1h.", "documented", _DOCS, _cache_shape),
    Rule("anthropic.cache-order", "1h breakpoints stand before 5m ones.", "documented", _DOCS, _cache_order),
    Rule("anthropic.cache-place", "No breakpoint on thinking or empty text.", "observed", _MET, _cache_place),
    Rule("anthropic.compaction-content", "A compaction block has words, or null where it failed.", "documented", _DOCS, _compaction_content),
    Rule("anthropic.compaction-first", "A compaction block made on demand is the first block of all.", "documented", _DOCS, _compaction_first),
    Rule("anthropic.compaction-single", "One compaction block with content.", "documented", _DOCS, _compaction_single),
    Rule("anthropic.compaction-or-edit", "A block made on demand and a compact_ edit do not meet.", "documented", _DOCS, _compaction_meets_edit),
    Rule("anthropic.compaction-exclusive", "compaction goes without context_management, stop sequences, output format, forced tools.", "documented", _DOCS, _compaction_exclusive),
    Rule("anthropic.compaction-shape", "compaction is {type: summarize}.", "documented", _DOCS, _compaction_shape),
    Rule("anthropic.compaction-turn", "A compaction request ends on a finished turn.", "documented", _DOCS, _compaction_turn),
    Rule("anthropic.compaction-something", "There is something to summarise.", "inferred", _DOCS, _compaction_something),
    Rule("anthropic.compaction-beta", "compaction on demand needs its beta.", "documented", _DOCS, _compaction_beta),
    Rule("anthropic.edit-betas", "Context edits need their betas, where the betas are known.", "documented", _DOCS, _edit_betas),
    Rule("anthropic.edit-order", "clear_thinking is the first edit.", "observed", _MET, _edit_order),
    Rule("anthropic.edit-trigger", "A compaction threshold is at least 50,000 tokens.", "documented", _DOCS, _edit_trigger),
    Rule("anthropic.edit-thinking", "clear_thinking needs thinking that is not disabled.", "observed", _MET, _edit_thinking),
)  # fmt: skip
"""The rules about options, in the order they are checked."""
