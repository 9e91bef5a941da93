"""The list of messages and the system prompt in the form, and in the field, that this API has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from holdfast.providers.common.json.json_path import opens
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import fields, spliced, write
from holdfast.providers.fix.blocks import as_list, block_of
from holdfast.providers.fix.word_guard import SYSTEMS
from holdfast.providers.fix.work import Mend, Work, made
from holdfast.providers.recognize import body_fields
from holdfast.providers.registry import Form
from holdfast.providers.rules import Finding


def framed(body: bytes, work: Work, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with a list as its list of messages, and the system prompt where it belongs."""
    edits: list[Mend] = []
    for step in (_listed, _system, _foreign_system, _hoisted):
        body, more = step(body, work.form, errors)
        edits += more
    return body, edits


# -- the list ----------------------------------------------------------------------------------------------------------


def _listed(body: bytes, form: Form, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with messages in a list: one alone, a bare text, and lists inside the list too."""
    found = body_fields(body)
    raw = found.get(form.field)
    kind = opens(raw)
    if raw is None or kind not in ("[", "{", '"') or (kind == '"' and form.text):
        return body, []
    raws = items_of(raw) if kind == "[" else [raw]
    flat = _flat(raws)
    if kind == "[" and len(flat) == len(raws) and not any(opens(one) == "[" for one in raws):
        return body, []
    why = f"the messages stand in one list: {len(flat)} of them"
    return spliced(body, found, {form.field: write(flat)}), [Mend("form", why, f"$.{form.field}")]


def _flat(raws: Sequence[Raw]) -> list[Raw]:
    """Return the elements with those of lists among them in their place."""
    waiting, out = list(reversed(raws)), []
    while waiting:
        one = waiting.pop()
        if opens(one) == "[":
            waiting += reversed(items_of(one))
        else:
            out.append(one)
    return out


# -- the system prompt -------------------------------------------------------------------------------------------------


def _system(body: bytes, form: Form, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with a system prompt that is refused written as this API writes it."""
    found = body_fields(body)
    name = next((name for name in form.system if name in found), None)
    mine = [error for error in errors if name is not None and error.path.startswith(f"$.{name}")]
    if name is None or not mine:
        return body, []
    new = _written(form, _blocks(form, found[name]))
    return spliced(body, found, {name: new}), [made(mine[0], f"written as {form.name} has it")]


def _blocks(form: Form, raw: Raw) -> list[Raw]:
    """Return what a system prompt of any form says, as blocks of this API."""
    if opens(raw) == "{":
        held = fields(raw)
        inner = next((held[key] for key in ("parts", "content") if key in held), None)
        raw = inner if inner is not None else raw
    return [new for one in as_list(raw) if opens(one) != "n" for new in block_of(one, form, "system")]


def _written(form: Form, blocks: Sequence[Raw]) -> bytes:
    return write({"parts": blocks} if form.field == "contents" else blocks)


def _foreign_system(body: bytes, form: Form, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with the system prompt of another API's field in the place that this one has for it."""
    paths = {error.path: error for error in errors}
    edits = []
    for name in SYSTEMS:
        found = body_fields(body)
        error = paths.get(f"$.{name}")
        if error is None or name in form.system or name not in found or not error.rule.endswith(".foreign-field"):
            continue
        blocks = _blocks(form, found.pop(name))
        body = write(_with_system(found, form, blocks))
        edits.append(made(error, f"what it says stands where {form.name} has it"))
    return body, edits


def _with_system(found: Mapping[str, Raw], form: Form, blocks: Sequence[Raw]) -> dict[str, Any]:
    """Return the fields of a body with ``blocks`` at the end of its system prompt, or as its first message."""
    if form.system:
        name = next((name for name in form.system if name in found), form.system[0])
        return {**found, name: Raw(_written(form, [*_blocks(form, found.get(name, Raw(b"[]"))), *blocks]))}
    if form.text:
        words = [text_of(found.get("instructions")), *(text_of(fields(one).get("text")) for one in blocks)]
        return {**found, "instructions": "\n\n".join(word for word in words if word)}
    return {**found, form.field: [{"role": "system", "content": blocks}, *items_of(found.get(form.field))]}


def _hoisted(body: bytes, form: Form, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with system messages that stand first in the field that is theirs, where there is one."""
    found = body_fields(body)
    raws = items_of(found.get(form.field)) if form.system else []
    blocks: list[Raw] = []
    lead = 0
    while lead < len(raws) - 1 and (said := _said_by_system(raws[lead], form)):
        blocks += said
        lead += 1
    if not lead:
        return body, []
    found[form.field] = Raw(write(raws[lead:]))
    why = f"{lead} system message(s) at the start moved into {form.system[0]!r}"
    return write(_with_system(found, form, blocks)), [Mend("system", why, f"$.{form.field}[0]")]


def _said_by_system(raw: Raw, form: Form) -> list[Raw]:
    """Return the blocks of a system message that has words alone; none when it is no such message."""
    held = fields(raw) if opens(raw) == "{" else {}
    if text_of(held.get("role")).lower() not in {"system", "developer"}:
        return []
    content = next((held[key] for key in ("content", "parts", "text") if opens(held.get(key)) not in ("", "n")), None)
    blocks = [] if content is None else [new for one in as_list(content) for new in block_of(one, form, "system")]
    words = [text_of(fields(one).get("text")) if opens(one) == "{" else "" for one in blocks]
    return blocks if all(word.strip() for word in words) else []
