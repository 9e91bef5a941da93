"""Results said shorter in the log itself, as OpenClaw does it: on a copy of the branch."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.log.journal import Journal
from holdfast.planning.budget import apply_window_cap
from holdfast.planning.stages.truncate import (
    build_shown_entries,
    has_oversized_results,
    map_shown_messages,
    truncate_entry_messages,
)
from holdfast.state.target import Target


class ShorteningOutcome(Struct, frozen=True):
    """What became of ``shorten_long_results``: the leaf of the copied branch and how many messages it says shorter,
    or why none.
    """

    leaf: str | None = None
    messages: int = 0
    why: str = ""


def shorten_long_results(journal: Journal, target: Target) -> ShorteningOutcome:
    """Say the branch of ``journal`` again with its results within the policy's limits, and go on there.

    What the next requests show is said shorter on a copy, from the first such message on; the old branch stays whole.
    Where the policy has no limits or nothing is over them nothing is read or written.
    """
    policy = journal.policy
    limits = policy.rules.get_result_limits(apply_window_cap(target, policy.settings).limits.window)
    if limits is None:
        return ShorteningOutcome(why=f"policy {policy.name!r} sets no limit for one result")
    within = ShorteningOutcome(why=f"no result is over its limit: {limits.per_result:,} weighted characters")
    if not has_oversized_results(map_shown_messages(journal.state).values(), limits):
        return within
    count = journal.rewrite_messages(
        lambda path: truncate_entry_messages(build_shown_entries(path, journal.state), limits)
    )
    return ShorteningOutcome(journal.leaf, count) if count else within
