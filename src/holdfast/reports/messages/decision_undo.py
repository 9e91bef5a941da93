"""The effect of undoing a decision, or of restoring an undone one, on the next request of a session."""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.engine.log.new_entries import resolve_decision_id, resolve_undone_id
from holdfast.planning.budget import compute_effective_target
from holdfast.planning.settings import Settings
from holdfast.reports.requests.request_size import get_target_and_settings, measure_request
from holdfast.reports.sessions.history import (
    BranchHistory,
    MessageState,
    build_branch_history,
    find_revoking_entries,
    list_active_decisions,
    list_message_visibility,
    list_shown_edits,
)
from holdfast.reports.sessions.session_lock import open_journal_at_leaf
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, RevokeEntry
from holdfast.state.fold.fold_entries import apply_entries, apply_entry
from holdfast.state.lazy_entries import get_entry_headers
from holdfast.state.target import Target
from holdfast.state.view import (
    get_next_shown_index,
    get_valid_measured_request,
    list_shown_indexes,
    list_shown_sized_messages_at,
)
from holdfast.store.base import SessionInfo, SessionStore


class UndoableDecision(Struct, frozen=True):
    """A decision or compaction, and the effect of undoing it, or of restoring an undone one. Tokens are estimates."""

    id: str
    kind: str
    rules: tuple[str, ...]
    at: int | None
    messages: int
    """Messages that would be shown differently."""
    token_growth: int
    """Tokens by which the next request would grow; negative where it would shrink."""


class UndoOutcome(Struct, frozen=True, omit_defaults=True):
    """The decisions that were undone or restored, and the effect on the next request."""

    session: str
    decision: UndoableDecision
    before: int
    after: int
    """Tokens of the next request, as ``holdfast context`` shows them."""
    also: tuple[UndoableDecision, ...] = ()
    """Further decisions, each described as it stood at that moment."""
    is_restored: bool = False
    """Whether they are in force again; else they were undone."""


def list_undoable(info: SessionInfo, log: BranchHistory, limit: int | None = None) -> list[UndoableDecision]:
    """List up to ``limit`` decisions in force, the newest first, each with the effect of undoing it alone."""
    state = log.state
    times = _map_entry_times(log)
    target_and_settings = get_target_and_settings(info, state, config.load_configuration())
    newest = list(reversed(list_active_decisions(state)))
    shown_indexes = set(list_shown_indexes(state, state.view.first_kept))
    # Only this one needs a full fold: without it the provider's count may be valid again, and with it the exact size.
    measured_id = _find_measured_decision(state, newest, shown_indexes)
    undoable_decisions = []
    for decision in newest[:limit]:
        id_, body = decision
        without = _remove_decision(state, id_, body, shown_indexes, fold=id_ == measured_id)
        undoable_decisions.append(_describe_undo(times, decision, target_and_settings, state, without))
    return undoable_decisions


def list_restorable(info: SessionInfo, log: BranchHistory, limit: int | None = None) -> list[UndoableDecision]:
    """List up to ``limit`` undone decisions, the last undone first, each with the effect of restoring it alone."""
    state = log.state
    times = _map_entry_times(log)
    target_and_settings = get_target_and_settings(info, state, config.load_configuration())
    restorable = []
    for revoked in list(reversed(state.view.revoked_decisions))[:limit]:
        with_it = apply_entry(state, Entry("", None, RevokeEntry(revoked.id, is_restored=True)))
        decision = (revoked.id, revoked.body)
        restorable.append(_describe_change(times, decision, target_and_settings, state, with_it, is_restored=True))
    return restorable


def _describe_change(
    times: dict[str, int | None],
    decision: tuple[str, DecisionEntry | CompactionEntry],
    target_and_settings: tuple[Target, Settings],
    before: ConversationState,
    after: ConversationState,
    *,
    is_restored: bool,
) -> UndoableDecision:
    """Describe the effect of undoing ``decision``, or of restoring it: the states before and after that are given."""
    if not is_restored:
        return _describe_undo(times, decision, target_and_settings, before, after)
    undo = _describe_undo(times, decision, target_and_settings, after, before)
    return replace(undo, token_growth=-undo.token_growth)


def _map_entry_times(log: BranchHistory) -> dict[str, int | None]:
    return {entry.id: entry.time_ms for entry in log.entries}


def _describe_undo(
    times: dict[str, int | None],
    decision: tuple[str, DecisionEntry | CompactionEntry],
    target_and_settings: tuple[Target, Settings],
    state: ConversationState,
    without: ConversationState,
) -> UndoableDecision:
    """Describe the effect of undoing ``decision``: ``state`` without it is ``without``."""
    id_, body = decision
    growth = _measure_growth(target_and_settings, state, without)
    # The edits of a decision name their messages; for a compaction both states must be compared.
    if isinstance(body, DecisionEntry):
        rules = tuple(dict.fromkeys(edit.rule for edit in body.edits))
        # Several edits may concern one message, for example its parts.
        covered_numbers: set[int] = set()
        for edit in list_shown_edits(state, body):
            covered_numbers.update(range(edit.span.start, edit.span.stop))
        return UndoableDecision(id_, "decision", rules, times[id_], len(covered_numbers), growth)
    changed_count = 0
    for old, new in zip(_list_message_fates(state), _list_message_fates(without), strict=True):
        if old != new:
            changed_count += 1
    return UndoableDecision(id_, "compaction", ("compaction",), times[id_], changed_count, growth)


def _measure_growth(
    target_and_settings: tuple[Target, Settings], before: ConversationState, after: ConversationState
) -> int:
    tokens_before = measure_request(before, *target_and_settings).tokens
    return measure_request(after, *target_and_settings).tokens - tokens_before


def _fold_revoke(state: ConversationState, id_: str) -> ConversationState:
    return apply_entry(state, Entry("", None, RevokeEntry(id_)))


def _remove_decision(
    state: ConversationState,
    id_: str,
    body: DecisionEntry | CompactionEntry,
    shown_indexes: Container[int],
    *,
    fold: bool,
) -> ConversationState:
    """Return ``state`` without ``body``; unless ``fold``, only its size is right.

    Folding costs as much as all that is in force, and a decision's saving is known, so most sizes need no fold.
    """
    if fold or isinstance(body, CompactionEntry):
        return _fold_revoke(state, id_)
    measurement = state.usage.measured_request
    if measurement is not None and _find_first_changed_message(state, body, shown_indexes) < measurement.message_count:
        # The request that the provider counted had the decision, so its count does not hold without it.
        measurement = replace(measurement, projection_digest=b"")
    saved_tokens = sum(edit.saves for edit in list_shown_edits(state, body))
    return replace(
        state,
        view=replace(state.view, shown_tokens=state.view.shown_tokens + saved_tokens),
        usage=replace(state.usage, measured_request=measurement),
    )


def _find_measured_decision(
    state: ConversationState,
    newest: list[tuple[str, DecisionEntry | CompactionEntry]],
    shown_indexes: Container[int],
) -> str:
    """Return the id of the decision without which the last counted request may be valid again, or an empty string.

    Every change came after the count, so only the newest decision about the counted messages can be the one.
    """
    measurement = state.usage.measured_request
    if measurement is None or get_valid_measured_request(state) is not None:
        return ""
    for id_, body in newest:
        if _find_first_changed_message(state, body, shown_indexes) < measurement.message_count:
            return id_
    return ""


def _find_first_changed_message(
    state: ConversationState,
    body: DecisionEntry | CompactionEntry,
    shown_indexes: Container[int],
) -> int:
    """Return the first of ``shown_indexes`` that would look different without ``body``, else the message count."""
    edits_by_index: dict[int, list[Edit]] = {}
    for edit in list_shown_edits(state, body):
        edits_by_index.setdefault(edit.span.start, []).append(edit)
    for index in sorted(edits_by_index):
        if index in shown_indexes and _is_shown_differently(state, index, edits_by_index[index]):
            return index
    return len(state.history.sized_messages)


def _is_shown_differently(state: ConversationState, at: int, edits: list[Edit]) -> bool:
    """Return whether message ``at`` would look different without ``edits``; other edits may cover it as well."""
    # Removed one by one: an equal edit of another decision stays.
    other_edits = list(state.view.edits[at])
    for edit in edits:
        other_edits.remove(edit)
    # Only this message is looked at, so a view with its edits alone is enough.
    edits_there = {at: tuple(other_edits)} if other_edits else {}
    without = replace(state, view=replace(state.view, edits=edits_there))
    if get_next_shown_index(state, at) != get_next_shown_index(without, at):
        return True
    digests = [sized_message.digest for sized_message in list_shown_sized_messages_at(state, at)]
    digests_without = [sized_message.digest for sized_message in list_shown_sized_messages_at(without, at)]
    return digests != digests_without


def _list_message_fates(conversation_state: ConversationState) -> list[tuple[MessageState, tuple[Edit, ...]]]:
    """Return how each message is shown, and by which edits."""
    message_fates: list[tuple[MessageState, tuple[Edit, ...]]] = []
    for index, state in enumerate(list_message_visibility(conversation_state)):
        edits: tuple[Edit, ...] = ()
        # Edits of a hidden message change nothing that is shown.
        if state != "hidden":
            edits = conversation_state.view.edits.get(index, ())
        message_fates.append((state, edits))
    return message_fates


def change_decisions(store: SessionStore, info: SessionInfo, *decisions: str, is_restored: bool = False) -> UndoOutcome:
    """Undo decisions of a session, by default the newest, or restore undone ones, and return the effect."""
    key = info.key
    with open_journal_at_leaf(store, key) as journal:
        change = journal.restore_decisions if is_restored else journal.revoke_decisions
        changed_ids = change(*decisions or (None,))
    path = store.read_path(key, journal.leaf)
    count_before = len(path) - len(changed_ids)
    state_before = build_branch_history(path[:count_before]).state
    target_and_settings = get_target_and_settings(info, state_before, config.load_configuration())
    changed: list[UndoableDecision] = []
    # Each change is one entry at the end of the log, so the log just before it ends one entry earlier.
    for number, id_ in enumerate(changed_ids):
        log = build_branch_history(path[: count_before + number])
        state_after = apply_entry(log.state, path[count_before + number])
        in_force = state_after if is_restored else log.state
        decision = (id_, dict(in_force.view.active_decisions)[id_])
        times = _map_entry_times(log)
        changed.append(
            _describe_change(times, decision, target_and_settings, log.state, state_after, is_restored=is_restored)
        )
    first, *also = changed
    before = measure_request(state_before, *target_and_settings).tokens
    after = measure_request(journal.state, *target_and_settings).tokens
    return UndoOutcome(key, first, before, after, tuple(also), is_restored)


class UndoPreview(Struct, frozen=True):
    """What undoing or restoring one decision would do to the next request of a session."""

    decision: UndoableDecision
    before: int
    after: int
    """Tokens of the next request, estimates."""
    window: int
    """Of the next request; 0 if it is not known."""


def preview_undo(store: SessionStore, info: SessionInfo, name: str, *, is_restored: bool = False) -> UndoPreview:
    """Return the effect of undoing the decision whose id begins with ``name``, or of restoring it.

    Raises ``UnknownId`` if it is not in force, or not undone. Only what requests show is read, before and after; the
    whole branch where that does not tell.
    """
    state = store.open_state(info.key)
    if is_restored:
        state, changed, id_ = _restore_stored_decision(store, info, state, name)
        body = dict(changed.view.active_decisions)[id_]
    else:
        id_, body = _find_active_decision(store, info, state, name)
        state, changed = _remove_stored_decision(store, info, state, id_, body)
    target_and_settings = get_target_and_settings(info, state, config.load_configuration())
    times = {id_: store.get_entry(info.key, id_).time_ms}
    return UndoPreview(
        _describe_change(times, (id_, body), target_and_settings, state, changed, is_restored=is_restored),
        measure_request(state, *target_and_settings).tokens,
        measure_request(changed, *target_and_settings).tokens,
        compute_effective_target(target_and_settings[0], state, target_and_settings[1]).limits.window,
    )


def _restore_stored_decision(
    store: SessionStore, info: SessionInfo, state: ConversationState, name: str
) -> tuple[ConversationState, ConversationState, str]:
    """Return the states without and with the undone decision whose id begins with ``name``, and its id.

    ``state`` was opened at the newest compaction. An undo after that makes the store read the branch from its root, so
    that mostly nothing has to be read again.
    """
    undone_ids = [revoked.id for revoked in state.view.revoked_decisions]
    if name in undone_ids:
        with suppress(LookupError):
            return state, apply_entry(state, Entry("", None, RevokeEntry(name, is_restored=True))), name
    whole = build_branch_history(store.read_path(info.key)).state
    id_ = resolve_undone_id([revoked.id for revoked in whole.view.revoked_decisions], name)
    return whole, apply_entry(whole, Entry("", None, RevokeEntry(id_, is_restored=True))), id_


def _find_active_decision(
    store: SessionStore, info: SessionInfo, state: ConversationState, name: str
) -> tuple[str, DecisionEntry | CompactionEntry]:
    """Return the decision in force whose id begins with ``name``, also one that ``state`` does not hold.

    ``state`` was opened at the newest compaction, which hides all that some decisions are about.
    """
    active = dict(state.view.active_decisions)
    if name not in active and state.view.compaction is not None:
        active = _read_active_decisions(store, info)
    id_ = resolve_decision_id(list(active), name)
    return id_, active[id_]


def _read_active_decisions(store: SessionStore, info: SessionInfo) -> dict[str, DecisionEntry | CompactionEntry]:
    """Return all decisions in force by their ids, oldest first, without reading messages."""
    parents = {header.id: header.parent for header in get_entry_headers(store.read_lazy_entries(info.key))}
    path_ids: set[str] = set()
    ancestor = info.leaf_id
    while ancestor is not None and ancestor not in path_ids:
        path_ids.add(ancestor)
        ancestor = parents.get(ancestor)
    decisions: list[Entry] = []
    for kind in ("decision", "compaction", "revoke"):
        decisions += [entry for entry in store.read_entries(info.key, kind) if entry.id in path_ids]
    decisions.sort(key=lambda entry: entry.seq)
    undone_ids = find_revoking_entries(decisions)
    active: dict[str, DecisionEntry | CompactionEntry] = {}
    for entry in decisions:
        if isinstance(entry.body, DecisionEntry | CompactionEntry) and entry.id not in undone_ids:
            active[entry.id] = entry.body
    return active


def _remove_stored_decision(
    store: SessionStore, info: SessionInfo, state: ConversationState, id_: str, body: DecisionEntry | CompactionEntry
) -> tuple[ConversationState, ConversationState]:
    """Return the states with and without a decision in force; ``state`` may lack the messages that it hides."""
    if id_ not in dict(state.view.active_decisions):
        # All that it is about is hidden by a later compaction, which stays.
        return state, state
    with suppress(LookupError):
        if body != state.view.compaction:
            return state, _fold_revoke(state, id_)
        # The messages that it hides are those of the branch before it, which opens without what older ones hide.
        later: list[Entry] = []
        entry = store.get_entry(info.key, info.leaf_id or id_)
        while entry.id != id_ and entry.parent is not None:
            later.append(entry)
            entry = store.get_entry(info.key, entry.parent)
        return state, apply_entries(store.open_state(info.key, entry.parent), reversed(later))
    whole = build_branch_history(store.read_path(info.key)).state
    return whole, _fold_revoke(whole, id_)
