"""As Claude Code prunes: after an hour, all but the newest results."""

from __future__ import annotations

from holdfast.model.edits import Edit
from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import CLEARED, Result, cleared, results_as_shown
from holdfast.policy.results import tool_name


def idle(draft: Draft) -> list[Edit]:
    """Claude Code: when the last answer is over an hour old, all but the newest five results of its own tools."""
    settings = draft.settings
    if draft.world.idle <= settings.prune_idle:
        return []
    mine = [one for one in results_as_shown(draft.branch) if one.text != CLEARED and _may_go(draft, one)]
    return [edit for one in mine[settings.prune_keep_results :] if (edit := cleared(one)) is not None]


def _may_go(draft: Draft, one: Result) -> bool:
    """Whether the result is of a tool whose results are cleared: those named, or all where none is."""
    names = {name.casefold() for name in draft.settings.prune_tools}
    return not names or tool_name(draft.branch, one.slot, one.result).casefold() in names
