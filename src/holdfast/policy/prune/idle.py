"""As Claude Code prunes: after an hour, all but the newest results."""

from __future__ import annotations

from holdfast.model.edits import Edit
from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import cleared, shown_results


def idle(draft: Draft) -> list[Edit]:
    """Claude Code: when the last answer is over an hour old, all but the newest five."""
    if draft.world.idle <= draft.settings.prune_idle:
        return []
    old = list(shown_results(draft.branch))[draft.settings.prune_keep_results :]
    return [edit for one in old if (edit := cleared(one)) is not None]
