"""``holdfast ls``: the sessions of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, fitting, json_option, say_json, say_line, say_more
from holdfast.cli.places import absence, opened, store_option, store_place
from holdfast.cli.reports.describe import client_of, shortest
from holdfast.cli.reports.request_size import about, measured_in
from holdfast.errors import HoldfastError
from holdfast.state.calibration.calibration import HIGHEST, LOWEST, smaller
from holdfast.state.entries import Answer, Body, Compaction, Failure, Request, Said, Usage
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast ls
  holdfast ls --limit 5 --json
"""
MOST = 100
"""[H] Sessions that are listed for a person, unless another number is asked for."""
NEAR = 16
"""[H] Entries before the leaf of a session that are looked at: its newest request and answer are the last of all."""
LEFT = 2
"""Columns that are words."""
SPARE = (2, 1, 3, 4)
"""Columns that go where there is no room, in this order: when it began, whose it is, when it changed, messages."""
TITLE = 12
"""Columns of the screen that are left for titles."""


@click.command("ls", epilog=EXAMPLES)
@click.option("-n", "--limit", type=Whole(1), help=f"How many, the last changed first. [default: {MOST}, as JSON all]")
@store_option
@json_option("the sessions")
def command(limit: int | None, store: str | None, *, as_json: bool) -> None:
    """List the sessions of the store, the last changed first.

    The ids are shown as short as they can be told apart; any command takes them like that. Messages and tokens are
    those of the newest request and its answer, where the session was talked on through Holdfast; a ~ says that no count
    was told, or none that is believed, and the number is an estimate. "no answer" stands there where none of its
    requests ever had one, and holdfast show tells why. Columns that have no room are left out.
    """
    with opened(store, readonly=True) as there:
        everything = there.sessions()
        some = everything[: limit or (None if as_json else MOST)]
        with Waiting(wanted=not as_json) as waiting:
            sessions = [listed(there, info) for info in waiting.over("sessions", some)]
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
        say_more(len(everything) - len(sessions), "session", "--limit")


class Listed(Struct, frozen=True):
    """A session as a list shows it. What no request of ours tells is nothing."""

    info: SessionInfo
    client: str
    """Who talks through the proxy in it; empty for a session that does not come from there."""
    messages: int | None = None
    tokens: int | None = None
    """What the newest request came to, its answer too; where its count is not believed, what the next one will."""
    window: int | None = None
    answered: bool = True
    """Whether any of its requests had an answer, where there were some."""
    counted: bool = True
    """Whether ``tokens`` are as the provider counted them, and is believed; else they are an estimate."""

    def as_json(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        told = {name: getattr(self, name) for name in ("client", "messages", "tokens", "window", "answered", "counted")}
        info: dict[str, Any] = msgspec.to_builtins(self.info)
        return info | {"entries": self.info.entries} | told


def listed(store: SessionStore, info: SessionInfo) -> Listed:
    """Return what a list shows of a session; of its log only the last few entries are read."""
    request, is_answered, behind = None, False, 0
    client = "" if info.format else client_of(info.key)  # an import may have an id of that form
    newest = tuple(_newest(store, info))
    for body in newest:
        if request is None:
            request = body if isinstance(body, Request) else None
            behind += isinstance(body, Said)
        is_answered = is_answered or isinstance(body, Answer)
    tokens, is_counted = _size(store, info, newest)
    if request is None:
        is_refused = not is_answered and any(isinstance(body, Failure) for body in newest)
        return Listed(info, client, None, tokens, answered=not is_refused, counted=is_counted)
    answered, window = is_answered or _is_answered(store, info), _window(store, info, request) or None
    return Listed(info, client, request.slots + behind, tokens, window, answered, is_counted)


def _size(store: SessionStore, info: SessionInfo, newest: Sequence[Body]) -> tuple[int | None, bool]:
    """Return what the newest answer and its request came to, and whether that is believed; else the estimate.

    What grew by as much as was said is; all else the log as a whole tells. Of a session without any request nobody
    estimates what no answer told.
    """
    at, *before = [place for place, body in enumerate(newest) if isinstance(body, Answer)] or [-1]
    told = _usage(newest[at]) if at >= 0 else Usage()
    if not (told.total or any(isinstance(body, Request) for body in newest)):
        return None, True
    if told.total and before and not any(isinstance(body, Compaction) for body in newest[: before[0]]):
        said = sum(body.slot.size for body in newest[at + 2 : before[0] + 2] if isinstance(body, Said))
        if LOWEST * said <= told.input - _usage(newest[before[0]]).input <= HIGHEST * said:
            return told.total, True
    with suppress(HoldfastError):
        branch = store.bare(info.key)
        if not told.total or branch.measured is None or branch.measured.tokens != told.input:
            return measured_in(info, branch).tokens, False
    return told.total or None, True


def _usage(body: Body) -> Usage:
    assert isinstance(body, Answer)
    return body.usage


def _is_answered(store: SessionStore, info: SessionInfo) -> bool:
    """Whether there is an answer on any branch; so it is taken to be where that cannot be read."""
    with suppress(HoldfastError):
        return bool(store.entries(info.key, "answer"))
    return True


def _window(store: SessionStore, info: SessionInfo, request: Request) -> int:
    """Return the window of the newest request, or what overflows told of it; 0 where it is not known."""
    with suppress(HoldfastError):
        if request.window and store.entries(info.key, "failure"):
            return smaller(request.window, store.bare(info.key).learned.limit)
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
    messages = "-" if one.messages is None else f"{one.messages:,}"
    tokens = "-" if one.tokens is None else about(one.tokens, is_counted=one.counted)
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
