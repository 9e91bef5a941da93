"""Rules of the Messages API about tools that the server runs, and about tools that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.providers.anthropic.rules.block_kinds import SERVER_CALL_KINDS, SERVER_RESULT_KINDS, get_block_id
from holdfast.providers.anthropic.rules.request_view import AnthropicView, BlockView, TurnView
from holdfast.providers.rules.rule import ANTHROPIC_DOCS, PUBLIC_ERRORS, Rule, Violations, format_json_value


def _check_server_pairs(request: AnthropicView) -> Violations:
    """A server tool's call and result stand in one message, or a client's results alone between them."""
    waiting: set[str] = set()
    if request.blocks.keys().isdisjoint((*SERVER_CALL_KINDS, *SERVER_RESULT_KINDS)):
        return
    for number, turn in enumerate(request.turns):
        if turn.role == "assistant":
            waits = {_get_caller_id(block.value) for block in turn.get_blocks("tool_use")}
            waits |= _find_deferred_calls(turn, request.turns[number + 1 : number + 3])
            last = turn is request.turns[-1] and turn.last_message_index == len(request.messages) - 1
            yield from _check_unanswered_calls(turn, waits, last=last)
            yield from _check_unasked_results(turn, waiting)
            call_ids = {get_block_id(block, "id") for block in turn.get_blocks(*SERVER_CALL_KINDS)}
            result_ids = {get_block_id(block) for block in turn.get_blocks(*SERVER_RESULT_KINDS)}
            waiting = {id_ for id_ in call_ids | waiting if id_ not in result_ids and id_ in waits}


def _find_deferred_calls(turn: TurnView, following: Sequence[TurnView]) -> set[str]:
    """Return the calls that the server answers only once it has the client's results: at the next answer's start."""
    if not (
        following
        and turn.get_blocks("tool_use")
        and len(following[0].get_blocks("tool_result")) == len(following[0].blocks)
    ):
        return set()
    block_keys = {(get_block_id(block), block.kind) for block in following[1].blocks} if len(following) > 1 else set()
    result_ids = {id_ for id_, kind in block_keys if kind in SERVER_RESULT_KINDS}
    calls = {get_block_id(block, "id"): _get_result_kind(block) for block in turn.get_blocks(*SERVER_CALL_KINDS)}
    if len(following) == 1:
        return set(calls)
    return {id_ for id_, kind in calls.items() if ((id_, kind) in block_keys if kind else id_ in result_ids)}


def _check_unanswered_calls(turn: TurnView, waits: set[str], *, last: bool) -> Violations:
    """Yield the calls without a result of their kind behind them; a call that waits for the client goes without."""
    kinds_by_id: dict[str, set[str]] = {}
    for block in reversed(turn.blocks):
        if block.kind in SERVER_RESULT_KINDS:
            kinds_by_id.setdefault(get_block_id(block), set()).add(block.kind)
        elif block.kind in SERVER_CALL_KINDS:
            id_ = get_block_id(block, "id")
            kinds, expected_kind = kinds_by_id.get(id_), _get_result_kind(block)
            is_answered = kinds is not None and (expected_kind in kinds or not expected_kind)
            if not is_answered and not (kinds is None and (last or id_ in waits)):
                problem = (
                    f"{get_block_id(block, 'name')} call {id_} has no {expected_kind or 'result'} behind it "
                    "in its message"
                )
                yield f"{block.path}.id", f"{problem}; drop the call"


def _check_unasked_results(turn: TurnView, waiting: set[str]) -> Violations:
    """Yield the results without a call before them."""
    call_ids = set(waiting)
    for block in turn.blocks:
        if block.kind in SERVER_CALL_KINDS:
            call_ids.add(get_block_id(block, "id"))
        elif block.kind in SERVER_RESULT_KINDS and get_block_id(block) not in call_ids:
            problem = f"{block.kind} {get_block_id(block)} answers no call before it in its message"
            yield f"{block.path}.tool_use_id", f"{problem}; drop it"


def _get_result_kind(block: BlockView) -> str:
    """Return the kind of result that a server's call wants, empty where it is not known."""
    if block.kind == "mcp_tool_use":
        return "mcp_tool_result"
    name = str(block.value.get("name"))
    name = "tool_search" if name.startswith("tool_search_tool") else name
    return f"{name}_tool_result" if f"{name}_tool_result" in SERVER_RESULT_KINDS - {"mcp_tool_result"} else ""


def _get_caller_id(value: Mapping[str, Any]) -> str:
    caller = value.get("caller")
    return str(caller.get("tool_id")) if isinstance(caller, dict) else ""


def _check_advisor_tool(request: AnthropicView) -> Violations:
    """The advisor tool stays as long as its results do."""
    has_advisor = any(str(tool.get("type", "")).startswith("advisor") for tool in request.list_tools())
    for block in request.iter_blocks("advisor_tool_result") if not has_advisor else ():
        yield block.path, "advisor_tool_result without the advisor tool in tools; keep the tool or drop the result"


def _check_tool_references(request: AnthropicView) -> Violations:
    """A tool reference names a declared tool, and what adds or removes one has it."""
    names = {str(tool.get("name")) for tool in request.list_tools()}
    names |= {_get_defined_name(block.value.get("tool")) for block in request.iter_blocks("tool_addition")}
    references = [(block, "tool_name", block.value.get("tool_name")) for block in request.iter_blocks("tool_reference")]
    for block in request.iter_blocks("tool_addition", "tool_removal"):
        tool = block.value.get("tool")
        if not isinstance(tool, dict):
            yield f"{block.path}.tool", f"{block.kind} without its tool; name the tool or drop the block"
        elif tool.get("type") == "tool_reference":
            references.append((block, "tool.name", tool.get("name")))
    has_unlisted_tools = (
        request.body.get("mcp_servers") or request.blocks.get("mcp_tool_listing") or not request.list_tools()
    )
    for block, key, name in references:
        if str(name) not in names and not (has_unlisted_tools and block.kind == "tool_reference"):
            yield (
                f"{block.path}.{key}",
                f"tool {format_json_value(name)} is not in tools; declare it or drop the reference",
            )


def _get_defined_name(tool: object) -> str:
    definition = tool.get("definition") if isinstance(tool, dict) else None
    return str(definition.get("name")) if isinstance(definition, dict) else ""


SERVER_TOOL_RULES: tuple[Rule, ...] = (
    Rule("anthropic.server-pair", _check_server_pairs, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.advisor", _check_advisor_tool, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.tool-reference", _check_tool_references, "documented", ANTHROPIC_DOCS),
)
"""The rules about tools of the server."""
