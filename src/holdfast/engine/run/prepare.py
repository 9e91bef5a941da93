"""How a run begins: what is asked goes into the log, and its request is decided, at once where nobody is to be asked.

All of it is one visit to the worker then, under one lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction import compact as compacting
from holdfast.engine.log.conversation_diff import reframed
from holdfast.engine.log.journal import Prepared
from holdfast.engine.requests import Asked, Request, Way, of_body, of_words, opened, words
from holdfast.engine.run.decide import announce, next_request
from holdfast.engine.session_runtime import Course
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.surrogates import whole
from holdfast.providers.request_body import Lens
from holdfast.recovery.machine import Recovery, begin
from holdfast.state.calibration.model_stats import known_of
from holdfast.state.plan import Plan
from holdfast.state.target import World


class Begun(Struct, frozen=True):
    """A request whose words are in the log, and its plan."""

    request: Request
    state: Recovery
    """What may be done where it fails, as the log was before it."""
    world: World
    plan: Plan
    prepared: Prepared | None
    """Nothing where somebody is to be asked or told first, or where more was said meanwhile."""


def read(course: Course, asked: Asked) -> Lens | list[Message | Slot]:
    """Return a body opened, or the words to say; ``FormatError`` for what is neither."""
    if not isinstance(asked, bytes | Mapping | Lens):
        return words(asked)
    own = course.means.target
    asked = whole(asked) if isinstance(asked, bytes) else asked
    lens = opened(asked, own.api if own is not None else None, is_told=False)
    if not lens.slots:
        raise FormatError("this body has no messages; send it with the whole conversation in it")
    return lens


async def begun(course: Course, said: Lens | list[Message | Slot], way: Way = Way()) -> tuple[Begun, Prepared]:
    """Return how the request of a body or of words begins, and what it shows, decided and in the log."""
    if isinstance(said, Lens):
        first = await course.means.in_worker(lambda: _followed(course, said, way))
    else:
        told = [await course.offered(one) for one in said]
        first = await course.means.in_worker(lambda: _worded(course, told, way))
    if first.prepared is None:
        return first, await next_request(course, first.request, first.world, first.plan)
    await announce(course, first.plan, first.prepared)
    return first, first.prepared


def _followed(course: Course, lens: Lens, way: Way) -> Begun:
    journal, target = course.journal, course.means.target_of(lens.api, lens.model or way.model)
    with journal.one_write():
        journal.deliver()
        journal.follow(lens.slots, lens.decode)
        if known_of(journal.branch, target.model).learned.mends:
            target = replace(target, dialect=replace(target.dialect, as_written=False))
        request = of_body(target, lens, way)
        frame = reframed(request.target.frame, journal.branch.slots.slice(0, journal.branch.pinned), lens.slots)
        return _drafted(course, replace(request, target=replace(request.target, frame=frame)))


def _worded(course: Course, said: list[Message | Slot], way: Way) -> Begun:
    journal = course.journal
    with journal.one_write():
        journal.deliver()
        journal.append(*said)
        if not len(journal.branch.slots):
            raise FormatError("nothing was said in this session yet; say something first")
        return _drafted(course, of_words(course.target(), course.fields(), way))


def _drafted(course: Course, request: Request) -> Begun:
    """Return the plan of ``request``, and the request itself where it can go out as planned."""
    journal, target = course.journal, request.target
    journal.describe(target.model)
    state = begin(journal.branch, course.settings, changes=not request.way.as_it_is, cooled=journal.is_cooled())
    world = compacting.world(course, request)
    plan = journal.plan(target, world)
    waits = plan.ask is not None or plan.compaction is not None
    return Begun(request, state, world, plan, None if waits else course.commit(plan, target, world))
