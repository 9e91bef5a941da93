"""Whose form an element of a list of messages is: told by its type, or by the field that holds what it says.

Only what surely belongs to some APIs counts. Words, and calls of built-in tools, are told apart from all that a request
is mended for: an API's own writing of them is known, and yet they are put right where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

_A, _C, _R, _G = "anthropic", "openai-chat", "openai-responses", "gemini"
_NAMES = {
    _A: "Anthropic Messages",
    _C: "OpenAI Chat Completions",
    _R: "OpenAI Responses",
    _G: "Gemini generateContent",
}
CALL, RESULT, THINKING = "call of a tool", "result of a tool", "thinking"
_WORDS, _BUILT_IN = "text", "call of a built-in tool"
_PICTURE, _FILE, _SOUND, _REFUSAL, _MESSAGE, _TOOL = (
    "picture", "document", "sound", "refusal", "message", "tool",
)  # fmt: skip


class Kind(Struct, frozen=True):
    """What something is, and the APIs that write it so; the first of them reads it best."""

    what: str
    apis: tuple[str, ...]

    @property
    def told(self) -> str:
        """What it is in words: ``a picture in the form of OpenAI Responses``."""
        *most, last = (_NAMES[api] for api in self.apis)
        names = f"{', '.join(most)} and {last}" if most else last
        return f"{'' if self.what in (_SOUND, THINKING) else 'a '}{self.what} in the form of {names}"


Strange: TypeAlias = tuple[str, Kind]
"""Where something of another API stands, from its message on, and what it is."""
Known: TypeAlias = Callable[[object], Kind | None]
"""Tells what an element is; nothing where it is none to look at."""

_TYPES = {
    "tool_use": Kind(CALL, (_A,)),
    "tool_result": Kind(RESULT, (_A,)),
    "redacted_thinking": Kind(THINKING, (_A,)),
    "image_url": Kind(_PICTURE, (_C,)),
    "input_audio": Kind(_SOUND, (_C, _R)),
    "refusal": Kind(_REFUSAL, (_R, _C)),
    "input_image": Kind(_PICTURE, (_R,)),
    "input_file": Kind(_FILE, (_R,)),
    "function_call": Kind(CALL, (_R,)),
    "custom_tool_call": Kind(CALL, (_R,)),
    "function_call_output": Kind(RESULT, (_R,)),
    "custom_tool_call_output": Kind(RESULT, (_R,)),
    "reasoning": Kind(THINKING, (_R,)),
    "input_text": Kind(_WORDS, (_R,)),
    "output_text": Kind(_WORDS, (_R,)),
    "message": Kind(_WORDS, (_R,)),
    "search_result": Kind(_WORDS, (_A,)),
    **dict.fromkeys(("tool_addition", "tool_removal"), Kind(_BUILT_IN, (_A,))),
}
_SUMMARY = {"content": Kind(_WORDS, (_A,)), "encrypted_content": Kind(_WORDS, (_R,))}
"""Fields by which it is known whose a compaction is."""
_ENDS = {
    "_tool_use": _A,
    "_tool_result": _A,
    **dict.fromkeys(("_call_output", "_search_call", "_interpreter_call", "_generation_call", "mcp_call"), _R),
    **dict.fromkeys(("shell_call", "patch_call", "computer_call"), _R),
}
"""Who writes the calls of built-in tools and what came of them, by how their types end."""
DOCUMENT = Kind(_FILE, (_A,))
_HOLDING = {
    ("image", "source"): Kind(_PICTURE, (_A,)),
    ("document", "source"): DOCUMENT,
    ("thinking", "signature"): Kind(THINKING, (_A,)),
    ("file", "file"): Kind(_FILE, (_C,)),
}
"""Types that more than one API has, and the field by which this one is known."""
_FIELDS = {
    "functionCall": CALL,
    "function_call": CALL,
    "functionResponse": RESULT,
    "function_response": RESULT,
    "inlineData": _FILE,
    "inline_data": _FILE,
    "fileData": _FILE,
    "file_data": _FILE,
}
"""Fields that tell what a part of Gemini's is, in both spellings."""
WHOLE = {"content": Kind(_MESSAGE, (_A, _C, _R)), "parts": Kind(_MESSAGE, (_G,))}
"""What a message is, by the field that holds what it says."""
_CALLS, _ANSWER = Kind(CALL, (_C,)), Kind(RESULT, (_C,))
_MINE = {
    **dict.fromkeys([(_A, _MESSAGE), (_C, _MESSAGE), (_R, _MESSAGE)], "what it says as content"),
    (_G, _MESSAGE): "what it says as parts",
    (_A, _PICTURE): "an image block",
    (_A, _FILE): "a document block",
    (_A, CALL): "a tool_use block of the assistant's",
    (_A, RESULT): "a tool_result block of the user's",
    (_C, _PICTURE): "an image_url part of the user's",
    (_C, _FILE): "a file part of the user's",
    (_C, CALL): "an element of tool_calls",
    (_C, RESULT): "a message of the role tool",
    (_R, _PICTURE): "an input_image part",
    (_R, _FILE): "an input_file part",
    (_R, CALL): "an item of the type function_call",
    (_R, RESULT): "an item of the type function_call_output",
    (_G, _PICTURE): "a part with inlineData",
    (_G, _FILE): "a part with inlineData",
    (_G, _SOUND): "a part with inlineData",
    (_G, CALL): "a part with functionCall",
    (_G, RESULT): "a part with functionResponse",
    (_A, _TOOL): "an object with a name and an input_schema",
    (_C, _TOOL): "an object of the type function with its name in an object of that name",
    (_R, _TOOL): "an object of the type function with its name beside that",
    (_G, _TOOL): "an element of functionDeclarations",
}
"""What an API has for the same thing."""


def advice(kind: Kind, api: str) -> str:
    """Return what to say of something in another form than that of ``api``, and the one thing to do."""
    mine = _MINE.get((api, kind.what))
    return f"this is {kind.told}; {f'write {mine}' if mine else 'leave it out'} here, as holdfast fix does"


def kind_of(block: object) -> Kind | None:
    """Return what an element of a content, or of the list itself, is; nothing for words and what is not known."""
    kind = known(block)
    return None if kind is None or kind.what in (_WORDS, _BUILT_IN) else kind


def known(block: object) -> Kind | None:
    """Return what an element is whose writers are known, be it words or a call of a built-in tool."""
    if not isinstance(block, Mapping):
        return None
    type_ = block.get("type")
    if isinstance(type_, str):
        held = (kind for (name, field), kind in _HOLDING.items() if name == type_ and block.get(field))
        return _TYPES.get(type_) or next(held, None) or _apart(type_, block)
    field = next((key for key in _FIELDS if isinstance(block.get(key), Mapping)), None)
    if field is None:
        return None
    mime = next((str(block[field][key]) for key in ("mimeType", "mime_type") if key in block[field]), "")
    kinds = {"image": _PICTURE, "audio": _SOUND} if _FIELDS[field] == _FILE else {}
    return Kind(kinds.get(mime.partition("/")[0], _FIELDS[field]), (_G,))


def _apart(type_: str, block: Mapping[str, Any]) -> Kind | None:
    """Return what is told apart from all that a request is mended for."""
    if type_ == "compaction":
        return next((kind for field, kind in _SUMMARY.items() if field in block), None)
    return next((Kind(_BUILT_IN, (api,)) for end, api in _ENDS.items() if type_.endswith(end)), None)


def offered_by(tool: object) -> Kind | None:
    """Return whose form a function of the client's is offered in; nothing for other tools."""
    if not isinstance(tool, Mapping):
        return None
    if any(isinstance(tool.get(key), list) for key in ("functionDeclarations", "function_declarations")):
        return Kind(_TOOL, (_G,))
    if tool.get("type") in (None, "custom") and isinstance(tool.get("input_schema"), Mapping):
        return Kind(_TOOL, (_A,))
    if tool.get("type") != "function":
        return None
    if isinstance(tool.get("function"), Mapping):
        return Kind(_TOOL, (_C,))
    return Kind(_TOOL, (_R,)) if isinstance(tool.get("name"), str) else None


def strange(message: object, api: str, *, tell: Known = kind_of) -> Iterator[Strange]:
    """Yield what ``tell`` knows to be another's in one element of the list of messages of ``api``."""
    if not isinstance(message, Mapping):
        return
    own = tell(message) if "role" not in message else None
    if own is not None and api not in own.apis:
        yield "", own
    if api != _C:
        yield from _of_chat(message)
    for key in ("content", "parts", "output"):
        yield from _in_list(message.get(key), f".{key}", api, tell)


def _of_chat(message: Mapping[str, Any]) -> Iterator[Strange]:
    """Yield the calls beside a content and the results of Chat."""
    if message.get("role") == "assistant":
        for name in ("tool_calls", "function_call"):
            if message.get(name) and isinstance(message[name], list if name == "tool_calls" else Mapping):
                yield f".{name}", _CALLS
    if message.get("role") in ("tool", "function") and "parts" not in message:
        yield ".role", _ANSWER


def _in_list(content: object, path: str, api: str, tell: Known) -> Iterator[Strange]:
    """Yield what is strange among the elements of a content, and of what a result holds."""
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        place = f"{path}[{index}]" if isinstance(content, list) else path
        kind = tell(block)
        if kind is not None and api not in kind.apis:
            yield place, kind
        elif isinstance(block, Mapping) and kind is not None and kind.what == RESULT:
            yield from _in_list(block.get("content"), f"{place}.content", api, tell)
