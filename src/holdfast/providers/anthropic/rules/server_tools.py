"""Rules of the Messages API about tools that the server runs, and about tools that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.providers.anthropic.rules.block_kinds import SERVER_RESULTS, SERVER_USES, id_of
from holdfast.providers.anthropic.rules.view import Block, Request, Turn
from holdfast.providers.rules.rule import DOCS, MET, Broken, Rule, quoted


def _server_pairs(request: Request) -> Broken:
    """A server tool's call and result stand in one message, or a client's results alone between them."""
    waiting: set[str] = set()
    if request.blocks.keys().isdisjoint((*SERVER_USES, *SERVER_RESULTS)):
        return
    for number, turn in enumerate(request.turns):
        if turn.role == "assistant":
            waits = {_caller(block.value) for block in turn.of("tool_use")}
            waits |= _deferred(turn, request.turns[number + 1 : number + 3])
            last = turn is request.turns[-1] and turn.last == len(request.messages) - 1
            yield from _unanswered(turn, waits, last=last)
            yield from _unasked(turn, waiting)
            asked = {id_of(block, "id") for block in turn.of(*SERVER_USES)}
            given = {id_of(block) for block in turn.of(*SERVER_RESULTS)}
            waiting = {id_ for id_ in asked | waiting if id_ not in given and id_ in waits}


def _deferred(turn: Turn, behind: Sequence[Turn]) -> set[str]:
    """Return the calls that the server answers only once it has the client's results: at the next answer's start."""
    if not (behind and turn.of("tool_use") and len(behind[0].of("tool_result")) == len(behind[0].blocks)):
        return set()
    given = {(id_of(block), block.kind) for block in behind[1].blocks} if len(behind) > 1 else set()
    told = {id_ for id_, kind in given if kind in SERVER_RESULTS}
    calls = {id_of(block, "id"): _result_kind(block) for block in turn.of(*SERVER_USES)}
    if len(behind) == 1:
        return set(calls)
    return {id_ for id_, kind in calls.items() if ((id_, kind) in given if kind else id_ in told)}


def _unanswered(turn: Turn, waits: set[str], *, last: bool) -> Broken:
    """Yield the calls without a result of their kind behind them; a call that waits for the client goes without."""
    given: dict[str, set[str]] = {}
    for block in reversed(turn.blocks):
        if block.kind in SERVER_RESULTS:
            given.setdefault(id_of(block), set()).add(block.kind)
        elif block.kind in SERVER_USES:
            id_ = id_of(block, "id")
            kinds, wanted = given.get(id_), _result_kind(block)
            answered = kinds is not None and (wanted in kinds or not wanted)
            if not answered and not (kinds is None and (last or id_ in waits)):
                said = f"{id_of(block, 'name')} call {id_} has no {wanted or 'result'} behind it in its message"
                yield f"{block.path}.id", f"{said}; drop the call"


def _unasked(turn: Turn, waiting: set[str]) -> Broken:
    """Yield the results without a call before them."""
    asked = set(waiting)
    for block in turn.blocks:
        if block.kind in SERVER_USES:
            asked.add(id_of(block, "id"))
        elif block.kind in SERVER_RESULTS and id_of(block) not in asked:
            said = f"{block.kind} {id_of(block)} answers no call before it in its message"
            yield f"{block.path}.tool_use_id", f"{said}; drop it"


def _result_kind(block: Block) -> str:
    """Return the kind of result that a server's call wants, empty where it is not known."""
    if block.kind == "mcp_tool_use":
        return "mcp_tool_result"
    name = str(block.value.get("name"))
    name = "tool_search" if name.startswith("tool_search_tool") else name
    return f"{name}_tool_result" if f"{name}_tool_result" in SERVER_RESULTS - {"mcp_tool_result"} else ""


def _caller(value: Mapping[str, Any]) -> str:
    caller = value.get("caller")
    return str(caller.get("tool_id")) if isinstance(caller, dict) else ""


def _advisor(request: Request) -> Broken:
    """The advisor tool stays as long as its results do."""
    offered = any(str(tool.get("type", "")).startswith("advisor") for tool in request.tools())
    for block in request.kinds("advisor_tool_result") if not offered else ():
        yield block.path, "advisor_tool_result without the advisor tool in tools; keep the tool or drop the result"


def _references(request: Request) -> Broken:
    """A tool reference names a declared tool, and what adds or removes one has it."""
    names = {str(tool.get("name")) for tool in request.tools()}
    names |= {_defined(block.value.get("tool")) for block in request.kinds("tool_addition")}
    named = [(block, "tool_name", block.value.get("tool_name")) for block in request.kinds("tool_reference")]
    for block in request.kinds("tool_addition", "tool_removal"):
        tool = block.value.get("tool")
        if not isinstance(tool, dict):
            yield f"{block.path}.tool", f"{block.kind} without its tool; name the tool or drop the block"
        elif tool.get("type") == "tool_reference":
            named.append((block, "tool.name", tool.get("name")))
    listed = request.body.get("mcp_servers") or request.blocks.get("mcp_tool_listing") or not request.tools()
    for block, key, name in named:
        if str(name) not in names and not (listed and block.kind == "tool_reference"):
            yield f"{block.path}.{key}", f"tool {quoted(name)} is not in tools; declare it or drop the reference"


def _defined(tool: object) -> str:
    definition = tool.get("definition") if isinstance(tool, dict) else None
    return str(definition.get("name")) if isinstance(definition, dict) else ""


RULES: tuple[Rule, ...] = (
    Rule("anthropic.server-pair", _server_pairs, "recalled", MET),
    Rule("anthropic.advisor", _advisor, "documented", DOCS),
    Rule("anthropic.tool-reference", _references, "documented", DOCS),
)
"""The rules about tools of the server."""
