"""One block of a message, a bare text, or what a tool gave back, in the form that this API has for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Raw

from holdfast.providers.common.json.json_path import opens
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import fields, write
from holdfast.providers.fix.word_guard import TEXTS
from holdfast.providers.registry import Form

_SHOWN = frozenset(
    {"image", "document", "search_result", "image_url", "input_image", "input_file", "input_audio", "file",
     "tool_reference", "browser_state", "computer_screenshot"}
)  # fmt: skip
"""Types of blocks that may stand in what a tool gave back, beside words."""
_WORDED = ("text", "content", "value")
"""Keys under which blocks of words have them, the right one first."""
_MEDIA = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
_DATA = _MEDIA | {"functionCall", "function_call", "functionResponse", "function_response"}
_SIGNATURES = ("thoughtSignature", "thought_signature")
_FOREIGN = {
    "anthropic": frozenset({"function_call", "function_call_output", "tool_call"}),
    "openai-chat": frozenset({"tool_use", "tool_result", "function_call", "function_call_output"}),
    "openai-responses": frozenset({"tool_use", "tool_result", "function_call", "function_call_output"}),
    "gemini": frozenset({"tool_use", "tool_result"}),
}
"""Calls and results of other APIs, which a block of this one cannot be."""


def as_list(raw: Raw) -> list[Raw]:
    """Return the elements of a list, any other value as a list of it, and nothing for ``null``."""
    if opens(raw) == "[":
        return items_of(raw)
    return [] if opens(raw) == "n" else [raw]


def block_of(raw: Raw, form: Form, role: str) -> Iterator[Raw]:
    """Yield what stands in the place of a block: itself, the same words in this API's form, or blocks of a list."""
    kind = opens(raw)
    if kind == '"':
        yield words(text_of(raw), form, role)
    elif kind == "[":
        for one in _leaves(raw):
            yield from block_of(one, form, role)
    elif kind == "{" and form.field == "contents":
        bare = _well_signed(raw)
        yield from _apart(fields(bare)) or [_object(bare, form, role)]
    elif kind == "{":
        yield _object(raw, form, role)
    elif kind != "n":
        yield words(bytes(raw).decode(), form, role)


def _leaves(raw: Raw) -> Iterator[Raw]:
    waiting = [raw]
    while waiting:
        one = waiting.pop()
        if opens(one) == "[":
            waiting += reversed(items_of(one))
        else:
            yield one


def _well_signed(raw: Raw) -> Raw:
    """Return a part of Gemini's without a signature that is no text; what it says stays."""
    held = fields(raw)
    odd = [key for key in _SIGNATURES if opens(held.get(key)) not in ("", '"', "n")]
    return Raw(write({key: value for key, value in held.items() if key not in odd})) if odd else raw


def _apart(held: Mapping[str, Raw]) -> list[Raw]:
    """Return a part of Gemini's that says words beside something else as two; nothing for any other."""
    if not text_of(held.get("text")) or not any(key in _DATA for key in held):
        return []
    return [Raw(write({"text": held["text"]})), Raw(write({key: raw for key, raw in held.items() if key != "text"}))]


def _object(raw: Raw, form: Form, role: str) -> Raw:
    held = fields(raw)
    kind = text_of(held.get("type"))
    text = meant(held) if not kind or kind in TEXTS else ""
    if kind in _FOREIGN[form.api]:
        return words(told(held), form, role)
    if not text or (_is_own(kind, form, role) and opens(held.get("text")) == '"'):
        return raw
    kept = {"cache_control": held["cache_control"]} if form.markers and "cache_control" in held else {}
    return Raw(write({**fields(words(text, form, role)), **kept}))


def meant(held: Mapping[str, Raw]) -> str:
    """Return the words of a block, under whichever key it has them; empty where it has none."""
    for key in _WORDED:
        raw = held.get(key)
        inner = [raw] if raw is not None and opens(raw) in '"{' else items_of(raw)
        said = [text_of(one) if opens(one) == '"' else meant(fields(one)) for one in inner if opens(one) in '"{']
        if text := "\n".join(one for one in said if one):
            return text
    return ""


def _is_own(kind: str, form: Form, role: str) -> bool:
    return kind == ("" if form.field == "contents" else text_kind(form, role))


def text_kind(form: Form, role: str) -> str:
    """Return the type of a block of words by ``role``."""
    if form.api != "openai-responses":
        return "text"
    return "output_text" if role == "assistant" else "input_text"


def words(text: str, form: Form, role: str) -> Raw:
    """Return a block of words."""
    if form.field == "contents":
        return Raw(write({"text": text}))
    return Raw(write({"type": text_kind(form, role), "text": text}))


def told(held: Mapping[str, Raw]) -> str:
    """Return in words what a call or a result of another API says."""
    given = next((held[key] for key in ("content", "output") if key in held), None)
    if given is not None:
        parts = [fields(one) if opens(one) == "{" else {"text": one} for one in as_list(given)]
        said = "\n".join(text for part in parts if (text := text_of(part.get("text"))))
        return said or bytes(given).decode()
    return write(
        {key: raw for key, raw in held.items() if key not in ("type", "id", "call_id", "cache_control")}
    ).decode()


def given(raw: Raw, form: Form) -> Raw:
    """Return what a tool gave back as text or blocks: any other value is told as JSON."""
    kind = opens(raw)
    if kind in ('"', "n", ""):
        return raw
    if kind == "{" and not _is_shown(fields(raw)):
        return Raw(write(bytes(raw).decode()))
    if kind in "{[":
        return Raw(write([new for one in as_list(raw) for new in _inside(one, form)]))
    return Raw(write(bytes(raw).decode()))


def _is_shown(held: Mapping[str, Raw]) -> bool:
    """Return whether a block says words or shows something; all else that a tool gave back is JSON."""
    kind = text_of(held.get("type"))
    if kind in TEXTS or held.keys() == {"text"}:
        return opens(held.get("text")) == '"'
    return kind in _SHOWN or any(key in _MEDIA for key in held)


def _inside(raw: Raw, form: Form) -> Iterator[Raw]:
    """Yield what stands in the place of a block in a result; of a result inside it, the words, of all else the JSON."""
    held = fields(raw) if opens(raw) == "{" else {}
    if text_of(held.get("type")) in ("tool_result", "tool_use"):
        yield words(told(held), form, "tool")
    elif held and not _is_shown(held):
        yield words(bytes(raw).decode(), form, "tool")
    else:
        yield from block_of(raw, form, "tool")
