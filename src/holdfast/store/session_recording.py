"""A session of a store as a recording, as if a tool's file had been read: for exports, and for replays."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.formats import Recording
from holdfast.state.entries import Entry
from holdfast.store.base import SessionInfo, SessionStore


def load_recording(store: SessionStore, info: SessionInfo) -> Recording:
    """Load a session from the store as a recording, together with the sessions of its sub-agents."""
    # A sub-agent's session has the key of its parent after an @.
    chains = [sidechain for sidechain in store.list_sessions() if sidechain.key.endswith(f"@{info.key}")]
    sidechains = [_load_tree(store, sidechain) for sidechain in sorted(chains, key=lambda sidechain: sidechain.key)]
    return replace(_load_tree(store, info), sidechains=tuple(sidechains))


def load_branch_recording(store: SessionStore, info: SessionInfo) -> Recording:
    """Load the branch of a session that ends at ``info.leaf_id`` as a recording, without its other branches."""
    return _make_recording(info, store.read_path(info.key, info.leaf_id))


def _load_tree(store: SessionStore, info: SessionInfo) -> Recording:
    return _make_recording(info, store.read_entries(info.key))


def _make_recording(info: SessionInfo, entries: Sequence[Entry]) -> Recording:
    return Recording(
        info.format,
        info.key,
        info.cwd,
        info.title,
        info.model,
        entries=tuple(entries),
        leaf=info.leaf_id,
        window=info.recorded_window,
    )
