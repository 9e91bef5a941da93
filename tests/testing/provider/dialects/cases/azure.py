"""Cases of Azure OpenAI."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    chat,
)

CASES = {
    "azure.max-tokens": RuleCase(
        chat("gpt-5.5", max_completion_tokens=500),
        chat("gpt-5.5", max_tokens=500),
        "Use 'max_completion_tokens' instead.",
    ),
}
