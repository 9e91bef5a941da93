"""As opencode prunes: behind the second user message from the end, and only what is worth it."""

from __future__ import annotations

from holdfast.model.edits import Edit
from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import behind, shown_results


def opencode(draft: Draft) -> list[Edit]:
    """opencode: skip until the second user message from the end, keep the newest tokens, free enough or nothing."""
    users, start = 0, 0
    for index in range(len(draft.branch.slots) - 1, draft.branch.keep - 1, -1):
        users += draft.branch.slots[index].message.starts_turn
        if users == 2:
            start = index
            break
    results = (one for one in shown_results(draft.branch) if one.slot < start)
    return behind(draft, results, draft.settings.prune_keep, draft.settings.prune_minimum)
