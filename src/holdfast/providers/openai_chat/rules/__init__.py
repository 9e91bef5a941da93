"""The rules of Chat Completions."""

from holdfast.providers.api_spec import RuleSet
from holdfast.providers.openai_chat.rules import calls, content
from holdfast.providers.openai_chat.rules import options as option_rules
from holdfast.providers.openai_chat.rules import request_view as view

RULES = RuleSet(
    view.build_chat_view,
    (*content.CONTENT_RULES, *calls.CALL_RULES, *option_rules.OPTION_RULES),
    option_rules.REQUIRED_RULES,
)
