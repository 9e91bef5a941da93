"""One writer of summaries: requests to it, and its answers, tried again while only its provider is at fault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.replies import ask
from holdfast.engine.upstream.sdk import as_upstream
from holdfast.engine.upstream.upstream import Sent, Upstream
from holdfast.errors import Aborted, CompactionFailed, DeadlineExceeded, HoldfastError, UpstreamError
from holdfast.events import Listener, Retrying
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import count
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import Settings
from holdfast.planning.summary.prompts import INSTRUCTIONS
from holdfast.providers.common import request_options as asking
from holdfast.providers.common.shared_options import WORDS
from holdfast.providers.overflow import OVERFLOWS, Verdict, classify
from holdfast.providers.registry import form_of
from holdfast.providers.request_body import body, open_body, render
from holdfast.providers.responses import Answer
from holdfast.recovery.retry import summary_wait
from holdfast.state.calibration.token_estimate import UNSEEN_MARGIN
from holdfast.state.costs import Paid
from holdfast.state.entries import PASSING, Usage
from holdfast.state.plan import Options
from holdfast.state.target import Target

_OURS = frozenset(
    {
        "tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "toolConfig", "tool_config",
        "response_format", "text", "instructions", "stop", "stop_sequences", "previous_response_id", "conversation",
        "cachedContent", "cached_content", "context_management",
    }
)  # fmt: skip
"""Fields of an agent's requests that a request for a summary has not: tools, the form of answers, history elsewhere."""
Permit: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""What is held around one model call and nothing else."""


class Terms(Struct, frozen=True):
    """On which terms models are asked for a compaction: by whose numbers, with which permit, and who is told."""

    settings: Settings = Settings()
    permit: Permit = nullcontext
    tell: Listener = lambda _: None
    pay: Callable[[Paid], None] = lambda _: None
    """Is told of each call that was answered."""
    session: str = ""
    """The name of the session that is told about."""

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Hold a permit around one call; where the work is aborted that is a ``CompactionFailed`` that says so."""
        try:
            async with self.permit():
                yield
        except Aborted as error:
            outcome = "timed_out" if isinstance(error, DeadlineExceeded) else "cancelled"
            raise CompactionFailed(f"no summary was written: {error}", outcome) from error

    def paid(self, sent: Sent, told: Answer) -> None:
        """Take note of what the answer to ``sent`` cost, where it says so."""
        usage = told.spent or told.asked
        if usage is not None and usage != Usage():
            self.pay(Paid(sent.api, sent.model, usage))

    async def pause(self, kind: str, tried: int, wanted: float | None) -> None:
        """Wait before a request goes out again that was tried so often, and tell of it; ``kind`` is of its error."""
        seconds = summary_wait(tried, wanted, self.settings)
        self.tell(Retrying(self.session, kind, seconds, tried))
        await sleep(seconds)


class Writer(Struct, frozen=True):
    """A model that writes summaries, asked by an ``Upstream`` or an official SDK's client.

    ``fields`` stand beside the messages of its requests; tools in them stay out.
    """

    upstream: Upstream
    target: Target
    fields: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    scale: float = 0.0
    """Real tokens for one of the estimator; 0 = what is known of the model before any usage, and a tenth."""

    def known(self) -> Writer:
        """Return this writer with its client as an upstream; ``ConfigError`` for what is no client of its API."""
        return replace(self, upstream=as_upstream(self.upstream, self.target.api))

    @property
    def ratio(self) -> float:
        """Real tokens that one of the estimator counts for."""
        return self.scale or self.target.prior * UNSEEN_MARGIN

    @property
    def window(self) -> int:
        """Tokens of a request that this model reads."""
        return min(self.target.limits.window, self.target.limits.max_input or self.target.limits.window)

    def beside(self, target: Target) -> Writer:
        """Return this writer as it is asked beside ``target``: the same model reads no more than is known there."""
        mine, theirs = self.target, target.limits
        if (mine.api, mine.model) != (target.api, target.model) or theirs.window >= mine.limits.window:
            return self
        return replace(self, target=replace(mine, limits=replace(mine.limits, window=theirs.window)))

    def tokens(self, text: str) -> int:
        """Return about how many of this model's tokens ``text`` has."""
        return round(count(text) * self.ratio)

    def output(self, cap: int, settings: Settings) -> int:
        """Return the most tokens to ask for: ``cap`` for the summary, and some for a model that thinks before it."""
        wanted = cap + min(settings.summary_spare, self.window // 8)
        return min(wanted, self.target.limits.max_output or wanted)

    def request(self, text: str, output: int) -> Sent:
        """Return the request that shows this model our instructions and ``text``, and nothing else."""
        form, model = form_of(self.target.api), self.target.model
        slots = [Slot(Message.of("system", INSTRUCTIONS)), Slot(Message.of("user", text))]
        out_of_place = {*_OURS, *form.system, form.field}
        fields = {name: value for name, value in self.fields.items() if name not in out_of_place}
        told = body(form.api, model, slots, frame_fields=fields, options=Options(max_tokens=output))
        return Sent(form.api, told, model, stream=fields.get("stream") is True, headers=self.headers)


class Prefix(Struct, frozen=True):
    """A request that the provider has just read, so that its cache holds what a summary is to be made of."""

    api: str
    model: str
    body: bytes
    """As it went out, byte for byte."""
    stop: int
    """Slots of the branch that it stands for: the first it does not know."""
    tokens: int
    """Of its prompt, as the provider counts them or as they are estimated."""
    frame: str = ""
    """Digest of what stood around its messages."""
    stream: bool = False
    """Whether events were asked for."""

    def request(self, writer: Writer, text: str) -> Sent | None:
        """Return the same request with ``text`` behind it; nothing where that would be another one, or too large.

        It is another one for another model, and where its answer cannot be plain words. The output it asks for is its
        own.
        """
        if (self.api, self.model) != (writer.target.api, writer.target.model):
            return None
        lens = open_body(self.body, self.api)
        told = asking.read(self.api, lens.fields, form_of(self.api).field)
        shaped = any(option.name == "format" and option.value != WORDS for option in told.options)
        size = self.tokens + writer.tokens(text) + (lens.asked_output or 0)
        if shaped or told.choice in {"any", "tool"} or size > writer.target.limits.window:
            return None
        said = render(lens, [*lens.slots, Slot(Message.of("user", text))])
        return Sent(self.api, said, self.model, stream=self.stream or told.stream is True, headers=writer.headers)


class TooLarge(CompactionFailed):
    """A request for a summary was itself too large, by the numbers that the provider gave (0 where it gave none)."""

    def __init__(self, text: str, limit: int = 0, requested: int = 0) -> None:
        super().__init__(text)
        self.limit = limit
        self.requested = requested


async def answered(writer: Writer, sent: Sent, terms: Terms, tokens: int = 0) -> Answer:
    """Return the answer to ``sent``, a request of ``tokens`` tokens or more, whatever it says.

    Where only the provider is at fault it goes out again, ``summary_tries`` times in all. Raises ``TooLarge`` for an
    overflow and ``CompactionFailed`` for any other error; work that was aborted is not tried again.
    """
    attempt = 1
    while True:
        told, verdict, why = await _tried(writer, sent, terms, tokens)
        if verdict.is_overflow:
            text = f"{_name(writer)} takes no request for a summary this large: {why}"
            raise TooLarge(text, verdict.limit or 0, verdict.requested or 0)
        if told is not None:
            return told
        if verdict.kind not in PASSING or attempt >= terms.settings.summary_tries:
            raise CompactionFailed(f"{_name(writer)} wrote no summary ({verdict.kind}, try {attempt}): {why}")
        await terms.pause(verdict.kind, attempt, verdict.retry_after)
        attempt += 1


async def _tried(writer: Writer, sent: Sent, terms: Terms, tokens: int) -> tuple[Answer | None, Verdict, str]:
    """Return the answer, or nothing with what went wrong."""
    try:
        async with terms.call():
            told = await ask(writer.upstream, sent)
            terms.paid(sent, told)
    except UpstreamError as error:
        return None, _verdict(error), str(error)
    except CompactionFailed:
        raise
    except HoldfastError as error:
        return None, Verdict("invalid_request"), str(error)
    except OSError as error:
        return None, Verdict("network"), f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 -- an HTTP library's own, of a writer: there are others, and an extract
        return None, Verdict("unknown"), f"{type(error).__name__}: {error}"
    verdict = classify(told.report(tokens or None, writer.target.limits.window))
    if told.error is None:
        return told, verdict, "its own usage says so"
    return None, verdict, told.error.message or f"HTTP {told.error.status}"


def _verdict(error: UpstreamError) -> Verdict:
    kind = error.kind if error.kind in PASSING | OVERFLOWS else "unknown"
    return Verdict(kind, retry_after=error.retry_after)  # type: ignore[arg-type]


def _name(writer: Writer) -> str:
    return writer.target.model or writer.target.api
