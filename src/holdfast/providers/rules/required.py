"""What a whole request names beside its messages. Parts of requests, as tests and replays judge them, need not."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import ANTHROPIC_DOCS, OPENAI_DOCS, UNVERIFIED_MEMORY, Rule, Violations

_CLOUD_VERSION_PREFIXES = ("bedrock", "vertex")
"""How the version of the Messages API begins on clouds that have the model in the address."""


def _check_anthropic_required(request: RequestView) -> Violations:
    """A whole request names its model, unless its cloud's address does, and max_tokens."""
    if not str(request.body.get("anthropic_version")).startswith(_CLOUD_VERSION_PREFIXES):
        yield from _check_model_named(request)
    if request.body.get("max_tokens") is None:
        yield "$.max_tokens", "there is no max_tokens, which must be named here; say how long an answer may be"


def _check_model_named(request: RequestView) -> Violations:
    """A whole request names its model."""
    if not request.model:
        yield "$.model", "there is no model; name it, or tell it beside the request where the address has it"


def _check_model_or_prompt(request: RequestView) -> Violations:
    """A whole request names its model, or a stored prompt, which has one."""
    if request.body.get("prompt") is None:
        yield from _check_model_named(request)


REQUIRED_RULES: Mapping[str, tuple[Rule, ...]] = {
    "anthropic": (Rule("anthropic.required", _check_anthropic_required, "documented", ANTHROPIC_DOCS),),
    "openai-chat": (Rule("openai-chat.required", _check_model_named, "documented", OPENAI_DOCS),),
    "openai-responses": (Rule("openai-responses.required", _check_model_or_prompt, "recalled", UNVERIFIED_MEMORY),),
    "gemini": (),
}
"""The rules by API. Gemini has its model in the address; that there are messages is a rule of each API's own."""
