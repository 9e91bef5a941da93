"""Which repository a session belongs to, and the figures of several sessions pooled by it.

Sessions of one repository resemble each other, and a long one would outweigh the others. So the sessions of a
repository are pooled first, and the mean of the repositories counts each of them once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import Struct

from holdfast.replay.report import BASELINE_POLICY, PolicyRow, ReportSubject, pool_policy_rows

FROM_RECORD = "the recorded working folder"
FROM_FILE = "the folder of the file"
_FOLDER_SEPARATOR = re.compile(r"[/\\]+")
_WORKTREES = re.compile(r"(.*?)[-._]?worktrees?")
"""A folder that holds working copies of a repository, such as ``.worktrees`` in it or ``NAME-worktrees`` beside it."""


def name_repository(working_folder: str, file: str) -> tuple[str, str]:
    """Return the name of a session's repository, and how it is known: ``FROM_RECORD`` or ``FROM_FILE``.

    It is the last name of the working folder; of a working copy below a folder of worktrees it is the name of the
    repository that they belong to. Without a recorded working folder it is the name of the file's folder.
    """
    folders = [name for name in _FOLDER_SEPARATOR.split(working_folder) if name not in {"", "."}]
    if not folders:
        return Path(file).absolute().parent.name or "/", FROM_FILE
    for number, folder in enumerate(folders):
        worktrees = _WORKTREES.fullmatch(folder)
        if worktrees is None:
            continue
        # Tools keep their worktrees in a hidden folder of their own: NAME/.claude/worktrees.
        owners = [name for name in folders[:number] if not name.startswith(".")]
        owner = worktrees[1] or (owners[-1] if owners else "")
        if owner:
            return owner, FROM_RECORD
    return folders[-1], FROM_RECORD


class RepositoryPool(Struct, frozen=True):
    """The sessions of one repository that are judged for cost, pooled."""

    name: str
    origin: str
    """How the name is known: ``FROM_RECORD``, or ``FROM_FILE`` if that is so for any of them."""
    sessions: int
    rows: tuple[PolicyRow, ...]

    def find_row(self, policy: str) -> PolicyRow | None:
        """Return the row of a policy, or None if no session has one."""
        for row in self.rows:
            if row.figures.policy == policy:
                return row
        return None

    def compute_cost(self, policy: str) -> float | None:
        """Return the cost of a policy relative to append-only; None if one of the two is missing or has no price."""
        row, baseline = self.find_row(policy), self.find_row(BASELINE_POLICY)
        if row is None or baseline is None or row.figures.cost is None or not baseline.figures.cost:
            return None
        # The same policy over fewer sessions would seem cheap.
        if row.figures.requests != baseline.figures.requests:
            return None
        return row.figures.cost / baseline.figures.cost

    def get_fact_recall(self, policy: str) -> float | None:
        """Return the online fact recall of a policy, or None without a row or without dependencies."""
        row = self.find_row(policy)
        return None if row is None else row.figures.online.fact_recall


class RepositoryMean(Struct, frozen=True):
    """One policy over several repositories, each of which counts once. None if a repository lacks the figure."""

    policy: str
    repositories: int
    online_fact_recall: float | None
    worst_online_fact_recall: float | None
    cost: float | None
    """Relative to append-only."""


def pool_by_repository(reports: Sequence[tuple[ReportSubject, Sequence[PolicyRow]]]) -> list[RepositoryPool]:
    """Return the pool of each repository with a session judged for cost, by name."""
    judged_reports: dict[str, list[tuple[ReportSubject, Sequence[PolicyRow]]]] = {}
    for subject, rows in reports:
        if subject.is_judged:
            judged_reports.setdefault(subject.repository, []).append((subject, rows))
    pools = []
    for name, members in sorted(judged_reports.items()):
        origins = [subject.repository_origin for subject, _ in members]
        origin = FROM_FILE if FROM_FILE in origins else FROM_RECORD
        pools.append(RepositoryPool(name, origin, len(members), tuple(pool_policy_rows(members))))
    return pools


def compute_repository_means(pools: Sequence[RepositoryPool]) -> list[RepositoryMean]:
    """Return the mean over the repositories for each policy, in the order of the rows."""
    policies = dict.fromkeys(row.figures.policy for pool in pools for row in pool.rows)
    means = []
    for policy in policies:
        recalls = [pool.get_fact_recall(policy) for pool in pools]
        known_recalls = [recall for recall in recalls if recall is not None]
        means.append(
            RepositoryMean(
                policy=policy,
                repositories=len(pools),
                online_fact_recall=_compute_mean(recalls),
                worst_online_fact_recall=min(known_recalls, default=None),
                cost=_compute_mean([pool.compute_cost(policy) for pool in pools]),
            )
        )
    return means


def _compute_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is missing: a mean over other repositories could not be compared."""
    present = [value for value in values if value is not None]
    return mean(present) if present and len(present) == len(values) else None


def encode_repositories(pools: Sequence[RepositoryPool]) -> list[dict[str, Any]]:
    """Return an object for each repository and policy, then one for the mean of each policy (docs/metrics.md)."""
    encoded: list[dict[str, Any]] = []
    for pool in pools:
        for row in pool.rows:
            figures = row.figures
            encoded.append(
                {
                    "repository": pool.name,
                    "repository_from": pool.origin,
                    "sessions": pool.sessions,
                    "policy": figures.policy,
                    "requests": figures.requests,
                    "refused_requests": figures.refused_requests,
                    "user_words_missing": figures.user_words_missing,
                    "usd": None if figures.cost is None else round(figures.cost, 6),
                    "cost": pool.compute_cost(figures.policy),
                    "online_recall": figures.online.recall,
                    "online_fact_recall": figures.online.fact_recall,
                }
            )
    for repository_mean in compute_repository_means(pools):
        encoded.append(
            {
                "repositories": repository_mean.repositories,
                "policy": repository_mean.policy,
                "cost": repository_mean.cost,
                "online_fact_recall": repository_mean.online_fact_recall,
                "worst_online_fact_recall": repository_mean.worst_online_fact_recall,
            }
        )
    return encoded
