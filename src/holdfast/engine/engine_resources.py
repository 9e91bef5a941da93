"""The means that all sessions of one engine share: who answers, who may run, who is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakSet

from holdfast.config import Catalog, get_target, load_shipped_catalog
from holdfast.engine.compaction.inflight import CompactionTracker
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.concurrency.engine_owner import EngineOwner
from holdfast.engine.concurrency.lanes_and_permits import Lanes, Permits
from holdfast.engine.concurrency.worker import WorkerThread
from holdfast.engine.environment.environment import Environment
from holdfast.engine.hooks import Hooks
from holdfast.engine.upstream.upstream import Upstream
from holdfast.events import Event, EventListener
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.store.tree.tree import get_time_ms, make_entry_ids

T = TypeVar("T")
CheckMode: TypeAlias = Literal["all", "changed", "none"]
"""Every request · those that are not what the caller handed in · none."""

_LOG = logging.getLogger(__name__)
MAX_CACHED_TARGETS = 256
"""[H] Models of which it is held what is known: nobody asks as many in turn."""


@dataclass
class EngineResources:
    """What the sessions of one engine work with, in one event loop of one process.

    Whatever a session does goes by ``run_in_worker`` or ``hold_lane``, which raise ``OperationAborted`` elsewhere. The
    store is used by one thread at a time, whoever calls.
    """

    store: SessionStore
    upstream: Upstream
    target: Target | None = None
    """Where requests that are made of words go."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What stands beside their messages, over what the environment says."""
    environment: Environment | None = None
    writers: Sequence[SummaryWriter] = ()
    """Models that write summaries, tried in turn."""
    native_compaction: bool = False
    """Whether the provider compacts where it can."""
    hooks: Hooks = field(default_factory=Hooks)
    listener: EventListener | None = None
    check_mode: CheckMode = "all"
    """Which requests are refused here, before they are sent, where they break a rule of their API."""
    permits: Permits = field(default_factory=Permits)
    catalog: Catalog = field(default_factory=load_shipped_catalog)
    window: int | None = None
    """Tokens of the window of every model that is no target of the engine's own; nothing = as the catalogue says."""
    trusts_client_limits: bool = False
    """Whether clients know what their servers take, where nobody here does."""
    clock: Callable[[], int] = get_time_ms
    """Milliseconds since 1970."""
    make_ids: Callable[[int], list[str]] = make_entry_ids
    """What so many entries are called; two that are the same break the log."""
    owner: EngineOwner = field(default_factory=EngineOwner)
    lanes: Lanes = field(default_factory=Lanes)
    compaction_trackers: WeakSet[CompactionTracker] = field(default_factory=WeakSet)
    """The compactions of every session that somebody still has."""
    _targets: dict[tuple[str, str], Target] = field(default_factory=dict)
    """What was found of others, by API and model."""
    _worker: WorkerThread = field(default_factory=WorkerThread)

    def emit_event(self, event: Event) -> None:
        """Tell the listener; one that raises is told of nothing more, which a warning says, and changes nothing."""
        if self.listener is not None:
            try:
                self.listener(event)
            except Exception as error:  # noqa: BLE001 -- whatever a listener does, the session goes on
                self.listener = None
                why = f"{type(error).__name__}: {error}; it is told of nothing more, mend it and open the engine again"
                _LOG.warning("the listener of this engine raised %s", why)

    def run_in_worker(self, verb: Callable[[], T]) -> Awaitable[T]:
        """Return what ``verb`` returns, done in the worker; it is done to its end even where the caller gives up."""
        self.owner.require()
        return self._worker.run(verb)

    def hold_lane(self, key: str) -> AbstractAsyncContextManager[None]:
        """Return lane ``key``, to be held by one run at a time."""
        self.owner.require()
        return self.lanes.hold(key)

    def set_catalog(self, catalog: Catalog, window: int | None) -> None:
        """Let models be from now on what ``catalog`` says, with this ``window`` if there is one."""
        self.catalog, self.window, self._targets = catalog, window, {}

    def resolve_target(self, api: str, model: str) -> Target:
        """Return all that is known of requests to ``model`` by ``api``: the engine's own target if it is that one.

        It is asked by the worker too: what was found by another catalogue is not kept for the one that counts now.
        """
        own, targets = self.target, self._targets
        if own is not None and own.api == api and model in ("", own.model):
            return own
        cached_target = targets.get((api, model))
        if cached_target is None:
            cached_target = get_target(
                api, model, window=self.window, catalog=self.catalog, trusts_client=self.trusts_client_limits
            )
            if len(targets) >= MAX_CACHED_TARGETS:
                targets.clear()
            targets[api, model] = cached_target
        return cached_target
