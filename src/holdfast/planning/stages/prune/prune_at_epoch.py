"""The prune rule of our own policy: replace old results when the cached prefix is lost anyway, so it costs nothing.

Two more reasons can be switched on, a lack of space and a favourable price; in replays they cost more and lost more
facts (docs/policies.md). A pruned result leaves a line with a handle. If texts cannot be stored, nothing is pruned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.parts import ToolResult
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder, sum_saved_tokens
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
"""Least number of further requests for which the reason ``price`` adds up what pruning saves. The forecast is the
number of requests since the last break of the prefix, if that is higher; shortly after a break it would be too low,
since an agent rarely stops after a few requests. Chosen by judgement."""


def prune_at_epoch(builder: PlanBuilder) -> PlanBuilder:
    """Replace old results by a line each, if ``prune.when`` names a reason that holds now.

    Old results are those before the newest ones, which ``prune.keep_tokens`` or ``prune.keep_share`` keeps whole. They
    are replaced all at once, and only if that frees enough. If ``price`` is the only reason, the oldest of them may
    stay: everything after a replaced result must be written to the cache again, so results are replaced only as far
    back as that saves money.
    """
    settings, budget = builder.settings.prune, builder.budget
    # Whether ``price`` holds depends on the edits, so it is decided below.
    reasons = set(settings.when) & {"price", *_find_prune_reasons(builder)}
    if not reasons or not builder.inputs.can_spill:
        return builder
    kept_tokens = builder.to_estimator_tokens(settings.keep_tokens or budget.compute_share(settings.keep_share))
    min_tokens = builder.to_estimator_tokens(min(settings.min_tokens, budget.compute_share(settings.min_share)))
    old_results = list(_find_old_results(builder, kept_tokens))
    if sum(result.tokens for result in old_results) <= min_tokens:
        return builder
    pairs: list[tuple[Edit, Blob]] = []
    for result in old_results:
        edit, blob = _clear_with_handle(result)
        if edit.saves > 0:
            pairs.append((edit, blob))
    if reasons == {"price"}:
        pairs = pairs[: _count_paying_edits(builder, [edit for edit, _ in pairs])]
    if sum_saved_tokens(pairs) <= min_tokens:
        return builder
    return builder.replace_texts(pairs)


def _find_prune_reasons(builder: PlanBuilder) -> Iterator[str]:
    """Yield the reasons that hold now, other than the price."""
    state, target = builder.state, builder.target
    if builder.inputs.cache_state == "cold":
        yield "cold"
    is_other_model = state.last_request.model != target.model
    if state.last_request.seen_count and (_is_prefix_broken(builder) or is_other_model):
        yield "broken"
    if builder.settings.compaction.auto and builder.rules.is_over_trigger(builder):
        yield "space"


def _is_prefix_broken(builder: PlanBuilder) -> bool:
    """Return whether the cached prefix breaks in this request, by a decision of this plan or by another setup.

    An undo breaks it too, but is no reason: the user would lose the restored content again at once.
    """
    state = builder.state
    if builder.compaction is not None:
        return True
    if any(edit.span.start < state.last_request.seen_count for edit in builder.record):
        return True
    has_new_setup = state.setup_changed_at == len(state.history.sized_messages)
    return has_new_setup and state.counters.requests_since_break == 0


def _find_old_results(builder: PlanBuilder, kept_tokens: int) -> Iterator[SpillableText]:
    """Yield the results to prune, newest first: those before the newest ``kept_tokens`` estimator tokens of results.

    Results that the model has not answered, that an undo restored, of exempt tools, or with the only handle of a longer
    text are left out.
    """
    state = builder.state
    find_tool_name = build_tool_name_lookup(state)
    is_prunable = build_prune_filter(builder.settings.prune)
    newest_answer = find_newest_answer_index(state, state.view.first_kept)
    shown_indexes = list_shown_indexes(state, state.view.first_kept)
    answered_indexes = (index for index in shown_indexes if index < newest_answer)

    result_tokens = 0
    first_kept_message = len(state.history.sized_messages)
    for result in reversed(list(find_spillable_texts(state, answered_indexes))):
        if not isinstance(result.part, ToolResult):
            continue
        tool_name = find_tool_name(result.message_index, result.part)
        if not is_prunable(tool_name) or is_capped_text(result.text):
            continue
        result_tokens += result.tokens
        if result_tokens <= kept_tokens:
            first_kept_message = result.message_index
            continue
        # The results of one message go or stay together. A breakpoint behind the last message whose results went then
        # marks a prefix that no later prune changes.
        is_in_kept_message = result.message_index >= first_kept_message
        if not is_in_kept_message and not is_protected_part(state, result.message_index, result.part_index):
            yield result


def _clear_with_handle(spillable: SpillableText) -> tuple[Edit, Blob]:
    """Return the edit that puts a line with a handle in place of a result, and the blob of its text."""
    blob = Blob(hash_text(spillable.text), spillable.text)
    handle = blob.hash[:HANDLE_CHARS]
    text_chars = len(spillable.text)
    line = f'[Old result of {text_chars:,} characters cleared; recall(id="{handle}") returns it]'
    why = f"an old result, cleared from {text_chars:,} to {len(line):,} characters"
    return build_text_edit(spillable, line, blob, "prune", why), blob


def _count_paying_edits(builder: PlanBuilder, edits: Sequence[Edit]) -> int:
    """Return how many of ``edits``, which begin with the newest, to apply to save the most money; 0 if none pays.

    They save ``saved tokens × coming requests × price of reading`` and cost ``tokens after the oldest edit × (price of
    writing − price of reading)``, since everything after the oldest edit is written to the cache again.
    """
    prices = builder.target.prices
    tokens_from = _sum_tokens_from(builder.state)
    break_cost = compute_cache_break_cost(prices, is_hour=builder.state.usage.learned_limits.uses_hour_cache)
    coming_requests = max(MIN_REQUESTS_TO_COME, builder.state.counters.requests_since_break)
    best_gain, best_count, saved_tokens = 0.0, 0, 0
    for count, edit in enumerate(edits, 1):
        saved_tokens += edit.saves
        rewritten_tokens = tokens_from[edit.span.start - builder.state.view.first_kept] - saved_tokens
        gain = saved_tokens * coming_requests * prices.cache_read - rewritten_tokens * break_cost
        if gain > best_gain:
            best_gain, best_count = gain, count
    return best_count


def _sum_tokens_from(state: ConversationState) -> list[int]:
    """Return for each message, from the first kept one on, the estimator tokens shown from it to the end."""
    first_kept = state.view.first_kept
    totals: list[int] = []
    total = 0
    kept_messages = state.history.sized_messages.slice(first_kept)
    for offset in range(len(kept_messages) - 1, -1, -1):
        saved_tokens = sum(edit.saves for edit in state.view.edits.get(first_kept + offset, ()))
        total += kept_messages[offset].tokens - saved_tokens
        totals.append(total)
    totals.reverse()
    return totals
