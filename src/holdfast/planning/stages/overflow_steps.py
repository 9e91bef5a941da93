"""Rungs: what recovery asks for beside a compaction, whatever the policy's own triggers say."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.builder import Draft
from holdfast.planning.stages.media import drop_media
from holdfast.planning.stages.smallest_request import smallest
from holdfast.planning.stages.truncate import press_results


def climb(draft: Draft) -> Draft:
    """Return the draft made smaller as ``World.rung`` says; where that decides nothing, a notice says so."""
    step = _RUNGS.get(draft.world.rung)
    if step is None:
        return draft
    climbed = step(draft)
    if climbed is draft:
        return draft.note("not-smaller", _NOTHING[draft.world.rung])
    return climbed


_RUNGS: dict[str, Callable[[Draft], Draft]] = {"truncate": press_results, "media": drop_media, "fallback": smallest}
_NOTHING = {
    "truncate": "no result is over its limit, or they were cut since the last answer",
    "media": "no images or documents are shown",
    "fallback": "this is the smallest request there is",
}
"""Why a rung decides nothing."""
