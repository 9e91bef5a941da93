"""``holdfast ls``: the sessions of the store."""

from __future__ import annotations

import time

import click
import msgspec

from holdfast.cli.describing import shortest
from holdfast.cli.places import is_missing, opened, store_option, store_place
from holdfast.cli.terminal import clean, console, json_option, say_json, say_line
from holdfast.store.base import SessionInfo

EXAMPLES = """\
\b
Examples:
  holdfast ls
  holdfast ls --limit 5 --json
"""


@click.command("ls", epilog=EXAMPLES)
@click.option("-n", "--limit", type=click.IntRange(1), help="How many, the last changed first. [default: all]")
@store_option
@json_option("the sessions")
def command(limit: int | None, store: str | None, *, as_json: bool) -> None:
    """List the sessions of the store, the last changed first.

    The ids are shown as short as they can be told apart; any command takes them like that.
    """
    with opened(store, readonly=True) as there:
        everything = there.sessions()
    sessions = everything[:limit]
    where = store_place(store).where
    if not sessions and is_missing(where):
        click.echo(f"there is no store at {clean(where)}; holdfast import FILE makes it", err=True)
        if as_json:
            say_json([])
    elif as_json:
        say_json([msgspec.to_builtins(info) | {"entries": info.entries} for info in sessions])
    elif not sessions:
        click.echo(f"no sessions in {clean(where)}; holdfast import FILE takes one in")
    else:
        _say(sessions, [info.key for info in everything])


def _say(sessions: list[SessionInfo], keys: list[str]) -> None:
    from rich.text import Text

    short = shortest(keys)
    rows = [("id", "from", "entries", "changed", "title")]
    rows += [
        (clean(short[info.key]), info.format, f"{info.entries:,}", ago(info.updated), clean(info.title))
        for info in sessions
    ]
    id_, from_, entries, changed = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:4])
    out = console()
    for number, row in enumerate(rows):
        line = f"{row[0]:{id_}}  {row[1]:{from_}}  {row[2]:>{entries}}  {row[3]:>{changed}}  {row[4]}"
        say_line(out, Text(line, style="" if number else "bold"))


_UNITS = ((86_400 * 365, "y"), (86_400 * 30, "mo"), (86_400, "d"), (3_600, "h"), (60, "min"))


def ago(at: int | None, now: float | None = None) -> str:
    """Return how long ago ``at`` (ms since 1970) was, in one unit."""
    if at is None:
        return "-"
    seconds = (time.time() if now is None else now) - at / 1_000
    return next((f"{int(seconds // size)} {unit} ago" for size, unit in _UNITS if seconds >= size), "now")
