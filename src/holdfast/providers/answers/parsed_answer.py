"""The answer of a model, in one form for all APIs."""

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
"""Why the model stopped.

- ``end``: it was done; ``tool``: it wants tools to be run
- ``length``: the output limit; ``window``: the context window is full
- ``pause``: the server wants the answer sent back, to continue it
- ``compaction``: the provider stopped after a compaction
- ``refusal``: the model or a guard refused; ``content_filter``: a filter cut the answer off
- ``stop_sequence``: a stop sequence of the request
- ``error``: the answer failed; ``unknown``: a reason that is new or missing
"""


class ParsedAnswer(Struct, frozen=True):
    """One answer of a model.

    Content of an unknown kind is kept, in ``history_elements`` and as opaque parts of ``message``.
    """

    message: Message = Message("assistant")
    history_elements: tuple[bytes, ...] = ()
    """The answer as elements of the next request's list of messages, in the API's own form.

    It is one message (or Gemini content), several items on Responses, and none if the answer is empty.
    """
    stop_reason: StopReason = "unknown"
    native_stop_reason: str = ""
    """The API's own word for the stop reason, or an empty string."""
    usage: Usage | None = None
    """Usage of the last model call: the tokens that the window holds now."""
    billed_usage: Usage | None = None
    """Usage of all model calls made for the answer, including compactions and server-side tools: the tokens to pay."""
    model: str = ""
    id: str = ""
    error: ErrorReport | None = None
    """The error in the body or in the stream, also under HTTP 200; ``classify_error`` reads it."""
    is_complete: bool = True
    """Whether the answer arrived to its end: it was not cut off, did not fail, and does not continue in background."""
    cleared_tokens: int = 0
    """Prompt tokens that the provider left out itself, because the request allowed it (context editing)."""
    dropped_thinking: tuple[str, ...] = ()
    """The reason for each piece of thinking in the request that the provider kept from the model, in its own words."""
    container: str = ""
    """The id of the container in which code that the provider runs waits; the next request has to name it."""
    is_damaged: bool = False
    """Whether bytes that are not text were replaced by U+FFFD or dropped.

    Signatures and ids in a damaged answer may be wrong, and the provider may refuse them.
    """

    @property
    def request_usage(self) -> Usage | None:
        """The usage of the request as it was sent, before the provider compacted or cleared parts of it.

        Estimates are compared with this one; ``usage`` counts what was left after that.
        """
        if self.usage is None:
            return None
        if any(isinstance(part, Opaque) and part.kind == "compaction" for part in self.message.parts):
            return self.billed_usage or self.usage
        if self.cleared_tokens:
            return replace(self.usage, input=self.usage.input + self.cleared_tokens)
        return self.usage

    def to_report(self, estimate: int | None = None, window: int | None = None) -> ProviderReport:
        """Return the report for ``classify_error``: the error, or the stop reason and usage of the answer.

        ``estimate`` is our own estimate of the request and ``window`` the assumed window, both in tokens.
        """
        if self.error is not None:
            return replace(self.error, estimate=estimate, window=window)
        usage = self.request_usage
        if usage is None:
            counts = {}
        else:
            counts = {"prompt_tokens": usage.input, "output_tokens": usage.output}
        return AnswerReport("", self.native_stop_reason, counts, estimate, window)
