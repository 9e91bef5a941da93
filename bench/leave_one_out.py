"""Choose the numbers of the extract without a repository, and show what they give on it.

Usage: python bench/leave_one_out.py FOLDER [--windows 64000:10000,32000:3000,200000:10000] [--write]

The numbers that ship were chosen by the mean of all repositories under FOLDER, so figures on these say little about a
repository that nobody has seen. Here each repository is left out once: of the variants below, the one that is best on
the mean of the others is taken, and judged on the one that was left out. The variants are a step away from the shipped
numbers. A variant is the better, the higher its fact recall less ``COST_WEIGHT`` times its cost, both
as the mean over the given windows. Names and costs are as in ``tuning.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from multiprocessing import Pool
from pathlib import Path
from statistics import mean

from ruler_results import fill_page_part, format_table
from tuning import (
    RepositoryFigures,
    get_repository,
    list_sessions,
    make_baseline_jobs,
    make_jobs,
    parse_windows,
    pool_outcomes,
    run_job,
)

COST_WEIGHT = 0.1
"""What one percent of recall may cost: a tenth of append-only."""

VARIANTS: dict[str, tuple[dict[str, dict[str, float]], tuple[str, ...]]] = {
    "shipped": ({}, ()),
    "lines worth .0005": ({}, ("extract.extract:MIN_LINE_WORTH=0.0005",)),
    "lines worth .002": ({}, ("extract.extract:MIN_LINE_WORTH=0.002",)),
    "extract at most .70": ({"summary": {"max_share": 0.70}}, ()),
    "extract at most .95": ({"summary": {"max_share": 0.95}}, ()),
    "other sections .25": ({"summary": {"share": 0.25}}, ()),
    "other sections .45": ({"summary": {"share": 0.45}}, ()),
    "tail .06": ({"compaction": {"tail_share": 0.06}}, ()),
    "tail .15": ({"compaction": {"tail_share": 0.15}}, ()),
    "pointers .07": ({}, ("extract.extract:SUMMARY_POINTER_SHARE=0.07",)),
    "new extract .80": ({}, ("stages.compaction:NEW_EXTRACT_SHARE=0.80",)),
    "new extract .50": ({}, ("stages.compaction:NEW_EXTRACT_SHARE=0.50",)),
    "extension .70": ({}, ("extract.summary_builder:EXTENSION_SHARE=0.70",)),
    "extension .35": ({}, ("extract.summary_builder:EXTENSION_SHARE=0.35",)),
    "no extensions": ({}, ("extract.summary_builder:MIN_EXTENSION_SHARE=2.0",)),
    "scanned 160,000": ({}, ("extract.extract:MAX_SCANNED_TOKENS=160_000",)),
}
"""Settings and constants of each variant."""

FiguresByWindow = Mapping[int, Mapping[str, RepositoryFigures]]
"""Figures of one variant: by window, then by repository."""


def compute_value(figures: FiguresByWindow, repositories: Sequence[str]) -> float:
    """Return how good a variant is on some repositories."""
    own = [by_repository[repository] for by_repository in figures.values() for repository in repositories]
    return mean(one.fact_recall - COST_WEIGHT * one.cost for one in own)


def format_means(figures: FiguresByWindow, repositories: Sequence[str]) -> list[str]:
    """Return recall and cost for each window, as the mean of some repositories."""
    cells = []
    for by_repository in figures.values():
        recall = mean(by_repository[repository].fact_recall for repository in repositories)
        cells.append(f"{recall:.4f} at {mean(by_repository[repository].cost for repository in repositories):.3f}")
    return cells


def format_left_out(by_variant: Mapping[str, FiguresByWindow], repositories: Sequence[str]) -> str:
    """Return a table of what the choice of the others gives on each repository, and the mean of these."""
    rows: list[tuple[str, ...]] = []
    chosen: dict[str, FiguresByWindow] = {}
    for left_out in repositories:
        others = [repository for repository in repositories if repository != left_out]
        best = max(by_variant, key=lambda name: compute_value(by_variant[name], others))
        chosen[left_out] = by_variant[best]
        rows.append((left_out, best, *format_means(by_variant[best], [left_out])))
    windows = next(iter(by_variant.values()))
    means = {window: {name: chosen[name][window][name] for name in repositories} for window in windows}
    rows.append(("mean", "", *format_means(means, repositories)))
    return format_table(("left out", "chosen by the others", *(f"{window:,}" for window in windows)), rows)


def main() -> None:
    """Print each variant, then each repository with the choice of the others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", default="64000:10000,32000:3000,200000:10000")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results.md")
    arguments = parser.parse_args()
    files, windows = list_sessions(arguments.folder), parse_windows(arguments.windows)
    if len({get_repository(file) for file in files}) < 2:
        raise SystemExit(f"{arguments.folder}: sessions of one repository only; none would be left to choose by")
    by_variant: dict[str, FiguresByWindow] = {}
    with Pool() as pool:
        baselines = {
            setup_tokens: pool.map(run_job, make_baseline_jobs(files, setup_tokens), chunksize=1)
            for setup_tokens in {setup_tokens for _, setup_tokens in windows}
        }
        print(f"  {'windows':<22} {'   '.join(f'{window:,}'.ljust(15) for window, _ in windows)}")
        for name, (settings, constants) in VARIANTS.items():
            figures = {}
            for window, setup_tokens in windows:
                outcomes = pool.map(run_job, make_jobs(files, window, setup_tokens, settings, constants), chunksize=1)
                figures[window] = pool_outcomes(files, outcomes, baselines[setup_tokens])
            by_variant[name] = figures
            cells = format_means(figures, list(next(iter(figures.values()))))
            print(f"  {name:<22} {'   '.join(cells)}", flush=True)
    left_out = format_left_out(by_variant, list(next(iter(by_variant["shipped"].values()))))
    print(left_out)
    if arguments.write:
        fill_page_part("leave-one-out", left_out)


if __name__ == "__main__":
    main()
