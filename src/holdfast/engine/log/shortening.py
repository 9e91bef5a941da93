"""Shorten long tool results in the log itself, on a copy of the branch, as OpenClaw does."""

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
    """The result of ``shorten_long_results``."""

    leaf: str | None = None
    """The leaf of the copied branch, or None if nothing was shortened."""
    messages: int = 0
    """How many messages were shortened."""
    why: str = ""
    """Why nothing was shortened; empty if something was."""


def shorten_long_results(journal: Journal, target: Target) -> ShorteningOutcome:
    """Copy the branch of ``journal`` with results cut to the policy's limits, and make the copy its branch.

    Only messages that the next request shows are cut. The old branch stays whole. If the policy sets no limit, or no
    result is over it, the log is neither read nor written.
    """
    policy = journal.policy
    limits = policy.rules.get_result_limits(apply_window_cap(target, policy.settings).limits.window)
    if limits is None:
        return ShorteningOutcome(why=f"policy {policy.name!r} sets no limit for one result")
    nothing_over = ShorteningOutcome(why=f"no result is over its limit: {limits.per_result:,} weighted characters")
    # The state in memory answers the common case; the log is read only to rewrite it.
    if not has_oversized_results(map_shown_messages(journal.state).values(), limits):
        return nothing_over
    count = journal.rewrite_messages(
        lambda path: truncate_entry_messages(build_shown_entries(path, journal.state), limits)
    )
    return ShorteningOutcome(journal.leaf, count) if count else nothing_over
