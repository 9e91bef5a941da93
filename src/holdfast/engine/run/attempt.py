"""One attempt: a request is made ready and goes out, its events come in, and what came of it is judged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.compaction.summarizer import CachedRequest
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.request_template import RequestTemplate
from holdfast.engine.run.check_request import check_request, is_already_checked, make_checked_request
from holdfast.engine.run.silence import accept_empty_answer, classify_empty_answer, describe_silent_overflow
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.replies import ReplyReader
from holdfast.engine.upstream.upstream import Reply, Upstream, UpstreamRequest
from holdfast.errors import HoldfastError, InvalidRequest, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import VERDICT_KINDS, ErrorReport, Verdict, VerdictKind
from holdfast.providers.errors.signature_errors import is_signature_error
from holdfast.recovery.machine import ProviderRefusal, can_recover_from_refusals
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.plan import Plan
from holdfast.state.target import Target
from holdfast.state.view import get_valid_measured_request

ANSWER_KINDS = frozenset({"content", "output_limit", "silent_overflow", "silent_truncation"})
"""Kinds of answers that are the model's, whatever is to be learned from them."""
_MAX_PROVIDER_CHARS = 400
"""Characters of a provider's own words that an error repeats."""
FIXED_NOTICE = "what was said breaks this rule: it goes out mended, and stays in the log as it came"
"""What is told of a request whose conversation its API would refuse."""


class Attempt:
    """A request on its way. Iterate ``stream_events``; afterwards it has an ``answer``, and why it is none.

    Nothing is given out before the model says something, so that until then another attempt can take its place; where
    nothing is changed none may, and all is given out as it comes. ``quiet`` gives out nothing at all. What is no stream
    is given out once it is judged.
    """

    def __init__(
        self,
        upstream: Upstream,
        upstream_request: UpstreamRequest,
        prepared_request: PreparedRequest,
        *,
        quiet: bool = False,
        as_planned: bool = True,
        holds: bool = True,
        presses: bool,
        on_silence: Callable[[], Awaitable[None]],
    ) -> None:
        self._upstream, self._request, self._prepared, self._quiet = upstream, upstream_request, prepared_request, quiet
        self._holds_events, self._can_shrink, self._on_silence = holds, presses, on_silence
        self.is_as_planned = as_planned
        """Whether what goes out is what was planned: its size tells of the plan's, then."""
        self.has_delivered = False
        """Whether bytes of the answer were given out."""
        self.has_started = False
        """Whether the model said something in a stream, given out or not."""
        self.has_ended = False
        """Whether the provider ended what came back, whatever it says."""
        self.answer = ParsedAnswer()
        self.verdict = Verdict("network")
        self.failure_text = "the answer was not read to its end"
        self._held_events: list[StreamEvent] = []
        self._reply_reader: ReplyReader | None = None
        self._status: int | None = None
        self._provider_token_count: int | None = None
        """What the provider says that it counted, believed or not."""
        self._is_error = False
        """Whether the provider said that it does not answer."""
        self.is_signature_refusal = False
        """Whether it was refused for what the provider had sealed before."""
        self.is_cut_by_window = False
        """Whether the model's own answer ended where the window did."""
        self.is_silent_overflow = False
        """Whether nothing was said to what was not read, and less can be asked."""
        self._is_silence_accepted = False
        """Whether that is the answer all the same."""

    @property
    def target(self) -> Target:
        """Whom this asks."""
        return self._prepared.target

    @property
    def body_size(self) -> int:
        """Bytes of the body that went out."""
        return len(self._request.body)

    @property
    def reply(self) -> Reply | None:
        """What came back, its status and headers; nothing where no reply came."""
        return None if self._reply_reader is None else self._reply_reader.reply

    @property
    def _max_output(self) -> int | None:
        """The tokens that the answer may have, where any limit was asked for."""
        return self.plan.options.max_tokens or self.target.limits.requested_output

    @property
    def is_streaming(self) -> bool:
        """Whether events have begun to come that are no refusal, though the model may not have said anything."""
        return self._reply_reader is not None and self._reply_reader.is_stream and self._reply_reader.reply.is_success

    @property
    def held_bytes(self) -> bytes:
        """What came back and was not given out, as it came."""
        return b"".join([event.raw for event in self._held_events])

    @property
    def plan(self) -> Plan:
        """What this request shows, and why."""
        return self._prepared.plan

    @property
    def partial_answer(self) -> ParsedAnswer:
        """What the model said before the answer broke off."""
        fold = self._reply_reader.fold if self._reply_reader is not None else None
        return ParsedAnswer() if fold is None else fold.build_answer()

    @property
    def is_answered(self) -> bool:
        """Whether the model's own answer came, to its end."""
        is_taken = self.verdict.kind in ANSWER_KINDS and not (self._is_error or self.is_silent_overflow)
        return is_taken or (self.is_cut_by_window and (self.has_delivered or _has_words_or_calls(self.answer.message)))

    @property
    def is_complete(self) -> bool:
        """Whether the model's answer came to its end, though its connection may not have ended."""
        return self.is_answered or self.partial_answer.is_complete

    @property
    def cached_request(self) -> CachedRequest:
        """What the provider has just read, for a summary that goes on from it."""
        upstream_request, state = self._request, self._prepared.plan.state
        tokens = self.answer.usage.input if self.answer.usage else self._prepared.plan.after
        return CachedRequest(
            upstream_request.api,
            upstream_request.model,
            upstream_request.body,
            len(state.history.sized_messages),
            tokens,
            self.target.setup.digest,
            upstream_request.stream,
        )

    @property
    def refusal(self) -> ProviderRefusal:
        """What recovery is told."""
        verdict = self.verdict
        return ProviderRefusal(
            verdict.kind,
            verdict.is_overflow,
            retry_after=verdict.retry_after,
            token_limit=verdict.limit,
            counted_tokens=self._provider_token_count,
            estimated_tokens=self._prepared.plan.after,
            has_answer_started=self.has_delivered,
            status=self._status,
            has_media=self.plan.state.view.media_count > 0,
            is_signature_error=self.is_signature_refusal,
        )

    async def stream_events(self) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the API's own events as they come, those together that came at once, and judge what they say."""
        try:
            async with self._upstream.send(self._request) as reply:
                incoming = self._reply_reader = ReplyReader(reply, self._request)
                async with aclosing(incoming.read_events()) as coming:
                    async for events, meaningful in coming:
                        self.has_started = self.has_started or (meaningful and incoming.is_stream)
                        if self.has_delivered:
                            yield events
                            continue
                        self._held_events += events
                        if (meaningful or not self._holds_events) and incoming.is_stream and not self._quiet:
                            yield self._release_held_events()
                self.has_ended = True
                self._judge_answer(incoming.build_answer())
        except UpstreamError as error:
            self.verdict, self.failure_text = Verdict(_get_error_kind(error), retry_after=error.retry_after), str(error)
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            self.verdict, self.failure_text = Verdict("network"), f"{type(error).__name__}: {error}"
        if self._is_silence_accepted:
            await self._on_silence()
        if (self.is_answered or self.has_delivered) and self._held_events and not self._quiet:
            yield self._release_held_events()

    def judge_unread_answer(self) -> bool:
        """Return whether what came is an answer, judged as one, although nobody read on to the end."""
        if not self.is_answered and self.is_complete:
            self._judge_answer(self.partial_answer)
        return self.is_answered

    def _release_held_events(self) -> list[StreamEvent]:
        """Return the events that were held back; from now on they are given out as they come."""
        held_events, self._held_events, self.has_delivered = self._held_events, [], True
        return held_events

    def _estimate_prompt_tokens(self, answer: ParsedAnswer) -> int | None:
        """Return the tokens that the prompt has as we count; where it did not grow, as counted anew from the start.

        Nothing where a hook changed it, for what that has was not counted, and where it shows media: a small picture
        has far less than is reckoned for one. Who drops the front of what is too long tells the same number again and
        again, and each is near the last.
        """
        plan, target = self._prepared.plan, self._prepared.target
        if not self.is_as_planned or plan.state.view.media_count:
            return None
        measured_request, prompt_usage = get_valid_measured_request(plan.state), answer.request_usage
        if measured_request is None or prompt_usage is None or prompt_usage.input > measured_request.reported_tokens:
            return plan.after
        return estimate_request_tokens(plan.state, target, plan.state.view.shown_tokens)

    def _judge_answer(self, answer: ParsedAnswer) -> None:
        self.answer = answer
        report = answer.to_report(self._estimate_prompt_tokens(answer), self.target.limits.window)
        verdict = classify_error(report)
        self.verdict, self._provider_token_count = (
            _drop_impossible_count(verdict, len(self._request.body)),
            verdict.requested,
        )
        self._is_error = isinstance(report, ErrorReport)
        self.is_cut_by_window = not self._is_error and self.verdict.kind == "context_window"
        if isinstance(report, ErrorReport):
            self.failure_text, self._status = describe_error_report(report, self.verdict), report.status
            self.is_signature_refusal = is_signature_error(report, self.verdict.kind)
        elif not answer.is_complete:
            self.verdict, self.failure_text = Verdict("network"), "the answer broke off before its end"
        elif not answer.message.parts and answer.stop_reason == "unknown":
            self.verdict, self.failure_text = Verdict("server"), "the answer says nothing, not even why"
        elif self.is_cut_by_window:
            self.failure_text = "the answer ended where the window did"
        else:
            self._judge_silence(answer)

    def _judge_silence(self, answer: ParsedAnswer) -> None:
        """Take an answer that says nothing to what was too large for an overflow, where less may be asked instead."""
        silent = classify_empty_answer(answer, self.verdict, self.plan, self._max_output)
        self.is_silent_overflow = bool(silent) and self._can_shrink and not self.has_delivered
        self._is_silence_accepted = bool(silent) and not self.is_silent_overflow
        if self.is_silent_overflow:
            numbers = (self.verdict.limit, self.verdict.requested)
            self.verdict, self.failure_text = (
                Verdict("silent_overflow", *numbers),
                describe_silent_overflow(answer, self.plan),
            )
            self.is_as_planned = self.is_as_planned and silent == "counted"  # a guess tells nothing of sizes


def _has_words_or_calls(message: Message) -> bool:
    """Return whether a message has words or calls: what a model said is its answer, wherever it was cut."""
    return bool(message.text.strip() or message.calls)


def _drop_impossible_count(verdict: Verdict, size: int) -> Verdict:
    """Return the verdict on a request of ``size`` bytes: no text has more tokens than bytes, such a count is none."""
    return replace(verdict, requested=None) if (verdict.requested or 0) > size else verdict


def _get_error_kind(error: UpstreamError) -> VerdictKind:
    """Return what kind of error an upstream raised; one that does not say is of the connection."""
    return cast("VerdictKind", error.kind) if error.kind in VERDICT_KINDS and error.kind != "unknown" else "network"


def describe_error_report(report: ErrorReport, verdict: Verdict) -> str:
    """Return what the provider said, with its status and its numbers."""
    status = f"HTTP {report.status}" if report.status else "an error"
    numbers = f", {verdict.requested:,} of {verdict.limit:,} tokens" if verdict.requested and verdict.limit else ""
    return f"the provider answered with {status} ({verdict.kind}{numbers}): {report.message_line[:_MAX_PROVIDER_CHARS]}"


async def prepare_attempt(
    runtime: SessionRuntime, template: RequestTemplate, prepared_request: PreparedRequest, *, quiet: bool
) -> Attempt:
    """Return an attempt to have ``prepared_request`` answered; nothing was sent yet. Raises ``InvalidRequest``."""
    sized_messages: Sequence[SizedMessage] = await _apply_transform_hook(runtime, prepared_request.messages)
    as_planned = sized_messages is prepared_request.messages or [*map(id, sized_messages)] == [
        *map(id, prepared_request.messages)
    ]
    upstream_request, resources = template.build_upstream_request(prepared_request, sized_messages), runtime.resources
    is_own = template.is_client_body(upstream_request.body)
    checks_changes = resources.check_mode == "changed" and (runtime.requires_check or not is_own)
    has_known_rules = not (
        runtime.requires_strict_form or template.target.dialect.keeps_client_content
    )  # of another server nobody knows what it refuses
    if resources.check_mode == "all" or (checks_changes and has_known_rules):
        try:
            upstream_request = _check_outgoing_request(
                runtime, template, upstream_request, sized_messages, as_planned=as_planned
            )
        except InvalidRequest:
            if resources.check_mode == "all" or not is_own:
                raise
    plan = prepared_request.plan
    runtime.emit_event(events.RequestStarted(runtime.key, len(sized_messages), plan.after, plan.window))
    upstream = template.request_options.upstream or resources.upstream
    holds = not template.request_options.observe_only
    return Attempt(
        upstream,
        upstream_request,
        prepared_request,
        quiet=quiet,
        as_planned=as_planned,
        holds=holds,
        presses=holds and can_recover_from_refusals(runtime.settings) and not template.accepts_empty_answer,
        on_silence=partial(accept_empty_answer, runtime),
    )


def _check_outgoing_request(
    runtime: SessionRuntime,
    template: RequestTemplate,
    upstream_request: UpstreamRequest,
    messages: Sequence[SizedMessage],
    *,
    as_planned: bool,
) -> UpstreamRequest:
    """Return ``upstream_request`` as its API takes it; of what a client sends anew each time, what was judged is not
    looked at.
    """
    own = template.parsed_body if as_planned and runtime.resources.check_mode == "changed" else None
    if own is not None and is_already_checked(upstream_request, messages, own, runtime.last_checked_request):
        rule = ""
    else:
        upstream_request, rule = check_request(upstream_request, hook="" if as_planned else "transform_messages")
    runtime.last_checked_request = (
        make_checked_request(upstream_request, messages) if own is not None and not rule else None
    )
    if rule:
        runtime.emit_event(events.NoticeGiven(runtime.key, rule, FIXED_NOTICE))
    return upstream_request


async def _apply_transform_hook(runtime: SessionRuntime, messages: Sequence[SizedMessage]) -> Sequence[SizedMessage]:
    """Return the slots as the hook wants this request to show them."""
    if runtime.resources.hooks.transform_messages is None:
        return messages
    new_messages = await runtime.call_hook("transform_messages", [sized_message.message for sized_message in messages])
    if new_messages is None:
        return messages
    messages_by_id = {id(sized_message.message): sized_message for sized_message in messages}
    return [messages_by_id.get(id(message)) or SizedMessage(message) for message in new_messages]
