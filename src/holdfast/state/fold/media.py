"""Count the images and documents that a request shows: where they are, how many, and how large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages, collect_media_in_parts
from holdfast.messages.parts import Media, Part
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.view import get_next_shown_index, list_shown_messages_at


class _MessageMedia(NamedTuple):
    """The media of one message."""

    message_index: int
    media: list[Media]


def add_media_counts(state: ConversationState, messages: Iterable[tuple[int, Message]]) -> ConversationState:
    """Return the state with the media of appended ``messages``, given with their indexes, counted too.

    Messages that a compaction hides are skipped.
    """
    shown_media: list[_MessageMedia] = []
    for index, message in messages:
        is_hidden = state.view.pinned_count <= index < state.view.first_kept
        media = collect_media_in_messages(message)
        if media and not is_hidden:
            shown_media.append(_MessageMedia(index, media))
    return _add_media(state, shown_media)


def recount_media(state: ConversationState) -> ConversationState:
    """Return the state with all media that it shows counted anew."""
    shown_media: list[_MessageMedia] = []
    for index, message in enumerate(state.history.messages.slice(0, state.view.pinned_count)):
        shown_media.append(_MessageMedia(index, collect_media_in_messages(message)))
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        media = collect_media_in_messages(*list_shown_messages_at(state, index))
        shown_media.append(_MessageMedia(index, media))
        index = get_next_shown_index(state, index)
    state = replace(
        state,
        view=replace(
            state.view,
            media_indexes=(),
            media_count=0,
            media_bytes=0,
        ),
    )
    return _add_media(state, [message_media for message_media in shown_media if message_media.media])


def has_media_changes(state: ConversationState, edits: Iterable[Edit]) -> bool:
    """Return whether any of ``edits`` adds media or replaces a part of the history that contains some."""
    for edit in edits:
        parts = [*_iter_new_parts(edit)]
        if state.view.media_count:
            parts += _iter_replaced_parts(state, edit)
        if collect_media_in_parts(*parts):
            return True
    return False


def _iter_new_parts(edit: Edit) -> Iterator[Part]:
    for replacement in edit.replacement:
        if isinstance(replacement, Message):
            yield from replacement.parts
        else:
            yield replacement


def _iter_replaced_parts(state: ConversationState, edit: Edit) -> Iterator[Part]:
    start = max(edit.span.start, state.view.first_kept)
    part = edit.span.part
    for message in state.history.messages.slice(start, edit.span.end):
        if part is None:
            yield from message.parts
        else:
            yield from message.parts[part : part + 1]


def _add_media(state: ConversationState, shown_media: list[_MessageMedia]) -> ConversationState:
    if not shown_media:
        return state
    view = state.view
    media_indexes = list(view.media_indexes)
    media_count, media_bytes = view.media_count, view.media_bytes
    for index, media in shown_media:
        # Media in pinned messages count, but are not listed: nothing may ever drop them.
        if index >= view.first_kept:
            media_indexes.append(index)
        media_count += len(media)
        media_bytes += sum(medium.size for medium in media)
    return replace(
        state,
        view=replace(
            view,
            media_indexes=tuple(media_indexes),
            media_count=media_count,
            media_bytes=media_bytes,
        ),
    )
