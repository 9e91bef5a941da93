"""Spilling: a text moves to a blob, and a preview or a line stays in its place, with a handle to read it back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import part_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.messages.size.tokens import count
from holdfast.messages.size.weighted_chars import CHARS_A_TOKEN
from holdfast.messages.text.cutting import fingerprint, head_and_tail
from holdfast.planning.builder import Draft
from holdfast.planning.extract.outline import outline
from holdfast.planning.settings import HANDLE, JSON_CHARS, SMALL_TEXT, STUB_CHARS
from holdfast.planning.stages.escape_tags import NEUTRALISE, TAG, harmless
from holdfast.planning.stages.multi_text import left_out, many_texts, middle
from holdfast.state.branch.branch import Branch
from holdfast.state.edits import Blob, Edit, Span


class Whole(Struct, frozen=True):
    """A text that the projection shows whole: words of the user, or a result."""

    slot: int
    place: int
    part: Part
    text: str
    """As it was said; it is shown with look-alikes of our tags escaped."""
    tokens: int
    """Estimator tokens, as it is shown."""
    saved: int = 0
    """What escaping saved: 0, or less where it added some."""
    room: int = 0
    """Estimator tokens that its preview may take where that is more than the usual one; 0 = no more."""
    several: tuple[int, ...] = ()
    """The parts that it is made of where these give way together: texts of a message that has many."""

    @property
    def places(self) -> tuple[int, ...]:
        """The parts that say it."""
        return self.several or (self.place,)

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
        escaped = {edit.span.part: edit.saves for edit in branch.edits.get(index, ()) if edit.rule == NEUTRALISE}
        small = many_texts(message)
        for place, part in enumerate(message.parts):
            text = part_text(part)
            if place not in edited and len(text) > STUB_CHARS and place not in small:
                size, saved = branch.slots[index].size if alone else count(text), escaped.get(place, 0)
                yield Whole(index, place, part, text, size - saved, saved)
        if small and edited.isdisjoint(small):
            text, saved = "\n".join(small.values()), sum(escaped.get(place, 0) for place in small)
            first = next(iter(small))
            yield Whole(index, first, message.parts[first], text, count(text) - saved, saved, several=tuple(small))


def edited_parts(branch: Branch, index: int) -> set[int | None]:
    """Return the parts of a slot that gave way to a recorded edit; nothing among them is the whole slot."""
    return {edit.span.part for edit in branch.edits.get(index, ()) if edit.rule != NEUTRALISE}


def spill(draft: Draft, texts: Iterable[Whole], rule: str) -> Draft:
    """Return the draft with ``texts`` spilled, those left out for which nothing shorter could stay."""
    every = sorted(texts, key=lambda one: (one.slot, one.place))
    return draft.give_way(pair for one in every for pair in given_way(draft, one, rule))


def given_way(draft: Draft, one: Whole, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits by which a text gives way, with what is to be stored; none where nothing shorter could stay."""
    pairs = _without_middle(draft, one, rule) if one.several else [spilled(draft, one, rule)]
    return [*pairs] if sum(edit.saves for edit, _ in pairs) > 0 else []


def _without_middle(draft: Draft, one: Whole, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that leave as many texts of a message, from its start and its end, as a preview may have."""
    said, most = draft.branch.messages[one.slot].parts, max(one.room, usual(draft) // CHARS_A_TOKEN)

    def size(at: int) -> int:
        return count(part_text(said[one.several[at]]))

    gone = middle(len(one.several), size, most, draft.settings.preview_tail)
    return left_out(draft, one.slot, one.several[gone.start : gone.stop], rule)


def spilled(draft: Draft, one: Whole, rule: str) -> tuple[Edit, Blob]:
    """Return the edit that puts a preview in place of a text, or a line where a preview would be hardly shorter.

    It saves nothing where even the line is no shorter in tokens: then the text had better stay.
    """
    blob = Blob(fingerprint(one.text), one.text)
    edits = (
        shown_as(one, short, blob, rule, f"{len(one.text):,} characters spilled, {len(short):,} stay")
        for short in _stand_ins(one, blob, draft)
    )
    best = next(edits)
    return (best if best.saves > 0 else next(edits, best)), blob


def shown_as(one: Whole, short: str, blob: Blob, rule: str, why: str) -> Edit:
    """Return the edit that shows ``short`` in place of a text that is stored as ``blob``."""
    put = replaced(one.part, short) if isinstance(one.part, ToolResult) else Text(short)
    saves = count(one.text) - one.saved - count(short)
    return Edit(Span(one.slot, one.slot + 1, one.place), (put,), rule, why, saves, blob.hash)


def _stand_ins(one: Whole, blob: Blob, draft: Draft) -> Iterator[str]:
    """Yield what may stand for a text, the best first: a preview if that is shorter by a tenth, then a line."""
    if len(one.text) > SMALL_TEXT:
        yield from islice((block for block in _previews(one, blob, draft) if len(block) <= 0.9 * len(one.text)), 1)
    yield f'[{len(one.text):,} characters left out here; recall(id="{blob.hash[:HANDLE]}") returns them]'


def _previews(one: Whole, blob: Blob, draft: Draft) -> Iterator[str]:
    """Yield previews of a text, the longest first: those that its room takes, then the usual one."""
    settings = draft.settings
    chars = len(one.text) * one.room // max(1, one.tokens) - _outlined(draft)
    while chars > settings.preview_chars:
        block = preview(one.text, blob.hash, draft, chars)
        if count(block) <= one.room:
            yield block
        chars = chars * 3 // 4
    most = int(0.8 * len(one.text))
    is_long = settings.preview_chars <= most
    yield preview(one.text, blob.hash, draft, settings.preview_chars if is_long else most - _outlined(draft))


def replaced(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` in place of its words; media and what we do not know stay."""
    others = tuple(part for part in result.content if isinstance(part, Media | Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *others), result.is_error)


def preview(text: str, hash_: str, draft: Draft, chars: int = 0) -> str:
    """Return the block that stands for a spilled text: totals, the handle, its ends, and an outline of the rest.

    The ends have ``chars`` characters together, by default those that the settings say. Lines end with a newline and
    nothing else; a line that is cut counts as shown and as left out. Of what it quotes, look-alikes of its own tag are
    escaped.
    """
    settings, handle = draft.settings, hash_[:HANDLE]
    head, tail = head_and_tail(text, chars or settings.preview_chars, settings.preview_tail)
    start, stop = len(head), len(text) - len(tail)
    lines = text.count("\n") + 1
    first, last = head.count("\n") + 1, lines - tail.count("\n")
    listed = outline(text, _outlined(draft), first, start, stop)
    quoted = [
        *([f"Lines 1-{first}:", head] if head else []),
        f'[{stop - start:,} characters left out here; recall(id="{handle}", lines="{first}-{last}") returns them]',
        *(["Lines among them, by number:", *listed] if listed else []),
        *([f"Lines {last}-{lines}:", tail] if tail else []),
    ]
    kind = ' type="json"' if is_json(text) else ""
    opening = f'<{TAG} id="{handle}" chars="{len(text)}" lines="{lines}"{kind}>'
    return "\n".join([opening, harmless("\n".join(quoted)), f"</{TAG}>"])


def usual(draft: Draft) -> int:
    """Return about how many characters the preview of a long text has."""
    return draft.settings.preview_chars + _outlined(draft)


def _outlined(draft: Draft) -> int:
    """Return the characters that an outline may have."""
    return min(draft.settings.preview_outline, draft.room.share(draft.settings.preview_outline_share))


_JSON = re.compile(r"[ \t\r\n]*[\[{]")
_raw = Decoder(Raw)


def is_json(text: str) -> bool:
    """Return whether ``text`` is a JSON object or array; nothing is made of it."""
    if not _JSON.match(text) or not (text.isascii() or len(text) <= JSON_CHARS):
        return False
    try:
        _raw.decode(text if text.isascii() else text.encode())
    except (DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True
