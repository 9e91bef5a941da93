"""Nothing forged: what looks like a tag of ours in somebody else's words is made harmless.

A block of ours is true because a decision in the log put it there, never because of its look. So fresh words of users
and tools that hold its tag, whole or broken or spread over parts, are shown with the tag escaped; the log keeps them as
they were said.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message, part_text
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import count
from holdfast.planning.builder import Draft
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import shown_slots
from holdfast.state.edits import Edit, Span

TAG = "persisted_tool_result"
"""The tag of the block that stands for a spilled text; no other tag is ours."""
NEUTRALISE = "neutralise"
"""Rule of the edits that escape look-alikes: a part that has such an edit is still shown whole."""
ESCAPE = "&lt;"
"""What stands for the bracket of a look-alike."""
_UNSEEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
"""What cannot be seen: controls, formats, selectors of variants, joiners and fillers."""
_WIDE = "\\u02c2\\u1438\\u2039\\u2329\\u276e\\u27e8\\u3008\\ufe64\\uff1c"
"""What looks like the bracket beyond ASCII."""
_JOINTS = rf"[\s_\-\u2010-\u2015\u2212\ufe58\ufe63\uff0d\uff3f{_UNSEEN}]*+"
_GAP = rf"[\s/\\!?\[\-{_UNSEEN}]*+"
_OTHER_NAME = rf"(?:\w[\w.\-:{_UNSEEN}]*[:\[]{_GAP})?"
_NAME = _JOINTS.join(f"[{_UNSEEN}]*+".join(word) for word in TAG.split("_"))
_AHEAD = f"(?={_GAP}{_OTHER_NAME}(?i:{_NAME}))"
"""Our tag's name behind its bracket: opening, closing or neither, also behind the name of a space or in a section."""
_PLAIN, _ANY = re.compile(f"<{_AHEAD}"), re.compile(f"[<{_WIDE}]{_AHEAD}")


def look_alikes(text: str) -> list[int]:
    """Return where in ``text`` the brackets of look-alikes of our tag are."""
    return [found.start() for found in _pattern(text).finditer(text)]


def _pattern(text: str) -> re.Pattern[str]:
    """Return what finds the brackets in ``text``: where all is ASCII there is one to look for, which is quick."""
    return _PLAIN if text.isascii() else _ANY


def harmless(text: str) -> str:
    """Return ``text`` with the bracket of every look-alike of our tag escaped; the same object where there is none."""
    return harmless_texts((text,))[0]


def harmless_texts(texts: Sequence[str], ours: Iterable[str] = ()) -> list[str]:
    """Return ``texts``, shown one behind the other, with the brackets of look-alikes escaped, in whichever they are.

    Whether APIs put a line end between them or nothing makes no difference: a look-alike may have one anywhere.
    ``ours`` is what decisions put there: word for word it stays as it is.
    """
    found = look_alikes("".join(texts))
    if not found:
        return list(texts)
    told: list[str] = []
    start = 0
    for text in texts:
        stop = start + len(text)
        mine = [at - start for at in found[bisect_left(found, start) : bisect_left(found, stop)]]
        told.append(_escaped(text, mine, ours) if mine else text)
        start = stop
    return told


def _escaped(text: str, brackets: Iterable[int], ours: Iterable[str]) -> str:
    """Return ``text`` with its ``brackets`` escaped but those within what is ours; the same object where all are."""
    spans = sorted(span for block in ours for span in _occurrences(text, block))
    pieces: list[str] = []
    start = 0
    for at in brackets:
        behind = bisect_right(spans, (at, len(text)))
        if not behind or at >= spans[behind - 1][1]:
            pieces += (text[start:at], ESCAPE)
            start = at + 1
    return "".join([*pieces, text[start:]]) if pieces else text


def _occurrences(text: str, block: str) -> Iterator[tuple[int, int]]:
    """Yield where ``block`` stands in ``text``."""
    at = text.find(block)
    while at >= 0:
        yield at, at + len(block)
        at = text.find(block, at + len(block))


def neutralise(draft: Draft) -> Draft:
    """Return the draft with every look-alike of our tag escaped in what users and tools newly said.

    What was seen stays as it was seen, and so does what is word for word a block in force on this branch.
    """
    branch, first = draft.branch, max(draft.branch.seen, draft.branch.keep)
    suspects = {first + at for at in _suspects(branch.messages.slice(first))}
    if not suspects:
        return draft
    ours, shown = blocks(branch), shown_slots(branch, first)
    return draft.decide(tuple([edit for at in shown if at in suspects for edit in _edits(branch, at, ours)]))


def harmless_summary(texts: Sequence[str], branch: Branch) -> list[str]:
    """Return the texts of a summary of ``branch`` with look-alikes escaped; blocks in force may be quoted from."""
    if not _holds("".join(texts)):
        return list(texts)
    ours = blocks(branch)
    return harmless_texts(texts, (*ours, *(block.partition("\n")[0] for block in ours)))


def blocks(branch: Branch) -> tuple[str, ...]:
    """Return the blocks that decisions in force show, word for word."""
    words = [
        part_text(put)
        for edits in branch.edits.values()
        for edit in edits
        for put in edit.put
        if edit.rule != NEUTRALISE and not isinstance(put, Message)
    ]
    return tuple([text for text in words if text.startswith(f"<{TAG} ") and text.endswith(f"</{TAG}>")])


_JUDGED = frozenset({"user", "tool"})
"""Who may say what is not ours."""


def _suspects(messages: Sequence[Message]) -> list[int]:
    """Return which messages hold a look-alike, of those who may say what is not ours.

    Where all is ASCII and no bracket is, none is looked for.
    """
    looked_at = {
        at: message
        for at, message in enumerate(messages)
        if message.role in _JUDGED
        for part in message.parts
        for one in (part.content if type(part) is ToolResult else (part,))
        if type(one) is Text and ("<" in one.text or not one.text.isascii())
    }
    return [at for at, message in looked_at.items() if _is_suspect(message)]


def _is_suspect(message: Message) -> bool:
    """Return whether a message as it was said holds a look-alike, be it spread over its parts."""
    said = []
    for part in message.parts:
        if type(part) is Text:
            said.append(part.text)
        elif type(part) is ToolResult and _holds("".join([one.text for one in part.content if type(one) is Text])):
            return True
    return _holds("".join(said))


def _holds(text: str) -> bool:
    return _pattern(text).search(text) is not None


def _edits(branch: Branch, index: int, ours: tuple[str, ...]) -> Iterator[Edit]:
    """Yield the edits that escape the look-alikes in what a slot shows as it was said; none where every one is ours."""
    edited = {edit.span.part for edit in branch.edits.get(index, ())}
    parts = {place: part for place, part in enumerate(branch.messages[index].parts) if place not in edited}
    if None in edited:
        return
    for place, new in zip(parts, _told(tuple(parts.values()), ours), strict=True):
        if new is not parts[place]:
            old, words = part_text(parts[place]), part_text(new)
            number = (len(words) - len(old)) // (len(ESCAPE) - 1)
            why = f"{number} look-alikes of <{TAG}> escaped: no decision put them there"
            yield Edit(Span(index, index + 1, place), (new,), NEUTRALISE, why, count(old) - count(words))


def _told(parts: Sequence[Part], ours: tuple[str, ...]) -> list[Part]:
    """Return ``parts`` with look-alikes in their texts, and in those of each result, escaped; others are the same."""
    said = iter(_escaped_texts(_texts(parts), ours))
    return [next(said) if isinstance(part, Text) else _result(part, ours) for part in parts]


def _result(part: Part, ours: tuple[str, ...]) -> Part:
    """Return a result with the look-alikes in its texts escaped; the same where there is none, as of any other part."""
    if not isinstance(part, ToolResult):
        return part
    old = _texts(part.content)
    new = _escaped_texts(old, ours)
    if all(text is was for text, was in zip(new, old, strict=True)):
        return part
    said = iter(new)
    content = tuple([next(said) if isinstance(one, Text) else one for one in part.content])
    return replace(part, content=content, raw=None)


def _escaped_texts(texts: Sequence[Text], ours: tuple[str, ...]) -> list[Text]:
    """Return ``texts``, shown one behind the other, with look-alikes escaped; those without one are the same."""
    told = harmless_texts([text.text for text in texts], ours)
    return [text if new is text.text else Text(new) for text, new in zip(texts, told, strict=True)]


def _texts(parts: Sequence[Part]) -> list[Text]:
    return [part for part in parts if isinstance(part, Text)]
