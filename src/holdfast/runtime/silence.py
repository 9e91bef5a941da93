"""Silence: an answer without a word, to a request of which its server says that it did not read it.

Some gateways answer what is too large for the server behind them with success, no word, and a count of next to nothing
(LiteLLM). A model that has nothing to say is another matter: what it read is counted as ever, and that is its answer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.model.branch import Branch
from holdfast.model.gauging import HIGHEST, LOWEST
from holdfast.model.learning import fresh
from holdfast.model.parts import Text
from holdfast.model.plan import Plan
from holdfast.runtime.course import Course
from holdfast.telemetry import events
from holdfast.wire.answers import Answer
from holdfast.wire.overflow import Verdict
from holdfast.wire.overflow.answers import TELLING

Silence: TypeAlias = Literal["", "counted", "guessed"]
"""The model's own, if it is silence at all · of a server that counts, and does not count this · by its size alone."""
LARGE = 0.5
"""[H] Share of the room for a conversation from which it may be too large for a server that counts nothing."""
_PASSED_ON = (
    "an answer says nothing, and next to nothing was counted of its request: that may be too large for the server; the "
    "answer is passed on as it came"
)
"""What is told of such an answer where nothing smaller is asked."""
_NO_COUNT = 1
"""Most tokens that are told of a prompt that nobody counted: there is none so short (LiteLLM says 1, others 0)."""


def silence(told: Answer, verdict: Verdict, plan: Plan) -> Silence:
    """Return whether ``told``, an answer to what ``plan`` shows, says nothing because that was too large.

    A server that counted the request before counts this one too, if it reads it. Of one that did not, only a large
    request may be one too large. No few words are.
    """
    branch, read = plan.branch, told.asked.input if told.asked is not None else 0
    size, room = plan.after - branch.frame.tokens, plan.window - branch.frame.tokens
    if size < TELLING or not says_nothing(told) or not _is_unread(read, verdict, branch):
        return ""
    if _was_counted(branch, read):
        return "counted"
    return "guessed" if size >= LARGE * room else ""


def unread(told: Answer, plan: Plan) -> str:
    """Return why ``told``, to what ``plan`` shows, counts as an overflow."""
    counted = f"{told.asked.input:,}" if told.asked is not None else "none"
    return f"the answer says nothing, and counts {counted} of the request's tokens, about {plan.after:,}"


async def passed_on(course: Course) -> None:
    """Tell that such an answer is passed on; a window that was learned from it in vain counts no more."""
    course.tell(events.Noticed(course.key, "silence", _PASSED_ON))
    if course.journal.branch.learned.overflows:
        await course.means.in_worker(course.journal.forget)


def says_nothing(told: Answer) -> bool:
    """Return whether an answer that ended as its model wanted has no word, no call and no thought."""
    is_blank = all(isinstance(part, Text) and not part.text.strip() for part in told.message.parts)
    has_reasoned = told.usage is not None and told.usage.reasoning > 0
    return told.complete and told.error is None and told.stop == "end" and is_blank and not has_reasoned


def _is_unread(read: int, verdict: Verdict, branch: Branch) -> bool:
    """Return whether ``read`` tokens are neither the newest request of ``branch`` nor what no cache held of it."""
    new = fresh(branch)
    return read <= _NO_COUNT or (verdict.kind == "silent_truncation" and not LOWEST * new <= read <= HIGHEST * new)


def _was_counted(branch: Branch, read: int) -> bool:
    """Return whether the request before the newest one was counted, by a server that does not always say ``read``."""
    before = branch.measured
    return before is not None and before.slots == branch.found[0] and before.tokens != read
