"""Tries: an attempt to have a request answered is made ready, and what one that failed leaves in the log."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.branch import Branch
from holdfast.model.messages import media_of
from holdfast.model.projected import project
from holdfast.model.slots import Slot
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.course import Course
from holdfast.runtime.journal import Journal, Prepared
from holdfast.runtime.replies import as_said
from holdfast.runtime.requests import Request, checked
from holdfast.telemetry import events
from holdfast.wire.overflow import Verdict

ABORTED = "aborted"
"""How an answer ends that was not told to its end."""
MENDED = "what was said breaks this rule: it goes out mended, and stays in the log as it came"
"""What is told of a request whose conversation its API would refuse."""
SMALL = 4
"""[H] Times that the messages must be as large as system and tools, for a limit of bytes to be one of messages."""
OF_BYTES = frozenset({"request_bytes", "oversized_part"})
"""Overflows that say nothing of tokens, unless they name some: a client is told of them as they came."""


async def attempt_at(course: Course, request: Request, prepared: Prepared, *, quiet: bool) -> Attempt:
    """Return an attempt to have ``prepared`` answered; nothing was sent yet. Raises ``InvalidRequest``."""
    slots: Sequence[Slot] = await _transformed(course, prepared.slots)
    as_planned = slots is prepared.slots or [*map(id, slots)] == [*map(id, prepared.slots)]
    sent, means = request.sent(prepared, slots), course.means
    if means.check == "all" or (means.check == "changed" and not request.is_own(sent.body)):
        sent, rule = checked(sent, mends=as_planned)
        if rule:
            course.tell(events.Noticed(course.key, rule, MENDED))
    plan = prepared.plan
    course.tell(events.Sending(course.key, len(slots), plan.after, prepared.target.limits.window))
    upstream = request.way.upstream or means.upstream
    return Attempt(upstream, sent, prepared, quiet=quiet, as_planned=as_planned)


async def failed(course: Course, attempt: Attempt) -> None:
    """Write down that an attempt failed, and what an overflow teaches."""
    verdict, why, journal = attempt.verdict, attempt.why, course.journal
    told = events.Refused(course.key, verdict.kind, why, verdict.limit or 0, verdict.requested or 0)
    course.tell(told)
    if verdict.is_overflow:
        await course.hooked("on_overflow", told)
    as_planned = attempt.as_planned
    if _teaches(verdict, journal.branch):
        await course.means.in_worker(lambda: write_down(journal, verdict, why, as_planned=as_planned))
        await interrupted(course, attempt)
    elif not await interrupted(course, attempt):
        await course.means.in_worker(lambda: write_down(journal, verdict, why))


async def interrupted(course: Course, attempt: Attempt) -> bool:
    """Return whether a part of an answer was given out; it is then in the log, as one that was interrupted."""
    said, usage, _ = as_said(attempt.so_far, attempt.target.api, attempt.target.model)
    if not (attempt.seen and said.message.parts):
        return False
    journal, as_planned = course.journal, attempt.as_planned
    await course.means.in_worker(lambda: journal.record(said, usage, ABORTED, as_planned=as_planned))
    return True


def write_down(journal: Journal, verdict: Verdict, why: str, *, as_planned: bool = True) -> str:
    """Write a refusal into the log, as a lesson where it teaches one; return the entry's id."""
    reason = f"{verdict.kind}: {why}"
    if not _teaches(verdict, journal.branch):
        return journal.fail(reason)
    return journal.learn(reason, verdict.limit or 0, verdict.requested or 0, as_planned=as_planned)


async def _transformed(course: Course, slots: Sequence[Slot]) -> Sequence[Slot]:
    """Return the slots as the hook wants this request to show them."""
    if course.means.hooks.transform_messages is None:
        return slots
    changed = await course.hooked("transform_messages", [slot.message for slot in slots])
    if changed is None:
        return slots
    known = {id(slot.message): slot for slot in slots}
    return [known.get(id(message)) or Slot(message) for message in changed]


def _teaches(verdict: Verdict, branch: Branch) -> bool:
    """Whether a refusal of what ``branch`` shows says something of its tokens.

    So do bytes where all they are is words, and most of them the conversation's.
    """
    if not verdict.is_overflow or verdict.kind not in OF_BYTES or verdict.limit or verdict.requested:
        return verdict.is_overflow
    shows_media = branch.media and any(media_of(slot.message) for slot in project(branch))
    is_talk = SMALL * branch.frame.tokens <= branch.held
    return verdict.kind == "request_bytes" and is_talk and not shows_media
