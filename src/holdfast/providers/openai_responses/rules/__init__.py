"""The rules of Responses."""

from holdfast.providers.api_spec import RuleSet
from holdfast.providers.openai_responses.rules import calls, items
from holdfast.providers.openai_responses.rules import options as option_rules
from holdfast.providers.openai_responses.rules import request_view as view

RULES = RuleSet(
    view.build_responses_view,
    (*items.ITEM_RULES, *calls.CALL_RULES, *option_rules.OPTION_RULES),
    option_rules.REQUIRED_RULES,
)
