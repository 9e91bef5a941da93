"""``holdfast recall``: what was stored away or said in a session, read back."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import asdict

from holdfast.cli.commands.ls import ago
from holdfast.cli.files import new_file
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, json_option, many, say_json, say_line
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.history import entry_named, numbered, read_log
from holdfast.engine.recall import Page, reachable, recall, recall_whole
from holdfast.state.entries import BranchSummary, Entry, Said
from holdfast.store.base import SessionStore
from holdfast.store.search.search import CLOSE, OPEN

EXAMPLES = """\
\b
Examples:
  holdfast recall 4d56
  holdfast recall 4d56 3fa9c1d2e4f5
  holdfast recall 4d56 3fa9c1 --lines 12-480
  holdfast recall 4d56 3fa9c1 -o result.txt
  holdfast recall 4d56 --search "TimeoutError"
"""
FOUND = 20
"""Messages that a search shows, unless another number is asked for."""
HANDLED = 6
"""Digits that begin a handle rather than number a message."""
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal, but for line ends and tabs."""


class Asked(NamedTuple):
    """What the command was asked for."""

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
@click.option("--lines", metavar="A-B", help="These lines only, counted from 1, B included.")
@click.option("--chars", metavar="A-B", help="These characters only, counted from 0, B excluded.")
@click.option(
    "--search", metavar="TEXT", help="Its lines that match (a|b, a.*b); without ID messages with these words."
)
@click.option(
    "-n", "--limit", type=Whole(1), default=FOUND, show_default=True, help="How many messages a search shows."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@store_option
@json_option("the list, what was found, or one page with the arguments of the next,")
def command(session: str, store: str | None, **given: Any) -> None:
    """Read back what was stored away in a session, or anything that was said in it.

    SESSION is the beginning of an id. Without ID: the texts that were stored away, the newest first. ID is the one in a
    preview or a notice, or of any message, or its beginning, or a number as holdfast show prints it; all of it is
    printed as it was, or what is asked for.
    """
    asked = Asked(**given)
    if asked.id_ is None and (asked.lines or asked.chars or asked.output):
        raise Stopped("--lines, --chars and -o are of one text; give its ID too (holdfast recall SESSION lists them)")
    if asked.search is not None and not asked.search.strip():
        raise Stopped("--search has no words in it; give a word to look for")
    with opened(store, readonly=asked.id_ is not None or not asked.search) as there:
        key = there.session(session).key
        if asked.id_ is not None:
            with Waiting("reading", wanted=not asked.as_json):
                id_ = _id_of(there, key, asked.id_)
            _one(there, key, asked, id_)
        elif asked.search:
            _search(there, key, asked.search, asked.limit, as_json=asked.as_json)
        else:
            _list(there, key, as_json=asked.as_json)


def _id_of(store: SessionStore, key: str, name: str) -> str:
    """Return ``name``, the id of the one text stored away that it is the beginning of, or of the message it numbers."""
    number = numbered(name)
    begun = [one.id for one in reachable(store, key) if name and one.id.startswith(name)]
    if len(begun) == 1 and (number is None or len(name) >= HANDLED):
        return begun[0]
    return name if number is None else _numbered(store, key, number, name).id


def _numbered(store: SessionStore, key: str, number: int, name: str) -> Entry:
    """Return message ``number``, which is called ``name``; where requests may show it, no more than they are read."""
    active = store.active(key)
    shown = [one for one in (*active.tail, *active.rest) if isinstance(one.body, Said | BranchSummary)]
    if active.keep <= number < active.keep + len(shown):
        return shown[number - active.keep]
    return entry_named(store, key, read_log(store, key), name)


def _one(store: SessionStore, key: str, asked: Asked, id_: str) -> None:
    lines, chars, search = asked.lines or "", asked.chars or "", asked.search or ""
    if asked.as_json and not asked.output:
        page = recall(store, key, id_, lines=lines, chars=chars, search=search)
        say_json({"session": key} | asdict(page))
        return
    pages = recall_whole(store, key, id_, lines=lines, chars=chars, search=search)
    if asked.output:
        _save(pages, asked.output, key, asked)
    elif not _print(pages) and search:
        click.echo(f"no line of it matches {clean(search, 80)!r}; try fewer or other words", err=True)


def _print(pages: Iterable[Page]) -> int:
    """Print pages as they come, and return their characters; a terminal is shown nothing that steers it."""
    is_terminal, size = sys.stdout is not None and sys.stdout.isatty(), 0
    for text in _texts(pages):
        size += len(text)
        click.echo(_STEERING.sub("\ufffd", text) if is_terminal else _bytes(text), nl=False)
    if is_terminal and size:
        click.echo()
    return size


def _save(pages: Iterable[Page], output: str, key: str, asked: Asked) -> None:
    with new_file(output, force=asked.force) as file:
        size = sum(file.write(_bytes(text)) for text in _texts(pages))
    if asked.as_json:
        say_json({"session": key, "file": output, "bytes": size})
    else:
        click.echo(f"{clean(output)}: {size:,} bytes", err=True)


def _texts(pages: Iterable[Page]) -> Iterator[str]:
    """Yield the texts of pages; one that a search found ends its last line."""
    for page in pages:
        yield page.text if page.matches is None or not page.text else f"{page.text}\n"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _list(store: SessionStore, key: str, *, as_json: bool) -> None:
    spills = reachable(store, key)
    if as_json:
        say_json(msgspec.to_builtins(spills))
        return
    if not spills:
        click.echo("nothing of this session was stored away; --search finds what was said in it")
        return
    _say(
        ("id", "bytes", "when", "from"),
        [
            (one.id, f"{one.size:,}" if one.is_here else "gone", ago(one.at), clean(one.tool) or "user")
            for one in spills
        ],
    )


def _search(store: SessionStore, key: str, search: str, limit: int, *, as_json: bool) -> None:
    with Waiting("searching", wanted=not as_json) as waiting:
        found = store.search(key, search, limit + 1, tick=partial(waiting.reach, "indexing"))
    if len(found) > limit:
        click.echo(f"the first {many(limit, 'message')} of more; --limit shows more of them", err=True)
        found = found[:limit]
    if as_json:
        say_json(msgspec.to_builtins(found))
        return
    if not found:
        click.echo(f"nothing that was said in this session matches {clean(search, 80)!r}; try fewer or other words")
        return
    _say(
        ("id", "from", "when", "words"),
        [(clean((one.blob or one.entry)[:12]), clean(one.role), ago(one.at), clean(one.snippet)) for one in found],
        _around,
    )


def _around(snippet: str, room: int) -> str:
    """Return what was found so that the match is seen in ``room`` columns: as much before it as behind it."""
    start = snippet.find(OPEN)
    spare = max(0, room - (snippet.find(CLOSE, start) - start + 2)) // 2
    return snippet if len(snippet) <= room or start <= spare else f"…{snippet[start - spare :]}"


def _say(
    head: tuple[str, ...], rows: list[tuple[str, ...]], fitted: Callable[[str, int], str] = lambda text, _: text
) -> None:
    """Print a table, the last column as long as it is, or as it is ``fitted`` to the columns that are left."""
    from rich.text import Text

    every = [head, *rows]
    widths = [max(map(len, column)) for column in list(zip(*every, strict=True))[:-1]]
    out = console()
    room = out.width - sum(width + 2 for width in widths)
    for number, row in enumerate(every):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        say_line(out, Text("  ".join([*cells, fitted(row[-1], room)]), style="" if number else "bold"))
