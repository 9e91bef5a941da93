"""Media in tool results, for an API whose results hold words alone: a user shows them behind the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages, format_part_placeholder, replace_all_parts
from holdfast.messages.parts import Media, Part, Text, ToolResult
from holdfast.normalize.pairing import find_early_orphan_results, find_results_of_calls
from holdfast.normalize.parts import PartIndexes, can_role_hold_media
from holdfast.normalize.tracked_messages import TrackedMessage, create_inserted_message
from holdfast.state.dialect import Dialect

MediaFilter: TypeAlias = Callable[[Media], bool]
MovedMedia: TypeAlias = Sequence[Sequence[Media]]
"""What moves out of each result of a message."""
RESULT_MEDIA_RULE = "result-media"
_RESULT_MEDIA_REASON = "a result holds words alone here: a user shows its media behind the results"


def move_unsupported_result_media(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with the media of results behind these, where the API takes none in them.

    Those of a result that answers no call are told with its words.
    """
    if dialect.allows_media_in_results or not any(
        collect_media_in_messages(item.message) for item in items if item.message.results
    ):
        return items
    messages = [item.message for item in items]
    return move_media_after_results(
        items,
        lambda part: can_role_hold_media(part, dialect, "user"),
        find_early_orphan_results(messages, find_results_of_calls(messages)),
    )


def move_media_after_results(
    items: Sequence[TrackedMessage], can_show: MediaFilter, orphans: PartIndexes
) -> list[TrackedMessage]:
    """Return the items with what ``can_show`` takes of their results' media behind each batch of results.

    A batch is all results up to the next answer; nothing stands between them. A line in the result names what moved.
    Results at the places ``orphans`` keep theirs.
    """
    out: list[TrackedMessage] = []
    batch: list[tuple[TrackedMessage, MovedMedia]] = []
    names: dict[str, str] = {}
    for at, item in enumerate(items):
        if item.message.role != "assistant":
            batch.append((item, _select_moved_media(item.message, can_show, orphans.get(at, ()))))
            continue
        out += [*_emit_result_batch(batch, names), item]
        batch = []
        names |= {call.id: call.name for call in item.message.calls}
    return [*out, *_emit_result_batch(batch, names)]


def _select_moved_media(message: Message, can_show: MediaFilter, orphans: Collection[int]) -> list[list[Media]]:
    return [
        [part for part in result.content if place not in orphans and isinstance(part, Media) and can_show(part)]
        for place, result in enumerate(message.results)
    ]


def _emit_result_batch(
    batch: Sequence[tuple[TrackedMessage, MovedMedia]], names: Mapping[str, str]
) -> Iterator[TrackedMessage]:
    """Yield the items between two answers, with their media behind the last result."""
    media_parts: list[Part] = []
    for item, moving in batch:
        for result, media in zip(item.message.results, moving, strict=True):
            tool = result.name or names.get(result.call_id) or "a tool"
            media_parts += [Text(f"(from the result of {tool})"), *media] if media else []
    last = max((at for at, (item, _) in enumerate(batch) if item.message.results), default=-1) if media_parts else -1
    for at, (item, moving) in enumerate(batch):
        worded_item = _replace_moved_media(item, moving) if media_parts else item
        if at == last:
            other_parts = [part for part in worded_item.message.parts if not isinstance(part, ToolResult)]
            yield (
                worded_item.replace_message(
                    Message("tool", worded_item.message.results), RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON
                )
                if other_parts
                else worded_item
            )
            yield create_inserted_message(
                item.stop, Message("user", (*media_parts, *other_parts)), RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON
            )
        else:
            yield worded_item


def _replace_moved_media(item: TrackedMessage, moving: MovedMedia) -> TrackedMessage:
    """Return the item with a line in its results for each of their media that moves."""
    media = iter(moving)
    parts = [
        _replace_media_in_result(part, next(media)) if isinstance(part, ToolResult) else part
        for part in item.message.parts
    ]
    message = replace_all_parts(item.message, parts)
    return item if message is item.message else item.replace_message(message, RESULT_MEDIA_RULE, _RESULT_MEDIA_REASON)


def _replace_media_in_result(part: ToolResult, media: Sequence[Media]) -> ToolResult:
    content = tuple(
        [
            Text(format_part_placeholder(inner)) if isinstance(inner, Media) and inner in media else inner
            for inner in part.content
        ]
    )
    return replace(part, content=content, raw=None) if media else part
