"""Measure a request, and refuse one that exceeds the window or asks for too much output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.checks import overflow_wordings as overflowing
from holdfast.testing.provider.checks.overflow_wordings import OverflowNumbers
from holdfast.testing.provider.checks.token_counter import RequestCounter
from holdfast.testing.provider.dialects.judge import adapt_refusal, make_server_refusal
from holdfast.testing.provider.dialects.server_dialect import PromptCut, ServerDialect
from holdfast.testing.provider.dialects.server_request import ServerRequest
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings


class PromptSize(Struct, frozen=True):
    """The blocks that the model reads, and their tokens."""

    blocks: Sequence[PromptBlock]
    sums: Sequence[int]
    """``sums[n]`` is the number of tokens of the first ``n`` blocks."""
    dropped_tokens: int = 0
    """Tokens that were cut off the front silently, so that the rest fits."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, without those that were cut off."""
        return self.sums[-1] - self.dropped_tokens

    @property
    def setup_tokens(self) -> int:
        """Tokens of tools and system prompt."""
        setup_blocks = sum(block.section != "messages" for block in self.blocks)
        return self.sums[setup_blocks]


def measure_prompt(
    pieces: Sequence[PromptBlock],
    counter: RequestCounter,
    request: ProviderRequest,
    settings: ProviderSettings,
) -> PromptSize:
    """Measure the blocks of a request, and cut it to the window if settings or request ask for silent truncation."""
    sums = counter.sum_blocks(pieces)
    is_truncating = settings.overflow == "silent" or request.body.get("truncation") == "auto"
    if not is_truncating or request.incoming.endpoint == "count":
        return PromptSize(pieces, sums)
    return PromptSize(pieces, sums, max(0, sums[-1] - settings.window))


def cut_server_prompt(
    prompt_size: PromptSize,
    server: ServerDialect,
    request: ServerRequest,
    settings: ProviderSettings,
) -> PromptSize:
    """Return the prompt without what the server cuts off silently; with a wording for overflows it cuts nothing."""
    if settings.overflow != "native":
        return prompt_size
    message_tokens = []
    for index, block in enumerate(prompt_size.blocks):
        if block.section == "messages" and block.role not in ("system", "developer"):
            message_tokens.append(prompt_size.sums[index + 1] - prompt_size.sums[index])
    setup_tokens = prompt_size.sums[-1] - sum(message_tokens)
    dropped_tokens = server.cut_prompt(request, PromptCut(settings.window, setup_tokens, tuple(message_tokens)))
    return replace(prompt_size, dropped_tokens=max(prompt_size.dropped_tokens, dropped_tokens))


def check_server_limits(
    request: ProviderRequest,
    prompt_size: PromptSize,
    settings: ProviderSettings,
    server: ServerDialect,
    server_request: ServerRequest,
) -> RefusalReply | None:
    """Return the refusal of a request that exceeds the window or the output limit of a server, in its form, or None."""
    largest = settings.max_output or server.get_max_output(server_request)
    asked = request.max_output
    if largest is not None and asked is not None and asked > largest and server.word_max_output is not None:
        return make_server_refusal(server, server.word_max_output(asked, largest, request.model))
    is_counted = settings.counts_output if settings.counts_output is not None else server.counts_output
    overflow = server.overflow if settings.overflow == "native" else settings.overflow
    server_settings = replace(settings, max_output=largest, counts_output=is_counted, overflow=overflow)
    refusal = check_request_limits(request, prompt_size, server_settings)
    return None if refusal is None else adapt_refusal(server, refusal)


def check_request_limits(
    request: ProviderRequest,
    prompt_size: PromptSize,
    settings: ProviderSettings,
) -> RefusalReply | None:
    """Return the refusal of a request that exceeds the window or the output limit, or None if it fits."""
    max_output = request.max_output
    if settings.max_output is not None and max_output is not None and max_output > settings.max_output:
        return _refuse_output(request, max_output, settings.max_output)
    output_tokens = max_output or 0
    needed_tokens = prompt_size.tokens
    if is_output_counted(request, settings):
        needed_tokens += output_tokens
    # In silent mode nothing is refused: `measure_prompt` has cut the prompt already.
    if needed_tokens <= settings.window or settings.overflow == "silent":
        return None
    numbers = OverflowNumbers(prompt_size.tokens, settings.window, output_tokens, request.model)
    return overflowing.make_overflow_refusal(
        settings.overflow,
        request.api,
        numbers,
        stream=request.incoming.stream,
    )


_OLDER_GPT_MODELS = re.compile(r"gpt-(?:3|4)|davinci|turbo")
"""Chat models that refuse when prompt and completion together exceed the window."""


def is_output_counted(request: ProviderRequest, settings: ProviderSettings) -> bool:
    """Return whether the requested output must fit into the window beside the input."""
    if request.incoming.endpoint != "generate":
        return False
    if settings.counts_output is not None:
        return settings.counts_output
    if request.api == "anthropic":
        # The models that allow a prefill, up to 4.5, are the same ones that refuse input + max_tokens over the window.
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
    return RefusalReply(
        400,
        "invalid_value",
        f"{message} provided {output}.",
        details={"param": "max_tokens"},
    )
