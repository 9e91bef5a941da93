"""The last resort where media were not decided about before: the oldest give way to a line each, until all fit.

What lasts is decided by ``planning/stages/media.py``; this holds for requests that no policy saw. What the user's
newest message shows stays: where that alone is too much, nothing else is of any use, and the provider says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import (
    Message,
    collect_media_in_messages,
    collect_media_in_parts,
    format_part_placeholder,
    replace_media_with_text,
)
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.image_size import is_oversized_image
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.state.dialect import NO_LIMIT, Dialect

BODY_SIZE_SAFETY_FACTOR = 8
"""A body of n characters is not looked at closely while n times this is under the limit: escapes take six bytes."""


def is_within_media_limits(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether number and bytes of the media fit."""
    media = collect_media_in_messages(*messages)
    if not media:
        return True
    images = sum(medium.kind == "image" for medium in media)
    if images > get_max_images(media, dialect):
        return False
    if sum(len(medium.source) for medium in media) * BODY_SIZE_SAFETY_FACTOR <= dialect.max_bytes:
        return True
    return sum(estimate_part_bytes(part) for message in messages for part in message.parts) <= dialect.max_bytes


def replace_excess_media(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Return the items with their oldest media named by a line, as many as it takes."""
    messages = [item.message for item in items]
    if is_within_media_limits(messages, dialect):
        return items
    newest = next((at for at in reversed(range(len(messages))) if messages[at].is_turn_start), -1)
    if newest >= 0 and not is_within_media_limits(messages[newest : newest + 1], dialect):
        return items
    media = collect_media_in_messages(*messages)
    max_images = get_max_images(media, dialect)
    images = sum(medium.kind == "image" for medium in media) - max_images
    size = sum(estimate_part_bytes(part) for message in messages for part in message.parts) - dialect.max_bytes
    out = list(items)
    for index, place in _find_media_parts(messages):
        if images <= 0 and size <= 0:
            break
        if index == newest:
            continue
        part = out[index].message.parts[place]
        new = replace_media_with_text(part, format_part_placeholder if size > 0 else _describe_image)
        images -= _count_images(part) - _count_images(new)
        size -= estimate_part_bytes(part) - estimate_part_bytes(new)
        if new is not part:
            out[index] = _replace_media_part(out[index], place, new, max_images, dialect.max_bytes)
    return out


def get_max_images(media: Sequence[Media], dialect: Dialect) -> int:
    """Return how many images a request that shows ``media`` may hold: fewer, where one of them is large."""
    images = [image for image in media if image.kind == "image"]
    if len(images) <= dialect.max_images_with_large or not any(
        is_oversized_image(image, dialect.large_image_pixels) for image in images
    ):
        return dialect.max_images
    return min(dialect.max_images, dialect.max_images_with_large)


def _replace_media_part(item: TrackedMessage, place: int, part: Part, images: int, size: int) -> TrackedMessage:
    parts = (*item.message.parts[:place], part, *item.message.parts[place + 1 :])
    limits = ((images, "images"), (size, "bytes"))
    limit_text = " and ".join(f"{number:,} {unit}" for number, unit in limits if number < NO_LIMIT)
    why = f"at most {limit_text} go in one request"
    return item.replace_message(Message(item.message.role, parts), "media-budget", why)


def _find_media_parts(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if collect_media_in_parts(part):
                yield index, place


def _count_images(part: Part) -> int:
    return sum(medium.kind == "image" for medium in collect_media_in_parts(part))


def _describe_image(media: Media) -> str:
    """Return the words for an image, none for other media."""
    return format_part_placeholder(media) if media.kind == "image" else ""


def estimate_part_bytes(part: Part) -> int:
    """Return about how many bytes a part takes in a body."""
    if part.raw is not None:
        return memoryview(part.raw).nbytes
    if isinstance(part, Text | Thinking):
        return _count_escaped_bytes(part.text)
    if isinstance(part, ToolCall):
        return _count_escaped_bytes(part.arguments)
    if isinstance(part, ToolResult):
        return sum(estimate_part_bytes(inner) for inner in part.content)
    return len(part.source) if isinstance(part, Media) else 0


def _count_escaped_bytes(text: str) -> int:
    """Return the bytes of a text, with its quotes and line ends escaped."""
    return len(text.encode("utf-8", "surrogatepass")) + text.count("\n") + text.count('"') + text.count("\\")
