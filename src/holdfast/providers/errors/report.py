"""Input and output of the classifier: reports on errors and answers, and the verdict on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

OverflowKind: TypeAlias = Literal[
    "context_window", "input_plus_output", "request_bytes", "message_count", "oversized_part", "tpm_ceiling",
    "tier_gate", "silent_overflow", "silent_truncation",
]  # fmt: skip
"""Kinds of errors that mean the request is too large; sending less cures them."""
OtherErrorKind: TypeAlias = Literal[
    "rate_limit", "quota", "billing", "overloaded", "auth", "server", "network", "output_limit", "media",
    "invalid_history", "invalid_request", "model", "config", "content", "unknown",
]  # fmt: skip
"""All other kinds; ``content`` is an answer without any sign of an overflow."""
VerdictKind: TypeAlias = OverflowKind | OtherErrorKind
OVERFLOW_KINDS: frozenset[str] = frozenset(get_args(OverflowKind))
VERDICT_KINDS: tuple[str, ...] = (*get_args(OverflowKind), *get_args(OtherErrorKind))


class ErrorReport(Struct, frozen=True):
    """An error of a provider, from a response with an error status or from inside a stream.

    All fields are optional: callers fill in those that they know.
    """

    provider: str = ""
    status: int | None = None
    """HTTP status of the response; 200 for an error inside of a stream."""
    code: str = ""
    message: str = ""
    body: Any = b""
    """The response body as bytes or text, or the error object as decoded JSON."""
    headers: Mapping[str, str] = {}
    estimate: int | None = None
    """Our own estimate of the request, in tokens."""
    window: int | None = None
    """The window that was assumed for the model, in tokens."""
    received_at: float | None = None
    """Time of arrival in seconds since 1970. A ``Retry-After`` date needs it if the response has no ``Date``."""

    @property
    def message_line(self) -> str:
        """The provider's message, or its body, on one line; ``NO_REASON_TEXT`` if both are empty."""
        text = self.message.strip()
        if not text and isinstance(self.body, bytes):
            text = self.body.decode("utf-8", "replace")
        elif not text:
            text = _format_error_body(self.body)
        line = " ".join(text.split())
        return NO_REASON_TEXT if line in _EMPTY_BODIES else line


NO_REASON_TEXT = "it gave no reason"
"""Reads on from "the provider refused the request: …"."""
_EMPTY_BODIES = frozenset({"", "null", "{}", "[]", '""'})


def _format_error_body(body: Any) -> str:
    try:
        return msgspec.json.encode(body).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return str(body)


class AnswerReport(Struct, frozen=True):
    """An answer that came without an error. It has no field for the text: that must not influence the verdict."""

    provider: str = ""
    finish_reason: str = ""
    """The API's own word (``stop``, ``max_tokens``, ``MAX_TOKENS``, …)."""
    usage: Mapping[str, Any] = {}
    """The usage object of any API."""
    estimate: int | None = None
    """Our own estimate of the request, in tokens."""
    window: int | None = None
    """The window that was assumed for the model, in tokens."""


ProviderReport: TypeAlias = ErrorReport | AnswerReport


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The kind of an error or answer, with the numbers it states; None for those that it does not state."""

    kind: VerdictKind
    limit: int | None = None
    """Tokens that fit: for overflows, and for rate limits that state both numbers."""
    requested: int | None = None
    """Tokens that were sent: the prompt alone if the text separates it from the answer, else the total."""
    retry_after: float | None = None
    """Seconds to wait before the next try."""
    max_bytes: int | None = None
    """Bytes that a request body may have."""
    output_cap: int | None = None
    """Most tokens that a request may ask for as answer; only for ``output_limit``."""
    sent_bytes: int | None = None
    """Bytes that were sent, if the error counts bytes and states them."""
    is_requested_minimum: bool = False
    """Whether ``requested`` is only a lower bound: vLLM stops counting one token after the limit ("at least")."""

    @property
    def counted_tokens(self) -> int:
        """Tokens that the provider counted in the prompt; 0 if it did not say, or stopped counting at the limit."""
        is_cut_count = self.is_requested_minimum and self.kind == "context_window"
        return 0 if is_cut_count else self.requested or 0

    @property
    def is_overflow(self) -> bool:
        """Whether the request was too large, so that sending less cures it."""
        return self.kind in OVERFLOW_KINDS
