"""Results said shorter in the log itself, as OpenClaw does it: on a copy of the branch."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.log.journal import Journal
from holdfast.planning.budget import in_window
from holdfast.planning.stages.truncate import bounds, entries_shown, is_oversized, messages_shown, truncated_entries
from holdfast.state.target import Target


class Shortened(Struct, frozen=True):
    """What became of ``shorten``: the leaf of the copied branch and how many messages it says shorter, or why none."""

    leaf: str | None = None
    messages: int = 0
    why: str = ""


def shorten(journal: Journal, target: Target) -> Shortened:
    """Say the branch of ``journal`` again with its results within the policy's limits, and go on there.

    What the next requests show is said shorter on a copy, from the first such message on; the old branch stays whole.
    Where the policy has no limits or nothing is over them nothing is read or written.
    """
    settings = journal.policy.settings
    if not settings.truncate_share:
        return Shortened(why=f"policy {journal.policy.name!r} sets no limit for one result (truncate_share is 0)")
    limits = bounds(in_window(target, settings).limits.window, settings)
    within = Shortened(why=f"no result is over its limit: {limits.each:,} weighted characters")
    if not is_oversized(messages_shown(journal.branch).values(), limits):
        return within
    count = journal.said_again(lambda path: truncated_entries(entries_shown(path, journal.branch), limits))
    return Shortened(journal.leaf, count) if count else within
