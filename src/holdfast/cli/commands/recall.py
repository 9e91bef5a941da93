"""``holdfast recall``: read back texts stored away in a session, or any of its messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import asdict

from holdfast.cli.files.input_files import open_output_file
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import ProgressBar, make_console, make_json_option, print_json, print_line
from holdfast.engine.recall import TextPage, iter_recall_pages, list_spilled_texts, recall_page
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.sessions.history import find_entry, load_branch_history, parse_message_number
from holdfast.reports.sessions.session_list import format_age
from holdfast.state.entries import BranchSummaryEntry, Entry, MessageEntry
from holdfast.store.base import SessionStore
from holdfast.store.search.search import MATCH_CLOSE, MATCH_OPEN

EXAMPLES = """\
\b
Examples:
  holdfast recall 4d56
  holdfast recall 4d56 3fa9c1d2e4f5
  holdfast recall 4d56 3fa9c1 --lines 12-480
  holdfast recall 4d56 3fa9c1 -o result.txt
  holdfast recall 4d56 --search "TimeoutError"
"""
DEFAULT_SEARCH_LIMIT = 20
"""Messages shown by a search. Chosen by judgement: one screen."""
MIN_HANDLE_DIGITS = 6
"""Digits from which a number is the beginning of a handle, not a message number."""
_TERMINAL_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, except line ends and tabs."""


class RecallOptions(NamedTuple):
    """The options of the command line."""

    id_: str | None
    lines: str | None
    chars: str | None
    search: str | None
    limit: int
    output: str | None
    force: bool
    as_json: bool


@click.command("recall", epilog=EXAMPLES)
@click.argument("session")
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--lines", metavar="A-B", help="Only these lines, counted from 1, including B.")
@click.option("--chars", metavar="A-B", help="Only these characters, counted from 0, excluding B.")
@click.option(
    "--search",
    metavar="TEXT",
    help="Only lines that match (a|b, a.*b); without ID, find messages with these words.",
)
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    default=DEFAULT_SEARCH_LIMIT,
    show_default=True,
    help="Number of messages a search shows.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
@make_json_option("the list, the matches, or one page with the arguments of the next,")
def recall_command(session: str, store: str | None, **given: Any) -> None:
    """Read back texts stored away in a session, or any of its messages.

    SESSION is the beginning of an id. Without ID, the stored texts are listed, the newest first. ID is the one in a
    preview or a notice, the id of a message (the beginning is enough), or a message number as holdfast show prints it.
    The whole original text is printed, or the part you ask for.
    """
    options = RecallOptions(**given)
    if options.id_ is None and (options.lines or options.chars or options.output):
        raise CommandError("--lines, --chars and -o need the ID of one text (holdfast recall SESSION lists them)")
    if options.search is not None and not options.search.strip():
        raise CommandError("--search has no words in it; give a word to look for")
    # A search may have to build the index first, which writes to the store.
    with open_named_store(store, readonly=options.id_ is not None or not options.search) as there:
        key = there.get_session(session).key
        if options.id_ is not None:
            with ProgressBar("reading", is_wanted=not options.as_json):
                id_ = _resolve_recall_id(there, key, options.id_)
            _print_text(there, key, options, id_)
        elif options.search:
            _print_search(there, key, options.search, options.limit, as_json=options.as_json)
        else:
            _print_spills(there, key, as_json=options.as_json)


def _resolve_recall_id(store: SessionStore, key: str, name: str) -> str:
    """Resolve ``name`` to the id of a stored text it begins, or of the message it numbers; else return it unchanged."""
    number = parse_message_number(name)
    matching_ids = [spill.id for spill in list_spilled_texts(store, key) if name and spill.id.startswith(name)]
    # Handles are hexadecimal, so one may consist of digits only; short numbers always mean a message.
    if len(matching_ids) == 1 and (number is None or len(name) >= MIN_HANDLE_DIGITS):
        return matching_ids[0]
    return name if number is None else _find_numbered_message(store, key, number, name).id


def _find_numbered_message(store: SessionStore, key: str, number: int, name: str) -> Entry:
    """Find message ``number``, called ``name`` in errors, without reading the whole log if requests still show it."""
    active = store.read_active_entries(key)
    shown_entries = []
    for entry in (*active.tail, *active.later_entries):
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            shown_entries.append(entry)
    if active.first_kept <= number < active.first_kept + len(shown_entries):
        return shown_entries[number - active.first_kept]
    return find_entry(store, key, load_branch_history(store, key), name)


def _print_text(store: SessionStore, key: str, options: RecallOptions, id_: str) -> None:
    lines = options.lines or ""
    chars = options.chars or ""
    search = options.search or ""
    if options.as_json and not options.output:
        page = recall_page(store, key, id_, lines=lines, chars=chars, search=search)
        print_json({"session": key} | asdict(page))
        return
    pages = iter_recall_pages(store, key, id_, lines=lines, chars=chars, search=search)
    if options.output:
        _save_pages(pages, options.output, key, options)
    elif not _print_pages(pages) and search:
        click.echo(
            f"no line of this text matches {clean_single_line(search, 80)!r}; try fewer or other words", err=True
        )


def _print_pages(pages: Iterable[TextPage]) -> int:
    """Print pages as they arrive and return their characters; output to a terminal is cleaned of control characters."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    size = 0
    for text in _iterate_page_texts(pages):
        size += len(text)
        if is_terminal:
            click.echo(_TERMINAL_STEERING.sub("\ufffd", text), nl=False)
        else:
            # A file or pipe gets the original text, byte for byte.
            click.echo(_encode_text(text), nl=False)
    if is_terminal and size:
        click.echo()
    return size


def _save_pages(pages: Iterable[TextPage], output: str, key: str, options: RecallOptions) -> None:
    with open_output_file(output, force=options.force) as file:
        size = sum(file.write(_encode_text(text)) for text in _iterate_page_texts(pages))
    if options.as_json:
        print_json({"session": key, "file": output, "bytes": size})
    else:
        click.echo(f"{clean_single_line(output)}: {size:,} bytes", err=True)


def _iterate_page_texts(pages: Iterable[TextPage]) -> Iterator[str]:
    """Yield the texts of pages; a page of search matches gets its missing line end."""
    for page in pages:
        is_search = page.match_count is not None
        yield f"{page.text}\n" if is_search and page.text else page.text


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _print_spills(store: SessionStore, key: str, *, as_json: bool) -> None:
    spills = list_spilled_texts(store, key)
    if as_json:
        print_json(msgspec.to_builtins(spills))
        return
    if not spills:
        click.echo("no text of this session was stored away; --search finds its messages")
        return
    rows: list[tuple[str, ...]] = []
    for spill in spills:
        size = f"{spill.size:,}" if spill.is_stored else "gone"
        rows.append((spill.id, size, format_age(spill.at), clean_single_line(spill.tool) or "user"))
    _print_recall_table(("id", "bytes", "stored", "from"), rows)


def _print_search(store: SessionStore, key: str, search: str, limit: int, *, as_json: bool) -> None:
    with ProgressBar("searching", is_wanted=not as_json) as waiting:
        hits = store.search_session(key, search, limit + 1, tick=partial(waiting.set_progress, "indexing"))
    if len(hits) > limit:
        click.echo(f"showing the first {format_count(limit, 'message')}; --limit shows more", err=True)
        hits = hits[:limit]
    if as_json:
        print_json(msgspec.to_builtins(hits))
        return
    if not hits:
        click.echo(f"no message of this session matches {clean_single_line(search, 80)!r}; try fewer or other words")
        return
    rows: list[tuple[str, ...]] = []
    for hit in hits:
        id_ = clean_single_line((hit.blob_hash or hit.entry_id)[:12])
        rows.append((id_, clean_single_line(hit.role), format_age(hit.time_ms), clean_single_line(hit.snippet)))
    _print_recall_table(("id", "from", "stored", "match"), rows, _center_match)


def _center_match(snippet: str, budget: int) -> str:
    """Cut the start of a snippet so that the match is visible in ``budget`` columns, centered as far as possible."""
    start = snippet.find(MATCH_OPEN)
    match_length = snippet.find(MATCH_CLOSE, start) - start + 2
    spare = max(0, budget - match_length) // 2
    if len(snippet) <= budget or start <= spare:
        return snippet
    return f"…{snippet[start - spare :]}"


def _print_recall_table(
    head: tuple[str, ...],
    rows: list[tuple[str, ...]],
    fit_text: Callable[[str, int], str] = lambda text, _: text,
) -> None:
    """Print a table; ``fit_text`` may shorten the last column to the columns that are left."""
    from rich.text import Text

    all_rows = [head, *rows]
    columns = list(zip(*all_rows, strict=True))
    widths = [max(map(len, column)) for column in columns[:-1]]
    out = make_console()
    room = out.width - sum(width + 2 for width in widths)
    for number, row in enumerate(all_rows):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        style = "bold" if number == 0 else ""
        print_line(out, Text("  ".join([*cells, fit_text(row[-1], room)]), style=style))
