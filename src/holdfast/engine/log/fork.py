"""Decide what a branch takes along when a conversation parts from its log: the decisions about the shared messages.

A decision that was undone is taken along with its undo: without both, its rule would decide the same again and take
away what the undo brought back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.state.calibration.calibration import MeasuredRequest, ModelStats
from holdfast.state.calibration.model_stats import build_model_stats_note, list_nonempty_model_stats
from holdfast.state.calibration.token_estimate import PRIOR_WEIGHT
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    NOTE_CONTAINER,
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
from holdfast.state.view import get_projection_digest_at

# Clients that edit their last message fork with every request, and each note is an entry. A difference of 5 % is within
# the margin that estimates get anyway, so no plan would differ. Chosen by judgement.
MAX_RATIO_DIFFERENCE = 0.05
"""Difference between two ratios of a model's tokens to estimated ones, below which they count as equal."""

_VIEW_ENTRIES = RequestEntry | DecisionEntry | CompactionEntry | RevokeEntry
"""Entries that say, or change, what a request shows."""


def collect_decisions_to_copy(
    state: ConversationState,
    path: Sequence[Entry],
    start: int,
    count: int,
) -> list[Entry]:
    """Return the entries that a branch from just before ``path[start]`` needs, to show its messages as before.

    ``path`` is the path of ``state``; ``count`` is the number of messages before ``start``. The entries come from
    ``path[start:]``, clipped to those messages: decisions in force, undone decisions and their undos, and the requests
    that showed the messages (their digests have to be computed anew). Entries that an earlier branch from the same
    place copied are not copied again.
    """
    active_ids = {id_ for id_, _ in state.view.active_decisions}
    known_ids = {entry.id for entry in path[:start]}
    previous_bodies = _collect_bodies_after_last_message(path[:start])
    first_setup_index = _find_first_setup_index(path)
    copies: list[Entry] = []
    for index, entry in enumerate(path[start:], start):
        body = entry.body
        copy: EntryBody | None = None
        if isinstance(body, RequestEntry):
            copy = _copy_request_entry(body, previous_bodies, count)
        elif isinstance(body, RequestSetup):
            # The setup of the first request: a branch that begins before it would have none.
            copy = body if index == first_setup_index else None
        elif isinstance(body, RevokeEntry):
            copy = body if body.revoked_id in known_ids else None
        elif isinstance(body, DecisionEntry | CompactionEntry):
            is_active = entry.id in active_ids
            if is_active:
                copy = clip_decision(body, count)
            else:
                copy = _clip_undone_decision(body, count)
        if copy is not None:
            known_ids.add(entry.id)
            previous_bodies.append(copy)
            copies.append(replace(entry, body=copy))
    return copies


def rebase_entry_body(body: EntryBody, prefix_digest: str, new_ids: Mapping[str, str]) -> EntryBody:
    """Return a copied body as the new branch needs it: with its ``prefix_digest``, and new ids for the old ones."""
    if isinstance(body, RequestEntry):
        return replace(body, prefix_digest=prefix_digest)
    if isinstance(body, RevokeEntry):
        return replace(body, revoked_id=new_ids.get(body.revoked_id, body.revoked_id))
    return body


def make_learned_limits_notes(branch_state: ConversationState, previous_state: ConversationState) -> list[NoteEntry]:
    """Return the note that passes on the statistics of models from ``previous_state``; none if they are nearly equal.

    Window, limits and calibration belong to the model: an edit of the conversation must not make them unknown again. A
    branch that parts from the answer to the newest request has that request too, and so its reported size. Clients that
    edit every answer (by stripping its ``<think>``) part there each time: without the size of the request before, a
    server that silently cuts prompts is never noticed, since its counts cannot be compared (opencode#45168).
    """
    shared_request = _find_shared_measured_request(branch_state, previous_state)
    if shared_request is not None:
        return [build_model_stats_note(previous_state, shared_request)]
    branch_stats = list_nonempty_model_stats(branch_state)
    previous_stats = list_nonempty_model_stats(previous_state)
    is_nearly_equal = len(branch_stats) == len(previous_stats) and all(
        _is_nearly_equal(*pair) for pair in zip(branch_stats, previous_stats, strict=True)
    )
    if is_nearly_equal:
        return []
    return [build_model_stats_note(previous_state)]


def make_container_notes(branch_state: ConversationState, previous_state: ConversationState) -> list[NoteEntry]:
    """Return the note that passes on the provider's containers from ``previous_state``; none if nothing would change.

    A branch that parts from the answer to the newest request still answers the calls of that answer, whose code waits
    in the container: so do clients that send an answer back a little changed. An expired container is so everywhere.
    """
    current = branch_state.history.container
    request, previous_request = branch_state.last_request, previous_state.last_request
    if request.seen_count and request.seen_count == previous_request.seen_count:
        current = previous_state.history.container
    expired = previous_state.history.expired_containers
    if (current, expired) == (branch_state.history.container, branch_state.history.expired_containers):
        return []
    return [NoteEntry(NOTE_CONTAINER, data={"current": current, "expired": list(expired)})]


def _find_shared_measured_request(
    branch_state: ConversationState, previous_state: ConversationState
) -> MeasuredRequest | None:
    """Return the measured request of ``previous_state`` if it is the newest one of the branch too, shown the same."""
    measured_request = previous_state.usage.measured_request
    if measured_request is None or not measured_request.projection_digest:
        return None
    count = measured_request.message_count
    last_request = branch_state.last_request
    if count != last_request.seen_count or last_request.model != previous_state.last_request.model:
        return None
    if branch_state.usage.measured_request == measured_request:
        return None
    is_shown_same = measured_request.projection_digest == get_projection_digest_at(branch_state, count)
    return measured_request if is_shown_same else None


def _is_nearly_equal(branch_stats: ModelStats, previous_stats: ModelStats) -> bool:
    if replace(branch_stats, calibration=previous_stats.calibration) != previous_stats:
        return False
    ratio_difference = _compute_calibration_ratio(branch_stats) - _compute_calibration_ratio(previous_stats)
    return abs(ratio_difference) < MAX_RATIO_DIFFERENCE


def _compute_calibration_ratio(stats: ModelStats) -> float:
    calibration = stats.calibration
    return (calibration.real_tokens + PRIOR_WEIGHT) / (calibration.estimated_tokens + PRIOR_WEIGHT)


def _clip_undone_decision(body: DecisionEntry | CompactionEntry, count: int) -> EntryBody | None:
    """Return the part of an undone decision that its rule would decide again for the first ``count`` messages.

    Of a compaction these are its edits, and the cut itself only if a limit of turns made it: any other compaction
    depends on the size of the request, which is another one on the branch.
    """
    clipped = clip_decision(DecisionEntry(body.edits), count)
    if isinstance(body, CompactionEntry) and body.trigger == TRIGGER_HISTORY:
        edits = clipped.edits if clipped is not None else ()
        return CompactionEntry(min(body.first_kept, count), edits=edits, trigger=TRIGGER_HISTORY)
    return clipped


def _collect_bodies_after_last_message(path: Sequence[Entry]) -> list[EntryBody]:
    """Return the bodies at the end of ``path`` that come after its last message, in order."""
    bodies: list[EntryBody] = []
    for entry in reversed(path):
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            break
        bodies.append(entry.body)
    bodies.reverse()
    return bodies


def _find_first_setup_index(path: Sequence[Entry]) -> int:
    """Return the index of the first setup or request in ``path``, or -1 without one."""
    for index, entry in enumerate(path):
        if isinstance(entry.body, RequestSetup | RequestEntry):
            return index
    return -1


def _copy_request_entry(request: RequestEntry, previous_bodies: Sequence[EntryBody], count: int) -> RequestEntry | None:
    """Return ``request`` as one that showed the first ``count`` messages.

    Return None if ``count`` is 0, or if ``previous_bodies`` ends with the same request and no decision came since.
    """
    if not count:
        return None
    copy = RequestEntry("", count, request.model, request.window, request.api)
    for body in reversed(previous_bodies):
        if isinstance(body, _VIEW_ENTRIES):
            is_repeated = isinstance(body, RequestEntry) and replace(body, prefix_digest="") == copy
            return None if is_repeated else copy
    return copy
