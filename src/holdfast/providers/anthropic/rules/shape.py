"""Rules of the Messages API about the shape of messages and the order of roles."""

from __future__ import annotations

import json
from typing import Any

from holdfast.providers.anthropic.rules.block_kinds import (
    FIELDS_BY_BLOCK_KIND,
    FOREIGN_BLOCK_KINDS,
    SERVER_CALL_KINDS,
    SERVER_RESULT_KINDS,
)
from holdfast.providers.anthropic.rules.request_view import AnthropicView
from holdfast.providers.rules.rule import (
    ANTHROPIC_DOCS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_ROLES = ("user", "assistant", "system")
# Documented: a larger body is refused at the edge with 413 ``request_too_large``.
_MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_MESSAGES = 100_000
_SYSTEM_BLOCK_KINDS = frozenset({"text", "tool_addition", "tool_removal"})
# Only system messages inside the conversation have options of their own.
_MESSAGE_KEYS = {"system": frozenset({"role", "content", "clear_at", "output_config"})}
_DEFAULT_MESSAGE_KEYS = frozenset({"role", "content"})


# -- shape -------------------------------------------------------------------------------------------------------------


def _check_body_size(request: AnthropicView) -> Violations:
    """A body has at most 32 MB."""
    if request.body_bytes > _MAX_BODY_BYTES:
        problem = f"the body has {request.body_bytes:,} bytes, but {_MAX_BODY_BYTES:,} are allowed"
        yield "$", f"{problem}; replace the oldest media by text"


def _check_message_count(request: AnthropicView) -> Violations:
    """The field messages is a list of 1 to 100,000 messages."""
    messages = request.body.get("messages")
    if not isinstance(messages, list):
        yield "$.messages", f"messages is {get_json_type_name(messages)}; send a list"
    elif not messages:
        yield "$.messages", "there is no message; send at least one user message"
    elif len(messages) > _MAX_MESSAGES:
        yield "$.messages", f"{len(messages):,} messages, but {_MAX_MESSAGES:,} are allowed; summarize the oldest"


def _check_message_shape(request: AnthropicView) -> Violations:
    """The content of a message is a string, or a list of blocks that have a type."""
    for at, message in enumerate(request.messages):
        path = f"$.messages[{at}]"
        if not isinstance(message, dict):
            yield path, f"the message is {get_json_type_name(message)}; send an object with role and content"
            continue
        content = message.get("content")
        if isinstance(content, str) or (content is None and _is_options_message(message)):
            continue
        if not isinstance(content, list):
            yield f"{path}.content", f"content is {get_json_type_name(content)}; send a string or a list of blocks"
            continue
        for index, block in enumerate(content):
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                yield (
                    f"{path}.content[{index}]",
                    f"the block is {get_json_type_name(block)} without a type; add its type",
                )


def _check_roles(request: AnthropicView) -> Violations:
    """The role of a message is user, assistant or system."""
    for at, message in enumerate(request.messages):
        if isinstance(message, dict) and message.get("role") not in _ROLES:
            yield (
                f"$.messages[{at}].role",
                f"role {json.dumps(message.get('role'), default=str)} is not allowed; use one of {', '.join(_ROLES)}",
            )


def _check_message_fields(request: AnthropicView) -> Violations:
    """A message has only the fields role and content."""
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict):
            continue
        allowed = _MESSAGE_KEYS.get(str(message.get("role")), _DEFAULT_MESSAGE_KEYS)
        for key in message:
            if key not in allowed:
                yield f"$.messages[{at}].{key}", f"a message has no field {key!r}; remove it"


def _check_foreign_blocks(request: AnthropicView) -> Violations:
    """There are no blocks of other APIs."""
    # In the order of the body: a set of kinds has another order in each process.
    for kind, blocks in request.blocks.items():
        if kind not in FOREIGN_BLOCK_KINDS:
            continue
        for block in blocks:
            yield f"{block.path}.type", f"{kind!r} is a block type of another API; convert the block"


def _check_known_block_kind(request: AnthropicView) -> Violations:
    """The type of a block is known."""
    for kind, blocks in request.blocks.items():
        if kind in FIELDS_BY_BLOCK_KIND or kind in FOREIGN_BLOCK_KINDS:
            continue
        problem = f"block type {format_json_value(kind)} is not known; check that the API accepts it"
        for block in blocks:
            yield f"{block.path}.type", problem


def _check_known_block_fields(request: AnthropicView) -> Violations:
    """A block has only fields that its type is known to have."""
    for kind, blocks in request.blocks.items():
        allowed = FIELDS_BY_BLOCK_KIND.get(kind)
        if allowed is None:
            continue
        for block in blocks:
            extra = sorted(block.value.keys() - allowed)
            if extra:
                yield (
                    block.path,
                    f"{format_json_value(kind)} blocks are not known to have the fields {extra}; remove them",
                )


def _check_first_message(request: AnthropicView) -> Violations:
    """The first message has the role user, or begins with a compaction block."""
    first = request.messages[0] if request.messages else None
    role = first.get("role") if isinstance(first, dict) else None
    if role != "assistant" or request.get_option("thread", "type") == "continue":
        return
    # After a compaction on demand, its block is sent first, in an assistant message.
    blocks = request.turns[0].blocks if request.turns else []
    if not blocks or blocks[0].kind != "compaction":
        yield "$.messages[0].role", "the first message has the role assistant; begin with a user message"


def _check_content_present(request: AnthropicView) -> Violations:
    """No message is empty, except a final assistant message or a system message that sets options."""
    last = len(request.messages) - 1
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict) or message.get("content") not in ("", []):
            continue
        is_final_answer = at == last and message.get("role") == "assistant"
        if not is_final_answer and not _is_options_message(message):
            path = f"$.messages[{at}].content"
            yield path, "the content is empty, which is allowed only in a final assistant message; drop the message"


def _is_options_message(message: dict[str, Any]) -> bool:
    """Return whether this is a system message without words that sets the options of its turn, as pi 1.6 writes
    them.
    """
    return message.get("role") == "system" and bool(message.get("output_config"))


# -- system messages inside the conversation ---------------------------------------------------------------------------


def _check_system_support(request: AnthropicView) -> Violations:
    """Only some models support system messages inside the conversation."""
    if request.claude_traits is None or request.claude_traits.allows_inline_system:
        return
    for at, message in enumerate(request.messages):
        if isinstance(message, dict) and message.get("role") == "system":
            path = f"$.messages[{at}].role"
            yield (
                path,
                f"{request.body.get('model')} does not support system messages here; move the text to the field system",
            )


def _get_role_at(request: AnthropicView, at: int) -> str:
    message = request.messages[at] if 0 <= at < len(request.messages) else None
    return str(message.get("role")) if isinstance(message, dict) else ""


def _is_ending_in_server_tool(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    last = content[-1] if isinstance(content, list) and content else None
    kind = str(last.get("type")) if isinstance(last, dict) else ""
    return kind in SERVER_CALL_KINDS or kind in SERVER_RESULT_KINDS


def _check_system_place(request: AnthropicView) -> Violations:
    """A system message follows a user message, and is last or followed by an assistant message."""
    for at in range(len(request.messages)):
        if _get_role_at(request, at) != "system":
            continue
        path = f"$.messages[{at}].role"
        before = _get_role_at(request, at - 1)
        after = _get_role_at(request, at + 1)
        follows_server_tool = before == "assistant" and _is_ending_in_server_tool(request.messages[at - 1])
        if at == 0:
            yield path, "the first message has the role system; move it to the field system"
            continue
        if before != "user" and not follows_server_tool:
            problem = f"a system message follows a message of the role {format_json_value(before)}"
            yield path, f"{problem}; move it after a user message"
        is_last = at + 1 == len(request.messages)
        if not is_last and after != "assistant":
            problem = f"a system message is followed by a message of the role {format_json_value(after)}"
            yield path, f"{problem}; move it before an assistant message, or to the end"


def _check_system_blocks(request: AnthropicView) -> Violations:
    """A system message has only text, tool_addition and tool_removal blocks."""
    for kind, blocks in request.blocks.items():
        if kind in _SYSTEM_BLOCK_KINDS:
            continue
        advice = "send only text, tool_addition and tool_removal"
        problem = f"a system message has a block of type {format_json_value(kind)}; {advice}"
        for block in blocks:
            if block.role == "system":
                yield block.path, problem


SHAPE_RULES: tuple[Rule, ...] = (
    Rule("anthropic.size", _check_body_size, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.messages", _check_message_count, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.shape", _check_message_shape, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.roles", _check_roles, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.strict", _check_message_fields, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.foreign-block", _check_foreign_blocks, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.unknown-block", _check_known_block_kind, "inferred", ANTHROPIC_DOCS),
    Rule("anthropic.unknown-field", _check_known_block_fields, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.first-user", _check_first_message, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.content-nonempty", _check_content_present, "recalled", UNVERIFIED_MEMORY),
    Rule(
        "anthropic.system-support",
        _check_system_support,
        "documented",
        ANTHROPIC_DOCS,
        "all but Opus 4.8 and later, Sonnet and Haiku 5.5, Fable and Mythos",
    ),
    Rule("anthropic.system-place", _check_system_place, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.system-blocks", _check_system_blocks, "documented", ANTHROPIC_DOCS),
)
"""The rules about shape and roles."""
