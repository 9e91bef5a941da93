"""Compaction: replaces the older messages by a summary when the request is too large, if that is worth it.

The stage tries the cut points of ``tail_selection`` in order and commits the first that makes the request small enough.
If a model or a hook writes summaries, the plan then asks for one instead, and the caller plans again with the result;
the extract made here only proves that a summary in its place would be committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.messages.message import collect_media_in_messages
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.user_text import has_user_content
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.circuit_breaker import is_breaker_tripped
from holdfast.planning.extract.constants import MAX_SCANNED_TOKENS, MIN_SUMMARY_SHARE, SUMMARY_SLACK_SHARE
from holdfast.planning.extract.previous_summary import is_client_summary_part
from holdfast.planning.extract.salience import scan_message
from holdfast.planning.extract.summary_builder import build_compaction, extend_compaction, find_updatable_summary
from holdfast.planning.settings import Settings
from holdfast.planning.shown_messages import list_shown_messages_from
from holdfast.planning.stages.smallest_request import add_unread_notice
from holdfast.planning.stages.spill import SpillableText, find_spillable_texts, spill_texts
from holdfast.planning.stages.spill_largest import SPILL_LARGEST_RULE
from holdfast.planning.stages.tail_selection import (
    find_answer_with_unread_results,
    find_tail_cut_points,
    list_tail_starts,
    measure_tail,
)
from holdfast.planning.stages.unread_results import shorten_unread_results
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.entries import CompactionEntry
from holdfast.state.plan import Notice, SummaryRequest
from holdfast.state.target import SummaryResult
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import get_shown_tokens, list_shown_indexes, measure_summary

PAUSED_RULE = "compaction-paused"
"""Rule of the notice that the caller allows no automatic compaction."""
BREAKER_RULE = "breaker"
"""Rule of the notice that the circuit breaker is open. The proxy counts sessions by it (``breaker_open``)."""
COMPACTION_LIMIT_RULE = "compaction-limit"
"""Rule of the notice that no more compactions are tried before the next answer."""

LARGE_BUDGET_TOKENS, LARGE_BUDGET_SHARE = 40_000, 0.15
"""Message budget in tokens up to which ``summary.max_share`` holds, and the share of what is beyond by which an extract
grows. What an agent needs again grows more slowly than its window. In replays at 200,000 tokens .05 recalled .9941 of
the facts for .522 of the cost of append-only, .15 .9950 for .527, .20 .9956 for .530."""
MAX_GROWTH_TOKENS = 200_000
"""Message budget in tokens from which on extracts do not grow any more: it bounds the time of a compaction in windows
of a million tokens (``bench/large_windows.py``). Chosen by judgement."""
NEW_EXTRACT_SHARE = 0.65
"""Share of an extract's largest size that a new one takes: the rest is for extensions, which leave the cached prefix
as it is. Tuned by replay."""
SMALL_BUDGET_TOKENS, MEDIUM_BUDGET_TOKENS = 14_000, 24_000
"""Message budgets in tokens between which two shares fall linearly: that of a new extract from 1 to
``NEW_EXTRACT_SHARE``, and that of an extract that somebody asks for early from ``summary.max_share`` to
``EARLY_SUMMARY_SHARE``. Next to no tail fits into a small budget, so what the extract leaves out is out of reach. Tuned
by replay."""
EARLY_SUMMARY_SHARE = 0.40
"""Share of the messages that an extract takes where somebody asks for a compaction early. With .33 and a tail of .10 a
chat of nothing but statements lost one of twelve (``bench/conformance_kit.py``); .38 to .50 lose none."""
EARLY_SUMMARY_GROWTH = 1.25
"""How much longer than the summary it updates a new one may be where somebody asks for a compaction early. The cap
follows the messages, and there may be few of them: without this room the update could only drop what the old summary
holds. An extract has the same room. Chosen by judgement."""
MAX_PREPARED_TOKENS = 30_000
"""Estimator tokens of new messages that one request scans for a later compaction. Turns add fewer; where a whole
history is new, scanning it before there is need would only make the first request slow. Chosen by judgement."""


class _CompactionAttempt(NamedTuple):
    """The builder after trying to compact, and whether the attempt stands.

    If it does not, ``builder`` is the unchanged plan with a notice that says why.
    """

    builder: PlanBuilder
    is_planned: bool
    """The compaction is part of the plan, or the plan waits for the summary it will be made of."""


def compact_conversation(builder: PlanBuilder) -> PlanBuilder:
    """Replace the older messages by a summary if the request is over its trigger, or if a compaction is requested.

    Without a summary writer the summary is an extract. With one, the plan gets a ``SummaryRequest``, but only if an
    extract in that place would be committed. A compaction that cannot be made adds a notice instead.
    """
    is_refused = builder.state.usage.learned_limits.overflows_since_answer > 0
    if not builder.inputs.is_compaction_requested or is_refused:
        return _compact_if_due(builder)
    # Somebody asks for a compaction before the budget is full. With shares of the real budget nearly everything would
    # fit into the kept tail and hardly anything would be summarized. So the plan treats the messages that there are as
    # if they filled the budget, and takes its shares of their size.
    early_builder = replace(builder, assumed_full_tokens=_count_message_tokens(builder))
    return replace(_compact_if_due(early_builder), assumed_full_tokens=0)


def _count_message_tokens(builder: PlanBuilder) -> int:
    """Return the real tokens of all shown messages, with those of the earlier summary once more.

    Its share of a budget of this size then has room for the old summary and for the new messages.
    """
    shown_tokens = get_shown_tokens(builder.state, builder.target.model, builder.target.api)
    return int(builder.token_ratio * shown_tokens) + _count_earlier_summary_tokens(builder)


def _prepare_for_compaction(builder: PlanBuilder) -> None:
    """Scan the new messages of a request for an extract, if the next compaction will read them.

    Nothing is decided and nothing changes but time: ``scan_message`` remembers its results by message. Without this the
    first compaction of a large window would scan all that it reads at once, and take as much longer as the window is
    larger.
    """
    if not builder.settings.compaction.goal_share:
        return
    # The next compaction reads the newest MAX_SCANNED_TOKENS before its tail. What is shown now will stand further
    # back than that if more tokens than that are still to come before the tail begins.
    tail = builder.compute_compaction_share(builder.settings.compaction.tail_share)
    distance = builder.rules.compute_trigger_size(builder) - builder.rules.measure_request(builder) - tail
    if builder.to_estimator_tokens(distance) > MAX_SCANNED_TOKENS:
        return
    state = builder.state
    new_messages = state.history.sized_messages.slice(state.last_request.seen_count)
    if sum(sized_message.tokens for sized_message in new_messages) <= MAX_PREPARED_TOKENS:
        for sized_message in new_messages:
            scan_message(sized_message)


def _count_earlier_summary_tokens(builder: PlanBuilder) -> int:
    """Return the real tokens of the summary in force, or else of the summaries that a client sent; 0 without one."""
    compaction, target = builder.state.view.compaction, builder.target
    if compaction is not None:
        return int(builder.token_ratio * measure_summary(compaction, target.model, target.api))
    tokens = 0
    for message in builder.state.history.messages:
        for part in message.parts:
            if isinstance(part, Text) and is_client_summary_part(part):
                tokens += estimate_text_tokens(part.text)
    return int(builder.token_ratio * tokens)


def _compact_if_due(builder: PlanBuilder) -> PlanBuilder:
    if not _is_compaction_due(builder):
        _prepare_for_compaction(builder)
        return builder
    if not builder.inputs.is_compaction_requested:
        notice = _find_blocked_compaction_notice(builder)
        if notice is not None:
            return builder.add_notice(notice.rule, notice.why)
    if not _has_real_conversation(builder.state):
        return builder.add_notice(
            "nothing-to-compact", "there is no conversation yet, only blank messages and tool calls"
        )
    builder = _respill_restored_texts(builder)
    if not _is_compaction_due(builder):
        return builder
    attempt = _compact_at_first_useful_cut(builder, _list_allowed_tail_starts(builder))
    if attempt.is_planned or _is_within_budget(attempt.builder):
        return attempt.builder
    # No summary of the older messages is enough. What is left is the newest answer with results that the model has not
    # read; those are shortened before any of them is summarized.
    has_unread_results = find_answer_with_unread_results(builder.state) < len(builder.state.history.sized_messages)
    if builder.rules.keeps_unread_results and has_unread_results:
        return _compact_with_short_results(builder)
    return attempt.builder


def _compact_with_short_results(builder: PlanBuilder) -> PlanBuilder:
    """Shorten the unread results so that a request can show them, then compact the messages before them.

    Only if that is still too large are they summarized like the rest, with a notice that says so.
    """
    budget, settings = builder.budget, builder.settings
    results_budget = budget.compute_share(settings.results.message_share or settings.compaction.goal_share)
    # The tail must leave room for the smallest summary that is worth having. _compute_max_summary subtracts
    # SUMMARY_SLACK_SHARE once before it compares the room with MIN_SUMMARY_SHARE, so this much is needed beside the
    # summary. The second slack is a margin, because the sizes of the shortened results are estimates.
    summary_budget = budget.compute_share(MIN_SUMMARY_SHARE + 2 * SUMMARY_SLACK_SHARE)
    pinned_tokens = int(builder.token_ratio * builder.pinned_tokens)
    tail_budget = builder.rules.compute_compaction_goal(builder) - pinned_tokens - summary_budget
    shortened = shorten_unread_results(builder, results_budget, tail_budget)
    attempt = _CompactionAttempt(shortened, is_planned=False)
    if _is_compaction_due(shortened):
        attempt = _compact_at_first_useful_cut(shortened, _list_allowed_tail_starts(shortened))
    if attempt.is_planned or _is_within_budget(attempt.builder):
        return attempt.builder

    # Back to the plan with whole results: there is no use in recording cuts of what disappears in the summary.
    latest = _find_latest_tail_start(builder)
    all_cuts = find_tail_cut_points(builder.state)
    allowed_cuts = [keep for keep in all_cuts if builder.state.view.first_kept < keep <= latest]
    summarized = _compact_at_first_useful_cut(builder, allowed_cuts[-1:])
    if not summarized.is_planned:
        return attempt.builder
    return add_unread_notice(builder, summarized.builder)


def _is_within_budget(builder: PlanBuilder) -> bool:
    return builder.upper_estimate <= builder.budget.usable


def _compact_at_first_useful_cut(builder: PlanBuilder, cut_points: Sequence[int]) -> _CompactionAttempt:
    """Compact at the first of ``cut_points`` where that gains enough, or request the summary for it."""
    rule, why = "nothing-to-compact", "there are no messages before those that are kept unchanged"
    if builder.state.view.compaction is not None:
        why = "everything that can be summarized already is"
    for keep, compacted in _iter_compactions(builder, cut_points):
        why = _explain_insufficient_gain(builder, compacted)
        if not why:
            why = builder.rules.explain_useless_cut(builder, compacted, cut_points)
        if why:
            rule = "not-smaller"
            continue
        request = _build_summary_request(builder, keep)
        is_written = _is_summary_for(builder.inputs.summary, keep)
        # A cap of 0 tokens means that a model may write nothing: the extract stands at once.
        if builder.inputs.can_summarize and request.max_tokens and not is_written:
            return _CompactionAttempt(builder.request_summary(request), is_planned=True)
        return _CompactionAttempt(compacted, is_planned=True)
    return _CompactionAttempt(builder.add_notice(rule, why), is_planned=False)


def _is_compaction_due(builder: PlanBuilder) -> bool:
    """Return whether a compaction is requested, or the request is over the trigger and may be compacted unasked.

    The overflow step ``fallback`` builds the smallest request, which brings a compaction of its own.
    """
    compaction, inputs = builder.settings.compaction, builder.inputs
    if not compaction.enabled or inputs.overflow_step == "fallback":
        return False
    if inputs.is_compaction_requested:
        return True
    return compaction.auto and builder.rules.is_over_trigger(builder)


def _has_real_conversation(state: ConversationState) -> bool:
    """Return whether anybody said something, in the shown messages or in those already summarized."""
    return state.view.compaction is not None or has_user_content(state.history.messages.slice(state.view.pinned_count))


def _respill_restored_texts(builder: PlanBuilder) -> PlanBuilder:
    """Spill texts that an undo restored again if one alone is larger than the compaction's goal.

    An undo protects restored texts from every other stage. A text like that would be in every tail, and no
    compaction could reach its goal.
    """
    state = builder.state
    if not (state.view.protected_parts and builder.settings.compaction.goal_share and builder.inputs.can_spill):
        return builder
    # A compaction that is asked for early has a smaller goal (see assumed_full_tokens). Here the goal of the real
    # budget counts: a restored text that fits there stays.
    goal = builder.rules.compute_compaction_goal(replace(builder, assumed_full_tokens=0))
    max_tokens = builder.to_estimator_tokens(goal)
    oversized_texts: list[SpillableText] = []
    for text in find_spillable_texts(state, list_shown_indexes(state, state.view.first_kept)):
        if text.tokens <= max_tokens:
            continue
        if any(is_protected_part(state, text.message_index, part_index) for part_index in text.all_part_indexes):
            oversized_texts.append(text)
    return spill_texts(builder, oversized_texts, SPILL_LARGEST_RULE)


def _list_allowed_tail_starts(builder: PlanBuilder) -> list[int]:
    """Return the message indexes at which the kept tail may begin, best first.

    If a summary was already written and its place is still legal, that is the only one: messages may have arrived
    meanwhile, and the summary still fits.
    """
    first_kept = builder.state.view.first_kept
    summary = builder.inputs.summary
    if summary is not None and first_kept < summary.stop and summary.stop in find_tail_cut_points(builder.state):
        return [summary.stop]
    latest = _find_latest_tail_start(builder)
    tail_starts = []
    for keep in list_tail_starts(builder):
        if first_kept < keep <= latest:
            tail_starts.append(keep)
    return builder.rules.order_overflow_cuts(builder, tail_starts)


def _find_latest_tail_start(builder: PlanBuilder) -> int:
    """Return the latest message index at which the kept tail may begin.

    That is the first user message since the newest answer if media are among these new messages, else the end. We
    count an image high, and only the provider knows its real size, so new media are not summarized away before the
    provider has refused them.
    """
    state = builder.state
    end = len(state.history.sized_messages)
    if state.usage.learned_limits.overflows_since_answer:
        return end
    first_new = max(find_newest_answer_index(state, state.view.first_kept) + 1, state.view.first_kept)
    new_messages = list_shown_messages_from(state, first_new)
    if not any(collect_media_in_messages(message) for message in new_messages):
        return end
    for index in range(first_new, end):
        if state.history.messages[index].is_turn_start:
            return index
    return end


def _is_summary_for(summary: SummaryResult | None, keep: int) -> bool:
    return summary is not None and summary.stop == keep


def _build_summary_request(builder: PlanBuilder, keep: int) -> SummaryRequest:
    """Return the request for a summary of the messages before ``keep``.

    If the summary in force can be updated, the request has its text and only the messages that it does not cover.
    """
    settings, state = builder.settings, builder.state
    previous_summary = find_updatable_summary(state)
    start = state.view.first_kept if previous_summary else state.view.pinned_count
    model_share = builder.budget.compute_share(settings.summary.model_max_share)
    max_tokens = min(settings.summary.model_max_tokens, model_share)
    if builder.assumed_full_tokens:
        # Asked for early, few messages may be there. The cap follows them, but leaves room for a summary that would be
        # accepted (three times the least of one) and for the one that is updated.
        grown_summary = builder.token_ratio * EARLY_SUMMARY_GROWTH * estimate_text_tokens(previous_summary)
        min_tokens = max(3 * settings.summarizer.min_tokens, int(grown_summary))
        share = builder.compute_compaction_share(settings.summary.model_total_share)
        max_tokens = min(max_tokens, max(min_tokens, share))
    is_replayed = keep == builder.rules.find_replayed_message(builder)
    return SummaryRequest(
        start,
        keep,
        settings.summary.max_tokens or max_tokens,
        previous_summary,
        is_replayed,
    )


def _find_blocked_compaction_notice(builder: PlanBuilder) -> Notice | None:
    """Return the notice that says why no automatic compaction may run now, or None if one may."""
    settings, counters = builder.settings, builder.state.counters
    if not builder.inputs.allow_auto_compaction:
        return Notice(PAUSED_RULE, "the request is over its trigger, but automatic compactions are paused")
    if is_breaker_tripped(counters.failed_compactions, settings) and not builder.inputs.is_breaker_cooled:
        failures = format_count(counters.failed_compactions, "failure")
        why = f"the request is over its trigger, but compaction failed too often: {failures} in a row"
        return Notice(BREAKER_RULE, why)
    # Invariant bounded-attempts (docs/invariants.md): only so many compactions between two answers, or a request that
    # never fits would be compacted for ever.
    if counters.compactions_since_answer >= settings.compaction.max_per_answer:
        compactions = format_count(counters.compactions_since_answer, "compaction")
        why = f"the request is over its trigger after {compactions} since the last answer; no more are tried"
        return Notice(COMPACTION_LIMIT_RULE, why)
    return None


def _iter_compactions(builder: PlanBuilder, cut_points: Sequence[int]) -> Iterator[tuple[int, PlanBuilder]]:
    """Yield each of ``cut_points`` with the builder compacted there, in the order in which they are worth trying.

    At each place that is first the extract in force with an extension, then a new summary, as far as they fit.
    """
    for keep in cut_points:
        max_tokens = _compute_max_summary(builder, keep)
        if max_tokens is None:
            continue
        if _may_extend_extract(builder):
            extended = extend_compaction(builder, keep, max_tokens)
            if extended is not None:
                yield keep, _apply_compaction(builder, extended)
            max_tokens = int(_interpolate_by_budget(builder, 1.0, NEW_EXTRACT_SHARE) * max_tokens)
        summary = builder.inputs.summary
        rebuilt = build_compaction(builder, keep, max_tokens, summary if _is_summary_for(summary, keep) else None)
        if rebuilt is not None:
            yield keep, _apply_compaction(builder, rebuilt)


def _may_extend_extract(builder: PlanBuilder) -> bool:
    """Return whether an extract may be extended: nobody else writes summaries, and nobody asked for this one early."""
    if builder.has_summary_writer or builder.assumed_full_tokens:
        return False
    return builder.settings.compaction.goal_share > 0


def _interpolate_by_budget(builder: PlanBuilder, small_share: float, medium_share: float) -> float:
    """Return a share that goes linearly from ``small_share`` to ``medium_share`` as the message budget grows.

    The first holds up to ``SMALL_BUDGET_TOKENS``, the second from ``MEDIUM_BUDGET_TOKENS`` on.
    """
    budget = builder.budget.message_tokens
    position = (budget - SMALL_BUDGET_TOKENS) / (MEDIUM_BUDGET_TOKENS - SMALL_BUDGET_TOKENS)
    return small_share + min(1.0, max(0.0, position)) * (medium_share - small_share)


def _compute_max_summary(builder: PlanBuilder, keep: int) -> int | None:
    """Return the tokens that a summary of everything before ``keep`` may have, or None if no useful one would fit."""
    settings = builder.settings
    if settings.summary.max_tokens:
        max_tokens = settings.summary.max_tokens
    elif builder.has_summary_writer:
        max_tokens = builder.compute_compaction_share(settings.summary.model_total_share)
    elif builder.assumed_full_tokens:
        # Who asks for a compaction wants the request to be short, and gets no extract of most of its size.
        share = _interpolate_by_budget(builder, settings.summary.max_share, EARLY_SUMMARY_SHARE)
        # Asked for early, each compaction would take a share of what the last one left, until nothing is left.
        grown_summary = int(EARLY_SUMMARY_GROWTH * _count_earlier_summary_tokens(builder))
        max_tokens = max(
            builder.compute_compaction_share(share), min(grown_summary, builder.budget.compute_share(share))
        )
    else:
        max_tokens = compute_max_extract(builder.budget.message_tokens, settings)
    if not settings.compaction.goal_share:
        return max_tokens
    # The pinned messages stay as well. Without them here the extract would be made too long for the goal, and no
    # cut would do in a small window.
    kept_tokens = builder.pinned_tokens + measure_tail(builder.state, keep)
    goal = builder.rules.compute_compaction_goal(builder) - builder.token_ratio * kept_tokens
    # An extract may miss its budget by a little; with that held back the compaction still reaches its goal.
    remaining = int(goal - builder.compute_compaction_share(SUMMARY_SLACK_SHARE))
    if remaining < min(max_tokens, builder.compute_compaction_share(MIN_SUMMARY_SHARE)):
        return None
    return min(max_tokens, remaining)


def _apply_compaction(builder: PlanBuilder, compaction: CompactionEntry) -> PlanBuilder:
    compaction = builder.rules.finish_compaction(builder, compaction)
    # The entry records the size that it leads to, which is known only with the compaction applied.
    tokens_after = builder.add_compaction(compaction).estimated_tokens
    return builder.add_compaction(replace(compaction, tokens_after=tokens_after))


def compute_max_extract(message_budget: int, settings: Settings) -> int:
    """Return the most tokens that an extract may take of ``message_budget`` tokens.

    That is ``summary.max_share`` up to ``LARGE_BUDGET_TOKENS``, and ``LARGE_BUDGET_SHARE`` of what is beyond, up to
    ``MAX_GROWTH_TOKENS``.
    """
    within = min(message_budget, LARGE_BUDGET_TOKENS)
    beyond = min(message_budget, MAX_GROWTH_TOKENS) - within
    return int(settings.summary.max_share * within + LARGE_BUDGET_SHARE * beyond)


def _explain_insufficient_gain(before: PlanBuilder, after: PlanBuilder) -> str:
    """Return why the compaction in ``after`` does not gain enough to be committed, or an empty string if it does."""
    # Invariant compaction-must-gain (docs/invariants.md): one that gains too little would break the cached prefix, and
    # soon the request would be over its trigger again.
    settings, budget = before.settings.compaction, before.budget
    old, new = before.estimated_tokens, after.estimated_tokens
    if new >= old and (settings.goal_share or before.has_summary_writer):
        return f"the request would not get smaller: {new:,} tokens instead of {old:,}"
    if not settings.goal_share:
        return ""
    max_tokens = budget.setup_tokens + before.rules.compute_compaction_goal(before)
    if new > max_tokens:
        return f"the request would still have {new:,} tokens, over the goal of {max_tokens:,}"
    gain_share = settings.min_gain_share * (old - budget.setup_tokens)
    min_gain = max(gain_share, min(settings.min_gain_tokens, budget.compute_share(settings.min_gain_share)))
    # A small gain is refused only if the request could be sent as it is: when it does not fit, or somebody asked for
    # the compaction, any gain is worth the broken cache.
    can_stay = old <= budget.usable and not before.inputs.is_compaction_requested
    if can_stay and old - new < min_gain:
        return f"it would free only {old - new:,} tokens, fewer than the required {int(min_gain):,}"
    return ""
