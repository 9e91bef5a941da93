"""What a list shows of a session, from the last few entries of its log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.reports.describe import get_client_name
from holdfast.reports.requests.request_size import measure_session_request
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

ENTRIES_LOOKED_AT = 16
"""Entries read before a session's leaf. Chosen by judgement: the newest request and answer are among the last few, and
reading the whole log would make the list slow."""


class SessionListing(Struct, frozen=True):
    """A session as a list shows it. Fields that no request of ours reported are None."""

    info: SessionInfo
    client: str
    """The client that uses the session through the proxy; empty for other sessions."""
    messages: int | None = None
    tokens: int | None = None
    """Tokens of the newest request and its answer or, if that count is implausible, an estimate of the next request."""
    window: int | None = None
    is_answered: bool = True
    """Whether any of its requests was answered; True if there were none."""
    is_counted: bool = True
    """Whether ``tokens`` is a plausible count of the provider, not an estimate."""

    def to_record(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        record: dict[str, Any] = msgspec.to_builtins(self.info)
        record["entry_count"] = self.info.entry_count
        for name in ("client", "messages", "tokens", "window", "is_answered", "is_counted"):
            record[name] = getattr(self, name)
        return record


def describe_session(store: SessionStore, info: SessionInfo) -> SessionListing:
    """Describe a session for a list, reading only the last few entries of its log."""
    client = ""
    # The id of an imported session may look like one of the proxy's.
    if not info.format:
        client = get_client_name(info.key)
    newest = tuple(_iterate_newest_bodies(store, info))
    is_answered = any(isinstance(body, AnswerEntry) for body in newest)
    request = None
    later_messages = 0
    for body in newest:
        if isinstance(body, RequestEntry):
            request = body
            break
        if isinstance(body, MessageEntry):
            later_messages += 1
    tokens, is_counted = _get_session_size(store, info, newest)
    if request is None:
        is_refused = not is_answered and any(isinstance(body, FailureEntry) for body in newest)
        return SessionListing(info, client, None, tokens, is_answered=not is_refused, is_counted=is_counted)
    return SessionListing(
        info=info,
        client=client,
        messages=request.message_count + later_messages,
        tokens=tokens,
        window=_get_session_window(store, info, request) or None,
        is_answered=is_answered or _has_answer(store, info),
        is_counted=is_counted,
    )


def _get_session_size(store: SessionStore, info: SessionInfo, newest: Sequence[EntryBody]) -> tuple[int | None, bool]:
    """Return the tokens of the newest answer with its request, and whether the count is plausible; else an estimate.

    ``newest`` are bodies, the newest first. A count that grew about as much as the messages since the previous answer
    is plausible without reading the log; otherwise the folded log decides. Without any request or usage the size is
    None.
    """
    answer_places = [place for place, body in enumerate(newest) if isinstance(body, AnswerEntry)]
    usage = Usage()
    if answer_places:
        usage = _get_answer_usage(newest[answer_places[0]])
    has_request = any(isinstance(body, RequestEntry) for body in newest)
    if not usage.total and not has_request:
        return None, True
    if usage.total and _has_plausible_growth(newest, answer_places):
        return usage.total, True
    # A damaged session is listed all the same, with the size that its answer reported.
    with suppress(HoldfastError):
        state = store.open_size_state(info.key)
        measured_request = state.usage.measured_request
        is_believed = usage.total and measured_request is not None and measured_request.reported_tokens == usage.input
        if not is_believed:
            return measure_session_request(info, state).tokens, False
    return usage.total or None, True


def _has_plausible_growth(newest: Sequence[EntryBody], answer_places: Sequence[int]) -> bool:
    """Return whether the input grew about as much between the two newest answers as the messages between them."""
    if len(answer_places) < 2:
        return False
    at, before = answer_places[:2]
    # A compaction shrinks the input, so its growth tells nothing.
    if any(isinstance(body, CompactionEntry) for body in newest[:before]):
        return False
    # In the log an answer follows its own message. That message (at + 1) was not part of the answer's input, while
    # the message of the answer before (before + 1) was new in it.
    messages_between = [body for body in newest[at + 2 : before + 2] if isinstance(body, MessageEntry)]
    estimated_growth = sum(body.sized_message.tokens for body in messages_between)
    growth = _get_answer_usage(newest[at]).input - _get_answer_usage(newest[before]).input
    return MIN_CALIBRATION_RATIO * estimated_growth <= growth <= MAX_CALIBRATION_RATIO * estimated_growth


def _get_answer_usage(body: EntryBody) -> Usage:
    assert isinstance(body, AnswerEntry)
    return body.usage


def _has_answer(store: SessionStore, info: SessionInfo) -> bool:
    """Return whether any branch has an answer; True if the log cannot be read."""
    with suppress(HoldfastError):
        return bool(store.read_entries(info.key, "answer"))
    return True


def _get_session_window(store: SessionStore, info: SessionInfo, request: RequestEntry) -> int:
    """Return the window of the newest request, capped by the limit learned from overflows; 0 if unknown."""
    with suppress(HoldfastError):
        # Only a failure can teach a limit, and folding the log for it costs much more than this look-up.
        if request.window and store.read_entries(info.key, "failure"):
            learned_limits = store.open_size_state(info.key).usage.learned_limits
            return min_known_size(request.window, learned_limits.window_limit)
    return request.window


def _iterate_newest_bodies(store: SessionStore, info: SessionInfo) -> Iterator[EntryBody]:
    """Yield the bodies of the last entries before the leaf, the newest first, up to one that cannot be read."""
    at = info.leaf_id
    with suppress(HoldfastError):
        for _ in range(ENTRIES_LOOKED_AT):
            if at is None:
                return
            entry = store.get_entry(info.key, at)
            yield entry.body
            at = entry.parent


_AGE_UNITS = ((86_400 * 365, "y"), (86_400 * 30, "mo"), (86_400, "d"), (3_600, "h"), (60, "min"))


def format_age(at: int | None, now: float | None = None) -> str:
    """Format how long ago ``at`` (ms since 1970) was, in one unit."""
    if at is None:
        return "-"
    if now is None:
        now = time.time()
    seconds = now - at / 1_000
    # The largest unit first, so that the first one that fits is the one to show.
    for size, unit in _AGE_UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"
