"""What a policy would decide before the next request of a session, and the recording of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.cli.output.terminal import format_count
from holdfast.cli.reports.history import (
    SHORT_ID,
    BranchHistory,
    list_active_decisions,
    list_shown_edits,
    load_branch_history,
)
from holdfast.cli.reports.request_size import RequestSize, format_tokens, measure_request
from holdfast.cli.reports.session_lock import list_decisions_after, open_journal_at_leaf
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.state.calibration.usage import get_cache_lifetime
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    MessageEntry,
    RequestEntry,
)
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.store.base import SessionStore
from holdfast.store.tree.tree import get_time_ms

_LISTED_TEXTS = 4
"""How many texts of a rule are told to a person."""


class PlannedChange(Struct, frozen=True, omit_defaults=True):
    """One thing that is decided. Tokens are estimates."""

    kind: str
    message: int
    """The message it is about; of a compaction the first that stays."""
    rule: str
    why: str
    saves: int = 0


class NextPlan(Struct, frozen=True, omit_defaults=True):
    """What a policy decides before the next request, and whether that is in the log now."""

    policy: str
    cache: str
    idle: int
    """Seconds since something was said or sent."""
    before: int
    after: int
    """Estimated tokens of the request without and with what is decided."""
    changes: tuple[PlannedChange, ...]
    notices: tuple[str, ...] = ()
    entry_ids: tuple[str, ...] = ()
    """The entries that record it."""


class ActiveDecision(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that the next request repeats."""

    id: str
    kind: str
    rules: dict[str, int]
    """How many edits of each rule are of messages that it shows."""


def describe_active_decisions(state: ConversationState) -> tuple[ActiveDecision, ...]:
    """Return what the next request repeats, oldest first."""
    return tuple(_describe_decision(state, id_, body) for id_, body in list_active_decisions(state))


def _describe_decision(state: ConversationState, id_: str, body: DecisionEntry | CompactionEntry) -> ActiveDecision:
    rules = Counter(edit.rule for edit in list_shown_edits(state, body))
    return ActiveDecision(id_, "compaction" if isinstance(body, CompactionEntry) else "decision", dict(rules))


def make_session_plan_inputs(log: BranchHistory, target: Target) -> PlanInputs:
    """Return how the world is for a session: its cache is cold when what was said or sent last is older than it lives.

    What a person decided since warmed nothing.
    """
    talk = (
        entry
        for entry in log.entries
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry | RequestEntry | AnswerEntry)
    )
    newest = max((entry.time_ms for entry in talk if entry.time_ms is not None), default=None)
    idle = 0 if newest is None else max(0, get_time_ms() - newest) // 1_000
    return PlanInputs(
        cache_state="cold" if idle > get_cache_lifetime(log.state, target.cache_rules) else "warm", idle_seconds=idle
    )


def preview_next_plan(log: BranchHistory, target: Target, policy: Policy, inputs: PlanInputs) -> NextPlan:
    """Return what ``policy`` would decide; nothing is recorded."""
    size = measure_request(log.state, target, policy.settings)
    return _make_next_plan(plan_request(log.state, target, policy, inputs), policy, inputs, size)


def record_next_plan(
    store: SessionStore, key: str, log: BranchHistory, target: Target, policy: Policy, inputs: PlanInputs
) -> tuple[NextPlan, ConversationState]:
    """Return what ``policy`` decided behind ``log``, which is in the store now, and the branch with it."""
    with open_journal_at_leaf(store, key, policy) as journal:
        before = journal.leaf
        plan = journal.prepare_request(target, inputs).plan
    ids = tuple(reversed(list_decisions_after(journal, before)))
    size = measure_request(log.state, target, policy.settings)
    return _make_next_plan(plan, policy, inputs, size, ids), load_branch_history(store, key).state


def _make_next_plan(
    plan: Plan, policy: Policy, inputs: PlanInputs, size: RequestSize, ids: tuple[str, ...] = ()
) -> NextPlan:
    compaction = plan.compaction
    would = [
        PlannedChange("decision", edit.span.start, edit.rule, edit.why, size.scale_tokens(edit.saves))
        for edit in plan.record
    ]
    if compaction is not None:
        summary_text = (
            f"a summary of {format_tokens(size.scale_tokens(compaction.head_tokens))} tokens stands"
            if compaction.summary
            else "nothing stands"
        )
        sizes = (
            f"{format_tokens(compaction.tokens_before)} → {format_tokens(compaction.tokens_after)} tokens: "
            if compaction.tokens_after
            else ""
        )
        why = f"{sizes}{summary_text} for what came before"
        would.append(
            PlannedChange(
                "compaction",
                compaction.first_kept,
                compaction.trigger,
                why,
                max(0, compaction.tokens_before - compaction.tokens_after),
            )
        )
    notices = tuple(f"{notice.rule}: {notice.why}" for notice in plan.notices)
    return NextPlan(
        policy.name, inputs.cache_state, int(inputs.idle_seconds), plan.before, plan.after, tuple(would), notices, ids
    )


def describe_next_plan(next_plan: NextPlan) -> list[str]:
    """Return the lines that tell a person what is decided."""
    cache = "cold" if next_plan.cache == "cold" else "warm"
    status = "decided and recorded" if next_plan.entry_ids else "would decide"
    ids = f" ({', '.join(item[:SHORT_ID] for item in next_plan.entry_ids)})" if next_plan.entry_ids else ""
    if not next_plan.changes:
        lines = [
            f"{next_plan.policy} (cache {cache}): nothing is to be decided; {format_tokens(next_plan.before)} tokens"
        ]
    else:
        lines = [
            (
                f"{next_plan.policy} (cache {cache}) {status}{ids}: {format_tokens(next_plan.before)} → "
                f"{format_tokens(next_plan.after)} tokens"
            )
        ]
    return [*lines, *_iterate_rule_lines(next_plan.changes), *(f"  note: {item}" for item in next_plan.notices)]


def _iterate_rule_lines(would: Iterable[PlannedChange]) -> Iterator[str]:
    """Yield a line for each rule: how much it takes, and the largest of that."""
    groups: dict[tuple[str, str], list[PlannedChange]] = {}
    for change in would:
        groups.setdefault((change.kind, change.rule), []).append(change)
    for (kind, rule), every in groups.items():
        if kind == "compaction":
            yield from (f"  compaction ({change.rule}) before #{change.message}: {change.why}" for change in every)
            continue
        largest = sorted(every, key=lambda change: -change.saves)[:_LISTED_TEXTS]
        examples = ", ".join(f"#{change.message} ({change.saves:,})" for change in largest)
        saves, suffix = (
            format_tokens(sum(change.saves for change in every)),
            ", …" if len(every) > _LISTED_TEXTS else "",
        )
        yield f"  {rule}: {format_count(len(every), 'text')}, {saves} tokens less: {examples}{suffix}"
