"""The account of a stored session, in the window that it may use."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.config import Catalog
from holdfast.planning import budget as guard
from holdfast.planning.settings import Settings
from holdfast.reports.requests.request_size import RequestSize, TargetCache, measure_request
from holdfast.reports.sessions.account import (
    LargestRequest,
    SessionSavings,
    compute_savings_and_state,
)
from holdfast.state.calibration.calibration import min_known_size
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, RequestSetup
from holdfast.state.target import Target
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import collect_named_blobs


def load_session_savings(
    store: SessionStore,
    info: SessionInfo,
    catalog: Catalog,
    places: TargetCache,
) -> SessionSavings:
    """Compute the savings of a session, with the sizes of its spilled texts, in the window it may use."""
    return compute_savings_of_entries(store, info, catalog, places, store.read_entries(info.key))[0]


def compute_savings_of_entries(
    store: SessionStore,
    info: SessionInfo,
    catalog: Catalog,
    places: TargetCache,
    entries: Sequence[Entry],
) -> tuple[SessionSavings, ConversationState]:
    """Compute the savings of a session from its ``entries``, and return them with the state of its current branch."""
    hashes = collect_named_blobs(entries)
    # A blob may be missing from the store's folder.
    sizes = [store.blobs.get_size(hash_) for hash_ in hashes if store.blobs.has_blob(hash_)]

    # Most requests of a session share the four fields of the key, so each target is only found once.
    targets: dict[tuple[str, int, RequestSetup, str], tuple[Target, Settings]] = {}

    def sized(state: ConversationState) -> RequestSize:
        key = state.last_request.model, state.last_request.configured_window, state.setup, state.policy_name
        if key not in targets:
            targets[key] = places(info, state)
        return measure_request(state, *targets[key])

    account, state = compute_savings_and_state(info.key, entries, info.leaf_id, catalog, info.model, sized)
    # The compactions of an imported session are another tool's work, so the overflows they avoided do not count.
    avoided_overflows = 0 if info.format else account.avoided_overflows
    largest = account.largest
    if largest.from_client:
        largest = _apply_effective_window(largest, state, places, info)
    account = replace(
        account,
        largest=largest,
        spills=len(hashes),
        spill_bytes=sum(sizes),
        avoided_overflows=avoided_overflows,
    )
    return account, state


def _apply_effective_window(
    largest: LargestRequest,
    state: ConversationState,
    places: TargetCache,
    info: SessionInfo,
) -> LargestRequest:
    """Return the largest request with the window that the next one is planned for."""
    place, settings = places(info, state)
    limits = guard.compute_effective_target(place, state, settings).limits
    capped_size = replace(largest, window=min_known_size(largest.window, settings.window.cap))
    if limits.window_source == guard.LEARNED_ORIGIN:
        return capped_size.apply_window_limit(limits.window)
    return capped_size
