"""What is asked and what is answered: a provider's error or answer in, its kind and its numbers out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

OverflowKind: TypeAlias = Literal[
    "context_window", "input_plus_output", "request_bytes", "message_count", "oversized_part", "tpm_ceiling",
    "tier_gate", "silent_overflow", "silent_truncation",
]  # fmt: skip
"""Ways in which a request is too large: sending less is the cure."""
OtherErrorKind: TypeAlias = Literal[
    "rate_limit", "quota", "billing", "overloaded", "auth", "server", "network", "output_limit", "media",
    "invalid_history", "invalid_request", "model", "config", "content", "unknown",
]  # fmt: skip
"""Everything else; ``content`` is an answer with nothing wrong about its size."""
VerdictKind: TypeAlias = OverflowKind | OtherErrorKind
OVERFLOW_KINDS: frozenset[str] = frozenset(get_args(OverflowKind))
VERDICT_KINDS: tuple[str, ...] = (*get_args(OverflowKind), *get_args(OtherErrorKind))


class ErrorReport(Struct, frozen=True):
    """An error of a provider, by status or inside of a stream: what of it is known, in any of its shapes.

    ``body`` is the response body or the error object; ``estimate`` and ``window`` are our own, in tokens.
    """

    provider: str = ""
    status: int | None = None
    code: str = ""
    message: str = ""
    body: Any = b""
    headers: Mapping[str, str] = {}
    estimate: int | None = None
    window: int | None = None
    received_at: float | None = None
    """When it came, in seconds since 1970: a date to come back at says nothing without, or without a ``Date``."""

    @property
    def message_line(self) -> str:
        """What the provider said, on one line; that it said nothing, where it did."""
        body = self.body.decode("utf-8", "replace") if isinstance(self.body, bytes) else _format_error_body(self.body)
        text = " ".join((self.message.strip() or body).split())
        return NO_REASON_TEXT if text in _EMPTY_BODIES else text


NO_REASON_TEXT = "it gave no reason"
"""What is told of a refusal without a word."""
_EMPTY_BODIES = frozenset({"", "null", "{}", "[]", '""'})


def _format_error_body(body: Any) -> str:
    try:
        return msgspec.json.encode(body).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return str(body)


class AnswerReport(Struct, frozen=True):
    """An answer that came without an error: how it ended and what it cost. Its text has no place here."""

    provider: str = ""
    finish_reason: str = ""
    usage: Mapping[str, Any] = {}
    estimate: int | None = None
    window: int | None = None


ProviderReport: TypeAlias = ErrorReport | AnswerReport


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What an error or an answer is.

    ``limit`` and ``requested`` are tokens (``requested`` the prompt alone where the text separates it), and are there
    for overflows and for rate limits that state both. ``retry_after`` is seconds. ``max_bytes`` is what a body may
    have.
    """

    kind: VerdictKind
    limit: int | None = None
    requested: int | None = None
    retry_after: float | None = None
    max_bytes: int | None = None

    @property
    def is_overflow(self) -> bool:
        """Whether sending less is the cure."""
        return self.kind in OVERFLOW_KINDS
