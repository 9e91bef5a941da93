"""Build the reply to a request that passed all checks: an answer of the model, a compaction, or both."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.messages.parts import Opaque
from holdfast.testing.provider.answers.compaction import (
    encode_compaction_block,
    encode_compaction_item,
    get_compaction_threshold,
    has_compaction_trigger,
    is_compaction_request,
    make_provider_summary,
)
from holdfast.testing.provider.answers.encode_answer import AnswerSettings, fit_answer, sign_answer
from holdfast.testing.provider.calls import CompactReply, ModelAnswer, ScriptedAnswer, StopReason, TokenUse
from holdfast.testing.provider.checks.size_limits import PromptSize
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryCheck


class AnswerContext(Struct, frozen=True):
    """A request that passed all checks, with everything its answer depends on."""

    request: ProviderRequest
    prompt_size: PromptSize
    """The blocks that the model reads, and their size."""
    placement: AnswerSettings
    input_usage: TokenUse
    """The usage of the input; the output is still 0."""
    history: HistoryCheck
    window: int
    count: Callable[[str], int]
    """Returns the tokens of a text."""

    @property
    def id(self) -> str:
        """The id of the answer, in the form of its API."""
        return self.placement.make_id(_ID_PREFIXES[self.placement.api])


_ID_PREFIXES = {"anthropic": "msg_", "openai-chat": "chatcmpl-", "openai-responses": "resp_", "gemini": ""}
"""Prefixes of the ids of answers."""


def make_provider_reply(
    answer_context: AnswerContext, choose_answer: Callable[[], ScriptedAnswer]
) -> ModelAnswer | CompactReply:
    """Build the reply. ``choose_answer`` is called only if the model answers, so that a script is not used up."""
    request = answer_context.request
    if request.incoming.endpoint == "compact":
        return _make_compact_response(answer_context)
    if is_compaction_request(request) or has_compaction_trigger(request):
        return _make_compaction_answer(answer_context, has_signature=True)
    threshold = get_compaction_threshold(request)
    if threshold is None or answer_context.prompt_size.tokens <= threshold.tokens:
        return _make_answer(answer_context, choose_answer())
    if threshold.pauses:
        return _make_compaction_answer(answer_context, has_signature=False)
    return _make_compaction_and_answer(answer_context, choose_answer())


def _make_answer(answer_context: AnswerContext, answer: ScriptedAnswer) -> ModelAnswer:
    """Build the model's answer, cut to the output limit and to the room in the window."""
    max_output = answer_context.request.max_output
    free_tokens = max(0, answer_context.window - answer_context.input_usage.total_input)
    if answer_context.prompt_size.dropped_tokens:
        # A prompt that was cut silently fills the window, and yet is answered.
        limit = max_output
    elif max_output is None:
        limit = free_tokens
    else:
        limit = min(max_output, free_tokens)
    fitted_answer = fit_answer(answer, limit, answer_context.count)
    # Only Anthropic tells a full window from the output limit; the others say "length" for both.
    is_window_full = fitted_answer.stop == "length" and limit != max_output
    has_window_stop = is_window_full and answer_context.placement.api == "anthropic"
    stop: StopReason = "window" if has_window_stop else fitted_answer.stop
    usage = replace(answer_context.input_usage, output=fitted_answer.output, reasoning=fitted_answer.reasoning)
    parts = sign_answer(fitted_answer.answer, answer_context.placement)
    return ModelAnswer(
        id=answer_context.id,
        model=answer_context.placement.model,
        parts=parts,
        stop=stop,
        usage=usage,
        dropped_blocks=answer_context.history.dropped_parts,
    )


# -- compactions -------------------------------------------------------------------------------------------------------


def _make_compaction_part(answer_context: AnswerContext, *, has_signature: bool) -> Opaque:
    blocks = answer_context.history.pieces
    if answer_context.placement.api == "anthropic":
        return Opaque("compaction", Raw(encode_compaction_block(blocks, has_signature=has_signature)))
    return Opaque("compaction", Raw(encode_compaction_item(answer_context.placement.make_id("cmp_"), blocks)))


def _get_compaction_usage(answer_context: AnswerContext) -> TokenUse:
    """Return the usage of the compaction's own model call: the whole input, and the summary as output."""
    summary = make_provider_summary(answer_context.history.pieces)
    return replace(answer_context.input_usage, output=answer_context.count(summary))


def _make_compaction_answer(answer_context: AnswerContext, *, has_signature: bool) -> ModelAnswer:
    """Build an answer with a compaction and nothing else; Anthropic leaves it out of the top-level usage."""
    compaction_usage = _get_compaction_usage(answer_context)
    is_usage_separate = answer_context.placement.api == "anthropic"
    return ModelAnswer(
        answer_context.id,
        answer_context.placement.model,
        parts=(_make_compaction_part(answer_context, has_signature=has_signature),),
        stop="compaction",
        usage=TokenUse(0, 0) if is_usage_separate else compaction_usage,
        compaction=compaction_usage if is_usage_separate else None,
        dropped_blocks=answer_context.history.dropped_parts,
    )


def _make_compaction_and_answer(answer_context: AnswerContext, scripted_answer: ScriptedAnswer) -> ModelAnswer:
    """Build a compaction followed by the model's answer."""
    compaction_part = _make_compaction_part(answer_context, has_signature=False)
    if answer_context.placement.api != "anthropic":
        answer = _make_answer(answer_context, scripted_answer)
        return replace(answer, parts=(compaction_part, *answer.parts))
    # Anthropic's model then reads only tools, system prompt and the summary, and its usage counts just these.
    compaction_usage = _get_compaction_usage(answer_context)
    input_usage = TokenUse(answer_context.prompt_size.setup_tokens + compaction_usage.output, 0)
    answer = _make_answer(replace(answer_context, input_usage=input_usage), scripted_answer)
    return replace(answer, parts=(compaction_part, *answer.parts), compaction=compaction_usage)


def _make_compact_response(answer_context: AnswerContext) -> CompactReply:
    """Build the reply to ``/responses/compact``: the user's messages, then the compaction item."""
    blocks = answer_context.history.pieces
    items = []
    for block in blocks:
        if block.section == "messages" and block.role == "user":
            items.append(msgspec.json.encode(block.value))
    items.append(encode_compaction_item(answer_context.placement.make_id("cmp_"), blocks))
    return CompactReply(answer_context.id, tuple(items), _get_compaction_usage(answer_context))
