"""As Claude Code prunes: after an hour, all but the newest results."""

from __future__ import annotations

from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import CLEARED, Result, cleared, results_as_shown
from holdfast.policy.results import tool_name


def idle(draft: Draft) -> Draft:
    """Return the draft with all but the newest five results of its tools cleared, an hour after the last answer."""
    settings = draft.settings
    if draft.world.idle <= settings.prune_idle:
        return draft
    mine = [one for one in results_as_shown(draft.branch) if one.text != CLEARED and _may_go(draft, one)]
    edits = (cleared(one) for one in mine[settings.prune_keep_results :])
    return draft.decide(tuple(edit for edit in edits if edit is not None))


def _may_go(draft: Draft, one: Result) -> bool:
    """Whether the result is of a tool whose results are cleared: those named, or all where none is."""
    names = {name.casefold() for name in draft.settings.prune_tools}
    return not names or tool_name(draft.branch, one.slot, one.result).casefold() in names
