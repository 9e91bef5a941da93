"""OpenClaw's rule for images: an image that the model has seen and answered is not sent again."""

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
"""Text in place of an image that was answered."""


def build_seen_image_edits(builder: PlanBuilder, turns: int) -> list[Edit]:
    """Return the edits that drop images before the newest ``turns`` answered turns; -1 keeps all images."""
    state = builder.state
    if turns < 0 or not state.view.media_count:
        return []
    cutoff = _find_image_cutoff(state, turns)
    edits: list[Edit] = []
    for index in list_shown_indexes(state, state.view.first_kept):
        if index < cutoff:
            edits += _build_image_edits(state, index)
    return edits


def _find_image_cutoff(state: ConversationState, turns: int) -> int:
    """Return the start of the newest ``turns`` answered turns; for 0 turns, the newest answer.

    If fewer turns were answered, return the first kept message, so that no image is dropped.
    """
    answered_turn_starts: list[int] = []
    turn_start = last_answer = state.view.first_kept
    for index in range(state.view.first_kept, len(state.history.sized_messages)):
        message = state.history.messages[index]
        if message.is_turn_start:
            turn_start = index
        elif message.role == "assistant":
            last_answer = index
            if turn_start not in answered_turn_starts[-1:]:
                answered_turn_starts.append(turn_start)
    if not turns:
        return last_answer
    if len(answered_turn_starts) < turns:
        return state.view.first_kept
    return answered_turn_starts[-turns]


def _build_image_edits(state: ConversationState, index: int) -> Iterator[Edit]:
    """Yield an edit for each part of message ``index`` that shows images; answers are left alone."""
    if state.history.messages[index].role == "assistant":
        return
    for part_index, part in map_shown_parts(state, index).items():
        saved_tokens = 0
        for media in collect_media_in_parts(part):
            description = _describe_seen_image(media)
            if description:
                saved_tokens += IMAGE_TOKENS - estimate_text_tokens(description)
        if saved_tokens and not is_protected_part(state, index, part_index):
            replacement = (replace_media_with_text(part, _describe_seen_image),)
            yield Edit(
                Span(index, index + 1, part_index),
                replacement,
                "image",
                "the model has answered these images",
                saved_tokens,
            )


def _describe_seen_image(media: Media) -> str:
    """Return the text in place of an image, or an empty string for other media, which stay."""
    return SEEN_IMAGE_TEXT if media.kind == "image" else ""
