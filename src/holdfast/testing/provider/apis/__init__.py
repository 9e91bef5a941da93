"""The four APIs that the provider speaks, one voice each."""

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
"""Names of APIs to how they are spoken."""
