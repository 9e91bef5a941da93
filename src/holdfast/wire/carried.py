"""Media in tool results on their way to an API whose results hold words alone: a user shows them behind the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.model.messages import Message
from holdfast.model.parts import Media
from holdfast.policy.hygiene.items import Item
from holdfast.policy.hygiene.showing import shown_behind


def carried(messages: Sequence[Message], shows: Callable[[Media], bool]) -> tuple[list[Message], int]:
    """Return the messages with what ``shows`` takes of their results' media behind each batch, and how many moved."""
    results = [result for message in messages for result in message.results]
    moved = sum(isinstance(part, Media) and shows(part) for result in results for part in result.content)
    items = [Item(at, at + 1, message) for at, message in enumerate(messages)]
    return [item.message for item in shown_behind(items, shows, {})] if moved else list(messages), moved
