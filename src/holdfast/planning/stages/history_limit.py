"""History limit: only the last user turns are shown, so many as the session's key says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.messages.cut_points import legal_cuts
from holdfast.planning.builder import Draft
from holdfast.planning.settings import Channel
from holdfast.state.branch.turns import turn_starts
from holdfast.state.entries import HISTORY, Compaction

_THREAD = re.compile(r":(?:thread|topic):[0-9]+$", re.IGNORECASE)
"""What the key of a thread adds to that of the conversation it hangs on."""


def history_limit(key: str, channels: Mapping[str, Channel]) -> int | None:
    """Return how many user turns the session called ``key`` shows; 0 is all of them, nothing is no limit.

    A key is ``[agent:<id>:]<channel>:<kind>:<user>[:thread|topic:<n>]``. A user's own limit, 0 too, comes before the
    channel's for direct messages; channels and groups have one; other kinds and unknown channels have none.
    """
    parts = [part for part in key.split(":") if part]
    if len(parts) > 2 and parts[0] == "agent":
        parts = parts[2:]
    channel = next((one for name, one in channels.items() if parts and name.lower() == parts[0].lower()), None)
    if channel is None or len(parts) < 2:
        return None
    kind = parts[1].lower()
    if kind in {"dm", "direct"}:
        own = channel.dms.get(_THREAD.sub("", ":".join(parts[2:])))
        return channel.dm_history_limit if own is None or own.history_limit is None else own.history_limit
    return channel.history_limit if kind in {"channel", "group"} else None


def limit_history(draft: Draft) -> Draft:
    """Return the draft with all but the last turns out of sight, if there are more than the policy shows.

    Where such a cut was undone only the turns since count: what came back stays until there are too many of those.
    """
    most = draft.settings.history_turns
    if most <= 0:
        return draft
    branch = draft.branch
    messages = branch.messages.slice(branch.keep)
    cuts = legal_cuts(messages)
    can_begin = set(cuts)
    # Words said between a call and its result belong to the turn of that call: a cut there would lose them.
    starts = [start for start in turn_starts(messages) if start in can_begin and branch.keep + start >= branch.counted]
    if len(starts) <= most:
        return draft
    wanted = max(1, most // 2) if draft.settings.history_hysteresis else most
    cut = next((cut for cut in cuts if cut >= starts[-wanted]), 0)
    if not 0 < cut < len(messages):
        return draft
    old = branch.compaction
    keep = branch.keep + cut
    made = old or Compaction(keep)
    made = Compaction(keep, made.summary, made.size, trigger=HISTORY, native=made.native, twin=made.twin)
    return draft.compact(made)


def slide(draft: Draft) -> Draft:
    """Return the draft with its oldest messages out of sight until the request fits. The baseline: no summary."""
    branch = draft.branch
    excess = draft.estimate + int(draft.settings.margin * draft.room.size) - draft.room.usable
    if draft.settings.compact != "slide" or not (draft.settings.auto or draft.world.compacts) or excess <= 0:
        return draft
    goal = draft.own(excess)
    for cut in legal_cuts(branch.messages.slice(branch.keep))[1:]:
        keep = branch.keep + cut
        freed = branch.sums[keep - 1] - (branch.sums[branch.keep - 1] if branch.keep else 0)
        if freed >= goal and keep < len(branch.slots):
            return draft.compact(Compaction(keep, trigger="slide"))
    return draft
