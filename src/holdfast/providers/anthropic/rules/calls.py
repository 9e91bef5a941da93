"""Rules of the Messages API about the client's calls and their results."""

from __future__ import annotations

import re

from holdfast.providers.anthropic.models import is_strict_version
from holdfast.providers.anthropic.rules.block_kinds import (
    FIELDS_BY_BLOCK_KIND,
    SERVER_CALL_KINDS,
    SERVER_RESULT_KINDS,
    THINKING_BLOCK_KINDS,
    get_block_id,
)
from holdfast.providers.anthropic.rules.request_view import AnthropicView
from holdfast.providers.rules.options import is_tool_name
from holdfast.providers.rules.rule import (
    ANTHROPIC_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+\Z")
_MAX_SAFE_NAME_CHARS = 64
"""The name limit of the 2024 specification; later it is 128. A name between the two only warns, since old deployments
may refuse it."""
_RESULT_BLOCK_KINDS = frozenset({"text", "image", "document", "search_result", "tool_reference", "browser_state"})


# -- calls and results -------------------------------------------------------------------------------------------------


def _check_calls_answered(request: AnthropicView) -> Violations:
    """Every tool_use has a tool_result in the next user message."""
    for number, turn in enumerate(request.turns):
        calls = turn.get_blocks("tool_use") if turn.role == "assistant" else []
        if not calls:
            continue
        if number + 1 < len(request.turns):
            next_turn = request.turns[number + 1]
        else:
            next_turn = None
        result_ids: set[str] = set()
        if next_turn is not None and next_turn.role == "user":
            result_ids = {get_block_id(block) for block in next_turn.get_blocks("tool_result")}
        if next_turn is None:
            where = "because the request ends with the call"
        else:
            where = "in the next user message"
        for block in calls:
            call_id = get_block_id(block, "id")
            if call_id not in result_ids:
                yield f"{block.path}.id", f"call {call_id} has no tool_result {where}; add one, or drop the call"


def _check_orphan_results(request: AnthropicView) -> Violations:
    """Every tool_result has its tool_use in the assistant message before."""
    call_ids: set[str] = set()
    # A continued thread begins with the results of calls that only the server has.
    is_continued = request.get_option("thread", "type") == "continue"
    for number, turn in enumerate(request.turns):
        if turn.role == "assistant":
            call_ids = {get_block_id(block, "id") for block in turn.get_blocks("tool_use")}
            continue
        if number == 0 and is_continued:
            continue
        for block in turn.get_blocks("tool_result"):
            result_id = get_block_id(block)
            if result_id not in call_ids:
                problem = f"tool_result {result_id} has no tool_use in the assistant message before it; drop it"
                yield f"{block.path}.tool_use_id", problem


def _check_results_first(request: AnthropicView) -> Violations:
    """Tool results come before all other blocks of their message."""
    for before, turn in zip(request.turns, request.turns[1:], strict=False):
        # Without calls before it, results anywhere in the message are orphans, which another rule reports.
        if turn.role != "user" or not before.get_blocks("tool_use"):
            continue
        other_path = ""
        for block in turn.blocks:
            if block.kind != "tool_result":
                other_path = other_path or block.path
            elif other_path:
                yield block.path, f"tool_result {get_block_id(block)} comes after {other_path}; put all results first"
                break


def _check_single_result(request: AnthropicView) -> Violations:
    """A call has only one result."""
    for turn in request.turns:
        seen_ids: set[str] = set()
        for block in turn.get_blocks("tool_result"):
            if get_block_id(block) in seen_ids:
                yield f"{block.path}.tool_use_id", f"call {get_block_id(block)} has a second result; keep the first"
            seen_ids.add(get_block_id(block))


def _check_unique_ids(request: AnthropicView) -> Violations:
    """The ids of calls are unique in the whole request."""
    paths_by_id: dict[str, str] = {}
    for block in request.iter_blocks("tool_use", *SERVER_CALL_KINDS):
        call_id = get_block_id(block, "id")
        if call_id in paths_by_id:
            problem = f"id {call_id} was already used at {paths_by_id[call_id]}; give each call an id of its own"
            yield f"{block.path}.id", problem
        paths_by_id.setdefault(call_id, block.path)


def _check_id_pattern(request: AnthropicView) -> Violations:
    """The ids of calls and results match ^[a-zA-Z0-9_-]+$."""
    result_kinds = ("tool_result", *sorted(SERVER_RESULT_KINDS))
    for key, kinds in (("id", ("tool_use", *SERVER_CALL_KINDS)), ("tool_use_id", result_kinds)):
        for block in request.iter_blocks(*kinds):
            id_ = block.value.get(key)
            if not isinstance(id_, str) or not _ID_PATTERN.match(id_):
                problem = f"id {format_json_value(id_)} does not match ^[a-zA-Z0-9_-]+$; replace other characters"
                yield f"{block.path}.{key}", problem


def _check_name_pattern(request: AnthropicView) -> Violations:
    """The tool name of a call matches ^[a-zA-Z0-9_-]{1,128}$."""
    for block in request.iter_blocks("tool_use"):
        name = block.value.get("name")
        if not is_tool_name(name):
            yield (
                f"{block.path}.name",
                f"tool name {format_json_value(name)} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename the tool",
            )


def _check_name_length(request: AnthropicView) -> Violations:
    """The tool name of a call has at most 64 characters."""
    for block in request.iter_blocks("tool_use"):
        name = block.value.get("name")
        if isinstance(name, str) and _MAX_SAFE_NAME_CHARS < len(name) <= 128:
            yield (
                f"{block.path}.name",
                f"the tool name has {len(name)} characters; older deployments accept only {_MAX_SAFE_NAME_CHARS}",
            )


def _check_call_input(request: AnthropicView) -> Violations:
    """The input of a call is an object."""
    for block in request.iter_blocks("tool_use", *SERVER_CALL_KINDS):
        if not isinstance(block.value.get("input"), dict):
            input_type = get_json_type_name(block.value.get("input"))
            yield (
                f"{block.path}.input",
                f"input of call {get_block_id(block, 'id')} is {input_type}; send a JSON object",
            )


def _check_block_role(request: AnthropicView) -> Violations:
    """tool_result blocks are in user messages; calls, thinking and server results are in assistant messages."""
    for block in request.iter_blocks("tool_result"):
        if block.role == "assistant" and block.inner_index < 0:
            yield (
                block.path,
                f"tool_result {get_block_id(block)} is in an assistant message; move it to the next user message",
            )
    for block in request.iter_blocks(
        "tool_use",
        *THINKING_BLOCK_KINDS,
        *SERVER_CALL_KINDS,
        *sorted(SERVER_RESULT_KINDS),
    ):
        if block.role == "user":
            yield block.path, f"{block.kind} is in a user message; move it to an assistant message"


def _check_media_role(request: AnthropicView) -> Violations:
    """Images, documents and search results are in user messages."""
    for block in request.iter_blocks("image", "document", "search_result"):
        # The rule about the version refuses a document there, with more certainty.
        is_refused_by_version = block.kind == "document" and is_strict_version(request.version)
        if block.role == "assistant" and not is_refused_by_version:
            yield block.path, f"{block.kind} is in an assistant message; move it to a user message"


def _check_result_blocks(request: AnthropicView) -> Violations:
    """The content of a tool_result is text, images, documents, search results or tool references."""
    for block in request.iter_blocks("tool_result"):
        content = block.value.get("content")
        path = f"{block.path}.content"
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            yield path, f"content of a tool_result is {get_json_type_name(content)}; send a string or blocks"
            continue
        for index, inner in enumerate(content):
            kind = inner.get("type") if isinstance(inner, dict) else None
            # An unknown kind is left to the rule about unknown blocks, which only warns.
            if not isinstance(kind, str) or (kind in FIELDS_BY_BLOCK_KIND and kind not in _RESULT_BLOCK_KINDS):
                allowed = sorted(_RESULT_BLOCK_KINDS)
                yield (
                    f"{path}[{index}]",
                    f"a tool_result has a block of type {format_json_value(kind)}; send only {allowed}",
                )


def _check_error_result(request: AnthropicView) -> Violations:
    """A tool_result with is_error has only text."""
    for block in request.iter_blocks("tool_result"):
        content = block.value.get("content")
        if block.value.get("is_error") is not True or not isinstance(content, list):
            continue
        if any(isinstance(inner, dict) and inner.get("type") != "text" for inner in content):
            path = f"{block.path}.content"
            yield path, "a tool_result with is_error has more than text; move the other blocks after the results"


CALL_RULES: tuple[Rule, ...] = (
    Rule("anthropic.pair", _check_calls_answered, "observed", PUBLIC_ERRORS),
    Rule("anthropic.orphan", _check_orphan_results, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.results-first", _check_results_first, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.one-result", _check_single_result, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.unique-ids", _check_unique_ids, "recalled", PUBLIC_ERRORS),
    Rule("anthropic.id-pattern", _check_id_pattern, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.name-pattern", _check_name_pattern, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.name-length", _check_name_length, "inferred", "2024 specification"),
    Rule("anthropic.input-object", _check_call_input, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.block-role", _check_block_role, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.media-role", _check_media_role, "inferred", "reasoning"),
    Rule("anthropic.result-blocks", _check_result_blocks, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.error-text", _check_error_result, "recalled", UNVERIFIED_MEMORY),
)
"""The rules about calls and results."""
