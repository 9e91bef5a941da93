"""The report: figures as JSON and as tables. Values go in, renderables come out; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.replay.measure import COMPACTION_GAP_NOTE, PolicyFigures, encode_cuts
from holdfast.replay.recall import RecallCounts
from holdfast.replay.recall_at_cuts import CutScore, compute_interval, pool_scores

METRICS_VERSION = 1
"""Version of the definitions in METRICS.md that every figure here follows."""
JUDGED_WINDOWS = 2
"""Sessions are pooled whose append-only peak is over so many windows (METRICS, "Sessions judged for cost")."""
BASELINE_POLICY = "append-only"
OUR_POLICY = "holdfast"
HEADLINE_BUDGET = "8000"
"""The budget in tokens whose figures the table of cuts shows beside fact recall."""
FULL_TABLE_WIDTH = 96
"""Columns from which the table shows every figure."""
DROPPABLE_COLUMNS_ORDER = (
    "requests", "ms\np95", "compac-\ntions", "tokens\npeak", "cost\n$", "words\nlost", "cache\nhit", "over\nwindow",
    "invalid", "×\nappend",
)  # fmt: skip
"""Columns in the order in which they are left out where the terminal is narrow; ``--json`` has them all."""
_CUTS_TITLE = "at cuts, kept in"
_BEST_STYLE, _BAD_STYLE, _DIM_STYLE = "green", "red", "dim"


USUAL_FACTOR = (0.5, 3.0)
"""Recorded tokens for one token of the tokenizer: no provider counts a text at less, or at more."""


class ReportSubject(Struct, frozen=True):
    """One session under one setting: what the rows of its table have in common. Sizes are tokens."""

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
    """The largest request if nothing is ever taken away."""
    problems: tuple[str, ...] = ()
    """What is wrong with the file, or odd about it."""

    @property
    def is_judged(self) -> bool:
        """Whether the session is long enough to be judged for cost."""
        return self.peak_tokens > JUDGED_WINDOWS * self.window


class PolicyRow(Struct, frozen=True):
    """One policy over one session, or over several."""

    figures: PolicyFigures
    cut_scores: dict[str, CutScore] = {}
    notes: tuple[str, ...] = ()
    """What is to be said beside the figures, as of a degenerate preset."""
    missing_budgets: dict[str, str] = {}
    """Budgets of ``cut_scores`` that could not be measured, each with why."""

    @property
    def is_sound(self) -> bool:
        """Whether every request would have been taken."""
        return not self.figures.refused_requests

    def get_measured_cuts(self) -> dict[str, CutScore]:
        """Return the scores at the budgets that could be measured."""
        return {budget: score for budget, score in self.cut_scores.items() if budget not in self.missing_budgets}


def note_strange_factor(factor: float) -> tuple[str, ...]:
    """Return a note where the recorded usage and the tokenizer differ more than two ways of counting do."""
    min_factor, max_factor = USUAL_FACTOR
    if min_factor <= factor <= max_factor:
        return ()
    note = f"the recorded usage is {factor:.2f} × what the tokenizer counts (usual: {min_factor:g} to {max_factor:g})"
    return (f"{note}; all sizes are scaled by it, so check that the usage belongs to these messages",)


# -- JSON --------------------------------------------------------------------------------------------------------------


def encode_policy_row(subject: ReportSubject, row: PolicyRow) -> dict[str, Any]:
    """Return the figures of one policy over one session, with the names of METRICS."""
    figures = row.figures
    return {
        "metrics": METRICS_VERSION,
        "file": subject.file,
        "policy": figures.policy,
        "window": subject.window,
        "frame": subject.setup_tokens,
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
        "notes": [*subject.problems, *row.notes, *explain_missing_figures(row), *figures.notes],
        "cuts": encode_cuts(row.cut_scores, row.missing_budgets),
    }


def explain_missing_figures(row: PolicyRow) -> list[str]:
    """Return a note for each figure of the cuts that could not be computed, with the reason."""
    notes = [f"nothing measured at cuts of {int(budget):,}: {why}" for budget, why in row.missing_budgets.items()]
    for figure, cuts_without in (("z_gain", _count_without_gain), ("oracle", _count_without_oracle)):
        budgets = [f"{int(budget):,}" for budget, score in row.cut_scores.items() if cuts_without(score)]
        if budgets:
            notes.append(f"no {figure} at cuts of {', '.join(budgets)}: computing it ran out of memory")
    return notes


def _count_without_gain(score: CutScore) -> int:
    return score.without_gain


def _count_without_oracle(score: CutScore) -> int:
    return score.without_oracle


# -- several sessions together -----------------------------------------------------------------------------------------


def pool_policy_rows(reports: Sequence[tuple[ReportSubject, Sequence[PolicyRow]]]) -> list[PolicyRow]:
    """Return a row for each policy over the sessions judged for cost; recall at cuts is over all sessions."""
    by_policy: dict[str, list[tuple[ReportSubject, PolicyRow]]] = {}
    for subject, rows in reports:
        for row in rows:
            by_policy.setdefault(row.figures.policy, []).append((subject, row))
    return [
        PolicyRow(
            sum_policy_figures([row.figures for subject, row in own if subject.is_judged]),
            _add_scores([row.get_measured_cuts() for _, row in own]),
            missing_budgets=_find_unmeasured_budgets([row for _, row in own]),
            notes=_note_uneven_budgets([row for _, row in own]),
        )
        for own in by_policy.values()
        if any(subject.is_judged for subject, _ in own)
    ]


def sum_policy_figures(parts: Sequence[PolicyFigures]) -> PolicyFigures:
    """Return the figures of one policy over several sessions as one: sums, the highest peak, the slowest p95."""
    tokens = sum(part.tokens_sum for part in parts)
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
    )


def _add_scores(scores: Sequence[dict[str, CutScore]]) -> dict[str, CutScore]:
    budgets = dict.fromkeys(budget for budget_scores in scores for budget in budget_scores)
    return {
        budget: sum((budget_scores[budget] for budget_scores in scores if budget in budget_scores), CutScore())
        for budget in budgets
    }


def _find_unmeasured_budgets(rows: Sequence[PolicyRow]) -> dict[str, str]:
    """Return the budgets at which no session was measured, with the reason that the first one gave."""
    every = {budget: why for row in reversed(rows) for budget, why in row.missing_budgets.items()}
    return {budget: why for budget, why in every.items() if all(budget in row.missing_budgets for row in rows)}


def _note_uneven_budgets(rows: Sequence[PolicyRow]) -> tuple[str, ...]:
    """Return a note for each budget that was measured in some of the sessions only: other policies have more."""
    notes = []
    for budget in dict.fromkeys(budget for row in rows for budget in row.missing_budgets):
        left_out = sum(budget in row.missing_budgets for row in rows)
        if left_out < len(rows):
            notes.append(f"recall at cuts of {int(budget):,} is without {left_out} of {len(rows)} sessions")
    return tuple(notes)


# -- tables ------------------------------------------------------------------------------------------------------------


def make_session_heading(subject: ReportSubject) -> Text:
    """Return the file, what is in it, what it was replayed with, and a line for each thing that is wrong with it."""
    scale = "" if abs(subject.factor - 1) < 0.005 else f" × {subject.factor:.2f}"
    session = f"{subject.format} · {subject.messages:,} messages · {subject.steps:,} answers"
    size = f"{format_tokens_short(subject.peak_tokens)} tokens at the end ({subject.tokenizer}{scale})"
    place = f"{subject.model} ({subject.api}) · window {subject.window:,} (usable {subject.usable:,})"
    facts = f"{session} · {size}\n{place} · frame {subject.setup_tokens:,}"
    damage = "".join(f"\n{line}" for line in subject.problems)
    return Text.assemble((subject.file, "bold"), "\n", (facts, _DIM_STYLE), (damage, "yellow"))


def make_policy_table(rows: Sequence[PolicyRow], width: int) -> Table:
    """Return the table of policies in at most ``width`` columns, ours last and bold."""
    rows = _sort_ours_last(rows)
    base = next((row.figures.usd for row in rows if row.figures.policy == BASELINE_POLICY), None)
    names = [Text(row.figures.policy) for row in rows]
    columns = _choose_fitting_columns(_list_columns(base, width), rows, width - max(6, *map(len, names)))
    cells = _make_cells(columns, rows)
    table = Table(box=None, padding=(0, _choose_gap(columns, names, cells, width), 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(Text(column.name), justify="right", vertical="bottom", no_wrap=True)
    for name, line in zip(names, cells, strict=True):
        table.add_row(name, *line, style="bold" if name.plain == OUR_POLICY else "")
    return table


def _make_cells(columns: Sequence[_ReportColumn], rows: Sequence[PolicyRow]) -> list[list[Text]]:
    best = [_find_best_value(rows, column) for column in columns]
    return [[column.make_cell(row, best=value) for column, value in zip(columns, best, strict=True)] for row in rows]


def _choose_fitting_columns(
    columns: list[_ReportColumn], rows: Sequence[PolicyRow], budget: int
) -> list[_ReportColumn]:
    """Return the columns that fit into ``budget`` characters whole; the least important ones go first."""
    shown_columns = list(columns)
    for name in DROPPABLE_COLUMNS_ORDER:
        if (
            sum(_measure_columns([column.name for column in shown_columns], _make_cells(shown_columns, rows)))
            + len(shown_columns)
            <= budget
        ):
            break
        shown_columns = [column for column in shown_columns if column.name != name]
    return shown_columns


def _measure_columns(names: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Return how wide each column is, by its longest line."""
    heads = [max(map(len, name.split("\n"))) for name in names]
    return [max(head, *map(len, column)) for head, column in zip(heads, zip(*cells, strict=True), strict=True)]


def _choose_gap(
    columns: Sequence[_ReportColumn], names: Sequence[Text], cells: Sequence[Sequence[Text]], width: int
) -> int:
    """Return how many spaces stand between two columns: two where there is room."""
    widths = _measure_columns([column.name for column in columns], cells)
    return 2 if max(6, *map(len, names)) + sum(widths) + 2 * len(columns) <= width else 1


class _ReportColumn(Struct, frozen=True):
    """A figure in the table: what it is called, how it is written, and which end of it is good."""

    name: str
    value: Callable[[PolicyFigures], float | None]
    write: Callable[[float], str]
    good: int = 0
    """1 = more is better, -1 = less is better, 0 = neither."""
    is_fault: bool = False
    """Whether anything but 0 is bad."""

    def make_cell(self, row: PolicyRow, best: float | None) -> Text:
        value = self.value(row.figures)
        if value is None:
            return Text("-", style=_DIM_STYLE)
        style = _BAD_STYLE if self.is_fault and value else _BEST_STYLE if value == best and row.is_sound else ""
        return Text(self.write(value), style=style)


def _list_columns(base: float | None, width: int) -> list[_ReportColumn]:
    def share(figures: PolicyFigures) -> float | None:
        return figures.usd / base if base else None

    columns = [
        _ReportColumn("requests", lambda m: m.requests, _format_whole),
        _ReportColumn("invalid", lambda m: m.invalid_requests, _format_whole, is_fault=True),
        _ReportColumn("over\nwindow", lambda m: m.over_window, _format_whole, is_fault=True),
        _ReportColumn("words\nlost", lambda m: m.user_words_missing, _format_whole, is_fault=True),
        _ReportColumn("tokens\npeak", lambda m: m.tokens_peak, format_tokens_short),
        _ReportColumn("cache\nhit", lambda m: m.cache_hit, _format_share, good=1),
        _ReportColumn("cost\n$", lambda m: m.cost, lambda usd: f"{usd:,.2f}", good=-1),
        _ReportColumn("×\nappend", share, lambda ratio: f"{ratio:.2f}", good=-1),
        _ReportColumn("fact\nrecall", lambda m: m.online.fact_recall, _format_recall, good=1),
        _ReportColumn("compac-\ntions", lambda m: m.compactions, _format_whole),
        _ReportColumn("ms\np95", lambda m: m.policy_ms_p95, lambda ms: f"{ms:.1f}"),
    ]
    return columns if width >= FULL_TABLE_WIDTH else columns[1:-1]


def _find_best_value(rows: Sequence[PolicyRow], column: _ReportColumn) -> float | None:
    """Return the best value among policies whose requests would all have been taken, if there is a choice."""
    values = [value for row in rows if row.is_sound and (value := column.value(row.figures)) is not None]
    if not column.good or len(rows) < 2 or not values:
        return None
    return max(values) if column.good > 0 else min(values)


def make_cut_table(
    rows: Sequence[PolicyRow], intervals: dict[str, list[tuple[int, int]]] | None = None, width: int = FULL_TABLE_WIDTH
) -> Table | None:
    """Return the table of recall at cuts in at most ``width`` columns, or nothing where no cut was made.

    ``intervals`` maps a policy to (facts, dependencies) at 8,000 tokens of each session, for the interval of a pool.
    """
    rows = [row for row in _sort_ours_last(rows) if any(score.dependencies for score in row.cut_scores.values())]
    if not rows:
        return None
    budgets = list(dict.fromkeys(budget for row in rows for budget in (*row.cut_scores, *row.missing_budgets)))
    budgets.sort(key=int)
    names = [f"facts\n{int(budget):,}" for budget in budgets]
    names += [f"{name}\n{int(HEADLINE_BUDGET):,}" for name in ("oracle", "handles", "z_gain", "stale")]
    names += ["facts, 95 %\n8,000"] if intervals else []
    cells = [_make_cut_cells(row, budgets) + ([_format_interval(row, intervals)] if intervals else []) for row in rows]
    room = width - max(len(_CUTS_TITLE), *(len(row.figures.policy) for row in rows))
    shown_columns = list(range(len(names)))
    widths = _measure_columns(names, [[Text(cell) for cell in line] for line in cells])
    while len(shown_columns) > 1 and sum(widths[at] + 1 for at in shown_columns) >= room:
        shown_columns.pop()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(_CUTS_TITLE, no_wrap=True, vertical="bottom")
    for at in shown_columns:
        table.add_column(Text(names[at]), justify="right", vertical="bottom", no_wrap=True)
    for row, line in zip(rows, cells, strict=True):
        policy = row.figures.policy
        table.add_row(
            Text(policy), *(Text(line[at]) for at in shown_columns), style="bold" if policy == OUR_POLICY else ""
        )
    return table


def _format_interval(row: PolicyRow, intervals: dict[str, list[tuple[int, int]]]) -> str:
    edges = compute_interval(intervals.get(row.figures.policy, []))
    return "-" if edges is None else f"{_format_recall(edges[0])}-{_format_recall(edges[1])}"


def _make_cut_cells(row: PolicyRow, budgets: Sequence[str]) -> list[str]:
    figures = {budget: pool_scores([score]) for budget, score in row.get_measured_cuts().items()}
    empty_pool = pool_scores([])
    middle = figures.get(HEADLINE_BUDGET, empty_pool)
    values = [figures.get(budget, empty_pool).fact_recall for budget in budgets]
    values += [middle.oracle, middle.handle_recall, middle.z_gain, middle.stale]
    return ["-" if value is None else _format_recall(value) for value in values]


def make_pool_heading(subjects: Sequence[ReportSubject]) -> Text:
    """Return what the pool is made of."""
    judged_count = sum(subject.is_judged for subject in subjects)
    if not judged_count:
        why = f"no pool: none of {len(subjects)} sessions is over {JUDGED_WINDOWS} × the window without a policy"
        return Text(why, style=_DIM_STYLE)
    facts = f"{judged_count} of {len(subjects)} sessions: those over {JUDGED_WINDOWS} × the window without a policy"
    return Text.assemble(("all sessions together", "bold"), "\n", (facts, _DIM_STYLE))


def make_policy_remarks(rows: Sequence[PolicyRow]) -> Text:
    """Return the notes on each policy, a line each; empty where there are none."""
    out = Text(style=_DIM_STYLE)
    for row in _sort_ours_last(rows):
        own = [
            f"noticed {note}" for note in row.figures.notes if not note.startswith(COMPACTION_GAP_NOTE)
        ]  # left to the JSON
        if notes := [*row.notes, *explain_missing_figures(row), *own]:
            out.append(f"{row.figures.policy}: {'; '.join(notes)}\n")
    out.right_crop(1)
    return out


def make_policy_verdict(rows: Sequence[PolicyRow]) -> Text:
    """Return one sentence on our policy, or an empty text where it was not run."""
    own_figures = next((row.figures for row in rows if row.figures.policy == OUR_POLICY), None)
    base = next((row.figures for row in rows if row.figures.policy == BASELINE_POLICY), None)
    if own_figures is None or not own_figures.requests:
        return Text()
    valid_requests = own_figures.requests - own_figures.refused_requests
    sentence = (
        f"{OUR_POLICY}: {f'{valid_requests:,} of' if own_figures.refused_requests else 'all'} "
        f"{own_figures.requests:,} requests valid and inside"
    )
    sentence += " the window" if own_figures.cost is None else f" the window, for ${own_figures.cost:,.2f}"
    if base is not None and base.usd:
        sentence += (
            f" ({own_figures.usd / base.usd:.2f} × append-only, which fits "
            f"{base.requests - base.over_window:,} of them)"
        )
    recall = own_figures.online.fact_recall
    if recall is not None:
        sentence += f"; {recall:.1%} of the facts used again were still there"
    return Text(sentence + ".")


def _sort_ours_last(rows: Sequence[PolicyRow]) -> list[PolicyRow]:
    return sorted(rows, key=lambda row: row.figures.policy == OUR_POLICY)


# -- numbers -----------------------------------------------------------------------------------------------------------


def format_tokens_short(tokens: float) -> str:
    """Return a number of tokens in at most five characters: ``812``, ``45.5k``, ``306k``, ``2.1M``."""
    if tokens < 1_000:
        return str(round(tokens))
    if tokens < 99_950:
        return f"{tokens / 1_000:.1f}k"
    return f"{tokens / 1_000:.0f}k" if tokens < 999_500 else f"{tokens / 1_000_000:.1f}M"


def _format_whole(value: float) -> str:
    return f"{value:,.0f}"


def _format_share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _format_recall(value: float) -> str:
    return f"{value:.3f}"
