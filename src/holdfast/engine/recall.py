"""Read back spilled texts and earlier messages of a session, page by page: as a tool for the model, and as functions.

Previews in the conversation show the tool's calls literally, so a model can copy them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.recall_sources import SpilledText, TextSource, find_text_source, list_spilled_texts
from holdfast.errors import FormatError, HoldfastError, UnrecognizedContent, raise_if_wrong_type
from holdfast.messages.text.paging import (
    MAX_PAGE_CHARS,
    MIN_PAGE_LIMIT,
    TextPage,
    iter_text_pages,
    read_text_page,
)
from holdfast.messages.text.scan import make_text_reader, measure_extent
from holdfast.messages.text.text_cuts import replace_surrogates_in_text
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.providers.common.portable_options import FunctionTool, PortableOptions
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.options import write_request_options
from holdfast.state.codec.reading import convert_value
from holdfast.store.base import SearchHit, SessionStore

__all__ = [
    "RECALL_TOOL_NAME",
    "RecallAnswer",
    "SpilledText",
    "TextPage",
    "answer_recall",
    "iter_recall_pages",
    "list_spilled_texts",
    "make_recall_tool",
    "recall_page",
]

RECALL_TOOL_NAME = "recall"
RECALL_DESCRIPTION = """\
Reads back text of this conversation that is no longer shown: tool results that were replaced by a preview or cleared, \
messages that were summarized, anything that was said earlier. Nothing was lost. Pages have at most 50,000 characters; \
each says how to go on.
With id: a page of that text. With id and lines or chars: that range. With id and search: the lines of it that match.
With search alone: finds messages in the whole history, with their ids. With nothing: lists the texts that were stored \
away."""
RECALL_PARAMETERS: dict[str, dict[str, Any]] = {
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
# A fifth of the budget at three characters a token. A page must stay under the quarter of the budget from which a
# result is spilled (`results.spill_share`), or reading a text back would spill it again.
PAGE_CHARS_PER_TOKEN = 0.6
"""Characters of a page for each token of the message budget."""
# A line each with a snippet: enough to choose from without being spilled. Chosen by judgement.
MAX_SEARCH_HITS = 20
"""Messages on one page of a search of the whole history."""


class RecallAnswer(NamedTuple):
    """The result of the tool."""

    text: str
    is_error: bool = False


class RecallArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a call; an empty one was not given."""

    id: str = ""
    lines: str = ""
    chars: str = ""
    search: str = ""
    page: int = 1


# -- functions ---------------------------------------------------------------------------------------------------------


def recall_page(
    store: SessionStore,
    key: str,
    id: str,  # noqa: A002 -- what the previews call it
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
    page: int = 1,
    max_chars: int = MAX_PAGE_CHARS,
) -> TextPage:
    """Return a page of the text called ``id`` in session ``key``.

    ``next_arguments`` of the page are the arguments of this function for the next page. Raises ``UnknownId`` if the
    session has no such text, and ``FormatError`` if the text has no such range.
    """
    arguments = RecallArguments(id, lines or "", chars or "", search or "", page)
    raise_if_wrong_type(
        FormatError,
        id=(id, str),
        lines=(arguments.lines, str),
        chars=(arguments.chars, str),
    )
    raise_if_wrong_type(
        FormatError,
        search=(arguments.search, str),
        page=(page, int),
        max_chars=(max_chars, int),
    )
    return _read_source_page(find_text_source(store, key, id), arguments, max_chars)


def iter_recall_pages(
    store: SessionStore,
    key: str,
    id: str,  # noqa: A002
    *,
    lines: str = "",
    chars: str = "",
    search: str = "",
) -> Iterator[TextPage]:
    """Yield all pages of a text, or of a range of it, holding one page at a time in memory."""
    text_source = find_text_source(store, key, id)
    return iter_text_pages(
        text_source.read_text,
        lines=lines,
        chars=chars,
        search=search,
        extent=text_source.extent,
    )


# -- the tool ----------------------------------------------------------------------------------------------------------


def make_recall_tool(api: str) -> dict[str, Any]:
    """Return the definition of the tool as an element of a request's ``tools``.

    Raises ``UnrecognizedContent`` for an unknown API.
    """
    if not isinstance(api, str) or api not in API_SPECS:
        raise UnrecognizedContent(f"no tool can be described for {api!r}; the APIs are {', '.join(API_SPECS)}")
    schema = {"type": "object", "properties": RECALL_PARAMETERS, "additionalProperties": False}
    tool = FunctionTool(RECALL_TOOL_NAME, RECALL_DESCRIPTION, schema)
    fields, _ = write_request_options(api, PortableOptions(tools=(tool,)))
    definition: dict[str, Any] = fields["tools"][0]
    return definition


def answer_recall(
    store: SessionStore,
    key: str,
    arguments: str | Mapping[str, Any],
    max_chars: int = MAX_PAGE_CHARS,
) -> RecallAnswer:
    """Answer a call of the tool with ``arguments`` (JSON text or values); errors are explained in the answer.

    ``max_chars`` is the size of a page, see ``compute_page_chars``: a page that is too large for the window would be
    spilled again.
    """
    try:
        text = _build_recall_text(store, key, _parse_recall_arguments(arguments), max_chars)
    except HoldfastError as error:
        return RecallAnswer(replace_surrogates_in_text(str(error)), is_error=True)
    return RecallAnswer(replace_surrogates_in_text(text))


def _parse_recall_arguments(arguments: str | Mapping[str, Any]) -> RecallArguments:
    """Parse the arguments of a call leniently: null and empty ones count as not given, numbers as text.

    Raises ``FormatError`` for anything else.
    """
    try:
        if isinstance(arguments, str):
            values = json.loads(arguments or "{}")
        else:
            values = dict(arguments)
        fields = msgspec.convert(values, dict[str, Any])
        plain_fields = {}
        for name, value in fields.items():
            if value not in (None, ""):
                plain_fields[name] = _number_to_text(value)
        return convert_value(plain_fields, RecallArguments, strict=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"invalid arguments of {RECALL_TOOL_NAME}: {error}; give id, lines, chars, search or page"
        ) from None


def _number_to_text(value: Any) -> Any:
    """Return an integer as text: an id may consist of digits, and a range of one number."""
    return str(value) if type(value) is int else value


def compute_page_chars(budget_tokens: int) -> int:
    """Return the size of a page in characters, about a fifth of ``budget_tokens``, the budget of all messages."""
    return max(MIN_PAGE_LIMIT, min(MAX_PAGE_CHARS, int(PAGE_CHARS_PER_TOKEN * budget_tokens)))


def _build_recall_text(
    store: SessionStore,
    key: str,
    arguments: RecallArguments,
    max_chars: int,
) -> str:
    """Return a page of a text, of a search of the history, or of the list of spilled texts."""
    is_history_search = arguments.search and not (arguments.id or arguments.lines or arguments.chars)
    if is_history_search:
        return search_history(store, key, arguments.search, number=arguments.page)
    if arguments.id:
        text_source = find_text_source(store, key, arguments.id)
        page = _read_source_page(text_source, arguments, max_chars)
        return format_recall_page(page, text_source.id)
    listing = "\n".join(format_spill_line(spill) for spill in list_spilled_texts(store, key))
    if not listing:
        return "Nothing of this conversation was stored away. A search finds messages of its history."
    read_text = make_text_reader(listing)
    listing_source = TextSource("", read_text, measure_extent(read_text))
    page = _read_source_page(listing_source, arguments, max_chars)
    return format_recall_page(page, "")


def _read_source_page(source: TextSource, arguments: RecallArguments, max_chars: int) -> TextPage:
    page = read_text_page(
        source.read_text,
        lines=arguments.lines,
        chars=arguments.chars,
        search=arguments.search,
        number=arguments.page,
        extent=source.extent,
        max_chars=max_chars,
    )
    if not page.next_arguments or not source.id:
        return page
    return replace(page, next_arguments={"id": source.id, **page.next_arguments})


def format_recall_page(page: TextPage, id_: str) -> str:
    """Format a page for the model: the first line says which part of text ``id_`` it is, and how to get the next."""
    where = (
        f"lines {page.first_line}-{page.last_line} of {page.total_lines}, characters "
        f"{page.start_char}-{page.stop_char} of {page.total_chars}"
    )
    description = f"{id_[:80] or 'texts that were stored away'}: {where}"
    if page.match_count is not None:
        description += f"; {page.match_count:,} lines there match" if page.match_count else "; no line there matches"
    next_hint = "nothing follows of what was asked for"
    if page.next_arguments:
        next_hint = f"go on with {format_recall_call(page.next_arguments)}"
    return f"[{description}; {next_hint}]\n{page.text}"


def search_history(
    store: SessionStore,
    key: str,
    query: str,
    *,
    number: int = 1,
    limit: int = MAX_SEARCH_HITS,
) -> str:
    """Search the whole history of a session, and return page ``number`` of the hits, formatted for the model.

    Raises ``FormatError`` if ``number`` is below 1.
    """
    if number < 1:
        raise FormatError(f"there is no page {number}: pages count from 1; leave it out for the first")
    hits = store.search_session(key, query, limit=limit * number + 1)  # one more shows whether there is a next page
    page_hits = hits[limit * (number - 1) : limit * number]
    if not page_hits:
        return f"[nothing in this conversation's history matches {query[:80]!r}; try fewer or other words]"
    next_hint = ""
    if len(hits) > limit * number:
        next_hint = "; give a higher limit"
        if limit == MAX_SEARCH_HITS:
            next_call = format_recall_call({"search": query, "page": str(number + 1)})
            next_hint = f"; go on with {next_call}"
    lines = [f"[{len(page_hits)} found in this conversation's history{next_hint}]"]
    for hit in page_hits:
        call = format_recall_call({"id": _get_hit_id(hit)})
        lines.append(f"{call} {hit.role}{_format_time_suffix(hit.time_ms)}: {hit.snippet}")
    return "\n".join(lines)


def _get_hit_id(hit: SearchHit) -> str:
    return hit.blob_hash[:HANDLE_CHARS] or hit.entry_id


def format_spill_line(spill: SpilledText) -> str:
    """Describe a spilled text on one line."""
    missing_note = "" if spill.is_stored else " (no longer in the store)"
    return (
        f"{spill.id}  {spill.size:,} bytes  "
        f"{spill.tool or 'said by the user'}{_format_time_suffix(spill.at)}{missing_note}"
    )


def format_recall_call(arguments: Mapping[str, str]) -> str:
    """Format a call of the tool as the previews do."""
    formatted_arguments: list[str] = []
    for name, value in arguments.items():
        formatted_arguments.append(f"{name}={json.dumps(value, ensure_ascii=False)}")
    return f"{RECALL_TOOL_NAME}({', '.join(formatted_arguments)})"


def _format_time_suffix(at: int | None) -> str:
    """Format milliseconds since 1970 as a UTC time after a space; "" if unknown or outside of the calendar."""
    if at is None:
        return ""
    try:
        return f" {datetime.fromtimestamp(at / 1_000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
