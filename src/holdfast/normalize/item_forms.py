"""Send items of answers back in the form that requests have.

The Responses API puts fields into some items of its answers that it refuses in a request, and clients send the items
back as they came. What an item lacks, has too much of, or may not be, stands in ``Dialect.item_forms``.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.parts import Opaque, Part, Thinking
from holdfast.state.dialect import Dialect, ItemForm

REASONING_ITEM = "reasoning"
"""The kind of the items that are decoded as ``Thinking``."""
_FIELDS_DECODER = msgspec.json.Decoder(dict[str, Raw])


def correct_item_form(part: Opaque | Thinking, dialect: Dialect) -> Part | None:
    """Return ``part`` in the form of a request: the same object if it has it, None if it may not be sent at all."""
    form = _find_form(part, dialect)
    fields = None if form is None else _read_fields(part)
    if form is None or fields is None:
        return part
    if _has_refused_action(fields, form):
        return None
    new_fields = {}
    for key, value in fields.items():
        # The null that SDKs write for a field without a value is taken.
        if key not in form.answer_fields or bytes(value) == b"null":
            new_fields[key] = value
    for key, default in form.defaults.items():
        if key not in new_fields or bytes(new_fields[key]) == b"null":
            new_fields[key] = Raw(default.encode())
    if new_fields == fields:
        return part
    return replace(part, raw=Raw(msgspec.json.encode(new_fields)))


def is_answer_only_item(part: Part, dialect: Dialect) -> bool:
    """Return whether ``part`` is an item that may not be sent at all, whatever form it has."""
    if not isinstance(part, Opaque):
        return False
    form = _find_form(part, dialect)
    if form is None or not form.action_types:
        return False
    fields = _read_fields(part)
    return fields is not None and _has_refused_action(fields, form)


def _find_form(part: Opaque | Thinking, dialect: Dialect) -> ItemForm | None:
    return dialect.item_forms.get(part.kind if isinstance(part, Opaque) else REASONING_ITEM)


def _read_fields(part: Opaque | Thinking) -> dict[str, Raw] | None:
    if part.raw is None:
        return None
    try:
        return _FIELDS_DECODER.decode(part.raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has_refused_action(fields: dict[str, Raw], form: ItemForm) -> bool:
    """Return whether the item has an action of a type that is only for answers."""
    if not form.action_types or "action" not in fields:
        return False
    try:
        action = msgspec.json.decode(fields["action"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    action_type = action.get("type") if isinstance(action, dict) else None
    return isinstance(action_type, str) and action_type not in form.action_types
