"""The report: figures as JSON and as tables. It returns values and rich renderables; nothing is printed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.messages.text.counts import format_count
from holdfast.replay.losses import LossReport, encode_losses, pool_losses
from holdfast.replay.measure import COMPACTION_GAP_NOTE, PolicyFigures, SummaryFigures, encode_cuts
from holdfast.replay.recall import RecallCounts
from holdfast.replay.recall_at_cuts import CutScore, compute_interval, pool_scores

METRICS_VERSION = 1
"""Version of the definitions in docs/metrics.md that all figures here follow."""
JUDGED_WINDOWS = 2
"""Sessions are pooled if their append-only peak exceeds so many windows (docs/metrics.md, "Several sessions")."""
BASELINE_POLICY = "append-only"
OUR_POLICY = "holdfast"
HEADLINE_BUDGET = "8000"
"""The budget in tokens for which the table of cuts shows more than fact recall."""
FULL_TABLE_WIDTH = 96
"""Width from which the table shows every figure."""
DROPPABLE_COLUMNS_ORDER = (
    "requests", "ms\np95", "compac-\ntions", "tokens\npeak", "cost\n$", "words\nlost", "cache\nhit", "over\nwindow",
    "invalid", "×\nappend",
)  # fmt: skip
"""Columns in the order in which they are dropped on a narrow terminal; ``--json`` has them all."""
_CUTS_TITLE = "at cuts, kept in"
_BEST_STYLE, _BAD_STYLE, _DIM_STYLE = "green", "red", "dim"


USUAL_FACTOR = (0.5, 3.0)
"""Usual range of recorded tokens for one token of the tokenizer: no provider's tokenizer differs more."""


class ReportSubject(Struct, frozen=True):
    """One session under one setting: the things that all rows of its table share. Sizes are tokens."""

    file: str
    format: str
    window: int
    usable: int
    setup_tokens: int
    api: str
    model: str
    tokenizer: str
    factor: float
    """Recorded tokens for one token of the tokenizer."""
    messages: int
    steps: int
    peak_tokens: int
    """The largest request if nothing were ever removed."""
    problems: tuple[str, ...] = ()
    """Things that are wrong with the file, or strange about it."""
    repository: str = ""
    repository_origin: str = ""
    """How the repository is known."""

    @property
    def is_judged(self) -> bool:
        """Whether the session is long enough to be judged for cost."""
        return self.peak_tokens > JUDGED_WINDOWS * self.window


class PolicyRow(Struct, frozen=True):
    """One policy over one session, or over several."""

    figures: PolicyFigures
    cut_scores: dict[str, CutScore] = {}
    notes: tuple[str, ...] = ()
    """Remarks beside the figures, for example about a degenerate preset."""
    missing_budgets: dict[str, str] = {}
    """Budgets of ``cut_scores`` that could not be measured, each with the reason."""
    losses: LossReport | None = None
    """Where facts were lost; None if that was not asked for."""

    @property
    def is_sound(self) -> bool:
        """Whether every request would have been accepted."""
        return not self.figures.refused_requests

    def get_measured_cuts(self) -> dict[str, CutScore]:
        """Return the scores at the budgets that could be measured."""
        return {budget: score for budget, score in self.cut_scores.items() if budget not in self.missing_budgets}


def note_strange_factor(factor: float) -> tuple[str, ...]:
    """Return a note if recorded usage and tokenizer differ more than two tokenizers do."""
    min_factor, max_factor = USUAL_FACTOR
    if min_factor <= factor <= max_factor:
        return ()
    note = f"the recorded usage is {factor:.2f} × what the tokenizer counts (usual: {min_factor:g} to {max_factor:g})"
    return (f"{note}; all sizes are scaled by it, so check that the usage belongs to these messages",)


# -- JSON --------------------------------------------------------------------------------------------------------------


def encode_policy_row(subject: ReportSubject, row: PolicyRow) -> dict[str, Any]:
    """Return the figures of one policy over one session under the names in docs/metrics.md."""
    figures = row.figures
    encoded = {
        "metrics": METRICS_VERSION,
        "file": subject.file,
        "repository": subject.repository,
        "policy": figures.policy,
        "window": subject.window,
        "setup_tokens": subject.setup_tokens,
        "api": subject.api,
        "model": subject.model,
        "tokenizer": subject.tokenizer,
        "requests": figures.requests,
        "invalid_requests": figures.invalid_requests,
        "over_window": figures.over_window,
        "user_words_missing": figures.user_words_missing,
        "tokens_sum": figures.tokens_sum,
        "tokens_peak": figures.tokens_peak,
        "cache_hit": figures.cache_hit,
        "usd": None if figures.cost is None else round(figures.cost, 6),
        "online_recall": figures.online.recall,
        "online_fact_recall": figures.online.fact_recall,
        "mutations": figures.mutations,
        "compactions": figures.compactions,
        "policy_ms_p50": round(figures.policy_ms_p50, 3),
        "policy_ms_p95": round(figures.policy_ms_p95, 3),
        "summaries": None if figures.summaries is None else msgspec.structs.asdict(figures.summaries),
        "notes": [*subject.problems, *row.notes, *explain_missing_figures(row), *figures.notes],
        "cuts": encode_cuts(row.cut_scores, row.missing_budgets),
    }
    if row.losses is not None:
        encoded["losses"] = encode_losses(row.losses)
    return encoded


def explain_missing_figures(row: PolicyRow) -> list[str]:
    """Return a note for each figure at cuts that could not be computed, with the reason."""
    notes = [f"nothing measured at cuts of {int(budget):,}: {why}" for budget, why in row.missing_budgets.items()]
    budgets_without_gain = []
    budgets_without_oracle = []
    for budget, score in row.cut_scores.items():
        if score.without_gain:
            budgets_without_gain.append(f"{int(budget):,}")
        if score.without_oracle:
            budgets_without_oracle.append(f"{int(budget):,}")
    for figure, budgets in (("z_gain", budgets_without_gain), ("oracle", budgets_without_oracle)):
        if budgets:
            notes.append(f"no {figure} at cuts of {', '.join(budgets)}: computing it ran out of memory")
    return notes


# -- several sessions together -----------------------------------------------------------------------------------------


def pool_policy_rows(reports: Sequence[tuple[ReportSubject, Sequence[PolicyRow]]]) -> list[PolicyRow]:
    """Return a row for each policy over the sessions judged for cost; recall at cuts is over all sessions."""
    by_policy: dict[str, list[tuple[ReportSubject, PolicyRow]]] = {}
    for subject, rows in reports:
        for row in rows:
            by_policy.setdefault(row.figures.policy, []).append((subject, row))
    pooled_rows: list[PolicyRow] = []
    for subject_rows in by_policy.values():
        judged_figures = []
        judged_losses: list[LossReport | None] = []
        policy_rows = []
        for subject, row in subject_rows:
            policy_rows.append(row)
            if subject.is_judged:
                judged_figures.append(row.figures)
                judged_losses.append(row.losses)
        if not judged_figures:
            continue
        cut_scores = [row.get_measured_cuts() for row in policy_rows]
        pooled_rows.append(
            PolicyRow(
                figures=sum_policy_figures(judged_figures),
                cut_scores=_add_scores(cut_scores),
                missing_budgets=_find_unmeasured_budgets(policy_rows),
                notes=_note_uneven_budgets(policy_rows),
                losses=_pool_loss_reports(judged_losses),
            )
        )
    return pooled_rows


def _pool_loss_reports(reports: Sequence[LossReport | None]) -> LossReport | None:
    """Return the losses of several sessions as one, or None if they were not asked for."""
    asked_reports = [report for report in reports if report is not None]
    return pool_losses(asked_reports) if asked_reports else None


def sum_policy_figures(parts: Sequence[PolicyFigures]) -> PolicyFigures:
    """Return the figures of one policy over several sessions as one: sums, the highest peak, the slowest p95."""
    tokens = sum(part.tokens_sum for part in parts)
    # Weighted by tokens, so that a long session counts for more than a short one.
    cached_tokens = sum((part.cache_hit or 0) * part.tokens_sum for part in parts)
    return PolicyFigures(
        policy=parts[0].policy,
        requests=sum(part.requests for part in parts),
        invalid_requests=sum(part.invalid_requests for part in parts),
        over_window=sum(part.over_window for part in parts),
        refused_requests=sum(part.refused_requests for part in parts),
        user_words_missing=sum(part.user_words_missing for part in parts),
        tokens_sum=tokens,
        tokens_peak=max(part.tokens_peak for part in parts),
        cache_hit=cached_tokens / tokens if tokens else None,
        usd=sum(part.usd for part in parts),
        online=sum((part.online for part in parts), RecallCounts()),
        mutations=sum(part.mutations for part in parts),
        compactions=sum(part.compactions for part in parts),
        policy_ms_p50=median(part.policy_ms_p50 for part in parts),
        policy_ms_p95=max(part.policy_ms_p95 for part in parts),
        notes=(),
        is_priced=all(part.is_priced for part in parts),
        summaries=_sum_summary_figures(parts),
    )


def _sum_summary_figures(parts: Sequence[PolicyFigures]) -> SummaryFigures | None:
    """Return the sums of what models did for summaries, or None if none was asked."""
    summary_figures = [part.summaries for part in parts if part.summaries is not None]
    return sum(summary_figures, SummaryFigures()) if summary_figures else None


def _add_scores(scores: Sequence[dict[str, CutScore]]) -> dict[str, CutScore]:
    sums: dict[str, CutScore] = {}
    for budget_scores in scores:
        for budget, score in budget_scores.items():
            sums[budget] = sums.get(budget, CutScore()) + score
    return sums


def _find_unmeasured_budgets(rows: Sequence[PolicyRow]) -> dict[str, str]:
    """Return the budgets at which no session was measured, each with the reason of the first one."""
    first_reasons: dict[str, str] = {}
    # In reverse, so that the reason of the first session stays.
    for row in reversed(rows):
        first_reasons |= row.missing_budgets
    unmeasured_budgets = {}
    for budget, why in first_reasons.items():
        if all(budget in row.missing_budgets for row in rows):
            unmeasured_budgets[budget] = why
    return unmeasured_budgets


def _note_uneven_budgets(rows: Sequence[PolicyRow]) -> tuple[str, ...]:
    """Return a note for each budget that was measured in some sessions only, since other policies may have more."""
    missing_counts: Counter[str] = Counter()
    for row in rows:
        missing_counts.update(row.missing_budgets.keys())
    notes: list[str] = []
    for budget, missing_count in missing_counts.items():
        if missing_count < len(rows):
            notes.append(f"recall at cuts of {int(budget):,} is without {missing_count} of {len(rows)} sessions")
    return tuple(notes)


# -- tables ------------------------------------------------------------------------------------------------------------


def make_session_heading(subject: ReportSubject) -> Text:
    """Return the heading of a session: the file, its contents, the setting, and a line for each problem."""
    has_factor = abs(subject.factor - 1) >= 0.005
    if has_factor:
        tokenizer = f"{subject.tokenizer} × {subject.factor:.2f}"
    else:
        tokenizer = subject.tokenizer
    session = f"{subject.format} · {subject.messages:,} messages · {subject.steps:,} answers"
    size = f"{format_tokens_short(subject.peak_tokens)} tokens at the end ({tokenizer})"
    setting = f"{subject.model} ({subject.api}) · window {subject.window:,} (usable {subject.usable:,})"
    facts = f"{session} · {size}\n{setting} · setup {subject.setup_tokens:,}"
    problems = "".join(f"\n{line}" for line in subject.problems)
    return Text.assemble((subject.file, "bold"), "\n", (facts, _DIM_STYLE), (problems, "yellow"))


def make_policy_table(rows: Sequence[PolicyRow], width: int) -> Table:
    """Return the table of policies in at most ``width`` columns, ours last and bold."""
    rows = _sort_ours_last(rows)
    baseline = _find_figures(rows, BASELINE_POLICY)
    baseline_usd = None if baseline is None else baseline.usd
    names = [Text(row.figures.policy) for row in rows]
    name_width = max(len("policy"), *map(len, names))
    columns = _choose_fitting_columns(_list_columns(baseline_usd, width), rows, width - name_width)
    cells = _make_cells(columns, rows)
    gap = _choose_gap(columns, cells, width - name_width)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(Text(column.name), justify="right", vertical="bottom", no_wrap=True)
    for name, row_cells in zip(names, cells, strict=True):
        table.add_row(name, *row_cells, style="bold" if name.plain == OUR_POLICY else "")
    return table


def _make_cells(columns: Sequence[_ReportColumn], rows: Sequence[PolicyRow]) -> list[list[Text]]:
    best_values = [_find_best_value(rows, column) for column in columns]
    cells = []
    for row in rows:
        row_cells = []
        for column, best in zip(columns, best_values, strict=True):
            row_cells.append(column.make_cell(row, best=best))
        cells.append(row_cells)
    return cells


def _choose_fitting_columns(
    columns: list[_ReportColumn],
    rows: Sequence[PolicyRow],
    budget: int,
) -> list[_ReportColumn]:
    """Return the columns that fit into ``budget`` characters; the least important ones are dropped first."""
    shown_columns = list(columns)
    # Rich would cut or wrap cells; a table with fewer columns is easier to read.
    for dropped_name in DROPPABLE_COLUMNS_ORDER:
        widths = _measure_columns([column.name for column in shown_columns], _make_cells(shown_columns, rows))
        if sum(widths) + len(shown_columns) <= budget:
            break
        shown_columns = [column for column in shown_columns if column.name != dropped_name]
    return shown_columns


def _measure_columns(names: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Return the width of each column, which is that of its longest line."""
    widths: list[int] = []
    for name, column_cells in zip(names, zip(*cells, strict=True), strict=True):
        name_width = max(map(len, name.split("\n")))
        widths.append(max(name_width, *map(len, column_cells)))
    return widths


def _choose_gap(columns: Sequence[_ReportColumn], cells: Sequence[Sequence[Text]], budget: int) -> int:
    """Return the number of spaces between columns: two if that fits into ``budget`` characters, else one."""
    widths = _measure_columns([column.name for column in columns], cells)
    has_room = sum(widths) + 2 * len(columns) <= budget
    return 2 if has_room else 1


class _ReportColumn(Struct, frozen=True):
    """A figure in the table: its name, how to format it, and which values are good."""

    name: str
    value: Callable[[PolicyFigures], float | None]
    write: Callable[[float], str]
    good: int = 0
    """1 if more is better, -1 if less is better, 0 if neither."""
    is_fault: bool = False
    """Whether any value but 0 is bad."""

    def make_cell(self, row: PolicyRow, best: float | None) -> Text:
        value = self.value(row.figures)
        if value is None:
            return Text("-", style=_DIM_STYLE)
        style = ""
        if self.is_fault and value:
            style = _BAD_STYLE
        elif value == best and row.is_sound:
            style = _BEST_STYLE
        return Text(self.write(value), style=style)


def _list_columns(baseline_usd: float | None, width: int) -> list[_ReportColumn]:
    def share_of_baseline(figures: PolicyFigures) -> float | None:
        return figures.usd / baseline_usd if baseline_usd else None

    columns = [
        _ReportColumn("requests", lambda m: m.requests, _format_whole),
        _ReportColumn("invalid", lambda m: m.invalid_requests, _format_whole, is_fault=True),
        _ReportColumn("over\nwindow", lambda m: m.over_window, _format_whole, is_fault=True),
        _ReportColumn("words\nlost", lambda m: m.user_words_missing, _format_whole, is_fault=True),
        _ReportColumn("tokens\npeak", lambda m: m.tokens_peak, format_tokens_short),
        _ReportColumn("cache\nhit", lambda m: m.cache_hit, _format_share, good=1),
        _ReportColumn("cost\n$", lambda m: m.cost, lambda usd: f"{usd:,.2f}", good=-1),
        _ReportColumn("×\nappend", share_of_baseline, lambda ratio: f"{ratio:.2f}", good=-1),
        _ReportColumn("fact\nrecall", lambda m: m.online.fact_recall, _format_recall, good=1),
        _ReportColumn("compac-\ntions", lambda m: m.compactions, _format_whole),
        _ReportColumn("ms\np95", lambda m: m.policy_ms_p95, lambda ms: f"{ms:.1f}"),
    ]
    return columns if width >= FULL_TABLE_WIDTH else columns[1:-1]


def _find_best_value(rows: Sequence[PolicyRow], column: _ReportColumn) -> float | None:
    """Return the best value among policies without a refused request, or None without a choice."""
    if not column.good or len(rows) < 2:
        return None
    values = []
    for row in rows:
        value = column.value(row.figures)
        # A policy with refused requests is cheap for the wrong reason.
        if row.is_sound and value is not None:
            values.append(value)
    if not values:
        return None
    return max(values) if column.good > 0 else min(values)


def make_cut_table(
    rows: Sequence[PolicyRow],
    intervals: dict[str, list[tuple[int, int]]] | None = None,
    width: int = FULL_TABLE_WIDTH,
) -> Table | None:
    """Return the table of recall at cuts in at most ``width`` columns, or None if no cuts were made.

    ``intervals`` has (facts, dependencies) at 8,000 tokens of each session by policy, for the interval of a pool.
    """
    rows = [row for row in _sort_ours_last(rows) if _has_cuts(row)]
    if not rows:
        return None
    all_budgets: set[str] = set()
    for row in rows:
        all_budgets |= {*row.cut_scores, *row.missing_budgets}
    budgets = sorted(all_budgets, key=int)
    names = [f"facts\n{int(budget):,}" for budget in budgets]
    names += [f"{name}\n{int(HEADLINE_BUDGET):,}" for name in ("oracle", "handles", "z_gain", "stale")]
    if intervals:
        names.append("facts, 95 %\n8,000")
    cells: list[list[str]] = []
    for row in rows:
        row_cells = _make_cut_cells(row, budgets)
        if intervals:
            row_cells.append(_format_interval(row, intervals))
        cells.append(row_cells)
    first_column_width = len(_CUTS_TITLE)
    text_cells = []
    for row, row_cells in zip(rows, cells, strict=True):
        first_column_width = max(first_column_width, len(row.figures.policy))
        text_cells.append([Text(cell) for cell in row_cells])
    available_width = width - first_column_width
    shown_columns = list(range(len(names)))
    widths = _measure_columns(names, text_cells)
    # The last columns are the least important ones.
    while len(shown_columns) > 1 and sum(widths[column] + 1 for column in shown_columns) >= available_width:
        shown_columns.pop()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(_CUTS_TITLE, no_wrap=True, vertical="bottom")
    for column in shown_columns:
        table.add_column(Text(names[column]), justify="right", vertical="bottom", no_wrap=True)
    for row, row_cells_as_text in zip(rows, text_cells, strict=True):
        policy = row.figures.policy
        shown_cells = [row_cells_as_text[column] for column in shown_columns]
        table.add_row(Text(policy), *shown_cells, style="bold" if policy == OUR_POLICY else "")
    return table


def _has_cuts(row: PolicyRow) -> bool:
    return any(score.dependencies for score in row.cut_scores.values())


def _format_interval(row: PolicyRow, intervals: dict[str, list[tuple[int, int]]]) -> str:
    edges = compute_interval(intervals.get(row.figures.policy, []))
    if edges is None:
        return "-"
    low, high = edges
    return f"{_format_recall(low)}-{_format_recall(high)}"


def _make_cut_cells(row: PolicyRow, budgets: Sequence[str]) -> list[str]:
    figures = {budget: pool_scores([score]) for budget, score in row.get_measured_cuts().items()}
    empty_pool = pool_scores([])
    headline = figures.get(HEADLINE_BUDGET, empty_pool)
    values = [figures.get(budget, empty_pool).fact_recall for budget in budgets]
    values += [headline.oracle, headline.handle_recall, headline.z_gain, headline.stale]
    return ["-" if value is None else _format_recall(value) for value in values]


def make_pool_heading(subjects: Sequence[ReportSubject]) -> Text:
    """Return the heading of the pool, which says how many sessions it contains."""
    judged_count = sum(subject.is_judged for subject in subjects)
    if not judged_count:
        why = f"no pool: none of {len(subjects)} sessions is over {JUDGED_WINDOWS} × the window without a policy"
        return Text(why, style=_DIM_STYLE)
    facts = f"{judged_count} of {len(subjects)} sessions: those over {JUDGED_WINDOWS} × the window without a policy"
    return Text.assemble(("all sessions together", "bold"), "\n", (facts, _DIM_STYLE))


def make_policy_remarks(rows: Sequence[PolicyRow]) -> Text:
    """Return the notes on each policy, a line each; empty if there are no notes."""
    remarks = Text(style=_DIM_STYLE)
    for row in _sort_ours_last(rows):
        notes = [*_describe_summary_calls(row.figures), *row.notes, *explain_missing_figures(row)]
        for note in row.figures.notes:
            # Every policy has the note on gaps, so that is left to the JSON.
            if not note.startswith(COMPACTION_GAP_NOTE):
                notes.append(f"noticed {note}")
        if notes:
            remarks.append(f"{row.figures.policy}: {'; '.join(notes)}\n")
    remarks.right_crop(1)
    return remarks


def _describe_summary_calls(figures: PolicyFigures) -> list[str]:
    """Return what the model's summaries cost, or nothing if no model was asked."""
    summaries = figures.summaries
    if summaries is None:
        return []
    wanted_count = summaries.written + summaries.failed
    calls = format_count(summaries.calls, "call")
    sizes = f"{summaries.input_tokens:,} tokens in, {summaries.output_tokens:,} out"
    price = f", ${summaries.usd:,.2f} of the cost" if figures.is_priced else ""
    return [f"{summaries.written:,} of {wanted_count:,} summaries written in {calls} of the model ({sizes}{price})"]


def make_policy_verdict(rows: Sequence[PolicyRow]) -> Text:
    """Return one sentence about our policy, or an empty text if it was not run."""
    own_figures = _find_figures(rows, OUR_POLICY)
    baseline = _find_figures(rows, BASELINE_POLICY)
    if own_figures is None or not own_figures.requests:
        return Text()
    valid_count = "all"
    if own_figures.refused_requests:
        valid_count = f"{own_figures.requests - own_figures.refused_requests:,} of"
    sentence = f"{OUR_POLICY}: {valid_count} {own_figures.requests:,} requests valid and inside the window"
    if own_figures.cost is not None:
        sentence += f", for ${own_figures.cost:,.2f}"
    if baseline is not None and baseline.usd:
        sentence += (
            f" ({own_figures.usd / baseline.usd:.2f} × append-only, which fits "
            f"{baseline.requests - baseline.over_window:,} of them)"
        )
    recall = own_figures.online.fact_recall
    if recall is not None:
        sentence += f"; {recall:.1%} of the facts used again were still there"
    return Text(sentence + ".")


def _find_figures(rows: Sequence[PolicyRow], policy: str) -> PolicyFigures | None:
    for row in rows:
        if row.figures.policy == policy:
            return row.figures
    return None


def _sort_ours_last(rows: Sequence[PolicyRow]) -> list[PolicyRow]:
    return sorted(rows, key=lambda row: row.figures.policy == OUR_POLICY)


# -- numbers -----------------------------------------------------------------------------------------------------------


def format_tokens_short(tokens: float) -> str:
    """Format a number of tokens in at most five characters: ``812``, ``45.5k``, ``306k``, ``2.1M``."""
    if tokens < 1_000:
        return str(round(tokens))
    if tokens < 99_950:
        return f"{tokens / 1_000:.1f}k"
    if tokens < 999_500:
        return f"{tokens / 1_000:.0f}k"
    return f"{tokens / 1_000_000:.1f}M"


def _format_whole(value: float) -> str:
    return f"{value:,.0f}"


def _format_share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _format_recall(value: float) -> str:
    return f"{value:.3f}"
