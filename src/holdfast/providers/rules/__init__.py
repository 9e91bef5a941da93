"""The validator: is this request one that the API takes? Every broken rule, with a JSON path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import FormatError, Unrecognised
from holdfast.providers.anthropic.rules import blocks as anthropic_blocks
from holdfast.providers.anthropic.rules import calls as anthropic_calls
from holdfast.providers.anthropic.rules import context as anthropic_context
from holdfast.providers.anthropic.rules import options as anthropic_options
from holdfast.providers.anthropic.rules import server_tools as anthropic_server
from holdfast.providers.anthropic.rules import shape as anthropic_shape
from holdfast.providers.anthropic.rules import view as anthropic_view
from holdfast.providers.common.json.surrogates import first
from holdfast.providers.gemini.rules import calls as gemini_calls
from holdfast.providers.gemini.rules import contents as gemini_contents
from holdfast.providers.gemini.rules import options as gemini_options
from holdfast.providers.gemini.rules import view as gemini_view
from holdfast.providers.openai_chat.rules import calls as openai_chat_calls
from holdfast.providers.openai_chat.rules import content as openai_chat_content
from holdfast.providers.openai_chat.rules import options as openai_chat_options
from holdfast.providers.openai_chat.rules import view as openai_chat_view
from holdfast.providers.openai_responses.rules import calls as openai_responses_calls
from holdfast.providers.openai_responses.rules import items as openai_responses_items
from holdfast.providers.openai_responses.rules import options as openai_responses_options
from holdfast.providers.openai_responses.rules import view as openai_responses_view
from holdfast.providers.recognize import body_fields, recognise
from holdfast.providers.registry import FORMS
from holdfast.providers.rules import required
from holdfast.providers.rules.envelope import Envelope
from holdfast.providers.rules.foreign import plainly
from holdfast.providers.rules.rule import Finding, Rule, findings

__all__ = ["RULES", "Finding", "Rule", "validate"]


class _Api(Struct, frozen=True):
    """How the rules of an API read a request, and what they are."""

    view: Callable[[Envelope], Envelope]
    rules: tuple[Rule, ...]


_BY_API: dict[str, _Api] = {
    "anthropic": _Api(
        anthropic_view.view,
        (
            *anthropic_shape.RULES,
            *anthropic_calls.RULES,
            *anthropic_server.RULES,
            *anthropic_blocks.RULES,
            *anthropic_options.RULES,
            *anthropic_context.RULES,
        ),
    ),
    "openai-chat": _Api(
        openai_chat_view.view,
        (*openai_chat_content.RULES, *openai_chat_calls.RULES, *openai_chat_options.RULES),
    ),
    "openai-responses": _Api(
        openai_responses_view.view,
        (*openai_responses_items.RULES, *openai_responses_calls.RULES, *openai_responses_options.RULES),
    ),
    "gemini": _Api(gemini_view.view, (*gemini_contents.RULES, *gemini_calls.RULES, *gemini_options.RULES)),
}

RULES: tuple[Rule, ...] = tuple(rule for name, api in _BY_API.items() for rule in (*api.rules, *required.RULES[name]))
"""Every rule there is, for the documentation."""


def validate(
    body: bytes | Mapping[str, Any],
    api: str | None = None,
    *,
    betas: Iterable[str] | None = None,
    model: str = "",
    rules: Iterable[Rule] = RULES,
    whole: bool = False,
) -> tuple[Finding, ...]:
    """Return what is wrong with a request body, nothing when the API takes it; linear in its size.

    ``betas`` are the beta features asked for in the request's headers; ``betas`` in the body count too. ``model`` is
    the model where the body does not name it, as in Gemini's addresses; ``rules`` are those to judge by. That no model
    is named, or no ``max_tokens``, is a finding for a ``whole`` request alone. Raises ``Unrecognised`` when the API is
    neither given nor told by the body.
    """
    try:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        found = body_fields(data)
        value = msgspec.json.decode(data) if isinstance(body, bytes) else body
    except (FormatError, msgspec.MsgspecError, RecursionError, UnicodeError, TypeError) as error:
        cut = first(body) if isinstance(body, bytes) else ""
        why = f"half of a character stands in {cut}; put U+FFFD in its place, as holdfast fix does"
        return (Finding("json", "error", "$", why if cut else f"{error}; no API takes it"),)
    name = _told(api, found)
    speaks = _BY_API[name]
    request = speaks.view(Envelope(value, len(data), _betas(value, betas), _model(found) or model))
    judging = (*speaks.rules, *required.RULES[name]) if whole else speaks.rules
    if rules is not RULES:
        names = {rule.name for rule in rules}
        judging = tuple([rule for rule in judging if rule.name in names])
    field = FORMS[name].field
    return plainly(findings(judging, request), request.listed(field), field, request.listed("tools"), name)


def _told(api: str | None, found: Mapping[str, Raw]) -> str:
    """Return the API of a body; raises ``Unrecognised`` where there are no rules for it."""
    name = api or recognise(found)
    if not isinstance(name, str) or name not in _BY_API:
        raise Unrecognised(f"no rules are known for {name!r}; the APIs are {', '.join(_BY_API)}")
    return name


def _model(found: Mapping[str, Raw]) -> str:
    model = msgspec.json.decode(found["model"]) if "model" in found else ""
    return model if isinstance(model, str) else ""


def _betas(body: Mapping[str, Any], told: Iterable[str] | None) -> frozenset[str] | None:
    """Return the beta features from the caller and the body together, or nothing when neither says any."""
    listed = body.get("betas", body.get("anthropic_beta"))
    if told is None and not isinstance(listed, list):
        return None
    named = listed if isinstance(listed, list) else ()
    return frozenset(told or ()) | frozenset(beta for beta in named if isinstance(beta, str))
