"""Rules of the Messages API about tools that the server runs, and about tools added or removed mid-conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.providers.anthropic.container import find_pending_runs
from holdfast.providers.anthropic.models import can_advise
from holdfast.providers.anthropic.rules.block_kinds import SERVER_CALL_KINDS, SERVER_RESULT_KINDS, get_block_id
from holdfast.providers.anthropic.rules.request_view import AnthropicView, BlockView, TurnView
from holdfast.providers.rules.rule import ANTHROPIC_DOCS, PUBLIC_ERRORS, Rule, Violations, format_json_value

_CONTAINER_SOURCE = "page on programmatic tool calling, 2026-08-21; anthropic-sdk-python#1801"
_ADVISOR_SOURCE = "claude-code#67764, 2026-06-12; pages on the advisor, Sonnet 5.5 and Fable 5.2"


def _check_server_pairs(request: AnthropicView) -> Violations:
    """A server tool's call and result are in one message; between them there may be a message of tool_results only."""
    if request.blocks.keys().isdisjoint((*SERVER_CALL_KINDS, *SERVER_RESULT_KINDS)):
        return
    # Calls that may still be answered in the next assistant turn.
    waiting: set[str] = set()
    for number, turn in enumerate(request.turns):
        if turn.role != "assistant":
            continue
        # A server tool that calls a client tool waits for its result: ``caller`` names the waiting call.
        deferred = {_get_caller_id(block.value) for block in turn.get_blocks("tool_use")}
        deferred |= _find_deferred_calls(turn, request.turns[number + 1 : number + 3])
        is_last_message = turn.last_message_index == len(request.messages) - 1
        is_last = turn is request.turns[-1] and is_last_message
        yield from _check_unanswered_calls(turn, deferred, is_last=is_last)
        yield from _check_unasked_results(turn, waiting)
        call_ids = {get_block_id(block, "id") for block in turn.get_blocks(*SERVER_CALL_KINDS)}
        result_ids = {get_block_id(block) for block in turn.get_blocks(*SERVER_RESULT_KINDS)}
        waiting = ((call_ids | waiting) - result_ids) & deferred


def _find_deferred_calls(turn: TurnView, following: Sequence[TurnView]) -> set[str]:
    """Return the ids of server calls in ``turn`` that are answered only after the client's results.

    ``following`` are the next two turns. The server sends such an answer at the start of the second, after a turn of
    client results and nothing else; if that turn does not exist yet, any call may be deferred.
    """
    if not following or not turn.get_blocks("tool_use"):
        return set()
    holds_only_results = len(following[0].get_blocks("tool_result")) == len(following[0].blocks)
    if not holds_only_results:
        return set()
    server_calls = turn.get_blocks(*SERVER_CALL_KINDS)
    if len(following) == 1:
        return {get_block_id(block, "id") for block in server_calls}
    answers = {(get_block_id(block), block.kind) for block in following[1].blocks}
    answered_ids = {id_ for id_, kind in answers if kind in SERVER_RESULT_KINDS}
    deferred = set()
    for block in server_calls:
        call_id = get_block_id(block, "id")
        expected_kind = _get_result_kind(block)
        if expected_kind:
            is_answered = (call_id, expected_kind) in answers
        else:
            is_answered = call_id in answered_ids
        if is_answered:
            deferred.add(call_id)
    return deferred


def _check_unanswered_calls(turn: TurnView, deferred: set[str], *, is_last: bool) -> Violations:
    """Yield the server calls without a result of their kind after them in the turn.

    A call without any result is fine if it is deferred, or in the last turn, which the request asks to continue.
    """
    result_kinds_by_id: dict[str, set[str]] = {}
    for block in reversed(turn.blocks):
        if block.kind in SERVER_RESULT_KINDS:
            result_kinds_by_id.setdefault(get_block_id(block), set()).add(block.kind)
            continue
        if block.kind not in SERVER_CALL_KINDS:
            continue
        call_id = get_block_id(block, "id")
        expected_kind = _get_result_kind(block)
        result_kinds = result_kinds_by_id.get(call_id)
        if result_kinds is None and (is_last or call_id in deferred):
            continue
        if result_kinds is not None and (not expected_kind or expected_kind in result_kinds):
            continue
        name = get_block_id(block, "name")
        problem = f"{name} call {call_id} has no {expected_kind or 'result'} after it in its message"
        yield f"{block.path}.id", f"{problem}; drop the call"


def _check_unasked_results(turn: TurnView, waiting: set[str]) -> Violations:
    """Yield the server results without a call before them in the turn, or in ``waiting``."""
    call_ids = set(waiting)
    for block in turn.blocks:
        if block.kind in SERVER_CALL_KINDS:
            call_ids.add(get_block_id(block, "id"))
        elif block.kind in SERVER_RESULT_KINDS and get_block_id(block) not in call_ids:
            problem = f"{block.kind} {get_block_id(block)} has no call before it in its message"
            yield f"{block.path}.tool_use_id", f"{problem}; drop it"


def _get_result_kind(block: BlockView) -> str:
    """Return the kind of result that a server call expects; empty if its tool is not known."""
    if block.kind == "mcp_tool_use":
        return "mcp_tool_result"
    name = str(block.value.get("name"))
    if name.startswith("tool_search_tool"):  # has variants: tool_search_tool_regex, tool_search_tool_bm25
        name = "tool_search"
    kind = f"{name}_tool_result"
    return kind if kind in SERVER_RESULT_KINDS - {"mcp_tool_result"} else ""


def _get_caller_id(value: Mapping[str, Any]) -> str:
    caller = value.get("caller")
    return str(caller.get("tool_id")) if isinstance(caller, dict) else ""


def _check_advisor_tool(request: AnthropicView) -> Violations:
    """The advisor tool is in tools as long as messages have its results."""
    if any(str(tool.get("type", "")).startswith("advisor") for tool in request.list_tools()):
        return
    for block in request.iter_blocks("advisor_tool_result"):
        yield block.path, "advisor_tool_result without the advisor tool in tools; keep the tool or drop the result"


def _check_advisor_model(request: AnthropicView) -> Violations:
    """The advisor is at least as capable as the model that it advises."""
    for index, tool in enumerate(request.get_list("tools")):
        if not isinstance(tool, dict) or not str(tool.get("type")).startswith("advisor_"):
            continue
        advisor = tool.get("model")
        if isinstance(advisor, str) and can_advise(advisor, request.model) is False:
            problem = f"{advisor!r} cannot be used as an advisor when the request model is {request.model!r}"
            yield f"$.tools[{index}].model", f"{problem}; name {request.model} itself or a more capable model"


def _check_tool_references(request: AnthropicView) -> Violations:
    """A tool reference names a declared tool; tool_addition and tool_removal have a tool."""
    tools = request.list_tools()
    names = {str(tool.get("name")) for tool in tools}
    for block in request.iter_blocks("tool_addition"):
        names.add(_get_defined_name(block.value.get("tool")))
    references: list[tuple[BlockView, str, Any]] = []
    for block in request.iter_blocks("tool_reference"):
        references.append((block, "tool_name", block.value.get("tool_name")))
    for block in request.iter_blocks("tool_addition", "tool_removal"):
        tool = block.value.get("tool")
        if not isinstance(tool, dict):
            yield f"{block.path}.tool", f"{block.kind} without a tool; add the tool, or drop the block"
        elif tool.get("type") == "tool_reference":
            references.append((block, "tool.name", tool.get("name")))
    # With MCP servers, or without a list of tools, the names that exist cannot be known.
    has_unlisted_tools = request.body.get("mcp_servers") or request.blocks.get("mcp_tool_listing") or not tools
    for block, key, name in references:
        if str(name) in names or (has_unlisted_tools and block.kind == "tool_reference"):
            continue
        problem = f"tool {format_json_value(name)} is not in tools; declare it or drop the reference"
        yield f"{block.path}.{key}", problem


def _get_defined_name(tool: object) -> str:
    definition = tool.get("definition") if isinstance(tool, dict) else None
    if isinstance(definition, dict):
        return str(definition.get("name"))
    return ""


def _check_container(request: AnthropicView) -> Violations:
    """Results for a code execution that still runs come with its container."""
    if request.body.get("container") is not None:
        return
    for run in find_pending_runs(request.messages):
        path = f"$.messages[{run.message_index}].content[{run.block_index}]"
        problem = f"code execution {run.id} waits for these results, but the request names no container"
        yield path, f"{problem}; send the container of the last answer"


SERVER_TOOL_RULES: tuple[Rule, ...] = (
    Rule("anthropic.container", _check_container, "documented", _CONTAINER_SOURCE),
    Rule("anthropic.server-pair", _check_server_pairs, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.advisor", _check_advisor_tool, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.advisor-model", _check_advisor_model, "observed", _ADVISOR_SOURCE),
    Rule("anthropic.tool-reference", _check_tool_references, "documented", ANTHROPIC_DOCS),
)
"""The rules about tools of the server."""
