"""Names of attributes by OpenTelemetry's semantic conventions for generative AI, and ours under ``holdfast.``.

Metrics are named where they are made, in ``instruments.py``.

The conventions are those of github.com/open-telemetry/semantic-conventions-genai, v0.1.0, the first release since they
left github.com/open-telemetry/semantic-conventions (whose package for Python calls all of its own deprecated). All are
in development, so a later release may rename them. Their README names the schema URL
https://opentelemetry.io/schemas/gen-ai/1.42.0, which is of no release, so none is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from holdfast.providers.registry import API_SPECS

# -- attributes of the conventions -------------------------------------------------------------------------------------

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
CONVERSATION_COMPACTED = "gen_ai.conversation.compacted"
"""Only ever true, as the conventions want it."""
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_MODALITY = "gen_ai.token.modality"  # noqa: S105
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"

DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bounds in seconds that the conventions recommend for durations of a request."""
TOKEN_BUCKETS = tuple(4**power for power in range(14))
"""Bounds that the conventions recommend for the tokens of a request: 1, 4, 16, … 67,108,864."""

# -- attributes of ours ------------------------------------------------------------------------------------------------

ATTEMPTS = "holdfast.attempts"
"""How often the request was sent."""
ESTIMATED_TOKENS = "holdfast.request.estimated_tokens"
MESSAGE_COUNT = "holdfast.request.messages"
WINDOW_TOKENS = "holdfast.window.tokens"
COMPACTIONS = "holdfast.compactions"
SPILLED = "holdfast.edits.spill"
PRUNED = "holdfast.edits.prune"
OTHER_EDITS = "holdfast.edits.other"
TOKENS_SAVED = "holdfast.tokens_saved"
OVERFLOW_AVOIDED = "holdfast.overflow.avoided"
OVERFLOW_REFUSED = "holdfast.overflow.refused"
PREFIX_BROKEN = "holdfast.prefix.broken"
CACHE_MISS_CAUSE = "holdfast.cache_miss.cause"
CACHE_MISS_TOKENS = "holdfast.cache_miss.tokens"
REPEATED_MESSAGES = "holdfast.content.input.repeated_messages"
"""Messages of the request that the request before had too, so that its span has them or an earlier one."""
STATE = "holdfast.state"
OVERFLOW_STEP = "holdfast.overflow.step"
EDIT_RULE = "holdfast.edit.rule"
EDIT_COUNT = "holdfast.edit.count"
COMPACTION_TRIGGER = "holdfast.compaction.trigger"
COMPACTION_AUTHOR = "holdfast.compaction.author"
COMPACTION_OUTCOME = "holdfast.compaction.outcome"
TOKENS_BEFORE = "holdfast.compaction.tokens_before"
TOKENS_AFTER = "holdfast.compaction.tokens_after"
RETRY_SECONDS = "holdfast.retry.seconds"
NOTICE_RULE = "holdfast.notice.rule"
HOOK = "holdfast.hook"

COUNTED_MODALITY = "unknown"
"""The modality of all tokens that are counted, since providers break usage down by it in part only."""
_PROVIDER_NAMES = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "kimi": "moonshot_ai",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Names of the conventions for providers that we call by another one."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


def get_operation_name(api: str) -> str:
    """Return what the conventions call a request for an answer over ``api``."""
    spec = API_SPECS.get(api)
    return "chat" if spec is None else spec.endpoints.operation


def get_provider_name(api: str, provider: str) -> str:
    """Return the conventions' name of ``provider``; of the maker of ``api`` if the provider is not known."""
    if not provider and api in API_SPECS:
        provider = API_SPECS[api].endpoints.provider
    return _PROVIDER_NAMES.get(provider, provider)


def describe_server(url: str) -> Mapping[str, str | int]:
    """Return the attributes for the server of ``url``; none if it names no server. Paths and queries are left out."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return {}
    if not parts.hostname:
        return {}
    attributes: dict[str, str | int] = {SERVER_ADDRESS: parts.hostname}
    if port is not None:
        attributes[SERVER_PORT] = port
    return attributes
