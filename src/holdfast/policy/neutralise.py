"""Nothing forged: what looks like a tag of ours in somebody else's words is made harmless.

A block of ours is true because a decision in the log put it there, never because of its look. So fresh words of users
and tools that hold its tag, whole or broken, are shown with the tag escaped; the log keeps them as they were said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Part, Text, ToolResult
from holdfast.policy.draft import Draft
from holdfast.view.tokens import count

TAG = "persisted_tool_result"
"""The tag of the block that stands for a spilled text; no other tag is ours."""
NEUTRALISE = "neutralise"
"""Rule of the edits that escape look-alikes: a part that has such an edit is still shown whole."""
ESCAPE = "&lt;"
"""What stands for the bracket of a look-alike."""
_LOOK_ALIKE = re.compile(
    r"<(?=[\s/\\!?\x00-\x1f\x7f\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*(?i:persisted[\s_-]*tool[\s_-]*result))"
)
"""The bracket before our tag's name: opening, closing or neither, with whatever cannot be seen between them."""


def harmless(text: str, ours: tuple[str, ...] = ()) -> str:
    """Return ``text`` with the bracket of every look-alike of our tag escaped; the same object where there is none.

    ``ours`` is what decisions put there, the longer before its beginning: word for word it stays as it is.
    """
    if not _LOOK_ALIKE.search(text):
        return text
    block = next((block for block in ours if block in text), None)
    if block is None:
        return _LOOK_ALIKE.sub(ESCAPE, text)
    return block.join([harmless(piece, ours) for piece in text.split(block)])


def neutralise(draft: Draft) -> Draft:
    """Return the draft with every look-alike of our tag escaped in what users and tools newly said.

    What was seen stays as it was seen, and so does what is word for word a block in force on this branch.
    """
    branch = draft.branch
    fresh = range(max(branch.seen, branch.keep), len(branch.slots))
    suspects = [one for index in fresh for one in _suspects(branch, index)]
    ours = blocks(branch) if suspects else ()
    return draft.decide(tuple([edit for one in suspects for edit in _edits(*one, ours)]))


def harmless_summary(text: str, branch: Branch) -> str:
    """Return a summary of ``branch`` with every look-alike in it escaped; of blocks in force it may quote the start."""
    if not _LOOK_ALIKE.search(text):
        return text
    ours = blocks(branch)
    return harmless(text, (*ours, *(block.partition("\n")[0] for block in ours)))


def blocks(branch: Branch) -> tuple[str, ...]:
    """Return the blocks that decisions in force show, word for word."""
    words = [
        _words(put)
        for edits in branch.edits.values()
        for edit in edits
        for put in edit.put
        if edit.rule != NEUTRALISE and not isinstance(put, Message)
    ]
    return tuple([text for text in words if text.startswith(f"<{TAG} ") and text.endswith(f"</{TAG}>")])


def _suspects(branch: Branch, index: int) -> Iterator[tuple[int, int, Part]]:
    """Yield the parts of a slot that are shown as they were said and hold a look-alike: slot, place and part."""
    message = branch.messages[index]
    edited = {edit.span.part for edit in branch.edits.get(index, ())}
    if message.role not in {"user", "tool"} or None in edited:
        return
    for place, part in enumerate(message.parts):
        if place not in edited and any(_LOOK_ALIKE.search(text.text) for text in _texts(part)):
            yield index, place, part


def _edits(slot: int, place: int, part: Part, ours: tuple[str, ...]) -> Iterator[Edit]:
    """Yield the edit that escapes the look-alikes in ``part``; nothing where every one is ours."""
    old, new = _words(part), _words(escaped := _escaped(part, ours))
    number = (len(new) - len(old)) // (len(ESCAPE) - 1)
    if number:
        why = f"{number} look-alikes of <{TAG}> escaped: no decision put them there"
        yield Edit(Span(slot, slot + 1, place), (escaped,), NEUTRALISE, why, count(old) - count(new))


def _escaped(part: Part, ours: tuple[str, ...]) -> Part:
    """Return ``part`` with its look-alikes escaped; texts in it without one stay as they came."""
    if isinstance(part, ToolResult):
        content = tuple([_told(one, ours) if isinstance(one, Text) else one for one in part.content])
        return replace(part, content=content, raw=None)
    return _told(part, ours) if isinstance(part, Text) else part


def _told(text: Text, ours: tuple[str, ...]) -> Text:
    escaped = harmless(text.text, ours)
    return text if escaped == text.text else Text(escaped)


def _texts(part: Part) -> tuple[Text, ...]:
    if isinstance(part, ToolResult):
        return tuple([one for one in part.content if isinstance(one, Text)])
    return (part,) if isinstance(part, Text) else ()


def _words(part: Part) -> str:
    if isinstance(part, ToolResult):
        return result_text(part)
    return part.text if isinstance(part, Text) else ""
