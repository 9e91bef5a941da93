"""As opencode prunes: behind the second user message from the end, and only what is worth it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.presets.measures import estimate_opencode_text_tokens
from holdfast.planning.stages.prune.shown import (
    CLEARED_RESULT_TEXT,
    ShownResult,
    build_clear_edit,
    build_prune_filter,
    find_shown_results,
)
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.edits import Edit


def prune_like_opencode(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with results cleared behind the newest tokens of them and the second user message, if enough go.

    Results of failed calls stay and do not count, nor do those of exempt tools; the first one that was cleared before
    ends the search. Tokens are characters over four.
    """
    settings = builder.settings
    keep = settings.prune_keep or builder.budget.compute_share(settings.prune_keep_share)
    total_tokens = freed_tokens = 0
    edits: list[Edit] = []
    for result in _list_countable_results(builder):
        size = estimate_opencode_text_tokens(result.text)
        total_tokens += size
        if total_tokens > keep and (edit := build_clear_edit(result)) is not None:
            freed_tokens += size
            edits.append(edit)
    return builder.add_edits(tuple(edits)) if freed_tokens > settings.prune_minimum else builder


def _list_countable_results(builder: PlanBuilder) -> Iterator[ShownResult]:
    """Yield the results that may be counted, newest first, back to one that was cleared."""
    start, names, goes = (
        _find_second_last_user_message(builder),
        build_tool_name_lookup(builder.state),
        build_prune_filter(builder.settings),
    )
    for result in find_shown_results(builder.state):
        if result.text == CLEARED_RESULT_TEXT:
            return
        if (
            result.message_index < start
            and not result.result.is_error
            and goes(names(result.message_index, result.result))
        ):
            yield result


def _find_second_last_user_message(builder: PlanBuilder) -> int:
    """Return the slot of the second user message from the end; 0 where there is none."""
    state, users = builder.state, 0
    for index in range(len(state.history.sized_messages) - 1, state.view.first_kept - 1, -1):
        users += state.history.messages[index].is_turn_start
        if users == 2:
            return index
    return 0
