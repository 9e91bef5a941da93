"""The picture of a replay: a row for each request, bars of kinds, and marks of decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.replay.cache import CacheUse
from holdfast.replay.measure import RequestPoint
from holdfast.replay.picture import CONTENT_KINDS, draw_policy_picture, group_requests


def make_point(
    step=0, tokens=20_000, event="", kinds=None, hit=CacheUse(15_000, 4_000, 1_000), usd=0.01
) -> RequestPoint:
    return RequestPoint(step, tokens, kinds or {"setup": 10_000, "results": tokens - 10_000}, hit, usd, event)


def make_points(*events: str) -> list[RequestPoint]:
    return [make_point(step, 11_000 + 100 * step, event) for step, event in enumerate(events)]


EVENTS = st.lists(st.sampled_from(["", "", "", "", "compaction", "slide", "spill", "prune"]), max_size=200)


@given(EVENTS, st.integers(1, 40))
def test_group_requests_keeps_every_request_once_in_order(events, rows):
    """No request is left out or shown twice, and the number of lines is limited."""
    all_points = make_points(*events)
    found = group_requests(all_points, rows)
    assert [point for group in found for point in group.points] == all_points
    assert len(found) <= rows
    assert len(found) == min(rows, len(all_points))
    assert [group.first for group in found] == [sum(len(g.points) for g in found[:at]) for at in range(len(found))]


@given(st.integers(20, 300), st.sets(st.integers(0, 299), max_size=8))
def test_group_requests_gives_compactions_their_own_lines(count, drops):
    """Where there are enough lines, a compaction is not hidden in a group."""
    events = ["compaction" if at in drops else "" for at in range(count)]
    alone = {group.first for group in group_requests(make_points(*events), 28) if len(group.points) == 1}
    assert {drop for drop in drops if drop < count} <= alone


def list_bar_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.lstrip().startswith("#")]


@given(EVENTS.filter(bool), st.sampled_from([80, 100, 120]), st.booleans())
def test_draw_policy_picture_fits_the_terminal_width(events, width, letters):
    """Bars, figures and marks fit into the width, with colours or letters."""
    text = draw_policy_picture("holdfast", make_points(*events), 64_000, 48_000, width, letters=letters).plain
    assert max(map(len, text.splitlines())) <= width
    assert len(list_bar_lines(text)) <= 28
    assert len(text.splitlines()) <= 34


def test_draw_policy_picture_divides_bars_by_tokens():
    """Cells are divided by tokens with the setup first, and the mark is at the usable part."""
    kinds = {"setup": 16_000, "summary": 8_000, "user": 8_000, "results": 8_000}
    text = draw_policy_picture(
        "holdfast", [make_point(0, 40_000, kinds=kinds)], 64_000, 48_000, 120, letters=True
    ).plain
    bar = list_bar_lines(text)[0].split()[1]
    assert bar == "p" * 15 + "S" * 7 + "u" * 8 + "R" * 8 + "·" * 7 + "│" + "·" * 14


def test_draw_policy_picture_merges_related_kinds():
    """System messages are drawn as setup and tool text as results, so that every measured token is in the bar."""
    kinds = {"setup": 8_000, "system": 8_000, "tool": 8_000, "results": 8_000}
    text = draw_policy_picture("x", [make_point(0, 32_000, kinds=kinds)], 64_000, 48_000, 120, letters=True).plain
    assert list_bar_lines(text)[0].split()[1].startswith("p" * 15 + "R" * 15 + "·")


def test_draw_policy_picture_marks_requests_over_the_window():
    """The bar of the largest request is full, and a request over the window is marked."""
    small, large = make_point(0, 20_000), make_point(1, 128_000)
    lines = list_bar_lines(draw_policy_picture("append-only", [small, large], 64_000, 48_000, 120, letters=True).plain)
    assert "·" not in lines[1].split()[1]
    assert lines[1].endswith("✗")
    assert "✗" not in lines[0]


def test_draw_policy_picture_shows_sizes_around_a_compaction():
    """The event shows the size of the request before the compaction and the size after it."""
    shown = [make_point(0, 47_900), make_point(1, 22_100, "compaction"), make_point(2, 23_000, "spill")]
    lines = list_bar_lines(draw_policy_picture("holdfast", shown, 64_000, 48_000).plain)
    assert lines[1].endswith("⟱ 48k→22k")
    assert lines[2].endswith("✂")


def test_draw_policy_picture_counts_compactions_in_a_group():
    """Where compactions cannot be shown one by one, their number is shown."""
    shown = [make_point(step, 20_000, "slide") for step in range(100)]
    assert "⟱×4" in draw_policy_picture("sliding", shown, 64_000, 48_000).plain


def test_draw_policy_picture_shows_the_cache_share():
    """A request read from the cache has a full cell, and one that was not has an empty cell."""
    warm, cold = make_point(hit=CacheUse(100, 0, 0)), make_point(hit=CacheUse(0, 60, 40))
    lines = list_bar_lines(draw_policy_picture("x", [warm, cold], 64_000, 48_000).plain)
    assert "█100%" in lines[0]
    assert "   0%" in lines[1]


def test_draw_policy_picture_letters_match_the_legend():
    """Every kind has its own letter and is in the legend, and with colours no letter is drawn."""
    assert len({kind.letter for kind in CONTENT_KINDS}) == len(CONTENT_KINDS)
    kinds = {kind.name: 4_000 for kind in CONTENT_KINDS}
    drawn = draw_policy_picture("x", [make_point(0, 32_000, kinds=kinds)], 64_000, 48_000, 120, letters=True).plain
    bar = list_bar_lines(drawn)[0].split()[1]
    assert set(bar) - {"·", "│"} == {kind.letter for kind in CONTENT_KINDS}
    coloured = draw_policy_picture("x", [make_point(0, 32_000, kinds=kinds)], 64_000, 48_000, 120).plain
    assert set(list_bar_lines(coloured)[0].split()[1]) == {"█", "·", "│"}
    assert all(kind.name in coloured and kind.name in drawn for kind in CONTENT_KINDS)


@pytest.mark.parametrize("count", [0, 1])
def test_draw_policy_picture_handles_short_sessions(count):
    """No request gives a sentence, and one request gives one line."""
    text = draw_policy_picture("x", [make_point()] * count, 64_000, 48_000).plain
    assert len(list_bar_lines(text)) == count
    assert text
