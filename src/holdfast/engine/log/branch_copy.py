"""A copy of a branch, in memory alone, to go on with while the store cannot be written.

What is decided on it is forgotten once the store can be written again: the log alone counts then.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.planning.pipeline import Policy
from holdfast.store.base import SessionStore
from holdfast.store.memory import MemoryStore

_SHORTENING_STAGES = frozenset({"results", "lines", "prune"})
"""Stages that shorten parts of a request although it fits."""


def copy_branch_to_memory(store: SessionStore, key: str, leaf: str | None) -> SessionStore:
    """Return a store in memory with the branch of session ``key`` that ends at ``leaf``, or an empty one for None.

    Raises ``StoreError`` if the branch cannot be read.
    """
    copy = MemoryStore()
    if leaf is not None:
        copy.adopt_session(store.get_session(key), store.read_path(key, leaf))
    return copy


def remove_shortening_stages(policy: Policy) -> Policy:
    """Return ``policy`` without the stages that shorten parts although they fit: nobody could read those back."""
    stages = [stage for stage in policy.stages if stage[0] not in _SHORTENING_STAGES]
    return replace(policy, stages=tuple(stages))
