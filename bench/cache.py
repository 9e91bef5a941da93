"""The cost of each policy over a workday of 300 steps with the strict provider's cache, and whether prefixes stay.

Usage: python bench/cache.py [POLICY…] [--steps N] [--window N] [--model NAME…] [--json] [--check]

The day (``tests/support/agent_workday.py``) has forty oversized results, six messages whose results are too long
together, and two pauses after which every cache is cold. Each policy is run with each model:

- ``claude-sonnet-5``: explicit cache, thinking that may be anywhere;
- ``claude-opus-5-5``: explicit cache, thinking bound to everything before it;
- ``gpt-5.5``: automatic cache, over the Responses API.

*Refused* requests are sent once more after a forced compaction, as after an overflow; if that is refused too, the day
ends. *Breaks* are requests that do not begin with the bytes of the previous one; *unsaid* counts the breaks without a
decision about messages that the model has seen (invariant prefix-only-grows). Dollars are the tokens that the provider
counted, at the prices of the catalog; calls for summaries by a model are included. ``--check`` exits 1 if a request of
policy ``holdfast`` is refused, if its prefix breaks without a decision, or if it does not spill everything too long.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from agent_workday import DAY_STEPS, OVER_BUDGET_MESSAGES, OVERSIZED_RESULTS, WorkdayStep, make_workday
from workday_driver import SentRequest, drive_workday, find_prefix_breaks, make_direct_sender

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.costs import compute_cost
from holdfast.state.entries import Usage
from holdfast.state.target import Prices
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings

MODELS = {"claude-sonnet-5": "anthropic", "claude-opus-5-5": "anthropic", "gpt-5.5": "openai-responses"}
WINDOW = 200_000


class Row(Struct, frozen=True):
    """One day of one policy with one model."""

    model: str
    policy: str
    steps: int
    """Steps that were completed before the day ended."""
    refused: int
    hit: float
    """Share of the input tokens that came from the cache."""
    usd: float
    tokens: int
    """Input tokens of all requests."""
    peak: int
    breaks: int
    unsaid: int
    """Breaks without a decision about messages that the model has seen."""
    compactions: int
    replaced: int
    """Messages with results that were replaced before the model saw them."""
    dropped: int
    """Blocks of thinking that the provider left out because they belong to another history."""


class Clock:
    """A clock that moves only when ``wait`` is called; in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: int) -> None:
        """Advance the clock."""
        self.now += seconds


def spend(model: str, name: str, day: Sequence[WorkdayStep], window: int) -> Row:
    """Run ``day`` with policy ``name`` and ``model``, and return the figures."""
    api, policy = MODELS[model], Policy.preset(name)
    clock, goal = Clock(), get_target(MODELS[model], model, window=window)
    provider = Provider(ProviderSettings(window=window), [step.answer for step in day], clock=lambda: clock.now)
    journal = Journal.open(MemoryStore(), "day", policy)
    turns = list(drive_workday(journal, goal, day, make_direct_sender(provider, api), wait=clock.wait))
    found = find_prefix_breaks(turns)
    total = sum(turn.usage.input for turn in turns)
    return Row(
        model,
        name,
        len({turn.step for turn in turns if turn.answer.error is None}),
        sum(turn.answer.error is not None for turn in turns),
        sum(turn.usage.cache_read for turn in turns) / total if total else 0.0,
        sum(spent(turn, goal.prices, summarised=policy.rules.model_writes_summaries) for turn in turns),
        total,
        max((turn.usage.input for turn in turns), default=0),
        len(found),
        sum(not one.why for one in found),
        sum(turn.prepared_request.plan.compaction is not None for turn in turns),
        len(fresh(turns)),
        max((len(getattr(one.reply, "dropped_blocks", ())) for one in provider.requests), default=0),
    )


def spent(turn: SentRequest, prices: Prices, *, summarised: bool) -> float:
    """Return the cost of a request in dollars, including the call for its summary if a model wrote one."""
    made, cost = turn.prepared_request.plan.compaction, compute_cost(turn.usage, prices)
    if summarised and made is not None and made.summary is not None:
        read = 0 if turn.inputs.cache_state == "cold" else made.tokens_before
        cost += compute_cost(Usage(made.tokens_before, made.head_tokens, read), prices)
    return cost


def fresh(turns: Sequence[SentRequest]) -> set[int]:
    """Return the indexes of messages with a part that was replaced in the first request that contains them."""
    found: set[int] = set()
    seen = 0
    for turn in turns:
        found |= {edit.span.start for edit in turn.prepared_request.plan.record if edit.span.start >= seen}
        seen = len(turn.prepared_request.plan.state.history.sized_messages)
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'policy':<12} {'steps':>5} {'refused':>7} {'hit':>6} {'dollars':>8} {'tokens':>11} {'peak':>8} "
        f"{'breaks':>6} {'unsaid':>6} {'compactions':>11} {'replaced':>8} {'dropped':>7}"
    )
    for row in rows:
        yield (
            f"{row.policy:<12} {row.steps:>5} {row.refused:>7} {row.hit:>6.1%} {row.usd:>8.2f} {row.tokens:>11,} "
            f"{row.peak:>8,} {row.breaks:>6} {row.unsaid:>6} {row.compactions:>11} {row.replaced:>8} {row.dropped:>7}"
        )


def wrong(row: Row, steps: int) -> list[str]:
    """Return the broken promises about our own policy."""
    told = [f"{row.refused} requests refused"] if row.refused else []
    told += [f"{row.unsaid} breaks without a decision"] if row.unsaid else []
    told += ["bound thinking was dropped"] if row.dropped and MODELS[row.model] == "anthropic" else []
    if steps == DAY_STEPS and row.replaced < OVERSIZED_RESULTS + OVER_BUDGET_MESSAGES:
        told.append(f"{row.replaced} messages replaced of {OVERSIZED_RESULTS + OVER_BUDGET_MESSAGES}")
    return [f"{row.policy} with {row.model}: {one}" for one in told]


def main() -> int:
    """Print the tables; with ``--check``, return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("policies", nargs="*", metavar="POLICY", help=f"of {', '.join(PRESETS)}; default: all")
    parser.add_argument("--steps", type=int, default=DAY_STEPS)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    for model in given.model or MODELS:
        mine = [spend(model, name, make_workday(given.steps), given.window) for name in given.policies or PRESETS]
        rows += mine
        if not given.json:
            print(f"\n{model}, {given.steps} steps, window {given.window:,}", *table(mine), sep="\n", flush=True)
    if given.json:
        told: list[Any] = [to_builtins(row) for row in rows]
        print(json.dumps(told, indent=2))
    broken = [one for row in rows if row.policy == "holdfast" for one in wrong(row, given.steps)]
    for one in broken:
        print(f"broken: {one}", file=sys.stderr)
    return 1 if broken and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
