"""Azure OpenAI: OpenAI's own models under the names of deployments."""

from __future__ import annotations

import re

from holdfast.testing.provider.dialects.server_dialect import ServerDialect, ServerError, ServerErrors, ServerRule
from holdfast.testing.provider.dialects.server_request import ServerRequest

_REASONING_MODEL = re.compile(r"(?:^|[/_-])(?:o[134]|gpt-[5-9])(?:$|[._-])")


def _check_max_tokens(request: ServerRequest) -> ServerErrors:
    """A reasoning model takes max_completion_tokens and not max_tokens."""
    if request.body.get("max_tokens") is not None and _REASONING_MODEL.search(request.model):
        text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
        yield ServerError(f"{text} instead.", code="unsupported_parameter", param="max_tokens")


AZURE = ServerDialect(
    name="azure",
    title="Azure OpenAI",
    default_model="gpt-5.5",
    rules=(
        ServerRule(
            "azure.max-tokens",
            _check_max_tokens,
            "learn.microsoft.com/azure/ai-foundry/openai/how-to/reasoning; OpenAI's API reference",
        ),
    ),
    overflow="azure",
    base_paths=("/openai/v1",),
)
