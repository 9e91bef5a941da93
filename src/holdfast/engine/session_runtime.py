"""The course of a session: the state that its runs share, and the small steps that they take on it.

What needs a plan, a summary or an answer is done elsewhere, to a ``Course``; this module knows none of that.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any

from holdfast import events
from holdfast.engine.compaction.inflight import InFlight
from holdfast.engine.compaction.summarizer import Prefix
from holdfast.engine.engine_resources import Means
from holdfast.engine.hooks import called
from holdfast.engine.log.journal import Journal, Prepared
from holdfast.engine.run.check_request import Judged
from holdfast.errors import ConfigError, StoreError, WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import Settings
from holdfast.state.costs import Paid, noted
from holdfast.state.plan import Plan
from holdfast.state.target import Target, World

REPAIRED = "session-repaired"
"""Rule of the notice that tells what was damaged in a session and repaired without loss."""


class Course:
    """One branch of one stored session and whoever answers it, as its runs find it one after the other."""

    def __init__(self, means: Means, journal: Journal) -> None:
        self.means = means
        self.journal = journal
        self.inflight = InFlight()
        means.flights.add(self.inflight)
        self.prefix: Prefix | None = None
        """The last request that was answered, as the provider's cache holds it."""
        self.judged: Judged | None = None
        """The last request in which something of ours was judged, and nothing wrong was found."""
        self.unpaid: list[Paid] = []
        """Calls for summaries that the log does not tell of yet."""
        self.is_answering = False
        """Whether a request is on its way. Set where it is committed, in the worker, so that no words slip between."""
        self._runs = 0
        self._loop: AbstractEventLoop | None = None
        """Where they are, or the last of them was."""
        self._coming = 0
        """How many calls of ``append`` are in the worker, or on their way there."""
        self._noticed: set[tuple[str, str]] = set()
        self._lane = self.key if journal.moves_leaf else f"{self.key}/{id(self)}"
        """Stays the same where the branch parts from the session's."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def settings(self) -> Settings:
        """The numbers of the policy that decides here."""
        return self.journal.policy.settings

    @property
    def mends(self) -> bool:
        """Whether a server that we do not know refused what its client wrote: the API's maker's rules hold there."""
        return self.journal.branch.learned.mends

    @property
    def judges(self) -> bool:
        """Whether its API refused what its client wrote, for a rule that we know: it is judged like what is ours."""
        return self.journal.branch.learned.judges

    def target(self) -> Target:
        """Return the target of requests that are made of words; ``ConfigError`` where there is none."""
        if self.means.target is None:
            raise ConfigError("this engine knows no model; give Engine.open api=… and model=…, or a whole request body")
        return self.means.target

    def fields(self) -> Mapping[str, Any]:
        """Return the fields beside the messages of requests that are made of words."""
        environment = self.means.environment
        told = {} if environment is None else environment.fields(self.target().api)
        return {**told, **self.means.fields}

    def lane(self) -> AbstractAsyncContextManager[None]:
        """Return the lane of this branch, to be held by one run at a time."""
        return self.means.lanes.hold(self._lane)

    def note_costs(self) -> None:
        """Write down what summaries cost, in the worker: no answer tells it."""
        calls, self.unpaid = self.unpaid, []
        with suppress(StoreError):  # of a store that takes nothing the request itself tells
            self.journal.remark(*map(noted, calls))

    # -- what is said while an answer is on its way --------------------------------------------------------------------

    async def append(self, said: Sequence[Message | Slot]) -> list[str]:
        """Store messages, the hook asked; a user's words wait while an answer is on its way."""
        self._come()
        told = [await self.offered(one) for one in said]
        self._coming += 1
        try:
            return await self.means.in_worker(lambda: self._appended(told))
        finally:
            self._coming -= 1

    async def offered(self, said: Message | Slot) -> Message | Slot:
        """Return ``said`` as the hook wants it appended."""
        if not isinstance(said, Message):
            return said
        changed = await self.hooked("on_append", said)
        return said if changed is None else changed

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let a user's words wait from the block's first committed request to its end: an answer is on its way."""
        self._come()
        self._runs, self._loop = self._runs + 1, (loop := get_running_loop())
        try:
            yield
        finally:
            self._runs -= not loop.is_closed()
            if not self._runs:
                self.answered()

    def _come(self) -> None:
        """Forget the runs of an event loop that was closed: no answer is on its way there."""
        if self._loop is not None and self._loop.is_closed():
            self._runs, self._loop = 0, None
            self.answered()

    def commit(self, plan: Plan, target: Target, world: World) -> Prepared | None:
        """Commit the request of ``plan``, in the worker; from then on a user's words wait for its answer."""
        prepared = self.journal.commit(plan, target, world)
        self.is_answering = self.is_answering or prepared is not None
        return prepared

    def answered(self) -> None:
        """Let a user's words wait no longer: no answer is on its way."""
        self.is_answering = False

    async def delivered(self) -> None:
        """Say what came while the answer was being stored."""
        if self._coming or self.journal.may_wait:
            await self.means.in_worker(self.journal.deliver)

    def _appended(self, said: Sequence[Message | Slot]) -> list[str]:
        """Append messages behind those that waited; a user's words wait. Return the ids of their entries."""
        if self.is_answering:
            return self.journal.wait(*said)
        self.journal.deliver()
        return self.journal.append(*said)

    # -- who is told ---------------------------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Tell the engine's listener; the same notice is told once."""
        if isinstance(event, events.Noticed):
            if (event.rule, event.why) in self._noticed:
                return
            self._noticed.add((event.rule, event.why))
        self.means.tell(event)

    def tell_repairs(self) -> None:
        """Tell what was repaired in the session since this was asked last."""
        repairs, self.journal.repairs = self.journal.repairs, []
        for repair in repairs:
            self.means.tell(events.Noticed(self.key, REPAIRED, repair))

    async def tell_compacted(self, event: events.Compacted) -> None:
        """Tell what became of a compaction, the hook too."""
        self.tell(event)
        await self.hooked("after_compaction", event)

    async def unfit(self, error: WindowTooSmall) -> None:
        """Write down, and tell, why nothing could be sent; the same is said once."""
        event = events.Noticed(self.key, "window-too-small", str(error))
        if (event.rule, event.why) not in self._noticed:
            self.tell(event)
            await self.means.in_worker(lambda: self.journal.fail(f"{event.rule}: {event.why}"))

    async def hooked(self, name: str, *given: Any) -> Any:
        """Return what the hook called ``name`` says; nothing where there is none, or where it fails."""
        return await called(self.means.hooks, name, *given, tell=self.tell, session=self.key)
