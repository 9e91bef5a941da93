"""The four APIs that the provider speaks, one voice each."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.provider.voices import anthropic, chat, gemini, responses
from holdfast.testing.provider.voices.voice import Voice

VOICES: Mapping[str, Voice] = {
    "anthropic": anthropic.VOICE,
    "openai-chat": chat.VOICE,
    "openai-responses": responses.VOICE,
    "gemini": gemini.VOICE,
}
"""Names of APIs to how they are spoken."""
