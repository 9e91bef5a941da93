"""Rules of the Messages API about messages: shape, roles, pairing, text, thinking blocks, media."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.wire.pixels import pixels
from holdfast.wire.rule import Block, Broken, Request, Rule, Turn

_ROLES = ("user", "assistant", "system")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_SAFE_NAME = 64
"""Name limit of the 2024 specification; 128 later. Between the two is a warning."""
_MAX_BODY = 32 * 1024 * 1024
_MAX_MESSAGES = 100_000
_SERVER_USES = ("server_tool_use", "mcp_tool_use")
_THINKING = ("thinking", "redacted_thinking")
_IN_RESULT = frozenset({"text", "image", "document", "search_result", "tool_reference", "browser_state"})
_IN_SYSTEM = frozenset({"text", "tool_addition", "tool_removal"})
_MESSAGE_KEYS = {"system": frozenset({"role", "content", "clear_at", "output_config"})}
_PLAIN_KEYS = frozenset({"role", "content"})
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_FEW_IMAGES, _PIXELS, _PIXELS_OF_MANY = 20, 8000, 2000
"""Up to 20 images may be 8,000 pixels wide or high, more of them 2,000."""
_FOREIGN = frozenset(
    {"image_url", "input_text", "output_text", "input_image", "input_audio", "input_file", "file", "refusal", "reasoning",
     "function", "function_call", "function_call_output", "tool_call", "toolCall", "toolResult"}
)  # fmt: skip
"""Part types of other APIs, which a converter may have left behind."""
_BLOCK_KEYS: dict[str, frozenset[str]] = {
    kind: frozenset({"type", *keys.split()})
    for kind, keys in {
        "text": "text cache_control citations",
        "image": "source cache_control transformations",
        "document": "source cache_control citations context title",
        "search_result": "content source title cache_control citations",
        "thinking": "thinking signature",
        "redacted_thinking": "data",
        "tool_use": "id name input cache_control caller toolset_name",
        "tool_result": "tool_use_id content is_error cache_control toolset_name",
        "server_tool_use": "id name input cache_control caller",
        "mcp_tool_use": "id name input server_name cache_control",
        "mcp_tool_result": "tool_use_id content is_error cache_control",
        "web_search_tool_result": "tool_use_id content cache_control caller",
        "web_fetch_tool_result": "tool_use_id content cache_control caller",
        "advisor_tool_result": "tool_use_id content cache_control",
        "code_execution_tool_result": "tool_use_id content cache_control",
        "bash_code_execution_tool_result": "tool_use_id content cache_control",
        "text_editor_code_execution_tool_result": "tool_use_id content cache_control",
        "tool_search_tool_result": "tool_use_id content cache_control",
        "container_upload": "file_id cache_control",
        "compaction": "content encrypted_content signature tool_changes cache_control",
        "tool_addition": "tool cache_control",
        "tool_removal": "tool cache_control",
        "tool_reference": "tool_name cache_control",
        "browser_state": "tabs state_changes cache_control",
        "mcp_tool_listing": "mcp_server_name tools",
        "fallback": "to trigger from",
    }.items()
}
"""Blocks and their fields in the types of the official SDK 2.11."""
_SERVER_RESULTS = frozenset(kind for kind in _BLOCK_KEYS if kind.endswith("_tool_result"))


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def paused(request: Request) -> bool:
    """Return whether the request resends a turn of the model that a server tool or a compaction interrupted."""
    turn = request.turns[-1] if request.turns else None
    if turn is None or turn.role != "assistant" or not turn.blocks:
        return False
    kind = turn.blocks[-1].kind
    return kind in _SERVER_USES or kind in _SERVER_RESULTS or kind == "compaction"


# -- shape -------------------------------------------------------------------------------------------------------------


def _size(request: Request) -> Broken:
    if request.size > _MAX_BODY:
        yield "$", f"the body has {request.size:,} bytes, {_MAX_BODY:,} are allowed; replace the oldest media by text"


def _nonempty(request: Request) -> Broken:
    listed = request.body.get("messages")
    if not isinstance(listed, list):
        yield "$.messages", f"messages is {_type(listed)}; send a list"
    elif not listed:
        yield "$.messages", "there is no message; send at least one user message"
    elif len(listed) > _MAX_MESSAGES:
        yield "$.messages", f"{len(listed):,} messages, {_MAX_MESSAGES:,} are allowed; summarise the oldest"


def _message_shape(request: Request) -> Broken:
    for at, message in enumerate(request.messages):
        path = f"$.messages[{at}]"
        if not isinstance(message, dict):
            yield path, f"the message is {_type(message)}; send an object with role and content"
            continue
        content = message.get("content")
        if isinstance(content, str) or (content is None and message.get("output_config")):
            continue
        if not isinstance(content, list):
            yield f"{path}.content", f"content is {_type(content)}; send a string or a list of blocks"
            continue
        for index, block in enumerate(content):
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                yield f"{path}.content[{index}]", f"the block is {_type(block)} without a type; name its type"


def _roles(request: Request) -> Broken:
    for at, message in enumerate(request.messages):
        if isinstance(message, dict) and message.get("role") not in _ROLES:
            yield f"$.messages[{at}].role", f"role {message.get('role')!r} is not one of {_ROLES}; use one of them"


def _strict(request: Request) -> Broken:
    for at, message in enumerate(request.messages):
        if isinstance(message, dict):
            allowed = _MESSAGE_KEYS.get(str(message.get("role")), _PLAIN_KEYS)
            for key in message:
                if key not in allowed:
                    yield f"$.messages[{at}].{key}", f"extra field {key!r} on a message; take it out"


def _foreign(request: Request) -> Broken:
    for block in request.kinds(*_FOREIGN):
        yield f"{block.path}.type", f"{block.kind!r} is a part of another API; convert it to a block of this one"


def _unknown_kind(request: Request) -> Broken:
    for kind, blocks in request.blocks.items():
        if kind not in _BLOCK_KEYS and kind not in _FOREIGN:
            for block in blocks:
                yield f"{block.path}.type", f"block type {kind!r} is not known; check that the API takes it"


def _unknown_field(request: Request) -> Broken:
    for kind, blocks in request.blocks.items():
        allowed = _BLOCK_KEYS.get(kind)
        for block in blocks if allowed is not None else ():
            if not block.value.keys() <= allowed:  # type: ignore[operator]
                extra = sorted(block.value.keys() - allowed)  # type: ignore[operator]
                yield block.path, f"fields {extra} are not known on {kind!r} blocks; take them out"


def _first(request: Request) -> Broken:
    first = request.messages[0] if request.messages else None
    role = first.get("role") if isinstance(first, dict) else None
    if role != "assistant" or request.option("thread", "type") == "continue":
        return
    blocks = request.turns[0].blocks if request.turns else []
    if not blocks or blocks[0].kind != "compaction":
        yield "$.messages[0].role", "the first message is the assistant's; begin with a user message"


def _content(request: Request) -> Broken:
    last = len(request.messages) - 1
    for at, message in enumerate(request.messages):
        if isinstance(message, dict) and message.get("content") in ("", []):
            if not (at == last and message.get("role") == "assistant"):
                path = f"$.messages[{at}].content"
                yield path, "the content is empty, which only a final assistant message may be; drop the message"


# -- system messages inside the conversation ---------------------------------------------------------------------------


def _system_support(request: Request) -> Broken:
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
    kind = last.get("type") if isinstance(last, dict) else None
    return kind in _SERVER_USES or kind in _SERVER_RESULTS


def _system_place(request: Request) -> Broken:
    for at in range(len(request.messages)):
        if _role_at(request, at) != "system":
            continue
        path = f"$.messages[{at}].role"
        before, after = _role_at(request, at - 1), _role_at(request, at + 1)
        if at == 0:
            yield path, "a system message stands first; use the top-level system field"
        elif before != "user" and not (before == "assistant" and _ends_in_server_tool(request.messages[at - 1])):
            yield path, f"a system message follows a {before!r} message; put it behind a user message"
        if at + 1 < len(request.messages) and after != "assistant":
            yield path, f"a {after!r} message follows a system message; it must be last or before the assistant"


def _system_blocks(request: Request) -> Broken:
    for kind, blocks in request.blocks.items():
        for block in blocks if kind not in _IN_SYSTEM else ():
            if block.role == "system":
                yield block.path, f"a system message holds {kind!r}; only text and tool changes may stand there"


# -- calls and results -------------------------------------------------------------------------------------------------


def _id(block: Block, key: str = "tool_use_id") -> str:
    return str(block.value.get(key))


def _pair(request: Request) -> Broken:
    for turn, after in zip(request.turns, [*request.turns[1:], Turn("", [], -1)], strict=True):
        uses = turn.of("tool_use") if turn.role == "assistant" else []
        given = {_id(block) for block in after.of("tool_result")} if uses and after.role == "user" else set()
        for block in uses:
            if _id(block, "id") not in given:
                where = "in the next user message" if after.role else "at all: the request ends with the call"
                yield f"{block.path}.id", f"call {_id(block, 'id')} has no tool_result {where}; add one or drop the call"


def _orphan(request: Request) -> Broken:
    called: set[str] = set()
    for number, turn in enumerate(request.turns):
        if turn.role == "assistant":
            called = {_id(block, "id") for block in turn.of("tool_use")}
        elif not (number == 0 and request.option("thread", "type") == "continue"):
            for block in turn.of("tool_result"):
                if _id(block) not in called:
                    yield (
                        f"{block.path}.tool_use_id",
                        f"tool_result {_id(block)} answers no call of the assistant message before it; drop it",
                    )


def _results_first(request: Request) -> Broken:
    for before, turn in zip(request.turns, request.turns[1:], strict=False):
        if turn.role != "user" or not before.of("tool_use"):
            continue
        other = ""
        for block in turn.blocks:
            if block.kind != "tool_result":
                other = other or block.path
            elif other:
                yield block.path, f"tool_result {_id(block)} stands behind {other}; put all results first"
                break


def _one_result(request: Request) -> Broken:
    for turn in request.turns:
        seen: set[str] = set()
        for block in turn.of("tool_result"):
            if _id(block) in seen:
                yield f"{block.path}.tool_use_id", f"call {_id(block)} has a second result; keep the first"
            seen.add(_id(block))


def _unique_ids(request: Request) -> Broken:
    seen: dict[str, str] = {}
    for block in request.kinds("tool_use", *_SERVER_USES):
        if _id(block, "id") in seen:
            where = seen[_id(block, "id")]
            yield f"{block.path}.id", f"id {_id(block, 'id')} was used at {where} already; give each call its own"
        seen.setdefault(_id(block, "id"), block.path)


def _id_shape(request: Request) -> Broken:
    pairs = [("id", ("tool_use", *_SERVER_USES)), ("tool_use_id", ("tool_result", *sorted(_SERVER_RESULTS)))]
    for key, kinds in pairs:
        for block in request.kinds(*kinds):
            value = block.value.get(key)
            if not isinstance(value, str) or not _ID.match(value):
                yield f"{block.path}.{key}", f"id {value!r} does not match ^[a-zA-Z0-9_-]+$; map it into that alphabet"


def _name_shape(request: Request) -> Broken:
    for block in request.kinds("tool_use"):
        name = block.value.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            yield f"{block.path}.name", f"tool name {name!r} does not match ^[a-zA-Z0-9_-]{{1,128}}$; rename the tool"


def _name_length(request: Request) -> Broken:
    for block in request.kinds("tool_use"):
        name = block.value.get("name")
        if isinstance(name, str) and _SAFE_NAME < len(name) <= 128:
            yield f"{block.path}.name", f"tool name of {len(name)} characters; older deployments take {_SAFE_NAME}"


def _input(request: Request) -> Broken:
    for block in request.kinds("tool_use", *_SERVER_USES):
        if not isinstance(block.value.get("input"), dict):
            found = _type(block.value.get("input"))
            yield f"{block.path}.input", f"input of call {_id(block, 'id')} is {found}; send a JSON object"


def _block_role(request: Request) -> Broken:
    for block in request.kinds("tool_result"):
        if block.role == "assistant" and block.inner < 0:
            yield block.path, f"tool_result {_id(block)} stands in an assistant message; move it to the user message"
    for block in request.kinds("tool_use", *_THINKING, *_SERVER_USES, *sorted(_SERVER_RESULTS)):
        if block.role == "user":
            yield block.path, f"{block.kind} stands in a user message; only the assistant may say it"


def _media_role(request: Request) -> Broken:
    for block in request.kinds("image", "document", "search_result"):
        if block.role == "assistant":
            yield block.path, f"{block.kind} stands in an assistant message; move it to a user message"


def _result_blocks(request: Request) -> Broken:
    for block in request.kinds("tool_result"):
        content = block.value.get("content")
        if content is not None and not isinstance(content, str | list):
            yield f"{block.path}.content", f"content of a tool_result is {_type(content)}; send a string or blocks"
        for inner, value in enumerate(content if isinstance(content, list) else ()):
            kind = value.get("type") if isinstance(value, dict) else None
            if kind not in _IN_RESULT and (kind in _BLOCK_KEYS or not isinstance(kind, str)):
                path = f"{block.path}.content[{inner}]"
                yield path, f"{kind!r} stands inside a tool_result; only {sorted(_IN_RESULT)} may"


def _error_text(request: Request) -> Broken:
    for block in request.kinds("tool_result"):
        content = block.value.get("content")
        if block.value.get("is_error") is True and isinstance(content, list):
            if any(isinstance(value, dict) and value.get("type") != "text" for value in content):
                yield f"{block.path}.content", "an error result holds more than text; move the media to the user's words"


# -- tools of the server -----------------------------------------------------------------------------------------------


def _server_pairs(request: Request) -> Broken:
    """Calls of server tools are answered in the same message, or open at the very end, or wait for a call they made."""
    waiting: set[str] = set()
    for turn in request.turns:
        if turn.role != "assistant":
            continue
        waits = {_caller(block.value) for block in turn.of("tool_use")}
        given = {_id(block) for block in turn.of(*_SERVER_RESULTS)}
        uses = {_id(block, "id"): block for block in turn.of(*_SERVER_USES)}
        for id_, block in uses.items():
            last = turn is request.turns[-1] and turn.last == len(request.messages) - 1
            if id_ not in given and not last and id_ not in waits:
                yield f"{block.path}.id", f"{_id(block, 'name')} call {id_} has no result in its message; drop the call"
        for block in turn.of(*_SERVER_RESULTS):
            if _id(block) not in uses and _id(block) not in waiting:
                yield f"{block.path}.tool_use_id", f"{block.kind} {_id(block)} answers no call in its message; drop it"
        waiting = {id_ for id_ in {*uses, *waiting} if id_ not in given and id_ in waits}


def _caller(value: Mapping[str, Any]) -> str:
    caller = value.get("caller")
    return str(caller.get("tool_id")) if isinstance(caller, dict) else ""


def _advisor(request: Request) -> Broken:
    offered = any(str(tool.get("type", "")).startswith("advisor") for tool in request.tools())
    for block in request.kinds("advisor_tool_result") if not offered else ():
        yield block.path, "advisor_tool_result without the advisor tool in tools; keep the tool or drop the result"


def _references(request: Request) -> Broken:
    names = {tool.get("name") for tool in request.tools()}
    if not names or request.blocks.get("tool_addition") or request.blocks.get("mcp_tool_listing"):
        return
    for block in request.kinds("tool_reference"):
        name = block.value.get("tool_name")
        if name not in names:
            yield f"{block.path}.tool_name", f"tool {name!r} is not in tools; declare it or drop the reference"


# -- text --------------------------------------------------------------------------------------------------------------


def _text_empty(request: Request) -> Broken:
    for block in request.kinds("text"):
        text = block.value.get("text")
        if not isinstance(text, str):
            yield f"{block.path}.text", f"text is {_type(text)}; send a string"
        elif not text and block.index >= 0:
            yield f"{block.path}.text", "the text block is empty; drop it"


def _text_blank(request: Request) -> Broken:
    for block in request.kinds("text"):
        text = block.value.get("text")
        if isinstance(text, str) and text and text.isspace() and block.inner < 0:
            yield block.path, f"the text is nothing but {len(text)} characters of white space; drop it"


def _result_blank(request: Request) -> Broken:
    for block in request.kinds("text"):
        text = block.value.get("text")
        if block.inner >= 0 and isinstance(text, str) and text and text.isspace():
            yield block.path, "the text of a tool result is nothing but white space; put a word in"


def _trailing(request: Request) -> Broken:
    turn = request.turns[-1] if request.turns else None
    last = turn.blocks[-1] if turn is not None and turn.role == "assistant" and turn.blocks else None
    text = last.value.get("text") if last is not None and last.kind == "text" else None
    final = request.last().get("role") == "assistant"
    if final and last is not None and isinstance(text, str) and text != text.rstrip():
        yield last.path, "the final assistant message ends in white space; cut it off"


def _prefill(request: Request) -> Broken:
    known = request.traits is not None and not request.traits.prefill
    free = paused(request) or request.body.get("compaction") or request.body.get("fallback_credit_token")
    if known and not free and request.last().get("role") == "assistant":
        at = len(request.messages) - 1
        model = request.body.get("model")
        yield f"$.messages[{at}].role", f"{model} takes no prefill; end with a user message"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _signature(request: Request) -> Broken:
    for kind, keys in (("thinking", ("thinking", "signature")), ("redacted_thinking", ("data",))):
        for block in request.kinds(kind):
            for key in keys:
                value = block.value.get(key)
                if not isinstance(value, str) or (not value and key != "thinking"):
                    yield f"{block.path}.{key}", f"{kind} without its {key}; send the block as it came or drop it"


# -- images and documents ----------------------------------------------------------------------------------------------


def _source(block: Block) -> Mapping[str, Any]:
    source = block.value.get("source")
    return source if isinstance(source, dict) else {}


_SOURCES = {
    "image": {"base64": "data", "url": "url", "file": "file_id"},
    "document": {"base64": "data", "url": "url", "file": "file_id", "text": "data", "content": "content"},
}


def _media_source(request: Request) -> Broken:
    for kind, forms in _SOURCES.items():
        for block in request.kinds(kind):
            source = _source(block)
            key = forms.get(str(source.get("type")))
            if key is None:
                yield f"{block.path}.source.type", f"source type {source.get('type')!r}; use one of {sorted(forms)}"
            elif not source.get(key):
                yield f"{block.path}.source.{key}", f"the {kind} has no {key}; send it or drop the block"


def _media_type(request: Request) -> Broken:
    for block in request.kinds("image"):
        source = _source(block)
        if source.get("type") == "base64" and source.get("media_type") not in _IMAGES:
            path = f"{block.path}.source.media_type"
            yield path, f"{source.get('media_type')!r} is not one of {', '.join(_IMAGES)}; convert the image"
    for block in request.kinds("document"):
        source = _source(block)
        wanted = {"base64": "application/pdf", "text": "text/plain"}.get(str(source.get("type")))
        if wanted is not None and source.get("media_type") != wanted:
            yield f"{block.path}.source.media_type", f"{source.get('media_type')!r} must be {wanted!r} here"


def _image_count(request: Request) -> Broken:
    images = request.blocks.get("image", [])
    long_window = request.betas is not None and any(beta.startswith("context-1m") for beta in request.betas)
    most = 100 if request.traits is not None and request.traits.images == 100 and not long_window else 600
    if len(images) > most:
        yield images[most].path, f"{len(images)} images, {most} are allowed; replace the oldest by text"


def _image_size(request: Request) -> Broken:
    images = request.blocks.get("image", [])
    most = _PIXELS if len(images) <= _FEW_IMAGES else _PIXELS_OF_MANY
    for block in images:
        data = _source(block).get("data")
        size = pixels(data) if isinstance(data, str) else None
        if size is not None and max(size) > most:
            yield block.path, f"the image has {size[0]}x{size[1]} pixels, {most} are allowed; scale it down"


_DOCS = "Messages API reference and SDK 2.11 types"
_MET = "error texts in public issues"
_KNOWN = "long-standing behaviour, not re-read"
_GUESS = "reasoning"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.size", "A body has at most 32 MB.", "documented", _DOCS, _size),
    Rule("anthropic.messages", "There are 1 to 100,000 messages, in a list.", "documented", _DOCS, _nonempty),
    Rule("anthropic.shape", "A message has content: a string, or blocks that name their type.", "documented", _DOCS, _message_shape),
    Rule("anthropic.roles", "A role is user, assistant or system.", "documented", _DOCS, _roles),
    Rule("anthropic.strict", "A message has no other fields than role and content.", "documented", _DOCS, _strict),
    Rule("anthropic.foreign-block", "Blocks are those of this API.", "documented", _DOCS, _foreign),
    Rule("anthropic.unknown-block", "A block type is one that is known.", "inferred", _DOCS, _unknown_kind),
    Rule("anthropic.unknown-field", "A block has only fields that are known.", "inferred", _DOCS, _unknown_field),
    Rule("anthropic.first-user", "The first message is the user's, or opens with a compaction block.", "recalled", _KNOWN, _first),
    Rule("anthropic.content-nonempty", "Only a final assistant message may be empty.", "recalled", _KNOWN, _content),
    Rule("anthropic.system-support", "Only some models take system messages inside the conversation.", "documented", _DOCS, _system_support),
    Rule("anthropic.system-place", "A system message follows a user message and is last or before the assistant.", "documented", _DOCS, _system_place),
    Rule("anthropic.system-blocks", "A system message holds text and tool changes.", "documented", _DOCS, _system_blocks),
    Rule("anthropic.pair", "Every tool_use is answered in the next user message.", "observed", _MET, _pair),
    Rule("anthropic.orphan", "Every tool_result answers a tool_use of the message before.", "recalled", _MET, _orphan),
    Rule("anthropic.results-first", "Tool results stand before everything else in their message.", "recalled", _KNOWN, _results_first),
    Rule("anthropic.one-result", "A call has one result.", "recalled", _MET, _one_result),
    Rule("anthropic.unique-ids", "Call ids are unique over the whole request.", "recalled", _MET, _unique_ids),
    Rule("anthropic.id-pattern", "Ids match ^[a-zA-Z0-9_-]+$.", "documented", _DOCS, _id_shape),
    Rule("anthropic.name-pattern", "Tool names match ^[a-zA-Z0-9_-]{1,128}$.", "documented", _DOCS, _name_shape),
    Rule("anthropic.name-length", "Tool names have at most 64 characters.", "inferred", "2024 specification", _name_length),
    Rule("anthropic.input-object", "The input of a call is an object.", "documented", _DOCS, _input),
    Rule("anthropic.block-role", "Results belong to the user, calls and thinking to the assistant.", "recalled", _KNOWN, _block_role),
    Rule("anthropic.media-role", "Media belong to the user.", "inferred", _GUESS, _media_role),
    Rule("anthropic.result-blocks", "A tool_result holds text, images, documents, search results or tool references.", "documented", _DOCS, _result_blocks),
    Rule("anthropic.error-text", "A result that is an error holds text only.", "recalled", _KNOWN, _error_text),
    Rule("anthropic.server-pair", "A server tool's call and result stand in the same message.", "recalled", _MET, _server_pairs),
    Rule("anthropic.advisor", "The advisor tool stays as long as its results do.", "documented", _DOCS, _advisor),
    Rule("anthropic.tool-reference", "A tool reference names a declared tool.", "documented", _DOCS, _references),
    Rule("anthropic.text-nonempty", "A text block is not empty, in a tool result neither.", "observed", _MET, _text_empty),
    Rule("anthropic.text-nonblank", "A text is more than white space.", "recalled", _KNOWN, _text_blank),
    Rule("anthropic.result-nonblank", "The text of a result is more than white space.", "inferred", _GUESS, _result_blank),
    Rule("anthropic.trailing-space", "A final assistant message does not end in white space.", "recalled", _KNOWN, _trailing),
    Rule("anthropic.prefill", "From 4.6 on the conversation ends with a user message.", "documented", _DOCS, _prefill),
    Rule("anthropic.thinking-sealed", "A thinking block has its text and signature, a redacted one its data.", "documented", _DOCS, _signature),
    Rule("anthropic.media-source", "An image or document has a source of a known type, with something in it.", "documented", _DOCS, _media_source),
    Rule("anthropic.media-type", "Images are jpeg, png, gif or webp; documents pdf or plain text.", "documented", _DOCS, _media_type),
    Rule("anthropic.image-count", "At most 100 images on models with 200,000 tokens, 600 on others.", "documented", _DOCS, _image_count),
    Rule("anthropic.image-size", "Images have at most 8,000 pixels a side, 2,000 where there are more than 20.", "documented", _DOCS, _image_size),
)  # fmt: skip
"""The rules about messages, in the order they are checked."""
