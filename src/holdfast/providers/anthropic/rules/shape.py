"""Rules of the Messages API about the shape of messages and who may speak when."""

from __future__ import annotations

import json
from typing import Any

from holdfast.providers.anthropic.rules.block_kinds import BLOCK_KEYS, FOREIGN, SERVER_RESULTS, SERVER_USES
from holdfast.providers.anthropic.rules.view import Request
from holdfast.providers.rules.rule import DOCS, KNOWN, Broken, Rule, quoted, type_name

_ROLES = ("user", "assistant", "system")
_MAX_BODY = 32 * 1024 * 1024
_MAX_MESSAGES = 100_000
_IN_SYSTEM = frozenset({"text", "tool_addition", "tool_removal"})
_MESSAGE_KEYS = {"system": frozenset({"role", "content", "clear_at", "output_config"})}
_PLAIN_KEYS = frozenset({"role", "content"})


# -- shape -------------------------------------------------------------------------------------------------------------


def _size(request: Request) -> Broken:
    """A body has at most 32 MB."""
    if request.size > _MAX_BODY:
        yield "$", f"the body has {request.size:,} bytes, {_MAX_BODY:,} are allowed; replace the oldest media by text"


def _nonempty(request: Request) -> Broken:
    """There are 1 to 100,000 messages, in a list."""
    listed = request.body.get("messages")
    if not isinstance(listed, list):
        yield "$.messages", f"messages is {type_name(listed)}; send a list"
    elif not listed:
        yield "$.messages", "there is no message; send at least one user message"
    elif len(listed) > _MAX_MESSAGES:
        yield "$.messages", f"{len(listed):,} messages, {_MAX_MESSAGES:,} are allowed; summarise the oldest"


def _message_shape(request: Request) -> Broken:
    """A message has content: a string, or blocks that name their type."""
    for at, message in enumerate(request.messages):
        path = f"$.messages[{at}]"
        if not isinstance(message, dict):
            yield path, f"the message is {type_name(message)}; send an object with role and content"
            continue
        content = message.get("content")
        if isinstance(content, str) or (content is None and _sets_options(message)):
            continue
        if not isinstance(content, list):
            yield f"{path}.content", f"content is {type_name(content)}; send a string or a list of blocks"
            continue
        for index, block in enumerate(content):
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                yield f"{path}.content[{index}]", f"the block is {type_name(block)} without a type; name its type"


def _roles(request: Request) -> Broken:
    """A role is user, assistant or system."""
    for at, message in enumerate(request.messages):
        if isinstance(message, dict) and message.get("role") not in _ROLES:
            yield (
                f"$.messages[{at}].role",
                f"role {json.dumps(message.get('role'), default=str)} is none of {', '.join(_ROLES)}; use one of them",
            )


def _strict(request: Request) -> Broken:
    """A message has no other fields than role and content."""
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            allowed = _MESSAGE_KEYS.get(str(message.get("role")), _PLAIN_KEYS)
            for key in message:
                if key not in allowed:
                    yield f"$.messages[{at}].{key}", f"extra field {key!r} on a message; take it out"


def _foreign(request: Request) -> Broken:
    """Blocks are those of this API."""
    for block in request.kinds(*FOREIGN):
        yield f"{block.path}.type", f"{block.kind!r} is a part of another API; convert it to a block of this one"


def _unknown_kind(request: Request) -> Broken:
    """A block type is one that is known."""
    for kind, blocks in request.blocks.items():
        if kind not in BLOCK_KEYS and kind not in FOREIGN:
            for block in blocks:
                yield f"{block.path}.type", f"block type {quoted(kind)} is not known; check that the API takes it"


def _unknown_field(request: Request) -> Broken:
    """A block has only fields that are known."""
    for kind, blocks in request.blocks.items():
        allowed = BLOCK_KEYS.get(kind)
        for block in blocks if allowed is not None else ():
            if not block.value.keys() <= allowed:  # type: ignore[operator]
                extra = sorted(block.value.keys() - allowed)  # type: ignore[operator]
                yield block.path, f"fields {extra} are not known on {quoted(kind)} blocks; take them out"


def _first(request: Request) -> Broken:
    """The first message is the user's, or opens with a compaction block."""
    first = request.messages[0] if request.messages else None
    role = first.get("role") if isinstance(first, dict) else None
    if role != "assistant" or request.option("thread", "type") == "continue":
        return
    blocks = request.turns[0].blocks if request.turns else []
    if not blocks or blocks[0].kind != "compaction":
        yield "$.messages[0].role", "the first message is the assistant's; begin with a user message"


def _content(request: Request) -> Broken:
    """Only a final assistant message, and a system message that sets options, may be empty."""
    last = len(request.messages) - 1
    for at, message in enumerate(request.messages):
        if not isinstance(message, dict) or message.get("content") not in ("", []):
            continue
        is_final_answer = at == last and message.get("role") == "assistant"
        if not is_final_answer and not _sets_options(message):
            path = f"$.messages[{at}].content"
            yield path, "the content is empty, which only a final assistant message may be; drop the message"


def _sets_options(message: dict[str, Any]) -> bool:
    """Return whether this is a system message that sets the options of the turn, as pi 1.6 writes one without words."""
    return message.get("role") == "system" and bool(message.get("output_config"))


# -- system messages inside the conversation ---------------------------------------------------------------------------


def _system_support(request: Request) -> Broken:
    """Only some models take system messages inside the conversation."""
    if request.traits is not None and not request.traits.system_inside:
        for at, message in enumerate(request.messages):
            if isinstance(message, dict) and message.get("role") == "system":
                path = f"$.messages[{at}].role"
                yield path, f"{request.body.get('model')} takes no system message here; move it to the top-level field"


def _role_at(request: Request, at: int) -> str:
    message = request.messages[at] if 0 <= at < len(request.messages) else None
    return str(message.get("role")) if isinstance(message, dict) else ""


def _ends_in_server_tool(message: object) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    last = content[-1] if isinstance(content, list) and content else None
    kind = str(last.get("type")) if isinstance(last, dict) else ""
    return kind in SERVER_USES or kind in SERVER_RESULTS


def _system_place(request: Request) -> Broken:
    """A system message follows a user message and is last or before the assistant."""
    for at in range(len(request.messages)):
        if _role_at(request, at) != "system":
            continue
        path = f"$.messages[{at}].role"
        before, after = _role_at(request, at - 1), _role_at(request, at + 1)
        if at == 0:
            yield path, "a system message stands first; use the top-level system field"
        elif before != "user" and not (before == "assistant" and _ends_in_server_tool(request.messages[at - 1])):
            yield path, f"a system message follows one of the role {quoted(before)}; put it behind a user message"
        if at + 1 < len(request.messages) and after != "assistant":
            yield (
                path,
                f"a system message stands before one of the role {quoted(after)}; put it last or before the assistant",
            )


def _system_blocks(request: Request) -> Broken:
    """A system message holds text and tool changes."""
    for kind, blocks in request.blocks.items():
        for block in blocks if kind not in _IN_SYSTEM else ():
            if block.role == "system":
                yield block.path, f"a system message holds {quoted(kind)}; only text and tool changes may stand there"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.size", _size, "documented", DOCS),
    Rule("anthropic.messages", _nonempty, "documented", DOCS),
    Rule("anthropic.shape", _message_shape, "documented", DOCS),
    Rule("anthropic.roles", _roles, "documented", DOCS),
    Rule("anthropic.strict", _strict, "documented", DOCS),
    Rule("anthropic.foreign-block", _foreign, "documented", DOCS),
    Rule("anthropic.unknown-block", _unknown_kind, "inferred", DOCS),
    Rule("anthropic.unknown-field", _unknown_field, "documented", DOCS),
    Rule("anthropic.first-user", _first, "recalled", KNOWN),
    Rule("anthropic.content-nonempty", _content, "recalled", KNOWN),
    Rule(
        "anthropic.system-support",
        _system_support,
        "documented",
        DOCS,
        "all but Opus 4.8 and later, Sonnet and Haiku 5.5, Fable and Mythos",
    ),
    Rule("anthropic.system-place", _system_place, "documented", DOCS),
    Rule("anthropic.system-blocks", _system_blocks, "documented", DOCS),
)
"""The rules about shape and roles."""
