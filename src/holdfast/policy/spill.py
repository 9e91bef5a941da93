"""Spilling: a text moves to a blob, and a preview or a line stays in its place, with a handle to read it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from msgspec import Struct

from holdfast.model.branch import Branch
from holdfast.model.edits import Blob, Edit, Span
from holdfast.model.messages import result_text
from holdfast.model.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.policy.draft import Draft
from holdfast.policy.outline import outline
from holdfast.policy.settings import HANDLE, SMALL_TEXT, STUB_CHARS
from holdfast.view.text import head_and_tail
from holdfast.view.tokens import count


class Whole(Struct, frozen=True):
    """A text that the projection shows whole: words of the user, or a result. ``tokens`` are the estimator's."""

    slot: int
    place: int
    part: Part
    text: str
    tokens: int

    @property
    def is_result(self) -> bool:
        """Whether a tool said it."""
        return isinstance(self.part, ToolResult)


def wholes(branch: Branch, slots: Iterable[int]) -> Iterator[Whole]:
    """Yield the texts of ``slots`` that are shown whole and long enough to give way to something shorter."""
    for index in slots:
        message, edited = branch.messages[index], edited_parts(branch, index)
        if message.role not in {"user", "tool"} or None in edited:
            continue
        alone = len(message.parts) == 1
        for place, part in enumerate(message.parts):
            text = part.text if isinstance(part, Text) else result_text(part) if isinstance(part, ToolResult) else ""
            if place not in edited and len(text) > STUB_CHARS:
                yield Whole(index, place, part, text, branch.slots[index].size if alone else count(text))


def edited_parts(branch: Branch, index: int) -> set[int | None]:
    """Return the parts of a slot that a recorded edit stands for; nothing among them is the whole slot."""
    return {edit.span.part for edit in branch.edits.get(index, ())}


def spill(draft: Draft, texts: Iterable[Whole], rule: str) -> Draft:
    """Return the draft with ``texts`` spilled, those left out for which nothing shorter could stay."""
    edits: list[Edit] = []
    blobs: list[Blob] = []
    for one in sorted(texts, key=lambda one: (one.slot, one.place)):
        edit, blob = spilled(draft, one, rule)
        if edit.saves > 0:
            edits.append(edit)
            blobs.append(blob)
    return draft.decide(tuple(edits), tuple(blobs))


def spilled(draft: Draft, one: Whole, rule: str) -> tuple[Edit, Blob]:
    """Return the edit that puts a preview in place of a text, or a line where a preview would be hardly shorter."""
    blob = Blob(sha256(one.text.encode("utf-8", "surrogatepass")).hexdigest(), one.text)
    short = preview(one.text, blob.hash, draft)
    if len(short) > 0.9 * len(one.text) or len(one.text) <= SMALL_TEXT:
        short = f'[{len(one.text):,} characters left out here; recall(id="{blob.hash[:HANDLE]}") returns them]'
    put = replaced(one.part, short) if isinstance(one.part, ToolResult) else Text(short)
    saves = count(one.text) - count(short)
    why = f"{len(one.text):,} characters spilled, {len(short):,} stay"
    return Edit(Span(one.slot, one.slot + 1, one.place), (put,), rule, why, saves, blob.hash), blob


def replaced(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` in place of its words; media and what we do not know stay."""
    others = tuple(part for part in result.content if isinstance(part, Media | Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *others), result.is_error)


def preview(text: str, hash_: str, draft: Draft) -> str:
    """Return the block that stands for a spilled text: totals, the handle, its ends, and an outline of the rest."""
    settings = draft.settings
    head, tail = head_and_tail(text, settings.preview_chars, settings.preview_tail)
    lines = text.count("\n") + 1
    first = head.count("\n") + 1
    last = lines - tail.count("\n") if tail else lines + 1
    middle = text[len(head) : len(text) - len(tail)]
    handle = hash_[:HANDLE]
    parts = [
        f'<persisted_tool_result id="{handle}" chars="{len(text)}" lines="{lines}">',
        f"Lines 1-{first}:",
        head,
        f'[{len(middle):,} characters left out here; recall(id="{handle}", lines="{first}-{last}") returns them]',
    ]
    most = min(settings.preview_outline, draft.room.share(settings.preview_outline_share))
    listed = outline(middle, most, first)
    if listed:
        parts += ["Lines among them, by number:", *listed]
    if tail:
        parts += [f"Lines {last}-{lines}:", tail]
    return "\n".join([*parts, "</persisted_tool_result>"])
