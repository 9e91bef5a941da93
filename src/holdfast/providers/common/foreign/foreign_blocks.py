"""Whose form an element of a list of messages is: told by its type, or by the field that holds what it says.

Only what surely belongs to some APIs counts. Words, and calls of built-in tools, are told apart from all that a request
is mended for: an API's own writing of them is known, and yet they are put right where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

_ANTHROPIC, _CHAT, _RESPONSES, _GEMINI = "anthropic", "openai-chat", "openai-responses", "gemini"
_API_TITLES = {
    _ANTHROPIC: "Anthropic Messages",
    _CHAT: "OpenAI Chat Completions",
    _RESPONSES: "OpenAI Responses",
    _GEMINI: "Gemini generateContent",
}
CALL_KIND, RESULT_KIND, THINKING_KIND = "call of a tool", "result of a tool", "thinking"
_TEXT_KIND, _BUILT_IN_CALL_KIND = "text", "call of a built-in tool"
_PICTURE_KIND, _DOCUMENT_KIND, _SOUND_KIND, _REFUSAL_KIND, _MESSAGE_KIND, _TOOL_KIND = (
    "picture", "document", "sound", "refusal", "message", "tool",
)  # fmt: skip


class BlockOrigin(Struct, frozen=True):
    """What something is, and the APIs that write it so; the first of them reads it best."""

    content_kind: str
    apis: tuple[str, ...]

    @property
    def description(self) -> str:
        """What it is in words: ``a picture in the form of OpenAI Responses``."""
        *leading_names, last = (_API_TITLES[api] for api in self.apis)
        names = f"{', '.join(leading_names)} and {last}" if leading_names else last
        return (
            f"{'' if self.content_kind in (_SOUND_KIND, THINKING_KIND) else 'a '}{self.content_kind} in the "
            f"form of {names}"
        )


ForeignBlock: TypeAlias = tuple[str, BlockOrigin]
"""Where something of another API stands, from its message on, and what it is."""
BlockClassifier: TypeAlias = Callable[[object], BlockOrigin | None]
"""Tells what an element is; nothing where it is none to look at."""

_ORIGIN_BY_TYPE = {
    "tool_use": BlockOrigin(CALL_KIND, (_ANTHROPIC,)),
    "tool_result": BlockOrigin(RESULT_KIND, (_ANTHROPIC,)),
    "redacted_thinking": BlockOrigin(THINKING_KIND, (_ANTHROPIC,)),
    "image_url": BlockOrigin(_PICTURE_KIND, (_CHAT,)),
    "input_audio": BlockOrigin(_SOUND_KIND, (_CHAT, _RESPONSES)),
    "refusal": BlockOrigin(_REFUSAL_KIND, (_RESPONSES, _CHAT)),
    "input_image": BlockOrigin(_PICTURE_KIND, (_RESPONSES,)),
    "input_file": BlockOrigin(_DOCUMENT_KIND, (_RESPONSES,)),
    "function_call": BlockOrigin(CALL_KIND, (_RESPONSES,)),
    "custom_tool_call": BlockOrigin(CALL_KIND, (_RESPONSES,)),
    "function_call_output": BlockOrigin(RESULT_KIND, (_RESPONSES,)),
    "custom_tool_call_output": BlockOrigin(RESULT_KIND, (_RESPONSES,)),
    "reasoning": BlockOrigin(THINKING_KIND, (_RESPONSES,)),
    "input_text": BlockOrigin(_TEXT_KIND, (_RESPONSES,)),
    "output_text": BlockOrigin(_TEXT_KIND, (_RESPONSES,)),
    "message": BlockOrigin(_TEXT_KIND, (_RESPONSES,)),
    "search_result": BlockOrigin(_TEXT_KIND, (_ANTHROPIC,)),
    **dict.fromkeys(("tool_addition", "tool_removal"), BlockOrigin(_BUILT_IN_CALL_KIND, (_ANTHROPIC,))),
}
_COMPACTION_ORIGIN_BY_FIELD = {
    "content": BlockOrigin(_TEXT_KIND, (_ANTHROPIC,)),
    "encrypted_content": BlockOrigin(_TEXT_KIND, (_RESPONSES,)),
}
"""Fields by which it is known whose a compaction is."""
_API_BY_TYPE_SUFFIX = {
    "_tool_use": _ANTHROPIC,
    "_tool_result": _ANTHROPIC,
    **dict.fromkeys(("_call_output", "_search_call", "_interpreter_call", "_generation_call", "mcp_call"), _RESPONSES),
    **dict.fromkeys(("shell_call", "patch_call", "computer_call"), _RESPONSES),
}
"""Who writes the calls of built-in tools and what came of them, by how their types end."""
ANTHROPIC_DOCUMENT = BlockOrigin(_DOCUMENT_KIND, (_ANTHROPIC,))
_ORIGIN_BY_TYPE_AND_FIELD = {
    ("image", "source"): BlockOrigin(_PICTURE_KIND, (_ANTHROPIC,)),
    ("document", "source"): ANTHROPIC_DOCUMENT,
    ("thinking", "signature"): BlockOrigin(THINKING_KIND, (_ANTHROPIC,)),
    ("file", "file"): BlockOrigin(_DOCUMENT_KIND, (_CHAT,)),
}
"""Types that more than one API has, and the field by which this one is known."""
_GEMINI_KIND_BY_FIELD = {
    "functionCall": CALL_KIND,
    "function_call": CALL_KIND,
    "functionResponse": RESULT_KIND,
    "function_response": RESULT_KIND,
    "inlineData": _DOCUMENT_KIND,
    "inline_data": _DOCUMENT_KIND,
    "fileData": _DOCUMENT_KIND,
    "file_data": _DOCUMENT_KIND,
}
"""Fields that tell what a part of Gemini's is, in both spellings."""
MESSAGE_ORIGIN_BY_FIELD = {
    "content": BlockOrigin(_MESSAGE_KIND, (_ANTHROPIC, _CHAT, _RESPONSES)),
    "parts": BlockOrigin(_MESSAGE_KIND, (_GEMINI,)),
}
"""What a message is, by the field that holds what it says."""
_CHAT_CALL, _CHAT_RESULT = BlockOrigin(CALL_KIND, (_CHAT,)), BlockOrigin(RESULT_KIND, (_CHAT,))
_OWN_FORM_PHRASES = {
    **dict.fromkeys(
        [(_ANTHROPIC, _MESSAGE_KIND), (_CHAT, _MESSAGE_KIND), (_RESPONSES, _MESSAGE_KIND)], "what it says as content"
    ),
    (_GEMINI, _MESSAGE_KIND): "what it says as parts",
    (_ANTHROPIC, _PICTURE_KIND): "an image block",
    (_ANTHROPIC, _DOCUMENT_KIND): "a document block",
    (_ANTHROPIC, CALL_KIND): "a tool_use block of the assistant's",
    (_ANTHROPIC, RESULT_KIND): "a tool_result block of the user's",
    (_CHAT, _PICTURE_KIND): "an image_url part of the user's",
    (_CHAT, _DOCUMENT_KIND): "a file part of the user's",
    (_CHAT, CALL_KIND): "an element of tool_calls",
    (_CHAT, RESULT_KIND): "a message of the role tool",
    (_RESPONSES, _PICTURE_KIND): "an input_image part",
    (_RESPONSES, _DOCUMENT_KIND): "an input_file part",
    (_RESPONSES, CALL_KIND): "an item of the type function_call",
    (_RESPONSES, RESULT_KIND): "an item of the type function_call_output",
    (_GEMINI, _PICTURE_KIND): "a part with inlineData",
    (_GEMINI, _DOCUMENT_KIND): "a part with inlineData",
    (_GEMINI, _SOUND_KIND): "a part with inlineData",
    (_GEMINI, CALL_KIND): "a part with functionCall",
    (_GEMINI, RESULT_KIND): "a part with functionResponse",
    (_ANTHROPIC, _TOOL_KIND): "an object with a name and an input_schema",
    (_CHAT, _TOOL_KIND): "an object of the type function with its name in an object of that name",
    (_RESPONSES, _TOOL_KIND): "an object of the type function with its name beside that",
    (_GEMINI, _TOOL_KIND): "an element of functionDeclarations",
}
"""What an API has for the same thing."""


def format_foreign_block_advice(kind: BlockOrigin, api: str) -> str:
    """Return what to say of something in another form than that of ``api``, and the one thing to do."""
    own_form = _OWN_FORM_PHRASES.get((api, kind.content_kind))
    return (
        f"this is {kind.description}; {f'write {own_form}' if own_form else 'leave it out'} here, as holdfast fix does"
    )


def classify_foreign_block(block: object) -> BlockOrigin | None:
    """Return what an element of a content, or of the list itself, is; nothing for words and what is not known."""
    kind = classify_any_block(block)
    return None if kind is None or kind.content_kind in (_TEXT_KIND, _BUILT_IN_CALL_KIND) else kind


def classify_any_block(block: object) -> BlockOrigin | None:
    """Return what an element is whose writers are known, be it words or a call of a built-in tool."""
    if not isinstance(block, Mapping):
        return None
    type_ = block.get("type")
    if isinstance(type_, str):
        matching_kinds = (
            kind for (name, field), kind in _ORIGIN_BY_TYPE_AND_FIELD.items() if name == type_ and block.get(field)
        )
        return _ORIGIN_BY_TYPE.get(type_) or next(matching_kinds, None) or _classify_special_block(type_, block)
    field = next((key for key in _GEMINI_KIND_BY_FIELD if isinstance(block.get(key), Mapping)), None)
    if field is None:
        return None
    mime = next((str(block[field][key]) for key in ("mimeType", "mime_type") if key in block[field]), "")
    kinds = {"image": _PICTURE_KIND, "audio": _SOUND_KIND} if _GEMINI_KIND_BY_FIELD[field] == _DOCUMENT_KIND else {}
    return BlockOrigin(kinds.get(mime.partition("/")[0], _GEMINI_KIND_BY_FIELD[field]), (_GEMINI,))


def _classify_special_block(type_: str, block: Mapping[str, Any]) -> BlockOrigin | None:
    """Return what is told apart from all that a request is mended for."""
    if type_ == "compaction":
        return next((kind for field, kind in _COMPACTION_ORIGIN_BY_FIELD.items() if field in block), None)
    return next(
        (BlockOrigin(_BUILT_IN_CALL_KIND, (api,)) for end, api in _API_BY_TYPE_SUFFIX.items() if type_.endswith(end)),
        None,
    )


def classify_tool_declaration(tool: object) -> BlockOrigin | None:
    """Return whose form a function of the client's is offered in; nothing for other tools."""
    if not isinstance(tool, Mapping):
        return None
    if any(isinstance(tool.get(key), list) for key in ("functionDeclarations", "function_declarations")):
        return BlockOrigin(_TOOL_KIND, (_GEMINI,))
    if tool.get("type") in (None, "custom") and isinstance(tool.get("input_schema"), Mapping):
        return BlockOrigin(_TOOL_KIND, (_ANTHROPIC,))
    if tool.get("type") != "function":
        return None
    if isinstance(tool.get("function"), Mapping):
        return BlockOrigin(_TOOL_KIND, (_CHAT,))
    return BlockOrigin(_TOOL_KIND, (_RESPONSES,)) if isinstance(tool.get("name"), str) else None


def find_foreign_blocks(
    message: object, api: str, *, classify: BlockClassifier = classify_foreign_block
) -> Iterator[ForeignBlock]:
    """Yield what ``classify`` knows to be another's in one element of the list of messages of ``api``."""
    if not isinstance(message, Mapping):
        return
    own = classify(message) if "role" not in message else None
    if own is not None and api not in own.apis:
        yield "", own
    if api != _CHAT:
        yield from _find_chat_fields(message)
    for key in ("content", "parts", "output"):
        yield from _find_foreign_in_content(message.get(key), f".{key}", api, classify)


def _find_chat_fields(message: Mapping[str, Any]) -> Iterator[ForeignBlock]:
    """Yield the calls beside a content and the results of Chat."""
    if message.get("role") == "assistant":
        for name in ("tool_calls", "function_call"):
            if message.get(name) and isinstance(message[name], list if name == "tool_calls" else Mapping):
                yield f".{name}", _CHAT_CALL
    if message.get("role") in ("tool", "function") and "parts" not in message:
        yield ".role", _CHAT_RESULT


def _find_foreign_in_content(content: object, path: str, api: str, classify: BlockClassifier) -> Iterator[ForeignBlock]:
    """Yield what is strange among the elements of a content, and of what a result holds."""
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        place = f"{path}[{index}]" if isinstance(content, list) else path
        kind = classify(block)
        if kind is not None and api not in kind.apis:
            yield place, kind
        elif isinstance(block, Mapping) and kind is not None and kind.content_kind == RESULT_KIND:
            yield from _find_foreign_in_content(block.get("content"), f"{place}.content", api, classify)
