"""Relief: when a request is still too big, whatever is shown whole gives way, the largest first, seen or not.

The last resort before giving up: it needs no model, breaks the cached prefix, and leaves a handle for every text.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct

from holdfast.model.branch import Branch
from holdfast.model.edits import Blob, Edit, Span
from holdfast.model.messages import result_text
from holdfast.model.parts import Part, Text, ToolResult
from holdfast.policy.draft import Draft
from holdfast.policy.results import edited_parts, preview, replaced
from holdfast.policy.settings import HANDLE
from holdfast.view.tokens import count

STUB_CHARS = 400
"""A text shorter than this gains nothing by giving way to a line about itself."""


class Shown(Struct, frozen=True):
    """A text that is shown whole: words of the user, or a result."""

    slot: int
    place: int
    part: Part
    text: str


def relieve(draft: Draft) -> Draft:
    """Return the draft with the largest texts spilled until the request is usable, or nothing is left to spill."""
    if not draft.settings.goal_share:
        return draft
    if draft.at_most <= draft.room.usable:
        return draft
    excess = draft.own(draft.at_most - draft.room.usable) + 1
    edits: list[Edit] = []
    blobs: list[Blob] = []
    for one in sorted(_shown(draft.branch), key=lambda one: (-len(one.text), one.slot, one.place)):
        if excess <= 0:
            break
        edit, blob = _spilled(one, draft)
        if edit.saves > 0:
            edits.append(edit)
            blobs.append(blob)
            excess -= edit.saves
    return draft.decide(tuple(edits), tuple(blobs))


def _shown(branch: Branch) -> Iterator[Shown]:
    for index in range(branch.keep, len(branch.slots)):
        message, edited = branch.messages[index], edited_parts(branch, index)
        if message.role not in {"user", "tool"} or None in edited:
            continue
        for place, part in enumerate(message.parts):
            text = part.text if isinstance(part, Text) else result_text(part) if isinstance(part, ToolResult) else ""
            if place not in edited and len(text) > STUB_CHARS:
                yield Shown(index, place, part, text)


def _spilled(one: Shown, draft: Draft) -> tuple[Edit, Blob]:
    """Return the edit that puts a preview in place of a text, or a line where a preview would be no shorter."""
    blob = Blob(sha256(one.text.encode("utf-8", "surrogatepass")).hexdigest(), one.text)
    handle = blob.hash[:HANDLE]
    short = preview(one.text, blob.hash, draft)
    if len(short) * 2 > len(one.text):
        short = f'[{len(one.text):,} characters left out here; recall(id="{handle}") returns them]'
    put = replaced(one.part, short) if isinstance(one.part, ToolResult) else Text(short)
    saves = count(one.text) - count(short)
    why = f"the request did not fit; {len(one.text):,} characters spilled, {len(short):,} stay"
    return Edit(Span(one.slot, one.slot + 1, one.place), (put,), "relief", why, saves, blob.hash), blob
