"""What a request that passed is answered: words and calls, a compaction, or both."""

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
    """A request that passed, and all that its answer depends on."""

    request: ProviderRequest
    prompt_size: PromptSize
    """What of it the model reads."""
    placement: AnswerSettings
    input_usage: TokenUse
    """The input's usage."""
    history: HistoryCheck
    window: int
    count: Callable[[str], int]
    """Tokens of a text."""

    @property
    def id(self) -> str:
        """The id of the answer."""
        return self.placement.make_id(_ID_PREFIXES[self.placement.api])


_ID_PREFIXES = {"anthropic": "msg_", "openai-chat": "chatcmpl-", "openai-responses": "resp_", "gemini": ""}
"""How the ids of answers begin."""


def make_provider_reply(answer_context: AnswerContext, say: Callable[[], ScriptedAnswer]) -> ModelAnswer | CompactReply:
    """Return the reply; ``say`` is asked for words only where the model speaks."""
    if answer_context.request.incoming.endpoint == "compact":
        return _make_compact_response(answer_context)
    if is_compaction_request(answer_context.request) or has_compaction_trigger(answer_context.request):
        return _make_compaction_answer(answer_context, has_signature=True)
    above = get_compaction_threshold(answer_context.request)
    if above is None or answer_context.prompt_size.tokens <= above[0]:
        return _make_answer(answer_context, say())
    return (
        _make_compaction_answer(answer_context, has_signature=False)
        if above[1]
        else _make_compaction_and_answer(answer_context, say())
    )


def _make_answer(answer_context: AnswerContext, answer: ScriptedAnswer) -> ModelAnswer:
    """Return what the model says, as much as there is room for."""
    max_output, room = (
        answer_context.request.max_output,
        max(0, answer_context.window - answer_context.input_usage.total_input),
    )
    free = (
        max_output
        if answer_context.prompt_size.dropped_tokens
        else room
        if max_output is None
        else min(max_output, room)
    )
    fitted_answer = fit_answer(answer, free, answer_context.count)
    is_full = fitted_answer.stop == "length" and free != max_output
    stop: StopReason = "window" if is_full and answer_context.placement.api == "anthropic" else fitted_answer.stop
    usage = replace(answer_context.input_usage, output=fitted_answer.output, reasoning=fitted_answer.reasoning)
    parts = sign_answer(fitted_answer.answer, answer_context.placement)
    return ModelAnswer(
        answer_context.id,
        answer_context.placement.model,
        parts,
        stop,
        usage,
        dropped_blocks=answer_context.history.dropped_parts,
    )


# -- compactions -------------------------------------------------------------------------------------------------------


def _make_compaction_part(answer_context: AnswerContext, *, has_signature: bool) -> Opaque:
    if answer_context.placement.api == "anthropic":
        return Opaque(
            "compaction", Raw(encode_compaction_block(answer_context.history.pieces, has_signature=has_signature))
        )
    return Opaque(
        "compaction",
        Raw(encode_compaction_item(answer_context.placement.make_id("cmp_"), answer_context.history.pieces)),
    )


def _get_compaction_usage(answer_context: AnswerContext) -> TokenUse:
    """Return what the compaction itself used."""
    return replace(
        answer_context.input_usage, output=answer_context.count(make_provider_summary(answer_context.history.pieces))
    )


def _make_compaction_answer(answer_context: AnswerContext, *, has_signature: bool) -> ModelAnswer:
    """Return a compaction of all that was sent, and nothing else; Anthropic leaves it out of the usage at the top."""
    spent, parts = (
        _get_compaction_usage(answer_context),
        (_make_compaction_part(answer_context, has_signature=has_signature),),
    )
    apart = answer_context.placement.api == "anthropic"
    usage, compaction_usage = (TokenUse(0, 0), spent) if apart else (spent, None)
    return ModelAnswer(
        answer_context.id,
        answer_context.placement.model,
        parts,
        "compaction",
        usage,
        compaction_usage,
        answer_context.history.dropped_parts,
    )


def _make_compaction_and_answer(answer_context: AnswerContext, scripted_answer: ScriptedAnswer) -> ModelAnswer:
    """Return a compaction and the answer behind it; Anthropic's model then reads the frame and the summary alone."""
    part, spent = _make_compaction_part(answer_context, has_signature=False), _get_compaction_usage(answer_context)
    if answer_context.placement.api != "anthropic":
        answer = _make_answer(answer_context, scripted_answer)
        return replace(answer, parts=(part, *answer.parts))
    answer = _make_answer(
        replace(answer_context, input_usage=TokenUse(answer_context.prompt_size.setup_tokens + spent.output, 0)),
        scripted_answer,
    )
    return replace(answer, parts=(part, *answer.parts), compaction=spent)


def _make_compact_response(answer_context: AnswerContext) -> CompactReply:
    """Return the user's messages, then one item that stands for everything."""
    user_items = [
        piece.value for piece in answer_context.history.pieces if piece.section == "messages" and piece.role == "user"
    ]
    item = encode_compaction_item(answer_context.placement.make_id("cmp_"), answer_context.history.pieces)
    return CompactReply(
        answer_context.id, (*map(msgspec.json.encode, user_items), item), _get_compaction_usage(answer_context)
    )
