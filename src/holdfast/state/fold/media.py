"""Images and documents that a branch shows: where they stand, how many, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages, collect_media_in_parts
from holdfast.messages.parts import Media
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.view import get_next_shown_index, list_shown_messages_at


def add_media_counts(state: ConversationState, messages: Iterable[tuple[int, Message]]) -> ConversationState:
    """Return the branch showing ``messages``, each with its slot, too; those before ``first_kept`` are pinned."""
    indexed_media = [(index, media) for index, message in messages if (media := collect_media_in_messages(message))]
    return _add_media(
        state,
        [
            (index, media)
            for index, media in indexed_media
            if index < state.view.pinned_count or index >= state.view.first_kept
        ],
    )


def recount_media(state: ConversationState) -> ConversationState:
    """Return the branch with its media counted anew, over all that it shows."""
    indexed_media = [
        (index, collect_media_in_messages(message))
        for index, message in enumerate(state.history.messages.slice(0, state.view.pinned_count))
    ]
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        indexed_media.append((index, collect_media_in_messages(*list_shown_messages_at(state, index))))
        index = get_next_shown_index(state, index)
    return _add_media(
        replace(state, view=replace(state.view, media_indexes=(), media_count=0, media_bytes=0)),
        [pair for pair in indexed_media if pair[1]],
    )


def has_media_changes(state: ConversationState, edits: Iterable[Edit]) -> bool:
    """Return whether ``edits`` put media somewhere, or something in the place of media that are said there."""
    for edit in edits:
        start, part = max(edit.span.start, state.view.first_kept), edit.span.part
        messages = (
            state.history.messages.slice(start, max(edit.span.stop, edit.span.start + 1))
            if state.view.media_count
            else []
        )
        parts = [
            inner
            for message in messages
            for inner in (message.parts if part is None else message.parts[part : part + 1])
        ]
        new_parts = [
            inner
            for replacement in edit.replacement
            for inner in (replacement.parts if isinstance(replacement, Message) else (replacement,))
        ]
        if collect_media_in_parts(*parts, *new_parts):
            return True
    return False


def _add_media(state: ConversationState, indexed_media: list[tuple[int, list[Media]]]) -> ConversationState:
    if not indexed_media:
        return state
    return replace(
        state,
        view=replace(
            state.view,
            media_indexes=(
                *state.view.media_indexes,
                *[index for index, _ in indexed_media if index >= state.view.first_kept],
            ),
            media_count=state.view.media_count + sum(len(media) for _, media in indexed_media),
            media_bytes=state.view.media_bytes + sum(medium.size for _, media in indexed_media for medium in media),
        ),
    )
