"""One attempt at a request: check the body, send it, pass on its events, and judge the answer that came back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import Enum
from functools import partial
from typing import cast

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction.summarizer import CachedRequest
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.run.check_request import CheckResult, check_request, is_already_checked, make_check_baseline
from holdfast.engine.run.fix_client_options import record_option_fixes
from holdfast.engine.run.learn_from_refusal import apply_known_lessons, find_field_lessons
from holdfast.engine.run.request_target import ask_for_window
from holdfast.engine.run.silence import accept_empty_answer, classify_empty_answer, describe_silent_overflow
from holdfast.engine.run.trace_run import trace_attempt
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.replies import ReplyReader
from holdfast.engine.upstream.upstream import Reply, Upstream, UpstreamRequest, find_header_version
from holdfast.errors import HoldfastError, InvalidRequest, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.container_errors import is_container_error
from holdfast.providers.errors.named_fields import NamedField, find_named_fields
from holdfast.providers.errors.refused_media import find_refused_media
from holdfast.providers.errors.report import VERDICT_KINDS, ErrorReport, Verdict, VerdictKind
from holdfast.providers.errors.signature_errors import is_signature_error
from holdfast.providers.fix.fix_context import RequestFix
from holdfast.providers.registry import API_SPECS
from holdfast.recovery.machine import ProviderRefusal, can_recover_from_refusals
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.field_lessons import FieldLesson
from holdfast.state.plan import Plan
from holdfast.state.target import Target
from holdfast.state.view import get_valid_measured_request

ANSWER_KINDS = frozenset({"content", "output_limit", "silent_overflow", "silent_truncation"})
"""Verdicts on answers that count as the model's own, even where they teach something about the window."""
# An error message is one line in a terminal or a log; the first sentences of a provider's text hold the reason, and
# gateways are known to put a whole HTML page after it. 400 is chosen by judgement.
_MAX_PROVIDER_CHARS = 400
"""Characters of a provider's own message that an error repeats."""
FIXED_NOTICE = "a message breaks this rule: it is sent in a valid form, and stays unchanged in the log"
"""Text of the notice given when a conversation had to be fixed before its API would accept it."""


class EventDelivery(Enum):
    """When the events of a streamed answer are handed to the caller."""

    AS_RECEIVED = "as they arrive: the request is only observed, so no other attempt will replace this one"
    ONCE_STARTED = "held until the answer has content, so that another attempt can still take this one's place"
    NEVER = "not at all: the caller wants only the finished answer"


class AttemptOutcome(Enum):
    """The judgement on an attempt. Exactly one holds; `Attempt.verdict` has the kind and the numbers."""

    UNFINISHED = "the reply was not read to its end"
    FAILED = "the connection failed, the answer broke off, or it is empty and has no finish reason"
    REFUSED = "the provider answered with an error"
    SIGNATURES_REFUSED = "the provider answered with an error about signatures or encrypted content"
    CUT_BY_WINDOW = "the model's answer ended where the window did"
    SILENT_OVERFLOW = "an empty answer to a request that was too large; a smaller one can be sent instead"
    SILENCE_ACCEPTED = (
        "an empty answer to a request that may be too large, passed on because nothing smaller can be sent"
    )
    ANSWERED = "the reply ended without an error"


class Attempt:
    """A request on its way to the provider.

    Iterate ``stream_events`` to send it; afterwards ``outcome``, ``verdict`` and ``answer`` say how it went.

    Events are held back until the model says something, so that a refusal can still be replaced by the answer to
    another attempt (see `EventDelivery`). A reply that is not a stream is passed on once it has been judged.
    """

    def __init__(
        self,
        upstream: Upstream,
        upstream_request: UpstreamRequest,
        prepared_request: PreparedRequest,
        *,
        delivery: EventDelivery,
        is_as_planned: bool,
        can_shrink: bool,
        on_silence: Callable[[], Awaitable[None]],
    ) -> None:
        self._upstream = upstream
        self._request = upstream_request
        self._prepared = prepared_request
        self._delivery = delivery
        self._can_shrink = can_shrink
        self._on_silence = on_silence
        self.is_as_planned = is_as_planned
        """Whether the messages sent are the planned ones, so that their reported size measures the plan."""
        self.has_started = False
        """Whether the model said something in a stream, passed on or not."""
        self.has_delivered = False
        """Whether events of the answer were passed on to the caller."""
        self.has_ended = False
        """Whether the provider ended its reply, be it an answer or an error."""
        self.outcome = AttemptOutcome.UNFINISHED
        self.verdict = Verdict("network")
        self.failure_text = "the answer was not read to its end"
        self.answer = ParsedAnswer()
        self._held_events: list[StreamEvent] = []
        self._reply_reader: ReplyReader | None = None
        self._status: int | None = None
        self.refused_media: tuple[str, ...] | None = None
        """Sources of the media that the provider cannot read: none if it names none, None if that is no reason."""
        self.expired_container = ""
        """Id of the container in the request if the refusal says that it is gone; empty otherwise."""
        self.named_fields: tuple[NamedField, ...] = ()
        """The fields that the refusal names."""
        self._field_lessons: tuple[FieldLesson, ...] = ()
        self._provider_token_count: int | None = None
        """The token count in the provider's error, also where the verdict drops it as impossible."""

    @property
    def target(self) -> Target:
        """The API and model that this request goes to."""
        return self._prepared.target

    @property
    def upstream(self) -> Upstream:
        """Where the request is sent to."""
        return self._upstream

    @property
    def body_size(self) -> int:
        """Length of the request body in bytes."""
        return len(self._request.body)

    @property
    def reply(self) -> Reply | None:
        """Status and headers of the reply, or None if no reply came."""
        if self._reply_reader is None:
            return None
        return self._reply_reader.reply

    @property
    def _max_output(self) -> int | None:
        """The most tokens the answer may have, or None if the request sets no limit."""
        return self.plan.options.max_tokens or self.target.limits.requested_output

    @property
    def is_streaming(self) -> bool:
        """Whether a successful event stream has begun, though the model may not have said anything yet."""
        return self._reply_reader is not None and self._reply_reader.is_stream and self._reply_reader.reply.is_success

    @property
    def held_bytes(self) -> bytes:
        """The bytes received but not passed on, unchanged."""
        return b"".join([event.raw for event in self._held_events])

    @property
    def plan(self) -> Plan:
        """The plan that this request was made from."""
        return self._prepared.plan

    @property
    def partial_answer(self) -> ParsedAnswer:
        """The answer as far as its events have come; empty if the reply is not a stream."""
        if self._reply_reader is None or self._reply_reader.fold is None:
            return ParsedAnswer()
        return self._reply_reader.fold.build_answer()

    @property
    def is_answered(self) -> bool:
        """Whether the model's own answer came, to its end."""
        if self.outcome is AttemptOutcome.CUT_BY_WINDOW:
            # An answer with words or calls is worth keeping wherever it was cut. An empty one is an overflow, unless
            # the caller already has its events: those cannot be taken back.
            return self.has_delivered or _has_words_or_calls(self.answer.message)
        has_answer = self.outcome in {AttemptOutcome.ANSWERED, AttemptOutcome.SILENCE_ACCEPTED}
        # The finish reason can still name a failure ("error", "malformed_function_call").
        return has_answer and self.verdict.kind in ANSWER_KINDS

    @property
    def is_complete(self) -> bool:
        """Whether the model's answer came to its end, though its connection may still be open."""
        return self.is_answered or self.partial_answer.is_complete

    @property
    def cached_request(self) -> CachedRequest:
        """The request as the provider's prompt cache now holds it, for a summary request that continues it."""
        usage = self.answer.usage
        return CachedRequest(
            self._request.api,
            self._request.model,
            self._request.body,
            len(self.plan.state.history.sized_messages),
            usage.input if usage else self.plan.after,
            self.target.setup.digest,
            self._request.stream,
        )

    @property
    def refusal(self) -> ProviderRefusal:
        """The failure of this attempt in the terms of the recovery machine."""
        verdict = self.verdict
        return ProviderRefusal(
            verdict.kind,
            verdict.is_overflow,
            retry_after=verdict.retry_after,
            token_limit=verdict.limit,
            counted_tokens=self._provider_token_count,
            estimated_tokens=self.plan.after,
            has_answer_started=self.has_delivered,
            status=self._status,
            has_media=self.plan.state.view.media_count > 0,
            is_signature_error=self.outcome is AttemptOutcome.SIGNATURES_REFUSED,
            field_lessons=self._field_lessons,
        )

    async def stream_events(self) -> AsyncGenerator[list[StreamEvent]]:
        """Send the request, yield the API's own events in the batches they arrive in, and judge the reply.

        Failures of the upstream do not raise: they become ``outcome`` and ``verdict``.
        """
        try:
            async with self._upstream.send(self._request) as reply:
                reader = self._reply_reader = ReplyReader(reply, self._request)
                async with aclosing(reader.read_events()) as batches:
                    async for batch, has_content in batches:
                        self.has_started = self.has_started or (has_content and reader.is_stream)
                        if self.has_delivered:
                            yield batch
                            continue
                        self._held_events += batch
                        if reader.is_stream and self._can_deliver(has_content=has_content):
                            yield self._release_held_events()
                self.has_ended = True
                self._judge_answer(reader.build_answer())
        except UpstreamError as error:
            self._fail(Verdict(_get_error_kind(error), retry_after=error.retry_after), str(error))
        except OSError as error:
            # Holdfast's own errors about the store are OSErrors too, and none of the provider's doing.
            if isinstance(error, HoldfastError):
                raise
            self._fail(Verdict("network"), f"{type(error).__name__}: {error}")
        if self.outcome is AttemptOutcome.SILENCE_ACCEPTED:
            await self._on_silence()
        # What is still held now is a reply that was no stream, or the end of one in which the model said nothing.
        is_final = self.is_answered or self.has_delivered
        if is_final and self._held_events and self._delivery is not EventDelivery.NEVER:
            yield self._release_held_events()

    def judge_unread_answer(self) -> bool:
        """Judge an answer that came to its end although the caller stopped reading; return whether it is one.

        A caller that has all the events it waited for often closes the stream before the connection ends.
        """
        if not self.is_answered and self.is_complete:
            self._judge_answer(self.partial_answer)
        return self.is_answered

    def _can_deliver(self, *, has_content: bool) -> bool:
        """Return whether held events may go to the caller; ``has_content``: the newest ones have words of the model."""
        match self._delivery:
            case EventDelivery.AS_RECEIVED:
                return True
            case EventDelivery.ONCE_STARTED:
                return has_content
            case EventDelivery.NEVER:
                return False

    def _release_held_events(self) -> list[StreamEvent]:
        """Return the held events; from now on events are passed on as they come."""
        held_events = self._held_events
        self._held_events = []
        self.has_delivered = True
        return held_events

    def _estimate_prompt_tokens(self, answer: ParsedAnswer) -> int | None:
        """Return our own estimate of the prompt, to compare with the reported count, or None if it is unreliable.

        It is unreliable if a hook changed the messages, since those were not estimated, and if media are shown: a small
        picture takes far fewer tokens than the flat figure that is estimated for one.
        """
        plan = self.plan
        if not self.is_as_planned or plan.state.view.media_count:
            return None
        measured_request = get_valid_measured_request(plan.state)
        prompt_usage = answer.request_usage
        if measured_request is None or prompt_usage is None:
            return plan.after
        has_grown = prompt_usage.input > measured_request.reported_tokens
        if has_grown:
            return plan.after
        # A server that silently drops the front of a long prompt reports nearly the same count again and again.
        # `plan.after` is built on the last of those counts and would confirm it, so the whole prompt is estimated anew.
        return estimate_request_tokens(plan.state, self.target, plan.state.view.shown_tokens)

    def _fail(self, verdict: Verdict, failure_text: str) -> None:
        self.outcome = AttemptOutcome.FAILED
        self.verdict = verdict
        self.failure_text = failure_text

    def _judge_answer(self, answer: ParsedAnswer) -> None:
        """Set outcome, verdict and failure text from a reply that was read to its end."""
        self.answer = answer
        report = answer.to_report(self._estimate_prompt_tokens(answer), self.target.limits.window)
        verdict = classify_error(report)
        self._provider_token_count = verdict.requested
        self.verdict = _drop_impossible_count(verdict, len(self._request.body))
        if isinstance(report, ErrorReport):
            is_about_signatures = is_signature_error(report, self.verdict.kind)
            if is_about_signatures:
                self.outcome = AttemptOutcome.SIGNATURES_REFUSED
            else:
                self.outcome = AttemptOutcome.REFUSED
                self.refused_media = find_refused_media(report, self.verdict.kind, self._request.body)
                self.expired_container = self._find_expired_container(report)
                if self.refused_media is not None:
                    self.verdict = replace(self.verdict, kind="media")
                elif self.expired_container:
                    self.verdict = replace(self.verdict, kind="invalid_request")
                else:
                    self.named_fields = find_named_fields(report, self.verdict.kind, self.verdict.output_cap)
                    self._field_lessons = find_field_lessons(self.named_fields, self._upstream, self._request)
            self.failure_text = describe_error_report(report, self.verdict)
            self._status = report.status
            return
        # A finish reason "window exceeded" keeps its outcome even where the end of the stream is missing: the words
        # before it are still the model's answer.
        is_cut_by_window = self.verdict.kind == "context_window"
        if is_cut_by_window:
            self.outcome = AttemptOutcome.CUT_BY_WINDOW
        else:
            self.outcome = AttemptOutcome.FAILED
        if not answer.is_complete:
            self.verdict = Verdict("network")
            self.failure_text = "the answer broke off before its end"
        elif not answer.message.parts and answer.stop_reason == "unknown":
            self.verdict = Verdict("server")
            self.failure_text = "the answer is empty and has no finish reason"
        elif is_cut_by_window:
            self.failure_text = "the answer ended because the window was full"
        else:
            self._judge_ended_answer(answer)

    def _find_expired_container(self, report: ErrorReport) -> str:
        """Return the container that the request names if the refusal says that it is gone, else an empty string."""
        spec = API_SPECS.get(self._request.api)
        if spec is None or spec.containers is None:
            return ""
        container = spec.containers.read(self._request.body)
        return container if is_container_error(report, self.verdict.kind, container) else ""

    def _judge_ended_answer(self, answer: ParsedAnswer) -> None:
        """Take a reply that ended well for an answer, unless it is empty because the request was too large."""
        silence = classify_empty_answer(answer, self.verdict, self.plan, self._max_output)
        if not silence:
            self.outcome = AttemptOutcome.ANSWERED
            return
        if not self._can_shrink or self.has_delivered:
            self.outcome = AttemptOutcome.SILENCE_ACCEPTED
            return
        self.outcome = AttemptOutcome.SILENT_OVERFLOW
        self.verdict = Verdict("silent_overflow", self.verdict.limit, self.verdict.requested)
        self.failure_text = describe_silent_overflow(answer, self.plan)
        # By its size alone it is only a guess that the request was too large, and no limit may be learned from a guess.
        if silence == "by_size":
            self.is_as_planned = False


def _has_words_or_calls(message: Message) -> bool:
    return bool(message.text.strip() or message.calls)


def _drop_impossible_count(verdict: Verdict, body_bytes: int) -> Verdict:
    """Return ``verdict`` without a token count above ``body_bytes``: no text has more tokens than bytes.

    Such a number counts something else, and must not be learned as the size of a request.
    """
    if verdict.requested is not None and verdict.requested > body_bytes:
        return replace(verdict, requested=None)
    return verdict


def _get_error_kind(error: UpstreamError) -> VerdictKind:
    """Return the kind of an error that an upstream raised; "network" if it names none."""
    if error.kind in VERDICT_KINDS and error.kind != "unknown":
        return cast("VerdictKind", error.kind)
    return "network"


def describe_error_report(report: ErrorReport, verdict: Verdict) -> str:
    """Return one line with the provider's status, its token numbers and the beginning of its own message."""
    status = f"HTTP {report.status}" if report.status else "an error"
    numbers = ""
    if verdict.requested and verdict.limit:
        numbers = f", {verdict.requested:,} of {verdict.limit:,} tokens"
    message = report.message_line[:_MAX_PROVIDER_CHARS]
    return f"the provider answered with {status} ({verdict.kind}{numbers}): {message}"


async def prepare_attempt(
    runtime: SessionRuntime,
    template: RequestTemplate,
    prepared_request: PreparedRequest,
    *,
    quiet: bool,
) -> Attempt:
    """Return an attempt at ``prepared_request``, ready to be sent; ``quiet`` passes on no events.

    Raises ``InvalidRequest`` if the body breaks a rule of its API and cannot be fixed.
    """
    sized_messages = await _apply_transform_hook(runtime, prepared_request.messages)
    is_as_planned = _has_same_items(sized_messages, prepared_request.messages)
    resources = runtime.resources
    upstream = template.request_options.upstream or resources.upstream
    upstream_request = template.build_upstream_request(prepared_request, sized_messages)
    upstream_request = replace(upstream_request, version=find_header_version(upstream))

    is_client_body = template.is_client_body(upstream_request.body)
    if not template.request_options.observe_only:
        upstream_request = _name_container(runtime, upstream_request)
    may_be_wrong = runtime.requires_check or not is_client_body
    knows_message_rules = runtime.knows_message_rules(template.target.dialect)
    checks_change = resources.check_mode == "changed" and may_be_wrong and knows_message_rules
    if resources.check_mode == "all" or checks_change:
        try:
            upstream_request, option_fixes = _check_outgoing_request(
                runtime,
                template,
                upstream_request,
                sized_messages,
                is_as_planned=is_as_planned,
            )
            await record_option_fixes(runtime, option_fixes)
        except InvalidRequest:
            # A body that its client wrote goes to the provider unchanged: the client gets the provider's own error.
            if resources.check_mode == "all" or not is_client_body:
                raise

    is_observed = template.request_options.observe_only
    ask_for_window(runtime, upstream, template.target.model)
    if not is_observed and can_recover_from_refusals(runtime.settings):
        # After the check: what this server wants is no matter of the rules of its API.
        upstream_request = await apply_known_lessons(runtime, template.target, upstream, upstream_request)
    plan = prepared_request.plan
    upstream_request = trace_attempt(runtime, upstream_request, plan, sized_messages, template)
    runtime.emit_event(events.RequestStarted(runtime.key, len(sized_messages), plan.after, plan.window))
    return Attempt(
        upstream,
        upstream_request,
        prepared_request,
        delivery=_choose_event_delivery(quiet=quiet, is_observed=is_observed),
        is_as_planned=is_as_planned,
        can_shrink=(
            not is_observed and can_recover_from_refusals(runtime.settings) and not template.accepts_empty_answer
        ),
        on_silence=partial(accept_empty_answer, runtime),
    )


def _name_container(runtime: SessionRuntime, upstream_request: UpstreamRequest) -> UpstreamRequest:
    """Return the request with the container of the last answer if code waits there for results, and without an expired
    one.
    """
    spec, history = API_SPECS.get(upstream_request.api), runtime.journal.state.history
    if spec is None or spec.containers is None or not (history.container or history.expired_containers):
        return upstream_request
    body = spec.containers.name(upstream_request.body, history.container, history.expired_containers)
    return replace(upstream_request, body=body)


def _choose_event_delivery(*, quiet: bool, is_observed: bool) -> EventDelivery:
    if quiet:
        return EventDelivery.NEVER
    if is_observed:
        return EventDelivery.AS_RECEIVED
    return EventDelivery.ONCE_STARTED


def _has_same_items(messages: Sequence[SizedMessage], planned: Sequence[SizedMessage]) -> bool:
    """Return whether both sequences hold the same objects; equality would compare the whole history."""
    return messages is planned or [*map(id, messages)] == [*map(id, planned)]


def _check_outgoing_request(
    runtime: SessionRuntime,
    template: RequestTemplate,
    upstream_request: UpstreamRequest,
    messages: Sequence[SizedMessage],
    *,
    is_as_planned: bool,
) -> tuple[UpstreamRequest, Sequence[RequestFix]]:
    """Return ``upstream_request`` as its API accepts it, and the changes of its options; or raise ``InvalidRequest``.

    A client repeats its whole conversation with every request. Only the part that is new since the last checked request
    is checked, so that the cost of a check does not grow with the conversation.
    """
    client_body = None
    dialect = template.target.dialect
    if is_as_planned and runtime.resources.check_mode == "changed":
        client_body = template.parsed_body
    last_checked = runtime.last_checked_request
    check_result = CheckResult(upstream_request)
    if client_body is None or not is_already_checked(upstream_request, messages, client_body, last_checked, dialect):
        check_result = check_request(upstream_request, dialect, hook="" if is_as_planned else "transform_messages")
    if client_body is not None and not check_result.fixed_rule:
        runtime.last_checked_request = make_check_baseline(upstream_request, messages)
    else:
        runtime.last_checked_request = None
    if check_result.broken_message_rule:
        runtime.emit_event(events.NoticeGiven(runtime.key, check_result.broken_message_rule, FIXED_NOTICE))
    return check_result.upstream_request, check_result.option_fixes


async def _apply_transform_hook(runtime: SessionRuntime, messages: Sequence[SizedMessage]) -> Sequence[SizedMessage]:
    """Return the messages as the ``transform_messages`` hook wants this request to show them."""
    if runtime.resources.hooks.transform_messages is None:
        return messages
    new_messages = await runtime.call_hook("transform_messages", [sized_message.message for sized_message in messages])
    if new_messages is None:
        return messages
    # A message that the hook returns untouched is the same object: it keeps its size and its bytes.
    messages_by_id = {id(sized_message.message): sized_message for sized_message in messages}
    return [messages_by_id.get(id(message)) or SizedMessage(message) for message in new_messages]
