"""As OpenClaw drops images: what the model has looked at and answered is not sent again."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.messages.message import collect_media_in_parts, replace_media_with_text
from holdfast.messages.parts import Media
from holdfast.messages.size.tokens import IMAGE_TOKENS, estimate_text_tokens
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import map_shown_parts
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.edits import Edit, Span
from holdfast.state.view import list_shown_indexes

SEEN_IMAGE_TEXT = "[Image left out: the model has seen it and answered]"
"""What stands in place of an image that was processed."""


def build_seen_image_edits(builder: PlanBuilder, turns: int) -> list[Edit]:
    """Return the edits that leave out images but for those of the newest ``turns`` answered turns; -1 keeps all."""
    state = builder.state
    if turns < 0 or not state.view.media_count:
        return []
    edge = _find_image_cutoff(state, turns)
    return [
        edit
        for index in list_shown_indexes(state, state.view.first_kept)
        if index < edge
        for edit in _build_image_edits(state, index)
    ]


def _find_image_cutoff(state: ConversationState, turns: int) -> int:
    """Return the slot of the newest answer, or where the newest ``turns`` answered turns begin, if there are more."""
    starts: list[int] = []
    start = last = state.view.first_kept
    for index in range(state.view.first_kept, len(state.history.sized_messages)):
        message = state.history.messages[index]
        if message.is_turn_start:
            start = index
        elif message.role == "assistant":
            last = index
            starts += [start] if start not in starts[-1:] else []
    if not turns:
        return last
    return starts[-turns] if len(starts) >= turns else state.view.first_kept


def _build_image_edits(state: ConversationState, index: int) -> Iterator[Edit]:
    if state.history.messages[index].role == "assistant":
        return
    for place, part in map_shown_parts(state, index).items():
        saves = sum(
            IMAGE_TOKENS - estimate_text_tokens(words)
            for words in map(_describe_seen_image, collect_media_in_parts(part))
            if words
        )
        if saves and not is_protected_part(state, index, place):
            yield Edit(
                Span(index, index + 1, place),
                (replace_media_with_text(part, _describe_seen_image),),
                "image",
                "answered images",
                saves,
            )


def _describe_seen_image(media: Media) -> str:
    return SEEN_IMAGE_TEXT if media.kind == "image" else ""
