"""Take secrets out of a text that is given to somebody else, or all words, with their length and their lines kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

MaskText: TypeAlias = Callable[[str], str]
"""Returns a text as somebody else may see it."""
# In JSON inside of JSON a line end is ``\\n``, so a key may stand right behind the letter of an escape.
_START = r"(?:\b|(?<=\\[bfnrt])|(?<=_))"
_SECRET_PATTERNS = (
    # Keys that name themselves: OpenAI, Anthropic, GitHub, GitLab, Slack, Google, Amazon, Stripe, npm, Hugging Face.
    _START + r"sk-[A-Za-z0-9_-]{16,}",
    _START + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    _START + r"glpat-[A-Za-z0-9_-]{16,}",
    _START + r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}",
    _START + r"AIza[A-Za-z0-9_-]{30,}",
    _START + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    _START + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    _START + r"npm_[A-Za-z0-9]{30,}",
    _START + r"hf_[A-Za-z0-9]{30,}",
    # Three parts of base64: a JSON web token. Bounded, so that a text of many dots takes no time.
    _START + r"eyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,}",
    (
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
    ),
    # The beginning of such a key, where a text was cut to one line.
    _START
    + r"(?:sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|xapp-|AIza|A[A-Z]{3}[A-Z0-9]|[rs]k_|npm_|hf_|eyJ)"
    + r"[A-Za-z0-9_.-]{1,1000}…",
    # What stands after a name that says so, or in an address before the host.
    r"(?i:(?<=bearer )\s{0,9}[A-Za-z0-9._~+/=-]{12,})",
    r"""(?i:(?<=cookie: )[^\r\n"'\\]{8,4000})""",
    r"(?i:(?<=authorization: basic )[A-Za-z0-9+/=_-]{8,})",
    r"(?<=://)[^\s/:@]{0,256}:[^\s/@]{1,1000}(?=@)",
)
_SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in _SECRET_PATTERNS))
_TELLING_NAME = r"(?:passwords?|passwd|passphrase|secret|token|api[_-]?key|private[_-]?key|credential)s?"
# Only the end of a name is looked for: beginnings may be as long as the text, which would take time by its square.
_ASSIGNED_SECRET = re.compile(
    rf"(?P<name>{_TELLING_NAME}(?:[_-]?(?:access|base|id|key|value)){{0,2}})"
    r"""(?P<quote_after>\\{0,15}["'])?\s{0,20}(?:===?|:=|=>|[:=])\s{0,20}"""
    r"""(?:(?P<quote>\\{0,15}["'])(?P<quoted>(?:(?<=\\)(?P=quote)|(?!(?P=quote))[^\r\n]){1,4000})"""
    r"""|(?P<bare>[^\s"',;&\\<>](?:[^\s"',;&\\]|\\(?![nrt"'\\])){5,}))""",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\d+\b")
MASK = "▇▇▇"
"""Stands in the place of a secret."""
MIN_ASSIGNED_CHARACTERS = 6
"""Characters of a value that is taken for a secret because of its name. Chosen by judgement: shorter ones are mostly
words such as ``true`` and ``none``."""
_WORD_CHARACTER = re.compile(r"[^\W_]")


def mask_secrets(text: str) -> str:
    """Return ``text`` with a mark in place of each secret that is known by its form.

    Known are the keys of large providers, tokens, private keys, passwords in addresses, and what is assigned to a name
    such as ``password``, also in JSON inside of JSON. Nobody can know all secrets: read what is left before you give it
    away. It takes time in proportion to the length of the text.
    """
    return _ASSIGNED_SECRET.sub(_mask_assigned, _SECRET.sub(MASK, text))


def _mask_assigned(match: re.Match[str]) -> str:
    group = "bare" if match["quoted"] is None else "quoted"
    value = match[group]
    # What is counted is no secret: max_tokens: 128000.
    is_count = "token" in match["name"].lower() and _COUNT.match(value) is not None
    if is_count or len(value) < MIN_ASSIGNED_CHARACTERS:
        return match[0]
    return match[0][: match.start(group) - match.start()] + MASK + match[0][match.end(group) - match.start() :]


def mask_words(text: str) -> str:
    """Return ``text`` with every letter and digit replaced, so that lines, lengths and punctuation are left."""
    return _WORD_CHARACTER.sub("x", text)


def keep_text(text: str) -> str:
    """Return ``text`` as it is."""
    return text
