"""The resources that all sessions of one engine share: store, upstream, hooks, lanes, permits and the listener."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from weakref import WeakSet

from msgspec import Raw

from holdfast.config import Catalog, load_shipped_catalog
from holdfast.config.files import build_target
from holdfast.engine.compaction.inflight import CompactionTracker
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.concurrency.engine_owner import EngineOwner
from holdfast.engine.concurrency.lanes_and_permits import Lanes, Permits
from holdfast.engine.concurrency.worker import WorkerThread
from holdfast.engine.environment.environment import Environment
from holdfast.engine.hooks import Hooks
from holdfast.engine.server_lessons import ServerLessons
from holdfast.engine.upstream.server_windows import ServerWindows
from holdfast.engine.upstream.upstream import Upstream, get_server_name
from holdfast.events import Event, EventListener
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.providers.fix.client_options import OptionFixes
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.store.tree.tree import get_time_ms, make_entry_ids

if TYPE_CHECKING:
    from holdfast.telemetry.session_spans import SessionSpans
    from holdfast.telemetry.telemetry import Telemetry

T = TypeVar("T")
CheckMode: TypeAlias = Literal["all", "changed", "none"]
"""Check every request · only requests that differ from the body the caller handed in · none."""

_LOG = logging.getLogger(__name__)
# Far more models than anybody uses in turn; the bound is against clients that make up names. Chosen by judgement.
MAX_CACHED_TARGETS = 256
"""Targets kept, one for each API, model and provider."""
MAX_OPTION_FIXES = 1_024
"""Sets of options whose fixes are kept. Few clients change theirs from request to request. Chosen by judgement."""


@dataclass
class EngineResources:
    """Everything that the sessions of one engine share, in one event loop of one process.

    All work of a session goes through ``run_in_worker`` or ``hold_lane``, which raise ``OperationAborted`` anywhere
    else. Only the worker uses the store, so that is one thread at a time.
    """

    store: SessionStore
    upstream: Upstream
    target: Target | None = None
    """The API and model of requests made from messages; None if only whole bodies are sent."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of such requests beside the messages; they take precedence over the environment's."""
    environment: Environment | None = None
    writers: Sequence[SummaryWriter] = ()
    """Models that write summaries, tried in turn."""
    native_compaction: bool = False
    """Whether the provider compacts, if its API can."""
    hooks: Hooks = field(default_factory=Hooks)
    listener: EventListener | None = None
    telemetry: Telemetry | None = None
    """Records spans and metrics; None if nobody asked for them."""
    check_mode: CheckMode = "all"
    """Which requests are checked against the rules of their API before they are sent."""
    permits: Permits = field(default_factory=Permits)
    catalog: Catalog = field(default_factory=load_shipped_catalog)
    window: int | None = None
    """Window in tokens of all models other than ``target``'s; None = as the catalog says."""
    trusts_client_limits: bool = False
    """Whether clients are trusted to know the limits of servers that the catalog does not know."""
    clock: Callable[[], int] = get_time_ms
    """Milliseconds since 1970."""
    make_ids: Callable[[int], list[str]] = make_entry_ids
    """Returns so many new entry ids; they must be unique."""
    server_lessons: ServerLessons = field(default_factory=ServerLessons)
    """Fields that servers refused."""
    server_windows: ServerWindows = field(default_factory=ServerWindows)
    """Windows that local servers stated."""
    asks_local_servers: bool = True
    """Whether servers on this machine or in a private network are asked for their window."""
    owner: EngineOwner = field(default_factory=EngineOwner)
    lanes: Lanes = field(default_factory=Lanes)
    compaction_trackers: WeakSet[CompactionTracker] = field(default_factory=WeakSet)
    """The trackers of all sessions still in use, to be closed with the engine."""
    option_fixes: dict[bytes, OptionFixes] = field(default_factory=dict)
    """What was found out about the options of clients, by a digest of these."""
    _targets: dict[tuple[str, str, RequestProvider], Target] = field(default_factory=dict)
    """Cached targets by API, model and provider."""
    _worker: WorkerThread = field(default_factory=WorkerThread)

    def emit_event(self, event: Event, spans: SessionSpans | None = None) -> None:
        """Call the listener with ``event``. A listener that raises is dropped, with a warning in the log.

        ``spans`` are those of the request that the event belongs to.
        """
        if self.telemetry is not None:
            self.telemetry.note_event(event, spans)
        if self.listener is None:
            return
        try:
            self.listener(event)
        except Exception as error:  # noqa: BLE001 -- whatever a listener does, the session goes on
            self.listener = None
            reason = f"{type(error).__name__}: {error}; it gets no more events: fix it and open the engine again"
            _LOG.warning("the listener of this engine raised %s", reason)

    def run_in_worker(self, call: Callable[[], T]) -> Awaitable[T]:
        """Make ``call`` in the worker thread and return its result; a cancelled caller still waits for its end."""
        self.owner.require()
        return self._worker.run(call)

    def hold_lane(self, key: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that holds lane ``key``, which one run may hold at a time."""
        self.owner.require()
        return self.lanes.hold(key)

    def set_catalog(self, catalog: Catalog, window: int | None) -> None:
        """Use ``catalog`` from now on, with ``window`` for all models if it is given."""
        self.catalog = catalog
        self.window = window
        self._targets = {}  # a new dict: a lookup still running in the worker fills the old one

    def remember_option_fixes(self, key: bytes, option_fixes: OptionFixes) -> None:
        """Keep ``option_fixes`` for later requests with the same options."""
        if len(self.option_fixes) >= MAX_OPTION_FIXES:
            self.option_fixes.clear()
        self.option_fixes[key] = option_fixes

    def resolve_target(
        self,
        api: str,
        model: str,
        upstream: Upstream | None = None,
        fields: Mapping[str, Raw] = MappingProxyType({}),
    ) -> Target:
        """Return the target for ``model`` on ``api``: the engine's own if it matches, else from the catalog.

        The address of ``upstream``, by default the engine's own, and ``fields`` of the body help to tell which
        provider's rules apply. Called in the worker too, while ``set_catalog`` may replace the cache.
        """
        own_target, targets, catalog = self.target, self._targets, self.catalog
        if own_target is not None and own_target.api == api and model in ("", own_target.model):
            return own_target
        address = get_server_name(upstream or self.upstream)
        provider = catalog.find_provider(api, model, address=address, fields=fields)
        cached_target = targets.get((api, model, provider))
        if cached_target is None:
            cached_target = build_target(
                catalog, api, model, provider, window=self.window, trusts_client=self.trusts_client_limits
            )
            if len(targets) >= MAX_CACHED_TARGETS:
                targets.clear()
            targets[api, model, provider] = cached_target
        return cached_target
