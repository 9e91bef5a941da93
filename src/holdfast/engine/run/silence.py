"""Silence: an answer without a word, to a request that its server did not read, or that left no room for an answer.

Some gateways answer what is too large for the server behind them with success, no word, and a count of next to nothing
(LiteLLM). Some servers take what fills their window, and end the answer at its first token as one that got too long
(Xiaomi MiMo). A model that has nothing to say is another matter: what it read is counted as ever, it ends as it wants
or where its request does, and that is its answer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast import events
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.messages.parts import Text
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.answer_rules import MIN_COMPARED_TOKENS
from holdfast.providers.errors.report import Verdict
from holdfast.state.calibration.calibration import MAX_CALIBRATION_RATIO, MIN_CALIBRATION_RATIO
from holdfast.state.calibration.usage import measure_new_content
from holdfast.state.conversation_state import ConversationState
from holdfast.state.plan import Plan

SilenceKind: TypeAlias = Literal["", "counted", "guessed"]
"""The model's own, if it is silence at all · of a server that counts, and does not count this · by its size alone."""
LARGE_REQUEST_SHARE = 0.5
"""[H] Share of the room for a conversation from which it may be too large for a server that counts nothing."""
_ACCEPTED_SILENCE_NOTICE = (
    "an answer says nothing, and by what was counted its request may be too large for the server; the answer is passed "
    "on as it came"
)
"""What is told of such an answer where nothing smaller is asked."""
_MAX_FIRST_TOKENS = 16
"""[H] Most tokens of an answer that ended before a word: how one begins. No API takes a limit for all of it under that
but Chat and Messages, whose request says so then."""
_MAX_UNCOUNTED_TOKENS = 1
"""Most tokens that are told of a prompt that nobody counted: there is none so short (LiteLLM says 1, others 0)."""


def classify_empty_answer(answer: ParsedAnswer, verdict: Verdict, plan: Plan, max_output: int | None) -> SilenceKind:
    """Return whether ``answer``, an answer to what ``plan`` shows, says nothing because that was too large.

    A server that counted the request before counts this one too, if it reads it. Of one that did not, only a large
    request may be one too large. No few words are. ``max_output`` are the tokens that the answer may have, where any
    limit was asked for.
    """
    state, prompt_tokens = plan.state, answer.request_usage.input if answer.request_usage is not None else 0
    size, room = plan.after - state.setup.tokens, plan.window - state.setup.tokens
    if size < MIN_COMPARED_TOKENS or not (
        is_cut_short(answer, max_output)
        or (is_empty_answer(answer) and _is_prompt_unread(prompt_tokens, verdict, state))
    ):
        return ""
    if verdict.limit or _has_counted_before(state, prompt_tokens):
        return "counted"
    return "guessed" if size >= LARGE_REQUEST_SHARE * room else ""


def describe_silent_overflow(answer: ParsedAnswer, plan: Plan) -> str:
    """Return why ``answer``, to what ``plan`` shows, counts as an overflow."""
    token_count = f"{answer.request_usage.input:,}" if answer.request_usage is not None else "none"
    how = "the answer says nothing" if answer.stop_reason == "end" else "the answer ended before a word"
    return f"{how}, and counts {token_count} of the request's tokens, about {plan.after:,}"


async def accept_empty_answer(runtime: SessionRuntime) -> None:
    """Tell that such an answer is passed on; a window that was learned from it in vain counts no more."""
    runtime.emit_event(events.NoticeGiven(runtime.key, "silence", _ACCEPTED_SILENCE_NOTICE))
    if runtime.journal.state.usage.learned_limits.overflows_since_answer:
        await runtime.resources.run_in_worker(runtime.journal.forget_learned_window)


def is_empty_answer(answer: ParsedAnswer) -> bool:
    """Return whether an answer that ended as its model wanted has no word, no call and no thought."""
    return (
        answer.stop_reason == "end"
        and _is_blank_answer(answer)
        and not (answer.usage is not None and answer.usage.reasoning)
    )


def is_cut_short(answer: ParsedAnswer, max_output: int | None) -> bool:
    """Return whether an answer ended before a word because it got too long, as far short of ``max_output`` tokens.

    That is not the limit that was asked for: no room was left.
    """
    output_tokens = answer.usage.output if answer.usage is not None else None
    is_short = (
        output_tokens is not None
        and output_tokens <= _MAX_FIRST_TOKENS
        and (max_output is None or output_tokens < max_output)
    )
    return answer.stop_reason == "length" and is_short and _is_blank_answer(answer)


def _is_blank_answer(answer: ParsedAnswer) -> bool:
    """Return whether an answer that was told to its end has no word, no call and no thought to show."""
    shows = any(not isinstance(part, Text) or part.text.strip() for part in answer.message.parts)
    return answer.is_complete and answer.error is None and not shows


def _is_prompt_unread(prompt_tokens: int, verdict: Verdict, state: ConversationState) -> bool:
    """Return whether ``prompt_tokens`` tokens are neither the newest request of ``state`` nor what no cache held of
    it.
    """
    new = measure_new_content(state)
    return prompt_tokens <= _MAX_UNCOUNTED_TOKENS or (
        verdict.kind == "silent_truncation"
        and not MIN_CALIBRATION_RATIO * new <= prompt_tokens <= MAX_CALIBRATION_RATIO * new
    )


def _has_counted_before(state: ConversationState, prompt_tokens: int) -> bool:
    """Return whether the request before the newest one was counted, by a server that does not always say
    ``prompt_tokens``.
    """
    before = state.usage.measured_request
    return (
        before is not None
        and before.message_count == state.last_request.previous_coverage[0]
        and before.reported_tokens != prompt_tokens
    )
