"""Old pictures that an agent takes out of its memory.

The documentation of smolagents shows a step callback that sets ``observations_images`` of older steps to None, and
agents that look at screenshots have one. Where the step is behind an extract, that changes nothing of what is shown;
without care it would be an edit of the past, which makes the extract invalid, and each call would make a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.smolagents.messages import GivenHistory
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Media, Part, ToolResult


def restore_hidden_pictures(given: GivenHistory, hidden_messages: Mapping[int, Message]) -> GivenHistory:
    """Return ``given`` with ``hidden_messages`` in place of those that differ only by pictures taken away."""
    groups = list(given.groups)
    for index, hidden_message in hidden_messages.items():
        if index < len(groups) and groups[index].message == _strip_pictures(hidden_message):
            groups[index] = groups[index]._replace(message=hidden_message)
    return given._replace(groups=groups)


def find_hidden_pictures(given: GivenHistory, shown_messages: Sequence[ShownMessage]) -> dict[int, Message]:
    """Return the messages with pictures that ``shown_messages`` leave out, by their index in ``given``."""
    shown_indexes = {shown.index for shown in shown_messages}
    hidden_messages: dict[int, Message] = {}
    for index, group in enumerate(given.groups):
        if index not in shown_indexes and collect_media_in_messages(group.message):
            hidden_messages[index] = group.message
    return hidden_messages


def _strip_pictures(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            content = tuple(inner for inner in part.content if not isinstance(inner, Media))
            parts.append(replace(part, content=content))
        elif not isinstance(part, Media):
            parts.append(part)
    return Message(message.role, tuple(parts))
