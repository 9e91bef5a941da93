"""What a conversation that parts from its log takes along: what was decided of the part that both say, and learned.

An undo is taken along as what it undid, and the undo: no rule takes again what it brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from holdfast.state.calibration.calibration import ModelStats
from holdfast.state.calibration.model_stats import build_model_stats_note, list_nonempty_model_stats
from holdfast.state.calibration.token_estimate import PRIOR_WEIGHT
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    TRIGGER_HISTORY,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
)
from holdfast.state.fold.rewind import clip_decision

MAX_RATIO_DIFFERENCE = 0.05
"""[H] Ratios of a model's tokens to ours that differ by less make no other plan worth a note."""

_VIEW_ENTRIES = RequestEntry | DecisionEntry | CompactionEntry | RevokeEntry
"""What says, or changes, what the next request shows."""


def collect_decisions_to_copy(state: ConversationState, path: Sequence[Entry], start: int, count: int) -> list[Entry]:
    """Return what ``path``, that of ``state``, tells from entry ``start`` on of its first ``count`` slots, in order.

    Where a conversation parts from its log before ``start``, it goes on with that: what was decided of them or taken
    back, and that requests showed them (whose basis is another one here). What was told there already, by an earlier
    branch from the same place, is not told again.
    """
    law = {id_ for id_, _ in state.view.active_decisions}
    known_ids = {entry.id for entry in path[:start]}
    bodies, again = _collect_bodies_after_last_message(path[:start]), list[Entry]()
    setup_index = next(
        (at for at, path_entry in enumerate(path) if isinstance(path_entry.body, RequestSetup | RequestEntry)), -1
    )
    for at, entry in enumerate(path[start:], start):
        body = entry.body
        new: EntryBody | None = None
        if isinstance(body, RequestEntry):
            new = _copy_request_entry(body, bodies, count)
        elif isinstance(body, RequestSetup):
            new = body if at == setup_index else None  # the first request had it: who parts here had no other
        elif isinstance(body, RevokeEntry):
            new = body if body.revoked_id in known_ids else None
        elif isinstance(body, DecisionEntry | CompactionEntry):
            new = clip_decision(body, count) if entry.id in law else _keep_undone_decision(body, count)
        if new is not None:
            known_ids.add(entry.id)
            bodies.append(new)
            again.append(replace(entry, body=new))
    return again


def rebase_entry_body(body: EntryBody, basis: str, ids: Mapping[str, str]) -> EntryBody:
    """Return what was carried as it is told where requests have this ``basis``; ``ids`` are the new for the old."""
    if isinstance(body, RequestEntry):
        return replace(body, prefix_digest=basis)
    return RevokeEntry(ids.get(body.revoked_id, body.revoked_id)) if isinstance(body, RevokeEntry) else body


def make_learned_limits_notes(there: ConversationState, before: ConversationState) -> list[NoteEntry]:
    """Return the note by which ``there`` knows of models what ``before`` does; none where it nearly does."""
    own_stats, earlier_stats = list_nonempty_model_stats(there), list_nonempty_model_stats(before)
    is_nearly_equal = len(own_stats) == len(earlier_stats) and all(
        _is_nearly_equal(*pair) for pair in zip(own_stats, earlier_stats, strict=True)
    )
    return [] if is_nearly_equal else [build_model_stats_note(before)]


def _is_nearly_equal(own_stats: ModelStats, earlier_stats: ModelStats) -> bool:
    ratios = [
        (stats.calibration.real_tokens + PRIOR_WEIGHT) / (stats.calibration.estimated_tokens + PRIOR_WEIGHT)
        for stats in (own_stats, earlier_stats)
    ]
    return (
        replace(own_stats, calibration=earlier_stats.calibration) == earlier_stats
        and abs(ratios[0] - ratios[1]) < MAX_RATIO_DIFFERENCE
    )


def _keep_undone_decision(body: DecisionEntry | CompactionEntry, count: int) -> EntryBody | None:
    """Return what a rule would do again to the first ``count`` slots, were it not known that ``body`` was undone."""
    edits = clip_decision(DecisionEntry(body.edits), count)
    if isinstance(body, CompactionEntry) and body.trigger == TRIGGER_HISTORY:
        return CompactionEntry(min(body.first_kept, count), edits=edits.edits if edits else (), trigger=TRIGGER_HISTORY)
    return edits


def _collect_bodies_after_last_message(path: Sequence[Entry]) -> list[EntryBody]:
    """Return what stands at the end of ``path`` behind the last message."""
    behind = takewhile(lambda entry: not isinstance(entry.body, MessageEntry | BranchSummaryEntry), reversed(path))
    return [entry.body for entry in behind][::-1]


def _copy_request_entry(request: RequestEntry, bodies: Sequence[EntryBody], count: int) -> RequestEntry | None:
    """Return the request that showed the first ``count`` slots, unless ``bodies`` has it and nothing decided since."""
    again = RequestEntry("", count, request.model, request.window, request.api)
    newest = next((body for body in reversed(bodies) if isinstance(body, _VIEW_ENTRIES)), None)
    is_told = isinstance(newest, RequestEntry) and replace(newest, prefix_digest="") == again
    return again if count and not is_told else None
