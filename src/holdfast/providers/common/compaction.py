"""What is asked of a provider that compacts a conversation itself, whichever API it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

JsonObject: TypeAlias = dict[str, Any]
COMPACTION_KIND = "compaction"
"""What APIs call the block, or item, that stands for what was said."""
INSTRUCTED_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the goal, what the user asked for, "
    "what was decided and why, what is done and what is open, and every path, command, name, number and error text "
    "that is still needed, word for word. Above all: {instructions}"
)
"""What is asked where somebody says what counts; on the Messages API this takes the place of the provider's own."""
_BETA_HEADER = "anthropic-beta"


class NativeCompactionRequest(Struct, frozen=True):
    """A request for nothing but a compaction."""

    endpoint: Literal["generate", "compact"]
    body: bytes
    headers: Mapping[str, str] = {}


def add_beta_header(headers: Mapping[str, str], beta_features: Iterable[str]) -> dict[str, str]:
    """Return ``headers`` with the beta features that are ``beta_features`` beside those it asks for."""
    lower_headers = {name.lower(): value for name, value in headers.items()}
    request_betas = [name.strip() for name in lower_headers.get(_BETA_HEADER, "").split(",")]
    features = ",".join(dict.fromkeys([name for name in (*request_betas, *beta_features) if name]))
    return lower_headers | ({_BETA_HEADER: features} if features else {})
