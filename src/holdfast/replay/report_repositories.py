"""The table by repository as rich renderables; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from holdfast.messages.text.counts import format_count
from holdfast.replay.report import OUR_POLICY
from holdfast.replay.repositories import RepositoryPool, compute_repository_means

_COLUMN_WIDTH = 14
"""Characters of a column: a figure such as ``0.978 at 0.29``, and a blank."""
_NAME_WIDTH = 13
_DIM_STYLE = "dim"


def make_repository_heading(pools: Sequence[RepositoryPool]) -> Text:
    """Return the heading: what the figures are, and how the repositories are known."""
    origins = sorted({pool.origin for pool in pools}, reverse=True)
    facts = (
        f"fact recall at × append of {len(pools):,} repositories, each pooled over its "
        f"sessions; in the mean each counts once (known by {' or '.join(origins)})"
    )
    return Text.assemble(("by repository", "bold"), "\n", (facts, _DIM_STYLE))


def make_repository_table(pools: Sequence[RepositoryPool], clean: Callable[[str, int], str], width: int) -> Table:
    """Return fact recall and cost of each policy: the mean, then each repository as far as ``width`` has room.

    ``clean`` makes a name safe for a terminal and cuts it. ``--json`` has all repositories.
    """
    means = sorted(compute_repository_means(pools), key=lambda repository_mean: repository_mean.policy == OUR_POLICY)
    name_width = max(map(len, (repository_mean.policy for repository_mean in means)), default=0)
    shown_count = max(1, (width - name_width) // _COLUMN_WIDTH - 1)
    shown_pools = pools[:shown_count]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True, vertical="bottom")
    table.add_column("mean", justify="right", no_wrap=True, vertical="bottom")
    for pool in shown_pools:
        sessions = format_count(pool.sessions, "session")
        name = Text(f"{clean(pool.name, _NAME_WIDTH)}\n{sessions}")
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for repository_mean in means:
        policy = repository_mean.policy
        cells = [format_recall_at_cost(repository_mean.online_fact_recall, repository_mean.cost)]
        for pool in shown_pools:
            cells.append(format_recall_at_cost(pool.get_fact_recall(policy), pool.compute_cost(policy)))
        table.add_row(policy, *cells, style="bold" if policy == OUR_POLICY else "")
    return table


def format_recall_at_cost(recall: float | None, cost: float | None) -> str:
    """Return both figures, such as ``0.978 at 0.29``; without a cost the recall alone."""
    if recall is None:
        return "-"
    return f"{recall:.3f}" if cost is None else f"{recall:.3f} at {cost:.2f}"
