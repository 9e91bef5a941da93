"""The validator: is this request one that the API takes? Every broken rule, with a JSON path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError, Unrecognised
from holdfast.wire.models import traits
from holdfast.wire.recognise import body_fields, recognise
from holdfast.wire.rules import (
    anthropic_blocks,
    anthropic_calls,
    anthropic_context,
    anthropic_options,
    anthropic_shape,
    openai_chat,
)
from holdfast.wire.rules.rule import Finding, Rule, findings, view

__all__ = ["RULES", "Finding", "Rule", "validate"]

_BY_API: dict[str, tuple[Rule, ...]] = {
    "anthropic": (
        *anthropic_shape.RULES,
        *anthropic_calls.RULES,
        *anthropic_blocks.RULES,
        *anthropic_options.RULES,
        *anthropic_context.RULES,
    ),
    "openai-chat": openai_chat.RULES,
}

RULES: tuple[Rule, ...] = tuple(rule for rules in _BY_API.values() for rule in rules)
"""Every rule there is, for the documentation."""


def validate(
    body: bytes | Mapping[str, Any], api: str | None = None, *, betas: Iterable[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong with a request body, nothing when the API takes it; linear in its size.

    ``betas`` are the beta features asked for in the request's headers; ``betas`` in the body count too. A missing
    model or ``max_tokens`` is no finding. Raises ``Unrecognised`` when the API is neither given nor told by the body.
    """
    try:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        found = body_fields(data)
        value = msgspec.json.decode(data) if isinstance(body, bytes) else body
    except (FormatError, msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return (Finding("json", "error", "$", f"{error}; no API takes it"),)
    speaks = api or recognise(found)
    if speaks not in _BY_API:
        raise Unrecognised(f"no rules are known for {speaks!r}; the APIs are {', '.join(_BY_API)}")
    request = view(value, len(data), _betas(value, betas), traits(_model(found)))
    return findings(_BY_API[speaks], request)


def _model(found: Mapping[str, Raw]) -> str:
    model = msgspec.json.decode(found["model"]) if "model" in found else ""
    return model if isinstance(model, str) else ""


def _betas(body: Mapping[str, Any], told: Iterable[str] | None) -> frozenset[str] | None:
    """Return the beta features from the caller and the body together, or nothing when neither says any."""
    listed = body.get("betas", body.get("anthropic_beta"))
    if told is None and not isinstance(listed, list):
        return None
    return frozenset(told or ()) | frozenset(beta for beta in (listed or ()) if isinstance(beta, str))
