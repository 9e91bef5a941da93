"""Cases of GLM."""

from __future__ import annotations

from tests.testing.provider.dialects.case_builders import (
    RuleCase,
    assistant,
    chat,
    system,
    user,
)

MODEL = "glm-5.3"

CASES = {
    "glm.user-message": RuleCase(
        chat(MODEL, system(), user()), chat(MODEL, system(), assistant()), "The messages parameter is illegal"
    ),
    "glm.always-thinking": RuleCase(
        chat("glm-5.2", thinking={"type": "disabled"}, reasoning_effort="medium"),
        chat(MODEL, thinking={"type": "disabled"}),
        "please use low, high, or max",
    ),
    "glm.sampling": RuleCase(
        chat(MODEL, temperature=1, top_p=0.5), chat(MODEL, temperature=1.2), "Invalid API parameter"
    ),
}
