"""What an answer says, whatever API it came over."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque
from holdfast.providers.errors.report import AnswerReport, ErrorReport, ProviderReport
from holdfast.state.entries import Usage

StopReason: TypeAlias = Literal[
    "end",
    "tool",
    "length",
    "window",
    "pause",
    "compaction",
    "refusal",
    "content_filter",
    "stop_sequence",
    "error",
    "unknown",
]
"""Why the model stopped: it was done · it wants tools run · its output limit · the context window is full · the server
wants the answer sent back to go on · it compacted · it or a guard refused · a filter cut it · a stop sequence of the
request · something broke · a word nobody knows, or none."""


class ParsedAnswer(Struct, frozen=True):
    """One answer of a model. What is not known in it is kept, in ``history_elements`` and as opaque parts of
    ``message``.
    """

    message: Message = Message("assistant")
    history_elements: tuple[bytes, ...] = ()
    """The answer as elements of the next request's history, in the API's own form: one message or content, several
    items on Responses, none when nothing was said."""
    stop_reason: StopReason = "unknown"
    native_stop_reason: str = ""
    """The reason in the API's own word, or empty."""
    usage: Usage | None = None
    """The last call of the model: what the window holds now."""
    billed_usage: Usage | None = None
    """All calls behind this answer, with those of a compaction and of server-side tools: what is paid for."""
    model: str = ""
    id: str = ""
    error: ErrorReport | None = None
    """What the provider says went wrong, in the body or behind HTTP 200, as ``providers.errors`` classifies it."""
    is_complete: bool = True
    """Whether the answer was told to its end: not one that was cut, failed, or goes on in the background."""
    cleared_tokens: int = 0
    """Tokens of the prompt that the provider left out by itself, since the request let it (context editing)."""
    is_damaged: bool = False
    """Whether something in it was no text, and U+FFFD stands there or nothing: what is sealed in it, or named, may be
    nothing that its maker knows."""

    @property
    def request_usage(self) -> Usage | None:
        """The usage of the request as it was sent: with what the provider compacted of it, or cleared, while answering.

        That is what sizes are compared with; ``usage`` is what was left of it.
        """
        if self.usage is None:
            return None
        if any(isinstance(part, Opaque) and part.kind == "compaction" for part in self.message.parts):
            return self.billed_usage or self.usage
        return replace(self.usage, input=self.usage.input + self.cleared_tokens) if self.cleared_tokens else self.usage

    def to_report(self, estimate: int | None = None, window: int | None = None) -> ProviderReport:
        """Return what ``providers.errors.classify_error`` judges: the error, or how the answer ended and what it cost.

        ``estimate`` and ``window`` are our own, in tokens.
        """
        if self.error is not None:
            return replace(self.error, estimate=estimate, window=window)
        whole = self.request_usage
        counts = {} if whole is None else {"prompt_tokens": whole.input, "output_tokens": whole.output}
        return AnswerReport("", self.native_stop_reason, counts, estimate, window)
