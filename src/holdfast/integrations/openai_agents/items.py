"""Items of the OpenAI Agents SDK in our terms, and what a request shows of them in the SDK's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.messages.message import Message
from holdfast.providers.openai_responses.items import group_items_by_message
from holdfast.providers.openai_responses.messages import encode_message
from holdfast.state.entries import Usage


class ItemGroup(Struct, frozen=True):
    """Neighbouring items of the SDK that are one message in our terms: those of one answer, or a single other item."""

    items: list[Any]
    raw: Raw
    """The items as JSON."""
    message: Message


def group_items(items: Sequence[Any]) -> list[ItemGroup]:
    """Return the items of the SDK in our terms. Raises ``FormatError`` for what is no item."""
    raws = [Raw(msgspec.json.encode(item)) for item in items]
    groups: list[ItemGroup] = []
    for start, stop, message in group_items_by_message(raws):
        raw = raws[start] if stop == start + 1 else Raw(b"[" + b",".join(map(bytes, raws[start:stop])) + b"]")
        groups.append(ItemGroup(list(items[start:stop]), raw, message))
    return groups


def show_items(groups: Sequence[ItemGroup], shown_messages: Sequence[ShownMessage]) -> list[Any]:
    """Return the items to send: the SDK's own objects wherever a message is shown as it is."""
    items: list[Any] = []
    for shown in shown_messages:
        group = None if shown.index is None else groups[shown.index]
        if group is not None and shown.message == group.message:
            items += group.items
        else:
            # Written over the old items, so that fields which we do not interpret stay, and reasoning stays with the
            # item that follows it.
            base = None if group is None else group.raw
            items += [msgspec.json.decode(item) for item in encode_message(shown.message, base)]
    return items


def read_usage(usage: Any) -> Usage:
    """Return the usage of an answer, that of the SDK or that of the API."""
    details = usage.input_tokens_details
    return Usage(
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        getattr(details, "cached_tokens", 0) or 0,
        getattr(details, "cache_write_tokens", 0) or 0,
        getattr(usage.output_tokens_details, "reasoning_tokens", 0) or 0,
    )
