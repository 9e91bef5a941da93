"""Rules of the Messages API about what needs a beta, and about threads, which are one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.providers.anthropic.rules.request_view import AnthropicView
from holdfast.providers.rules.rule import Rule, Violations

_OUTPUT_CONFIG_BETA = "mid-conversation-output-config-2026-07-01"
_CLEAR_AT_BETA = "mid-conversation-system-clear-at-2026-08-21"
_TOOL_CHANGES_BETA = "mid-conversation-tool-changes-2026-07-01"
_INLINE_TOOLS_BETA = "inline-tools-2026-09-15"
_THREADS_BETA = "message-threads-2026-08-12"
_FAST_MODE_BETA = "fast-mode-2026-02-01"
_ADVISOR_BETA = "advisor-tool-2026-03-01"
_PER_TURN_BETA = "per-turn-control-2026-07-01"
"""Stands in no documentation; a recorded Claude Code sends it, and no other one, with the effort of a turn."""
_BETA_SOURCE = "SDK 2.14 types; pages on effort per message, fast mode, message threads and the advisor tool, 2026-11"
_THREAD_SOURCE = "page on message threads, 2026-11-02"
_THREAD_FIELDS = ("system", "tools")
"""Fields that a thread keeps from the request that created it."""


def _check_field_betas(request: AnthropicView) -> Violations:
    """Fields and blocks of a beta come with it, if the betas of the request are known."""
    if request.betas is None:
        return
    for path, name, betas in _iter_beta_uses(request):
        if request.betas.isdisjoint(betas):
            yield path, f"{name} needs the beta {betas[0]}; send the beta"


def _iter_beta_uses(request: AnthropicView) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield path and name of what needs a beta, and the betas of which any will do."""
    yield from _iter_system_message_uses(request)
    for block in request.iter_blocks("tool_addition", "tool_removal"):
        tool = block.value.get("tool")
        if isinstance(tool, dict) and tool.get("type") == "tool_definition":
            yield f"{block.path}.tool", "a tool_addition with a definition", (_INLINE_TOOLS_BETA,)
        else:
            yield block.path, block.kind, (_TOOL_CHANGES_BETA, _INLINE_TOOLS_BETA)
    if request.body.get("thread") is not None:
        yield "$.thread", "a thread", (_THREADS_BETA,)
    traits = request.claude_traits
    if request.body.get("speed") == "fast" and traits is not None and traits.needs_fast_beta:
        yield "$.speed", f"speed 'fast' of {request.model}", (_FAST_MODE_BETA,)
    for index, tool in enumerate(request.get_list("tools")):
        if isinstance(tool, dict) and str(tool.get("type")).startswith("advisor_"):
            yield f"$.tools[{index}].type", "the advisor tool", (_ADVISOR_BETA,)


def _iter_system_message_uses(request: AnthropicView) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict) or message.get("role") != "system":
            continue
        output_config: Any = message.get("output_config")
        if output_config:
            path = f"$.messages[{at}].output_config"
            yield path, "output_config of a message", (_OUTPUT_CONFIG_BETA, _PER_TURN_BETA)
        if message.get("clear_at") is not None:
            yield f"$.messages[{at}].clear_at", "clear_at", (_CLEAR_AT_BETA, _PER_TURN_BETA)


def _check_thread(request: AnthropicView) -> Violations:
    """A continued thread names the message before, and has no system prompt and tools of its own."""
    if request.get_option("thread", "type") != "continue":
        return
    if not request.get_option("thread", "previous_message_id"):
        yield "$.thread.previous_message_id", "a thread is continued without a message; name the id of the last answer"
    for name in _THREAD_FIELDS:
        if request.body.get(name):
            yield f"$.{name}", f"{name} of a continued thread are those of its first request; leave the field out"


BETA_RULES: tuple[Rule, ...] = (
    Rule("anthropic.field-betas", _check_field_betas, "documented", _BETA_SOURCE),
    # No text of a refusal was found.
    Rule("anthropic.thread", _check_thread, "inferred", _THREAD_SOURCE),
)
"""The rules about betas and threads."""
