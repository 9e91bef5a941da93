"""The history repaired by hygiene, as far as the body can be read."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolResult
from holdfast.messages.sized_message import Slot
from holdfast.normalize import repairs
from holdfast.providers.fix.work import Mend, Work
from holdfast.providers.recognize import body_fields
from holdfast.providers.request_body import open_body, render
from holdfast.providers.rules import Finding
from holdfast.state.branch.view import patched
from holdfast.state.edits import Edit

_ELSEWHERE = ("previous_response_id", "conversation", "thread", "cachedContent", "cached_content")
"""Fields that name a part of the history which lies with the server."""


def repaired(body: bytes, work: Work, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with its history repaired; as it is when it cannot be read."""
    found, dialect = body_fields(body), work.dialect
    if any(bytes(found.get(key, b"null")) != b"null" for key in _ELSEWHERE):
        dialect = replace(dialect, elsewhere=True)
    try:
        lens = open_body(body, work.form.api)
        edits = repairs([slot.message for slot in lens.slots], dialect, lead=False)
        new = render(lens, patched(list(lens.slots), edits)) if edits else body
    except FormatError:
        return body, []
    put = {
        _said(part) for edit in edits for message in edit.put if isinstance(message, Message) for part in message.parts
    }
    told = [edit for edit in edits if not _is_elsewhere(edit, lens.slots, put)]
    return new, [Mend(edit.rule, edit.why, f"$.{work.form.field}[{edit.span.start}]") for edit in told]


def _is_elsewhere(edit: Edit, slots: Sequence[Slot], put: AbstractSet[int]) -> bool:
    """Return whether an edit only leaves out what others ``put`` in another place, which they tell."""
    if edit.put:
        return False
    parts = [part for slot in slots[edit.span.start : edit.span.stop] for part in slot.message.parts]
    return bool(parts) and all(_said(part) in put for part in parts)


def _said(part: Part) -> int:
    """Return what tells a part from others, whatever id it goes out under."""
    return id(part.content if isinstance(part, ToolResult) else part)
