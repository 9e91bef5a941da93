"""Move media out of tool results for an API whose results are text only: a user message after them shows the media."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages, format_part_placeholder, replace_all_parts
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.normalize.parts import PartIndexes, can_role_hold_media
from holdfast.normalize.result_matching import find_early_orphan_results, find_results_of_calls
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

MediaFilter: TypeAlias = Callable[[Media], bool]
MovedMedia: TypeAlias = Sequence[Sequence[Media]]
"""The media that move out of each result of a message."""
RESULT_MEDIA_RULE = "result-media"
_RESULT_MEDIA_REASON = "a tool result may have only text here: its media are moved into a user message after it"


def move_unsupported_result_media(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Move media out of results into a user message after them, if the API accepts no media in results.

    An orphan, a result that answers no call, keeps its media: ``pair_calls_with_results`` later turns the whole of it,
    text and media, into a user message.
    """
    if dialect.allows_media_in_results:
        return items
    if not any(collect_media_in_messages(item.message) for item in items if item.message.results):
        return items
    messages = [item.message for item in items]
    orphans = find_early_orphan_results(messages, find_results_of_calls(messages))
    return move_media_after_results(items, lambda media: can_role_hold_media(media, dialect, "user"), orphans)


def move_media_after_results(
    items: Sequence[TrackedMessage], can_show: MediaFilter, orphans: PartIndexes
) -> list[TrackedMessage]:
    """Move media that ``can_show`` accepts out of results, into a user message after each batch of results.

    A batch is all messages up to the next answer: nothing may stand between the results of one answer. A line takes the
    place of each moved part. ``orphans`` are results, by message index, that keep their media.
    """
    moved_items: list[TrackedMessage] = []
    batch: list[tuple[TrackedMessage, MovedMedia]] = []
    tool_names: dict[str, str] = {}
    for index, item in enumerate(items):
        if item.message.role != "assistant":
            batch.append((item, _select_moved_media(item.message, can_show, orphans.get(index, ()))))
            continue
        moved_items += _emit_result_batch(batch, tool_names)
        moved_items.append(item)
        batch = []
        for call in item.message.calls:
            tool_names[call.id] = call.name
    moved_items += _emit_result_batch(batch, tool_names)
    return moved_items


def _select_moved_media(message: Message, can_show: MediaFilter, orphans: Collection[int]) -> list[list[Media]]:
    """Return the media that move out of each result of ``message``."""
    moved_media: list[list[Media]] = []
    for result_index, result in enumerate(message.results):
        media: list[Media] = []
        if result_index not in orphans:
            for part in result.content:
                if isinstance(part, Media) and can_show(part):
                    media.append(part)
        moved_media.append(media)
    return moved_media


def _emit_result_batch(
    batch: Sequence[tuple[TrackedMessage, MovedMedia]], tool_names: Mapping[str, str]
) -> Iterator[TrackedMessage]:
    """Yield the items between two answers, with their moved media in a user message after the last result."""
    media_parts = _list_moved_parts(batch, tool_names)
    if not media_parts:
        for item, _ in batch:
            yield item
        return
    last_index = max(index for index, (item, _) in enumerate(batch) if item.message.results)
    for index, (item, moved_media) in enumerate(batch):
        text_item = _replace_moved_media(item, moved_media)
        if index != last_index:
            yield text_item
            continue
        # Words beside the last results follow the media, so that the results stay right after their answer.
        other_parts = []
        for part in text_item.message.parts:
            if not isinstance(part, ToolResult):
                other_parts.append(part)
        if other_parts:
            results = Message("tool", text_item.message.results)
            yield text_item.replace_message(results, RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON)
        else:
            yield text_item
        user_message = Message("user", (*media_parts, *other_parts))
        yield create_inserted_message(item.stop, user_message, RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON)


def _list_moved_parts(batch: Sequence[tuple[TrackedMessage, MovedMedia]], tool_names: Mapping[str, str]) -> list[Part]:
    """Return the moved media of a batch; a line before those of each result names its tool."""
    parts: list[Part] = []
    for item, moved_media in batch:
        for result, media in zip(item.message.results, moved_media, strict=True):
            if not media:
                continue
            tool = result.name or tool_names.get(result.call_id) or "a tool"
            parts.append(Text(f"(from the result of {tool})"))
            parts += media
    return parts


def _replace_moved_media(item: TrackedMessage, moved_media: MovedMedia) -> TrackedMessage:
    """Put a line in place of each medium that moves out of the results of ``item``."""
    media_of_results = iter(moved_media)
    parts: list[Part] = []
    for part in item.message.parts:
        if isinstance(part, ToolResult):
            parts.append(_replace_media_in_result(part, next(media_of_results)))
        else:
            parts.append(part)
    message = replace_all_parts(item.message, parts)
    if message is item.message:
        return item
    return item.replace_message(message, RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON)


def _replace_media_in_result(result: ToolResult, media: Sequence[Media]) -> ToolResult:
    if not media:
        return result
    content: list[Text | Media | Opaque] = []
    for part in result.content:
        if isinstance(part, Media) and part in media:
            content.append(Text(format_part_placeholder(part)))
        else:
            content.append(part)
    return replace(result, content=tuple(content), raw=None)
