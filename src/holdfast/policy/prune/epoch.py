"""Ours: old results go when the prefix breaks anyway."""

from __future__ import annotations

from holdfast.model.edits import Edit
from holdfast.policy.draft import Draft
from holdfast.policy.prune.shown import behind, shown_results


def epoch(draft: Draft) -> list[Edit]:
    """Ours: at a cold cache only, behind the newest share of results, and only if it frees enough."""
    if draft.world.cache != "cold":
        return []
    settings, room = draft.settings, draft.room
    keep = draft.own(settings.prune_keep or room.share(settings.prune_keep_share))
    least = draft.own(min(settings.prune_minimum, room.share(settings.prune_minimum_share)))
    return behind(draft, shown_results(draft.branch), keep, least)
