"""As OpenClaw drops images: what the model has looked at and answered is not sent again."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.model.branch import Branch, is_spared
from holdfast.model.edits import Edit, Span
from holdfast.model.parts import Media, Part, Text, ToolResult
from holdfast.model.projected import shown
from holdfast.policy.draft import Draft
from holdfast.view.tokens import IMAGE_TOKENS, count

SEEN = "[Image left out: the model has seen it and answered]"
"""What stands in place of an image that was processed."""


def seen_images(draft: Draft) -> list[Edit]:
    """Return the edits that leave out images behind the newest answered turns, so many as the policy keeps."""
    branch, turns = draft.branch, draft.settings.image_turns
    if turns < 0 or not branch.media:
        return []
    return [edit for index in range(branch.keep, _edge(branch, turns)) for edit in _edits(branch, index)]


def _edge(branch: Branch, turns: int) -> int:
    """Return the slot of the newest answer, or where the newest ``turns`` answered turns begin, if there are more."""
    starts: list[int] = []
    start = last = branch.keep
    for index in range(branch.keep, len(branch.slots)):
        message = branch.messages[index]
        if message.starts_turn:
            start = index
        elif message.role == "assistant":
            last = index
            starts += [start] if start not in starts[-1:] else []
    if not turns:
        return last
    return starts[-turns] if len(starts) >= turns else branch.keep


def _edits(branch: Branch, index: int) -> Iterator[Edit]:
    found = shown(branch, index)
    if len(found) != 1 or found[0].message.role == "assistant":
        return
    if len(found[0].message.parts) != len(branch.messages[index].parts):
        return
    for place, part in enumerate(found[0].message.parts):
        images = sum(map(_is_image, part.content if isinstance(part, ToolResult) else (part,)))
        if images and not is_spared(branch, index, place):
            saves = images * (IMAGE_TOKENS - count(SEEN))
            yield Edit(Span(index, index + 1, place), (_without(part),), "image", "answered images", saves)


def _is_image(part: Part) -> bool:
    return isinstance(part, Media) and part.kind == "image"


def _without(part: Part) -> Part:
    if not isinstance(part, ToolResult):
        return Text(SEEN)
    return replace(part, content=tuple(Text(SEEN) if _is_image(one) else one for one in part.content), raw=None)
