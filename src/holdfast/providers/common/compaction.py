"""The parts of a request for a provider-native compaction that APIs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

JsonObject: TypeAlias = dict[str, Any]
COMPACTION_KIND = "compaction"
"""The type of the block or item that replaces older messages, the same word in all APIs that compact."""
INSTRUCTED_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the goal, what the user asked for, "
    "what was decided and why, what is done and what is open, and every path, command, name, number and error text "
    "that is still needed, word for word. Above all: {instructions}"
)
"""The prompt of a compaction for which the user gave instructions. On the Messages API it replaces the provider's own
prompt, so it must ask for everything a summary needs and not for the user's emphasis alone."""
_BETA_HEADER = "anthropic-beta"


class NativeCompactionRequest(Struct, frozen=True):
    """A request that asks for a compaction and nothing else."""

    endpoint: Literal["generate", "compact"]
    body: bytes
    headers: Mapping[str, str] = {}


def add_beta_header(headers: Mapping[str, str], beta_features: Iterable[str]) -> dict[str, str]:
    """Return ``headers``, names in lower case, with ``beta_features`` appended to the beta header."""
    lower_headers = {name.lower(): value for name, value in headers.items()}
    own_features = [name.strip() for name in lower_headers.get(_BETA_HEADER, "").split(",")]
    features = [name for name in (*own_features, *beta_features) if name]
    if features:
        lower_headers[_BETA_HEADER] = ",".join(dict.fromkeys(features))
    return lower_headers
