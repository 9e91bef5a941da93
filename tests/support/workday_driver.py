"""Drives a session through a workday of requests and records each request, its reply and its usage."""

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
"""Seconds of idle time after which the agent assumes that the prompt cache is cold."""


class WholeReply(Struct, frozen=True):
    """A reply whose body has been read completely."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SentRequest(Struct, frozen=True):
    """One request and its reply."""

    step: int
    inputs: PlanInputs
    prepared_request: PreparedRequest
    body: bytes
    status: int
    answer: ParsedAnswer

    @property
    def usage(self) -> Usage:
        """The usage that the provider reported; all zero if it refused the request."""
        return self.answer.usage or Usage()

    @property
    def wire_messages(self) -> list[bytes]:
        """The encoded messages of the request, byte for byte, without cache breakpoints."""
        return get_wire_elements(self.prepared_request)


def get_wire_elements(prepared_request: PreparedRequest) -> list[bytes]:
    """Return the encoded messages of a request, byte for byte, without cache breakpoints."""
    wire_groups = encode_sized_messages(get_api_spec(prepared_request.target.api), prepared_request.messages)
    return [bytes(wire) for group in wire_groups for wire in group]


def make_direct_sender(provider: Provider, api: str) -> Callable[[bytes, str], WholeReply]:
    """Return a function that sends a body to ``provider`` without HTTP."""

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
    """Send the requests of ``day``, record their answers in the journal, and yield each request.

    ``wait`` is called with the seconds before each step, ``before_request`` with the journal before each request; it
    may return another journal. A refused request is yielded and sent once more with a compaction, as recovery does
    first; a second refusal ends the day.
    """
    goal = add_setup_to_target(target, make_request_fields(target.api))
    for step in day:
        if step.user:
            journal.append(Message.from_text("user", step.user))
        journal = before_request(journal)
        wait(step.seconds_away)
        inputs = PlanInputs(
            cache_state="cold" if step.seconds_away > COLD_AFTER else "warm", idle_seconds=step.seconds_away
        )
        for attempt_inputs in (inputs, replace(inputs, overflow_step="compact")):
            request = _send_step(journal, goal, step, attempt_inputs, send)
            yield request
            if request.answer.error is None:
                break
            journal.record_failure(f"refused with {request.status}")
        else:
            return
        journal.record_answer(*convert_answer_for_log(request.answer, target.api, target.model))
        if request.answer.message.calls:
            journal.append(make_result_message(request.answer.message.calls, step))


def _send_step(
    journal: Journal, goal: Target, step: WorkdayStep, inputs: PlanInputs, send: Callable[[bytes, str], WholeReply]
) -> SentRequest:
    prepared_request = journal.prepare_request(goal, inputs)
    body = render_prepared_request(prepared_request, make_request_fields(goal.api))
    reply = send(body, goal.model)
    return SentRequest(step.number, inputs, prepared_request, body, reply.status, _parse_reply(reply, prepared_request))


def _parse_reply(reply: WholeReply, prepared_request: PreparedRequest) -> ParsedAnswer:
    """Parse a reply; an error of any shape becomes an answer with ``error`` set."""
    api, is_success = prepared_request.target.api, 200 <= reply.status < 300
    try:
        parsed_answer = parse_answer(api, reply.body)
    except FormatError as error:
        parsed_answer = ParsedAnswer()
        if is_success:
            raise UpstreamError(f"HTTP {reply.status} came without an answer: {error}", "server") from error
    if is_success and parsed_answer.error is None:
        return parsed_answer
    report = parsed_answer.error or ErrorReport(api, body=reply.body)
    sizes = {"estimate": prepared_request.plan.after, "window": prepared_request.target.limits.window}
    return replace(parsed_answer, error=replace(report, status=report.status if is_success else reply.status, **sizes))


# -- breaks of the cached prefix ---------------------------------------------------------------------------------------


class PrefixBreak(Struct, frozen=True):
    """A request whose messages do not begin with all messages of the request before."""

    step: int
    element: int
    """The index of the first message that differs."""
    why: str
    """The decisions that changed seen messages; empty if there are none, which violates prefix-only-grows."""


def find_prefix_breaks(turns: Sequence[SentRequest]) -> list[PrefixBreak]:
    """Return the requests whose messages do not begin with all messages of the request before, byte for byte."""
    turn_wires = [turn.wire_messages for turn in turns]
    return [
        PrefixBreak(new.step, _find_first_changed_element(older, newer), explain_prefix_break(old, new))
        for (old, older), (new, newer) in pairwise(zip(turns, turn_wires, strict=True))
        if newer[: len(older)] != older
    ]


def _find_first_changed_element(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    return next(
        (index for index, (old_wire, new_wire) in enumerate(zip(old, new, strict=False)) if old_wire != new_wire),
        min(len(old), len(new)),
    )


def explain_prefix_break(old: SentRequest, new: SentRequest) -> str:
    """Return why ``new`` may change messages of ``old``: a compaction, or the rules that edited shown messages."""
    plan, old_count = new.prepared_request.plan, len(old.prepared_request.plan.state.history.sized_messages)
    if plan.compaction is not None:
        return "compaction"
    return ", ".join(sorted({edit.rule for edit in plan.record if edit.span.start < old_count}))
