"""One writer of summaries: requests to it, and its answers, tried again while only its provider is at fault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.replies import ask_upstream
from holdfast.engine.upstream.sdk import wrap_upstream
from holdfast.engine.upstream.upstream import Upstream, UpstreamRequest
from holdfast.errors import CompactionFailed, DeadlineExceeded, HoldfastError, OperationAborted, UpstreamError
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
from holdfast.providers.requests.request_body import build_request_body, parse_request, render_request
from holdfast.recovery.retry import compute_summary_retry_delay
from holdfast.state.calibration.token_estimate import UNSEEN_MARGIN
from holdfast.state.costs import SummaryCall
from holdfast.state.entries import TRANSIENT_ERROR_KINDS, Usage
from holdfast.state.plan import PlanOptions
from holdfast.state.target import Target

THINKING_TOKENS = 4_096
"""Output asked for beside the summary, since models think; at most an eighth of the window. [H]"""
_EXCLUDED_FIELDS = frozenset(
    {
        "tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "toolConfig", "tool_config",
        "response_format", "text", "instructions", "stop", "stop_sequences", "previous_response_id", "conversation",
        "cachedContent", "cached_content", "context_management",
    }
)  # fmt: skip
"""Fields of an agent's requests that a request for a summary has not: tools, the form of answers, history elsewhere."""
PermitFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""What is held around one model call and nothing else."""


class CompactionContext(Struct, frozen=True):
    """On which terms models are asked for a compaction: by whose numbers, with which permit, and who is told."""

    settings: Settings = Settings()
    permit: PermitFactory = nullcontext
    listener: EventListener = lambda _: None
    on_cost: Callable[[SummaryCall], None] = lambda _: None
    """Is told of each call that was answered."""
    session: str = ""
    """The name of the session that is told about."""

    @asynccontextmanager
    async def hold_permit(self) -> AsyncIterator[None]:
        """Hold a permit around one call; where the work is aborted that is a ``CompactionFailed`` that says so."""
        try:
            async with self.permit():
                yield
        except OperationAborted as error:
            outcome = "timed_out" if isinstance(error, DeadlineExceeded) else "cancelled"
            raise CompactionFailed(f"no summary was written: {error}", outcome) from error

    def record_cost(self, upstream_request: UpstreamRequest, answer: ParsedAnswer) -> None:
        """Take note of what the answer to ``upstream_request`` cost, where it says so."""
        usage = answer.billed_usage or answer.request_usage
        if usage is not None and usage != Usage():
            self.on_cost(SummaryCall(upstream_request.api, upstream_request.model, usage))

    async def wait_before_retry(self, kind: str, attempt: int, retry_after: float | None) -> None:
        """Wait before a request goes out again that was tried so often, and tell of it; ``kind`` is of its error."""
        seconds = compute_summary_retry_delay(attempt, retry_after, self.settings)
        self.listener(RetryScheduled(self.session, kind, seconds, attempt))
        await sleep(seconds)


class SummaryWriter(Struct, frozen=True):
    """A model that writes summaries, asked by an ``Upstream`` or an official SDK's client.

    ``fields`` stand beside the messages of its requests; tools in them stay out.
    """

    upstream: Upstream
    target: Target
    fields: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    tokens_per_estimate: float = 0.0
    """Real tokens for one of the estimator; 0 = what is known of the model before any usage, and a tenth."""

    def with_upstream(self) -> SummaryWriter:
        """Return this writer with its client as an upstream; ``ConfigError`` for what is no client of its API."""
        return replace(self, upstream=wrap_upstream(self.upstream, self.target.api))

    @property
    def token_ratio(self) -> float:
        """Real tokens that one of the estimator counts for."""
        return self.tokens_per_estimate or self.target.prior_ratio * UNSEEN_MARGIN

    @property
    def input_window(self) -> int:
        """Tokens of a request that this model reads."""
        return min(self.target.limits.window, self.target.limits.max_input or self.target.limits.window)

    def with_learned_window(self, target: Target) -> SummaryWriter:
        """Return this writer as it is asked beside ``target``: the same model reads no more than is known there."""
        own_target, other_limits = self.target, target.limits
        if (own_target.api, own_target.model) != (
            target.api,
            target.model,
        ) or other_limits.window >= own_target.limits.window:
            return self
        return replace(self, target=replace(own_target, limits=replace(own_target.limits, window=other_limits.window)))

    def count_tokens(self, text: str) -> int:
        """Return about how many of this model's tokens ``text`` has."""
        return round(estimate_text_tokens(text) * self.token_ratio)

    def get_max_output(self, cap: int) -> int:
        """Return the most tokens to ask for: ``cap`` for the summary, and some for a model that thinks before it."""
        max_tokens = cap + min(THINKING_TOKENS, self.input_window // 8)
        return min(max_tokens, self.target.limits.max_output or max_tokens)

    def build_summary_request(self, text: str, output: int) -> UpstreamRequest:
        """Return the request that shows this model our instructions and ``text``, and nothing else."""
        spec, model = get_api_spec(self.target.api), self.target.model
        sized_messages = [
            SizedMessage(Message.from_text("system", SUMMARIZER_INSTRUCTIONS)),
            SizedMessage(Message.from_text("user", text)),
        ]
        out_of_place = {*_EXCLUDED_FIELDS, *spec.system_fields, spec.messages_field}
        fields = {name: value for name, value in self.fields.items() if name not in out_of_place}
        request_body = build_request_body(
            spec.api, model, sized_messages, setup_fields=fields, options=PlanOptions(max_tokens=output)
        )
        return UpstreamRequest(spec.api, request_body, model, stream=fields.get("stream") is True, headers=self.headers)


class CachedRequest(Struct, frozen=True):
    """A request that the provider has just read, so that its cache holds what a summary is to be made of."""

    api: str
    model: str
    body: bytes
    """As it went out, byte for byte."""
    message_count: int
    """Slots of the branch that it stands for: the first it does not know."""
    tokens: int
    """Of its prompt, as the provider counts them or as they are estimated."""
    setup_digest: str = ""
    """Digest of what stood around its messages."""
    stream: bool = False
    """Whether events were asked for."""

    def build_followup(self, writer: SummaryWriter, text: str) -> UpstreamRequest | None:
        """Return the same request with ``text`` behind it; nothing where that would be another one, or too large.

        It is another one for another model, and where its answer cannot be plain words. The output it asks for is its
        own.
        """
        if (self.api, self.model) != (writer.target.api, writer.target.model):
            return None
        parsed_request = parse_request(self.body, self.api)
        request_fields = read_request_options(self.api, parsed_request.fields, get_api_spec(self.api).messages_field)
        has_format = any(
            option.name == "format" and option.value != TEXT_FORMAT for option in request_fields.shared_options
        )
        size = self.tokens + writer.count_tokens(text) + (parsed_request.requested_max_tokens or 0)
        if has_format or request_fields.tool_choice in {"any", "tool"} or size > writer.target.limits.window:
            return None
        request_body = render_request(
            parsed_request, [*parsed_request.messages, SizedMessage(Message.from_text("user", text))]
        )
        return UpstreamRequest(
            self.api,
            request_body,
            self.model,
            stream=self.stream or request_fields.stream is True,
            headers=writer.headers,
        )


class SummaryRequestTooLarge(CompactionFailed):
    """A request for a summary was itself too large, by the numbers that the provider gave (0 where it gave none)."""

    def __init__(self, text: str, limit: int = 0, requested_tokens: int = 0) -> None:
        super().__init__(text)
        self.limit = limit
        self.requested = requested_tokens


async def ask_summary_writer(
    writer: SummaryWriter, upstream_request: UpstreamRequest, context: CompactionContext, tokens: int = 0
) -> ParsedAnswer:
    """Return the answer to ``upstream_request``, a request of ``tokens`` tokens or more, whatever it says.

    Where only the provider is at fault it goes out again, ``summarizer.max_attempts`` times in all. Raises
    ``SummaryRequestTooLarge`` for an overflow and ``CompactionFailed`` for any other error; work that was aborted is
    not tried again.
    """
    attempt = 1
    while True:
        answer, verdict, why = await _try_summary_call(writer, upstream_request, context, tokens)
        if verdict.is_overflow:
            text = f"{_get_writer_name(writer)} takes no request for a summary this large: {why}"
            raise SummaryRequestTooLarge(text, verdict.limit or 0, verdict.requested or 0)
        if answer is not None:
            return answer
        if verdict.kind not in TRANSIENT_ERROR_KINDS or attempt >= context.settings.summarizer.max_attempts:
            raise CompactionFailed(
                f"{_get_writer_name(writer)} wrote no summary ({verdict.kind}, try {attempt}): {why}"
            )
        await context.wait_before_retry(verdict.kind, attempt, verdict.retry_after)
        attempt += 1


async def _try_summary_call(
    writer: SummaryWriter, upstream_request: UpstreamRequest, context: CompactionContext, tokens: int
) -> tuple[ParsedAnswer | None, Verdict, str]:
    """Return the answer, or nothing with what went wrong."""
    try:
        async with context.hold_permit():
            answer = await ask_upstream(writer.upstream, upstream_request)
            context.record_cost(upstream_request, answer)
    except UpstreamError as error:
        return None, _classify_upstream_error(error), str(error)
    except CompactionFailed:
        raise
    except HoldfastError as error:
        return None, Verdict("invalid_request"), str(error)
    except OSError as error:
        return None, Verdict("network"), f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 -- an HTTP library's own, of a writer: there are others, and an extract
        return None, Verdict("unknown"), f"{type(error).__name__}: {error}"
    verdict = classify_error(answer.to_report(tokens or None, writer.target.limits.window))
    if answer.error is None:
        return answer, verdict, "its own usage says so"
    return None, verdict, answer.error.message or f"HTTP {answer.error.status}"


def _classify_upstream_error(error: UpstreamError) -> Verdict:
    kind = error.kind if error.kind in TRANSIENT_ERROR_KINDS | OVERFLOW_KINDS else "unknown"
    return Verdict(kind, retry_after=error.retry_after)  # type: ignore[arg-type]


def _get_writer_name(writer: SummaryWriter) -> str:
    return writer.target.model or writer.target.api
