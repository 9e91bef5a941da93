"""Measure every policy on recorded sessions; write the tables of ``results.md`` and the one in the README.

    uv run python docs/measure.py --held-out FILE… --tuned FILE…

Held-out sessions come first: those on which no number of the policy was chosen, or numbers that would have been chosen
without them as well (``bench/leave_one_out.py``). They are pooled by repository, and the README shows their mean. Each
session is replayed at three settings; the figures are those of ``holdfast replay --json``, whose definitions are in
``metrics.md``. Recall at cuts does not depend on the window and is measured once. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from textwrap import fill as fill_paragraph
from typing import NamedTuple

from generate import table

from holdfast import Policy, config
from holdfast.cli.files.input_files import read_input_file
from holdfast.formats import read_recording
from holdfast.planning.presets.registry import PRESETS
from holdfast.replay.recall_at_cuts import compute_interval, pool_scores
from holdfast.replay.report import (
    BASELINE_POLICY,
    HEADLINE_BUDGET,
    OUR_POLICY,
    PolicyRow,
    format_tokens_short,
    pool_policy_rows,
)
from holdfast.replay.repositories import RepositoryPool, compute_repository_means, pool_by_repository
from holdfast.reports.sessions.session_replay import ReplayJob, ReplayReport, replay_recording

PAGE = Path(__file__).parent / "results.md"
README = Path(__file__).parents[1] / "README.md"
EXAMPLE = Path(__file__).parents[1] / "examples" / "long-session.jsonl"
SETTINGS = ((64_000, 10_000), (32_000, 3_000), (200_000, 10_000))
"""Windows, each with the tokens of system prompt and tools."""
_OVER = re.compile(r"over at (\d+) cuts of ([\d,]+)")
_PART = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = ("policy", "requests", "invalid", "over window", "user messages missing", "read from cache", "cost $",
         "cost / append-only", "facts kept", "compactions", "planning ms (p95)")  # fmt: skip
_CUT_HEAD = ("policy", "facts kept in 4,000", "facts kept in 8,000", "facts kept in 16,000", "95 % interval",
             "best possible", "name or handle kept", "prediction gain", "stale facts")  # fmt: skip


CUTS_INTRODUCTION = """\
## Recall at cuts

The budget for messages is 4,000, 8,000 or 16,000 tokens; the columns without a number are for 8,000. See
[metrics.md](metrics.md#recall-at-cuts).
"""


class Quiet:
    """A progress bar that shows nothing."""

    def begin_part(self, label: str, total: int) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """Do nothing."""


def measured(file: str, window: int, setup_tokens: int) -> ReplayReport:
    """Return the report on one session at one setting; with recall at cuts at the first."""
    order = ReplayJob(
        policies=tuple(Policy.preset(name) for name in PRESETS),
        window=window,
        setup_tokens=setup_tokens,
        catalog=config.load_shipped_catalog(),
        model=config.DEFAULT_MODEL,
        measures_cuts=(window, setup_tokens) == SETTINGS[0],
    )
    return replay_recording(file, read_recording(read_input_file(file)), order, Quiet())


def name(file: str) -> str:
    """Return a session's folder and the beginning of its name."""
    path = Path(file)
    return f"{path.parent.name}/{path.stem[:14]}"


def online(rows: Sequence[PolicyRow]) -> str:
    """Return the table of one session or of the pool at one setting."""
    base = next((row.figures.usd for row in rows if row.figures.policy == BASELINE_POLICY), 0.0)
    return table(_HEAD, [_mark_own(list(_online(row, base))) for row in rows])


def _online(row: PolicyRow, base: float) -> Iterator[str]:
    one = row.figures
    yield one.policy
    yield from (f"{n:,}" for n in (one.requests, one.invalid_requests, one.over_window, one.user_words_missing))
    yield "-" if one.cache_hit is None else f"{one.cache_hit:.1%}"
    yield f"{one.usd:,.2f}"
    yield f"{one.usd / base:.3f}" if base else "-"
    yield _share(one.online.fact_recall)
    yield f"{one.compactions:,}"
    yield f"{one.policy_ms_p95:.1f}"


def at_cuts(rows: Sequence[PolicyRow], sessions: Sequence[ReplayReport]) -> str:
    """Return the table of recall at cuts; with several sessions also the bootstrap interval over them."""
    lines = []
    for row in rows:
        own = [one for report in sessions for one in report.rows if one.figures.policy == row.figures.policy]
        figures = {
            budget: pool_scores([row.cut_scores[budget]] if budget not in row.missing_budgets else [])
            for budget in row.cut_scores
        }
        middle = figures[HEADLINE_BUDGET]
        scores = [one.get_measured_cuts().get(HEADLINE_BUDGET) for one in own]
        pairs = [(score.kept_facts, score.dependencies) for score in scores if score is not None]
        edges = compute_interval(pairs) if len(pairs) > 1 else None
        facts = [_share(figure.fact_recall) + _over(own, budget) for budget, figure in figures.items()]
        spread = "-" if edges is None else f"{edges[0]:.3f} to {edges[1]:.3f}"
        more = map(_share, (middle.oracle, middle.handle_recall, middle.z_gain, middle.stale))
        lines.append(_mark_own([row.figures.policy, *facts, spread, *more]))
    return table(_CUT_HEAD, lines)


def _over(rows: Sequence[PolicyRow], budget: str) -> str:
    """Return how many requests were larger than the budget, for the cell of the table."""
    told = [found.groups() for row in rows for note in row.notes if (found := _OVER.fullmatch(note))]
    over = sum(int(count) for count, room in told if room.replace(",", "") == budget)
    return f" ({over} over)" if over else ""


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mark_own(cells: list[str]) -> list[str]:
    """Return the cells of a row with the name of the policy, the first, in bold if it is ours."""
    return [f"**{cells[0]}**", *cells[1:]] if cells[0] == OUR_POLICY else cells


def sessions(reports: Sequence[ReplayReport]) -> str:
    """Return the table of what was replayed."""
    lines = [
        (
            name(s.file),
            s.repository,
            s.format,
            f"{s.messages:,}",
            f"{s.steps:,}",
            format_tokens_short(s.peak_tokens),
            f"{s.factor:.2f}",
        )
        for s in (report.subject for report in reports)
    ]
    return table(
        (
            "session",
            "repository",
            "format",
            "messages",
            "answers",
            "largest request (append-only)",
            "recorded tokens / o200k tokens",
        ),
        lines,
    )


def write_tables(
    example: Sequence[ReplayReport],
    held_out: Sequence[Sequence[ReplayReport]],
    tuned: Sequence[Sequence[ReplayReport]],
) -> str:
    """Return all tables; ``held_out`` and ``tuned`` hold the reports on those sessions for each setting."""
    out = ["### What was replayed\n"]
    if held_out[0]:
        out.append(f"Held out:\n\n{sessions(held_out[0])}")
    out.append(f"Tuned on, and our example:\n\n{sessions([*tuned[0], example[0]])}")
    if held_out[0]:
        out += _write_held_out_tables(held_out)
    out.append("## Sessions that were tuned on\n")
    for own, reports, setting in zip(example, tuned, SETTINGS, strict=True):
        out.append(f"### {_format_setting(setting)}\n")
        out += [f"{name(report.subject.file)}\n\n{online(report.rows)}" for report in reports]
        rows = pool_policy_rows([(report.subject, report.rows) for report in reports])
        judged = [name(report.subject.file) for report in reports if report.subject.is_judged]
        if rows:
            out.append(f"**Pool** of {', '.join(judged)}\n\n{online(rows)}")
        out.append(f"Our example session, which is not in the pool\n\n{online(own.rows)}")
    out.append("### Recall at cuts\n")
    out += [
        f"{name(report.subject.file)}\n\n{at_cuts(report.rows, [report])}" for report in tuned[0] if _is_cut(report)
    ]
    rows = pool_policy_rows([(report.subject, report.rows) for report in tuned[0]])
    if rows:
        out.append(f"**Pool** of the sessions that were tuned on\n\n{at_cuts(rows, tuned[0])}")
    out.append(f"Our example session, which is not in the pool\n\n{at_cuts(example[0].rows, [example[0]])}")
    return "\n".join(out)


def _write_held_out_tables(by_setting: Sequence[Sequence[ReplayReport]]) -> Iterator[str]:
    """Yield the tables of the sessions that nobody tuned to: the mean of their repositories, then each of these."""
    yield "## Held-out sessions\n"
    for reports, setting in zip(by_setting, SETTINGS, strict=True):
        pools = pool_by_repository([(report.subject, report.rows) for report in reports])
        if not pools:
            continue
        yield f"### {_format_setting(setting)}, held out\n"
        yield f"**Mean of {len(pools)} repositories**\n\n{_format_means(pools)}"
        for pool in pools:
            yield f"{pool.name}, {pool.sessions} sessions pooled\n\n{online(pool.rows)}"
    yield CUTS_INTRODUCTION
    by_repository: dict[str, list[ReplayReport]] = {}
    for report in by_setting[0]:
        if _is_cut(report):
            by_repository.setdefault(report.subject.repository, []).append(report)
    for repository, reports in sorted(by_repository.items()):
        rows = pool_policy_rows([(report.subject, report.rows) for report in reports])
        yield f"{repository}, {len(reports)} sessions pooled\n\n{at_cuts(rows, reports)}"


def _format_setting(setting: tuple[int, int]) -> str:
    window, setup_tokens = setting
    return f"Window {window:,}, system prompt and tools {setup_tokens:,}"


def _format_means(pools: Sequence[RepositoryPool]) -> str:
    """Return the table of each policy's mean over the repositories."""
    lines = []
    for own in compute_repository_means(pools):
        rows = [row.figures for pool in pools if (row := pool.find_row(own.policy)) is not None]
        cells = [
            own.policy,
            f"{sum(one.requests for one in rows):,}",
            f"{sum(one.refused_requests for one in rows):,}",
            f"{sum(one.user_words_missing for one in rows):,}",
            _share(own.cost),
            _share(own.online_fact_recall),
            _share(own.worst_online_fact_recall),
        ]
        lines.append(_mark_own(cells))
    head = ("policy", "requests", "refused", "user messages missing", "cost / append-only", "facts kept", "worst")
    return table(head, lines)


class HeadlineFigures(NamedTuple):
    """One policy over the repositories of one setting, as the README shows it."""

    policy: str
    cost: float
    """Relative to ``BASELINE_POLICY``."""
    facts_kept: float | None
    failed: float
    """Share of the requests that were invalid or too large."""

    @property
    def cells(self) -> tuple[str, str, str]:
        """The three figures as text."""
        return f"{self.cost:.2f}", _share(self.facts_kept), f"{self.failed:.1%}"


def headline(by_setting: Sequence[Sequence[ReplayReport]]) -> str:
    """Return the table of the README, the mean of the repositories for each policy, and what is to be said about it."""
    by_window = sorted(zip(SETTINGS, by_setting, strict=True), key=lambda setting: setting[0])
    figures_by_window = {}
    for (window, _), reports in by_window:
        pools = pool_by_repository([(report.subject, report.rows) for report in reports])
        if pools:
            figures_by_window[f"{window // 1000}k"] = _collect_headline_figures(pools)
    return f"{_headline_table(figures_by_window)}\n{_headline_note(figures_by_window)}"


def _collect_headline_figures(pools: Sequence[RepositoryPool]) -> list[HeadlineFigures]:
    figures = []
    for own in compute_repository_means(pools):
        rows = [row.figures for pool in pools if (row := pool.find_row(own.policy)) is not None]
        failed = sum(one.refused_requests for one in rows) / sum(one.requests for one in rows)
        figures.append(HeadlineFigures(own.policy, own.cost or 0.0, own.online_fact_recall, failed))
    return figures


def _headline_table(figures_by_window: Mapping[str, Sequence[HeadlineFigures]]) -> str:
    """Return the table, in which only the best figure of a column is bold, and those that equal it.

    ``BASELINE_POLICY`` is not compared: it keeps every fact in requests that mostly fail.
    """
    head = ["policy"]
    rows = [[figures.policy] for figures in next(iter(figures_by_window.values()))]
    for window, all_figures in figures_by_window.items():
        head += [f"{window}: {name}" for name in ("cost", "facts kept", "failed")]
        compared = [figures for figures in all_figures if figures.policy != BASELINE_POLICY]
        best = (
            min(compared, key=lambda figures: figures.cost).cells[0],
            max(compared, key=lambda figures: figures.facts_kept or 0.0).cells[1],
            min(compared, key=lambda figures: figures.failed).cells[2],
        )
        for row, figures in zip(rows, all_figures, strict=True):
            for cell, best_cell in zip(figures.cells, best, strict=True):
                is_best = cell == best_cell and figures in compared
                row.append(f"**{cell}**" if is_best else cell)
    return table(head, rows)


def _headline_note(figures_by_window: Mapping[str, Sequence[HeadlineFigures]]) -> str:
    """Return the paragraph under the table: what is bold, and which policies cost less than ours."""
    parts = []
    for window, all_figures in figures_by_window.items():
        own = next(figures for figures in all_figures if figures.policy == OUR_POLICY)
        cheaper = [figures for figures in all_figures if figures.cost < own.cost]
        if cheaper:
            names = " and ".join(figures.policy for figures in cheaper)
            costs = " and ".join(figures.cells[0] for figures in cheaper)
            parts.append(f"at {window} {names} ({costs} against {own.cells[0]})")
    note = f"Bold: the best figure of a column, without {BASELINE_POLICY}, most of whose requests fail."
    if parts:
        note += f" Some policies cost less than Holdfast: {', '.join(parts)}."
    return f"{fill_paragraph(note, 120)}\n"


def fill(page: Path, text: str) -> None:
    """Put ``text`` in the measured part of ``page``."""
    page.write_text(_PART.sub(lambda part: f"{part[1]}\n{text}\n{part[2]}", page.read_text("utf-8")), "utf-8")
    print(f"{page.name} written")


def _is_cut(report: ReplayReport) -> bool:
    return any(score.dependencies for row in report.rows for score in row.cut_scores.values())


def main() -> None:
    """Replay the files named on the command line and write the pages."""
    parser = argparse.ArgumentParser(description="Write the measured tables of docs/results.md and README.md.")
    parser.add_argument("--held-out", nargs="*", default=[], metavar="FILE", help="sessions that nobody tuned to")
    parser.add_argument("--tuned", nargs="*", default=[], metavar="FILE", help="sessions that numbers were chosen on")
    arguments = parser.parse_args()
    files = [str(EXAMPLE), *arguments.held_out, *arguments.tuned]
    jobs = list(product(files, SETTINGS))
    with ProcessPoolExecutor(2) as workers:
        found = list(workers.map(measured, [file for file, _ in jobs], *zip(*[own for _, own in jobs], strict=True)))
    by_setting = [[report for report, (_, own) in zip(found, jobs, strict=True) if own == one] for one in SETTINGS]
    held_out_end = 1 + len(arguments.held_out)
    example = [reports[0] for reports in by_setting]
    held_out = [reports[1:held_out_end] for reports in by_setting]
    tuned = [reports[held_out_end:] for reports in by_setting]
    fill(PAGE, write_tables(example, held_out, tuned))
    if held_out[0]:
        fill(README, headline(held_out))


if __name__ == "__main__":
    main()
