"""Media: images and documents have a budget of their own, in number and in bytes; the oldest give way to a line."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.model.branch import Branch, shown
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import placeholder
from holdfast.model.parts import Media, Part, Text, ToolResult
from holdfast.policy.draft import Draft
from holdfast.view.tokens import DOCUMENT_TOKENS, IMAGE_TOKENS, count


def limit_media(draft: Draft) -> Draft:
    """Return the draft with its oldest media replaced, if there are too many or they are too big.

    When over, half of the budget is made free in one step, so that the prefix does not break at each new image.
    """
    settings, dialect = draft.settings, draft.target.dialect
    most = min(settings.media_most or dialect.max_images, dialect.max_images)
    bytes_ = settings.media_bytes or dialect.max_bytes
    if draft.branch.media <= most and draft.branch.media_bytes <= bytes_:
        return draft
    found = list(_media(draft.branch))
    number = sum(held for _, _, _, held, _ in found)
    size = sum(bytes_held for _, _, _, _, bytes_held in found)
    if number <= most and size <= bytes_:
        return draft
    edits: list[Edit] = []
    for slot, place, part, held, bytes_held in found:
        if number <= most // 2 and size <= bytes_ // 2:
            break
        put, saves = _replaced(part)
        why = f"{number} media of {size:,} bytes; at most {most} of {bytes_:,} are sent"
        edits.append(Edit(Span(slot, slot + 1, place), (put,), "media", why, saves))
        number -= held
        size -= bytes_held
    return draft.decide(tuple(edits))


def _media(branch: Branch) -> Iterator[tuple[int, int, Part, int, int]]:
    """Yield what holds media, oldest first: slot, part, the part as shown, how many, how many bytes."""
    for index in range(branch.keep, len(branch.slots)):
        for slot in shown(branch, index)[:1]:
            for place, part in enumerate(slot.message.parts):
                inner = part.content if isinstance(part, ToolResult) else (part,)
                held = [one for one in inner if isinstance(one, Media)]
                if held:
                    yield index, place, part, len(held), sum(one.size for one in held)


def _replaced(part: Part) -> tuple[Part, int]:
    """Return ``part`` with words in place of media, and the tokens that saves."""
    if isinstance(part, Media):
        text = placeholder(part)
        return Text(text), _tokens(part) - count(text)
    if not isinstance(part, ToolResult):
        return part, 0
    content = tuple(Text(placeholder(one)) if isinstance(one, Media) else one for one in part.content)
    saves = sum(_tokens(one) - count(placeholder(one)) for one in part.content if isinstance(one, Media))
    return replace(part, content=content, raw=None), saves


def _tokens(media: Media) -> int:
    return DOCUMENT_TOKENS if media.kind == "document" else IMAGE_TOKENS
