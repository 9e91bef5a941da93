"""Tool results at creation: a big one is spilled, with a preview left behind; so are the biggest of a big message.

Only *fresh* results are candidates, those no request has shown. A result the model has seen whole is *frozen*; one
that was replaced keeps its replacement byte for byte, because the decision is in the log (*mustReapply*).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct

from holdfast.model.branch import Branch
from holdfast.model.edits import Blob, Edit, Span
from holdfast.model.messages import result_text
from holdfast.model.parts import Media, Opaque, Text, ToolResult
from holdfast.policy.draft import Draft
from holdfast.policy.outline import outline
from holdfast.policy.settings import HANDLE
from holdfast.view.text import head_and_tail
from holdfast.view.tokens import count


class Candidate(Struct, frozen=True):
    """A fresh result that may be spilled; ``tokens`` are the estimator's."""

    slot: int
    part: int
    result: ToolResult
    text: str
    tokens: int


def limit_results(draft: Draft) -> Draft:
    """Return the draft with every fresh result within the limits of a result and of a message."""
    settings, room = draft.settings, draft.room
    if not settings.spill_chars:
        return draft
    most = draft.own(room.share(settings.spill_share)) if settings.spill_share else 0
    budget = draft.own(room.share(settings.message_share)) if settings.message_share else 0
    draft = _long_words(draft, budget)
    for group in _groups(draft.branch):
        fresh = list(_candidates(draft, group))
        big = [one for one in fresh if _is_big(one, settings.spill_chars, most)]
        rest = [one for one in fresh if one not in big]
        draft = _spill(draft, [*big, *_over_budget(draft, big, rest, settings.message_chars, budget)])
    return draft


def _long_words(draft: Draft, most: int) -> Draft:
    """Return the draft with fresh words of the user that are too long spilled, a preview left behind."""
    edits: list[Edit] = []
    blobs: list[Blob] = []
    for index in range(draft.branch.seen, len(draft.branch.slots) if most else 0):
        slot = draft.branch.slots[index]
        if slot.message.role != "user" or slot.size <= most:
            continue
        for place, part in enumerate(slot.message.parts):
            tokens = count(part.text) if isinstance(part, Text) else 0
            if isinstance(part, Text) and tokens > most:
                blob = Blob(sha256(part.text.encode("utf-8", "surrogatepass")).hexdigest(), part.text)
                shown = preview(part.text, blob.hash, draft)
                why = f"a message of {len(part.text):,} characters spilled, a preview of {len(shown):,} stays"
                span = Span(index, index + 1, place)
                edits.append(Edit(span, (Text(shown),), "spill", why, tokens - count(shown), blob.hash))
                blobs.append(blob)
    return draft.decide(tuple(edits), tuple(blobs))


def _is_big(one: Candidate, chars: int, tokens: int) -> bool:
    return len(one.text) > chars or bool(tokens and one.tokens > tokens)


def _groups(branch: Branch) -> Iterator[range]:
    """Yield the fresh slots, those of one message to the API together: what stands between two answers."""
    start = branch.seen
    for index in range(branch.seen, len(branch.slots) + 1):
        if index == len(branch.slots) or branch.slots[index].message.role == "assistant":
            if index > start:
                yield range(start, index)
            start = index + 1


def _candidates(draft: Draft, slots: range) -> Iterator[Candidate]:
    branch = draft.branch
    for index in slots:
        slot, edited = branch.slots[index], edited_parts(branch, index)
        if None in edited:
            continue
        results = slot.message.results
        for part, result in enumerate(slot.message.parts):
            if not isinstance(result, ToolResult) or part in edited:
                continue
            if tool_name(branch, index, result) in draft.settings.spill_exempt:
                continue
            text = result_text(result)
            if len(text) > draft.settings.preview_chars:
                tokens = slot.size if len(results) == 1 and len(slot.message.parts) == 1 else count(text)
                yield Candidate(index, part, result, text, tokens)


def edited_parts(branch: Branch, index: int) -> set[int | None]:
    """Return the parts of a slot that a recorded edit stands for; nothing among them is the whole slot."""
    return {edit.span.part for edit in branch.edits.get(index, ())}


def tool_name(branch: Branch, index: int, result: ToolResult) -> str:
    """Return the name of the tool that gave ``result``, looked up at its call where the result does not say."""
    if result.name:
        return result.name
    home = branch.callers.get(result.call_id, index)
    if home < index:
        for call in branch.slots[home].message.calls:
            if call.id == result.call_id:
                return call.name
    return ""


def _over_budget(
    draft: Draft, gone: list[Candidate], rest: list[Candidate], chars: int, tokens: int
) -> list[Candidate]:
    """Return the largest of ``rest`` that must go too so that the message is within its budget."""
    small = draft.settings.preview_chars
    held_chars = sum(len(one.text) for one in rest) + small * len(gone)
    held_tokens = sum(one.tokens for one in rest) + small // 4 * len(gone)
    more: list[Candidate] = []
    for one in sorted(rest, key=lambda one: (-one.tokens, one.slot, one.part)):
        if (not chars or held_chars <= chars) and (not tokens or held_tokens <= tokens):
            break
        more.append(one)
        held_chars -= len(one.text) - small
        held_tokens -= one.tokens - small // 4
    return more


def _spill(draft: Draft, candidates: list[Candidate]) -> Draft:
    edits: list[Edit] = []
    blobs: list[Blob] = []
    for one in sorted(candidates, key=lambda one: (one.slot, one.part)):
        blob = Blob(sha256(one.text.encode("utf-8", "surrogatepass")).hexdigest(), one.text)
        shown = preview(one.text, blob.hash, draft)
        saves = one.tokens - count(shown)
        if len(shown) < len(one.text) and saves > 0:
            put = replaced(one.result, shown)
            why = f"result of {len(one.text):,} characters spilled, a preview of {len(shown):,} stays"
            edits.append(Edit(Span(one.slot, one.slot + 1, one.part), (put,), "spill", why, saves, blob.hash))
            blobs.append(blob)
    return draft.decide(tuple(edits), tuple(blobs))


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
