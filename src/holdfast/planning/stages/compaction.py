"""Compaction: when older turns give way to a summary, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import collect_media_in_messages
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.user_text import has_user_content
from holdfast.planning.budget import TokenBudget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.circuit_breaker import is_breaker_tripped
from holdfast.planning.extract.constants import MIN_SUMMARY_SHARE, SUMMARY_SLACK_SHARE
from holdfast.planning.extract.summary_builder import build_compaction, find_updatable_summary
from holdfast.planning.settings import Settings
from holdfast.planning.shown_messages import list_shown_messages_from
from holdfast.planning.stages.smallest_request import add_unread_notice
from holdfast.planning.stages.spill import find_spillable_texts, spill_texts
from holdfast.planning.stages.spill_largest import SPILL_LARGEST_RULE
from holdfast.planning.stages.tail_selection import (
    find_answer_with_unread_results,
    find_tail_cut_points,
    list_tail_starts,
    measure_tail,
)
from holdfast.planning.stages.unread_results import shorten_unread_results
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.plan import SummaryRequest
from holdfast.state.target import SummaryResult
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import get_shown_tokens, list_shown_indexes, measure_summary

SMALL_BUDGET_TOKENS, LARGE_BUDGET_TOKENS = 14_000, 23_000
"""[H] Message budgets between which the share of an extract falls evenly from the one below to ``summary.share``."""
SMALL_BUDGET_SUMMARY_SHARE = 0.80
"""[H] Share of an extract in a small budget, where next to nothing else fits: what is left out there is all lost."""
EARLY_SUMMARY_GROWTH = 1.25
"""How much longer than the summary that it brings up to date one may be, if somebody asks for it early. [H]"""


def compact_conversation(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with its head summarised, if the request is too big (or it was asked for) and it helps.

    Where somebody writes summaries the draft asks for one, if an extract in its place would be committed. What is asked
    for before there is need is planned as if the room were full, so that it is worth having.
    """
    if not builder.inputs.is_compaction_requested or builder.state.usage.learned_limits.overflows_since_answer:
        return _compact_if_due(builder)
    return replace(
        _compact_if_due(replace(builder, assumed_full_tokens=_count_message_tokens(builder))), assumed_full_tokens=0
    )


def _count_message_tokens(builder: PlanBuilder) -> int:
    """Return the tokens that messages take, and once more those of a summary among them, so that it may stay."""
    compaction, target = builder.state.view.compaction, builder.target
    earlier = measure_summary(compaction, target.model, target.api) if compaction is not None else 0
    return int(builder.token_ratio * (get_shown_tokens(builder.state, target.model, target.api) + earlier))


def _compact_if_due(builder: PlanBuilder) -> PlanBuilder:
    if not _is_compaction_due(builder):
        return builder
    if not builder.inputs.is_compaction_requested and (stop_reason := _explain_blocked_compaction(builder)):
        return builder.add_notice("breaker", stop_reason)
    if not _has_real_conversation(builder.state):
        return builder.add_notice(
            "nothing-to-compact", "nobody said anything yet: blanks and tool traffic are no conversation"
        )
    builder = _respill_restored_texts(builder)
    if not _is_compaction_due(builder):
        return builder
    compacted_draft = _compact_at_first_useful_cut(builder, _list_allowed_tail_starts(builder))
    if _has_compacted(builder, compacted_draft) or _is_within_budget(compacted_draft):
        return compacted_draft
    message_count = len(builder.state.history.sized_messages)
    if builder.rules.keeps_unread_results and find_answer_with_unread_results(builder.state) < message_count:
        return _compact_with_short_results(builder)
    return compacted_draft


def _compact_with_short_results(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with the results that the model waits for cut short, so that a request can show them.

    Only where that is not enough they give way as well, and a notice says so.
    """
    budget = builder.budget
    share = budget.compute_share(builder.settings.results.message_share or builder.settings.compaction.goal_share)
    short = shorten_unread_results(
        builder,
        share,
        builder.rules.compute_compaction_goal(builder)
        - budget.compute_share(MIN_SUMMARY_SHARE + 2 * SUMMARY_SLACK_SHARE),
    )
    compacted_draft = (
        _compact_at_first_useful_cut(short, _list_allowed_tail_starts(short)) if _is_compaction_due(short) else short
    )
    if _has_compacted(short, compacted_draft) or _is_within_budget(compacted_draft):
        return compacted_draft
    folded_draft = _compact_at_first_useful_cut(
        builder,
        [
            keep
            for keep in find_tail_cut_points(builder.state)[-1:]
            if builder.state.view.first_kept < keep <= _find_latest_tail_start(builder)
        ],
    )
    return add_unread_notice(builder, folded_draft) if _has_compacted(builder, folded_draft) else compacted_draft


def _has_compacted(old: PlanBuilder, new: PlanBuilder) -> bool:
    """Return whether ``new`` compacts what ``old`` did not, or waits for the summary with which it will."""
    return new.summary_request is not None or new.compaction is not old.compaction


def _is_within_budget(builder: PlanBuilder) -> bool:
    return builder.upper_estimate <= builder.budget.usable


def _compact_at_first_useful_cut(builder: PlanBuilder, cut_points: Sequence[int]) -> PlanBuilder:
    """Return the draft compacted at the first of ``cut_points`` where that helps; with a notice why not, if nowhere."""
    rule, why = "nothing-to-compact", "there is nothing before what is kept as it was said"
    if builder.state.view.compaction is not None:
        why = "everything that could be summarised already is"
    written_summary = builder.inputs.summary
    for keep in cut_points:
        candidate = _compact_at(builder, keep)
        if candidate is None:
            continue
        why = _explain_insufficient_gain(builder, candidate)
        why = why or builder.rules.explain_useless_cut(builder, candidate, cut_points)
        if not why:
            ask = _build_summary_request(builder, keep)
            waits = builder.inputs.can_summarize and ask.max_tokens and not _is_summary_for(written_summary, keep)
            return builder.request_summary(ask) if waits else candidate
        rule = "not-smaller"
    return builder.add_notice(rule, why)


def _is_compaction_due(builder: PlanBuilder) -> bool:
    """Return whether this policy compacts now; the smallest request there is has a compaction of its own."""
    compaction, inputs = builder.settings.compaction, builder.inputs
    if not compaction.enabled or inputs.overflow_step == "fallback":
        return False
    return inputs.is_compaction_requested or (compaction.auto and builder.rules.is_over_trigger(builder))


def _has_real_conversation(state: ConversationState) -> bool:
    """Return whether there is a real conversation, now or in what gave way before."""
    return state.view.compaction is not None or has_user_content(state.history.messages.slice(state.view.pinned_count))


def _respill_restored_texts(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with texts that an undo brought back spilled again, where one alone is more than may be left."""
    state = builder.state
    if not (state.view.protected_parts and builder.settings.compaction.goal_share and builder.inputs.can_spill):
        return builder
    visible_texts, max_tokens = (
        find_spillable_texts(state, list_shown_indexes(state, state.view.first_kept)),
        builder.to_estimator_tokens(builder.rules.compute_compaction_goal(replace(builder, assumed_full_tokens=0))),
    )
    big = [
        text
        for text in visible_texts
        if text.tokens > max_tokens
        and any(is_protected_part(state, text.message_index, at) for at in text.all_part_indexes)
    ]
    return spill_texts(builder, big, SPILL_LARGEST_RULE)


def _list_allowed_tail_starts(builder: PlanBuilder) -> list[int]:
    """Return where the kept tail may begin, best first: where it was written for, if it may begin there."""
    state, written_summary = builder.state, builder.inputs.summary
    if (
        written_summary is not None
        and state.view.first_kept < written_summary.stop
        and written_summary.stop in find_tail_cut_points(state)
    ):
        return [written_summary.stop]
    last = _find_latest_tail_start(builder)
    return builder.rules.order_overflow_cuts(
        builder, [keep for keep in list_tail_starts(builder) if state.view.first_kept < keep <= last]
    )


def _find_latest_tail_start(builder: PlanBuilder) -> int:
    """Return where the kept tail begins at the latest: at media of the user that were neither answered nor refused.

    What an image takes is reckoned high; only the provider knows whether it is too much.
    """
    state, end = builder.state, len(builder.state.history.sized_messages)
    new = find_newest_answer_index(state, state.view.first_kept) + 1
    if state.usage.learned_limits.overflows_since_answer or not any(
        collect_media_in_messages(message)
        for message in list_shown_messages_from(state, max(new, state.view.first_kept))
    ):
        return end
    return next(
        (at for at in range(max(new, state.view.first_kept), end) if state.history.messages[at].is_turn_start), end
    )


def _is_summary_for(written_summary: SummaryResult | None, keep: int) -> bool:
    return written_summary is not None and written_summary.stop == keep


def _build_summary_request(builder: PlanBuilder, keep: int) -> SummaryRequest:
    """Return the request for a summary of all before ``keep`` that the one in force does not cover."""
    settings, state, anchor = builder.settings, builder.state, find_updatable_summary(builder.state)
    max_tokens = min(settings.summary.model_max_tokens, builder.budget.compute_share(settings.summary.model_max_share))
    if builder.assumed_full_tokens:
        min_tokens = max(
            3 * settings.summarizer.min_tokens,
            int(builder.token_ratio * EARLY_SUMMARY_GROWTH * estimate_text_tokens(anchor)),
        )
        max_tokens = min(
            max_tokens, max(min_tokens, builder.compute_compaction_share(settings.summary.model_total_share))
        )
    return SummaryRequest(
        state.view.first_kept if anchor else state.view.pinned_count,
        keep,
        settings.summary.max_tokens or max_tokens,
        anchor,
        keep == builder.rules.find_replayed_message(builder),
    )


def _explain_blocked_compaction(builder: PlanBuilder) -> str:
    """Return why no automatic compaction may run now, or nothing."""
    settings, state = builder.settings, builder.state
    has_failed_often = (
        is_breaker_tripped(state.counters.failed_compactions, settings) and not builder.inputs.retry_compaction
    )
    if not builder.inputs.is_breaker_closed:
        return "the request is over its trigger, but no compaction may run by itself now"
    if has_failed_often:
        return "the request is over its trigger, but compaction failed too often to try again"
    if state.counters.compactions_since_answer >= settings.compaction.max_per_answer:
        return (
            f"the request is over its trigger, but {state.counters.compactions_since_answer} compactions ran since the "
            "last answer"
        )
    return ""


def _compact_at(builder: PlanBuilder, keep: int) -> PlanBuilder | None:
    """Return the draft with everything before ``keep`` summarised; nothing when no summary would fit."""
    settings, budget, written_summary = builder.settings, builder.budget, builder.inputs.summary
    share = compute_summary_share(budget, settings)
    if builder.has_summary_writer:
        share = settings.summary.model_total_share
    cap = settings.summary.max_tokens or builder.compute_compaction_share(share)
    if settings.compaction.goal_share:
        goal = builder.rules.compute_compaction_goal(builder)
        tail = builder.token_ratio * measure_tail(builder.state, keep)
        remaining = int(goal - tail - builder.compute_compaction_share(SUMMARY_SLACK_SHARE))
        if remaining < min(cap, builder.compute_compaction_share(MIN_SUMMARY_SHARE)):
            return None
        cap = min(cap, remaining)
    compaction = build_compaction(
        builder, keep, cap, written_summary if _is_summary_for(written_summary, keep) else None
    )
    if compaction is None:
        return None
    compaction = builder.rules.finish_compaction(builder, compaction)
    return builder.add_compaction(replace(compaction, tokens_after=builder.add_compaction(compaction).estimated_tokens))


def compute_summary_share(budget: TokenBudget, settings: Settings) -> float:
    """Return the share of the budget an extract may take: what the agent needs grows more slowly than the budget."""
    position = (budget.message_tokens - SMALL_BUDGET_TOKENS) / (LARGE_BUDGET_TOKENS - SMALL_BUDGET_TOKENS)
    position = min(1.0, max(0.0, position))
    return SMALL_BUDGET_SUMMARY_SHARE + position * (settings.summary.share - SMALL_BUDGET_SUMMARY_SHARE)


def _explain_insufficient_gain(before: PlanBuilder, after: PlanBuilder) -> str:
    """Return why the compaction is not worth committing, or nothing."""
    settings, budget = before.settings.compaction, before.budget
    old, new = before.estimated_tokens, after.estimated_tokens
    if new >= old and (settings.goal_share or before.has_summary_writer):
        return f"{new:,} tokens would be left of {old:,}: it would not get smaller"
    if not settings.goal_share:
        return ""
    max_tokens = budget.setup_tokens + before.rules.compute_compaction_goal(before)
    if new > max_tokens:
        return f"{new:,} tokens would be left, over the goal of {max_tokens:,}"
    gain = max(
        settings.min_gain_share * (old - budget.setup_tokens),
        min(settings.min_gain_tokens, budget.compute_share(settings.min_gain_share)),
    )
    if old - new < gain and old <= budget.usable and not before.inputs.is_compaction_requested:
        return f"it would free {old - new} tokens; {int(gain)} are wanted"
    return ""
