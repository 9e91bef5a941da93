"""Take secrets out of a text that is given to somebody else, or all words, with their length and their lines kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

MaskText: TypeAlias = Callable[[str], str]
"""Returns a text as somebody else may see it."""
_SECRET_PATTERNS = (
    # Keys that name themselves: OpenAI, Anthropic, GitHub, GitLab, Slack, Google, Amazon, Stripe, npm, Hugging Face.
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bgithub_pat_[A-Za-z0-9_]{20,}\b",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bAIza[A-Za-z0-9_-]{30,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}\b",
    r"\bnpm_[A-Za-z0-9]{30,}\b",
    r"\bhf_[A-Za-z0-9]{30,}\b",
    # Three parts of base64: a JSON web token.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    # What stands after a name that says so, or in an address before the host.
    r"(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{12,})",
    r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    (
        r"(?i:(?<![a-z])(?:[a-z0-9_.-]*(?:password|passwd|secret|token|api[_-]?key|private[_-]?key|credential)s?)"
        r"""["']?\s*[:=]\s*["']?)(?P<value>(?!\d+\b)[^\s"',;]{6,})"""
    ),
)
_SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in _SECRET_PATTERNS))
MASK = "▇▇▇"
"""Stands in the place of a secret."""
_WORD_CHARACTER = re.compile(r"[^\W_]")


def mask_secrets(text: str) -> str:
    """Return ``text`` with a mark in place of each secret that is known by its form.

    Known are the keys of large providers, tokens, private keys, passwords in addresses, and what is assigned to a name
    such as ``password``. Nobody can know all secrets: read what is left before you give it away.
    """
    return _SECRET.sub(_mask_match, text)


def _mask_match(match: re.Match[str]) -> str:
    value = match["value"]
    if value is None:
        return MASK
    return match[0][: -len(value)] + MASK


def mask_words(text: str) -> str:
    """Return ``text`` with every letter and digit replaced, so that lines, lengths and punctuation are left."""
    return _WORD_CHARACTER.sub("x", text)


def keep_text(text: str) -> str:
    """Return ``text`` as it is."""
    return text
