"""Sessions, messages and their parts in one line of words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.text import Text

from holdfast.cli.output.terminal import clean_single_line
from holdfast.messages import parts
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.store.base import SessionInfo

MIN_ID_LENGTH = 8
"""Characters of a session's id that are shown at least; more where two begin the same."""
MIN_ID_TAIL = 4
"""Characters behind the name of its client that are shown of the id of a session of the proxy."""
_PROXY_SESSION_KEY = re.compile(r"(?P<client>[a-z]+(-[a-z]+)*?)(-[0-9a-f]{12})?-([0-9a-f]{16}|empty|thread)")
"""How the proxy calls its sessions: a client or an API, perhaps a scope, and the first words (``make_session_key``)."""
MAX_LINE_TEXT = 160
"""Characters of a text that are looked at for a line."""


def format_session_line(info: SessionInfo) -> Text:
    """Return the first line on a session: its id and its title."""
    title = clean_single_line(info.title)
    return Text.assemble((clean_single_line(info.key), "bold"), f"  {title}" if title else "")


def summarize_message(message: Message) -> str:
    """Return what a message says, part after part, on one line."""
    return " ".join(piece for part in merge_adjacent_texts(message) if (piece := summarize_part(part)))


def summarize_part(part: parts.Part, name: str = "") -> str:
    """Return what a part says on one line; ``name`` is the tool of a result that does not say."""
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
    status = " failed" if part.is_error else ""
    other_parts = "".join(
        f" [{clean_single_line(inner.kind, 40)}]" for inner in part.content if not isinstance(inner, parts.Text)
    )
    return (
        f"←{' ' if tool else ''}{tool}{status} {len(text):,} chars{other_parts}: "
        f"{clean_single_line(text, MAX_LINE_TEXT)}"
    )


def get_message_text_lines(messages: Iterable[SizedMessage]) -> list[str]:
    """Return the lines of what stands in a request, part after part, as they are: clean them before printing."""
    return [
        line
        for sized_message in messages
        for part in merge_adjacent_texts(sized_message.message)
        for line in _list_part_lines(part)
    ]


def _list_part_lines(part: parts.Part) -> list[str]:
    if isinstance(part, parts.Text):
        return part.text.split("\n")
    if isinstance(part, parts.ToolResult):
        other_parts = [f"[{inner.kind}]" for inner in part.content if not isinstance(inner, parts.Text)]
        return [*get_result_text(part).split("\n"), *other_parts]
    if isinstance(part, parts.Thinking):
        return f"(thinking) {part.text}".split("\n")
    if isinstance(part, parts.ToolCall):
        return f"→ {part.name} {part.arguments}".split("\n")
    return [summarize_part(part)]


def format_time(at: int | None) -> str:
    """Return a time in UTC, or nothing where it is not known or beyond the calendar."""
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at / 1_000, UTC):%y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def shorten_session_keys(keys: list[str]) -> dict[str, str]:
    """Return for each key its shortest beginning that no other key has, of at least eight characters.

    That of a session of the proxy has its client whole, and four characters behind that at least.
    """
    sorted_keys = sorted(keys)
    out = {}
    for at, key in enumerate(sorted_keys):
        near = [
            _count_common_prefix(key, neighbour)
            for neighbour in (*sorted_keys[max(0, at - 1) : at], *sorted_keys[at + 1 : at + 2])
        ]
        min_length = len(get_client_name(key)) + len("-") + MIN_ID_TAIL if get_client_name(key) else MIN_ID_LENGTH
        out[key] = key[: max(min_length, 1 + max(near, default=0))]
    return out


def shorten_entry_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return for each id of an entry its shortest beginning that means it, of at least eight characters.

    Ids that go on from it with a ``+`` are no others: a beginning of all of them means the shortest.
    """
    sorted_ids = sorted(set(ids))
    out = {}
    for at, id_ in enumerate(sorted_ids):
        behind = bisect_left(sorted_ids, f"{id_},", at)  # what begins with the id and a + comes before
        near = (*sorted_ids[max(0, at - 1) : at], *sorted_ids[behind : behind + 1])
        out[id_] = id_[
            : max(MIN_ID_LENGTH, 1 + max((_count_common_prefix(id_, neighbour) for neighbour in near), default=0))
        ]
    return out


def get_client_name(key: str) -> str:
    """Return which client, or API, a session of the proxy is of; nothing for any other."""
    match = _PROXY_SESSION_KEY.fullmatch(key)
    return match["client"] if match else ""


def _count_common_prefix(first: str, second: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
