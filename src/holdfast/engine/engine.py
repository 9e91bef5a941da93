"""The engine: opens a store and an upstream, and the sessions whose conversations stay inside the window."""

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
from msgspec.structs import replace

from holdfast.config import Catalog, load_configuration
from holdfast.config.files import build_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.concurrency.lanes_and_permits import DEFAULT_PERMITS, Permits
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.environment.environment import Environment
from holdfast.engine.hooks import Hooks
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import Upstream, get_server_name
from holdfast.errors import ConfigError, DeadlineExceeded, raise_if_wrong_type
from holdfast.events import EventListener
from holdfast.planning.pipeline import Policy
from holdfast.providers.registry import get_api_spec
from holdfast.state.target import Target
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store
from holdfast.telemetry.switch import load_telemetry

# From OpenClaw. Long enough for most answers under way to be stored; a program that closes its engine wants to end.
CLOSE_TIMEOUT = 60.0
"""Seconds that runs have to end when the engine closes."""


class Engine:
    """Opens sessions of one store. Use ``Engine.open`` as ``async with``.

    An engine belongs to the event loop and the process in which it was opened. Anywhere else its methods, and those of
    its sessions, raise ``OperationAborted``.
    """

    def __init__(self, resources: EngineResources, policy: Policy) -> None:
        self.resources = resources
        self.policy = policy
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """Sessions by key: all open ones, and closed ones that were not evicted yet. See `_evict_closed_sessions`."""

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
        telemetry: bool | None = None,
        telemetry_content: bool | None = None,
    ) -> AsyncIterator[Engine]:
        """Open the store at ``place`` for sessions answered by ``upstream``.

        ``place`` is a path, a URL, or a store; ``upstream`` an ``Upstream`` or an official SDK's client.

        ``api`` and ``model`` (or a ``target``) are for requests made from messages. Such requests also have the
        ``fields``, which take precedence over those of the ``environment``. A whole request body brings its own.

        ``summary_model`` (of the same upstream) and ``writers`` are models that write summaries, tried in turn.
        ``native`` lets the provider compact if its API can. Without any of them a compaction makes an extract.

        ``listen`` is a plain function that is called with every event. At most ``permits`` model calls run at once.
        ``telemetry`` switches OpenTelemetry's spans and metrics on or off; None leaves it to ``HOLDFAST_TELEMETRY``.
        ``telemetry_content`` adds the words of requests and answers; None leaves it to ``HOLDFAST_TELEMETRY_CONTENT``.

        With ``check`` a request that breaks a rule of its API raises ``InvalidRequest`` before it is sent.

        Raises ``ConfigError`` for arguments of another kind, and outside of an asyncio event loop.
        """
        _require_running_loop()
        config = load_configuration()
        if isinstance(policy, str):
            chosen_policy = config.build_policy(policy)
        else:
            chosen_policy = policy
        raise_if_wrong_type(
            ConfigError,
            policy=(chosen_policy, Policy),
            target=(target, Target | None),
            hooks=(hooks, Hooks),
        )
        if target and target.validation_problem:
            raise ConfigError(target.validation_problem.why)
        raise_if_wrong_type(
            ConfigError,
            environment=(environment, Environment | None),
            listen=(listen, Callable | None),
        )
        is_async = iscoroutinefunction(listen) or iscoroutinefunction(getattr(listen, "__call__", None))  # noqa: B004
        if is_async:
            raise ConfigError(
                "listen is an async function, which the engine does not await; give a plain function, or use a hook"
            )
        raise_if_wrong_type(
            ConfigError,
            fields=(fields, Mapping),
            writers=(writers, Sequence),
        )
        raise_if_wrong_type(
            ConfigError,
            permits=(permits, int),
            telemetry=(telemetry, bool | None),
            telemetry_content=(telemetry_content, bool | None),
            model=(model, str),
            api=(api, str),
        )
        raise_if_wrong_type(
            ConfigError, **{f"writers[{at}]": (writer, SummaryWriter) for at, writer in enumerate(writers)}
        )
        wrapped_upstream = wrap_upstream(upstream, api)
        if target is None:
            default_target = _find_model_target(api, model, config.catalog, wrapped_upstream)
        else:
            default_target = _doubt_told_provider(target, config.catalog, wrapped_upstream)
        default_api = api or (default_target.api if default_target is not None else "")
        resources = EngineResources(
            upstream=wrapped_upstream,
            target=default_target,
            fields=fields,
            environment=environment,
            writers=(
                *[writer.with_upstream() for writer in writers],
                *_make_summary_writers(wrapped_upstream, default_api, summary_model, config.catalog),
            ),
            native_compaction=native,
            hooks=hooks,
            listener=listen,
            telemetry=load_telemetry(telemetry, telemetry_content),
            permits=Permits(permits),
            check_mode="all" if check else "none",
            catalog=config.catalog,
            # Last: if anything failed after it, the store would stay open.
            store=_resolve_store(place),
        )
        resources.owner.require()
        engine = cls(resources, chosen_policy)
        is_callers_store = resources.store is place
        with nullcontext() if is_callers_store else closing(resources.store):
            try:
                yield engine
            finally:
                await engine._close()

    async def session(self, key: str, *, leaf: str | None = None) -> Session:
        """Return the session called ``key``, creating it if needed; with ``leaf`` a fork of it after that entry.

        The same key gives the same object until that is closed. User messages that waited for an answer when the
        program last ended are delivered with the session's next request.
        """
        raise_if_wrong_type(ConfigError, key=(key, str), leaf=(leaf, str | None))
        resources = self.resources

        def open_journal() -> Journal:
            return Journal.open(
                resources.store,
                key,
                self.policy,
                leaf=leaf,
                clock=resources.clock,
                ids=resources.make_ids,
            )

        if leaf is not None:
            return Session(resources, await resources.run_in_worker(open_journal))
        known_session = self._sessions.get(key)
        if known_session is not None and await self._is_usable(known_session):
            return known_session
        journal = await resources.run_in_worker(open_journal)
        current_session = self._sessions.get(key)
        if current_session is not None and current_session is not known_session:
            return current_session  # another task opened it meanwhile
        session = self._sessions[key] = Session(resources, journal)
        self._evict_closed_sessions()
        return session

    async def _is_usable(self, session: Session) -> bool:
        """Return whether a session is open and still in the store; somebody may have removed it from there."""
        if _is_session_closed(session):
            return False
        return await self.resources.run_in_worker(session.journal.is_still_stored)

    def _evict_closed_sessions(self) -> None:
        """Check the two sessions that were checked longest ago, and forget them if they are closed.

        Two for each session that is opened: closed ones then cannot pile up, and opening takes constant time.
        """
        for key in list(islice(self._sessions, 2)):
            if _is_session_closed(self._sessions[key]):
                del self._sessions[key]
            else:
                self._sessions.move_to_end(key)

    async def _close(self) -> None:
        """Accept no new work, and wait up to ``CLOSE_TIMEOUT`` for the runs under way.

        Does nothing in a forked child that leaves the block: the engine is its parent's.
        """
        if self.resources.owner.is_forked:
            return
        self.resources.owner.require()
        await self.resources.server_windows.close()
        for tracker in list(self.resources.compaction_trackers):
            tracker.close()
        with CancelScope(shield=True), suppress(DeadlineExceeded):
            await self.resources.lanes.drain(deadline=CLOSE_TIMEOUT)


def _require_running_loop() -> None:
    """Raise ``ConfigError`` if no asyncio event loop is running, which worker and lanes need."""
    try:
        get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "an engine works in asyncio's event loop, and none is running here; call it from asyncio.run, "
            'anyio.run(main, backend="asyncio"), or use holdfast.sync, under trio in a thread'
        ) from None


def _is_session_closed(session: Session) -> bool:
    return session.compaction_tracker.status.is_closed


def _resolve_store(place: str | os.PathLike[str] | SessionStore) -> SessionStore:
    """Open the store at ``place``, or return the store that it is. Raises ``ConfigError`` if it is neither."""
    if isinstance(place, str | os.PathLike):
        return open_store(place)
    if not hasattr(place, "hold_lease"):
        raise ConfigError(f"place is of type {type(place).__name__}; give the path of a store, or a store")
    return place


def _make_summary_writers(
    upstream: Upstream,
    api: str,
    model: str,
    catalog: Catalog,
) -> list[SummaryWriter]:
    """Return a writer for ``model``, or an empty list if no model is named."""
    if model and not api:
        raise ConfigError(
            f"summary_model={model!r} names no API; give Engine.open api=… too, or writers=[SummaryWriter(…)]"
        )
    target = _find_model_target(api, model, catalog, upstream)
    return [] if target is None else [SummaryWriter(upstream, target)]


def _find_model_target(api: str, model: str, catalog: Catalog, upstream: Upstream) -> Target | None:
    """Return the target for ``model`` on ``api`` at the provider of ``upstream``; None if model or API is not given."""
    if not api or not model:
        return None
    api = get_api_spec(api).api
    provider = catalog.find_provider(api, model, address=get_server_name(upstream))
    return build_target(catalog, api, model, provider)


def _doubt_told_provider(target: Target, catalog: Catalog, upstream: Upstream) -> Target:
    """Return ``target``, with a note if its provider is but a guess from the model's name at the upstream's address.

    A target is made before anybody knows where its requests go.
    """
    if target.dialect.provider_told_by != "model":
        return target
    provider = catalog.find_provider(target.api, target.model, address=get_server_name(upstream))
    if not provider.is_guess:
        return target
    return replace(target, dialect=replace(target.dialect, provider_told_by="guess"))
