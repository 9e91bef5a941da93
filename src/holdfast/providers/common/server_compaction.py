"""Compactions while a provider answers: the options that ask for them, and the beta features that they need.

At a threshold the provider compacts, or clears old tool results, by itself; a compaction that is sent back needs the
feature by which it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from holdfast.errors import ConfigError, check_types
from holdfast.providers.common.json.raw_json import fields

ANTHROPIC, RESPONSES = "anthropic", "openai-responses"
KIND = "compaction"
"""What both APIs call the block, or item, that stands for what was said."""
ON_DEMAND, THRESHOLD, EDITING = "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"
"""Beta features of the Messages API: a compaction when asked for, one at a threshold, and the clearing of results."""
LEAST_THRESHOLD: Mapping[str, int] = {ANTHROPIC: 50_000, RESPONSES: 1_000}
"""Input tokens under which the providers refuse a threshold (their reference pages)."""
CLEARED_FROM, CLEARED_KEPT = 100_000, 3
"""Input tokens above which Anthropic clears results, and tool uses it keeps, where a request does not say."""

Json: TypeAlias = dict[str, Any]


def threshold_fields(api: str, tokens: int, *, instructions: str = "", pause: bool = False) -> Json:
    """Return the fields with which the provider compacts by itself above ``tokens`` input tokens.

    ``pause`` lets it stop behind the compaction (Anthropic alone); ``instructions`` take the place of its own prompt
    there. ``ConfigError`` for an API that cannot, and for a threshold that its provider refuses.
    """
    check_types(ConfigError, api=(api, str), tokens=(tokens, int))
    least = LEAST_THRESHOLD.get(api)
    if least is None:
        raise ConfigError(f"{api} has no compaction at a threshold; compact with a model, or make an extract")
    if tokens < least:
        raise ConfigError(f"{api} refuses a compaction threshold of {tokens:,} tokens; set {least:,} or more")
    if api == RESPONSES:
        return {"context_management": [{"type": KIND, "compact_threshold": tokens}]}
    edit: Json = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": tokens}}
    edit |= {"pause_after_compaction": True} if pause else {}
    edit |= {"instructions": instructions} if instructions.strip() else {}
    return {"context_management": {"edits": [edit]}}


def clearing_fields(
    tokens: int = CLEARED_FROM,
    *,
    keep: int = CLEARED_KEPT,
    at_least: int = 0,
    exclude: Iterable[str] = (),
    inputs: bool = False,
) -> Json:
    """Return the fields with which Anthropic clears old tool results above ``tokens`` input tokens.

    The newest ``keep`` tool uses stay, and those of the tools in ``exclude``; nothing happens where fewer than
    ``at_least`` tokens would go. ``inputs`` clears the arguments of the calls too. What the client holds stays whole.
    """
    edit: Json = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": tokens}}
    edit["keep"] = {"type": "tool_uses", "value": keep}
    edit |= {"clear_at_least": {"type": "input_tokens", "value": at_least}} if at_least else {}
    edit |= {"exclude_tools": list(exclude)} if exclude else {}
    edit |= {"clear_tool_inputs": True} if inputs else {}
    return {"context_management": {"edits": [edit]}}


def together(*options: Json) -> Json:
    """Return fields of ``threshold_fields`` and ``clearing_fields`` as one, in the order the provider wants."""
    for at, one in enumerate(options):
        if not isinstance(one, dict) or "edits" not in one.get("context_management", ()):
            raise ConfigError(f"options[{at}] has no edits of Anthropic's; give what clearing_fields(…) returns")
    edits = [edit for one in options for edit in one["context_management"]["edits"]]
    return {"context_management": {"edits": sorted(edits, key=lambda edit: not edit["type"].startswith("clear_"))}}


# -- what later requests need ------------------------------------------------------------------------------------------

_BETAS = {"compact_": THRESHOLD, "clear_": EDITING}
_BLOCK = re.compile(rb'"type"\s*:\s*"compaction"')
_HEADER = "anthropic-beta"


def betas(api: str, body: bytes) -> tuple[str, ...]:
    """Return the beta features that a body needs for what stands in it; nothing on other APIs than Anthropic's.

    A compaction made on demand needs its own as long as it is sent, one made at a threshold that of the threshold.
    """
    if api != ANTHROPIC or not (b'"compaction"' in body or b'"context_management"' in body):
        return ()
    found = fields(body, "the body")
    edits = [beta for kind in _edit_types(found) for start, beta in _BETAS.items() if kind.startswith(start)]
    asked = [ON_DEMAND] if _asks(found) or (_BLOCK.search(body) and THRESHOLD not in edits) else []
    return tuple(dict.fromkeys([*edits, *asked]))


def headers(given: Mapping[str, str], needed: Iterable[str]) -> dict[str, str]:
    """Return ``given`` with the beta features that are ``needed`` beside those it asks for."""
    told = {name.lower(): value for name, value in given.items()}
    listed = [name.strip() for name in told.get(_HEADER, "").split(",")]
    features = ",".join(dict.fromkeys([name for name in (*listed, *needed) if name]))
    return told | ({_HEADER: features} if features else {})


def _edit_types(found: Mapping[str, Raw]) -> list[str]:
    options = msgspec.json.decode(found["context_management"]) if "context_management" in found else None
    edits = options.get("edits") if isinstance(options, dict) else None
    return [str(edit.get("type")) for edit in edits or () if isinstance(edit, dict)]


def _asks(found: Mapping[str, Raw]) -> bool:
    return KIND in found and bytes(found[KIND]) != b"null"
