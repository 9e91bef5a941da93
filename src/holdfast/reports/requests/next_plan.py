"""Plan the decisions of a policy before the next request of a session, and record them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.messages.text.counts import format_count
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.reports.requests.request_size import RequestSize, format_tokens, measure_request
from holdfast.reports.sessions.history import (
    SHORT_ID,
    BranchHistory,
    list_active_decisions,
    list_shown_edits,
    load_branch_history,
)
from holdfast.reports.sessions.session_lock import list_decisions_after, open_journal_at_leaf
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
"""Texts of a rule that are listed."""


class PlannedChange(Struct, frozen=True, omit_defaults=True):
    """One planned change. Tokens are estimates."""

    kind: str
    message: int
    """The message it is about; for a compaction the first one kept."""
    rule: str
    why: str
    saves: int = 0


class NextPlan(Struct, frozen=True, omit_defaults=True):
    """The decisions of a policy before the next request, and whether they are recorded."""

    policy: str
    cache: str
    idle: int
    """Seconds since the last message or request."""
    before: int
    after: int
    """Estimated tokens of the request before and after the decisions."""
    changes: tuple[PlannedChange, ...]
    notices: tuple[str, ...] = ()
    entry_ids: tuple[str, ...] = ()
    """The entries that record the decisions."""


class ActiveDecision(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that the next request repeats."""

    id: str
    kind: str
    rules: dict[str, int]
    """The number of edits on shown messages, by rule."""


def describe_active_decisions(state: ConversationState) -> tuple[ActiveDecision, ...]:
    """Describe the decisions that the next request repeats, oldest first."""
    return tuple(_describe_decision(state, id_, body) for id_, body in list_active_decisions(state))


def _describe_decision(state: ConversationState, id_: str, body: DecisionEntry | CompactionEntry) -> ActiveDecision:
    rules = Counter(edit.rule for edit in list_shown_edits(state, body))
    kind = "compaction" if isinstance(body, CompactionEntry) else "decision"
    return ActiveDecision(id_, kind, dict(rules))


def make_session_plan_inputs(log: BranchHistory, target: Target) -> PlanInputs:
    """Return the plan inputs for a stored session; its cache is cold if it was idle longer than the cache lives.

    Only messages and requests count: a decision made by hand warms no cache.
    """
    times = []
    for entry in log.entries:
        is_activity = isinstance(entry.body, MessageEntry | BranchSummaryEntry | RequestEntry | AnswerEntry)
        if is_activity and entry.time_ms is not None:
            times.append(entry.time_ms)
    # A session without times counts as just used: a warm cache is the cautious assumption.
    idle_seconds = 0
    if times:
        idle_seconds = max(0, get_time_ms() - max(times)) // 1_000
    is_cold = idle_seconds > get_cache_lifetime(log.state, target.cache_rules)
    return PlanInputs(cache_state="cold" if is_cold else "warm", idle_seconds=idle_seconds)


def preview_next_plan(log: BranchHistory, target: Target, policy: Policy, inputs: PlanInputs) -> NextPlan:
    """Plan the decisions of ``policy`` without recording them."""
    plan = plan_request(log.state, target, policy, inputs)
    return _make_next_plan(plan, policy, inputs, measure_request(log.state, target, policy.settings))


def record_next_plan(
    store: SessionStore,
    key: str,
    log: BranchHistory,
    target: Target,
    policy: Policy,
    inputs: PlanInputs,
) -> tuple[NextPlan, ConversationState]:
    """Record the decisions of ``policy`` after ``log``, and return them with the new state."""
    with open_journal_at_leaf(store, key, policy) as journal:
        before = journal.leaf
        plan = journal.prepare_request(target, inputs).plan
    ids = tuple(reversed(list_decisions_after(journal, before)))
    size = measure_request(log.state, target, policy.settings)
    return _make_next_plan(plan, policy, inputs, size, ids), load_branch_history(store, key).state


def _make_next_plan(
    plan: Plan,
    policy: Policy,
    inputs: PlanInputs,
    size: RequestSize,
    ids: tuple[str, ...] = (),
) -> NextPlan:
    changes = []
    for edit in plan.record:
        saves = size.scale_tokens(edit.saves)
        changes.append(PlannedChange("decision", edit.span.start, edit.rule, edit.why, saves))
    if plan.compaction is not None:
        changes.append(_describe_planned_compaction(plan.compaction, size))
    return NextPlan(
        policy=policy.name,
        cache=inputs.cache_state,
        idle=int(inputs.idle_seconds),
        before=plan.before,
        after=plan.after,
        changes=tuple(changes),
        notices=tuple(f"{notice.rule}: {notice.why}" for notice in plan.notices),
        entry_ids=ids,
    )


def _describe_planned_compaction(compaction: CompactionEntry, size: RequestSize) -> PlannedChange:
    effect = "it removes the messages"
    if compaction.summary:
        summary_tokens = format_tokens(size.scale_tokens(compaction.head_tokens))
        effect = f"a summary of {summary_tokens} tokens replaces the messages"
    sizes = ""
    if compaction.tokens_after:
        sizes = f"{format_tokens(compaction.tokens_before)} → {format_tokens(compaction.tokens_after)} tokens: "
    return PlannedChange(
        kind="compaction",
        message=compaction.first_kept,
        rule=compaction.trigger,
        why=f"{sizes}{effect} before it",
        saves=max(0, compaction.tokens_before - compaction.tokens_after),
    )


def describe_next_plan(next_plan: NextPlan) -> list[str]:
    """Return the lines that describe the planned decisions to a person."""
    head = f"{next_plan.policy} (cache {next_plan.cache})"
    before = format_tokens(next_plan.before)
    after = format_tokens(next_plan.after)
    if not next_plan.changes:
        lines = [f"{head}: nothing to decide; {before} tokens"]
    elif next_plan.entry_ids:
        ids = ", ".join(id_[:SHORT_ID] for id_ in next_plan.entry_ids)
        lines = [f"{head} decided and recorded ({ids}): {before} → {after} tokens"]
    else:
        lines = [f"{head} would decide: {before} → {after} tokens"]
    lines += _iterate_rule_lines(next_plan.changes)
    lines += [f"  note: {notice}" for notice in next_plan.notices]
    return lines


def _iterate_rule_lines(changes: Iterable[PlannedChange]) -> Iterator[str]:
    """Yield a line for each rule: the tokens it saves, and its largest texts."""
    groups: dict[tuple[str, str], list[PlannedChange]] = {}
    for change in changes:
        groups.setdefault((change.kind, change.rule), []).append(change)
    for (kind, rule), group in groups.items():
        if kind == "compaction":
            for change in group:
                yield f"  compaction ({change.rule}) before #{change.message}: {change.why}"
            continue
        largest = sorted(group, key=lambda change: -change.saves)[:_LISTED_TEXTS]
        examples = ", ".join(f"#{change.message} ({change.saves:,})" for change in largest)
        if len(group) > _LISTED_TEXTS:
            examples += ", …"
        saves = format_tokens(sum(change.saves for change in group))
        yield f"  {rule}: {format_count(len(group), 'text')}, {saves} tokens less: {examples}"
