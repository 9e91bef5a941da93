"""Sessions, messages and their parts in one line of words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.text import Text

from holdfast.cli.output.terminal import clean
from holdfast.messages import parts
from holdfast.messages.message import Message, result_text
from holdfast.messages.sized_message import Slot
from holdfast.messages.text_runs import parts_said
from holdfast.store.base import SessionInfo

SHORTEST = 8
"""Characters of a session's id that are shown at least; more where two begin the same."""
BEHIND = 4
"""Characters behind the name of its client that are shown of the id of a session of the proxy."""
_OF_PROXY = re.compile(r"(?P<client>[a-z]+(-[a-z]+)*?)(-[0-9a-f]{12})?-([0-9a-f]{16}|empty|thread)")
"""How the proxy calls its sessions: a client or an API, perhaps a scope, and the first words (``session_key``)."""
LINE = 160
"""Characters of a text that are looked at for a line."""


def session_line(info: SessionInfo) -> Text:
    """Return the first line on a session: its id and its title."""
    title = clean(info.title)
    return Text.assemble((clean(info.key), "bold"), f"  {title}" if title else "")


def in_short(message: Message) -> str:
    """Return what a message says, part after part, on one line."""
    return " ".join(piece for part in parts_said(message) if (piece := part_in_short(part)))


def part_in_short(part: parts.Part, name: str = "") -> str:
    """Return what a part says on one line; ``name`` is the tool of a result that does not say."""
    if isinstance(part, parts.Text):
        return clean(part.text, LINE)
    if isinstance(part, parts.Thinking):
        return f"(thinking) {clean(part.text, LINE)}"
    if isinstance(part, parts.ToolCall):
        return f"→ {clean(part.name, 40)} {clean(part.arguments, LINE)}"
    if isinstance(part, parts.ToolResult):
        return _result(part, name)
    assert isinstance(part, parts.Media | parts.Opaque)
    return f"[{clean(part.kind, 40)}]"


def _result(part: parts.ToolResult, name: str) -> str:
    text = result_text(part)
    tool = clean(part.name or name, 40)
    failed = " failed" if part.is_error else ""
    others = "".join(f" [{clean(inner.kind, 40)}]" for inner in part.content if not isinstance(inner, parts.Text))
    return f"←{' ' if tool else ''}{tool}{failed} {len(text):,} chars{others}: {clean(text, LINE)}"


def words(slots: Iterable[Slot]) -> list[str]:
    """Return the lines of what stands in a request, part after part, as they are: clean them before printing."""
    return [line for slot in slots for part in parts_said(slot.message) for line in _lines(part)]


def _lines(part: parts.Part) -> list[str]:
    if isinstance(part, parts.Text):
        return part.text.split("\n")
    if isinstance(part, parts.ToolResult):
        others = [f"[{inner.kind}]" for inner in part.content if not isinstance(inner, parts.Text)]
        return [*result_text(part).split("\n"), *others]
    if isinstance(part, parts.Thinking):
        return f"(thinking) {part.text}".split("\n")
    if isinstance(part, parts.ToolCall):
        return f"→ {part.name} {part.arguments}".split("\n")
    return [part_in_short(part)]


def when(at: int | None) -> str:
    """Return a time in UTC, or nothing where it is not known or beyond the calendar."""
    try:
        return "" if at is None else f"{datetime.fromtimestamp(at / 1_000, UTC):%y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def shortest(keys: list[str]) -> dict[str, str]:
    """Return for each key its shortest beginning that no other key has, of at least eight characters.

    That of a session of the proxy has its client whole, and four characters behind that at least.
    """
    ordered = sorted(keys)
    out = {}
    for at, key in enumerate(ordered):
        near = [_common(key, other) for other in (*ordered[max(0, at - 1) : at], *ordered[at + 1 : at + 2])]
        least = len(client_of(key)) + len("-") + BEHIND if client_of(key) else SHORTEST
        out[key] = key[: max(least, 1 + max(near, default=0))]
    return out


def beginnings(ids: Iterable[str]) -> dict[str, str]:
    """Return for each id of an entry its shortest beginning that means it, of at least eight characters.

    Ids that go on from it with a ``+`` are no others: a beginning of all of them means the shortest.
    """
    ordered = sorted(set(ids))
    out = {}
    for at, id_ in enumerate(ordered):
        behind = bisect_left(ordered, f"{id_},", at)  # what begins with the id and a + comes before
        near = (*ordered[max(0, at - 1) : at], *ordered[behind : behind + 1])
        out[id_] = id_[: max(SHORTEST, 1 + max((_common(id_, other) for other in near), default=0))]
    return out


def client_of(key: str) -> str:
    """Return which client, or API, a session of the proxy is of; nothing for any other."""
    found = _OF_PROXY.fullmatch(key)
    return found["client"] if found else ""


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
