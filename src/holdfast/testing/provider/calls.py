"""Requests to the strict provider and its replies, independent of any transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field

from holdfast.messages.parts import Opaque, Text, Thinking, ToolCall

Endpoint: TypeAlias = Literal["generate", "count", "compact"]
"""An answer, a count of input tokens, or a compaction (``/responses/compact``; Anthropic compacts in ``generate``)."""
StopReason: TypeAlias = Literal["end", "tool", "length", "window", "compaction", "refusal"]
"""Why an answer ended; ``window`` means that the context window was full."""


class IncomingRequest(Struct, frozen=True):
    """One request as it arrived: the bytes of its body, and the facts from its address and headers."""

    api: str
    """``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``."""
    endpoint: Endpoint
    body: bytes
    model: str = ""
    """The model if the address names it (Gemini); empty if the body does."""
    stream: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


class TokenUse(Struct, frozen=True):
    """Token counts of one answer; the three kinds of input do not overlap and add up to the prompt."""

    input: int
    """Input tokens that were neither read from the cache nor written to it."""
    output: int
    """Output tokens, including reasoning."""
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cache_write_1h: int = 0
    """The part of ``cache_write`` that is kept for an hour (Anthropic)."""

    @property
    def total_input(self) -> int:
        """All input tokens, cached or not."""
        return self.input + self.cache_read + self.cache_write


class RefusalReply(Struct, frozen=True):
    """The refusal of a request."""

    status: int
    """HTTP status; with ``in_stream``, the status it would have outside of a stream."""
    code: str
    """The provider's code: Anthropic's ``error.type``, OpenAI's ``error.code`` (empty for null), Gemini's status."""
    message: str
    retry_after: float | None = None
    """Seconds to wait, or None to say nothing about it."""
    in_stream: bool = False
    """Whether it is sent as an event of a stream that began with HTTP 200."""
    body: bytes = b""
    """The whole error body if it is not in the API's usual form (servers that only resemble the API)."""
    details: Mapping[str, str | int] = field(default_factory=dict)
    """Further fields: OpenAI's ``param``, and ``error_code``, which Anthropic has in ``error.details``."""


class TokenCountReply(Struct, frozen=True):
    """The reply to a count of input tokens."""

    tokens: int


class ModelAnswer(Struct, frozen=True):
    """The model's answer, with signatures and ids."""

    id: str
    model: str
    parts: tuple[Text | Thinking | ToolCall | Opaque, ...]
    """The content. Each part has as ``raw`` its exact JSON in a complete answer.

    That is a block (Anthropic), an element of ``tool_calls`` (Chat), an output item (Responses) or a part (Gemini); a
    text of Chat has none.
    """
    stop: StopReason
    usage: TokenUse
    compaction: TokenUse | None = None
    """The usage of a compaction inside this answer; Anthropic leaves it out of the top-level usage."""
    dropped_blocks: tuple[tuple[str, str], ...] = ()
    """Reasoning of the request that was dropped because it was made for another history.

    Pairs of its path (Anthropic) or item id (Responses) and the reason (``prefix_mismatch`` or ``model_mismatch``).
    """


class CompactReply(Struct, frozen=True):
    """The reply to ``/responses/compact``."""

    id: str
    items: tuple[bytes, ...]
    """The output items as JSON."""
    usage: TokenUse


ProviderReply: TypeAlias = RefusalReply | TokenCountReply | ModelAnswer | CompactReply
"""Any reply of the provider."""


class ScriptedAnswer(Struct, frozen=True):
    """One answer of the model, as a script gives it."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Tool calls: name and arguments."""
    thinking: str = ""
    stop: StopReason | Literal[""] = ""
    """Why it ends; empty for ``tool`` if there are calls, and else ``end``."""
