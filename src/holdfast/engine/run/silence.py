"""Silence: an answer without a word, to a request that its server did not read, or that left no room for an answer.

Some gateways answer what is too large for the server behind them with success, no word, and a count of next to nothing
(LiteLLM). Some servers take what fills their window, and end the answer at its first token as one that got too long
(Xiaomi MiMo). A model that has nothing to say is another matter: what it read is counted as ever, it ends as it wants
or where its request does, and that is its answer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast import events
from holdfast.engine.session_runtime import Course
from holdfast.messages.parts import Text
from holdfast.providers.overflow import Verdict
from holdfast.providers.overflow.answers import TELLING
from holdfast.providers.responses import Answer
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.calibration import HIGHEST, LOWEST
from holdfast.state.calibration.usage import fresh
from holdfast.state.plan import Plan

Silence: TypeAlias = Literal["", "counted", "guessed"]
"""The model's own, if it is silence at all · of a server that counts, and does not count this · by its size alone."""
LARGE = 0.5
"""[H] Share of the room for a conversation from which it may be too large for a server that counts nothing."""
_PASSED_ON = (
    "an answer says nothing, and by what was counted its request may be too large for the server; the answer is passed "
    "on as it came"
)
"""What is told of such an answer where nothing smaller is asked."""
_FIRST = 16
"""[H] Most tokens of an answer that ended before a word: how one begins. No API takes a limit for all of it under that
but Chat and Messages, whose request says so then."""
_NO_COUNT = 1
"""Most tokens that are told of a prompt that nobody counted: there is none so short (LiteLLM says 1, others 0)."""


def silence(told: Answer, verdict: Verdict, plan: Plan, most: int | None) -> Silence:
    """Return whether ``told``, an answer to what ``plan`` shows, says nothing because that was too large.

    A server that counted the request before counts this one too, if it reads it. Of one that did not, only a large
    request may be one too large. No few words are. ``most`` are the tokens that the answer may have, where any limit
    was asked for.
    """
    branch, read = plan.branch, told.asked.input if told.asked is not None else 0
    size, room = plan.after - branch.frame.tokens, plan.window - branch.frame.tokens
    if size < TELLING or not (is_cut_short(told, most) or (says_nothing(told) and _is_unread(read, verdict, branch))):
        return ""
    if verdict.limit or _was_counted(branch, read):
        return "counted"
    return "guessed" if size >= LARGE * room else ""


def unread(told: Answer, plan: Plan) -> str:
    """Return why ``told``, to what ``plan`` shows, counts as an overflow."""
    counted = f"{told.asked.input:,}" if told.asked is not None else "none"
    how = "the answer says nothing" if told.stop == "end" else "the answer ended before a word"
    return f"{how}, and counts {counted} of the request's tokens, about {plan.after:,}"


async def passed_on(course: Course) -> None:
    """Tell that such an answer is passed on; a window that was learned from it in vain counts no more."""
    course.tell(events.Noticed(course.key, "silence", _PASSED_ON))
    if course.journal.branch.learned.overflows:
        await course.means.in_worker(course.journal.forget)


def says_nothing(told: Answer) -> bool:
    """Return whether an answer that ended as its model wanted has no word, no call and no thought."""
    return told.stop == "end" and _is_blank(told) and not (told.usage is not None and told.usage.reasoning)


def is_cut_short(told: Answer, most: int | None) -> bool:
    """Return whether an answer ended before a word because it got too long, as far short of ``most`` tokens.

    That is not the limit that was asked for: no room was left.
    """
    made = told.usage.output if told.usage is not None else None
    is_short = made is not None and made <= _FIRST and (most is None or made < most)
    return told.stop == "length" and is_short and _is_blank(told)


def _is_blank(told: Answer) -> bool:
    """Return whether an answer that was told to its end has no word, no call and no thought to show."""
    shows = any(not isinstance(part, Text) or part.text.strip() for part in told.message.parts)
    return told.complete and told.error is None and not shows


def _is_unread(read: int, verdict: Verdict, branch: Branch) -> bool:
    """Return whether ``read`` tokens are neither the newest request of ``branch`` nor what no cache held of it."""
    new = fresh(branch)
    return read <= _NO_COUNT or (verdict.kind == "silent_truncation" and not LOWEST * new <= read <= HIGHEST * new)


def _was_counted(branch: Branch, read: int) -> bool:
    """Return whether the request before the newest one was counted, by a server that does not always say ``read``."""
    before = branch.measured
    return before is not None and before.slots == branch.found[0] and before.tokens != read
