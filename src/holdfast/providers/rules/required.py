"""What a whole request names beside its messages. Parts of requests, as tests and replays judge them, need not."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.providers.rules.envelope import Envelope
from holdfast.providers.rules.rule import DOCS, KNOWN, OPENAI, Broken, Rule

_CLOUDS = ("bedrock", "vertex")
"""How the version of the Messages API begins on clouds that have the model in the address."""


def _messages(request: Envelope) -> Broken:
    """A whole request names its model, unless its cloud's address does, and max_tokens."""
    if not str(request.body.get("anthropic_version")).startswith(_CLOUDS):
        yield from _model(request)
    if request.body.get("max_tokens") is None:
        yield "$.max_tokens", "there is no max_tokens, which must be named here; say how long an answer may be"


def _model(request: Envelope) -> Broken:
    """A whole request names its model."""
    if not request.model:
        yield "$.model", "there is no model; name it, or tell it beside the request where the address has it"


def _model_or_prompt(request: Envelope) -> Broken:
    """A whole request names its model, or a stored prompt, which has one."""
    if request.body.get("prompt") is None:
        yield from _model(request)


RULES: Mapping[str, tuple[Rule, ...]] = {
    "anthropic": (Rule("anthropic.required", _messages, "documented", DOCS),),
    "openai-chat": (Rule("openai-chat.required", _model, "documented", OPENAI),),
    "openai-responses": (Rule("openai-responses.required", _model_or_prompt, "recalled", KNOWN),),
    "gemini": (),
}
"""The rules by API. Gemini has its model in the address; that there are messages is a rule of each API's own."""
