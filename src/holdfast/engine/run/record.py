"""Record what came of an attempt in the log: the answer, the refusal or the interruption, and the limits it taught."""

from __future__ import annotations

from anyio import CancelScope

from holdfast import events
from holdfast.engine.compaction.native import extract_server_compaction
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.run.attempt import Attempt, describe_error_report
from holdfast.engine.run.request_target import ask_for_window
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.replies import convert_answer_for_log
from holdfast.errors import StoreError
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Opaque, Part, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.normalize.roles import CONTINUE_TEXT
from holdfast.planning.budget import compute_min_window
from holdfast.planning.settings import Settings
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.answer_rules import UNREAD_PROMPT_SHARE
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport, Verdict
from holdfast.state.cache_misses import (
    UNREPORTED,
    AnsweredRequest,
    FirstDifference,
    describe_cache_miss,
    judge_cache_use,
)
from holdfast.state.calibration.calibration import (
    MIN_CALIBRATION_RATIO,
    MIN_COUNT_SHARE,
    MIN_WINDOW_LIMIT,
    has_count_grown,
    is_whole_prompt_count,
)
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.state.calibration.usage import find_plateau_count, is_impossible_count, measure_new_content
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Usage
from holdfast.state.view import build_projection, get_valid_measured_request

ABORTED_STOP = "aborted"
"""Stop reason of an answer that was interrupted."""
# A body over a byte limit teaches a token limit only if its bytes are those of the conversation: with a large setup the
# two say little about each other. At four to one the setup makes up a fifth. Chosen by judgement.
MESSAGES_TO_SETUP_RATIO = 4
"""How many times larger than the setup the messages must be for a byte limit to teach a token limit."""
BYTE_OVERFLOWS = frozenset({"request_bytes", "oversized_part"})
"""Overflows about bytes rather than tokens, unless they name tokens. A client gets the provider's own error for them.
"""
# Long enough for the last line of a traceback, short enough to be one line of a report (the commands show this text as
# the reason why a request has no answer). Chosen by judgement.
MAX_ERROR_CHARS = 200
"""Characters of an error that is not Holdfast's own that are written to the log."""

DROPPED_THINKING_RULE = "dropped-thinking"
"""Rule of the notice that the provider kept thinking from the model."""
UNWRITTEN_RULE = "unwritten"
"""Rule of the notice that an interruption could not be written to the log."""

_DOUBTED_USAGE_NOTICE = (
    "the provider counts more tokens than the window has, for requests that it accepts and that have a fraction of it "
    "by our estimate; such counts are ignored"
)


async def record_answer(
    runtime: SessionRuntime,
    attempt: Attempt,
    prepared_request: PreparedRequest,
    *,
    is_own_conversation: bool = True,
) -> ParsedAnswer:
    """Append the answer of ``attempt`` with its usage, learn from its size, and return it.

    ``is_own_conversation`` is false if a client sends the whole conversation with each request: then only the client
    may add a message that makes the model continue.
    """
    answer, journal = attempt.answer, runtime.journal
    logged = convert_answer_for_log(answer, prepared_request.target.api, prepared_request.target.model)
    usage = logged.usage
    was_doubted = journal.state.usage.learned_limits.doubted_tokens

    def write_answer() -> AnsweredRequest | None:
        previous_request = _find_previous_request(runtime)
        journal.record_answer(
            logged.sized_message,
            usage,
            logged.stop_reason,
            as_planned=attempt.is_as_planned,
            container=answer.container,
        )
        return previous_request

    # In one call of the worker: between two, a message of the caller's could get in before the answer.
    previous_request = await runtime.resources.run_in_worker(write_answer)
    is_doubted = journal.state.usage.learned_limits.doubted_tokens
    # One odd count may be an error of the provider; the user is told when the second one in a row is impossible.
    if was_doubted and is_doubted and is_impossible_count(journal.state, usage.input):
        runtime.emit_event(events.NoticeGiven(runtime.key, "usage", _DOUBTED_USAGE_NOTICE))
    # Some servers load a model with its first request, and know its window only then.
    ask_for_window(runtime, attempt.upstream, attempt.target.model)
    verdict = await _learn_window_from_answer(runtime, attempt, prepared_request, usage.input)
    runtime.cached_request = attempt.cached_request
    await _record_server_compaction(runtime, prepared_request)
    if verdict.kind == "context_window" and is_own_conversation:
        await _append_continue_message(runtime)
    runtime.emit_event(
        events.AnswerRecorded(
            runtime.key,
            logged.stop_reason,
            usage.input,
            usage.output,
            usage.cache_read,
            usage.cache_write,
            len(answer.dropped_thinking),
        )
    )
    _report_cache_miss(runtime, prepared_request, usage, previous_request)
    _report_dropped_thinking(runtime, answer)
    return answer


def _find_previous_request(runtime: SessionRuntime) -> AnsweredRequest | None:
    """Return the newest answered request of this branch: of this runtime, or of the log from before it was opened.

    Called in the worker.
    """
    if runtime.cache_history.recent:
        return runtime.cache_history.recent[0]
    return runtime.journal.take_request_before_opening()


def _report_cache_miss(
    runtime: SessionRuntime,
    prepared_request: PreparedRequest,
    usage: Usage,
    previous_request: AnsweredRequest | None,
) -> None:
    """Emit an event if the provider read clearly less from its cache than it could have."""
    journal, target = runtime.journal, prepared_request.target
    request = AnsweredRequest(prepared_request.request_id, prepared_request.plan.state, journal.request_sent_at, usage)
    miss, runtime.cache_history = judge_cache_use(runtime.cache_history, request, target.cache_rules, previous_request)
    # That a provider reports nothing is no event: it would come with every answer.
    if miss is None or miss.cause == UNREPORTED:
        return
    difference = miss.difference or FirstDifference(-1, 0, 0)
    runtime.emit_event(
        events.CacheMissed(
            runtime.key,
            miss.cause,
            miss.missed_tokens,
            miss.expected_tokens,
            describe_cache_miss(miss),
            miss.decision,
            miss.rule,
            difference.message,
            difference.part,
            difference.byte,
            miss.idle_seconds or 0.0,
        )
    )


def _report_dropped_thinking(runtime: SessionRuntime, answer: ParsedAnswer) -> None:
    """Give notice, once in a session, that the provider kept thinking from the model; each event has the number."""
    if not answer.dropped_thinking or runtime.has_reported_dropped_thinking:
        return
    runtime.has_reported_dropped_thinking = True
    reasons = ", ".join(sorted(set(answer.dropped_thinking)))
    problem = (
        f"the provider kept {len(answer.dropped_thinking)} earlier thoughts from the model ({reasons}), as it does"
        " after any change of the history before them; the answer can be worse"
    )
    advice = "let the provider compact (native=True), or start a new session after large changes"
    runtime.emit_event(events.NoticeGiven(runtime.key, DROPPED_THINKING_RULE, f"{problem}; {advice}"))


async def record_refusal(runtime: SessionRuntime, attempt: Attempt) -> None:
    """Record that an attempt failed, with the limits that an overflow names, and emit the event about it."""
    verdict, reason, journal = attempt.verdict, attempt.failure_text, runtime.journal
    event = events.RequestRefused(
        runtime.key,
        verdict.kind,
        reason,
        verdict.limit or 0,
        verdict.requested or 0,
    )
    runtime.emit_event(event)
    if verdict.is_overflow:
        runtime.resources.server_windows.reconsider(
            attempt.upstream, attempt.target.model, verdict.limit, verdict.requested
        )
        await runtime.call_hook("on_overflow", event)
    is_as_planned = attempt.is_as_planned
    if _has_size_lesson(verdict, journal.state):
        await runtime.resources.run_in_worker(
            lambda: _write_refusal(journal, verdict, reason, is_as_planned=is_as_planned)
        )
        await _record_partial_answer(runtime, attempt, is_kept=attempt.has_delivered)
        return
    # The part of an answer that the caller has seen stands in the log as an interrupted answer; one entry is enough.
    is_recorded = await _record_partial_answer(runtime, attempt, is_kept=attempt.has_delivered)
    if not is_recorded:
        await runtime.resources.run_in_worker(lambda: _write_refusal(journal, verdict, reason))


async def record_interruption(runtime: SessionRuntime, attempt: Attempt, error: BaseException) -> None:
    """Record a run broken off by its caller, or by an unexpected ``error`` of its upstream.

    The received part of the answer is kept, even if the caller has not seen it, since the request is not sent again. A
    store that cannot write raises only if the caller simply stopped reading; otherwise the caller gets ``error``, and a
    notice is given.
    """
    reason = "the caller left"
    if isinstance(error, Exception):
        reason = flatten_to_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
    try:
        # Cancellation is the usual way to get here, and would stop the write too.
        with CancelScope(shield=True):
            is_recorded = await _record_partial_answer(runtime, attempt, is_kept=attempt.has_started)
            if not is_recorded:
                await runtime.resources.run_in_worker(
                    lambda: runtime.journal.record_failure(f"{reason} before the answer")
                )
    except StoreError as unwritten:
        if isinstance(error, GeneratorExit):
            raise
        emit_unwritten(runtime, unwritten)


def emit_unwritten(runtime: SessionRuntime, error: StoreError) -> None:
    """Give notice that an interruption could not be written to the log."""
    runtime.emit_event(
        events.NoticeGiven(
            runtime.key, UNWRITTEN_RULE, f"the interruption of a run could not be written to the log: {error}"
        )
    )


def record_caller_answer(journal: Journal, prepared_request: PreparedRequest, answer: ParsedAnswer) -> str:
    """Record the answer, or the refusal, of a request that the caller sent.

    Return the id of the answer's message; for an answer without content, that of the entry with its usage; for a
    refusal, that of the entry about it.
    """
    if answer.error is None:
        logged = convert_answer_for_log(answer, prepared_request.target.api, prepared_request.target.model)
        return journal.record_answer(logged.sized_message, logged.usage, logged.stop_reason, container=answer.container)
    report = answer.to_report(prepared_request.plan.after)
    verdict = classify_error(report)
    if isinstance(report, ErrorReport):
        reason = describe_error_report(report, verdict)
    else:
        reason = verdict.kind
    return _write_refusal(journal, verdict, reason)


# -- learning from an answer -------------------------------------------------------------------------------------------


async def _learn_window_from_answer(
    runtime: SessionRuntime,
    attempt: Attempt,
    prepared_request: PreparedRequest,
    prompt_tokens: int,
) -> Verdict:
    """Record the window that the usage of an answer reveals, if any, and return the verdict on the answer.

    ``prompt_tokens`` is the reported size of the prompt. Servers that silently drop the front of a long prompt (Ollama)
    never refuse one: their usage is the only sign of their window.
    """
    journal, settings, verdict = runtime.journal, runtime.settings, attempt.verdict
    limit = 0
    if verdict.is_overflow and not journal.state.usage.learned_limits.doubted_tokens:
        limit = _infer_window_from_usage(prepared_request, verdict, prompt_tokens, settings)
    if not limit:
        limit = _infer_window_from_flat_usage(prepared_request, journal.state, settings)
        if not limit:
            return verdict
        verdict = Verdict("silent_truncation")
    requested_tokens = verdict.requested or 0
    await runtime.resources.run_in_worker(
        lambda: journal.record_overflow(verdict.kind, limit, requested_tokens, as_planned=attempt.is_as_planned)
    )
    description = _describe_learned_window(prepared_request, prompt_tokens, limit)
    runtime.emit_event(events.NoticeGiven(runtime.key, verdict.kind.replace("_", "-"), description))
    return verdict


def _infer_window_from_usage(
    prepared_request: PreparedRequest,
    verdict: Verdict,
    prompt_tokens: int,
    settings: Settings,
) -> int:
    """Return the window in tokens that the usage of one answer reveals, or 0 if it reveals none."""
    if verdict.kind != "silent_truncation":
        return verdict.limit or 0
    state, target = prepared_request.plan.state, prepared_request.target
    if prompt_tokens < MIN_WINDOW_LIMIT or not _is_prompt_truncated(state, prepared_request.plan.after, prompt_tokens):
        return 0
    # A provider may leave the thinking of older turns out of the prompt: without it the count may be all there is.
    shown_tokens = state.view.shown_tokens - _measure_hidden_parts(state)
    if prompt_tokens >= UNREAD_PROMPT_SHARE * estimate_request_tokens(state, target, shown_tokens):
        return 0
    measured_request = get_valid_measured_request(state)
    # A window below what was accepted before would contradict that, and one without room for a conversation would end
    # the session on a guess.
    limit = max(prompt_tokens, compute_min_window(target, settings))
    if measured_request is not None:
        limit = max(limit, measured_request.reported_tokens)
    return _drop_known_limit(state, limit)


def _is_prompt_truncated(state: ConversationState, estimated_tokens: int, prompt_tokens: int) -> bool:
    """Return whether a prompt counted at far less than ``estimated_tokens`` was cut by the provider.

    Two other explanations must be ruled out first: that the estimate is wrong, and that the provider reports only the
    tokens that its cache did not hold (at first all messages, later the new ones).
    """
    measured_request = get_valid_measured_request(state)
    request_tokens = state.last_request.tokens
    is_below_any_estimate = prompt_tokens < MIN_COUNT_SHARE * estimated_tokens
    if measured_request is None:
        previous_count, _ = state.last_request.previous_coverage
        is_first_request = previous_count == 0
        return is_first_request and is_below_any_estimate and prompt_tokens < MIN_CALIBRATION_RATIO * request_tokens
    is_estimate_proven = state.usage.calibration.estimated_tokens > 0 or is_below_any_estimate
    if not is_estimate_proven or has_count_grown(measured_request, request_tokens, prompt_tokens):
        return False
    return is_whole_prompt_count(
        measured_request,
        request_tokens,
        state.setup.tokens,
        measure_new_content(state),
        prompt_tokens,
    )


def _infer_window_from_flat_usage(
    prepared_request: PreparedRequest, state: ConversationState, settings: Settings
) -> int:
    """Return the window in tokens revealed by counts that stand still while the conversation grows, or 0."""
    if not find_plateau_count(state, 0):
        return 0  # the common case, without measuring the hidden parts of the whole history
    plateau_tokens = find_plateau_count(state, _measure_hidden_parts(state))
    if not plateau_tokens:
        return 0
    return _drop_known_limit(state, max(plateau_tokens, compute_min_window(prepared_request.target, settings)))


def _measure_hidden_parts(state: ConversationState) -> int:
    """Return the tokens of thinking and opaque parts in the shown messages: a provider may skip them in older turns."""
    hidden_parts: list[Part] = []
    for message in state.history.messages.slice(state.view.first_kept):
        for part in message.parts:
            if isinstance(part, Thinking | Opaque):
                hidden_parts.append(part)
    return build_sized_message(Message("assistant", tuple(hidden_parts))).tokens


def _drop_known_limit(state: ConversationState, limit: int) -> int:
    """Return ``limit``, or 0 if a limit no larger was learned before.

    A policy that removes nothing meets the same limit with every request; it is recorded once.
    """
    known_limit = state.usage.learned_limits.window_limit
    return 0 if 0 < known_limit <= limit else limit


def _describe_learned_window(prepared_request: PreparedRequest, prompt_tokens: int, limit: int) -> str:
    plan = prepared_request.plan
    # `plan.after` is built on the last count, which may be of a truncated prompt too.
    fresh_estimate = estimate_request_tokens(plan.state, prepared_request.target, plan.state.view.shown_tokens)
    size = max(plan.after, fresh_estimate)
    return (
        f"the provider counted {prompt_tokens:,} tokens of a request of about {size:,}; its window is taken to be "
        f"{limit:,} tokens from now on"
    )


async def _record_server_compaction(runtime: SessionRuntime, prepared_request: PreparedRequest) -> None:
    """Record the compaction that came with the newest answer, if the provider compacted by itself."""
    journal, target = runtime.journal, prepared_request.target
    compaction = extract_server_compaction(journal.state, target, journal.policy)
    if compaction is None:
        return
    await runtime.resources.run_in_worker(lambda: journal.record_compaction(compaction))
    await runtime.emit_compacted(
        events.CompactionEnded(
            runtime.key,
            "compacted",
            "native",
            compaction.tokens_before,
            compaction.tokens_after,
        )
    )


async def _append_continue_message(runtime: SessionRuntime) -> None:
    """Append a user message that makes the model continue an answer cut by the window, unless a hook forbids it."""
    is_allowed = await runtime.call_hook("auto_continue") is not False
    if is_allowed:
        message = Message.from_text("user", CONTINUE_TEXT)
        await runtime.resources.run_in_worker(lambda: runtime.journal.append(message))


# -- recording a refusal -----------------------------------------------------------------------------------------------


async def _record_partial_answer(runtime: SessionRuntime, attempt: Attempt, *, is_kept: bool) -> bool:
    """Record a part of an answer as an interrupted one, if ``is_kept`` and there is any; return whether it was."""
    logged = convert_answer_for_log(attempt.partial_answer, attempt.target.api, attempt.target.model)
    if not is_kept or not logged.sized_message.message.parts:
        return False
    journal, is_as_planned = runtime.journal, attempt.is_as_planned
    await runtime.resources.run_in_worker(
        lambda: journal.record_answer(logged.sized_message, logged.usage, ABORTED_STOP, as_planned=is_as_planned)
    )
    return True


def _write_refusal(
    journal: Journal,
    verdict: Verdict,
    reason: str,
    *,
    is_as_planned: bool = True,
) -> str:
    """Append a refusal, with its numbers if later requests can learn from them; return the entry's id."""
    text = f"{verdict.kind}: {reason}"
    if not _has_size_lesson(verdict, journal.state):
        return journal.record_failure(text)
    return journal.record_overflow(
        text,
        verdict.limit or 0,
        verdict.counted_tokens,
        verdict.max_bytes or 0,
        as_planned=is_as_planned,
    )


def _has_size_lesson(verdict: Verdict, state: ConversationState) -> bool:
    """Return whether a refusal of the request that ``state`` shows teaches a limit of tokens or bytes."""
    if not verdict.is_overflow:
        return False
    has_numbers = bool(verdict.limit or verdict.requested or verdict.max_bytes)
    if verdict.kind not in BYTE_OVERFLOWS or has_numbers:
        return True
    # Without numbers, too many bytes mean too many tokens only if the bytes are text, and mostly the conversation's.
    if verdict.kind != "request_bytes":
        return False
    is_mostly_messages = MESSAGES_TO_SETUP_RATIO * state.setup.tokens <= state.view.shown_tokens
    return is_mostly_messages and not _shows_media(state)


def _shows_media(state: ConversationState) -> bool:
    if not state.view.media_count:
        return False
    # Building the projection walks the history, so the count is asked first.
    return any(collect_media_in_messages(sized_message.message) for sized_message in build_projection(state))
