"""As Claude Code prunes: after an hour, all but the newest results."""

from __future__ import annotations

from holdfast.planning.builder import PlanBuilder
from holdfast.planning.stages.prune.shown import (
    CLEARED_RESULT_TEXT,
    build_clear_edit,
    build_prune_filter,
    find_shown_results,
)
from holdfast.planning.stages.tool_results import build_tool_name_lookup


def prune_after_idle(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with all but the newest five results of its tools cleared, an hour after the last answer."""
    settings = builder.settings
    if builder.inputs.idle_seconds <= settings.prune_idle:
        return builder
    goes, names = build_prune_filter(settings), build_tool_name_lookup(builder.state)
    visible_results = (result for result in find_shown_results(builder.state) if result.text != CLEARED_RESULT_TEXT)
    clearable_results = [result for result in visible_results if goes(names(result.message_index, result.result))]
    edits = (build_clear_edit(result) for result in clearable_results[settings.prune_keep_results :])
    return builder.add_edits(tuple(edit for edit in edits if edit is not None))
