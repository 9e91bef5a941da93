"""Rules of the Messages API about cache breakpoints, compaction and context editing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.anthropic.rules.block_kinds import THINKING, paused
from holdfast.providers.anthropic.rules.view import Block, Request
from holdfast.providers.rules.rule import DOCS, MET, Broken, Rule, quoted

_MARKERS = 4
_LEAST_TRIGGER = 50_000
"""A threshold of server-side compaction below this many input tokens is refused."""
_COMPACT_BETA = "compact-2026-09-04"
_EDIT_BETAS = {
    "compact_20260112": "compact-2026-01-12",
    "clear_tool_uses_20250919": "context-management-2025-06-27",
    "clear_thinking_20251015": "context-management-2025-06-27",
}


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
    found = [
        block for blocks in request.blocks.values() for block in blocks if block.value.get("cache_control") is not None
    ]
    for block in sorted(found, key=_place):
        yield _marker(block.path, block.value, block.kind)


def _place(block: Block) -> tuple[int, int, float]:
    """Return where a block stands in the prompt; a tool result ends behind what is in it."""
    return block.at, block.index, block.inner if block.inner >= 0 else float("inf")


def _marker(path: str, block: Mapping[str, Any], kind: str) -> _Marker:
    text = block.get("text")
    return _Marker(f"{path}.cache_control", block["cache_control"], kind, isinstance(text, str) and not text.strip())


def _cache_count(request: Request) -> Broken:
    """There are at most 4 cache breakpoints; automatic caching takes one."""
    found = list(_markers(request))
    if len(found) > _MARKERS:
        yield found[_MARKERS].path, f"{len(found)} cache breakpoints, {_MARKERS} are allowed; take the oldest out"
    elif len(found) == _MARKERS and request.body.get("cache_control") is not None:
        yield "$.cache_control", f"automatic caching beside {_MARKERS} breakpoints; take one of them out"


def _cache_shape(request: Request) -> Broken:
    """A breakpoint is ephemeral, for 5m or 1h."""
    top = request.body.get("cache_control")
    ours = [_Marker("$.cache_control", top, "", blank=False)] if top is not None else []
    for marker in (*_markers(request), *ours):
        value = marker.value
        if (
            not isinstance(value, dict)
            or value.get("type") != "ephemeral"
            or value.get("ttl") not in (None, "5m", "1h")
        ):
            yield marker.path, f"cache_control {quoted(value)}; send type ephemeral with ttl 5m or 1h"


def _cache_order(request: Request) -> Broken:
    """1h breakpoints stand before 5m ones."""
    short = ""
    for marker in _markers(request):
        hour = isinstance(marker.value, dict) and marker.value.get("ttl") == "1h"
        if hour and short:
            yield marker.path, f"a 1h breakpoint behind the 5m one at {short}; put longer ones first"
        short = short or ("" if hour else marker.path)


def _cache_place(request: Request) -> Broken:
    """No breakpoint on thinking or empty text."""
    for marker in _markers(request):
        if marker.kind in THINKING:
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
    """A compaction block has words, or null where it failed."""
    for block in request.blocks.get("compaction", []):
        content = block.value.get("content")
        if content is not None and (not isinstance(content, str) or not content):
            yield f"{block.path}.content", "an empty compaction block; send it as it came or null where it failed"


def _compaction_first(request: Request) -> Broken:
    """A compaction block made on demand is the first block of all."""
    for block in _compactions(request)[:1] if not _by_threshold(request) else ():
        if (block.at, block.index) != (0, 0):
            yield block.path, "a compaction block must be the first block of the conversation; drop what lies before it"


def _compaction_single(request: Request) -> Broken:
    """One compaction block with content."""
    found = _compactions(request) if not _by_threshold(request) else []
    if len(found) > 1:
        yield found[1].path, f"{len(found)} compaction blocks with content; keep the newest, first"


def _compaction_meets_edit(request: Request) -> Broken:
    """A block made on demand and a compact_ edit do not meet."""
    if any(str(edit.get("type")).startswith("compact_") for edit in _edits(request)):
        for block in _compactions(request):
            if block.value.get("signature"):
                yield block.path, "a block made on demand meets a compact_ edit; use one of the two ways"


def _compaction_exclusive(request: Request) -> Broken:
    """Compaction goes without context_management, stop sequences, output format, forced tools."""
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
    """Compaction is {type: summarize}."""
    value = request.body.get("compaction")
    if value is not None and (not isinstance(value, dict) or value.get("type") != "summarize"):
        yield "$.compaction.type", "the only compaction on demand is {'type': 'summarize'}; send that"


def _compaction_turn(request: Request) -> Broken:
    """A compaction request ends on a finished turn."""
    if request.body.get("compaction") is None or not request.turns:
        return
    last = request.turns[-1]
    if last.role == "assistant" and (
        last.of("tool_use") or (paused(request) and last.blocks[-1].kind.endswith("_use"))
    ):
        at = len(request.messages) - 1
        yield f"$.messages[{at}]", "a compaction request ends on a turn that is not finished; answer its calls first"


def _compaction_something(request: Request) -> Broken:
    """There is something to summarise."""
    if request.body.get("compaction") is not None:
        blocks = (block for turn in request.turns for block in turn.blocks)
        if request.messages and all(block.kind == "compaction" for block in blocks):
            yield "$.messages", "there is nothing to summarise but an earlier compaction; send the messages behind it"


def _compaction_beta(request: Request) -> Broken:
    """Compaction on demand needs its beta."""
    if request.body.get("compaction") is not None and _COMPACT_BETA not in (request.betas or ()):
        yield "$.compaction", f"compaction on demand needs the beta {_COMPACT_BETA}; ask for it"


def _compaction_model(request: Request) -> Broken:
    """Models up to 4.5 have no compaction on demand."""
    if request.body.get("compaction") is not None and request.traits is not None and request.traits.prefill:
        yield "$.compaction", f"{request.model} has no compaction on demand; use a later model or summarise yourself"


def _edit_betas(request: Request) -> Broken:
    """Context edits need their betas, where the betas are known."""
    for index, edit in enumerate(_edits(request) if request.betas is not None else ()):
        beta = _EDIT_BETAS.get(str(edit.get("type")))
        if beta is not None and beta not in (request.betas or ()):
            yield f"$.context_management.edits[{index}]", f"{edit.get('type')} needs the beta {beta}; ask for it"


def _edit_order(request: Request) -> Broken:
    """clear_thinking is the first edit."""
    for index, edit in enumerate(_edits(request)):
        if index and str(edit.get("type")).startswith("clear_thinking"):
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking must be the first edit; move it to the front"


def _edit_trigger(request: Request) -> Broken:
    """A compaction threshold is at least 50,000 tokens."""
    for index, edit in enumerate(_edits(request)):
        trigger = edit.get("trigger")
        value = trigger.get("value") if isinstance(trigger, dict) else None
        if str(edit.get("type")).startswith("compact_") and isinstance(value, int) and value < _LEAST_TRIGGER:
            path = f"$.context_management.edits[{index}].trigger.value"
            yield path, f"a compaction trigger of {value:,} tokens; at least {_LEAST_TRIGGER:,} are needed"


def _edit_thinking(request: Request) -> Broken:
    """clear_thinking needs thinking that is not disabled."""
    for index, edit in enumerate(_edits(request)):
        if str(edit.get("type")).startswith("clear_thinking") and request.option("thinking", "type") == "disabled":
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking while thinking is disabled; turn thinking on or leave the edit out"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.cache-count", _cache_count, "observed", MET),
    Rule("anthropic.cache-shape", _cache_shape, "documented", DOCS),
    Rule("anthropic.cache-order", _cache_order, "documented", DOCS),
    Rule("anthropic.cache-place", _cache_place, "observed", MET),
    Rule("anthropic.compaction-content", _compaction_content, "documented", DOCS),
    Rule("anthropic.compaction-first", _compaction_first, "documented", DOCS),
    Rule("anthropic.compaction-single", _compaction_single, "documented", DOCS),
    Rule("anthropic.compaction-or-edit", _compaction_meets_edit, "documented", DOCS),
    Rule("anthropic.compaction-exclusive", _compaction_exclusive, "documented", DOCS),
    Rule("anthropic.compaction-shape", _compaction_shape, "documented", DOCS),
    Rule("anthropic.compaction-turn", _compaction_turn, "documented", DOCS),
    Rule("anthropic.compaction-something", _compaction_something, "documented", DOCS),
    Rule("anthropic.compaction-beta", _compaction_beta, "documented", DOCS),
    Rule("anthropic.compaction-model", _compaction_model, "documented", DOCS, "up to 4.5"),
    Rule("anthropic.edit-betas", _edit_betas, "documented", DOCS),
    Rule("anthropic.edit-order", _edit_order, "observed", MET),
    Rule("anthropic.edit-trigger", _edit_trigger, "documented", DOCS),
    Rule("anthropic.edit-thinking", _edit_thinking, "observed", MET),
)
"""The rules about cache, compaction and context editing."""
