"""Sessions are pooled by repository: how one is named, and means in which each counts once."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from holdfast.messages.text.single_line import clean_single_line
from holdfast.replay.measure import PolicyFigures
from holdfast.replay.recall import RecallCounts
from holdfast.replay.report import PolicyRow, ReportSubject
from holdfast.replay.report_repositories import (
    format_recall_at_cost,
    make_repository_heading,
    make_repository_table,
)
from holdfast.replay.repositories import (
    FROM_FILE,
    FROM_RECORD,
    RepositoryPool,
    compute_repository_means,
    encode_repositories,
    name_repository,
    pool_by_repository,
)


def make_figures(policy: str = "holdfast", *, usd: float = 1.0, online: RecallCounts | None = None) -> PolicyFigures:
    """Return figures of ten requests, with six of ten facts unless ``online`` says otherwise."""
    online = RecallCounts(8, 6, 10) if online is None else online
    return PolicyFigures(policy, 10, 0, 0, 0, 0, 1_000, 200, 0.5, usd, online, 1, 2, 0.1, 3.0, ())


def make_subject(repository: str, origin: str = FROM_RECORD) -> ReportSubject:
    """Return a session that is judged for cost."""
    return ReportSubject(
        "a.jsonl",
        "pi",
        64_000,
        48_000,
        10_000,
        "anthropic",
        "m",
        "o200k",
        1.25,
        30,
        10,
        130_000,
        (),
        repository,
        origin,
    )


def render(renderable: object, width: int) -> str:
    """Return what a terminal of ``width`` columns would show."""
    out = Console(width=width, color_system=None, force_terminal=False)
    with out.capture() as capture:
        out.print(renderable)
    return capture.get()


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/home/dev/projects/shop", "shop"),
        ("/home/dev/projects/shop/", "shop"),
        ("C:\\work\\shop", "shop"),
        ("/home/dev/shop/.worktrees/alex/fix-17", "shop"),
        ("/home/dev/shop/.claude/worktrees/fix-17", "shop"),
        ("/home/dev/shop-worktrees/shop-abc", "shop"),
        ("/home/dev/shop.worktrees/abc", "shop"),
        ("/worktrees/abc", "abc"),
    ],
)
def test_name_repository_of_a_working_folder(folder: str, name: str) -> None:
    """The last name counts; a working copy belongs to the repository of its folder of worktrees."""
    assert name_repository(folder, "any.jsonl") == (name, FROM_RECORD)


def test_name_repository_falls_back_to_the_folder_of_the_file(tmp_path: Path) -> None:
    """Without a recorded folder the file's folder stands for the repository, and it is told that this is so."""
    assert name_repository("", str(tmp_path / "shop" / "a.jsonl")) == ("shop", FROM_FILE)


def make_pools() -> list[RepositoryPool]:
    """Return the pools of two repositories: one with two sessions, one with a single session of other figures."""
    baseline = PolicyRow(make_figures("append-only", usd=4.0, online=RecallCounts(10, 10, 10)))
    good = PolicyRow(make_figures(usd=1.0, online=RecallCounts(10, 10, 10)))
    poor = PolicyRow(make_figures(usd=2.0, online=RecallCounts(8, 5, 10)))
    alpha = make_subject("alpha")
    beta = make_subject("beta", FROM_FILE)
    short = replace(beta, peak_tokens=1_000)
    return pool_by_repository(
        [(beta, [baseline, poor]), (alpha, [baseline, good]), (alpha, [baseline, good]), (short, [baseline, good])]
    )


def test_pool_by_repository_counts_judged_sessions() -> None:
    """Repositories come by name, each with its judged sessions alone."""
    assert [(pool.name, pool.sessions, pool.origin) for pool in make_pools()] == [
        ("alpha", 2, FROM_RECORD),
        ("beta", 1, FROM_FILE),
    ]


def test_compute_repository_means_counts_each_repository_once() -> None:
    """Two good sessions of one repository do not outweigh the poor one of another."""
    baseline, ours = compute_repository_means(make_pools())
    assert (baseline.policy, baseline.cost) == ("append-only", 1.0)
    assert (ours.repositories, ours.online_fact_recall, ours.worst_online_fact_recall) == (2, 0.75, 0.5)
    assert ours.cost == pytest.approx((0.25 + 0.5) / 2)


def test_compute_repository_means_without_baseline_or_figure() -> None:
    """Without append-only there is no cost, and a repository without dependencies leaves no mean."""
    subject = make_subject("alpha")
    other = make_subject("beta")
    row = PolicyRow(make_figures())
    empty = PolicyRow(make_figures(online=RecallCounts()))
    [one] = compute_repository_means(pool_by_repository([(subject, [row]), (other, [empty])]))
    assert (one.cost, one.online_fact_recall, one.worst_online_fact_recall) == (None, None, 0.6)


def test_encode_repositories_ends_with_the_means() -> None:
    """An object for each repository and policy, then one for each mean."""
    encoded = encode_repositories(make_pools())
    assert [one.get("repository") for one in encoded] == ["alpha", "alpha", "beta", "beta", None, None]
    assert encoded[-1] == {
        "repositories": 2,
        "policy": "holdfast",
        "cost": pytest.approx(0.375),
        "online_fact_recall": 0.75,
        "worst_online_fact_recall": 0.5,
    }


def test_make_repository_table_shows_the_mean_and_what_fits() -> None:
    """The mean comes first; a narrow terminal drops repositories, not the mean."""
    pools = make_pools()
    assert "2 repositories" in make_repository_heading(pools).plain
    wide = render(make_repository_table(pools, clean_single_line, 100), 100)
    assert "0.750 at 0.38" in wide
    assert "0.500 at 0.50" in wide
    narrow = render(make_repository_table(pools, clean_single_line, 40), 40)
    assert "0.750 at 0.38" in narrow
    assert "beta" not in narrow


def test_format_recall_at_cost_of_missing_figures() -> None:
    """A missing recall is a dash, and a missing cost is left out."""
    assert [format_recall_at_cost(None, 1.0), format_recall_at_cost(0.5, None)] == ["-", "0.500"]
