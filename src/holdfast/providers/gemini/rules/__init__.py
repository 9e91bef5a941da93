"""The rules of generateContent."""

from holdfast.providers.api_spec import RuleSet
from holdfast.providers.gemini.rules import calls, contents, models
from holdfast.providers.gemini.rules import options as option_rules
from holdfast.providers.gemini.rules import request_view as view

RULES = RuleSet(
    view.build_gemini_view,
    (*contents.CONTENT_RULES, *calls.CALL_RULES, *option_rules.OPTION_RULES, *models.MODEL_RULES),
)
"""Without required fields: the model is in the address."""
