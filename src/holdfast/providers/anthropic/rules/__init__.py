"""The rules of Anthropic Messages."""

from holdfast.providers.anthropic.rules import betas, blocks, calls, context, server_tools, shape
from holdfast.providers.anthropic.rules import options as option_rules
from holdfast.providers.anthropic.rules import request_view as view
from holdfast.providers.api_spec import RuleSet

RULES = RuleSet(
    view.build_anthropic_view,
    (
        *shape.SHAPE_RULES,
        *calls.CALL_RULES,
        *server_tools.SERVER_TOOL_RULES,
        *blocks.BLOCK_RULES,
        *option_rules.OPTION_RULES,
        *context.CONTEXT_RULES,
        *betas.BETA_RULES,
    ),
    option_rules.REQUIRED_RULES,
)
