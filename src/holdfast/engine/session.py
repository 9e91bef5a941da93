"""A session: one conversation that may be called again and again, and never has to think of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import Any

from msgspec import Struct

from holdfast import events
from holdfast.engine import recall
from holdfast.engine.compaction.compact import compact, goes_along
from holdfast.engine.compaction.inflight import InFlight
from holdfast.engine.compaction.summarizer import Writer
from holdfast.engine.engine_resources import Means
from holdfast.engine.log.journal import Journal, Prepared
from holdfast.engine.requests import Asked, Way, of_words, words
from holdfast.engine.run import drop_signatures as unsealing
from holdfast.engine.run import record as recording
from holdfast.engine.run.prepare import begun, read
from holdfast.engine.run.run import Run
from holdfast.engine.session_runtime import Course
from holdfast.engine.upstream.sdk import as_upstream
from holdfast.engine.upstream.upstream import Upstream
from holdfast.errors import Aborted, ConfigError, FormatError, UnknownId, WindowTooSmall, check_types
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.messages.text.paging import Page
from holdfast.planning.budget import in_force, measure_room
from holdfast.planning.settings import Settings
from holdfast.providers.overflow import ErrorReport, classify
from holdfast.providers.overflow.signature_errors import refuses_seals
from holdfast.providers.responses import Answer
from holdfast.recovery.machine import may_press
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.target import Target


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
    """Those that shape the next request: one, or none."""
    decisions: int
    """Others that shape it: of what gave way to a compaction none counts any more."""
    policy: str

    @property
    def share(self) -> float:
        """How much of the window the next request takes."""
        return self.tokens / self.window


class Session:
    """One branch of one stored session and whoever answers it. Its runs go one after the other, in order."""

    def __init__(self, means: Means, journal: Journal) -> None:
        self._course = Course(means, journal)
        self._course.tell_repairs()
        self._handed_out: Prepared | None = None
        """The request that the caller sends."""

    @property
    def key(self) -> str:
        """The session's name in the store."""
        return self.journal.key

    @property
    def means(self) -> Means:
        """What it shares with the other sessions of its engine."""
        return self._course.means

    @property
    def journal(self) -> Journal:
        """Its branch of the log."""
        return self._course.journal

    @property
    def inflight(self) -> InFlight:
        """Its compactions as they come and go."""
        return self._course.inflight

    @property
    def settings(self) -> Settings:
        """The numbers of the policy that decides here."""
        return self._course.settings

    @property
    def api(self) -> str:
        """The API of requests that are made of words."""
        return self.target().api

    def target(self) -> Target:
        """Return the target of requests that are made of words; ``ConfigError`` where there is none."""
        return self._course.target()

    def fields(self) -> Mapping[str, Any]:
        """Return the fields beside the messages of requests that are made of words."""
        return self._course.fields()

    async def append(self, *said: str | Message | Slot) -> list[str]:
        """Store messages; they survive a crash from here on. Returns the ids of their entries.

        While an answer is on its way a user's words wait behind it, and are said once it is there.
        """
        return await self._course.append(words(said))

    async def ask(self, *said: str | Message | Slot, deadline: float | None = None) -> Answer:
        """Say something (or nothing, to go on behind tool results) and return the model's answer, which is in the log.

        ``deadline`` is in seconds; a compaction under way extends it once, by ``summary_deadline`` of the
        policy. Raises ``DeadlineExceeded`` then, which tells of a compaction that was under way, ``UpstreamError``
        where the provider refuses or does not answer, ``ContextOverflow`` where nothing that could be left out is left,
        ``WindowTooSmall`` before any call.
        """
        check_types(ConfigError, deadline=(deadline, float | int | None))
        if deadline is not None and isnan(deadline):
            raise ConfigError("deadline is nan; give seconds, or none")
        extra = self.journal.policy.settings.summary_deadline
        seconds = inf if deadline is None else deadline
        with self.inflight.limited(seconds, extra, lambda: _snapshot(self.journal)):
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
        (Gemini says it in the address). ``upstream`` (or an SDK's client) answers in place of the engine's;
        ``as_it_is`` lets the body go out as it came, whatever is due. ``writers`` are asked for a summary before the
        engine's own.
        """
        check_types(ConfigError, writers=(writers, Sequence))
        check_types(ConfigError, **{f"writers[{at}]": (one, Writer) for at, one in enumerate(writers)})
        asker = upstream if upstream is None else as_upstream(upstream)
        way = Way(stream, model, asker, as_it_is, tuple([one.known() for one in writers]))
        return Run(self._course, asked, way, quiet=quiet)

    async def prepare(self, asked: Asked = None) -> Prepared:
        """Return the next request, decided and in the log, without sending it; answer it with ``record``.

        What the user says before that waits behind the answer.
        """
        async with self._course.lane():
            said = read(self._course, asked)
            _, self._handed_out = await begun(self._course, said, Way(stream=False))
            return self._handed_out

    async def record(self, answer: Answer) -> str:
        """Store the answer to the request that ``prepare`` returned; return the id of its message.

        A refusal is none: it is written down, and what an overflow teaches counts for the next request, which leaves
        out what the provider had sealed and takes no more. ``FormatError`` for what is no answer, ``Aborted`` where no
        request waits for one.
        """
        if not isinstance(answer, Answer):
            raise FormatError(
                f"a {type(answer).__name__} is no answer; give what holdfast.providers.responses.answer returns"
            )
        prepared = self._handed_out
        id_ = await self.means.in_worker(lambda: self._recorded(answer))
        if prepared is not None and may_press(self.settings) and _is_sealed(answer, prepared):
            await self._unseal(prepared.target)
        return id_

    async def compact(self, instructions: str = "") -> events.Compacted:
        """Compact now, whatever the size; ``instructions`` say what a model's summary looks at above all.

        Where others went on with the session, and nothing was said here since, it holds for what they said too.
        """
        async with self._course.lane():
            request = of_words(self.target(), self.fields())
            return await compact(self._course, request, instructions)

    async def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Take back the newest decision or compaction in force, or the one called ``id``; return its id."""
        async with self._course.lane():
            return await self.means.in_worker(lambda: self._undone(id))

    async def branch(self, entry: str) -> Session:
        """Return a session that goes on behind ``entry``; this one stays where it is. ``UnknownId`` for any other."""
        return Session(self.means, await self.means.in_worker(lambda: self.journal.fork(_named(entry))))

    async def recall(self, id: str = "", **where: Any) -> Page:  # noqa: A002
        """Return a page of a text that was stored away, or of what an entry says; see ``holdfast.engine.recall``."""
        store, key = self.means.store, self.key
        return await self.means.in_worker(lambda: recall.recall(store, key, _named(id), **where))

    def report(self) -> Report:
        """Return how full the context is."""
        branch, settings = self.journal.branch, self.settings
        target = in_force(of_words(self.target(), self.fields()).target, branch, settings)
        room = measure_room(target, settings)
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
            compactions=int(branch.compaction is not None),
            decisions=_decisions(branch),
            policy=self.journal.policy.name,
        )

    async def wait_for_compaction(self) -> None:
        """Return when no compaction is under way, and no request that one was made for after a refusal.

        That request is waited for until it is answered or has finally failed, whoever wrote the summary. A compaction
        that ran before its request first went out is over once it is made: who wants the answer waits for the run.
        ``Aborted`` where it runs in another event loop, and after ``close``.
        """
        if self.inflight.flight.is_busy:
            self.means.lanes.stay("its compaction cannot be waited for")
        await self.inflight.wait()

    def close(self) -> None:
        """Stop a compaction under way and turn away those that wait for it; runs may still end."""
        self.inflight.unsubscribe()

    async def unfit(self, error: WindowTooSmall) -> None:
        """Write down, and tell, why nothing could be sent; the same is said once."""
        await self._course.unfit(error)

    def _undone(self, id: str | None) -> str:  # noqa: A002
        """Take back a decision where the session goes on; return its id."""
        with self.journal.leased():
            goes_along(self._course)()
            return self.journal.undo(id)

    async def _unseal(self, target: Target) -> None:
        """Decide that the next request leaves out what is sealed; where none is left, that this was no help."""
        journal = self.journal
        if not await unsealing.leave_out(self._course, target, lambda plan: journal.decide(plan, target)):
            await unsealing.show_again(self._course)

    def _recorded(self, answer: Answer) -> str:
        """Record what came of the request that was handed out; return the id of the message, or of what it is else."""
        prepared = self._handed_out
        if prepared is None:
            raise Aborted("no request waits for an answer: each is answered once; call prepare for the next one")
        id_ = recording.handed_in(self.journal, prepared, answer)
        if answer.error is None:
            self._handed_out = None
        self._course.answered()
        return id_


def _snapshot(journal: Journal) -> str:
    """Describe what a session goes on with: its newest entry, how many messages there are, and what hides some."""
    branch = journal.branch
    told = "no compaction" if branch.compaction is None else f"the compaction that shows message {branch.keep} first"
    return f"entry {journal.leaf}, {len(branch.slots)} messages, {told} in force"


def _decisions(branch: Branch) -> int:
    """Return how many decisions beside the compaction in force change what the next request shows."""
    others = [what for _, what in branch.law if what != branch.compaction]
    return sum(any(edit.span.start >= branch.keep for edit in what.edits) for what in others)


def _is_sealed(answer: Answer, prepared: Prepared) -> bool:
    """Whether a request of the caller's was refused for what the provider had sealed before."""
    report = answer.report(prepared.plan.after)
    return isinstance(report, ErrorReport) and refuses_seals(report, classify(report).kind)


def _named(id: str) -> str:  # noqa: A002
    """Return ``id``, where it is a name at all."""
    if not isinstance(id, str):
        raise UnknownId(f"a {type(id).__name__} names nothing; give the id of an entry, or how it begins, as a text")
    return id
