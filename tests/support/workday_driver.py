"""A session driven through a day against the strict provider, request by request, with what each was and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from agent_workday import WorkdayStep, make_request_fields, make_result_message
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.request_template import add_setup_to_target, render_prepared_request
from holdfast.engine.upstream.replies import convert_answer_for_log
from holdfast.errors import FormatError, UpstreamError
from holdfast.messages.message import Message
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import encode_sized_messages
from holdfast.state.entries import Usage
from holdfast.state.target import PlanInputs, Target
from holdfast.testing.provider import Provider
from holdfast.testing.provider.apis.encode_reply import ApiCall, encode_reply
from holdfast.testing.provider.calls import IncomingRequest

COLD_AFTER = 300
"""Seconds after which the agent takes the cache for cold."""


class WholeReply(Struct, frozen=True):
    """A reply that is there as a whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SentRequest(Struct, frozen=True):
    """One request and its reply."""

    step: int
    world: PlanInputs
    prepared_request: PreparedRequest
    body: bytes
    status: int
    answer: ParsedAnswer

    @property
    def usage(self) -> Usage:
        """What the provider counted; nothing where it refused."""
        return self.answer.usage or Usage()

    @property
    def wire_messages(self) -> list[bytes]:
        """The elements of the history that it shows, byte for byte, without cache breakpoints."""
        return get_wire_elements(self.prepared_request)


def get_wire_elements(prepared_request: PreparedRequest) -> list[bytes]:
    """Return the elements of a request's history, byte for byte, without cache breakpoints."""
    wire_groups = encode_sized_messages(get_api_spec(prepared_request.target.api), prepared_request.messages)
    return [bytes(wire) for group in wire_groups for wire in group]


def make_direct_sender(provider: Provider, api: str) -> Callable[[bytes, str], WholeReply]:
    """Return what sends a body to ``provider`` without any wire."""

    def send(body: bytes, model: str) -> WholeReply:
        incoming = IncomingRequest(api, "generate", body, model if api == "gemini" else "")
        response = encode_reply(ApiCall(api, "generate", "ticket"), incoming, provider.answer(incoming))
        return WholeReply(response.status, response.headers, b"".join(response.pieces))

    return send


def drive_workday(
    journal: Journal,
    target: Target,
    day: Sequence[WorkdayStep],
    send: Callable[[bytes, str], WholeReply],
    before_request: Callable[[Journal], Journal] = lambda journal: journal,
    wait: Callable[[int], object] = lambda _: None,
) -> Iterator[SentRequest]:
    """Yield the requests of ``day``, each sent and its answer recorded.

    ``wait`` is called with the seconds before each step, ``before_request`` with the journal before its request. A
    request that is refused is yielded and tried once more compacted, as recovery does it first; refused again, the day
    is over.
    """
    goal = add_setup_to_target(target, make_request_fields(target.api))
    for step in day:
        if step.user:
            journal.append(Message.from_text("user", step.user))
        journal = before_request(journal)
        wait(step.seconds_away)
        world = PlanInputs(
            cache_state="cold" if step.seconds_away > COLD_AFTER else "warm", idle_seconds=step.seconds_away
        )
        for attempt_world in (world, replace(world, overflow_step="compact")):
            turn = _send_step(journal, goal, step, attempt_world, send)
            yield turn
            if turn.answer.error is None:
                break
            journal.record_failure(f"refused with {turn.status}")
        else:
            return
        journal.record_answer(*convert_answer_for_log(turn.answer, target.api, target.model))
        if turn.answer.message.calls:
            journal.append(make_result_message(turn.answer.message.calls, step))


def _send_step(
    journal: Journal, goal: Target, step: WorkdayStep, inputs: PlanInputs, send: Callable[[bytes, str], WholeReply]
) -> SentRequest:
    prepared_request = journal.prepare_request(goal, inputs)
    body = render_prepared_request(prepared_request, make_request_fields(goal.api))
    reply = send(body, goal.model)
    return SentRequest(step.number, inputs, prepared_request, body, reply.status, _parse_reply(reply, prepared_request))


def _parse_reply(reply: WholeReply, prepared_request: PreparedRequest) -> ParsedAnswer:
    """Return what a reply says, an error of any shape as an answer with ``error``."""
    api, fine = prepared_request.target.api, 200 <= reply.status < 300
    try:
        parsed_answer = parse_answer(api, reply.body)
    except FormatError as error:
        parsed_answer = ParsedAnswer()
        if fine:
            raise UpstreamError(f"HTTP {reply.status} came without an answer: {error}", "server") from error
    if fine and parsed_answer.error is None:
        return parsed_answer
    report = parsed_answer.error or ErrorReport(api, body=reply.body)
    sizes = {"estimate": prepared_request.plan.after, "window": prepared_request.target.limits.window}
    return replace(parsed_answer, error=replace(report, status=report.status if fine else reply.status, **sizes))


# -- what is said of a run ---------------------------------------------------------------------------------------------


class PrefixBreak(Struct, frozen=True):
    """A request that does not go on where the one before it ended."""

    step: int
    element: int
    """The first element that is another one."""
    why: str
    """What was decided about something that the model had seen; empty = nothing, which breaks prefix-only-grows."""


def find_prefix_breaks(turns: Sequence[SentRequest]) -> list[PrefixBreak]:
    """Return the requests whose history does not begin with the whole history of the one before, byte for byte."""
    turn_wires = [turn.wire_messages for turn in turns]
    return [
        PrefixBreak(new.step, _find_first_changed_element(older, newer), explain_prefix_break(old, new))
        for (old, older), (new, newer) in pairwise(zip(turns, turn_wires, strict=True))
        if newer[: len(older)] != older
    ]


def _find_first_changed_element(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    return next(
        (at for at, (old_wire, two) in enumerate(zip(old, new, strict=False)) if old_wire != two),
        min(len(old), len(new)),
    )


def explain_prefix_break(old: SentRequest, new: SentRequest) -> str:
    """Return why ``new`` may break with ``old``: a compaction, or decisions about what ``old`` showed."""
    plan, old_count = new.prepared_request.plan, len(old.prepared_request.plan.state.history.sized_messages)
    if plan.compaction is not None:
        return "compaction"
    return ", ".join(sorted({edit.rule for edit in plan.record if edit.span.start < old_count}))
