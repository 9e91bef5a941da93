"""Encoders for the replies of the strict provider, one module for each API."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.provider.apis import anthropic, gemini
from holdfast.testing.provider.apis import openai_chat as chat
from holdfast.testing.provider.apis import openai_responses as responses
from holdfast.testing.provider.apis.encoder import ApiEncoder

API_ENCODERS: Mapping[str, ApiEncoder] = {
    "anthropic": anthropic.ANTHROPIC_ENCODER,
    "openai-chat": chat.CHAT_ENCODER,
    "openai-responses": responses.RESPONSES_ENCODER,
    "gemini": gemini.GEMINI_ENCODER,
}
"""The encoder of each API, by its name."""
