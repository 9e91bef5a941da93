"""The last resort where media were not decided about before: the oldest give way to a line each, until all fit.

What lasts is decided by ``planning/stages/media.py``; this holds for requests that no policy saw. What the user's
newest message shows stays: where that alone is too much, nothing else is of any use, and the provider says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.message import Message, media_in, media_of, placeholder, with_words
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.image_size import is_over
from holdfast.normalize.items import Item
from holdfast.state.dialect import NO_LIMIT, Dialect

NEAR = 8
"""A body of n characters is not looked at closely while n times this is under the limit: escapes take six bytes."""


def within(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether number and bytes of the media fit."""
    media = media_of(*messages)
    if not media:
        return True
    images = sum(one.kind == "image" for one in media)
    if images > most_images(media, dialect):
        return False
    if sum(len(one.source) for one in media) * NEAR <= dialect.max_bytes:
        return True
    return sum(weight(part) for message in messages for part in message.parts) <= dialect.max_bytes


def fit_media(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with their oldest media named by a line, as many as it takes."""
    messages = [item.message for item in items]
    if within(messages, dialect):
        return items
    newest = next((at for at in reversed(range(len(messages))) if messages[at].starts_turn), -1)
    if newest >= 0 and not within(messages[newest : newest + 1], dialect):
        return items
    media = media_of(*messages)
    most = most_images(media, dialect)
    images = sum(one.kind == "image" for one in media) - most
    size = sum(weight(part) for message in messages for part in message.parts) - dialect.max_bytes
    out = list(items)
    for index, place in _places(messages):
        if images <= 0 and size <= 0:
            break
        if index == newest:
            continue
        part = out[index].message.parts[place]
        new = with_words(part, placeholder if size > 0 else _image)
        images -= _images(part) - _images(new)
        size -= weight(part) - weight(new)
        if new is not part:
            out[index] = _with(out[index], place, new, most, dialect.max_bytes)
    return out


def most_images(media: Sequence[Media], dialect: Dialect) -> int:
    """Return how many images a request that shows ``media`` may hold: fewer, where one of them is large."""
    images = [one for one in media if one.kind == "image"]
    if len(images) <= dialect.images_with_large or not any(is_over(one, dialect.large_pixels) for one in images):
        return dialect.max_images
    return min(dialect.max_images, dialect.images_with_large)


def _with(item: Item, place: int, part: Part, images: int, size: int) -> Item:
    parts = (*item.message.parts[:place], part, *item.message.parts[place + 1 :])
    known = ((images, "images"), (size, "bytes"))
    most = " and ".join(f"{number:,} {what}" for number, what in known if number < NO_LIMIT)
    why = f"at most {most} go in one request"
    return item.changed(Message(item.message.role, parts), "media-budget", why)


def _places(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if media_in(part):
                yield index, place


def _images(part: Part) -> int:
    return sum(one.kind == "image" for one in media_in(part))


def _image(media: Media) -> str:
    """Return the words for an image, none for other media."""
    return placeholder(media) if media.kind == "image" else ""


def weight(part: Part) -> int:
    """Return about how many bytes a part takes in a body."""
    if part.raw is not None:
        return memoryview(part.raw).nbytes
    if isinstance(part, Text | Thinking):
        return _bytes(part.text)
    if isinstance(part, ToolCall):
        return _bytes(part.arguments)
    if isinstance(part, ToolResult):
        return sum(weight(one) for one in part.content)
    return len(part.source) if isinstance(part, Media) else 0


def _bytes(text: str) -> int:
    """Return the bytes of a text, with its quotes and line ends escaped."""
    return len(text.encode("utf-8", "surrogatepass")) + text.count("\n") + text.count('"') + text.count("\\")
