"""The table of ``holdfast watch``, as a pure function of sessions, time and width."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.reports.watch_table import IDLE_SECONDS, limit_sessions, render_watch
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.sessions.watched_sessions import WatchedSession

NOW = 1_800_000_000.0
CLEAN_TEXTS = st.text(max_size=80).map(clean_single_line)
SESSIONS = st.builds(
    WatchedSession,
    session=st.text("abcdef0123456789-", min_size=1, max_size=40),
    name=CLEAN_TEXTS,
    client=CLEAN_TEXTS,
    model=CLEAN_TEXTS,
    tokens=st.integers(0, 10**9),
    is_counted=st.booleans(),
    window=st.integers(0, 10**9),
    requests=st.integers(0, 10**6),
    dollars=st.none() | st.floats(0, 1e7),
    unpriced_calls=st.integers(0, 5),
    cache_share=st.none() | st.floats(0, 1),
    miss_cause=st.sampled_from(["", "expired", "client-edit", "decision"]),
    missed_tokens=st.integers(0, 10**8),
    miss=CLEAN_TEXTS,
    compactions=st.integers(0, 10**5),
    decision=CLEAN_TEXTS,
    last_request_at=st.none() | st.integers(0, round(NOW * 1_000) + 10**6),
    problem=CLEAN_TEXTS,
)
BUSY = WatchedSession(
    session="claude-code-0123456789abcdef",
    name="Fix the login",
    client="claude-code",
    model="claude-sonnet-4-5",
    tokens=120_000,
    is_counted=True,
    window=200_000,
    requests=12,
    dollars=1.234,
    cache_share=0.87,
    miss_cause="client-edit",
    missed_tokens=12_345,
    miss="12,345 tokens were processed again: the client changed message 3 first",
    compactions=2,
    decision="prune 3: ~4,200 less",
    last_request_at=round(NOW * 1_000) - 7_000,
)


def print_frame(sessions: list[WatchedSession], width: int, *, color: str | None = None) -> list[str]:
    """Return the lines of the table as a terminal of ``width`` columns gets them."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
        force_terminal=bool(color),
        color_system=color,
    )
    console.print(render_watch(sessions, NOW, width))
    return stream.getvalue().splitlines()


@given(st.lists(SESSIONS, max_size=6), st.integers(40, 200))
def test_render_watch_keeps_every_line_within_the_width(sessions, width):
    """No line is wider than the terminal, whatever names, models and decisions are: it would wrap and break the view.

    Each session has exactly one line, after the heading.
    """
    lines = print_frame(sessions, width)
    assert all(cell_len(line) <= width for line in lines)
    table = lines[: lines.index("")] if any(shown.miss for shown in sessions) and "" in lines else lines
    if all(shown.name for shown in sessions) and not any(shown.miss for shown in sessions):
        assert len(table) == len(sessions) + 1


def test_render_watch_shows_all_figures_in_a_wide_terminal():
    """Name, client, model, bar, tokens of the window, cost, cache, miss, compactions, decision and idle time."""
    heading, row, _, sentence = print_frame([BUSY], 200)
    columns = [
        "session",
        "client",
        "model",
        "context",
        "tokens",
        "cost",
        "cache",
        "last miss",
        "comp.",
        "last decision",
    ]
    assert " ".join(heading.split()) == " ".join([*columns, "idle"])
    for cell in (
        "Fix the login",
        "claude-code",
        "claude-sonnet-4-5",
        "██████░░░░  60%",
        "120,000 of 200,000",
        "$1.23",
        "87%",
        "client-edit 12,345",
        "prune 3: ~4,200 less",
        "7 s",
    ):
        assert cell in row
    assert sentence == f"last cache miss of Fix the login: {BUSY.miss}"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_render_watch_drops_whole_columns_in_a_narrow_terminal(width):
    """What is left is readable: the name, the bar and the idle time always stand, and no heading is cut."""
    heading, row, *_ = print_frame([BUSY], width)
    assert "…" not in heading
    assert {"session", "context", "idle"} <= set(heading.split())
    assert "██████░░░░  60%" in row
    assert row.rstrip().endswith("7 s")


def test_render_watch_dims_idle_sessions():
    """A session whose newest request is five minutes old is dim, and one a second younger is not."""
    base = round(NOW * 1_000)
    idle = WatchedSession("a", "idle one", "", last_request_at=base - IDLE_SECONDS * 1_000)
    active = WatchedSession("b", "active one", "", last_request_at=base - (IDLE_SECONDS - 1) * 1_000)
    lines = print_frame([active, idle], 100, color="standard")
    dim = "\x1b[2m"
    assert not lines[1].startswith(dim)
    assert lines[2].startswith(dim)


def test_render_watch_says_what_is_not_known():
    """A cost without any price, a cache that nobody reported and a session without requests are dashes, not zeros."""
    (_, row) = print_frame([WatchedSession("a", "new", "")], 200)
    assert row.split() == ["new", "-", "-", "-", "-", "-", "-", "-", "0", "-", "-"]


@given(st.lists(SESSIONS.filter(lambda shown: shown.name), min_size=1, max_size=40), st.integers(10, 60))
def test_limit_sessions_fits_the_screen(sessions, height):
    """The lines of the limited table fit a screen of that height, with a line for the store's state and one for the
    rest, and at least one session is shown."""
    shown = limit_sessions(sessions, height, 80)
    assert shown
    assert shown == tuple(sessions[: len(shown)])
    assert len(print_frame(list(shown), 80)) + 2 <= height
