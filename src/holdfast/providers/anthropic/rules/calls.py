"""Rules of the Messages API about calls and their results, those of server tools too."""

from __future__ import annotations

import re

from holdfast.providers.anthropic.rules.block_kinds import BLOCK_KEYS, SERVER_RESULTS, SERVER_USES, THINKING, id_of
from holdfast.providers.anthropic.rules.view import Request, Turn
from holdfast.providers.rules.options import is_name
from holdfast.providers.rules.rule import DOCS, KNOWN, MET, Broken, Rule, quoted, type_name

_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_SAFE_NAME = 64
"""Name limit of the 2024 specification; 128 later. Between the two is a warning."""
_IN_RESULT = frozenset({"text", "image", "document", "search_result", "tool_reference", "browser_state"})


# -- calls and results -------------------------------------------------------------------------------------------------


def _pair(request: Request) -> Broken:
    """Every tool_use is answered in the next user message."""
    for turn, after in zip(request.turns, [*request.turns, Turn("", [], -1)][1:], strict=True):
        uses = turn.of("tool_use") if turn.role == "assistant" else []
        given = {id_of(block) for block in after.of("tool_result")} if uses and after.role == "user" else set()
        for block in uses:
            if id_of(block, "id") not in given:
                where = "in the next user message" if after.role else "at all: the request ends with the call"
                yield (
                    f"{block.path}.id",
                    f"call {id_of(block, 'id')} has no tool_result {where}; add one or drop the call",
                )


def _orphan(request: Request) -> Broken:
    """Every tool_result answers a tool_use of the message before."""
    called: set[str] = set()
    for number, turn in enumerate(request.turns):
        if turn.role == "assistant":
            called = {id_of(block, "id") for block in turn.of("tool_use")}
        elif not (number == 0 and request.option("thread", "type") == "continue"):
            for block in turn.of("tool_result"):
                if id_of(block) not in called:
                    yield (
                        f"{block.path}.tool_use_id",
                        f"tool_result {id_of(block)} answers no call of the assistant message before it; drop it",
                    )


def _results_first(request: Request) -> Broken:
    """Tool results stand before everything else in their message."""
    for before, turn in zip(request.turns, request.turns[1:], strict=False):
        if turn.role != "user" or not before.of("tool_use"):
            continue
        other = ""
        for block in turn.blocks:
            if block.kind != "tool_result":
                other = other or block.path
            elif other:
                yield block.path, f"tool_result {id_of(block)} stands behind {other}; put all results first"
                break


def _one_result(request: Request) -> Broken:
    """A call has one result."""
    for turn in request.turns:
        seen: set[str] = set()
        for block in turn.of("tool_result"):
            if id_of(block) in seen:
                yield f"{block.path}.tool_use_id", f"call {id_of(block)} has a second result; keep the first"
            seen.add(id_of(block))


def _unique_ids(request: Request) -> Broken:
    """Call ids are unique over the whole request."""
    seen: dict[str, str] = {}
    for block in request.kinds("tool_use", *SERVER_USES):
        if id_of(block, "id") in seen:
            where = seen[id_of(block, "id")]
            yield f"{block.path}.id", f"id {id_of(block, 'id')} was used at {where} already; give each call its own"
        seen.setdefault(id_of(block, "id"), block.path)


def _id_shape(request: Request) -> Broken:
    """Ids match ^[a-zA-Z0-9_-]+$."""
    pairs = [("id", ("tool_use", *SERVER_USES)), ("tool_use_id", ("tool_result", *sorted(SERVER_RESULTS)))]
    for key, kinds in pairs:
        for block in request.kinds(*kinds):
            value = block.value.get(key)
            if not isinstance(value, str) or not _ID.match(value):
                yield (
                    f"{block.path}.{key}",
                    f"id {quoted(value)} does not match ^[a-zA-Z0-9_-]+$; map it into that alphabet",
                )


def _name_shape(request: Request) -> Broken:
    """Tool names match ^[a-zA-Z0-9_-]{1,128}$."""
    for block in request.kinds("tool_use"):
        name = block.value.get("name")
        if not is_name(name):
            yield (
                f"{block.path}.name",
                f"tool name {quoted(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename the tool",
            )


def _name_length(request: Request) -> Broken:
    """Tool names have at most 64 characters."""
    for block in request.kinds("tool_use"):
        name = block.value.get("name")
        if isinstance(name, str) and _SAFE_NAME < len(name) <= 128:
            yield f"{block.path}.name", f"tool name of {len(name)} characters; older deployments take {_SAFE_NAME}"


def _input(request: Request) -> Broken:
    """The input of a call is an object."""
    for block in request.kinds("tool_use", *SERVER_USES):
        if not isinstance(block.value.get("input"), dict):
            found = type_name(block.value.get("input"))
            yield f"{block.path}.input", f"input of call {id_of(block, 'id')} is {found}; send a JSON object"


def _block_role(request: Request) -> Broken:
    """Results belong to the user, calls and thinking to the assistant."""
    for block in request.kinds("tool_result"):
        if block.role == "assistant" and block.inner < 0:
            yield block.path, f"tool_result {id_of(block)} stands in an assistant message; move it to the user message"
    for block in request.kinds("tool_use", *THINKING, *SERVER_USES, *sorted(SERVER_RESULTS)):
        if block.role == "user":
            yield block.path, f"{block.kind} stands in a user message; only the assistant may say it"


def _media_role(request: Request) -> Broken:
    """Media belong to the user."""
    for block in request.kinds("image", "document", "search_result"):
        if block.role == "assistant":
            yield block.path, f"{block.kind} stands in an assistant message; move it to a user message"


def _result_blocks(request: Request) -> Broken:
    """A tool_result holds text, images, documents, search results or tool references."""
    for block in request.kinds("tool_result"):
        content = block.value.get("content")
        if content is not None and not isinstance(content, str | list):
            yield f"{block.path}.content", f"content of a tool_result is {type_name(content)}; send a string or blocks"
        for inner, value in enumerate(content if isinstance(content, list) else ()):
            kind = value.get("type") if isinstance(value, dict) else None
            if not isinstance(kind, str) or (kind not in _IN_RESULT and kind in BLOCK_KEYS):
                path = f"{block.path}.content[{inner}]"
                yield path, f"{quoted(kind)} stands inside a tool_result; only {sorted(_IN_RESULT)} may"


def _error_text(request: Request) -> Broken:
    """A result that is an error holds text only."""
    for block in request.kinds("tool_result"):
        content = block.value.get("content")
        blocks = content if block.value.get("is_error") is True and isinstance(content, list) else []
        if any(isinstance(value, dict) and value.get("type") != "text" for value in blocks):
            path = f"{block.path}.content"
            yield path, "an error result holds more than text; move the media to the user's words"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.pair", _pair, "observed", MET),
    Rule("anthropic.orphan", _orphan, "recalled", MET),
    Rule("anthropic.results-first", _results_first, "recalled", KNOWN),
    Rule("anthropic.one-result", _one_result, "recalled", MET),
    Rule("anthropic.unique-ids", _unique_ids, "recalled", MET),
    Rule("anthropic.id-pattern", _id_shape, "documented", DOCS),
    Rule("anthropic.name-pattern", _name_shape, "documented", DOCS),
    Rule("anthropic.name-length", _name_length, "inferred", "2024 specification"),
    Rule("anthropic.input-object", _input, "documented", DOCS),
    Rule("anthropic.block-role", _block_role, "recalled", KNOWN),
    Rule("anthropic.media-role", _media_role, "inferred", "reasoning"),
    Rule("anthropic.result-blocks", _result_blocks, "documented", DOCS),
    Rule("anthropic.error-text", _error_text, "recalled", KNOWN),
)
"""The rules about calls and results."""
