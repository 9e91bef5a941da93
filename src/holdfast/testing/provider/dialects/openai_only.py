"""Rules of Chat Completions about OpenAI's own models and features, which no other server has."""

from __future__ import annotations

OPENAI_MODEL_RULES = frozenset(
    {
        "openai-chat.model-sampling",
        "openai-chat.model-limit",
        "openai-chat.model-effort",
        "openai-chat.model-tools",
        "openai-chat.cache-retention",
        "openai-chat.service-tier",
        "openai-chat.safety-identifier",
        "openai-chat.breakpoints",
        "openai-chat.shut-down",
    }
)
"""Rules by the name of an OpenAI model, or about a field that only OpenAI reads."""
LENIENT_RULES = OPENAI_MODEL_RULES | frozenset(
    {
        "openai-chat.foreign-field",
        "openai-chat.name",
        "openai-chat.images",
        "openai-chat.ids",
        "openai-chat.one-limit",
        "openai-chat.stop",
        "openai-chat.unknown-part",
        "openai-chat.tool-schema",
    }
)
"""Limits and tidiness that servers on one's own machine do not check: they ignore fields that they do not know."""
