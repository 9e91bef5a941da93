"""One model that writes summaries: requests to it, and its answers, with retries while its provider fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import Upstream, UpstreamRequest, get_server_name
from holdfast.errors import (
    CompactionFailed,
    ConfigError,
    DeadlineExceeded,
    HoldfastError,
    OperationAborted,
    UpstreamError,
    raise_if_wrong_type,
)
from holdfast.events import EventListener, RetryScheduled
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.settings import Settings
from holdfast.planning.summary.prompts import SUMMARIZER_INSTRUCTIONS
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.shared_options import TEXT_FORMAT
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import OVERFLOW_KINDS, Verdict
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.options import read_request_options
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.recovery.retry import compute_summary_retry_delay
from holdfast.state.calibration.token_estimate import UNSEEN_MARGIN
from holdfast.state.costs import SummaryCall
from holdfast.state.entries import TRANSIENT_ERROR_KINDS, Usage
from holdfast.state.plan import PlanOptions
from holdfast.state.target import Target

if TYPE_CHECKING:
    from holdfast.telemetry.session_spans import SessionSpans

# Without room for thinking, a thinking model spends the summary's own tokens and is cut off before its end. Too much
# takes away from the part of the conversation that fits into one request. Chosen by judgement.
THINKING_TOKENS = 4_096
"""Output tokens asked for beside the summary for a model that thinks; at most an eighth of the window."""
_EXCLUDED_FIELDS = frozenset(
    {
        "tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "toolConfig", "tool_config",
        "response_format", "text", "instructions", "stop", "stop_sequences", "previous_response_id", "conversation",
        "cachedContent", "cached_content", "context_management",
    }
)  # fmt: skip
"""Fields of an agent's requests left out of a request for a summary: tools, answer formats, history kept elsewhere."""
PermitFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Returns a context manager held around one model call."""


class CompactionContext(Struct, frozen=True):
    """The surroundings of requests for a compaction: settings, the permit for a call, and the listeners."""

    settings: Settings = Settings()
    permit: PermitFactory = nullcontext
    listener: EventListener = lambda _: None
    on_cost: Callable[[SummaryCall], None] = lambda _: None
    """Called with each answered call."""
    session: str = ""
    """The session's name, for events."""
    spans: SessionSpans | None = None
    """Where the spans of the calls belong; None if nobody wants spans."""

    @asynccontextmanager
    async def hold_permit(self) -> AsyncIterator[None]:
        """Hold a permit around one call; raise ``CompactionFailed`` if the call is aborted."""
        try:
            async with self.permit():
                yield
        except OperationAborted as error:
            if isinstance(error, DeadlineExceeded):
                outcome = "timed_out"
            else:
                outcome = "cancelled"
            raise CompactionFailed(f"no summary was written: {error}", outcome) from error

    async def ask(self, upstream: Upstream, upstream_request: UpstreamRequest, provider: str = "") -> ParsedAnswer:
        """Return the answer to ``upstream_request``, asked with a permit; ``provider`` serves it, if that is known.

        Raises what ``ask_upstream`` does, and ``CompactionFailed`` if the call is aborted.
        """
        async with self.hold_permit():
            if self.spans is None:
                answer = await ask_upstream(upstream, upstream_request)
            else:
                answer = await _ask_in_span(self.spans, upstream, upstream_request, provider, self.session)
            self.record_cost(upstream_request, answer)
            return answer

    def record_cost(self, upstream_request: UpstreamRequest, answer: ParsedAnswer) -> None:
        """Report the usage of an answer, if it has any."""
        usage = answer.billed_usage or answer.request_usage
        if usage is not None and usage != Usage():
            self.on_cost(SummaryCall(upstream_request.api, upstream_request.model, usage))

    async def wait_before_retry(
        self,
        kind: str,
        attempt: int,
        retry_after: float | None,
    ) -> None:
        """Announce a retry after ``attempt`` calls, and sleep; ``kind`` is the kind of the last error."""
        seconds = compute_summary_retry_delay(attempt, retry_after, self.settings)
        self.listener(RetryScheduled(self.session, kind, seconds, attempt))
        await sleep(seconds)


async def _ask_in_span(
    spans: SessionSpans, upstream: Upstream, upstream_request: UpstreamRequest, provider: str, session: str
) -> ParsedAnswer:
    """Return the answer to ``upstream_request``; the call has a span, to which the server can add its own."""
    api, model = upstream_request.api, upstream_request.model
    call = spans.start_call(api=api, model=model, provider=provider, address=get_server_name(upstream), session=session)
    try:
        headers = {**upstream_request.headers, **call.make_headers()}
        answer = await ask_upstream(upstream, replace(upstream_request, headers=headers))
        call.set_answer(answer)
        if answer.error is not None:
            call.set_error(str(answer.error.status or "provider_error"))
    except BaseException as error:
        call.set_error(error.kind if isinstance(error, UpstreamError) else type(error).__name__)
        raise
    else:
        return answer
    finally:
        call.end()


class SummaryWriter(Struct, frozen=True):
    """A model that writes summaries, reached through an ``Upstream`` or an official SDK's client.

    ``fields`` are sent beside the messages of its requests, without tools.
    """

    upstream: Upstream
    target: Target
    fields: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    tokens_per_estimate: float = 0.0
    """Real tokens for one estimated token; 0 = the catalog's ratio for the model, and a margin of a tenth."""

    def with_upstream(self) -> SummaryWriter:
        """Return this writer with its client wrapped as an upstream.

        Raises ``ConfigError`` if a field has a wrong type, or the client is of an unknown kind or does not speak the
        writer's API.
        """
        raise_if_wrong_type(
            ConfigError,
            **{
                "SummaryWriter.target": (self.target, Target),
                "SummaryWriter.fields": (self.fields, Mapping),
                "SummaryWriter.headers": (self.headers, Mapping),
                "SummaryWriter.tokens_per_estimate": (self.tokens_per_estimate, float | int),
            },
        )
        return replace(self, upstream=wrap_upstream(self.upstream, self.target.api))

    @property
    def token_ratio(self) -> float:
        """Real tokens of this model for one estimated token."""
        return self.tokens_per_estimate or self.target.prior_ratio * UNSEEN_MARGIN

    @property
    def input_window(self) -> int:
        """The most tokens that a request to this model may have."""
        limits = self.target.limits
        return min(limits.window, limits.max_input or limits.window)

    def with_learned_window(self, target: Target) -> SummaryWriter:
        """Return this writer with the window of ``target``, if that is the same model with a smaller, learned one."""
        own_target = self.target
        learned_window = target.limits.window
        is_same_model = (own_target.api, own_target.model) == (target.api, target.model)
        if not is_same_model or learned_window >= own_target.limits.window:
            return self
        limits = replace(own_target.limits, window=learned_window)
        return replace(self, target=replace(own_target, limits=limits))

    def count_tokens(self, text: str) -> int:
        """Estimate the tokens of ``text`` for this model."""
        return round(estimate_text_tokens(text) * self.token_ratio)

    def get_max_output(self, cap: int) -> int:
        """Return the output limit for a summary of ``cap`` tokens, with room for thinking, within the model's own."""
        max_tokens = cap + min(THINKING_TOKENS, self.input_window // 8)
        return min(max_tokens, self.target.limits.max_output or max_tokens)

    def build_summary_request(self, text: str, output: int) -> UpstreamRequest:
        """Build the request that shows this model the summarizer instructions and ``text``, and nothing else."""
        spec, model = get_api_spec(self.target.api), self.target.model
        sized_messages = [
            SizedMessage(Message.from_text("system", SUMMARIZER_INSTRUCTIONS)),
            SizedMessage(Message.from_text("user", text)),
        ]
        excluded_fields = {*_EXCLUDED_FIELDS, *spec.system_fields, spec.messages_field}
        fields = {}
        for name, value in self.fields.items():
            if name not in excluded_fields:
                fields[name] = value
        request_body = build_request_body(
            spec.api,
            model,
            sized_messages,
            setup_fields=fields,
            options=PlanOptions(max_tokens=output, max_tokens_field=self.target.dialect.max_tokens_field),
        )
        return UpstreamRequest(
            spec.api,
            request_body,
            model,
            stream=fields.get("stream") is True,
            headers=self.headers,
        )


class CachedRequest(Struct, frozen=True):
    """A request that the provider has just read, so that its cache holds the conversation to summarize."""

    api: str
    model: str
    body: bytes
    """The body as it was sent."""
    message_count: int
    """How many messages of the history it covers."""
    tokens: int
    """Size of its prompt, as the provider counted it, or else estimated."""
    setup_digest: str = ""
    """Digest of its system prompt and tools."""
    stream: bool = False
    """Whether events were asked for."""

    def build_followup(self, writer: SummaryWriter, text: str) -> UpstreamRequest | None:
        """Build the same request with ``text`` as one more message, so that only ``text`` is not in the cache.

        Return None if it goes to another model than the writer's, if it forces an answer other than plain text (a
        format, a tool call), or if it would be too large. Everything before ``text`` stays byte for byte the same, the
        output limit included.
        """
        if (self.api, self.model) != (writer.target.api, writer.target.model):
            return None
        parsed_request = parse_request(self.body, self.api)
        options = read_request_options(self.api, parsed_request.fields, get_api_spec(self.api).messages_field)
        has_format = any(option.name == "format" and option.value != TEXT_FORMAT for option in options.shared_options)
        if has_format or options.tool_choice in {"any", "tool"}:
            return None
        size = self.tokens + writer.count_tokens(text) + (parsed_request.requested_max_tokens or 0)
        if size > writer.target.limits.window:
            return None
        messages = [*parsed_request.messages, SizedMessage(Message.from_text("user", text))]
        return UpstreamRequest(
            self.api,
            render_request(parsed_request, messages),
            self.model,
            stream=self.stream or options.stream is True,
            headers=writer.headers,
        )


class _SummaryCallResult(NamedTuple):
    """An answer, or None and what went wrong."""

    answer: ParsedAnswer | None
    verdict: Verdict
    reason: str


class SummaryRequestTooLarge(CompactionFailed):
    """A request for a summary was itself too large.

    ``limit`` and ``requested`` are the provider's numbers in tokens, 0 if it gave none.
    """

    def __init__(self, text: str, limit: int = 0, requested_tokens: int = 0) -> None:
        super().__init__(text)
        self.limit = limit
        self.requested = requested_tokens


async def ask_summary_writer(
    writer: SummaryWriter,
    upstream_request: UpstreamRequest,
    context: CompactionContext,
    tokens: int = 0,
) -> ParsedAnswer:
    """Send ``upstream_request``, of about ``tokens`` tokens, and return the answer, whatever it says.

    Failures of the provider are retried, up to ``summarizer.max_attempts`` calls in all; aborted work is not. Raises
    ``SummaryRequestTooLarge`` for an overflow and ``CompactionFailed`` for any other error.
    """
    attempt = 1
    while True:
        result = await _try_summary_call(writer, upstream_request, context, tokens)
        verdict = result.verdict
        if verdict.is_overflow:
            text = f"{_get_writer_name(writer)} refused the request for a summary as too large: {result.reason}"
            raise SummaryRequestTooLarge(
                text,
                verdict.limit or 0,
                verdict.requested or 0,
            )
        if result.answer is not None:
            return result.answer
        if verdict.kind not in TRANSIENT_ERROR_KINDS or attempt >= context.settings.summarizer.max_attempts:
            raise CompactionFailed(
                f"{_get_writer_name(writer)} wrote no summary ({verdict.kind}, try {attempt}): {result.reason}"
            )
        await context.wait_before_retry(verdict.kind, attempt, verdict.retry_after)
        attempt += 1


async def _try_summary_call(
    writer: SummaryWriter,
    upstream_request: UpstreamRequest,
    context: CompactionContext,
    tokens: int,
) -> _SummaryCallResult:
    """Make one call. Raises ``CompactionFailed`` only if it was aborted."""
    try:
        answer = await context.ask(writer.upstream, upstream_request, writer.target.dialect.provider)
    except UpstreamError as error:
        return _SummaryCallResult(None, _classify_upstream_error(error), str(error))
    except CompactionFailed:
        raise
    except HoldfastError as error:
        return _SummaryCallResult(None, Verdict("invalid_request"), str(error))
    except OSError as error:
        return _SummaryCallResult(
            None,
            Verdict("network"),
            f"{type(error).__name__}: {error}",
        )
    except Exception as error:  # noqa: BLE001 -- a writer's HTTP library may raise anything; other writers follow
        return _SummaryCallResult(
            None,
            Verdict("unknown"),
            f"{type(error).__name__}: {error}",
        )
    verdict = classify_error(answer.to_report(tokens or None, writer.target.limits.window))
    if answer.error is None:
        # An overflow without an error shows in the usage alone.
        return _SummaryCallResult(answer, verdict, "its reported usage is over the window")
    return _SummaryCallResult(None, verdict, answer.error.message or f"HTTP {answer.error.status}")


def _classify_upstream_error(error: UpstreamError) -> Verdict:
    if error.kind in TRANSIENT_ERROR_KINDS | OVERFLOW_KINDS:
        kind = error.kind
    else:
        kind = "unknown"
    return Verdict(kind, retry_after=error.retry_after)  # type: ignore[arg-type]


def _get_writer_name(writer: SummaryWriter) -> str:
    return writer.target.model or writer.target.api
