"""One attempt: a request is made ready and goes out, its events come in, and what came of it is judged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction.summarizer import Prefix
from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Request
from holdfast.engine.run.check_request import checked, is_judged, judged
from holdfast.engine.run.silence import passed_on, silence, unread
from holdfast.engine.session_runtime import Course
from holdfast.engine.upstream.replies import Incoming
from holdfast.engine.upstream.upstream import Reply, Sent, Upstream
from holdfast.errors import HoldfastError, InvalidRequest, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.sse import Event
from holdfast.providers.overflow import KINDS, ErrorReport, Kind, Verdict, classify
from holdfast.providers.overflow.signature_errors import refuses_seals
from holdfast.providers.responses import Answer
from holdfast.recovery.machine import Refused, may_press
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.plan import Plan
from holdfast.state.target import Target

ACCEPTED = frozenset({"content", "output_limit", "silent_overflow", "silent_truncation"})
"""Kinds of answers that are the model's, whatever is to be learned from them."""
_CUT = 400
"""Characters of a provider's own words that an error repeats."""
MENDED = "what was said breaks this rule: it goes out mended, and stays in the log as it came"
"""What is told of a request whose conversation its API would refuse."""


class Attempt:
    """A request on its way. Iterate ``events``; afterwards it has an ``answer``, and why it is none.

    Nothing is given out before the model says something, so that until then another attempt can take its place; where
    nothing is changed none may, and all is given out as it comes. ``quiet`` gives out nothing at all. What is no stream
    is given out once it is judged.
    """

    def __init__(
        self,
        upstream: Upstream,
        sent: Sent,
        prepared: Prepared,
        *,
        quiet: bool = False,
        as_planned: bool = True,
        holds: bool = True,
        presses: bool,
        on_silence: Callable[[], Awaitable[None]],
    ) -> None:
        self._upstream, self._sent, self._prepared, self._quiet = upstream, sent, prepared, quiet
        self._holds, self._presses, self._on_silence = holds, presses, on_silence
        self.as_planned = as_planned
        """Whether what goes out is what was planned: its size tells of the plan's, then."""
        self.seen = False
        """Whether bytes of the answer were given out."""
        self.is_begun = False
        """Whether the model said something in a stream, given out or not."""
        self.is_ended = False
        """Whether the provider ended what came back, whatever it says."""
        self.answer = Answer()
        self.verdict = Verdict("network")
        self.why = "the answer was not read to its end"
        self._held: list[Event] = []
        self._incoming: Incoming | None = None
        self._status: int | None = None
        self._counted: int | None = None
        """What the provider says that it counted, believed or not."""
        self._is_error = False
        """Whether the provider said that it does not answer."""
        self.is_sealed = False
        """Whether it was refused for what the provider had sealed before."""
        self.is_cut = False
        """Whether the model's own answer ended where the window did."""
        self.is_silent = False
        """Whether nothing was said to what was not read, and less can be asked."""
        self._is_passed_on = False
        """Whether that is the answer all the same."""

    @property
    def target(self) -> Target:
        """Whom this asks."""
        return self._prepared.target

    @property
    def size(self) -> int:
        """Bytes of the body that went out."""
        return len(self._sent.body)

    @property
    def reply(self) -> Reply | None:
        """What came back, its status and headers; nothing where no reply came."""
        return None if self._incoming is None else self._incoming.reply

    @property
    def _most(self) -> int | None:
        """The tokens that the answer may have, where any limit was asked for."""
        return self.plan.options.max_tokens or self.target.limits.asked_output

    @property
    def is_coming(self) -> bool:
        """Whether events have begun to come that are no refusal, though the model may not have said anything."""
        return self._incoming is not None and self._incoming.is_stream and self._incoming.reply.is_fine

    @property
    def held(self) -> bytes:
        """What came back and was not given out, as it came."""
        return b"".join([event.raw for event in self._held])

    @property
    def plan(self) -> Plan:
        """What this request shows, and why."""
        return self._prepared.plan

    @property
    def so_far(self) -> Answer:
        """What the model said before the answer broke off."""
        fold = self._incoming.fold if self._incoming is not None else None
        return Answer() if fold is None else fold.answer()

    @property
    def is_answered(self) -> bool:
        """Whether the model's own answer came, to its end."""
        is_taken = self.verdict.kind in ACCEPTED and not (self._is_error or self.is_silent)
        return is_taken or (self.is_cut and (self.seen or _says(self.answer.message)))

    @property
    def is_whole(self) -> bool:
        """Whether the model's answer came to its end, though its connection may not have ended."""
        return self.is_answered or self.so_far.complete

    @property
    def prefix(self) -> Prefix:
        """What the provider has just read, for a summary that goes on from it."""
        sent, branch = self._sent, self._prepared.plan.branch
        tokens = self.answer.usage.input if self.answer.usage else self._prepared.plan.after
        return Prefix(sent.api, sent.model, sent.body, len(branch.slots), tokens, self.target.frame.digest, sent.stream)

    @property
    def refused(self) -> Refused:
        """What recovery is told."""
        verdict = self.verdict
        return Refused(
            verdict.kind,
            verdict.is_overflow,
            retry_after=verdict.retry_after,
            limit=verdict.limit,
            requested=self._counted,
            tokens=self._prepared.plan.after,
            seen=self.seen,
            status=self._status,
            shows_media=self.plan.branch.media > 0,
            sealed=self.is_sealed,
        )

    async def events(self) -> AsyncGenerator[list[Event]]:
        """Yield the API's own events as they come, those together that came at once, and judge what they say."""
        try:
            async with self._upstream.send(self._sent) as reply:
                incoming = self._incoming = Incoming(reply, self._sent)
                async with aclosing(incoming.events()) as coming:
                    async for events, meaningful in coming:
                        self.is_begun = self.is_begun or (meaningful and incoming.is_stream)
                        if self.seen:
                            yield events
                            continue
                        self._held += events
                        if (meaningful or not self._holds) and incoming.is_stream and not self._quiet:
                            yield self._given()
                self.is_ended = True
                self._judge(incoming.answer())
        except UpstreamError as error:
            self.verdict, self.why = Verdict(_kind(error), retry_after=error.retry_after), str(error)
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            self.verdict, self.why = Verdict("network"), f"{type(error).__name__}: {error}"
        if self._is_passed_on:
            await self._on_silence()
        if (self.is_answered or self.seen) and self._held and not self._quiet:
            yield self._given()

    def settled(self) -> bool:
        """Return whether what came is an answer, judged as one, although nobody read on to the end."""
        if not self.is_answered and self.is_whole:
            self._judge(self.so_far)
        return self.is_answered

    def _given(self) -> list[Event]:
        """Return the events that were held back; from now on they are given out as they come."""
        held, self._held, self.seen = self._held, [], True
        return held

    def _expected(self, told: Answer) -> int | None:
        """Return the tokens that the prompt has as we count; where it did not grow, as counted anew from the start.

        Nothing where a hook changed it, for what that has was not counted, and where it shows media: a small picture
        has far less than is reckoned for one. Who drops the front of what is too long tells the same number again and
        again, and each is near the last.
        """
        plan, target = self._prepared.plan, self._prepared.target
        if not self.as_planned or plan.branch.media:
            return None
        anchor, asked = plan.branch.anchor, told.asked
        if anchor is None or asked is None or asked.input > anchor.tokens:
            return plan.after
        return estimate(plan.branch, target, plan.branch.held)

    def _judge(self, told: Answer) -> None:
        self.answer = told
        report = told.report(self._expected(told), self.target.limits.window)
        verdict = classify(report)
        self.verdict, self._counted = _sensible(verdict, len(self._sent.body)), verdict.requested
        self._is_error = isinstance(report, ErrorReport)
        self.is_cut = not self._is_error and self.verdict.kind == "context_window"
        if isinstance(report, ErrorReport):
            self.why, self._status = said_by(report, self.verdict), report.status
            self.is_sealed = refuses_seals(report, self.verdict.kind)
        elif not told.complete:
            self.verdict, self.why = Verdict("network"), "the answer broke off before its end"
        elif not told.message.parts and told.stop == "unknown":
            self.verdict, self.why = Verdict("server"), "the answer says nothing, not even why"
        elif self.is_cut:
            self.why = "the answer ended where the window did"
        else:
            self._judge_silence(told)

    def _judge_silence(self, told: Answer) -> None:
        """Take an answer that says nothing to what was too large for an overflow, where less may be asked instead."""
        silent = silence(told, self.verdict, self.plan, self._most)
        self.is_silent = bool(silent) and self._presses and not self.seen
        self._is_passed_on = bool(silent) and not self.is_silent
        if self.is_silent:
            numbers = (self.verdict.limit, self.verdict.requested)
            self.verdict, self.why = Verdict("silent_overflow", *numbers), unread(told, self.plan)
            self.as_planned = self.as_planned and silent == "counted"  # a guess tells nothing of sizes


def _says(message: Message) -> bool:
    """Return whether a message has words or calls: what a model said is its answer, wherever it was cut."""
    return bool(message.text.strip() or message.calls)


def _sensible(verdict: Verdict, size: int) -> Verdict:
    """Return the verdict on a request of ``size`` bytes: no text has more tokens than bytes, such a count is none."""
    return replace(verdict, requested=None) if (verdict.requested or 0) > size else verdict


def _kind(error: UpstreamError) -> Kind:
    """Return what kind of error an upstream raised; one that does not say is of the connection."""
    return cast("Kind", error.kind) if error.kind in KINDS and error.kind != "unknown" else "network"


def said_by(report: ErrorReport, verdict: Verdict) -> str:
    """Return what the provider said, with its status and its numbers."""
    status = f"HTTP {report.status}" if report.status else "an error"
    numbers = f", {verdict.requested:,} of {verdict.limit:,} tokens" if verdict.requested and verdict.limit else ""
    return f"the provider answered with {status} ({verdict.kind}{numbers}): {report.words[:_CUT]}"


async def attempt_at(course: Course, request: Request, prepared: Prepared, *, quiet: bool) -> Attempt:
    """Return an attempt to have ``prepared`` answered; nothing was sent yet. Raises ``InvalidRequest``."""
    slots: Sequence[Slot] = await _transformed(course, prepared.slots)
    as_planned = slots is prepared.slots or [*map(id, slots)] == [*map(id, prepared.slots)]
    sent, means = request.sent(prepared, slots), course.means
    is_own = request.is_own(sent.body)
    changed = means.check == "changed" and (course.judges or not is_own)
    ruled = not (course.mends or request.target.dialect.as_written)  # of another server nobody knows what it refuses
    if means.check == "all" or (changed and ruled):
        try:
            sent = _judged(course, request, sent, slots, as_planned=as_planned)
        except InvalidRequest:
            if means.check == "all" or not is_own:
                raise
    plan = prepared.plan
    course.tell(events.Sending(course.key, len(slots), plan.after, plan.window))
    upstream = request.way.upstream or means.upstream
    holds = not request.way.as_it_is
    return Attempt(
        upstream,
        sent,
        prepared,
        quiet=quiet,
        as_planned=as_planned,
        holds=holds,
        presses=holds and may_press(course.settings) and not request.takes_silence,
        on_silence=partial(passed_on, course),
    )


def _judged(course: Course, request: Request, sent: Sent, slots: Sequence[Slot], *, as_planned: bool) -> Sent:
    """Return ``sent`` as its API takes it; of what a client sends anew each time, what was judged is not looked at."""
    own = request.lens if as_planned and course.means.check == "changed" else None
    if own is not None and is_judged(sent, slots, own, course.judged):
        rule = ""
    else:
        sent, rule = checked(sent, hook="" if as_planned else "transform_messages")
    course.judged = judged(sent, slots) if own is not None and not rule else None
    if rule:
        course.tell(events.Noticed(course.key, rule, MENDED))
    return sent


async def _transformed(course: Course, slots: Sequence[Slot]) -> Sequence[Slot]:
    """Return the slots as the hook wants this request to show them."""
    if course.means.hooks.transform_messages is None:
        return slots
    changed = await course.hooked("transform_messages", [slot.message for slot in slots])
    if changed is None:
        return slots
    known = {id(slot.message): slot for slot in slots}
    return [known.get(id(message)) or Slot(message) for message in changed]
