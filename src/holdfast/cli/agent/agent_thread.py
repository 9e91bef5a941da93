"""One session with the agent: its loop runs in a thread of its own, and the terminal reads one queue of events.

This keeps ^C responsive: it stops the running task, and a second one leaves. SIGTERM and SIGHUP do the same.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from types import FrameType
from typing import TypeVar

import click
from anyio import CancelScope, Event
from anyio.from_thread import BlockingPortal
from click.exceptions import Exit
from msgspec import Struct

from holdfast.agent.agent import load_agent_environment, make_session_workspace
from holdfast.agent.loop import TaskOutcome, run_agent
from holdfast.agent.workspace import PermissionCallback, allow_command, deny_command
from holdfast.cli.agent.meter import SessionCost, format_cost_status, sum_costs
from holdfast.cli.agent.screen import AgentScreen
from holdfast.cli.files.user_paths import open_named_store
from holdfast.cli.output.errors import CommandError
from holdfast.cli.provider_access import KEY_VARIABLES
from holdfast.config import Catalog
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.session import Session
from holdfast.engine.sync import WAIT_SLICE_SECONDS, run_event_loop
from holdfast.engine.upstream.upstream import HttpUpstream
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.pipeline import Policy
from holdfast.state.target import Target
from holdfast.store.base import SessionStore

HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")

_GENERATED_KEY = re.compile(r"[0-9a-f-]{12,}")
"""A generated session key, as opposed to a name that the user chose."""


class AgentConfiguration(Struct, frozen=True):
    """The agent's configuration, resolved from the command line."""

    target: Target
    url: str
    headers: dict[str, str]
    folder: Path
    policy: Policy
    session_key: str
    """Key or name of the session."""
    resume_command: str
    """The command that resumes the session."""
    store: str | None
    skills: tuple[str, ...]
    summary_target: Target | None
    """The model that writes summaries."""
    catalog: Catalog
    """The prices of models that wrote earlier summaries."""
    must_exist: bool
    """Whether the session must already exist."""
    has_task: bool
    """Whether there is a task to begin a new session with."""
    steps: int
    is_streaming: bool
    allows_all: bool
    """Whether every command may run."""
    can_ask: bool
    """Whether somebody can be asked for permission."""


class PermissionQuestion:
    """A shell command that waits for permission."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.is_allowed = False
        self.answered = Event()


class AgentTerminal:
    """The session, and the actions that the terminal offers on it."""

    def __init__(
        self,
        portal: BlockingPortal,
        session: Session,
        agent_configuration: AgentConfiguration,
        screen: AgentScreen,
        end: TerminationState,
    ) -> None:
        self.session = session
        self.order = agent_configuration
        self.screen = screen
        self.end = end
        self.queue: SimpleQueue[object] = SimpleQueue()
        self._portal = portal
        self._scope: CancelScope | None = None
        self._allows_all = agent_configuration.allows_all

    @property
    def store(self) -> SessionStore:
        """The store that holds the session."""
        return self.session.resources.store

    def run_task(self, task: str) -> TaskOutcome:
        """Work on ``task`` and return the outcome; an empty task resumes the session."""
        place = make_session_workspace(
            self.session,
            self.order.folder,
            allow=self._choose_permission(),
            hidden=KEY_VARIABLES,
        )
        agent_configuration = self.order
        session = self.session
        put_event = self.queue.put

        async def go(scope: CancelScope) -> TaskOutcome:
            return await run_agent(
                session,
                task,
                place,
                max_steps=agent_configuration.steps,
                listener=put_event,
                streams_text=agent_configuration.is_streaming,
                scope=scope,
            )

        return self.run_in_portal(go)

    def run_stoppable(self, do: Callable[[], Awaitable[T]]) -> T | None:
        """Run ``do`` and return its result, or None if it was stopped."""

        async def go(scope: CancelScope) -> T | None:
            with scope:
                return await do()
            return None

        return self.run_in_portal(go)

    def run_in_portal(self, do: Callable[[CancelScope], Awaitable[T]]) -> T:
        """Run ``do`` in the loop's thread and return its result, showing events meanwhile.

        ^C stops it, and a second ^C raises ``KeyboardInterrupt``.
        """

        async def going() -> T:
            self._scope = CancelScope()
            return await do(self._scope)

        future = self._portal.start_task_soon(going)
        # A list, because ^C inside future.done() could leave its lock held.
        finished: list[object] = []
        future.add_done_callback(finished.append)
        # Wakes the wait for the next event, which would otherwise notice the end only after its timeout.
        future.add_done_callback(self.queue.put)
        is_stopping = False
        try:
            while True:
                try:
                    if finished and self.queue.empty():
                        return future.result()
                    self._show_next()
                except (KeyboardInterrupt, click.Abort):
                    if is_stopping:
                        raise KeyboardInterrupt from None
                    is_stopping = True
                    # The scope belongs to the thread of the event loop and must be cancelled there.
                    self._portal.start_task_soon(self._cancel_scope)
                    if not self.end.signal_number:
                        self.screen.print_note("stopping; ^C again leaves at once", "yellow")
        except BaseException:
            # Whoever leaves must not wait for the task, however fast the second ^C came.
            self._portal.start_task_soon(self._cancel_scope)
            raise

    def get_cost(self) -> SessionCost:
        """Return the cost of the session so far."""
        # A summary written by a model has no answer entry: its usage is in a note.
        entries = [
            *self.store.read_entries(self.session.key, "answer"),
            *self.store.read_entries(self.session.key, "note"),
        ]
        return sum_costs(entries, self.order.target.prices, self.order.catalog)

    def format_status(self) -> str:
        """Return the status line: how full the context is, and the money spent."""
        return format_cost_status(self.session.report(), self.get_cost())

    def _show_next(self) -> None:
        """Show the next event, if one arrives soon.

        Waits are short because a ^C that arrives just before a wait is noticed only when the wait ends.
        """
        with suppress(Empty):
            item = self.queue.get(timeout=WAIT_SLICE_SECONDS)
            if isinstance(item, PermissionQuestion):
                self._ask_permission(item)
            else:
                self.screen.show_event(item)

    def _ask_permission(self, question: PermissionQuestion) -> None:
        self.screen.print_note(f"the agent wants to run: {question.command}", "bold yellow")
        answer = click.prompt(
            "allow? [y]es, [N]o, [a]ll from now on",
            default="n",
            show_default=False,
            err=True,
        )
        choice = answer.strip().lower()
        if choice in ("a", "all"):
            self._allows_all = True
        question.is_allowed = self._allows_all or choice in ("y", "yes")
        self._portal.call(question.answered.set)

    def _choose_permission(self) -> PermissionCallback:
        if self.order.allows_all:
            return allow_command
        # Without a terminal nobody can answer, and a question would wait for ever.
        if not self.order.can_ask:
            return deny_command
        return self._wait_for_permission

    async def _wait_for_permission(self, command: str) -> bool:
        if self._allows_all:
            return True
        question = PermissionQuestion(command)
        self.queue.put(question)
        await question.answered.wait()
        return question.is_allowed

    def _cancel_scope(self) -> None:
        if self._scope is not None:
            self._scope.cancel()


@contextmanager
def open_agent_terminal(agent_configuration: AgentConfiguration, screen: AgentScreen) -> Iterator[AgentTerminal]:
    """Open the store, the provider and the session of ``agent_configuration``, and close them at the end."""
    surrounding = load_agent_environment(agent_configuration.folder, skills=agent_configuration.skills)
    for notice in surrounding.notices:
        screen.print_note(f"warning: {notice}", "yellow")
    queues: list[SimpleQueue[object]] = []

    def forward_event(event: object) -> None:
        for queue in queues:
            queue.put(event)

    with (
        handle_termination(screen) as end,
        open_named_store(agent_configuration.store) as store,
        run_event_loop() as loop,
    ):
        portal = loop.portal
        upstream = HttpUpstream(agent_configuration.url, agent_configuration.target.api, agent_configuration.headers)
        writers: tuple[SummaryWriter, ...] = ()
        if agent_configuration.summary_target is not None:
            writers = (SummaryWriter(upstream, agent_configuration.summary_target),)
        engine = Engine.open(
            store,
            upstream=upstream,
            target=agent_configuration.target,
            policy=agent_configuration.policy,
            environment=surrounding,
            writers=writers,
            listen=forward_event,
        )
        with portal.wrap_async_context_manager(upstream), portal.wrap_async_context_manager(engine) as there:
            key = _resolve_session_key(store, agent_configuration)
            session = portal.call(there.session, key)
            terminal = AgentTerminal(portal, session, agent_configuration, screen, end)
            # The engine exists before the terminal that shows its events, so the queue joins the list only now.
            queues.append(terminal.queue)
            screen.share = terminal.session.report().window_share
            yield terminal


def _resolve_session_key(store: SessionStore, agent_configuration: AgentConfiguration) -> str:
    """Return the key of the named session, or the name itself for a new one. Raises ``UnknownId`` if it is ambiguous.

    With a task, a beginning names only sessions with generated keys: ``fix`` may be a new session beside ``fix-login``.
    """
    name = agent_configuration.session_key
    matching_keys = [info.key for info in store.list_sessions() if info.key.startswith(name)]
    if agent_configuration.must_exist and not matching_keys:
        raise CommandError(f"there is no session {clean_single_line(name)!r} to resume; see `holdfast ls`")
    if not matching_keys or name in matching_keys:
        return name
    has_generated_key = any(map(_GENERATED_KEY.fullmatch, matching_keys))
    if agent_configuration.has_task and not has_generated_key:
        return name
    return store.get_session(name).key


class TerminationState:
    """Whether the system asked the program to end; each such signal counts as a ^C."""

    signal_number = 0
    """The number of the signal, or 0."""

    def handle_signal(self, number: int, _: FrameType | None) -> None:
        """Interrupt the main thread."""
        self.signal_number = number
        raise KeyboardInterrupt


@contextmanager
def handle_termination(screen: AgentScreen) -> Iterator[TerminationState]:
    """Make SIGTERM and SIGHUP stop the block as ^C does, and exit with 128 plus the signal, as shells do.

    Signals that are ignored (``nohup``) stay ignored, and outside of the main thread no handler is installed.
    """
    end = TerminationState()
    handlers_before = {}
    # Python delivers signals to the main thread only, and refuses handlers set in another one.
    if current_thread() is main_thread():
        for signum in HANDLED_SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                handlers_before[signum] = signal.signal(signum, end.handle_signal)
    try:
        yield end
    finally:
        for signum, handler in handlers_before.items():
            signal.signal(signum, handler)
        if end.signal_number:
            name = signal.Signals(end.signal_number).name
            # After SIGHUP the terminal may be closed.
            with suppress(OSError):
                screen.print_note(f"ended by {name}; nothing was left half-written", "yellow")
            raise Exit(128 + end.signal_number)
