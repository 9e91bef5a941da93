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

from holdfast.config import Catalog, configuration
from holdfast.config import target as known_target
from holdfast.engine.compaction.summarizer import Writer
from holdfast.engine.concurrency.lanes import PERMITS, Permits
from holdfast.engine.engine_resources import Means
from holdfast.engine.environment.environment import Environment
from holdfast.engine.hooks import Hooks
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.engine.upstream.sdk import as_upstream
from holdfast.engine.upstream.upstream import Upstream
from holdfast.errors import ConfigError, DeadlineExceeded, check_types
from holdfast.events import Listener
from holdfast.planning.pipeline import Policy
from holdfast.providers.registry import form_of
from holdfast.state.target import Target
from holdfast.store import open_store
from holdfast.store.base import SessionStore

CLOSING = 60.0
"""Seconds that runs have to end when the engine closes. [O]"""


class Engine:
    """Opens sessions of one store. Use ``Engine.open`` as ``async with``."""

    def __init__(self, means: Means, policy: Policy) -> None:
        self.means = means
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
        writers: Sequence[Writer] = (),
        native: bool = False,
        hooks: Hooks = Hooks(),
        listen: Listener | None = None,
        permits: int = PERMITS,
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
        _check_loop()
        known = configuration()
        chosen = known.policy(policy) if isinstance(policy, str) else policy
        check_types(ConfigError, policy=(chosen, Policy), target=(target, Target | None), hooks=(hooks, Hooks))
        if target and target.fault:
            raise ConfigError(target.fault.why)
        check_types(ConfigError, environment=(environment, Environment | None), listen=(listen, Callable | None))
        if iscoroutinefunction(listen) or iscoroutinefunction(getattr(listen, "__call__", None)):  # noqa: B004
            raise ConfigError("listen is an async def, which nobody would wait for; give a plain function, or a hook")
        check_types(ConfigError, fields=(fields, Mapping), writers=(writers, Sequence))
        check_types(ConfigError, permits=(permits, int), model=(model, str), api=(api, str))
        check_types(ConfigError, **{f"writers[{at}]": (one, Writer) for at, one in enumerate(writers)})
        answers = as_upstream(upstream, api)
        goal = target or _target(api, model, known.catalog)
        spoken = api or (goal.api if goal is not None else "")
        means = Means(
            upstream=answers,
            target=goal,
            fields=fields,
            environment=environment,
            writers=(*[one.known() for one in writers], *_writer(answers, spoken, summary_model, known.catalog)),
            native=native,
            hooks=hooks,
            listen=listen,
            permits=Permits(permits),
            check="all" if check else "none",
            catalog=known.catalog,
            store=_store(place),  # last: nothing may fail behind it
        )
        engine = cls(means, chosen)
        with nullcontext() if means.store is place else closing(means.store):
            try:
                yield engine
            finally:
                await engine._close()

    async def session(self, key: str, *, leaf: str | None = None) -> Session:
        """Return the session called ``key``, created if need be; with ``leaf`` the branch that ends there.

        What was said to it while an answer was on its way, before a crash, is said with the next of its verbs.
        """
        check_types(ConfigError, key=(key, str), leaf=(leaf, str | None))
        means = self.means

        def opened() -> Journal:
            return Journal.open(means.store, key, self.policy, leaf=leaf, clock=means.clock, ids=means.ids)

        if leaf is not None:
            return Session(means, await means.in_worker(opened))
        held = self._sessions.get(key)
        if held is not None and not _is_closed(held) and await means.in_worker(held.journal.stands):
            return held
        journal = await means.in_worker(opened)
        other = self._sessions.get(key)
        if other is not None and other is not held:  # another task opened it meanwhile
            return other
        session = self._sessions[key] = Session(means, journal)
        self._let_go()
        return session

    def _let_go(self) -> None:
        """Look at the two sessions that were longest not looked at, and forget those that were closed.

        Two for each that is opened: they grow with those that are open, and no opening takes longer for them.
        """
        for key in list(islice(self._sessions, 2)):
            if _is_closed(self._sessions[key]):
                del self._sessions[key]
            else:
                self._sessions.move_to_end(key)

    async def _close(self) -> None:
        """Take no new work; wait for what runs, and give it up where it does not end in time."""
        for flight in list(self.means.flights):
            flight.unsubscribe()
        with CancelScope(shield=True), suppress(DeadlineExceeded):
            await self.means.lanes.drain(deadline=CLOSING)


def _check_loop() -> None:
    """Raise ``ConfigError`` where no loop of asyncio runs: workers and lanes wait in one."""
    try:
        get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "an engine works in asyncio's event loop, and none is running here; call it from asyncio.run, "
            'anyio.run(main, backend="asyncio"), or use holdfast.engine.sync, under trio in a thread'
        ) from None


def _is_closed(session: Session) -> bool:
    """Return whether nothing begins in a session any more."""
    return session.inflight.flight.is_over


def _store(place: str | os.PathLike[str] | SessionStore) -> SessionStore:
    """Return the store at ``place``; ``ConfigError`` for what is none."""
    if isinstance(place, str | os.PathLike):
        return open_store(place)
    if not hasattr(place, "writing"):
        raise ConfigError(f"place is of type {type(place).__name__}; give the path of a store, or a store")
    return place


def _writer(upstream: Upstream, api: str, model: str, catalog: Catalog) -> list[Writer]:
    """Return who writes summaries with ``model``; nobody without one."""
    if model and not api:
        raise ConfigError(f"summary_model={model!r} says no API; give Engine.open api=… too, or writers=[Writer(…)]")
    goal = _target(api, model, catalog)
    return [] if goal is None else [Writer(upstream, goal)]


def _target(api: str, model: str, catalog: Catalog) -> Target | None:
    """Return all that is known of requests to ``model`` by ``api``, an API that there is; nothing without a model."""
    return known_target(form_of(api).api, model, catalog=catalog) if api and model else None
