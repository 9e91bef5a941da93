"""Keep a request within the API's limits for media: the oldest are replaced by a line each until all fit.

This is the last resort, for requests that no policy planned; lasting decisions are made by
``planning/stages/media.py``. The media of the user's newest message stay: if they alone are too much, removing others
helps nothing, and the provider's error tells the user more.
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
"""The bytes of a body are counted only if its media times this exceed the limit. A factor of eight leaves room for
everything beside the media; an escaped character takes six bytes."""


def is_within_media_limits(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether the number of images, and the bytes of messages that hold media, are within the limits."""
    media = collect_media_in_messages(*messages)
    if not media:
        return True
    image_count = sum(attachment.kind == "image" for attachment in media)
    if image_count > get_max_images(media, dialect):
        return False
    media_chars = sum(len(attachment.source) for attachment in media)
    if media_chars * BODY_SIZE_SAFETY_FACTOR <= dialect.max_bytes:
        return True
    return _estimate_messages_bytes(messages) <= dialect.max_bytes


def _estimate_messages_bytes(messages: Sequence[Message]) -> int:
    return sum(estimate_part_bytes(part) for message in messages for part in message.parts)


def replace_excess_media(items: list[TrackedMessage], dialect: Dialect) -> list[TrackedMessage]:
    """Replace the oldest media by a line each, as many as it takes to fit the limits."""
    messages = [item.message for item in items]
    if is_within_media_limits(messages, dialect):
        return items
    newest_turn = _find_newest_turn_start(messages)
    if newest_turn >= 0 and not is_within_media_limits([messages[newest_turn]], dialect):
        return items
    media = collect_media_in_messages(*messages)
    max_images = get_max_images(media, dialect)
    excess_images = sum(attachment.kind == "image" for attachment in media) - max_images
    excess_bytes = _estimate_messages_bytes(messages) - dialect.max_bytes
    changed_items = list(items)
    for message_index, part_index in _find_media_parts(messages):
        if excess_images <= 0 and excess_bytes <= 0:
            break
        if message_index == newest_turn:
            continue
        item = changed_items[message_index]
        part = item.message.parts[part_index]
        # While only the number of images is too high, documents may stay.
        describe = format_part_placeholder if excess_bytes > 0 else _describe_image
        new_part = replace_media_with_text(part, describe)
        if new_part is part:
            continue
        excess_images -= _count_images(part) - _count_images(new_part)
        excess_bytes -= estimate_part_bytes(part) - estimate_part_bytes(new_part)
        changed_items[message_index] = _replace_media_part(
            item,
            part_index,
            new_part,
            max_images,
            dialect.max_bytes,
        )
    return changed_items


def _find_newest_turn_start(messages: Sequence[Message]) -> int:
    """Return the index of the newest message that starts a turn, or -1 if no message does."""
    for index in reversed(range(len(messages))):
        if messages[index].is_turn_start:
            return index
    return -1


def get_max_images(media: Sequence[Media], dialect: Dialect) -> int:
    """Return how many images a request with ``media`` may hold: some APIs take fewer if any of them is large."""
    images = [attachment for attachment in media if attachment.kind == "image"]
    # The count is compared first: measuring an image means decoding the start of its bytes.
    if len(images) <= dialect.max_images_with_large:
        return dialect.max_images
    if not any(is_oversized_image(image, dialect.large_image_pixels) for image in images):
        return dialect.max_images
    return min(dialect.max_images, dialect.max_images_with_large)


def _replace_media_part(
    item: TrackedMessage,
    part_index: int,
    part: Part,
    max_images: int,
    max_bytes: int,
) -> TrackedMessage:
    parts = (*item.message.parts[:part_index], part, *item.message.parts[part_index + 1 :])
    limits: list[str] = []
    if max_images < NO_LIMIT:
        limits.append(f"{max_images:,} images")
    if max_bytes < NO_LIMIT:
        limits.append(f"{max_bytes:,} bytes")
    why = f"a request may have at most {' and '.join(limits)}"
    return item.replace_message(Message(item.message.role, parts), "media-budget", why)


def _find_media_parts(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Yield the message and part index of each part that is or holds media, the oldest first."""
    for message_index, message in enumerate(messages):
        for part_index, part in enumerate(message.parts):
            if collect_media_in_parts(part):
                yield message_index, part_index


def _count_images(part: Part) -> int:
    return sum(attachment.kind == "image" for attachment in collect_media_in_parts(part))


def _describe_image(media: Media) -> str:
    """Return the line for an image, or an empty string for other media, which then stay."""
    return format_part_placeholder(media) if media.kind == "image" else ""


def estimate_part_bytes(part: Part) -> int:
    """Estimate the bytes of a part in a request body."""
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
    """Return the UTF-8 bytes of a text with its quotes, backslashes and line ends escaped, as in JSON."""
    return len(text.encode("utf-8", "surrogatepass")) + text.count("\n") + text.count('"') + text.count("\\")
