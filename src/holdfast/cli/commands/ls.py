"""``holdfast ls``: the sessions of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast.cli.files.user_paths import describe_missing_store, locate_store, open_named_store, store_option
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import (
    ProgressBar,
    choose_columns,
    clean_single_line,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_more_hint,
)
from holdfast.cli.reports.describe import get_client_name, shorten_session_keys
from holdfast.cli.reports.request_size import format_tokens, measure_session_request
from holdfast.errors import HoldfastError
from holdfast.state.calibration.calibration import MAX_CALIBRATION_RATIO, MIN_CALIBRATION_RATIO, min_known_size
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    EntryBody,
    FailureEntry,
    MessageEntry,
    RequestEntry,
    Usage,
)
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast ls
  holdfast ls --limit 5 --json
"""
DEFAULT_LIST_LIMIT = 100
"""[H] Sessions that are listed for a person, unless another number is asked for."""
ENTRIES_LOOKED_AT = 16
"""[H] Entries before the leaf of a session that are looked at: its newest request and answer are the last of all."""
LEFT_ALIGNED = 2
"""Columns that are words."""
DROPPABLE_COLUMNS = (2, 1, 3, 4)
"""Columns that go where there is no room, in this order: when it began, whose it is, when it changed, messages."""
MIN_TITLE_WIDTH = 12
"""Columns of the screen that are left for titles."""


@click.command("ls", epilog=EXAMPLES)
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    help=f"How many, the last changed first. [default: {DEFAULT_LIST_LIMIT}, as JSON all]",
)
@store_option
@make_json_option("the sessions")
def command(limit: int | None, store: str | None, *, as_json: bool) -> None:
    """List the sessions of the store, the last changed first.

    The ids are shown as short as they can be told apart; any command takes them like that. Messages and tokens are
    those of the newest request and its answer, where the session was talked on through Holdfast; a ~ says that no count
    was told, or none that is believed, and the number is an estimate. "no answer" stands there where none of its
    requests ever had one, and holdfast show tells why. Columns that have no room are left out.
    """
    with open_named_store(store, readonly=True) as there:
        everything = there.list_sessions()
        infos = everything[: limit or (None if as_json else DEFAULT_LIST_LIMIT)]
        with ProgressBar(is_wanted=not as_json) as waiting:
            sessions = [describe_session(there, info) for info in waiting.track_items("sessions", infos)]
    if not sessions and (why := describe_missing_store(store)):
        click.echo(why, err=True)
        if as_json:
            print_json([])
    elif as_json:
        print_json([session.to_record() for session in sessions])
    elif not sessions:
        click.echo(f"no sessions in {clean_single_line(locate_store(store).url)}; holdfast import FILE takes one in")
    else:
        _print_sessions(sessions, [info.key for info in everything])
        print_more_hint(len(everything) - len(sessions), "session", "--limit")


class SessionListing(Struct, frozen=True):
    """A session as a list shows it. What no request of ours tells is nothing."""

    info: SessionInfo
    client: str
    """Who talks through the proxy in it; empty for a session that does not come from there."""
    messages: int | None = None
    tokens: int | None = None
    """What the newest request came to, its answer too; where its count is not believed, what the next one will."""
    window: int | None = None
    is_answered: bool = True
    """Whether any of its requests had an answer, where there were some."""
    is_counted: bool = True
    """Whether ``tokens`` are as the provider counted them, and is believed; else they are an estimate."""

    def to_record(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        figures = {
            name: getattr(self, name)
            for name in ("client", "messages", "tokens", "window", "is_answered", "is_counted")
        }
        info: dict[str, Any] = msgspec.to_builtins(self.info)
        return info | {"entry_count": self.info.entry_count} | figures


def describe_session(store: SessionStore, info: SessionInfo) -> SessionListing:
    """Return what a list shows of a session; of its log only the last few entries are read."""
    request, is_answered, behind = None, False, 0
    client = "" if info.format else get_client_name(info.key)  # an import may have an id of that form
    newest = tuple(_iterate_newest_bodies(store, info))
    for body in newest:
        if request is None:
            request = body if isinstance(body, RequestEntry) else None
            behind += isinstance(body, MessageEntry)
        is_answered = is_answered or isinstance(body, AnswerEntry)
    tokens, is_counted = _get_session_size(store, info, newest)
    if request is None:
        is_refused = not is_answered and any(isinstance(body, FailureEntry) for body in newest)
        return SessionListing(info, client, None, tokens, is_answered=not is_refused, is_counted=is_counted)
    has_answer, window = is_answered or _has_answer(store, info), _get_session_window(store, info, request) or None
    return SessionListing(info, client, request.message_count + behind, tokens, window, has_answer, is_counted)


def _get_session_size(store: SessionStore, info: SessionInfo, newest: Sequence[EntryBody]) -> tuple[int | None, bool]:
    """Return what the newest answer and its request came to, and whether that is believed; else the estimate.

    What grew by as much as was said is; all else the log as a whole tells. Of a session without any request nobody
    estimates what no answer told.
    """
    at, *before = [place for place, body in enumerate(newest) if isinstance(body, AnswerEntry)] or [-1]
    usage = _get_answer_usage(newest[at]) if at >= 0 else Usage()
    if not (usage.total or any(isinstance(body, RequestEntry) for body in newest)):
        return None, True
    if usage.total and before and not any(isinstance(body, CompactionEntry) for body in newest[: before[0]]):
        estimated_growth = sum(
            body.sized_message.tokens for body in newest[at + 2 : before[0] + 2] if isinstance(body, MessageEntry)
        )
        if (
            MIN_CALIBRATION_RATIO * estimated_growth
            <= usage.input - _get_answer_usage(newest[before[0]]).input
            <= MAX_CALIBRATION_RATIO * estimated_growth
        ):
            return usage.total, True
    with suppress(HoldfastError):
        state = store.open_size_state(info.key)
        if (
            not usage.total
            or state.usage.measured_request is None
            or state.usage.measured_request.reported_tokens != usage.input
        ):
            return measure_session_request(info, state).tokens, False
    return usage.total or None, True


def _get_answer_usage(body: EntryBody) -> Usage:
    assert isinstance(body, AnswerEntry)
    return body.usage


def _has_answer(store: SessionStore, info: SessionInfo) -> bool:
    """Whether there is an answer on any branch; so it is taken to be where that cannot be read."""
    with suppress(HoldfastError):
        return bool(store.read_entries(info.key, "answer"))
    return True


def _get_session_window(store: SessionStore, info: SessionInfo, request: RequestEntry) -> int:
    """Return the window of the newest request, or what overflows told of it; 0 where it is not known."""
    with suppress(HoldfastError):
        if request.window and store.read_entries(info.key, "failure"):
            return min_known_size(request.window, store.open_size_state(info.key).usage.learned_limits.window_limit)
    return request.window


def _iterate_newest_bodies(store: SessionStore, info: SessionInfo) -> Iterator[EntryBody]:
    """Yield what the last entries before the leaf are, the newest first; what cannot be read ends it."""
    at = info.leaf_id
    with suppress(HoldfastError):
        for _ in range(ENTRIES_LOOKED_AT):
            if at is None:
                return
            entry = store.get_entry(info.key, at)
            yield entry.body
            at = entry.parent


def _print_sessions(sessions: list[SessionListing], keys: list[str]) -> None:
    from rich.text import Text

    short = shorten_session_keys(keys)
    rows: list[tuple[str, ...]] = [("id", "from", "began", "changed", "messages", "tokens", "title")]
    rows += [_make_session_row(session, short[session.info.key]) for session in sessions]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = make_console()
    columns = choose_columns([row[:-1] for row in rows], DROPPABLE_COLUMNS, out.width - MIN_TITLE_WIDTH - 2)
    for number, row in enumerate(rows):
        cells = [f"{row[at]:{'<' if at < LEFT_ALIGNED else '>'}{widths[at]}}" for at in columns]
        print_line(out, Text("  ".join([*cells, row[-1]]).rstrip(), style="" if number else "bold"))


def _make_session_row(session: SessionListing, short_key: str) -> tuple[str, ...]:
    info = session.info
    messages = "-" if session.messages is None else f"{session.messages:,}"
    tokens = "-" if session.tokens is None else format_tokens(session.tokens, is_counted=session.is_counted)
    return (
        clean_single_line(short_key),
        session.client or info.format,
        format_age(info.created_at),
        format_age(info.updated_at),
        messages,
        tokens if session.is_answered else "no answer",
        clean_single_line(info.title),
    )


_AGE_UNITS = ((86_400 * 365, "y"), (86_400 * 30, "mo"), (86_400, "d"), (3_600, "h"), (60, "min"))


def format_age(at: int | None, now: float | None = None) -> str:
    """Return how long ago ``at`` (ms since 1970) was, in one unit."""
    if at is None:
        return "-"
    seconds = (time.time() if now is None else now) - at / 1_000
    return next((f"{int(seconds // size)} {unit} ago" for size, unit in _AGE_UNITS if seconds >= size), "now")
