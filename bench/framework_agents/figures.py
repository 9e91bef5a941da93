"""The figures of one run, and where another remedy does better than ours."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from framework_agents.judge import JudgingProvider, compute_cost, compute_step_times
from holdfast.state.target import Prices

HEADINGS = (
    "framework", "remedy", "answers", "refused", "turns lost", "rules lost", "¢ an answer", "cached", "facts shown",
    "or recalled", "ms a step", "worst ms", "MB",
)  # fmt: skip
SAME_SHARE = 0.02
"""Costs and shares of facts that differ by less count as equal."""


class RowFigures(Struct, frozen=True):
    """The figures of one row; ``None`` where a run did not come so far."""

    framework: str
    remedy: str
    is_ours: bool
    largest_result: int
    seed: int
    versions: str
    script_answers: int
    answers: int
    """Answers of the script that were given; the others were in turns that an error ended."""
    requests: int
    refused: int
    first_refusal: str
    failures: list[tuple[int, str]]
    """Turns that an error ended: the answers given by then, and the error."""
    summaries: int
    rules_lost: int
    """Rules of the user that were missing in any request after they were said."""
    usd: float
    usd_per_answer: float | None
    cache_read_share: float | None
    largest_request: int
    facts_needed: int
    facts_shown: int
    probed: int
    found: int
    ms_median: float
    ms_worst: float
    memory_mb: float | None
    """The most that the process took, less what it took before the first turn."""
    note: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end without an error."""
        return self.answers == self.script_answers and not self.failures

    @property
    def shown_share(self) -> float:
        """Share of the needed facts that the requests showed."""
        return self.facts_shown / self.facts_needed

    @property
    def recallable_share(self) -> float | None:
        """Share of the needed facts that were shown, or that the agent's own tool found afterwards."""
        if self.probed == 0:
            return 1.0 if self.facts_shown == self.facts_needed else None
        lost_share = 1 - self.shown_share
        return self.shown_share + lost_share * self.found / self.probed


class RowLabels(Struct, frozen=True):
    """What a row is called."""

    framework: str
    remedy: str
    is_ours: bool
    largest_result: int


class ChildEnd(Struct, frozen=True):
    """What the process of an agent said at its end; ``note`` is why it did not, if it was ended."""

    versions: str = ""
    memory: float | None = None
    note: str = ""


def collect_figures(labels: RowLabels, provider: JudgingProvider, end: ChildEnd, prices: Prices) -> RowFigures:
    """Return the figures of a run that ``provider`` watched."""
    record = provider.record
    usd = compute_cost(record, prices)
    input_tokens = sum(use.total_input for _, use in record.uses)
    ms_median, ms_worst = compute_step_times(record)
    return RowFigures(
        framework=labels.framework,
        remedy=labels.remedy,
        is_ours=labels.is_ours,
        largest_result=labels.largest_result,
        seed=provider.seed,
        versions=end.versions,
        script_answers=provider.script_answers,
        answers=record.answers,
        requests=len(record.uses) + record.refused,
        refused=record.refused,
        first_refusal=record.first_refusal,
        failures=record.failures,
        summaries=record.summaries,
        rules_lost=len(record.lost_rules),
        usd=usd,
        usd_per_answer=usd / record.answers if record.answers else None,
        cache_read_share=sum(use.cache_read for _, use in record.uses) / input_tokens if input_tokens else None,
        largest_request=record.largest_request,
        facts_needed=provider.count_needed_facts(),
        facts_shown=record.facts_shown,
        probed=record.probed,
        found=record.found,
        ms_median=ms_median,
        ms_worst=ms_worst,
        memory_mb=end.memory,
        note=end.note,
    )


def format_row(figures: RowFigures) -> tuple[str, ...]:
    """Return the cells of a row, as ``HEADINGS`` names them."""
    answers = str(figures.answers)
    if figures.failures:
        answers = f"{figures.answers}, first died at {figures.failures[0][0] + 1}"
    recallable = figures.recallable_share
    return (
        figures.framework,
        figures.remedy,
        answers,
        str(figures.refused),
        str(len(figures.failures)),
        str(figures.rules_lost),
        "-" if figures.usd_per_answer is None else f"{figures.usd_per_answer * 100:.2f}",
        "-" if figures.cache_read_share is None else f"{figures.cache_read_share:.0%}",
        f"{figures.shown_share:.2f}",
        "-" if recallable is None else f"{recallable:.2f}",
        f"{figures.ms_median:.0f}",
        f"{figures.ms_worst:,.0f}",
        "-" if figures.memory_mb is None else f"{figures.memory_mb:,.0f}",
    )


# -- ours beside the others --------------------------------------------------------------------------------------------


def find_failures(table: Sequence[RowFigures]) -> list[str]:
    """Return what must not be: a refused request, a lost rule or a lost turn of ours, or a better remedy.

    Another remedy is better if it finished, and costs no more, shows no fewer facts and loses no more rules, and one of
    these is clearly better (docs/metrics.md, "Several sessions").
    """
    findings = []
    for ours in table:
        if not ours.is_ours:
            continue
        place = f"{ours.framework}, results up to {ours.largest_result:,}"
        if not ours.is_complete:
            findings.append(f"{place}: ours gave {ours.answers} of {ours.script_answers} answers")
        if ours.refused:
            findings.append(f"{place}: {ours.refused} requests of ours were refused")
        if ours.rules_lost:
            findings.append(f"{place}: ours lost {ours.rules_lost} rules of the user")
        for other in list_peers(table, ours):
            if is_better(other, ours):
                findings.append(f"{place}: {other.remedy} costs no more and shows no fewer facts")
    return findings


def list_peers(table: Sequence[RowFigures], ours: RowFigures) -> list[RowFigures]:
    """Return the other rows of the same framework with the same results."""
    return [
        other
        for other in table
        if not other.is_ours and other.framework == ours.framework and other.largest_result == ours.largest_result
    ]


def is_better(other: RowFigures, ours: RowFigures) -> bool:
    """Return whether ``other`` recalls more and costs no more, or costs less and recalls no less."""
    if not other.is_complete or other.rules_lost > ours.rules_lost:
        return False
    if not ours.usd_per_answer:
        return False
    cost_ratio = _get_cost(other) / ours.usd_per_answer
    facts_gained = other.shown_share - ours.shown_share
    if cost_ratio > 1 + SAME_SHARE or facts_gained < -SAME_SHARE:
        return False
    return cost_ratio < 1 - SAME_SHARE or facts_gained > SAME_SHARE


def explain_behind(ours: RowFigures, peers: Sequence[RowFigures]) -> list[str]:
    """Return one line for each figure in which a peer is ahead of ours: the best peer, and why.

    Peers that did not finish are left out: a run that ends early is cheap, quick and small.
    """
    complete_peers = [peer for peer in peers if peer.is_complete]
    if not complete_peers:
        return []
    lines = []
    cheapest = min(complete_peers, key=_get_cost)
    if _get_cost(cheapest) < _get_cost(ours) * (1 - SAME_SHARE):
        lines.append(
            f"{cheapest.remedy} costs {_get_cost(cheapest) / _get_cost(ours):.2f} times as much, because it keeps "
            f"less: {cheapest.shown_share:.2f} of the facts are shown for {ours.shown_share:.2f}, and "
            f"{cheapest.rules_lost} rules are lost."
        )
    richest = max(complete_peers, key=lambda peer: peer.shown_share)
    if richest.shown_share > ours.shown_share + SAME_SHARE:
        lines.append(
            f"{richest.remedy} shows {richest.shown_share:.2f} of the facts for {ours.shown_share:.2f}, at "
            f"{_get_cost(richest) / _get_cost(ours):.2f} times the cost."
        )
    quickest = min(complete_peers, key=lambda peer: peer.ms_median)
    if quickest.ms_median < ours.ms_median - 1:
        lines.append(
            f"{quickest.remedy} takes {quickest.ms_median:.0f} ms a step for {ours.ms_median:.0f}: ours measures what "
            "is new, plans, and writes the history and each decision to disk, all without a model."
        )
    smallest = min(complete_peers, key=_get_memory)
    if _get_memory(smallest) < _get_memory(ours) - 5:
        lines.append(
            f"{smallest.remedy} takes {_get_memory(smallest):,.0f} MB for {_get_memory(ours):,.0f}: with ours the "
            "framework's own history stays whole."
        )
    return lines


def _get_cost(figures: RowFigures) -> float:
    return figures.usd_per_answer or 0.0


def _get_memory(figures: RowFigures) -> float:
    return figures.memory_mb or 0.0
