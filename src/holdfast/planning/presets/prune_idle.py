"""As Claude Code prunes: after an hour, all but the newest results."""

from __future__ import annotations

from holdfast.planning.builder import Draft
from holdfast.planning.stages.prune.shown import CLEARED, cleared, may_go, results_as_shown
from holdfast.planning.stages.tool_results import tool_names


def idle(draft: Draft) -> Draft:
    """Return the draft with all but the newest five results of its tools cleared, an hour after the last answer."""
    settings = draft.settings
    if draft.world.idle <= settings.prune_idle:
        return draft
    goes, names = may_go(settings), tool_names(draft.branch)
    shown = (one for one in results_as_shown(draft.branch) if one.text != CLEARED)
    mine = [one for one in shown if goes(names(one.slot, one.result))]
    edits = (cleared(one) for one in mine[settings.prune_keep_results :])
    return draft.decide(tuple(edit for edit in edits if edit is not None))
