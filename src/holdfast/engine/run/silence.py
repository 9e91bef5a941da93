"""Tell an empty answer that hides an overflow from a model that has nothing to say.

Some gateways answer a request that is too large for the server behind them with HTTP 200, no text, and a usage of
nearly zero (LiteLLM). Some servers accept a request that fills their window and end the answer at its first token, with
the finish reason "length" (Xiaomi MiMo). A model that has nothing to say looks different: its prompt is counted as
usual, and the answer ends by the model's own choice or at the limit that was asked for.
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

SilenceKind: TypeAlias = Literal["", "by_counts", "by_size"]
"""Why an answer is empty: "by_counts" if the request was too large, as the server's own numbers show (a limit that it
was seen to have, or token counts in earlier answers that show that it does count); "by_size" if the only sign is that
our estimate of the request is large, which is a guess; "" if the answer is not empty, or by the model's own choice."""
# A server that reports no usage gives no other sign. Below half the window a request is most likely not too large, and
# a wrong guess costs a compaction that nobody needed. Chosen by judgement.
LARGE_REQUEST_SHARE = 0.5
"""Share of the message budget from which a request may be too large for a server that reports no usage."""
_ACCEPTED_SILENCE_NOTICE = (
    "an answer is empty, and by its token counts the request may be too large for the server; the answer is passed on "
    "unchanged"
)
"""Text of the notice given when such an answer is passed on because nothing smaller can be sent."""
# An answer cut by a full window ends within the few tokens that begin it. 16 is the least that an API takes as a limit
# for a whole answer; Chat Completions and Messages take less, but then the request itself says so (`max_output`).
_MAX_FIRST_TOKENS = 16
"""Most output tokens of an answer that was cut before its first word."""
# LiteLLM reports 1 for a prompt that it did not count, others 0. No real prompt is as short.
_MAX_UNCOUNTED_TOKENS = 1
"""Most tokens reported for a prompt that nobody counted."""


def classify_empty_answer(
    answer: ParsedAnswer,
    verdict: Verdict,
    plan: Plan,
    max_output: int | None,
) -> SilenceKind:
    """Return whether ``answer``, to the request of ``plan``, is empty because that request was too large.

    ``max_output`` is the most tokens that the request allows the answer, or None if it sets no limit.
    """
    state = plan.state
    message_tokens = plan.after - state.setup.tokens
    message_budget = plan.window - state.setup.tokens
    if message_tokens < MIN_COMPARED_TOKENS:
        return ""
    if answer.request_usage is not None:
        prompt_tokens = answer.request_usage.input
    else:
        prompt_tokens = 0
    is_unread = is_empty_answer(answer) and _is_prompt_unread(prompt_tokens, verdict, state)
    if not is_unread and not is_cut_short(answer, max_output):
        return ""
    # A server that counted the previous request counts every request that it reads.
    if verdict.limit or _has_counted_before(state, prompt_tokens):
        return "by_counts"
    is_large = message_tokens >= LARGE_REQUEST_SHARE * message_budget
    return "by_size" if is_large else ""


def describe_silent_overflow(answer: ParsedAnswer, plan: Plan) -> str:
    """Describe why ``answer``, to the request of ``plan``, counts as an overflow."""
    if answer.request_usage is not None:
        reported_tokens = f"{answer.request_usage.input:,}"
    else:
        reported_tokens = "none"
    if answer.stop_reason == "end":
        symptom = "the answer is empty"
    else:
        symptom = "the answer ended before its first word"
    return f"{symptom}; the provider counted {reported_tokens} of about {plan.after:,} tokens of the request"


async def accept_empty_answer(runtime: SessionRuntime) -> None:
    """Give notice that an empty answer is passed on, and forget the window that was learned from its overflow.

    A smaller request was answered with nothing too, so the window was not the reason.
    """
    runtime.emit_event(events.NoticeGiven(runtime.key, "silence", _ACCEPTED_SILENCE_NOTICE))
    if runtime.journal.state.usage.learned_limits.overflows_since_answer:
        await runtime.resources.run_in_worker(runtime.journal.forget_learned_window)


def is_empty_answer(answer: ParsedAnswer) -> bool:
    """Return whether an answer that ended by the model's choice has no text, no call and no thinking."""
    has_reasoned = answer.usage is not None and bool(answer.usage.reasoning)
    return answer.stop_reason == "end" and not has_reasoned and _is_blank_answer(answer)


def is_cut_short(answer: ParsedAnswer, max_output: int | None) -> bool:
    """Return whether an answer was ended for its length before its first word, though it may have had ``max_output``.

    The limit that was asked for cannot have ended it, so there was no room left in the window.
    """
    if answer.stop_reason != "length" or answer.usage is None or not _is_blank_answer(answer):
        return False
    output_tokens = answer.usage.output
    is_below_limit = max_output is None or output_tokens < max_output
    return output_tokens <= _MAX_FIRST_TOKENS and is_below_limit


def _is_blank_answer(answer: ParsedAnswer) -> bool:
    """Return whether a complete answer shows nothing: no text beside white space, no call, no thinking."""
    if not answer.is_complete or answer.error is not None:
        return False
    for part in answer.message.parts:
        is_blank_text = isinstance(part, Text) and not part.text.strip()
        if not is_blank_text:
            return False
    return True


def _is_prompt_unread(prompt_tokens: int, verdict: Verdict, state: ConversationState) -> bool:
    """Return whether the reported ``prompt_tokens`` show that the server did not read the newest request of ``state``.

    They do if they count next to nothing, or far less than the request and not its uncached part either: some servers
    report only the tokens that their cache did not hold.
    """
    if prompt_tokens <= _MAX_UNCOUNTED_TOKENS:
        return True
    if verdict.kind != "silent_truncation":
        return False
    new_tokens = measure_new_content(state)
    is_uncached_part = MIN_CALIBRATION_RATIO * new_tokens <= prompt_tokens <= MAX_CALIBRATION_RATIO * new_tokens
    return not is_uncached_part


def _has_counted_before(state: ConversationState, prompt_tokens: int) -> bool:
    """Return whether the server counted the request before the newest one, with a number other than ``prompt_tokens``.

    A server that always reports the same number does not count.
    """
    measured_request = state.usage.measured_request
    if measured_request is None:
        return False
    previous_count, _ = state.last_request.previous_coverage
    is_previous_request = measured_request.message_count == previous_count
    return is_previous_request and measured_request.reported_tokens != prompt_tokens
