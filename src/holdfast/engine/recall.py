"""Reading back: pages of what was stored away or said in a session, for the model as a tool and for everybody else.

The tool is called ``recall`` as the previews call it, so a model can do what they say word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.recall_sources import Source, Spill, reachable, source
from holdfast.errors import FormatError, HoldfastError, Unrecognised, check_types
from holdfast.messages.text.cutting import sound
from holdfast.messages.text.paging import LEAST_CHARS, MOST_CHARS, Page, following
from holdfast.messages.text.paging import page as page_of
from holdfast.messages.text.scan import extent, reader
from holdfast.planning.settings import HANDLE
from holdfast.state.codec.reading import convert
from holdfast.store.base import Found, SessionStore

__all__ = ["NAME", "Page", "Spill", "Told", "answer_recall", "reachable", "recall", "recall_tool", "recall_whole"]

NAME = "recall"
ABOUT = """\
Reads back text of this conversation that is no longer shown: tool results that were replaced by a preview or cleared, \
messages that were summarised, anything that was said earlier. Nothing was lost. Pages have at most 50,000 characters; \
each says how to go on.
With id: a page of that text. With id and lines or chars: that range. With id and search: the lines of it that match.
With search alone: finds messages in the whole history, with their ids. With nothing: lists the texts that were stored \
away."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "id": {
        "type": "string",
        "description": "Which text: the id from a preview or a notice, or of a message that a search found.",
    },
    "lines": {"type": "string", "description": 'Only these lines, counted from 1, the last included: "12-480".'},
    "chars": {"type": "string", "description": 'Only these characters, counted from 0, the last excluded: "0-4000".'},
    "search": {
        "type": "string",
        "description": "Words to look for, upper and lower case alike. With id: the lines with all of it; a|b finds "
        'either, a.*b both on one line. Without: messages with all of the words; "a b" in double quotes is one.',
    },
    "page": {"type": "integer", "description": "Which page of what was asked for, counted from 1."},
}
PAGE_SHARE = 0.6
"""[H] Characters of a page for each token of the room: a fifth of it at three characters a token, under the quarter
from which a result is spilled."""
HITS = 20
"""[H] Messages that a search of the whole history shows at once."""


class Told(NamedTuple):
    """What the tool returns to the model."""

    text: str
    is_error: bool = False


class Asked(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a call; what is empty was not given."""

    id: str = ""
    lines: str = ""
    chars: str = ""
    search: str = ""
    page: int = 1


# -- for everybody -----------------------------------------------------------------------------------------------------


def recall(
    store: SessionStore,
    key: str,
    id: str,  # noqa: A002 -- what the previews call it
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    page: int = 1,
    most: int = MOST_CHARS,
) -> Page:
    """Return a page of the text that ``id`` stands for in session ``key``; its ``next`` are arguments of this function.

    Raises ``UnknownId`` for what the session does not name, and ``FormatError`` for a range that is not there.
    """
    asked = Asked(id, lines or "", chars or "", search or "", page)
    check_types(FormatError, id=(id, str), lines=(asked.lines, str), chars=(asked.chars, str))
    check_types(FormatError, search=(asked.search, str), page=(page, int), most=(most, int))
    return _page(source(store, key, id), asked, most)


def recall_whole(
    store: SessionStore,
    key: str,
    id: str,  # noqa: A002
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
) -> Iterator[Page]:
    """Return what is asked for page after page to its end; nothing is held but a page."""
    found = source(store, key, id)
    return following(found.read, lines=lines, chars=chars, search=search, held=found.extent)


# -- for the model -----------------------------------------------------------------------------------------------------


def recall_tool(api: str) -> dict[str, Any]:
    """Return the definition of the tool as an element of a request's ``tools``; ``Unrecognised`` for another API."""
    schema = {"type": "object", "properties": PARAMETERS, "additionalProperties": False}
    named = {"name": NAME, "description": ABOUT}
    match api:
        case "anthropic":
            return {**named, "input_schema": schema}
        case "openai-chat":
            return {"type": "function", "function": {**named, "parameters": schema}}
        case "openai-responses":
            return {"type": "function", **named, "parameters": schema, "strict": False}
        case "gemini":
            return {"functionDeclarations": [{**named, "parametersJsonSchema": schema}]}
    raise Unrecognised(
        f"no tool can be described for {api!r}; the APIs are anthropic, openai-chat, openai-responses, gemini"
    )


def answer_recall(store: SessionStore, key: str, arguments: str | Mapping[str, Any], most: int = MOST_CHARS) -> Told:
    """Return what a call of the tool with ``arguments`` (JSON text or values) answers; nothing is raised for them.

    ``most`` are the characters of a page, see ``page_chars``: where a page does not fit into the window it would be
    stored away again.
    """
    try:
        return Told(sound(_answered(store, key, _asked(arguments), most)))
    except HoldfastError as error:
        return Told(sound(str(error)), is_error=True)


def _asked(arguments: str | Mapping[str, Any]) -> Asked:
    """Return the arguments of a call, read as kindly as they can be."""
    try:
        values = json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments)
        given = msgspec.convert(values, dict[str, Any])
        told = {name: _plain(value) for name, value in given.items() if value not in (None, "")}
        return convert(told, Asked, strict=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"these are no arguments of {NAME}: {error}; give id, lines, chars, search or page") from None


def _plain(value: Any) -> Any:
    """Return a number as text: a handle may be all digits, and a range one number."""
    return str(value) if type(value) is int else value


def page_chars(room: int) -> int:
    """Return how many characters a page may have where all messages together have ``room`` tokens: about a fifth."""
    return max(LEAST_CHARS, min(MOST_CHARS, int(PAGE_SHARE * room)))


def _answered(store: SessionStore, key: str, asked: Asked, most: int) -> str:
    if asked.search and not (asked.id or asked.lines or asked.chars):
        return searched(store, key, asked.search, number=asked.page)
    if asked.id:
        found = source(store, key, asked.id)
        return shown(_page(found, asked, most), found.id)
    listed = "\n".join(line_of(spill) for spill in reachable(store, key))
    if not listed:
        return "Nothing of this conversation was stored away. A search finds messages of its history."
    read = reader(listed)
    return shown(_page(Source("", read, extent(read)), asked, most), "")


def _page(found: Source, asked: Asked, most: int) -> Page:
    got = page_of(
        found.read,
        lines=asked.lines,
        chars=asked.chars,
        search=asked.search,
        number=asked.page,
        held=found.extent,
        most=most,
    )
    return replace(got, next={"id": found.id, **got.next}) if got.next and found.id else got


def shown(got: Page, id_: str) -> str:
    """Return a page as the model sees it, with what it covers and how to go on in its first line."""
    where = f"lines {got.first}-{got.last} of {got.lines}, characters {got.start}-{got.stop} of {got.chars}"
    what = f"{id_[:80] or 'texts that were stored away'}: {where}"
    if got.matches is not None:
        what += f"; {got.matches:,} lines there match" if got.matches else "; no line there matches"
    end = f"go on with {call_of(got.next)}" if got.next else "nothing follows of what was asked for"
    return f"[{what}; {end}]\n{got.text}"


def searched(store: SessionStore, key: str, query: str, *, number: int = 1, limit: int = HITS) -> str:
    """Return page ``number`` of what a search of the session's whole history finds, as the model sees it."""
    if number < 1:
        raise FormatError(f"there is no page {number}: pages count from 1; leave it out for the first")
    found = store.search(key, query, limit=limit * number + 1)
    part = found[limit * (number - 1) : limit * number]
    if not part:
        return f"[nothing in this conversation's history matches {query[:80]!r}; try fewer or other words]"
    lines = [f"{call_of({'id': _named(one)})} {one.role}{_when(one.at)}: {one.snippet}" for one in part]
    on = f"go on with {call_of({'search': query, 'page': str(number + 1)})}" if limit == HITS else "give a higher limit"
    more = f"; {on}" if len(found) > limit * number else ""
    return "\n".join([f"[{len(part)} found in this conversation's history{more}]", *lines])


def _named(one: Found) -> str:
    return one.blob[:HANDLE] or one.entry


def line_of(spill: Spill) -> str:
    """Return what is known of a stored text on one line."""
    gone = "" if spill.is_here else " (no longer in the store)"
    return f"{spill.id}  {spill.size:,} bytes  {spill.tool or 'said by the user'}{_when(spill.at)}{gone}"


def call_of(arguments: Mapping[str, str]) -> str:
    """Return a call of the tool as the previews write it."""
    return (
        f"{NAME}({', '.join(f'{name}={json.dumps(value, ensure_ascii=False)}' for name, value in arguments.items())})"
    )


def _when(at: int | None) -> str:
    """Return a time in UTC behind a blank, or nothing where it is not known or beyond the calendar."""
    try:
        return "" if at is None else f" {datetime.fromtimestamp(at / 1_000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
