"""History limit: only the last user turns are shown, so many as the session's key says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.messages.cut_points import find_cut_points
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.settings import ChannelLimits
from holdfast.state.entries import TRIGGER_HISTORY, CompactionEntry
from holdfast.state.turns import find_turn_starts

_THREAD_SUFFIX = re.compile(r":(?:thread|topic):[0-9]+$", re.IGNORECASE)
"""What the key of a thread adds to that of the conversation it hangs on."""


def get_history_limit(key: str, channels: Mapping[str, ChannelLimits]) -> int | None:
    """Return how many user turns the session called ``key`` shows; 0 is all of them, nothing is no limit.

    A key is ``[agent:<id>:]<channel>:<kind>:<user>[:thread|topic:<n>]``. A user's own limit, 0 too, comes before the
    channel's for direct messages; channels and groups have one; other kinds and unknown channels have none.
    """
    parts = [part for part in key.split(":") if part]
    if len(parts) > 2 and parts[0] == "agent":
        parts = parts[2:]
    channel = next(
        (candidate for name, candidate in channels.items() if parts and name.lower() == parts[0].lower()), None
    )
    if channel is None or len(parts) < 2:
        return None
    kind = parts[1].lower()
    if kind in {"dm", "direct"}:
        own = channel.dms.get(_THREAD_SUFFIX.sub("", ":".join(parts[2:])))
        return channel.dm_history_limit if own is None or own.history_limit is None else own.history_limit
    return channel.history_limit if kind in {"channel", "group"} else None


def limit_history_turns(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with all but the last turns out of sight, if there are more than the policy shows.

    Where such a cut was undone only the turns since count: what came back stays until there are too many of those.
    """
    max_turns = builder.settings.history.max_turns
    if max_turns <= 0:
        return builder
    state = builder.state
    messages = state.history.messages.slice(state.view.first_kept)
    cuts = find_cut_points(messages)
    can_begin = set(cuts)
    # Words said between a call and its result belong to the turn of that call: a cut there would lose them.
    starts = [
        start
        for start in find_turn_starts(messages)
        if start in can_begin and state.view.first_kept + start >= state.view.turn_limit_start
    ]
    if len(starts) <= max_turns:
        return builder
    turns_to_keep = max(1, max_turns // 2) if builder.settings.history.hysteresis else max_turns
    cut_offset = next((cut_offset for cut_offset in cuts if cut_offset >= starts[-turns_to_keep]), 0)
    if not 0 < cut_offset < len(messages):
        return builder
    old = state.view.compaction
    keep = state.view.first_kept + cut_offset
    compaction = old or CompactionEntry(keep)
    compaction = CompactionEntry(
        keep,
        compaction.summary,
        compaction.head_tokens,
        trigger=TRIGGER_HISTORY,
        native=compaction.native,
        readable_tokens=compaction.readable_tokens,
    )
    return builder.add_compaction(compaction)
