"""How large a request is, and whether it fits: the window, the output asked for, the wording of the refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.checks import overflow_wordings as overflowing
from holdfast.testing.provider.checks.overflow_wordings import OverflowNumbers
from holdfast.testing.provider.checks.token_counter import RequestCounter
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings


class PromptSize(Struct, frozen=True):
    """The pieces that the model reads, and their tokens."""

    blocks: Sequence[PromptBlock]
    sums: Sequence[int]
    """Tokens of the first ``n`` pieces, for every ``n``."""
    dropped_tokens: int = 0
    """Tokens that were dropped from the front, so that the rest fits."""

    @property
    def tokens(self) -> int:
        """Tokens of all of them, after the cut."""
        return self.sums[-1] - self.dropped_tokens

    @property
    def setup_tokens(self) -> int:
        """Tokens of tools and system."""
        return self.sums[sum(block.section != "messages" for block in self.blocks)]


def measure_prompt(
    pieces: Sequence[PromptBlock], scale: RequestCounter, request: ProviderRequest, settings: ProviderSettings
) -> PromptSize:
    """Return the size of a request, cut to the window where it is to be cut in silence."""
    sums = scale.sum_blocks(pieces)
    silent = settings.overflow == "silent" or request.body.get("truncation") == "auto"
    over = max(0, sums[-1] - settings.window) if silent and request.incoming.endpoint != "count" else 0
    return PromptSize(pieces, sums, over)


def check_request_limits(
    request: ProviderRequest, prompt_size: PromptSize, settings: ProviderSettings
) -> RefusalReply | None:
    """Return the refusal of a request that asks for more than there is, nothing when it fits."""
    output = request.max_output
    if settings.max_output is not None and output is not None and output > settings.max_output:
        return _refuse_output(request, output, settings.max_output)
    output_tokens = output or 0
    counts = output_tokens if is_output_counted(request, settings) else 0
    if prompt_size.tokens + counts <= settings.window or settings.overflow == "silent":
        return None
    numbers = OverflowNumbers(prompt_size.tokens, settings.window, output_tokens, request.model)
    return overflowing.make_overflow_refusal(settings.overflow, request.api, numbers, stream=request.incoming.stream)


_OLDER_GPT_MODELS = re.compile(r"gpt-(?:3|4)|davinci|turbo")
"""Chat models that refuse when prompt and completion together exceed the window."""


def is_output_counted(request: ProviderRequest, settings: ProviderSettings) -> bool:
    """Return whether the output asked for must fit beside the input."""
    if settings.counts_output is not None or request.incoming.endpoint != "generate":
        return bool(settings.counts_output) and request.incoming.endpoint == "generate"
    if request.api == "anthropic":
        model_traits = get_claude_traits(request.model)
        return model_traits is not None and model_traits.allows_prefill
    return request.api == "openai-chat" and _OLDER_GPT_MODELS.search(request.model.lower()) is not None


def _refuse_output(request: ProviderRequest, output: int, max_output: int) -> RefusalReply:
    if request.api == "anthropic":
        message = f"max_tokens: {output} > {max_output}, which is the maximum allowed number of output tokens for"
        return RefusalReply(400, "invalid_request_error", f"{message} {request.model}")
    if request.api == "gemini":
        message = (
            f"Unable to submit request because it has a maxOutputTokens value of {output} but the supported range is"
        )
        return RefusalReply(400, "INVALID_ARGUMENT", f"{message} from 1 (inclusive) to {max_output + 1} (exclusive).")
    message = (
        f"max_tokens is too large: {output}. This model supports at most {max_output} completion tokens, whereas you"
    )
    return RefusalReply(400, "invalid_value", f"{message} provided {output}.", details={"param": "max_tokens"})
