"""History limit: only the last user turns are shown, as many as the settings or the session's channel allow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.messages.cut_points import find_cut_points
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.open_work.hidden_work import restate_open_work
from holdfast.planning.settings import ChannelLimits
from holdfast.state.entries import TRIGGER_HISTORY, CompactionEntry
from holdfast.state.turns import find_turn_starts

_THREAD_SUFFIX = re.compile(r":(?:thread|topic):[0-9]+$", re.IGNORECASE)
"""End of a session key that names a thread. A thread has the limit of the user it belongs to."""


def get_history_limit(key: str, channels: Mapping[str, ChannelLimits]) -> int | None:
    """Return how many user turns the session called ``key`` shows: 0 for all of them, None if no limit is set.

    A key is ``[agent:<id>:]<channel>:<kind>:<user>[:thread|topic:<n>]`` (OpenClaw's form). In direct messages a user's
    own limit, also 0, counts before that of the channel. Channels and groups have the limit of their channel; other
    kinds and unknown channels have none.
    """
    fields = [field for field in key.split(":") if field]
    if len(fields) > 2 and fields[0] == "agent":
        fields = fields[2:]
    if len(fields) < 2:
        return None
    channel = _find_channel(fields[0], channels)
    if channel is None:
        return None
    kind = fields[1].lower()
    if kind in {"dm", "direct"}:
        user = _THREAD_SUFFIX.sub("", ":".join(fields[2:]))
        user_limits = channel.dms.get(user)
        if user_limits is not None and user_limits.history_limit is not None:
            return user_limits.history_limit
        return channel.dm_history_limit
    return channel.history_limit if kind in {"channel", "group"} else None


def _find_channel(name: str, channels: Mapping[str, ChannelLimits]) -> ChannelLimits | None:
    """Return the limits of the channel called ``name``, in upper or lower case, or None if it has none."""
    for channel_name, limits in channels.items():
        if channel_name.lower() == name.lower():
            return limits
    return None


def limit_history_turns(builder: PlanBuilder) -> PlanBuilder:
    """Hide all but the last user turns if there are more than ``history.max_turns``.

    With hysteresis half of the limit is kept, so that the prompt prefix stays the same until that many turns have been
    added. If the user undid such a cut, only turns since then count: the restored ones stay until there are too
    many newer ones.
    """
    max_turns = builder.settings.history.max_turns
    if max_turns <= 0:
        return builder
    view = builder.state.view
    messages = builder.state.history.messages.slice(view.first_kept)
    # Words said between a call and its result belong to the turn of that call: a cut there would lose them.
    legal_cuts = set(find_cut_points(messages))
    turn_starts = []
    for start in find_turn_starts(messages):
        if start in legal_cuts and view.first_kept + start >= view.turn_limit_start:
            turn_starts.append(start)
    if len(turn_starts) <= max_turns:
        return builder
    if builder.settings.history.hysteresis:
        kept_turns = max(1, max_turns // 2)
    else:
        kept_turns = max_turns
    first_kept = view.first_kept + turn_starts[-kept_turns]
    # The summary in force stays: it stands for messages that are hidden by this cut as well.
    previous = view.compaction or CompactionEntry(first_kept)
    compaction = CompactionEntry(
        first_kept,
        previous.summary,
        previous.head_tokens,
        trigger=TRIGGER_HISTORY,
        native=previous.native,
        readable_tokens=previous.readable_tokens,
    )
    # What is still open would be forgotten with the turns that tell of it.
    summary_tokens = builder.to_estimator_tokens(builder.budget.message_tokens)
    return builder.add_compaction(restate_open_work(builder.state, compaction, summary_tokens))
