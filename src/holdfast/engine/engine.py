"""The engine: a store, whoever answers, and sessions that never have to think of the window."""

from __future__ import annotations

import os
from asyncio import get_running_loop
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from inspect import iscoroutinefunction
from itertools import islice
from types import MappingProxyType
from typing import Any

from anyio import CancelScope

from holdfast.config import Catalog, load_configuration
from holdfast.config import get_target as known_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.concurrency.lanes_and_permits import DEFAULT_PERMITS, Permits
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.environment.environment import Environment
from holdfast.engine.hooks import Hooks
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import Upstream
from holdfast.errors import ConfigError, DeadlineExceeded, raise_if_wrong_type
from holdfast.events import EventListener
from holdfast.planning.pipeline import Policy
from holdfast.providers.registry import get_api_spec
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

CLOSE_TIMEOUT = 60.0
"""Seconds that runs have to end when the engine closes. [O]"""


class Engine:
    """Opens sessions of one store. Use ``Engine.open`` as ``async with``.

    An engine belongs to the event loop and the process in which it was opened; anywhere else its verbs, and those of
    its sessions, raise ``OperationAborted``.
    """

    def __init__(self, resources: EngineResources, policy: Policy) -> None:
        self.resources = resources
        self.policy = policy
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """Those that were opened and not closed, and some that were; who was looked at last stands last."""

    @classmethod
    @asynccontextmanager
    async def open(  # noqa: PLR0913 -- the door: each has a name and a default
        cls,
        place: str | os.PathLike[str] | SessionStore,
        *,
        upstream: Upstream | Any,
        api: str = "",
        model: str = "",
        policy: str | Policy = "holdfast",
        target: Target | None = None,
        environment: Environment | None = None,
        fields: Mapping[str, Any] = MappingProxyType({}),
        summary_model: str = "",
        writers: Sequence[SummaryWriter] = (),
        native: bool = False,
        hooks: Hooks = Hooks(),
        listen: EventListener | None = None,
        permits: int = DEFAULT_PERMITS,
        check: bool = True,
    ) -> AsyncIterator[Engine]:
        """Open the store at ``place`` (a path, a URL, or a store) for sessions answered by ``upstream``.

        ``upstream`` is an ``Upstream`` or an official SDK's client. ``api`` and ``model`` (or a ``target``) are those
        of requests made of words, which have the ``fields`` beside their messages, over those of the ``environment``;
        a whole body brings its own. ``summary_model`` (of the same upstream) and ``writers`` are models that write
        summaries, tried in turn, and ``native`` lets the provider compact where it can; without any of them an extract
        is made. ``listen``, a plain function, is told of everything that happens. At most ``permits`` model calls run
        at once. With ``check`` a request that breaks a rule of its API is an ``InvalidRequest`` before it is sent.
        Raises ``ConfigError`` for what is none of these, and outside of asyncio's event loop.
        """
        _require_running_loop()
        config = load_configuration()
        chosen = config.build_policy(policy) if isinstance(policy, str) else policy
        raise_if_wrong_type(ConfigError, policy=(chosen, Policy), target=(target, Target | None), hooks=(hooks, Hooks))
        if target and target.validation_problem:
            raise ConfigError(target.validation_problem.why)
        raise_if_wrong_type(
            ConfigError, environment=(environment, Environment | None), listen=(listen, Callable | None)
        )
        if iscoroutinefunction(listen) or iscoroutinefunction(getattr(listen, "__call__", None)):  # noqa: B004
            raise ConfigError("listen is an async def, which nobody would wait for; give a plain function, or a hook")
        raise_if_wrong_type(ConfigError, fields=(fields, Mapping), writers=(writers, Sequence))
        raise_if_wrong_type(ConfigError, permits=(permits, int), model=(model, str), api=(api, str))
        raise_if_wrong_type(
            ConfigError, **{f"writers[{at}]": (writer, SummaryWriter) for at, writer in enumerate(writers)}
        )
        answers = wrap_upstream(upstream, api)
        goal = target or _find_model_target(api, model, config.catalog)
        resolved_api = api or (goal.api if goal is not None else "")
        resources = EngineResources(
            upstream=answers,
            target=goal,
            fields=fields,
            environment=environment,
            writers=(
                *[writer.with_upstream() for writer in writers],
                *_make_summary_writers(answers, resolved_api, summary_model, config.catalog),
            ),
            native_compaction=native,
            hooks=hooks,
            listener=listen,
            permits=Permits(permits),
            check_mode="all" if check else "none",
            catalog=config.catalog,
            store=_resolve_store(place),  # last: nothing may fail behind it
        )
        resources.owner.require()
        engine = cls(resources, chosen)
        with nullcontext() if resources.store is place else closing(resources.store):
            try:
                yield engine
            finally:
                await engine._close()

    async def session(self, key: str, *, leaf: str | None = None) -> Session:
        """Return the session called ``key``, created if need be; with ``leaf`` the branch that ends there.

        What was said to it while an answer was on its way, before a crash, is said with the next of its verbs.
        """
        raise_if_wrong_type(ConfigError, key=(key, str), leaf=(leaf, str | None))
        resources = self.resources

        def opened() -> Journal:
            return Journal.open(
                resources.store, key, self.policy, leaf=leaf, clock=resources.clock, ids=resources.make_ids
            )

        if leaf is not None:
            return Session(resources, await resources.run_in_worker(opened))
        open_session = self._sessions.get(key)
        if (
            open_session is not None
            and not _is_session_closed(open_session)
            and await resources.run_in_worker(open_session.journal.is_still_stored)
        ):
            return open_session
        journal = await resources.run_in_worker(opened)
        current_session = self._sessions.get(key)
        if current_session is not None and current_session is not open_session:  # another task opened it meanwhile
            return current_session
        session = self._sessions[key] = Session(resources, journal)
        self._evict_closed_sessions()
        return session

    def _evict_closed_sessions(self) -> None:
        """Look at the two sessions that were longest not looked at, and forget those that were closed.

        Two for each that is opened: they grow with those that are open, and no opening takes longer for them.
        """
        for key in list(islice(self._sessions, 2)):
            if _is_session_closed(self._sessions[key]):
                del self._sessions[key]
            else:
                self._sessions.move_to_end(key)

    async def _close(self) -> None:
        """Take no new work; wait for what runs, and give it up where it does not end in time.

        A forked child that leaves the block ends nothing of its parent's.
        """
        if self.resources.owner.is_forked:
            return
        self.resources.owner.require()
        for flight in list(self.resources.compaction_trackers):
            flight.close()
        with CancelScope(shield=True), suppress(DeadlineExceeded):
            await self.resources.lanes.drain(deadline=CLOSE_TIMEOUT)


def _require_running_loop() -> None:
    """Raise ``ConfigError`` where no loop of asyncio runs: workers and lanes wait in one."""
    try:
        get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "an engine works in asyncio's event loop, and none is running here; call it from asyncio.run, "
            'anyio.run(main, backend="asyncio"), or use holdfast.sync, under trio in a thread'
        ) from None


def _is_session_closed(session: Session) -> bool:
    """Return whether nothing begins in a session any more."""
    return session.compaction_tracker.status.is_closed


def _resolve_store(place: str | os.PathLike[str] | SessionStore) -> SessionStore:
    """Return the store at ``place``; ``ConfigError`` for what is none."""
    if isinstance(place, str | os.PathLike):
        return open_store(place)
    if not hasattr(place, "hold_lease"):
        raise ConfigError(f"place is of type {type(place).__name__}; give the path of a store, or a store")
    return place


def _make_summary_writers(upstream: Upstream, api: str, model: str, catalog: Catalog) -> list[SummaryWriter]:
    """Return who writes summaries with ``model``; nobody without one."""
    if model and not api:
        raise ConfigError(
            f"summary_model={model!r} says no API; give Engine.open api=… too, or writers=[SummaryWriter(…)]"
        )
    goal = _find_model_target(api, model, catalog)
    return [] if goal is None else [SummaryWriter(upstream, goal)]


def _find_model_target(api: str, model: str, catalog: Catalog) -> Target | None:
    """Return all that is known of requests to ``model`` by ``api``, an API that there is; nothing without a model."""
    return known_target(get_api_spec(api).api, model, catalog=catalog) if api and model else None
