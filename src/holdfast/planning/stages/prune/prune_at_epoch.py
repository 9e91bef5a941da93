"""Ours: old results go where the prefix breaks anyway, where space is needed, or where it pays.

What goes leaves a line with a handle, through which it is read back; where texts cannot be stored away nothing goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from holdfast.messages.parts import ToolResult
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.stages.append_limit import is_capped_text
from holdfast.planning.stages.prune.prunable_results import build_prune_filter
from holdfast.planning.stages.spill import SpillableText, build_text_edit, find_spillable_texts
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.costs import compute_cache_break_cost
from holdfast.state.edits import Blob, Edit
from holdfast.state.turns import find_newest_answer_index
from holdfast.state.view import list_shown_indexes

MIN_REQUESTS_TO_COME = 10
"""[H] Requests that a price is reckoned for at least: an agent that has just begun will go on for more."""


def prune_at_epoch(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with its old results given way to a line each, if ``prune.when`` names a reason that holds.

    Old are those behind the newest share of results; they go together, if that frees enough. Where the price is the
    only reason, those stay that have too much behind them.
    """
    settings, budget = builder.settings.prune, builder.budget
    reasons = set(settings.when) & {"price", *_find_prune_reasons(builder)}
    if not reasons or not builder.inputs.can_spill:
        return builder
    keep = builder.to_estimator_tokens(settings.keep_tokens or budget.compute_share(settings.keep_share))
    min_tokens = builder.to_estimator_tokens(min(settings.min_tokens, budget.compute_share(settings.min_share)))
    old = list(_find_old_results(builder, keep))
    if sum(result.tokens for result in old) <= min_tokens:
        return builder
    pairs = [pair for pair in map(_clear_with_handle, old) if pair[0].saves > 0]
    if reasons == {"price"}:
        pairs = pairs[: _count_paying_edits(builder, [edit for edit, _ in pairs])]
    if sum(edit.saves for edit, _ in pairs) <= min_tokens:
        return builder
    return builder.replace_texts(pairs)


def _find_prune_reasons(builder: PlanBuilder) -> Iterator[str]:
    """Yield why this is a moment at which old results may go, whatever that does to the cached prefix."""
    state, target = builder.state, builder.target
    if builder.inputs.cache_state == "cold":
        yield "cold"
    if state.last_request.seen_count and (_is_prefix_broken(builder) or state.last_request.model != target.model):
        yield "broken"
    if builder.settings.compaction.auto and builder.rules.is_over_trigger(builder):
        yield "space"


def _is_prefix_broken(builder: PlanBuilder) -> bool:
    """Return whether the prefix breaks by a decision of this draft or by another frame.

    That an undo breaks it too is no reason: what the user just brought back is not taken away again at once.
    """
    state = builder.state
    has_changed_prefix = builder.compaction is not None or any(
        edit.span.start < state.last_request.seen_count for edit in builder.record
    )
    return has_changed_prefix or (
        state.counters.requests_since_break == 0 and state.setup_changed_at == len(state.history.sized_messages)
    )


def _find_old_results(builder: PlanBuilder, keep_tokens: int) -> Iterator[SpillableText]:
    """Yield the answered results behind the newest ``keep_tokens`` tokens of results, newest first; no message is
    split.

    What an undo brought back is not among them, nor what stays for good: results of exempt tools, and those that hold
    the only handle of a longer text. A breakpoint behind the last message of which results went stands on what no
    later prune changes.
    """
    state, result_tokens, edge = builder.state, 0, len(builder.state.history.sized_messages)
    names, goes = build_tool_name_lookup(state), build_prune_filter(builder.settings.prune)
    newest = find_newest_answer_index(state, state.view.first_kept)
    answered_indexes = (index for index in list_shown_indexes(state, state.view.first_kept) if index < newest)
    for result in reversed(list(find_spillable_texts(state, answered_indexes))):
        if (
            isinstance(result.part, ToolResult)
            and goes(names(result.message_index, result.part))
            and not is_capped_text(result.text)
        ):
            result_tokens += result.tokens
            if result_tokens <= keep_tokens:
                edge = result.message_index
            elif result.message_index < edge and not is_protected_part(state, result.message_index, result.part_index):
                yield result


def _clear_with_handle(spillable: SpillableText) -> tuple[Edit, Blob]:
    """Return the edit that leaves a line of a result, and its text to be stored."""
    blob = Blob(hash_text(spillable.text), spillable.text)
    line = (
        f'[Old result of {len(spillable.text):,} characters cleared; recall(id="{blob.hash[:HANDLE_CHARS]}") '
        "returns it]"
    )
    why = f"an old result of {len(spillable.text):,} characters, {len(line):,} stay"
    return build_text_edit(spillable, line, blob, "prune", why), blob


def _count_paying_edits(builder: PlanBuilder, edits: Sequence[Edit]) -> int:
    """Return how many of ``edits``, newest first, pay most; 0 is none.

    They pay where ``saved x requests to come x read > suffix x (write - read)``, by the prices of the target.
    """
    prices, behind = builder.target.prices, _sum_tokens_after(builder.state)
    again = compute_cache_break_cost(prices, is_hour=builder.state.usage.learned_limits.uses_hour_cache)
    requests = max(MIN_REQUESTS_TO_COME, builder.state.counters.requests_since_break)
    best_gain, best, saved_tokens = 0.0, 0, 0
    for number, edit in enumerate(edits, 1):
        saved_tokens += edit.saves
        suffix = behind[edit.span.start - builder.state.view.first_kept] - saved_tokens
        gain = saved_tokens * requests * prices.cache_read - suffix * again
        if gain > best_gain:
            best_gain, best = gain, number
    return best


def _sum_tokens_after(state: ConversationState) -> list[int]:
    """Return, for each slot from the first kept one on, the tokens of it and of what is shown behind it."""
    sizes = [
        sized_message.tokens - sum(edit.saves for edit in state.view.edits.get(index, ()))
        for index, sized_message in enumerate(
            state.history.sized_messages.slice(state.view.first_kept), state.view.first_kept
        )
    ]
    return list(accumulate(reversed(sizes)))[::-1]
