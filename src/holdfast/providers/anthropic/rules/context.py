"""Rules of the Messages API about cache breakpoints, compaction and context editing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.anthropic.rules.block_kinds import THINKING_BLOCK_KINDS, is_paused_turn
from holdfast.providers.anthropic.rules.request_view import AnthropicView, BlockView
from holdfast.providers.rules.rule import ANTHROPIC_DOCS, PUBLIC_ERRORS, Rule, Violations, format_json_value

# Documented: at most four over tools, system and messages.
_MAX_CACHE_BREAKPOINTS = 4
_MIN_COMPACTION_TRIGGER = 50_000
"""The lowest threshold of server-side compaction that the documentation allows, in input tokens."""
_COMPACT_BETA = "compact-2026-09-04"
_BETA_BY_EDIT = {
    "compact_20260112": "compact-2026-01-12",
    "clear_tool_uses_20250919": "context-management-2025-06-27",
    "clear_thinking_20251015": "context-management-2025-06-27",
}


# -- cache -------------------------------------------------------------------------------------------------------------


class _CacheBreakpoint(Struct):
    path: str
    value: Any
    kind: str
    blank: bool


def _iter_cache_breakpoints(request: AnthropicView) -> Iterator[_CacheBreakpoint]:
    """Yield every breakpoint in the order of the prompt: tools, system, messages."""
    for name in ("tools", "system"):
        setup_blocks = request.body.get(name)
        for index, setup_block in enumerate(setup_blocks if isinstance(setup_blocks, list) else ()):
            if isinstance(setup_block, dict) and setup_block.get("cache_control") is not None:
                yield _build_cache_breakpoint(f"$.{name}[{index}]", setup_block, name)
    marked_blocks: list[BlockView] = []
    for blocks in request.blocks.values():
        marked_blocks += [block for block in blocks if block.value.get("cache_control") is not None]
    for block in sorted(marked_blocks, key=_get_prompt_position):
        yield _build_cache_breakpoint(block.path, block.value, block.kind)


def _get_prompt_position(block: BlockView) -> tuple[int, int, float]:
    """Return a sort key for the position of a block in the prompt."""
    # The breakpoint of a tool result comes after those of the blocks inside it.
    inner_index = block.inner_index if block.inner_index >= 0 else float("inf")
    return block.message_index, block.block_index, inner_index


def _build_cache_breakpoint(path: str, block: Mapping[str, Any], kind: str) -> _CacheBreakpoint:
    text = block.get("text")
    is_blank = isinstance(text, str) and not text.strip()
    return _CacheBreakpoint(
        f"{path}.cache_control",
        block["cache_control"],
        kind,
        is_blank,
    )


def _check_cache_count(request: AnthropicView) -> Violations:
    """There are at most 4 cache breakpoints, of which automatic caching uses one."""
    markers = list(_iter_cache_breakpoints(request))
    if len(markers) > _MAX_CACHE_BREAKPOINTS:
        yield (
            markers[_MAX_CACHE_BREAKPOINTS].path,
            f"{len(markers)} cache breakpoints, but {_MAX_CACHE_BREAKPOINTS} are allowed; remove the oldest",
        )
    elif len(markers) == _MAX_CACHE_BREAKPOINTS and request.body.get("cache_control") is not None:
        yield (
            "$.cache_control",
            f"automatic caching and {_MAX_CACHE_BREAKPOINTS} breakpoints are one too many; remove a breakpoint",
        )


def _check_cache_shape(request: AnthropicView) -> Violations:
    """A cache breakpoint has the type ephemeral, and a ttl of 5m or 1h if any."""
    markers = list(_iter_cache_breakpoints(request))
    automatic = request.body.get("cache_control")
    if automatic is not None:
        markers.append(_CacheBreakpoint("$.cache_control", automatic, "", blank=False))
    for marker in markers:
        value = marker.value
        is_ephemeral = isinstance(value, dict) and value.get("type") == "ephemeral"
        if not is_ephemeral or value.get("ttl") not in (None, "5m", "1h"):
            yield marker.path, f"cache_control is {format_json_value(value)}; send type ephemeral with ttl 5m or 1h"


def _check_cache_order(request: AnthropicView) -> Violations:
    """Cache breakpoints with a ttl of 1h come before those of 5m."""
    short_path = ""
    for marker in _iter_cache_breakpoints(request):
        is_hour = isinstance(marker.value, dict) and marker.value.get("ttl") == "1h"
        if is_hour and short_path:
            yield marker.path, f"a 1h breakpoint comes after the 5m one at {short_path}; put the 1h ones first"
        if not is_hour and not short_path:
            short_path = marker.path


def _check_cache_place(request: AnthropicView) -> Violations:
    """There is no cache breakpoint on thinking or on an empty text."""
    for marker in _iter_cache_breakpoints(request):
        if marker.kind in THINKING_BLOCK_KINDS:
            yield marker.path, f"{marker.kind} has a cache breakpoint; move it to the block before or after"
        elif marker.blank:
            yield marker.path, "an empty text has a cache breakpoint; drop the text block"


# -- compaction and context editing ------------------------------------------------------------------------------------


def _list_context_edits(request: AnthropicView) -> list[Mapping[str, Any]]:
    edits = request.get_option("context_management", "edits")
    if not isinstance(edits, list):
        return []
    return [edit for edit in edits if isinstance(edit, dict)]


def _get_edit_type(edit: Mapping[str, Any]) -> str:
    return str(edit.get("type"))


def _has_threshold_compaction(request: AnthropicView) -> bool:
    """Return whether the server compacts on its own, so that compaction blocks stay where they were made."""
    if any(_get_edit_type(edit).startswith("compact_") for edit in _list_context_edits(request)):
        return True
    betas = request.betas or frozenset()
    return "compact-2026-01-12" in betas and _COMPACT_BETA not in betas


def _list_compaction_blocks(request: AnthropicView) -> list[BlockView]:
    """List the compaction blocks that worked; one with null content failed, and the server ignores it."""
    compaction_blocks: list[BlockView] = []
    for block in request.blocks.get("compaction", []):
        if block.value.get("content") is not None:
            compaction_blocks.append(block)
    return compaction_blocks


def _check_compaction_content(request: AnthropicView) -> Violations:
    """The content of a compaction block is a text, or null if the compaction failed."""
    for block in request.blocks.get("compaction", []):
        content = block.value.get("content")
        if content is not None and (not isinstance(content, str) or not content):
            yield (
                f"{block.path}.content",
                "the compaction block is empty; send the content that the API returned, or null if it failed",
            )


def _check_compaction_first(request: AnthropicView) -> Violations:
    """A compaction block made on demand is the first block of the conversation."""
    blocks = _list_compaction_blocks(request)
    if not blocks or _has_threshold_compaction(request):
        return
    block = blocks[0]
    if (block.message_index, block.block_index) != (0, 0):
        yield block.path, "a compaction block must be the first block of the conversation; drop the blocks before it"


def _check_compaction_single(request: AnthropicView) -> Violations:
    """There is at most one compaction block with content."""
    blocks = _list_compaction_blocks(request)
    if len(blocks) > 1 and not _has_threshold_compaction(request):
        yield (
            blocks[1].path,
            f"{len(blocks)} compaction blocks have content, but one is allowed; keep the newest, at the beginning",
        )


def _check_compaction_without_edit(request: AnthropicView) -> Violations:
    """A compaction block made on demand and a compact_ edit are not combined."""
    if not any(_get_edit_type(edit).startswith("compact_") for edit in _list_context_edits(request)):
        return
    for block in _list_compaction_blocks(request):
        if block.value.get("signature"):  # only blocks made on demand are signed
            yield (
                block.path,
                "the request has a compaction block made on demand and a compact_ edit; use only one of the two",
            )


def _check_compaction_options(request: AnthropicView) -> Violations:
    """Compaction on demand excludes context_management, stop sequences, an output format and forced tools."""
    if request.body.get("compaction") is None:
        return
    conflicts = {
        "$.context_management": request.body.get("context_management"),
        "$.stop_sequences": request.body.get("stop_sequences"),
        "$.output_format": request.body.get("output_format"),
        "$.output_config.format": request.get_option("output_config", "format"),
        "$.tool_choice": request.get_option("tool_choice", "type") in ("any", "tool"),
    }
    for path, value in conflicts.items():
        if value:
            yield path, f"{path[2:]} is not allowed with compaction on demand; leave it out of this request"


def _check_compaction_shape(request: AnthropicView) -> Violations:
    """The field compaction is {"type": "summarize"}."""
    value = request.body.get("compaction")
    if value is not None and (not isinstance(value, dict) or value.get("type") != "summarize"):
        yield "$.compaction.type", "the only value of compaction is {'type': 'summarize'}; send that"


def _check_compaction_turn(request: AnthropicView) -> Violations:
    """A request for a compaction ends with a finished turn."""
    if request.body.get("compaction") is None or not request.turns:
        return
    last_turn = request.turns[-1]
    if last_turn.role != "assistant":
        return
    has_open_server_call = is_paused_turn(request) and last_turn.blocks[-1].kind.endswith("_use")
    if last_turn.get_blocks("tool_use") or has_open_server_call:
        at = len(request.messages) - 1
        yield f"$.messages[{at}]", "a request for a compaction ends with open calls; add their results first"


def _check_compaction_has_input(request: AnthropicView) -> Violations:
    """A request for a compaction has messages to summarize."""
    if request.body.get("compaction") is None or not request.messages:
        return
    blocks = [block for turn in request.turns for block in turn.blocks]
    if all(block.kind == "compaction" for block in blocks):
        yield "$.messages", "there is nothing to summarize except an earlier compaction; send the messages after it"


def _check_compaction_beta(request: AnthropicView) -> Violations:
    """Compaction on demand needs the beta compact-2026-09-04."""
    if request.body.get("compaction") is not None and _COMPACT_BETA not in (request.betas or ()):
        yield "$.compaction", f"compaction on demand needs the beta {_COMPACT_BETA}; send the beta"


def _check_compaction_model(request: AnthropicView) -> Violations:
    """Models up to 4.5 do not support compaction on demand."""
    if request.body.get("compaction") is None or request.claude_traits is None:
        return
    if request.claude_traits.allows_prefill:  # that is, up to 4.5
        yield "$.compaction", f"{request.model} does not support compaction on demand; use a later model"


def _check_edit_betas(request: AnthropicView) -> Violations:
    """Each context edit has its beta, if the betas of the request are known."""
    if request.betas is None:
        return
    for index, edit in enumerate(_list_context_edits(request)):
        beta = _BETA_BY_EDIT.get(_get_edit_type(edit))
        if beta is not None and beta not in request.betas:
            path = f"$.context_management.edits[{index}]"
            yield path, f"{edit.get('type')} needs the beta {beta}; send the beta"


def _check_edit_order(request: AnthropicView) -> Violations:
    """clear_thinking is the first edit."""
    for index, edit in enumerate(_list_context_edits(request)):
        if index and _get_edit_type(edit).startswith("clear_thinking"):
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking must be the first edit; move it to the front"


def _check_edit_trigger(request: AnthropicView) -> Violations:
    """The trigger of a compact_ edit is at least 50,000 tokens."""
    for index, edit in enumerate(_list_context_edits(request)):
        if not _get_edit_type(edit).startswith("compact_"):
            continue
        trigger = edit.get("trigger")
        value = trigger.get("value") if isinstance(trigger, dict) else None
        if isinstance(value, int) and value < _MIN_COMPACTION_TRIGGER:
            path = f"$.context_management.edits[{index}].trigger.value"
            yield path, f"the compaction trigger is {value:,} tokens; send at least {_MIN_COMPACTION_TRIGGER:,}"


def _check_edit_thinking(request: AnthropicView) -> Violations:
    """clear_thinking needs thinking that is not disabled."""
    if request.get_option("thinking", "type") != "disabled":
        return
    for index, edit in enumerate(_list_context_edits(request)):
        if _get_edit_type(edit).startswith("clear_thinking"):
            path = f"$.context_management.edits[{index}]"
            yield path, "clear_thinking is used while thinking is disabled; turn thinking on, or remove the edit"


CONTEXT_RULES: tuple[Rule, ...] = (
    Rule("anthropic.cache-count", _check_cache_count, "observed", PUBLIC_ERRORS),
    Rule("anthropic.cache-shape", _check_cache_shape, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.cache-order", _check_cache_order, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.cache-place", _check_cache_place, "observed", PUBLIC_ERRORS),
    Rule("anthropic.compaction-content", _check_compaction_content, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-first", _check_compaction_first, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-single", _check_compaction_single, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-or-edit", _check_compaction_without_edit, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-exclusive", _check_compaction_options, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-shape", _check_compaction_shape, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-turn", _check_compaction_turn, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-something", _check_compaction_has_input, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.compaction-beta", _check_compaction_beta, "documented", ANTHROPIC_DOCS),
    Rule(
        "anthropic.compaction-model",
        _check_compaction_model,
        "documented",
        ANTHROPIC_DOCS,
        "up to 4.5",
    ),
    Rule("anthropic.edit-betas", _check_edit_betas, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.edit-order", _check_edit_order, "observed", PUBLIC_ERRORS),
    Rule("anthropic.edit-trigger", _check_edit_trigger, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.edit-thinking", _check_edit_thinking, "observed", PUBLIC_ERRORS),
)
"""The rules about cache, compaction and context editing."""
