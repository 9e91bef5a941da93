"""``holdfast ls``: the sessions of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast.cli.describing import client_of, shortest
from holdfast.cli.places import absence, opened, store_option, store_place
from holdfast.cli.ranges import Whole
from holdfast.cli.terminal import clean, console, fitting, json_option, say_json, say_line
from holdfast.errors import HoldfastError
from holdfast.model.entries import Answer, Body, Request, Said
from holdfast.model.gauging import smaller
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast ls
  holdfast ls --limit 5 --json
"""
NEAR = 16
"""[H] Entries before the leaf of a session that are looked at: its newest request and answer are the last of all."""
LEFT = 2
"""Columns that are words."""
SPARE = (2, 1, 3, 4)
"""Columns that go where there is no room, in this order: when it began, whose it is, when it changed, messages."""
TITLE = 12
"""Columns of the screen that are left for titles."""


@click.command("ls", epilog=EXAMPLES)
@click.option("-n", "--limit", type=Whole(1), help="How many, the last changed first. [default: all]")
@store_option
@json_option("the sessions")
def command(limit: int | None, store: str | None, *, as_json: bool) -> None:
    """List the sessions of the store, the last changed first.

    The ids are shown as short as they can be told apart; any command takes them like that. Messages and tokens are
    those of the newest request and its answer, where the session was talked on through Holdfast; "no answer" stands
    there where none of its requests ever had one, and holdfast show tells why. Columns that have no room are left out.
    """
    with opened(store, readonly=True) as there:
        everything = there.sessions()
        sessions = [listed(there, info) for info in everything[:limit]]
    if not sessions and (why := absence(store)):
        click.echo(why, err=True)
        if as_json:
            say_json([])
    elif as_json:
        say_json([one.as_json() for one in sessions])
    elif not sessions:
        click.echo(f"no sessions in {clean(store_place(store).where)}; holdfast import FILE takes one in")
    else:
        _say(sessions, [info.key for info in everything])


class Listed(Struct, frozen=True):
    """A session as a list shows it. What no request of ours tells is nothing."""

    info: SessionInfo
    client: str
    """Who talks through the proxy in it; empty for a session that does not come from there."""
    messages: int | None = None
    tokens: int | None = None
    """What the newest request came to, its answer too, as the provider counted."""
    window: int | None = None
    answered: bool = True
    """Whether any of its requests had an answer, where there were some."""

    def as_json(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        told = {name: getattr(self, name) for name in ("client", "messages", "tokens", "window", "answered")}
        info: dict[str, Any] = msgspec.to_builtins(self.info)
        return info | {"entries": self.info.entries} | told


def listed(store: SessionStore, info: SessionInfo) -> Listed:
    """Return what a list shows of a session; of its log only the last few entries are read."""
    request, answer, behind = None, None, 0
    client = "" if info.format else client_of(info.key)  # an import may have an id of that form
    for body in _newest(store, info):
        if request is None:
            request = body if isinstance(body, Request) else None
            behind += isinstance(body, Said)
        answer = body if answer is None and isinstance(body, Answer) else answer
    tokens = answer.usage.total or None if answer is not None else None
    if request is None:
        return Listed(info, client, None, tokens)
    answered, window = answer is not None or _is_answered(store, info), _window(store, info, request) or None
    return Listed(info, client, request.slots + behind, tokens, window, answered)


def _is_answered(store: SessionStore, info: SessionInfo) -> bool:
    """Whether there is an answer on any branch; so it is taken to be where that cannot be read."""
    with suppress(HoldfastError):
        return bool(store.entries(info.key, "answer"))
    return True


def _window(store: SessionStore, info: SessionInfo, request: Request) -> int:
    """Return the window of the newest request, or what overflows told of it; 0 where it is not known."""
    with suppress(HoldfastError):
        if request.window and store.entries(info.key, "failure"):
            return smaller(request.window, store.branch(info.key).learned.limit)
    return request.window


def _newest(store: SessionStore, info: SessionInfo) -> Iterator[Body]:
    """Yield what the last entries before the leaf are, the newest first; what cannot be read ends it."""
    at = info.leaf
    with suppress(HoldfastError):
        for _ in range(NEAR):
            if at is None:
                return
            entry = store.entry(info.key, at)
            yield entry.body
            at = entry.parent


def _say(sessions: list[Listed], keys: list[str]) -> None:
    from rich.text import Text

    short = shortest(keys)
    rows: list[tuple[str, ...]] = [("id", "from", "began", "changed", "messages", "tokens", "title")]
    rows += [_row(one, short[one.info.key]) for one in sessions]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = console()
    kept = fitting([row[:-1] for row in rows], SPARE, out.width - TITLE - 2)
    for number, row in enumerate(rows):
        cells = [f"{row[at]:{'<' if at < LEFT else '>'}{widths[at]}}" for at in kept]
        say_line(out, Text("  ".join([*cells, row[-1]]).rstrip(), style="" if number else "bold"))


def _row(one: Listed, short: str) -> tuple[str, ...]:
    info = one.info
    messages, tokens = ("-" if number is None else f"{number:,}" for number in (one.messages, one.tokens))
    return (
        clean(short),
        one.client or info.format,
        ago(info.created),
        ago(info.updated),
        messages,
        tokens if one.answered else "no answer",
        clean(info.title),
    )


_UNITS = ((86_400 * 365, "y"), (86_400 * 30, "mo"), (86_400, "d"), (3_600, "h"), (60, "min"))


def ago(at: int | None, now: float | None = None) -> str:
    """Return how long ago ``at`` (ms since 1970) was, in one unit."""
    if at is None:
        return "-"
    seconds = (time.time() if now is None else now) - at / 1_000
    return next((f"{int(seconds // size)} {unit} ago" for size, unit in _UNITS if seconds >= size), "now")
