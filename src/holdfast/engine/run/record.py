"""Recording: what an attempt leaves in the log, answered, refused or broken off, and what is learned from it."""

from __future__ import annotations

from anyio import CancelScope

from holdfast import events
from holdfast.engine.compaction.native import taken_over
from holdfast.engine.log.journal import Journal, Prepared
from holdfast.engine.run.attempt import Attempt, said_by
from holdfast.engine.session_runtime import Course
from holdfast.engine.upstream.replies import as_said
from holdfast.errors import StoreError
from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Opaque, Thinking
from holdfast.messages.size.tokens import measure
from holdfast.messages.text.cutting import one_line
from holdfast.normalize.roles import GO_ON
from holdfast.planning.budget import least_window
from holdfast.planning.settings import Settings
from holdfast.providers.overflow import ErrorReport, Verdict, classify
from holdfast.providers.overflow.answers import UNSEEN
from holdfast.providers.responses import Answer
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import project
from holdfast.state.calibration.calibration import FEWEST, LEAST_LIMIT, LOWEST, has_grown, is_whole
from holdfast.state.calibration.token_estimate import estimate
from holdfast.state.calibration.usage import cut_at, fresh, is_absurd

ABORTED = "aborted"
"""How an answer ends that was not told to its end."""
SMALL = 4
"""[H] Times that the messages must be as large as system and tools, for a limit of bytes to be one of messages."""
OF_BYTES = frozenset({"request_bytes", "oversized_part"})
"""Overflows that say nothing of tokens, unless they name some: a client is told of them as they came."""
WHY = 200
"""Characters that the log repeats of an error that is none of ours."""

UNWRITTEN = "unwritten"
"""The rule of a notice that what broke off could not be written down."""

_UNBELIEVED = (
    "the provider counts more tokens than the window holds, for requests that it takes and that have a fraction of it "
    "by our estimate: such counts are not believed"
)


async def answered(course: Course, attempt: Attempt, prepared: Prepared, *, ours: bool = True) -> Answer:
    """Return the answer of ``attempt``, once it is in the log with what it cost, and what its size teaches.

    ``ours`` is false where a client sends the whole conversation: what it goes on with is its own to say.
    """
    told, journal, as_planned = attempt.answer, course.journal, attempt.as_planned
    slot, usage, stop = as_said(told, prepared.target.api, prepared.target.model)
    doubted = journal.branch.learned.doubted
    await course.means.in_worker(lambda: journal.record(slot, usage, stop, as_planned=as_planned))
    if doubted and journal.branch.learned.doubted and is_absurd(journal.branch, usage.input):
        course.tell(events.Noticed(course.key, "usage", _UNBELIEVED))
    verdict = await _window_learned(course, attempt, prepared, usage.input)
    course.prefix = attempt.prefix
    await _taken_over(course, prepared)
    if verdict.kind == "context_window" and ours:
        await _continued(course)
    course.tell(events.Answered(course.key, stop, usage.input, usage.output, usage.cache_read, usage.cache_write))
    return told


async def refused(course: Course, attempt: Attempt) -> None:
    """Write down that an attempt failed, and what an overflow teaches."""
    verdict, why, journal = attempt.verdict, attempt.why, course.journal
    told = events.Refused(course.key, verdict.kind, why, verdict.limit or 0, verdict.requested or 0)
    course.tell(told)
    if verdict.is_overflow:
        await course.hooked("on_overflow", told)
    as_planned = attempt.as_planned
    if _teaches(verdict, journal.branch):
        await course.means.in_worker(lambda: _written(journal, verdict, why, as_planned=as_planned))
        await _interrupted(course, attempt, is_kept=attempt.seen)
    elif not await _interrupted(course, attempt, is_kept=attempt.seen):
        await course.means.in_worker(lambda: _written(journal, verdict, why))


async def broken(course: Course, attempt: Attempt, error: BaseException) -> None:
    """Record what was said before the caller left or an upstream raised what it may not, or that nothing was.

    Nothing is tried again then: what came stays, also where it was not given out. Where it cannot be written down that
    is told, and raised to a caller who simply read no further; what else broke it off is what is raised.
    """
    why = one_line(f"{type(error).__name__}: {error}", WHY) if isinstance(error, Exception) else "the caller left"
    try:
        with CancelScope(shield=True):
            if not await _interrupted(course, attempt, is_kept=attempt.is_begun):
                await course.means.in_worker(lambda: course.journal.fail(f"{why} before the answer"))
    except StoreError as unwritten:
        if isinstance(error, GeneratorExit):
            raise
        tell_unwritten(course, unwritten)


def tell_unwritten(course: Course, why: StoreError) -> None:
    """Tell that what broke off could not be written down, where something else is raised."""
    course.tell(events.Noticed(course.key, UNWRITTEN, f"what broke off is in no log: {why}"))


def handed_in(journal: Journal, prepared: Prepared, answer: Answer) -> str:
    """Record what came of a request that the caller sent; return the id of the message, or of what it is else."""
    if answer.error is None:
        slot, usage, stop = as_said(answer, prepared.target.api, prepared.target.model)
        return journal.record(slot, usage, stop)
    report = answer.report(prepared.plan.after)
    verdict = classify(report)
    return _written(journal, verdict, said_by(report, verdict) if isinstance(report, ErrorReport) else verdict.kind)


# -- what an answer teaches --------------------------------------------------------------------------------------------


async def _window_learned(course: Course, attempt: Attempt, prepared: Prepared, read: int) -> Verdict:
    """Return what the answer is to be taken for, once the window that its count tells of is in the log, and told."""
    journal, verdict, as_planned = course.journal, attempt.verdict, attempt.as_planned
    is_believed = verdict.is_overflow and not journal.branch.learned.doubted
    limit = _learned(prepared, verdict, read, course.settings) if is_believed else 0
    if not limit and (limit := _flat(prepared, journal.branch, course.settings)):
        verdict = Verdict("silent_truncation")
    if limit:
        requested = verdict.requested or 0
        await course.means.in_worker(lambda: journal.learn(verdict.kind, limit, requested, as_planned=as_planned))
        course.tell(events.Noticed(course.key, verdict.kind.replace("_", "-"), _noticed(prepared, read, limit)))
    return verdict


def _learned(prepared: Prepared, verdict: Verdict, read: int, settings: Settings) -> int:
    """Return the window that an answer tells of without saying so, or 0.

    What was taken before fits too, and no guess ends a session.
    """
    if verdict.kind != "silent_truncation":
        return verdict.limit or 0
    branch = prepared.plan.branch
    if read < LEAST_LIMIT or not _is_cut(branch, prepared.plan.after, read):
        return 0
    if read >= UNSEEN * estimate(branch, prepared.target, branch.held - _left_out(branch)):
        return 0
    anchor = branch.anchor
    return _unknown(branch, max(read, anchor.tokens if anchor else 0, least_window(prepared.target, settings)))


def _is_cut(branch: Branch, size: int, read: int) -> bool:
    """Whether a prompt far smaller than its estimate of ``size`` was cut by the provider.

    Or else nothing has proven the estimate yet, or it is the count of what no cache held: at first all messages, later
    what is new.
    """
    anchor, asked = branch.anchor, branch.asked
    if anchor is None:
        return branch.found[0] == 0 and read < min(FEWEST * size, LOWEST * asked)
    is_proven = branch.gauge.estimated > 0 or read < FEWEST * size
    is_new = has_grown(anchor, asked, read) or not is_whole(anchor, asked, branch.frame.tokens, fresh(branch), read)
    return is_proven and not is_new


def _flat(prepared: Prepared, branch: Branch, settings: Settings) -> int:
    """Return the window that counts tell of which stand still while the conversation grows, or 0."""
    if not cut_at(branch, 0):
        return 0
    most = cut_at(branch, _left_out(branch))
    return _unknown(branch, max(most, least_window(prepared.target, settings))) if most else 0


def _left_out(branch: Branch) -> int:
    """Return the size of reasoning, and of what is opaque: a provider may leave it out of older turns.

    Nothing of it is taken for read, and what is another model's never was.
    """
    shown = branch.messages.slice(branch.keep)
    aside = [part for message in shown for part in message.parts if isinstance(part, Thinking | Opaque)]
    return measure(Message("assistant", tuple(aside))).size


def _unknown(branch: Branch, limit: int) -> int:
    """Return ``limit``, or 0 where as little was learned before: a policy that removes nothing meets it each time."""
    return 0 if 0 < branch.learned.limit <= limit else limit


def _noticed(prepared: Prepared, read: int, limit: int) -> str:
    """Return what is told of a window that an answer taught."""
    plan = prepared.plan
    size = max(plan.after, estimate(plan.branch, prepared.target, plan.branch.held))  # the last count may be a cut one
    return f"the provider counted {read:,} tokens of a request of about {size:,}: {limit:,} count as its window now"


async def _taken_over(course: Course, prepared: Prepared) -> None:
    """Write down the compaction that the answer brought along, where the provider compacted by itself."""
    journal, target = course.journal, prepared.target
    taken = taken_over(journal.branch, target, course.settings)
    if taken is not None:
        await course.means.in_worker(lambda: journal.compact(taken))
        await course.tell_compacted(events.Compacted(course.key, "compacted", "native", taken.before, taken.after))


async def _continued(course: Course) -> None:
    """Let the next request go on where the window cut this answer, unless a hook says no."""
    if await course.hooked("autocontinue") is not False:
        await course.means.in_worker(lambda: course.journal.append(Message.of("user", GO_ON)))


# -- what a refusal leaves ---------------------------------------------------------------------------------------------


async def _interrupted(course: Course, attempt: Attempt, *, is_kept: bool) -> bool:
    """Return whether there is a part of an answer to keep; it is then in the log, as one that was interrupted."""
    said, usage, _ = as_said(attempt.so_far, attempt.target.api, attempt.target.model)
    if not (is_kept and said.message.parts):
        return False
    journal, as_planned = course.journal, attempt.as_planned
    await course.means.in_worker(lambda: journal.record(said, usage, ABORTED, as_planned=as_planned))
    return True


def _written(journal: Journal, verdict: Verdict, why: str, *, as_planned: bool = True) -> str:
    """Write a refusal into the log, as a lesson where it teaches one; return the entry's id."""
    reason = f"{verdict.kind}: {why}"
    if not _teaches(verdict, journal.branch):
        return journal.fail(reason)
    numbers = (verdict.limit or 0, verdict.requested or 0, verdict.bytes or 0)
    return journal.learn(reason, *numbers, as_planned=as_planned)


def _teaches(verdict: Verdict, branch: Branch) -> bool:
    """Whether a refusal of what ``branch`` shows says something of its tokens, or how many bytes it may have.

    Of tokens bytes say something where all they are is words, and most of them the conversation's.
    """
    if not verdict.is_overflow or verdict.kind not in OF_BYTES or verdict.limit or verdict.requested or verdict.bytes:
        return verdict.is_overflow
    shows_media = branch.media and any(media_of(slot.message) for slot in project(branch))
    is_talk = SMALL * branch.frame.tokens <= branch.held
    return verdict.kind == "request_bytes" and is_talk and not shows_media
