"""Sessions, messages and their parts on one line."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime

from holdfast.messages import parts
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.single_line import clean_single_line
from holdfast.messages.text.text_runs import merge_adjacent_texts

MIN_ID_LENGTH = 8
"""Least number of characters of a session's id that are shown; more if needed to be unique."""
MIN_ID_TAIL = 4
"""Least number of characters shown after the client's name in the id of a proxy session."""
_PROXY_SESSION_KEY = re.compile(
    r"(?P<client>[a-z0-9]+(-[a-z0-9]+)*?)(-plugin-.+|(-[0-9a-f]{12})?-([0-9a-f]{16}|empty|thread))"
)
"""The key of a proxy session: a client or API, optionally a scope, and a hash (``make_session_key``), or a client and
its name for the conversation (``make_plugin_session_key``)."""
MAX_LINE_TEXT = 160
"""Characters of a text that are used for a line."""


def summarize_message(message: Message) -> str:
    """Summarize a message on one line, part after part."""
    pieces = [summarize_part(part) for part in merge_adjacent_texts(message)]
    return " ".join(filter(None, pieces))


def summarize_part(part: parts.Part, name: str = "") -> str:
    """Summarize a part on one line; ``name`` is the tool of a result that lacks its name."""
    if isinstance(part, parts.Text):
        return clean_single_line(part.text, MAX_LINE_TEXT)
    if isinstance(part, parts.Thinking):
        return f"(thinking) {clean_single_line(part.text, MAX_LINE_TEXT)}"
    if isinstance(part, parts.ToolCall):
        return f"→ {clean_single_line(part.name, 40)} {clean_single_line(part.arguments, MAX_LINE_TEXT)}"
    if isinstance(part, parts.ToolResult):
        return _summarize_tool_result(part, name)
    assert isinstance(part, parts.Media | parts.Opaque)
    return f"[{clean_single_line(part.kind, 40)}]"


def _summarize_tool_result(part: parts.ToolResult, name: str) -> str:
    text = get_result_text(part)
    tool = clean_single_line(part.name or name, 40)
    head = f"← {tool}" if tool else "←"
    if part.is_error:
        head += " failed"
    head += f" {len(text):,} chars"
    for inner in part.content:
        if not isinstance(inner, parts.Text):
            head += f" [{clean_single_line(inner.kind, 40)}]"
    return f"{head}: {clean_single_line(text, MAX_LINE_TEXT)}"


def get_message_text_lines(messages: Iterable[SizedMessage]) -> list[str]:
    """Return the raw lines of ``messages``, part after part; clean them before printing."""
    lines: list[str] = []
    for sized_message in messages:
        for part in merge_adjacent_texts(sized_message.message):
            lines += _list_part_lines(part)
    return lines


def _list_part_lines(part: parts.Part) -> list[str]:
    if isinstance(part, parts.Text):
        return part.text.split("\n")
    if isinstance(part, parts.ToolResult):
        lines = get_result_text(part).split("\n")
        for inner in part.content:
            if not isinstance(inner, parts.Text):
                lines.append(f"[{inner.kind}]")
        return lines
    if isinstance(part, parts.Thinking):
        return f"(thinking) {part.text}".split("\n")
    if isinstance(part, parts.ToolCall):
        return f"→ {part.name} {part.arguments}".split("\n")
    return [summarize_part(part)]


def format_time(at: int | None) -> str:
    """Format a time in UTC; empty if it is unknown or outside the calendar."""
    if at is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(at / 1_000, UTC):%y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def shorten_session_keys(keys: list[str]) -> dict[str, str]:
    """Map each key to its shortest unique beginning, of at least eight characters.

    The key of a proxy session keeps its client's name and at least four characters after it.
    """
    sorted_keys = sorted(keys)
    short_keys = {}
    for at, key in enumerate(sorted_keys):
        # In sorted order the keys with the longest common beginning are next to each other.
        neighbors = (*sorted_keys[max(0, at - 1) : at], *sorted_keys[at + 1 : at + 2])
        common = max((_count_common_prefix(key, neighbor) for neighbor in neighbors), default=0)
        client = get_client_name(key)
        min_length = MIN_ID_LENGTH
        if client:
            min_length = len(client) + len("-") + MIN_ID_TAIL
        short_keys[key] = key[: max(min_length, common + 1)]
    return short_keys


def shorten_entry_ids(ids: Iterable[str]) -> dict[str, str]:
    """Map each entry id to its shortest unique beginning, of at least eight characters.

    Ids that continue it with a ``+`` do not count: the beginning then means the shortest one.
    """
    sorted_ids = sorted(set(ids))
    short_ids = {}
    for at, id_ in enumerate(sorted_ids):
        # "," sorts right after "+", so this skips ids with a +.
        after = bisect_left(sorted_ids, f"{id_},", at)
        neighbors = (*sorted_ids[max(0, at - 1) : at], *sorted_ids[after : after + 1])
        common = max((_count_common_prefix(id_, neighbor) for neighbor in neighbors), default=0)
        short_ids[id_] = id_[: max(MIN_ID_LENGTH, common + 1)]
    return short_ids


def get_client_name(key: str) -> str:
    """Return the client or API in a proxy session's key, or an empty string for other keys."""
    match = _PROXY_SESSION_KEY.fullmatch(key)
    return match["client"] if match else ""


def _count_common_prefix(first: str, second: str) -> int:
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count
