"""A session: one conversation that may be called again and again, and never has to think of the window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from math import inf
from typing import Any

from msgspec import Struct

from holdfast.errors import Aborted, ConfigError, FormatError, UnknownId, WindowTooSmall
from holdfast.model.branch import Branch
from holdfast.model.entries import Compaction
from holdfast.model.messages import Message, media_of
from holdfast.model.plan import Plan
from holdfast.model.projected import project
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.policy.guard import in_force, measure_room
from holdfast.policy.settings import Settings
from holdfast.runtime import compacting, recall
from holdfast.runtime.attempt import Attempt, said_by
from holdfast.runtime.beginning import Begun, begun, read
from holdfast.runtime.hooks import called
from holdfast.runtime.inflight import InFlight
from holdfast.runtime.journal import Journal, Prepared
from holdfast.runtime.means import Means
from holdfast.runtime.replies import as_said
from holdfast.runtime.requests import Asked, Request, Way, checked, of_words, words
from holdfast.runtime.running import Run
from holdfast.runtime.summarise import Prefix, Writer
from holdfast.runtime.upstream import Upstream
from holdfast.telemetry import events
from holdfast.view.paging import Page
from holdfast.view.tokens import estimate
from holdfast.wire.answers import Answer
from holdfast.wire.lens import Lens
from holdfast.wire.overflow import ErrorReport, Verdict, classify

ABORTED = "aborted"
"""How an answer ends that was not told to its end."""
MENDED = "what was said breaks this rule: it goes out mended, and stays in the log as it came"
"""What is told of a request whose conversation its API would refuse."""
SMALL = 4
"""[H] Times that the messages must be as large as system and tools, for a limit of bytes to be one of messages."""
_OF_BYTES = frozenset({"request_bytes", "oversized_part"})
"""Overflows that say nothing of tokens, unless they name some."""


class Report(Struct, frozen=True):
    """How full the context of a session is: tokens, estimated and calibrated by what the provider told."""

    session: str
    api: str
    model: str
    tokens: int
    """Of the next request, as it stands."""
    window: int
    origin: str
    """Where the window came from; ``learned`` = from an overflow."""
    usable: int
    """What a request may hold: the window less what is kept free for the answer."""
    frame: int
    """System prompt and tools."""
    messages: int
    """All that were said, shown or not."""
    compactions: int
    """Compactions in force."""
    decisions: int
    """Decisions in force."""
    policy: str

    @property
    def share(self) -> float:
        """How much of the window the next request takes."""
        return self.tokens / self.window


class Session:
    """One branch of one stored session and whoever answers it. Its runs go one after the other, in order."""

    def __init__(self, means: Means, journal: Journal) -> None:
        self.means = means
        self.journal = journal
        self.inflight = InFlight()
        means.flights.add(self.inflight)
        self.prefix: Prefix | None = None
        """The last request that was answered, as the provider's cache holds it."""
        self._handed_out: Prepared | None = None
        """The request that the caller sends."""
        self._runs = 0
        self.unwritten: tuple[int, int | None] = (0, None)
        """How many summaries in a row came to nothing, and when the last one did, in ms since 1970."""
        self._answering = False
        """Whether a request is on its way. Set where it is committed, in the worker, so that no words slip between."""
        self._coming = 0
        """How many calls of ``append`` are in the worker, or on their way there."""
        self._noticed: set[tuple[str, str]] = set()
        self._lane = self.key if journal.follows else f"{self.key}/{id(self)}"
        """Stays the same where the branch parts from the session's."""

    # -- what authors call ---------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def settings(self) -> Settings:
        """The numbers of the policy that decides here."""
        return self.journal.policy.settings

    @property
    def api(self) -> str:
        """The API of requests that are made of words."""
        return self.target().api

    async def append(self, *said: str | Message | Slot) -> list[str]:
        """Store messages; they survive a crash from here on. Returns the ids of their entries.

        While an answer is on its way a user's words wait behind it, and are said once it is there.
        """
        told = [await self.offered(one) for one in words(said)]
        self._coming += 1
        try:
            return await self.means.stored(lambda: self._appended(told))
        finally:
            self._coming -= 1

    async def ask(self, *said: str | Message | Slot, deadline: float | None = None) -> Answer:
        """Say something (or nothing, to go on behind tool results) and return the model's answer, which is in the log.

        ``deadline`` is in seconds; a compaction under way extends it once. Raises ``DeadlineExceeded`` then,
        ``UpstreamError`` where the provider refuses or does not answer, ``ContextOverflow`` where nothing that could be
        left out is left, ``WindowTooSmall`` before any call.
        """
        with self.inflight.limited(inf if deadline is None else deadline):
            async with self.run(said, quiet=True) as run:
                async for _ in run:
                    pass
        return run.answer

    def run(
        self,
        asked: Asked = None,
        *,
        quiet: bool = False,
        stream: bool | None = None,
        model: str = "",
        upstream: Upstream | None = None,
        as_it_is: bool = False,
        writers: Sequence[Writer] = (),
    ) -> Run:
        """Return a run of ``asked``: nothing, words to append, or a provider's body with the whole conversation.

        Use it as ``async with`` (``with`` where there is no loop) and iterate it for the API's own events. ``quiet``
        gives out none, and may try again where an answer broke off. ``stream`` says whether the provider is asked for
        events; by default as the body says, and for words it is. ``model`` names the model of a body that does not
        (Gemini says it in the address). ``upstream`` answers in place of the engine's; ``as_it_is`` lets the body go
        out as it came, whatever is due. ``writers`` are asked for a summary before the engine's own.
        """
        return Run(self, asked, Way(stream, model, upstream, as_it_is, tuple(writers)), quiet=quiet)

    async def prepare(self, asked: Asked = None) -> Prepared:
        """Return the next request, decided and in the log, without sending it; answer it with ``record``.

        What the user says before that waits behind the answer.
        """
        async with self.lane():
            _, self._handed_out = await self.begun(read(self, asked), Way(stream=False))
            return self._handed_out

    async def record(self, answer: Answer) -> str:
        """Store the answer to the request that ``prepare`` returned; return the id of its message.

        A refusal is none: it is written down, and what an overflow teaches counts for the next request. ``FormatError``
        for what is no answer, ``Aborted`` where no request waits for one.
        """
        if not isinstance(answer, Answer):
            raise FormatError(f"a {type(answer).__name__} is no answer; give what holdfast.wire.answers.answer returns")
        return await self.means.stored(lambda: self._recorded(answer))

    async def compact(self, instructions: str = "") -> events.Compacted:
        """Compact now, whatever the size; ``instructions`` say what a model's summary looks at above all."""
        async with self.lane():
            request = of_words(self.target(), self.fields())
            return await compacting.compact(self, request, instructions)

    async def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Take back the newest decision or compaction in force, or the one called ``id``; return its id."""
        async with self.lane():
            return await self.means.stored(lambda: self.journal.undo(id))

    async def branch(self, entry: str) -> Session:
        """Return a session that goes on behind ``entry``; this one stays where it is. ``UnknownId`` for any other."""
        return Session(self.means, await self.means.stored(lambda: self.journal.fork(_named(entry))))

    async def recall(self, id: str = "", **where: Any) -> Page:  # noqa: A002
        """Return a page of a text that was stored away, or of what an entry says; see ``holdfast.runtime.recall``."""
        store, key = self.means.store, self.key
        return await self.means.stored(lambda: recall.recall(store, key, _named(id), **where))

    def report(self) -> Report:
        """Return how full the context is."""
        branch, settings = self.journal.branch, self.settings
        target = in_force(of_words(self.target(), self.fields()).target, branch, settings)
        room = measure_room(target, settings)
        compactions = sum(isinstance(what, Compaction) for _, what in branch.law)
        return Report(
            session=self.key,
            api=target.api,
            model=target.model,
            tokens=estimate(branch, target),
            window=room.window,
            origin=target.limits.origin,
            usable=room.usable,
            frame=room.frame,
            messages=len(branch.slots),
            compactions=compactions,
            decisions=len(branch.law) - compactions,
            policy=self.journal.policy.name,
        )

    async def wait_for_compaction(self) -> None:
        """Return when no compaction, and no request after one, is under way."""
        await self.inflight.wait()

    def close(self) -> None:
        """Stop a compaction under way and turn away those that wait for it; runs may still end."""
        self.inflight.unsubscribe()

    # -- what runs call ------------------------------------------------------------------------------------------------

    def lane(self) -> AbstractAsyncContextManager[None]:
        """Return the lane of this branch, to be held by one run at a time."""
        return self.means.lanes.hold(self._lane)

    def tell(self, event: events.Event) -> None:
        """Tell the engine's listener; the same notice is told once."""
        if isinstance(event, events.Noticed):
            if (event.rule, event.why) in self._noticed:
                return
            self._noticed.add((event.rule, event.why))
        self.means.tell(event)

    async def unfit(self, error: WindowTooSmall) -> None:
        """Write down, and tell, why nothing could be sent; the same is said once."""
        event = events.Noticed(self.key, "window-too-small", str(error))
        if (event.rule, event.why) not in self._noticed:
            self.tell(event)
            await self.means.stored(lambda: self.journal.fail(f"{event.rule}: {event.why}"))

    def restored(self) -> tuple[str, ...]:
        """Return the texts that stand behind a summary again: rules that changed, skills that were used, the plan."""
        environment, branch = self.means.environment, self.journal.branch
        if environment is None:
            return ()
        summary = branch.compaction.summary if branch.compaction is not None else None
        shown = [slot.message for slot in branch.slots.slice(branch.keep)]
        return environment.restored(shown if summary is None else [summary, *shown])

    async def compacted(self, event: events.Compacted) -> None:
        """Tell what became of a compaction, the hook too."""
        self.tell(event)
        await self.hooked("after_compaction", event)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let a user's words wait from the block's first committed request to its end: an answer is on its way."""
        self._runs += 1
        try:
            yield
        finally:
            self._runs -= 1
            self._answering = self._answering and self._runs > 0

    async def delivered(self) -> None:
        """Say what came while the answer was being stored."""
        if self._coming or self.journal.may_wait:
            await self.means.stored(self.journal.deliver)

    async def begun(self, said: Lens | list[Message | Slot], way: Way = Way()) -> tuple[Begun, Prepared]:
        """Return how the request of a body or of words begins, and what it shows, decided and in the log."""
        first = await begun(self, said, way)
        if first.prepared is None:
            return first, await self.prepared(first.request, first.world, first.plan)
        await self._announced(first.plan, first.prepared, first.world)
        return first, first.prepared

    async def world(self, request: Request) -> World:
        """Return what the planner is told of the world now."""
        return await self.means.stored(lambda: compacting.world(self, request))

    async def prepared(self, request: Request, world: World, plan: Plan | None = None) -> Prepared:
        """Return the next request for ``request``, decided and in the log; ``plan`` is the one to begin with."""
        while True:
            plan, known = await compacting.planned(self, request, world, plan)
            prepared = await self._decided(request, plan, known)
            if prepared is not None:
                return prepared
            plan = None

    async def smaller(self, request: Request, world: World, rung: str) -> tuple[Request, Prepared] | str:
        """Return the request planned anew under pressure, or why it would not be smaller; then nothing is written."""
        while True:
            plan, known = await compacting.planned(self, request, world, trigger="overflow")
            useless = compacting.useless(plan, rung)
            if useless:
                await compacting.made(self, plan, known, useless)
                return useless
            prepared = await self._decided(request, plan, known)
            if prepared is not None:
                return request, prepared

    async def attempt(self, request: Request, prepared: Prepared, *, quiet: bool) -> Attempt:
        """Return an attempt to have ``prepared`` answered; nothing was sent yet. Raises ``InvalidRequest``."""
        slots: Sequence[Slot] = await self._transformed(prepared.slots)
        as_planned = [*map(id, slots)] == [*map(id, prepared.slots)]
        sent = request.sent(prepared, slots)
        if self.means.check == "all" or (self.means.check == "changed" and not request.is_own(sent.body)):
            sent, rule = checked(sent, mends=as_planned)
            if rule:
                self.tell(events.Noticed(self.key, rule, MENDED))
        plan = prepared.plan
        self.tell(events.Sending(self.key, len(slots), plan.after, prepared.target.limits.window))
        upstream = request.way.upstream or self.means.upstream
        return Attempt(upstream, sent, prepared, quiet=quiet, as_planned=as_planned)

    async def refused(self, attempt: Attempt) -> None:
        """Write down that an attempt failed, and what an overflow teaches."""
        verdict, why = attempt.verdict, attempt.why
        told = events.Refused(self.key, verdict.kind, why, verdict.limit or 0, verdict.requested or 0)
        self.tell(told)
        if verdict.is_overflow:
            await self.hooked("on_overflow", told)
        as_planned = attempt.as_planned
        if _teaches(verdict, self.journal.branch):
            await self.means.stored(lambda: self._written_down(verdict, why, as_planned=as_planned))
            await self.interrupted(attempt)
        elif not await self.interrupted(attempt):
            await self.means.stored(lambda: self._written_down(verdict, why))

    async def interrupted(self, attempt: Attempt) -> bool:
        """Return whether a part of an answer was given out; it is then in the log, as one that was interrupted."""
        said, usage, _ = as_said(attempt.so_far, attempt.target.api, attempt.target.model)
        if not (attempt.seen and said.message.parts):
            return False
        await self.means.stored(lambda: self.journal.record(said, usage, ABORTED, as_planned=attempt.as_planned))
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _decided(self, request: Request, plan: Plan, world: World) -> Prepared | None:
        """Return the request of ``plan``, once what it decides is in the log and told; nothing where more was said."""
        prepared = await self.means.stored(lambda: self.committed(plan, request.target, world))
        if prepared is not None:
            await self._announced(plan, prepared, world)
        return prepared

    async def _announced(self, plan: Plan, prepared: Prepared, world: World) -> None:
        """Tell what was decided, unless it is the same request again: that was told before."""
        if prepared.plan is not plan:
            await compacting.made(self, prepared.plan, world)
            self._told(prepared.plan)

    def committed(self, plan: Plan, target: Target, world: World) -> Prepared | None:
        """Commit the request of ``plan``; from then on a user's words wait for its answer."""
        prepared = self.journal.commit(plan, target, world)
        self._answering = self._answering or prepared is not None
        return prepared

    def _recorded(self, answer: Answer) -> str:
        """Record what became of a request that the caller sent; return the id of the message, or of what it is else."""
        prepared, journal = self._handed_out, self.journal
        if prepared is None:
            raise Aborted("no request waits for an answer: each is answered once; call prepare for the next one")
        slot, usage, stop = as_said(answer, prepared.target.api, prepared.target.model)
        if answer.error is not None:
            id_ = self._refused(answer, prepared)
        else:
            id_ = journal.record(slot, usage, stop) if slot.message.parts else journal.silent(usage, stop)
            self._handed_out = None
        self._answering = False
        return id_

    def _refused(self, answer: Answer, prepared: Prepared) -> str:
        """Write down that a request of the caller's was refused; return the id of the entry."""
        report = answer.report(prepared.plan.after)
        verdict = classify(report)
        return self._written_down(
            verdict, said_by(report, verdict) if isinstance(report, ErrorReport) else verdict.kind
        )

    def _written_down(self, verdict: Verdict, why: str, *, as_planned: bool = True) -> str:
        """Write a refusal into the log, as a lesson where it teaches one; return the entry's id."""
        reason = f"{verdict.kind}: {why}"
        if not _teaches(verdict, self.journal.branch):
            return self.journal.fail(reason)
        return self.journal.learn(reason, verdict.limit or 0, verdict.requested or 0, as_planned=as_planned)

    def _appended(self, said: Sequence[Message | Slot]) -> list[str]:
        """Append messages behind those that waited, or let them wait; return the ids of their entries."""
        waiting = [one for one in said if isinstance(one, Message) and one.role == "user"]
        if self._answering and len(waiting) == len(said):
            return self.journal.wait(*waiting)
        if not self._answering:
            self.journal.deliver()
        return self.journal.append(*said)

    def _told(self, plan: Plan) -> None:
        """Tell what ``plan`` decided."""
        rules: dict[str, list[int]] = {}
        for edit in plan.record:
            rules.setdefault(edit.rule, []).append(edit.saves)
        for rule, saves in rules.items():
            self.tell(events.Decided(self.key, rule, len(saves), sum(saves)))
        for notice in plan.notices:
            self.tell(events.Noticed(self.key, notice.rule, notice.why))

    async def hooked(self, name: str, *given: Any) -> Any:
        """Return what the hook called ``name`` says; nothing where there is none, or where it fails."""
        return await called(self.means.hooks, name, *given, tell=self.tell, session=self.key)

    async def offered(self, said: Message | Slot) -> Message | Slot:
        """Return ``said`` as the hook wants it appended."""
        if not isinstance(said, Message):
            return said
        changed = await self.hooked("on_append", said)
        return said if changed is None else changed

    async def _transformed(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Return the slots as the hook wants this request to show them."""
        if self.means.hooks.transform_messages is None:
            return slots
        changed = await self.hooked("transform_messages", [slot.message for slot in slots])
        if changed is None:
            return slots
        known = {id(slot.message): slot for slot in slots}
        return [known.get(id(message)) or Slot(message) for message in changed]

    def target(self) -> Target:
        """Return the target of requests that are made of words; ``ConfigError`` where there is none."""
        if self.means.target is None:
            raise ConfigError("this engine knows no model; give Engine.open api=… and model=…, or a whole request body")
        return self.means.target

    def fields(self) -> Mapping[str, Any]:
        """Return the fields beside the messages of requests that are made of words."""
        environment = self.means.environment
        told = {} if environment is None else environment.fields(self.api)
        return {**told, **self.means.fields}


def _named(id: str) -> str:  # noqa: A002
    """Return ``id``, where it is a name at all."""
    if not isinstance(id, str):
        raise UnknownId(f"a {type(id).__name__} names nothing; give the id of an entry, or how it begins, as a text")
    return id


def _teaches(verdict: Verdict, branch: Branch) -> bool:
    """Whether a refusal of what ``branch`` shows says something of its tokens.

    So do bytes where all they are is words, and most of them the conversation's.
    """
    if not verdict.is_overflow or verdict.kind not in _OF_BYTES or verdict.limit or verdict.requested:
        return verdict.is_overflow
    shows_media = branch.media and any(media_of(slot.message) for slot in project(branch))
    is_talk = SMALL * branch.frame.tokens <= branch.held
    return verdict.kind == "request_bytes" and is_talk and not shows_media
