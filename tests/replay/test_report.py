"""The report: figures as JSON and tables, and several sessions pooled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from holdfast.replay.measure import PolicyFigures
from holdfast.replay.recall import RecallCounts
from holdfast.replay.recall_at_cuts import CutScore
from holdfast.replay.report import (
    METRICS_VERSION,
    PolicyRow,
    ReportSubject,
    encode_policy_row,
    format_tokens_short,
    make_cut_table,
    make_policy_remarks,
    make_policy_table,
    make_policy_verdict,
    make_pool_heading,
    make_session_heading,
    note_strange_factor,
    pool_policy_rows,
    sum_policy_figures,
)


def make_figures(policy="holdfast", **changes) -> PolicyFigures:
    values = {
        "requests": 10,
        "invalid_requests": 0,
        "over_window": 0,
        "refused_requests": 0,
        "user_words_missing": 0,
        "tokens_sum": 1_000,
        "tokens_peak": 200,
        "cache_hit": 0.5,
        "usd": 1.0,
        "online": RecallCounts(8, 6, 10),
        "mutations": 1,
        "compactions": 2,
        "policy_ms_p50": 0.1,
        "policy_ms_p95": 3.0,
        "notes": (),
    }
    return PolicyFigures(policy=policy, **values | changes)


def make_subject(**changes) -> ReportSubject:
    values = {
        "file": "a.jsonl",
        "format": "pi",
        "window": 64_000,
        "usable": 48_000,
        "setup_tokens": 10_000,
        "api": "anthropic",
        "model": "claude-sonnet-4-5",
        "tokenizer": "o200k",
        "factor": 1.25,
        "messages": 30,
        "steps": 10,
        "peak_tokens": 130_000,
    }
    return ReportSubject(**values | changes)


def render(renderable, width=100) -> str:
    out = Console(width=width, color_system=None, force_terminal=False)
    with out.capture() as capture:
        out.print(renderable)
    return capture.get()


def test_encode_policy_row_is_json_with_ordered_notes():
    """Notes are those of the file, of the policy in this window, and of the run, in that order."""
    row = PolicyRow(make_figures(notes=("spill x2",)), {"8000": CutScore(4, 3, 2, 4)}, ("degenerate: too small",))
    found = json.loads(json.dumps(encode_policy_row(make_subject(problems=("line 3: broken",)), row)))
    assert found["notes"] == ["line 3: broken", "degenerate: too small", "spill x2"]
    assert (found["metrics"], found["online_recall"], found["online_fact_recall"]) == (METRICS_VERSION, 0.8, 0.6)
    assert found["cuts"]["8000"]["fact_recall"] == 0.5


def test_encode_policy_row_has_null_and_a_note_for_missing_figures():
    """A figure that could not be measured at one budget leaves the rest of the row, in the record and in the table."""
    scores = {"4000": CutScore(8), "8000": CutScore(8, 4, 2, 4, saved_bytes=1, max_saved=2, oracle=3, without_gain=1)}
    row = PolicyRow(make_figures("pi"), scores, missing_budgets={"4000": "no request fits"})
    found = encode_policy_row(make_subject(), row)
    notes = ["nothing measured at cuts of 4,000: no request fits"]
    notes.append("no z_gain at cuts of 8,000: computing it ran out of memory")
    assert found["notes"] == notes
    assert found["cuts"]["4000"] == dict.fromkeys(found["cuts"]["4000"], None) | {"dependencies": 8}
    assert (found["cuts"]["8000"]["z_gain"], found["cuts"]["8000"]["oracle"]) == (None, 0.375)
    assert render(make_cut_table([row])).splitlines()[-1].split() == ["pi", "-", "0.250", "0.375", "0.500", "-", "-"]
    assert make_policy_remarks([row]).plain == f"pi: {'; '.join(notes)}"


def test_pool_policy_rows_omits_missing_figures():
    """A session without a figure adds nothing to its pool, and a note says how many are missing."""
    complete, incomplete = (
        PolicyRow(make_figures(), {"4000": CutScore(10, 9, 8)}),
        PolicyRow(make_figures(), {"4000": CutScore(10)}),
    )
    incomplete = replace(incomplete, missing_budgets={"4000": "no request fits"})
    (half,) = pool_policy_rows([(make_subject(), [complete]), (make_subject(), [incomplete])])
    assert (half.cut_scores["4000"], half.missing_budgets) == (CutScore(10, 9, 8), {})
    assert half.notes == ("recall at cuts of 4,000 is without 1 of 2 sessions",)
    (none,) = pool_policy_rows([(make_subject(), [incomplete])])
    assert (none.cut_scores, none.missing_budgets, none.notes) == ({}, {"4000": "no request fits"}, ())


def test_encode_policy_row_has_null_recall_without_dependencies():
    """Without dependencies a recall is null, online and at cuts."""
    found = encode_policy_row(make_subject(), PolicyRow(make_figures(online=RecallCounts()), {"8000": CutScore()}))
    assert found["online_fact_recall"] is None
    assert found["cuts"]["8000"]["fact_recall"] is None


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=6))
def test_sum_policy_figures_is_a_micro_average(parts):
    """The cache hit of several sessions is that of all their tokens, and counts are sums."""
    runs = [
        make_figures(tokens_sum=tokens, cache_hit=hit, over_window=over, refused_requests=over)
        for tokens, hit, over in parts
    ]
    whole = sum_policy_figures(runs)
    read = sum(tokens * hit for tokens, hit, _ in parts)
    assert whole.cache_hit == pytest.approx(read / sum(tokens for tokens, _, _ in parts))
    assert whole.over_window == whole.refused_requests == sum(over for _, _, over in parts)
    assert whole.online.total == 10 * len(parts)


def test_pool_policy_rows_uses_long_sessions_for_cost_and_all_for_cuts():
    """A session under twice the window says nothing about cost, but its recall at cuts counts."""
    long, short = make_subject(), make_subject(peak_tokens=128_000)
    score = {"8000": CutScore(10, 9, 8, 10)}
    found = pool_policy_rows(
        [(long, [PolicyRow(make_figures(usd=2.0), score)]), (short, [PolicyRow(make_figures(usd=5.0), score)])]
    )
    assert [row.figures.usd for row in found] == [2.0]
    assert found[0].cut_scores["8000"].dependencies == 20
    assert "1 of 2 sessions" in make_pool_heading([long, short]).plain
    assert pool_policy_rows([(short, [PolicyRow(make_figures())])]) == []
    assert "no pool" in make_pool_heading([short]).plain


def test_make_policy_table_puts_holdfast_last():
    """Holdfast's row is the last one, whatever the order of the rows."""
    rows = [PolicyRow(make_figures(name)) for name in ("holdfast", "pi", "append-only")]
    names = [text.split()[0] for text in render(make_policy_table(rows, 100)).splitlines()[2:]]
    assert names == ["pi", "append-only", "holdfast"]


def test_make_policy_table_shows_cost_relative_to_append_only():
    """The cost is also given as a share of append-only's; without that run there is none."""
    rows = [PolicyRow(make_figures("append-only", usd=4.0)), PolicyRow(make_figures(usd=1.0))]
    assert "0.25" in render(make_policy_table(rows, 100))
    assert "0.25 × append-only" in make_policy_verdict(rows).plain
    assert "append-only" not in make_policy_verdict(rows[1:]).plain
    assert " - " in render(make_policy_table(rows[1:], 100))


def test_make_policy_table_marks_the_cheapest_policy_that_fits():
    """The cheapest policy whose requests fit is marked, not the cheapest of all."""
    rows = [
        PolicyRow(make_figures("sliding", usd=0.5, over_window=1, refused_requests=1)),
        PolicyRow(make_figures("pi", usd=0.9)),
        PolicyRow(make_figures()),
    ]
    table = make_policy_table(rows, 100)
    costs = [cell.style for column in table.columns if "cost" in str(column.header) for cell in column.cells]
    assert costs == ["", "green", ""]
    faults = [cell.style for column in table.columns if "window" in str(column.header) for cell in column.cells]
    assert faults == ["red", "", ""]


@pytest.mark.parametrize("width", [80, 96, 120])
def test_report_tables_fit_the_width(width):
    """With large figures in every column nothing is cut off or wrapped."""
    big = {
        "requests": 99_999,
        "usd": 9_999.99,
        "tokens_peak": 999_400,
        "compactions": 9_999,
        "policy_ms_p95": 9_999.0,
        "cache_hit": 1.0,
    }
    scores = {budget: CutScore(9, 9, 9, 9, 9, 9, 9, 9, 9, 9) for budget in ("4000", "8000", "16000")}
    rows = [PolicyRow(make_figures(name, **big), scores) for name in ("append-only", "claude-code", "holdfast")]
    for table, lines in ((make_policy_table(rows, width), 5), (make_cut_table(rows), 5)):
        text = render(table, width)
        assert "…" not in text
        assert len(text.splitlines()) == lines


def test_make_cut_table_is_none_without_dependencies():
    """A session that was not cut has no recall to show."""
    assert make_cut_table([PolicyRow(make_figures(), {"8000": CutScore()})]) is None


def test_make_cut_table_shows_the_interval_over_sessions():
    """The pooled recall at cuts has an interval that is drawn over whole sessions."""
    rows = [PolicyRow(make_figures(), {budget: CutScore(10, 9, 8, 10) for budget in ("4000", "8000", "16000")})]
    text = render(make_cut_table(rows, {"holdfast": [(4, 5), (4, 5)]}))
    assert "0.800-0.800" in text


def test_make_session_heading_shows_problems_and_factor():
    """Problems of the file are under its name, and a factor of 1 is not shown."""
    text = make_session_heading(make_subject(problems=("line 3: broken",))).plain
    assert "line 3: broken" in text
    assert "o200k × 1.25" in text
    assert "×" not in make_session_heading(make_subject(factor=1.0)).plain


def test_make_policy_remarks_has_a_line_for_each_policy():
    """Policies without notes are left out, and the gap between compactions is only in the JSON."""
    rows = [
        PolicyRow(make_figures("pi"), {}, ("degenerate: x",)),
        PolicyRow(make_figures("opencode", notes=("fewest steps between compactions: 3",))),
    ]
    assert make_policy_remarks(rows).plain == "pi: degenerate: x"


def test_make_policy_verdict_counts_refused_requests():
    """Invalid requests and those over the window are not called valid."""
    assert "all 10 requests" in make_policy_verdict([PolicyRow(make_figures())]).plain
    assert (
        "7 of 10 requests"
        in make_policy_verdict([PolicyRow(make_figures(invalid_requests=1, over_window=3, refused_requests=3))]).plain
    )
    assert make_policy_verdict([PolicyRow(make_figures("pi"))]).plain == ""


@given(st.integers(0, 10**9))
def test_format_tokens_short_has_at_most_seven_characters(tokens):
    """A number of tokens takes at most seven characters and is right to half of its last digit."""
    text = format_tokens_short(tokens)
    scale = {"k": 1_000, "M": 1_000_000}.get(text[-1], 1)
    assert len(text) <= 7
    digit = scale / 10 if "." in text else scale
    assert abs(float(text.rstrip("kM")) * scale - tokens) <= 0.5001 * digit


@pytest.mark.parametrize(("factor", "notes"), [(0.49, 1), (0.5, 0), (1.2, 0), (3.0, 0), (3.01, 1)])
def test_note_strange_factor_outside_the_range_of_tokenizers(factor, notes):
    """A factor between half and three times gives no note."""
    assert len(note_strange_factor(factor)) == notes
