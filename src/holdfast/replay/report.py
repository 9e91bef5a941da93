"""The report: figures as JSON and as tables. Values go in, renderables come out; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from holdfast.replay.cuts import CutScore, interval, pool
from holdfast.replay.measure import GAP, Measured, cuts_json
from holdfast.replay.recall import Hits

METRICS = 1
"""Version of the definitions in METRICS.md that every figure here follows."""
JUDGED = 2
"""Sessions are pooled whose append-only peak is over so many windows (METRICS, "Sessions judged for cost")."""
BASELINE = "append-only"
OURS = "holdfast"
HEADLINE = "8000"
"""The budget in tokens whose figures the table of cuts shows beside fact recall."""
WIDE = 96
"""Columns from which the table shows every figure."""
LEAST = (
    "requests", "ms\np95", "compac-\ntions", "tokens\npeak", "cost\n$", "words\nlost", "cache\nhit", "over\nwindow",
    "invalid", "×\nappend",
)  # fmt: skip
"""Columns in the order in which they are left out where the terminal is narrow; ``--json`` has them all."""
_AT_CUTS = "at cuts, kept in"
_BEST, _BAD, _DIM = "green", "red", "dim"


USUAL_FACTOR = (0.5, 3.0)
"""Recorded tokens for one token of the tokenizer: no provider counts a text at less, or at more."""


class Subject(Struct, frozen=True):
    """One session under one setting: what the rows of its table have in common. Sizes are tokens."""

    file: str
    format: str
    window: int
    usable: int
    frame: int
    api: str
    model: str
    tokenizer: str
    factor: float
    """Recorded tokens for one token of the tokenizer."""
    messages: int
    steps: int
    peak: int
    """The largest request if nothing is ever taken away."""
    damage: tuple[str, ...] = ()
    """What is wrong with the file, or odd about it."""

    @property
    def is_judged(self) -> bool:
        """Whether the session is long enough to be judged for cost."""
        return self.peak > JUDGED * self.window


class Row(Struct, frozen=True):
    """One policy over one session, or over several."""

    measured: Measured
    cuts: dict[str, CutScore] = {}
    notes: tuple[str, ...] = ()
    """What is to be said beside the figures, as of a degenerate preset."""
    missing: dict[str, str] = {}
    """Budgets of ``cuts`` that could not be measured, each with why."""

    @property
    def is_sound(self) -> bool:
        """Whether every request would have been taken."""
        return not self.measured.refused

    def cuts_measured(self) -> dict[str, CutScore]:
        """Return the scores at the budgets that could be measured."""
        return {budget: score for budget, score in self.cuts.items() if budget not in self.missing}


def strange_factor(factor: float) -> tuple[str, ...]:
    """Return a note where the recorded usage and the tokenizer differ more than two ways of counting do."""
    least, most = USUAL_FACTOR
    if least <= factor <= most:
        return ()
    told = f"the recorded usage is {factor:.2f} × what the tokenizer counts (usual: {least:g} to {most:g})"
    return (f"{told}; all sizes are scaled by it, so check that the usage belongs to these messages",)


# -- JSON --------------------------------------------------------------------------------------------------------------


def record(subject: Subject, row: Row) -> dict[str, Any]:
    """Return the figures of one policy over one session, with the names of METRICS."""
    measured = row.measured
    return {
        "metrics": METRICS,
        "file": subject.file,
        "policy": measured.policy,
        "window": subject.window,
        "frame": subject.frame,
        "api": subject.api,
        "model": subject.model,
        "tokenizer": subject.tokenizer,
        "requests": measured.requests,
        "invalid_requests": measured.invalid_requests,
        "over_window": measured.over_window,
        "user_words_missing": measured.user_words_missing,
        "tokens_sum": measured.tokens_sum,
        "tokens_peak": measured.tokens_peak,
        "cache_hit": measured.cache_hit,
        "usd": None if measured.cost is None else round(measured.cost, 6),
        "online_recall": measured.online.recall,
        "online_fact_recall": measured.online.fact_recall,
        "mutations": measured.mutations,
        "compactions": measured.compactions,
        "policy_ms_p50": round(measured.policy_ms_p50, 3),
        "policy_ms_p95": round(measured.policy_ms_p95, 3),
        "notes": [*subject.damage, *row.notes, *explain_missing(row), *measured.notes],
        "cuts": cuts_json(row.cuts, row.missing),
    }


def explain_missing(row: Row) -> list[str]:
    """Return a note for each figure of the cuts that could not be computed, with the reason."""
    notes = [f"nothing measured at cuts of {int(budget):,}: {why}" for budget, why in row.missing.items()]
    for figure, cuts_without in (("z_gain", _count_without_gain), ("oracle", _count_without_oracle)):
        budgets = [f"{int(budget):,}" for budget, score in row.cuts.items() if cuts_without(score)]
        if budgets:
            notes.append(f"no {figure} at cuts of {', '.join(budgets)}: computing it ran out of memory")
    return notes


def _count_without_gain(score: CutScore) -> int:
    return score.without_gain


def _count_without_oracle(score: CutScore) -> int:
    return score.without_oracle


# -- several sessions together -----------------------------------------------------------------------------------------


def pooled(reports: Sequence[tuple[Subject, Sequence[Row]]]) -> list[Row]:
    """Return a row for each policy over the sessions judged for cost; recall at cuts is over all sessions."""
    by_policy: dict[str, list[tuple[Subject, Row]]] = {}
    for subject, rows in reports:
        for row in rows:
            by_policy.setdefault(row.measured.policy, []).append((subject, row))
    return [
        Row(
            together([row.measured for subject, row in own if subject.is_judged]),
            _added([row.cuts_measured() for _, row in own]),
            missing=_missing_everywhere([row for _, row in own]),
            notes=_uneven([row for _, row in own]),
        )
        for own in by_policy.values()
        if any(subject.is_judged for subject, _ in own)
    ]


def together(parts: Sequence[Measured]) -> Measured:
    """Return the figures of one policy over several sessions as one: sums, the highest peak, the slowest p95."""
    tokens = sum(part.tokens_sum for part in parts)
    read = sum((part.cache_hit or 0) * part.tokens_sum for part in parts)
    return Measured(
        policy=parts[0].policy,
        requests=sum(part.requests for part in parts),
        invalid_requests=sum(part.invalid_requests for part in parts),
        over_window=sum(part.over_window for part in parts),
        refused=sum(part.refused for part in parts),
        user_words_missing=sum(part.user_words_missing for part in parts),
        tokens_sum=tokens,
        tokens_peak=max(part.tokens_peak for part in parts),
        cache_hit=read / tokens if tokens else None,
        usd=sum(part.usd for part in parts),
        online=sum((part.online for part in parts), Hits()),
        mutations=sum(part.mutations for part in parts),
        compactions=sum(part.compactions for part in parts),
        policy_ms_p50=median(part.policy_ms_p50 for part in parts),
        policy_ms_p95=max(part.policy_ms_p95 for part in parts),
        notes=(),
        is_priced=all(part.is_priced for part in parts),
    )


def _added(scores: Sequence[dict[str, CutScore]]) -> dict[str, CutScore]:
    budgets = dict.fromkeys(budget for one in scores for budget in one)
    return {budget: sum((one[budget] for one in scores if budget in one), CutScore()) for budget in budgets}


def _missing_everywhere(rows: Sequence[Row]) -> dict[str, str]:
    """Return the budgets at which no session was measured, with the reason that the first one gave."""
    every = {budget: why for row in reversed(rows) for budget, why in row.missing.items()}
    return {budget: why for budget, why in every.items() if all(budget in row.missing for row in rows)}


def _uneven(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a note for each budget that was measured in some of the sessions only: other policies have more."""
    notes = []
    for budget in dict.fromkeys(budget for row in rows for budget in row.missing):
        left_out = sum(budget in row.missing for row in rows)
        if left_out < len(rows):
            notes.append(f"recall at cuts of {int(budget):,} is without {left_out} of {len(rows)} sessions")
    return tuple(notes)


# -- tables ------------------------------------------------------------------------------------------------------------


def heading(subject: Subject) -> Text:
    """Return the file, what is in it, what it was replayed with, and a line for each thing that is wrong with it."""
    scale = "" if abs(subject.factor - 1) < 0.005 else f" × {subject.factor:.2f}"
    session = f"{subject.format} · {subject.messages:,} messages · {subject.steps:,} answers"
    size = f"{thousands(subject.peak)} tokens at the end ({subject.tokenizer}{scale})"
    place = f"{subject.model} ({subject.api}) · window {subject.window:,} (usable {subject.usable:,})"
    facts = f"{session} · {size}\n{place} · frame {subject.frame:,}"
    damage = "".join(f"\n{line}" for line in subject.damage)
    return Text.assemble((subject.file, "bold"), "\n", (facts, _DIM), (damage, "yellow"))


def policy_table(rows: Sequence[Row], width: int) -> Table:
    """Return the table of policies in at most ``width`` columns, ours last and bold."""
    rows = _ours_last(rows)
    base = next((row.measured.usd for row in rows if row.measured.policy == BASELINE), None)
    names = [Text(row.measured.policy) for row in rows]
    columns = _fitting(_columns(base, width), rows, width - max(6, *map(len, names)))
    cells = _cells(columns, rows)
    table = Table(box=None, padding=(0, _gap(columns, names, cells, width), 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(Text(column.name), justify="right", vertical="bottom", no_wrap=True)
    for name, line in zip(names, cells, strict=True):
        table.add_row(name, *line, style="bold" if name.plain == OURS else "")
    return table


def _cells(columns: Sequence[_Column], rows: Sequence[Row]) -> list[list[Text]]:
    best = [_best(rows, column) for column in columns]
    return [[column.cell(row, best=value) for column, value in zip(columns, best, strict=True)] for row in rows]


def _fitting(columns: list[_Column], rows: Sequence[Row], room: int) -> list[_Column]:
    """Return the columns that fit into ``room`` characters whole; the least important ones go first."""
    kept = list(columns)
    for name in LEAST:
        if sum(_widths([column.name for column in kept], _cells(kept, rows))) + len(kept) <= room:
            break
        kept = [column for column in kept if column.name != name]
    return kept


def _widths(names: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Return how wide each column is, by its longest line."""
    heads = [max(map(len, name.split("\n"))) for name in names]
    return [max(head, *map(len, column)) for head, column in zip(heads, zip(*cells, strict=True), strict=True)]


def _gap(columns: Sequence[_Column], names: Sequence[Text], cells: Sequence[Sequence[Text]], width: int) -> int:
    """Return how many spaces stand between two columns: two where there is room."""
    widths = _widths([column.name for column in columns], cells)
    return 2 if max(6, *map(len, names)) + sum(widths) + 2 * len(columns) <= width else 1


class _Column(Struct, frozen=True):
    """A figure in the table: what it is called, how it is written, and which end of it is good."""

    name: str
    value: Callable[[Measured], float | None]
    write: Callable[[float], str]
    good: int = 0
    """1 = more is better, -1 = less is better, 0 = neither."""
    is_fault: bool = False
    """Whether anything but 0 is bad."""

    def cell(self, row: Row, best: float | None) -> Text:
        value = self.value(row.measured)
        if value is None:
            return Text("-", style=_DIM)
        style = _BAD if self.is_fault and value else _BEST if value == best and row.is_sound else ""
        return Text(self.write(value), style=style)


def _columns(base: float | None, width: int) -> list[_Column]:
    def share(measured: Measured) -> float | None:
        return measured.usd / base if base else None

    columns = [
        _Column("requests", lambda m: m.requests, _count),
        _Column("invalid", lambda m: m.invalid_requests, _count, is_fault=True),
        _Column("over\nwindow", lambda m: m.over_window, _count, is_fault=True),
        _Column("words\nlost", lambda m: m.user_words_missing, _count, is_fault=True),
        _Column("tokens\npeak", lambda m: m.tokens_peak, thousands),
        _Column("cache\nhit", lambda m: m.cache_hit, _percent, good=1),
        _Column("cost\n$", lambda m: m.cost, lambda usd: f"{usd:,.2f}", good=-1),
        _Column("×\nappend", share, lambda ratio: f"{ratio:.2f}", good=-1),
        _Column("fact\nrecall", lambda m: m.online.fact_recall, _recall, good=1),
        _Column("compac-\ntions", lambda m: m.compactions, _count),
        _Column("ms\np95", lambda m: m.policy_ms_p95, lambda ms: f"{ms:.1f}"),
    ]
    return columns if width >= WIDE else columns[1:-1]


def _best(rows: Sequence[Row], column: _Column) -> float | None:
    """Return the best value among policies whose requests would all have been taken, if there is a choice."""
    values = [value for row in rows if row.is_sound and (value := column.value(row.measured)) is not None]
    if not column.good or len(rows) < 2 or not values:
        return None
    return max(values) if column.good > 0 else min(values)


def cut_table(
    rows: Sequence[Row], intervals: dict[str, list[tuple[int, int]]] | None = None, width: int = WIDE
) -> Table | None:
    """Return the table of recall at cuts in at most ``width`` columns, or nothing where no cut was made.

    ``intervals`` maps a policy to (facts, dependencies) at 8,000 tokens of each session, for the interval of a pool.
    """
    rows = [row for row in _ours_last(rows) if any(score.dependencies for score in row.cuts.values())]
    if not rows:
        return None
    budgets = list(dict.fromkeys(budget for row in rows for budget in (*row.cuts, *row.missing)))
    budgets.sort(key=int)
    names = [f"facts\n{int(budget):,}" for budget in budgets]
    names += [f"{name}\n{int(HEADLINE):,}" for name in ("oracle", "handles", "z_gain", "stale")]
    names += ["facts, 95 %\n8,000"] if intervals else []
    cells = [_cut_cells(row, budgets) + ([_edges(row, intervals)] if intervals else []) for row in rows]
    room = width - max(len(_AT_CUTS), *(len(row.measured.policy) for row in rows))
    kept = list(range(len(names)))
    widths = _widths(names, [[Text(cell) for cell in line] for line in cells])
    while len(kept) > 1 and sum(widths[at] + 1 for at in kept) >= room:
        kept.pop()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(_AT_CUTS, no_wrap=True, vertical="bottom")
    for at in kept:
        table.add_column(Text(names[at]), justify="right", vertical="bottom", no_wrap=True)
    for row, line in zip(rows, cells, strict=True):
        policy = row.measured.policy
        table.add_row(Text(policy), *(Text(line[at]) for at in kept), style="bold" if policy == OURS else "")
    return table


def _edges(row: Row, intervals: dict[str, list[tuple[int, int]]]) -> str:
    edges = interval(intervals.get(row.measured.policy, []))
    return "-" if edges is None else f"{_recall(edges[0])}-{_recall(edges[1])}"


def _cut_cells(row: Row, budgets: Sequence[str]) -> list[str]:
    figures = {budget: pool([score]) for budget, score in row.cuts_measured().items()}
    nothing = pool([])
    middle = figures.get(HEADLINE, nothing)
    values = [figures.get(budget, nothing).fact_recall for budget in budgets]
    values += [middle.oracle, middle.handle_recall, middle.z_gain, middle.stale]
    return ["-" if value is None else _recall(value) for value in values]


def pool_heading(subjects: Sequence[Subject]) -> Text:
    """Return what the pool is made of."""
    judged = sum(subject.is_judged for subject in subjects)
    if not judged:
        why = f"no pool: none of {len(subjects)} sessions is over {JUDGED} × the window without a policy"
        return Text(why, style=_DIM)
    facts = f"{judged} of {len(subjects)} sessions: those over {JUDGED} × the window without a policy"
    return Text.assemble(("all sessions together", "bold"), "\n", (facts, _DIM))


def remarks(rows: Sequence[Row]) -> Text:
    """Return the notes on each policy, a line each; empty where there are none."""
    out = Text(style=_DIM)
    for row in _ours_last(rows):
        own = [f"noticed {note}" for note in row.measured.notes if not note.startswith(GAP)]  # left to the JSON
        if notes := [*row.notes, *explain_missing(row), *own]:
            out.append(f"{row.measured.policy}: {'; '.join(notes)}\n")
    out.right_crop(1)
    return out


def verdict(rows: Sequence[Row]) -> Text:
    """Return one sentence on our policy, or an empty text where it was not run."""
    ours = next((row.measured for row in rows if row.measured.policy == OURS), None)
    base = next((row.measured for row in rows if row.measured.policy == BASELINE), None)
    if ours is None or not ours.requests:
        return Text()
    taken = ours.requests - ours.refused
    said = f"{OURS}: {f'{taken:,} of' if ours.refused else 'all'} {ours.requests:,} requests valid and inside"
    said += " the window" if ours.cost is None else f" the window, for ${ours.cost:,.2f}"
    if base is not None and base.usd:
        said += f" ({ours.usd / base.usd:.2f} × append-only, which fits {base.requests - base.over_window:,} of them)"
    recall = ours.online.fact_recall
    if recall is not None:
        said += f"; {recall:.1%} of the facts used again were still there"
    return Text(said + ".")


def _ours_last(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.measured.policy == OURS)


# -- numbers -----------------------------------------------------------------------------------------------------------


def thousands(tokens: float) -> str:
    """Return a number of tokens in at most five characters: ``812``, ``45.5k``, ``306k``, ``2.1M``."""
    if tokens < 1_000:
        return str(round(tokens))
    if tokens < 99_950:
        return f"{tokens / 1_000:.1f}k"
    return f"{tokens / 1_000:.0f}k" if tokens < 999_500 else f"{tokens / 1_000_000:.1f}M"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _recall(value: float) -> str:
    return f"{value:.3f}"
