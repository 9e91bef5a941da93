"""The four APIs that the provider speaks, one voice each."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.provider.voices import anthropic, chat, gemini, responses
from holdfast.testing.provider.voices.voice import ApiEncoder

API_ENCODERS: Mapping[str, ApiEncoder] = {
    "anthropic": anthropic.ANTHROPIC_ENCODER,
    "openai-chat": chat.CHAT_ENCODER,
    "openai-responses": responses.RESPONSES_ENCODER,
    "gemini": gemini.GEMINI_ENCODER,
}
"""Names of APIs to how they are spoken."""
