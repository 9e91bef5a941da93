"""What a client asks of the strict provider and what it is answered, apart from any transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, field

from holdfast.messages.parts import Opaque, Text, Thinking, ToolCall

Endpoint: TypeAlias = Literal["generate", "count", "compact"]
"""An answer, a count of input tokens, or a compaction (``/responses/compact``; Anthropic's comes inside generate)."""
StopReason: TypeAlias = Literal["end", "tool", "length", "window", "compaction", "refusal"]
"""Why an answer ended. ``window``: the context window was full before the answer was."""


class IncomingRequest(Struct, frozen=True):
    """One request as it came in: the body's bytes, and what the address and the headers said."""

    api: str
    """``anthropic``, ``openai-chat``, ``openai-responses`` or ``gemini``."""
    endpoint: Endpoint
    body: bytes
    model: str = ""
    """The model where the address names it (Gemini); empty where the body does."""
    stream: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


class TokenUse(Struct, frozen=True):
    """Tokens of one answer; the three kinds of input add up to what was counted."""

    input: int
    """Input tokens that were neither read from the cache nor written to it."""
    output: int
    """Output tokens, those of the reasoning too."""
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
    """The request was not taken."""

    status: int
    """HTTP status; with ``in_stream`` what the status would have been."""
    code: str
    """The provider's own word: Anthropic's ``error.type``, OpenAI's ``error.code`` (empty = null), Gemini's status."""
    message: str
    retry_after: float | None = None
    """Seconds."""
    in_stream: bool = False
    """Said as an event of a stream that began with HTTP 200."""
    body: bytes = b""
    """The whole error body where it is not the API's usual one (servers that only resemble the API)."""
    details: Mapping[str, str | int] = field(default_factory=dict)
    """Further fields: OpenAI's ``param``; ``error_code``, which Anthropic has in ``error.details``."""


class TokenCountReply(Struct, frozen=True):
    """The answer to a count."""

    tokens: int


class ModelAnswer(Struct, frozen=True):
    """The model's answer, signed."""

    id: str
    model: str
    parts: tuple[Text | Thinking | ToolCall | Opaque, ...]
    """Each with its ``raw``: the block (Anthropic), ``tool_calls`` element (Chat), output item (Responses) or part
    (Gemini) exactly as it stands in a whole answer; a text of Chat has none."""
    stop: StopReason
    usage: TokenUse
    compaction: TokenUse | None = None
    """What a compaction inside this answer used; Anthropic leaves it out of the usage at the top."""
    dropped_blocks: tuple[tuple[str, str], ...] = ()
    """Reasoning that was left out because it was made for another history: its path (Anthropic) or item id
    (Responses), and why (``prefix_mismatch`` or ``model_mismatch``)."""


class CompactReply(Struct, frozen=True):
    """The answer to ``/responses/compact``: ``items`` are the JSON of the output items."""

    id: str
    items: tuple[bytes, ...]
    usage: TokenUse


ProviderReply: TypeAlias = RefusalReply | TokenCountReply | ModelAnswer | CompactReply
"""Whatever the provider answers."""


class ScriptedAnswer(Struct, frozen=True):
    """One scripted answer of the model."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Tool calls: name and arguments."""
    thinking: str = ""
    stop: StopReason | Literal[""] = ""
    """Why it ends; empty: ``tool`` with calls, else ``end``."""
