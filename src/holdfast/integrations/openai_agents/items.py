"""Items of the OpenAI Agents SDK in our terms, and what a request shows of them in the SDK's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.hosts.given_conversation import ShownMessage
from holdfast.messages.equality import encode_comparable_bytes
from holdfast.messages.message import Message
from holdfast.providers.openai_responses.items import group_items_by_message
from holdfast.providers.openai_responses.messages import encode_message
from holdfast.state.entries import Usage

LOCAL_SHELL_CALL = "local_shell_call"


class ItemGroup(Struct, frozen=True):
    """Neighbouring items of the SDK that are one message in our terms: those of one answer, or a single other item."""

    items: list[Any]
    raw: Raw
    """The items as JSON."""
    message: Message
    read_items: list[Any]
    """The items as they were when they were read: others may change theirs."""
    digest: bytes
    """Of what the message says and who said it."""


def group_items(items: Sequence[Any], known_groups: Sequence[ItemGroup] = ()) -> list[ItemGroup]:
    """Return the items of the SDK in our terms. Raises ``FormatError`` for what is no item.

    ``known_groups`` are those of an earlier call: what is as it was then is not read again.
    """
    groups = _keep_known_groups(items, known_groups)
    new_items = items[sum(len(group.items) for group in groups) :]
    raws = [Raw(msgspec.json.encode(item)) for item in new_items]
    for start, stop, message in group_items_by_message(raws):
        raw = raws[start] if stop == start + 1 else Raw(b"[" + b",".join(map(bytes, raws[start:stop])) + b"]")
        own_items = list(new_items[start:stop])
        # A copy shares the texts, so it is small.
        groups.append(ItemGroup(own_items, raw, message, deepcopy(own_items), _compute_digest(message)))
    return groups


def _keep_known_groups(items: Sequence[Any], known_groups: Sequence[ItemGroup]) -> list[ItemGroup]:
    """Return the groups with which ``items`` begin, with the objects that stand there now.

    The last one that is the same is read again, since an item after it may belong to it. So is everything where there
    is a call of a local shell: it names an output before or after it, also one that was known before the call.
    """
    if any(isinstance(item, Mapping) and item.get("type") == LOCAL_SHELL_CALL for item in items):
        return []
    kept_groups: list[ItemGroup] = []
    start = 0
    for group in known_groups:
        own_items = list(items[start : start + len(group.items)])
        if own_items != group.read_items:
            break
        kept_groups.append(replace(group, items=own_items))
        start += len(own_items)
    return kept_groups[:-1]


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


def _compute_digest(message: Message) -> bytes:
    content = message.role.encode() + b"\n" + encode_comparable_bytes(message)
    return blake2b(content, digest_size=16).digest()


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
