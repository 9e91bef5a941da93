"""Cases of Mistral."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import RuleCase, assistant, chat, result, tool, user

MODEL, A, B = "mistral-medium-3-5", "aB3dE6gH9", "bC4eF7hI0"
TOOLS = [tool()]
THINKING = [{"type": "thinking", "thinking": [{"type": "text", "text": "Rocks first."}]}, {"type": "text", "text": "1"}]

CASES = {
    "mistral.top-fields": RuleCase(
        chat(MODEL, random_seed=7, max_tokens=50), chat(MODEL, seed=7), "Extra inputs are not permitted", 422
    ),
    "mistral.message-fields": RuleCase(
        chat(MODEL, user(), assistant(THINKING), user("more")),
        chat(MODEL, user(), assistant("1", reasoning_content="Rocks first."), user("more")),
        "Extra inputs are not permitted",
        422,
    ),
    "mistral.order": RuleCase(
        chat(MODEL, user(), assistant(None, A), result(A), assistant("Done."), user("more"), tools=TOOLS),
        chat(MODEL, user(), assistant(None, A), result(A), user("more"), tools=TOOLS),
        "Unexpected role 'user' after role 'tool'",
    ),
    "mistral.call-count": RuleCase(
        chat(MODEL, user(), assistant(None, A, B), result(A), result(B), tools=TOOLS),
        chat(MODEL, user(), assistant(None, A, B), result(A), tools=TOOLS),
        "Not the same number of function calls and responses",
    ),
    "mistral.last-role": RuleCase(
        chat(MODEL, user(), assistant("Kelp is", prefix=True)),
        chat(MODEL, user(), assistant("Kelp is")),
        "Expected last role User or Tool",
    ),
    "mistral.call-ids": RuleCase(
        chat(MODEL, user(), assistant(None, A), result(A), tools=TOOLS),
        chat(MODEL, user(), assistant(None, "toolu_01"), result("toolu_01"), tools=TOOLS),
        "Tool call id was toolu_01 but must be a-z, A-Z, 0-9, with a length of 9.",
    ),
    "mistral.effort": RuleCase(
        chat(MODEL, reasoning_effort="high"), chat(MODEL, reasoning_effort="low"), "supported values: ['none', 'high']"
    ),
}
