"""As OpenClaw drops images: what the model has looked at and answered is not sent again."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.messages.message import media_in, with_words
from holdfast.messages.parts import Media
from holdfast.messages.size.tokens import IMAGE_TOKENS, count
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import shown_parts
from holdfast.state.branch.branch import Branch, is_spared
from holdfast.state.branch.view import shown_slots
from holdfast.state.edits import Edit, Span

SEEN = "[Image left out: the model has seen it and answered]"
"""What stands in place of an image that was processed."""


def seen_images(draft: Draft) -> list[Edit]:
    """Return the edits that leave out images behind the newest answered turns, so many as the policy keeps."""
    branch, turns = draft.branch, draft.settings.image_turns
    if turns < 0 or not branch.media:
        return []
    edge = _edge(branch, turns)
    return [edit for index in shown_slots(branch, branch.keep) if index < edge for edit in _edits(branch, index)]


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
    if branch.messages[index].role == "assistant":
        return
    for place, part in shown_parts(branch, index).items():
        saves = sum(IMAGE_TOKENS - count(words) for words in map(_words, media_in(part)) if words)
        if saves and not is_spared(branch, index, place):
            yield Edit(Span(index, index + 1, place), (with_words(part, _words),), "image", "answered images", saves)


def _words(media: Media) -> str:
    return SEEN if media.kind == "image" else ""
