"""Each message in the form of its API: readable, of a known role, its words under their own key, its ids strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.normalize.ids import minted_id
from holdfast.providers.common.foreign.foreign_blocks import CALL, RESULT, kind_of
from holdfast.providers.common.json.json_path import Tree, opens
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import Bytes, fields, spliced, value, write
from holdfast.providers.fix.blocks import as_list, block_of, given, meant, told, words
from holdfast.providers.fix.word_guard import HOLDERS, TEXTS, texts
from holdfast.providers.fix.work import Mend, Work, made
from holdfast.providers.recognize import body_fields
from holdfast.providers.registry import Form
from holdfast.providers.rules import Finding

_ROLES = {
    "anthropic": ("user", "assistant", "system"),
    "openai-chat": ("user", "assistant", "system", "developer", "tool", "function"),
    "openai-responses": ("user", "assistant", "system", "developer"),
    "gemini": ("user", "model", ""),
}
_SPEAKERS = {"assistant": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
             "system": "system", "developer": "system"}  # fmt: skip
"""Roles that others use, and whose they are; all others are the user's."""
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_IDS = ("id", "tool_use_id", "call_id", "tool_call_id")
_NUMBERED = re.compile(rb'"(?:id|tool_use_id|call_id|tool_call_id)"\s*:\s*-?\d')


def reshaped(body: bytes, work: Work, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with each message that is refused in its API's form; the words in it stay."""
    form, found = work.form, body_fields(body)
    raws = items_of(found.get(form.field))
    blamed = _blamed(Tree(Raw(body)), form.field, errors)
    new: list[Raw | None] = [*raws]
    edits = []
    for index, raw in enumerate(raws):
        if index in blamed:
            shaped = _kept_words(raw, _message(raw, form))
            new[index] = None if shaped is None else _with_ids(shaped)
        elif _NUMBERED.search(raw):
            new[index] = _with_ids(raw)
        if new[index] != raw:
            told = blamed.get(index, [Finding("ids", "error", f"$.{form.field}[{index}]", "an id is a string")])
            edits += [made(error, f"written as {form.name} has it") for error in told[:1]]
        read, odd = _legible(new[index], form)
        if odd:
            new[index] = read
            edits.append(Mend("form", f"{', '.join(odd)} cannot be read: left out", f"$.{form.field}[{index}]"))
    if not edits:
        return body, []
    return spliced(body, found, {form.field: write([one for one in new if one is not None])}), edits


def _blamed(tree: Tree, field: str, errors: Sequence[Finding]) -> dict[int, list[Finding]]:
    """Return what is refused in each message."""
    blamed: dict[int, list[Finding]] = {}
    for error in errors:
        steps = tree.steps(error.path) if error.path.startswith(f"$.{field}[") else ()
        if len(steps) > 1 and isinstance(steps[1], int):
            blamed.setdefault(steps[1], []).append(error)
    return blamed


def _kept_words(raw: Raw, new: Raw | None) -> Raw | None:
    """Return ``new``, or the message as it stood if a word of it went; what a tool gave back is told elsewhere."""
    if new is None or (opens(raw) == "{" and text_of(fields(raw).get("role")) in ("tool", "function")):
        return new
    before, after = (set(texts(msgspec.json.decode(one))) for one in (raw, new))
    return raw if any(text.strip() for text in before - after) else new


def _legible(raw: Raw | None, form: Form) -> tuple[Raw | None, list[str]]:
    """Return a message without the fields for which it cannot be read, and their names; itself where others are."""
    if raw is None or opens(raw) != "{" or _is_read(raw, form):
        return raw, []
    held = fields(raw)
    core = {key: value for key, value in held.items() if key in ("role", "type", _key(form))}
    if not _is_read(write(core), form):
        return raw, []
    odd = [key for key, value in held.items() if not _is_read(write({**core, key: value}), form)]
    return Raw(write({key: value for key, value in held.items() if key not in odd})), odd


def _is_read(message: Bytes, form: Form) -> bool:
    try:
        form.decode(message)
    except FormatError:
        return False
    return True


# -- one message -------------------------------------------------------------------------------------------------------


def _message(raw: Raw, form: Form) -> Raw | None:
    """Return a message in its API's form, nothing for what is none; the very same when nothing is to be done."""
    kind = opens(raw)
    if kind != "{":
        text = text_of(raw) if kind == '"' else ""
        return Raw(write(_said("user", words(text, form, "user"), form))) if text.strip() else None
    held = fields(raw)
    shape = _item if form.field == "input" else _spoken
    new = numbered(shape(held, form))
    return raw if new == held else Raw(write(new))


def _said(role: str, block: Raw, form: Form) -> dict[str, object]:
    return {"role": role, _key(form): [block]}


def _key(form: Form) -> str:
    return "parts" if form.field == "contents" else "content"


def _item(held: dict[str, Raw], form: Form) -> dict[str, Raw]:
    """Return an item of Responses: a message by its role, words as a message, an output as text, a call with an id."""
    kind = text_of(held.get("type"))
    if kind in TEXTS and (text := meant(held)):
        role = "assistant" if kind == "output_text" else "user"
        block = words(text, form, role)
        return {"type": Raw(b'"message"'), "role": Raw(write(role)), "content": Raw(write([block]))}
    if kind in _CALLS and bytes(held.get("call_id", b"null")) in (b"null", b'""'):
        id_ = text_of(held.get("id")) or minted_id(write(held).decode(), form.dialect(""))
        return {**held, "call_id": Raw(write(id_))}
    if kind in _OUTPUTS and "output" in held:
        return {"call_id": Raw(b'""'), **held, "output": given(held["output"], form)}
    if kind in ("", "message") and ("role" in held or any(key in held for key in HOLDERS)):
        return _spoken(held, form)
    return held


def _spoken(held: dict[str, Raw], form: Form) -> dict[str, Raw]:
    """Return a message of a known role with its words under the key that is theirs."""
    key, said = _key(form), text_of(held.get("role"))
    new = dict(held)
    odd = opens(held.get("role")) not in ('"', "" if form.field == "contents" else '"')
    if odd or said not in _ROLES[form.api]:
        speaker = _SPEAKERS.get(said.lower(), "user")
        speaker = "model" if speaker == "assistant" and form.field == "contents" else speaker
        new["role"] = Raw(write(speaker if speaker in _ROLES[form.api] else "user"))
    role = text_of(new.get("role")).replace("model", "assistant")
    own = new.get(key)
    others = [name for name in HOLDERS if name != key and name in new]
    added = [new.pop(name) for name in others]
    if own is not None and opens(own) not in ("n", ""):
        known = set(texts(msgspec.json.decode(own)))
        added = [raw for raw in added if not set(texts(msgspec.json.decode(raw))) <= known]
        added = [own, *added]
    if added:
        new[key] = _content(added, form, role)
    return new


def _content(values: Sequence[Raw], form: Form, role: str) -> Raw:
    """Return the content of a message: a text where that is all and may stand so, else blocks."""
    if len(values) == 1 and opens(values[0]) == '"' and form.field != "contents":
        return values[0]
    if len(values) == 1 and role in ("tool", "function") and form.field == "messages":
        return given(values[0], form)
    old = [one for raw in values for one in as_list(raw)]
    new = [block for one in old for block in block_of(one, form, role)]
    if form.markers:
        new = [_result(block, form) for block in new]
    new = [_in_words(block, form, role) for block in new]
    return values[0] if len(values) == 1 and opens(values[0]) == "[" and new == old else Raw(write(new))


def _in_words(block: Raw, form: Form, role: str) -> Raw:
    """Return what a user says in place of a result that cannot be read; any other block as it is."""
    kind = kind_of(value(block)) if opens(block) == "{" and role != "assistant" else None
    if kind is None or kind.what not in (CALL, RESULT) or form.api not in kind.apis:
        return block
    message = form.decode(write(_said("user", block, form)))
    return block if message.results or message.calls else words(told(fields(block)), form, role)


def _result(block: Raw, form: Form) -> Raw:
    """Return a block with string ids, what a tool gave back as text or blocks, and a mark of failure that is one."""
    held = fields(block)
    new = numbered(held) if "tool" in text_of(held.get("type")) else held
    new = {key: raw for key, raw in new.items() if key != "is_error" or opens(raw) in "tfn"}
    if text_of(held.get("type")) == "tool_result" and "content" in held:
        inner = given(held["content"], form)
        new = new if inner == held["content"] else {**new, "content": inner}
    return block if new == held else Raw(write(new))


# -- ids ---------------------------------------------------------------------------------------------------------------


def numbered(held: dict[str, Raw]) -> dict[str, Raw]:
    """Return the fields of an object with ids that are numbers as strings."""
    numbers = {key: held[key] for key in _IDS if key in held and opens(held[key]) in "-0123456789"}
    return held | {key: Raw(write(bytes(raw).decode())) for key, raw in numbers.items()}


def _with_ids(raw: Raw) -> Raw:
    """Return a message with string ids: its own, those of its calls and its blocks."""
    held = fields(raw) if opens(raw) == "{" else {}
    new = numbered(held)
    for key in ("content", "tool_calls"):
        if opens(held.get(key)) == "[":
            old = items_of(held[key])
            inner = [_named(one) for one in old]
            new = new if inner == old else {**new, key: Raw(write(inner))}
    return raw if new == held else Raw(write(new))


def _named(raw: Raw) -> Raw:
    held = fields(raw) if opens(raw) == "{" else {}
    new = numbered(held) if "tool" in text_of(held.get("type")) or "function" in held else held
    return raw if new == held else Raw(write(new))
