"""Summaries of a replay that a model writes, beside or in place of the extract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from holdfast.engine.compaction.summarizer import CompactionContext, SummaryWriter, write_summary
from holdfast.errors import CompactionFailed
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy
from holdfast.state.costs import SummaryCall, compute_cost
from holdfast.state.plan import SummaryRequest
from holdfast.state.target import SummaryResult

SummaryKind: TypeAlias = Literal["extract", "both", "model"]
"""Who writes the summaries of a replay: nobody (the extract), a model with the extract beside it, or a model alone."""
SUMMARY_KINDS: tuple[SummaryKind, ...] = get_args(SummaryKind)
MAX_FAILURES_IN_A_ROW = 3
"""Failed summaries after which the model is asked no more. The engine's circuit breaker stops after as many; a replay
has no use for its pause."""
CoroutineRunner: TypeAlias = Callable[[Callable[[], Awaitable[SummaryResult]]], SummaryResult]
"""Runs an asynchronous function to its end and returns its result."""


class WrittenSummary(Struct, frozen=True):
    """What came of asking for one summary."""

    result: SummaryResult | None = None
    """The summary; None if none was accepted."""
    calls: tuple[SummaryCall, ...] = ()
    """The answered calls, also those whose summary was rejected: they are paid for too."""
    failure: str = ""
    """Why there is no summary."""


class ModelSummaries:
    """Has a model write the summaries of replays. ``run`` runs the calls, for example in an event loop's thread."""

    def __init__(self, writer: SummaryWriter, run: CoroutineRunner) -> None:
        self.writer = writer
        self._run = run
        self._failures_in_a_row = 0

    def write(self, head: Sequence[SizedMessage], request: SummaryRequest, policy: Policy) -> WrittenSummary:
        """Have the summary of ``head`` written that ``request`` asks for. A failure is told in the result."""
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            return WrittenSummary(failure=f"the model is asked no more after {MAX_FAILURES_IN_A_ROW} failures in a row")
        calls: list[SummaryCall] = []
        context = CompactionContext(policy.settings, on_cost=calls.append)
        try:
            result = self._run(partial(write_summary, head, request, [self.writer], context))
        except CompactionFailed as error:
            self._failures_in_a_row += 1
            return WrittenSummary(None, tuple(calls), str(error))
        self._failures_in_a_row = 0
        return WrittenSummary(result, tuple(calls))

    def price_calls(self, calls: Sequence[SummaryCall]) -> float:
        """Return the cost of ``calls`` in dollars, by the usage that the provider reported."""
        return sum(compute_cost(call.usage, self.writer.target.prices) for call in calls)


class SummaryModel(Struct, frozen=True):
    """A model that is ready to write summaries."""

    writer: SummaryWriter
    run: CoroutineRunner

    def start_summaries(self) -> ModelSummaries:
        """Return what one run of one policy needs: failures of another run do not count for it."""
        return ModelSummaries(self.writer, self.run)


def name_policy_with_summaries(policy: Policy, kind: SummaryKind) -> Policy:
    """Return ``policy`` as it runs with summaries of ``kind``, under a name that says so.

    With ``model`` the summary stands alone, as in tools that have no extract: only the user's words go with it if the
    summary hides the request under way.
    """
    if kind == "extract":
        return policy
    named_policy = Policy(f"{policy.name}:{kind}", policy.settings, policy.stages, policy.rules)
    if kind == "both":
        return named_policy
    return named_policy.with_settings(summary={"supplement": False})
