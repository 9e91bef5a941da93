"""Recording: what an attempt leaves in the log, answered, refused or broken off, and what is learned from it."""

from __future__ import annotations

from anyio import CancelScope

from holdfast import events
from holdfast.engine.compaction.native import extract_server_compaction
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.run.attempt import Attempt, describe_error_report
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.replies import convert_answer_for_log
from holdfast.errors import StoreError
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Opaque, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.normalize.roles import CONTINUE_TEXT
from holdfast.planning.budget import compute_min_window
from holdfast.planning.settings import Settings
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.answer_rules import UNREAD_PROMPT_SHARE
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport, Verdict
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
from holdfast.state.view import build_projection, get_valid_measured_request

ABORTED_STOP = "aborted"
"""How an answer ends that was not told to its end."""
MESSAGES_TO_SETUP_RATIO = 4
"""[H] Times that the messages must be as large as system and tools, for a limit of bytes to be one of messages."""
BYTE_OVERFLOWS = frozenset({"request_bytes", "oversized_part"})
"""Overflows that say nothing of tokens, unless they name some: a client is told of them as they came."""
MAX_ERROR_CHARS = 200
"""Characters that the log repeats of an error that is none of ours."""

UNWRITTEN_RULE = "unwritten"
"""The rule of a notice that what broke off could not be written down."""

_DOUBTED_USAGE_NOTICE = (
    "the provider counts more tokens than the window holds, for requests that it takes and that have a fraction of it "
    "by our estimate: such counts are not believed"
)


async def record_answer(
    runtime: SessionRuntime, attempt: Attempt, prepared_request: PreparedRequest, *, is_own_conversation: bool = True
) -> ParsedAnswer:
    """Return the answer of ``attempt``, once it is in the log with what it cost, and what its size teaches.

    ``is_own_conversation`` is false where a client sends the whole conversation: what it goes on with is its own to
    say.
    """
    answer, journal, as_planned = attempt.answer, runtime.journal, attempt.is_as_planned
    sized_message, usage, stop = convert_answer_for_log(
        answer, prepared_request.target.api, prepared_request.target.model
    )
    was_doubted = journal.state.usage.learned_limits.doubted_tokens
    await runtime.resources.run_in_worker(
        lambda: journal.record_answer(sized_message, usage, stop, as_planned=as_planned)
    )
    if (
        was_doubted
        and journal.state.usage.learned_limits.doubted_tokens
        and is_impossible_count(journal.state, usage.input)
    ):
        runtime.emit_event(events.NoticeGiven(runtime.key, "usage", _DOUBTED_USAGE_NOTICE))
    verdict = await _learn_window_from_answer(runtime, attempt, prepared_request, usage.input)
    runtime.cached_request = attempt.cached_request
    await _record_server_compaction(runtime, prepared_request)
    if verdict.kind == "context_window" and is_own_conversation:
        await _append_continue_message(runtime)
    runtime.emit_event(
        events.AnswerRecorded(runtime.key, stop, usage.input, usage.output, usage.cache_read, usage.cache_write)
    )
    return answer


async def record_refusal(runtime: SessionRuntime, attempt: Attempt) -> None:
    """Write down that an attempt failed, and what an overflow teaches."""
    verdict, why, journal = attempt.verdict, attempt.failure_text, runtime.journal
    event = events.RequestRefused(runtime.key, verdict.kind, why, verdict.limit or 0, verdict.requested or 0)
    runtime.emit_event(event)
    if verdict.is_overflow:
        await runtime.call_hook("on_overflow", event)
    as_planned = attempt.is_as_planned
    if _has_size_lesson(verdict, journal.state):
        await runtime.resources.run_in_worker(lambda: _write_refusal(journal, verdict, why, as_planned=as_planned))
        await _record_partial_answer(runtime, attempt, is_kept=attempt.has_delivered)
    elif not await _record_partial_answer(runtime, attempt, is_kept=attempt.has_delivered):
        await runtime.resources.run_in_worker(lambda: _write_refusal(journal, verdict, why))


async def record_interruption(runtime: SessionRuntime, attempt: Attempt, error: BaseException) -> None:
    """Record what was said before the caller left or an upstream raised what it may not, or that nothing was.

    Nothing is tried again then: what came stays, also where it was not given out. Where it cannot be written down that
    is told, and raised to a caller who simply read no further; what else broke it off is what is raised.
    """
    why = (
        flatten_to_line(f"{type(error).__name__}: {error}", MAX_ERROR_CHARS)
        if isinstance(error, Exception)
        else "the caller left"
    )
    try:
        with CancelScope(shield=True):
            if not await _record_partial_answer(runtime, attempt, is_kept=attempt.has_started):
                await runtime.resources.run_in_worker(
                    lambda: runtime.journal.record_failure(f"{why} before the answer")
                )
    except StoreError as unwritten:
        if isinstance(error, GeneratorExit):
            raise
        emit_unwritten(runtime, unwritten)


def emit_unwritten(runtime: SessionRuntime, why: StoreError) -> None:
    """Tell that what broke off could not be written down, where something else is raised."""
    runtime.emit_event(events.NoticeGiven(runtime.key, UNWRITTEN_RULE, f"what broke off is in no log: {why}"))


def record_caller_answer(journal: Journal, prepared_request: PreparedRequest, answer: ParsedAnswer) -> str:
    """Record what came of a request that the caller sent; return the id of the message, or of what it is else."""
    if answer.error is None:
        sized_message, usage, stop = convert_answer_for_log(
            answer, prepared_request.target.api, prepared_request.target.model
        )
        return journal.record_answer(sized_message, usage, stop)
    report = answer.to_report(prepared_request.plan.after)
    verdict = classify_error(report)
    return _write_refusal(
        journal, verdict, describe_error_report(report, verdict) if isinstance(report, ErrorReport) else verdict.kind
    )


# -- what an answer teaches --------------------------------------------------------------------------------------------


async def _learn_window_from_answer(
    runtime: SessionRuntime, attempt: Attempt, prepared_request: PreparedRequest, prompt_tokens: int
) -> Verdict:
    """Return what the answer is to be taken for, once the window that its count tells of is in the log, and told."""
    journal, verdict, as_planned = runtime.journal, attempt.verdict, attempt.is_as_planned
    is_believed = verdict.is_overflow and not journal.state.usage.learned_limits.doubted_tokens
    limit = _infer_window_from_usage(prepared_request, verdict, prompt_tokens, runtime.settings) if is_believed else 0
    if not limit and (limit := _infer_window_from_flat_usage(prepared_request, journal.state, runtime.settings)):
        verdict = Verdict("silent_truncation")
    if limit:
        requested_tokens = verdict.requested or 0
        await runtime.resources.run_in_worker(
            lambda: journal.record_overflow(verdict.kind, limit, requested_tokens, as_planned=as_planned)
        )
        runtime.emit_event(
            events.NoticeGiven(
                runtime.key,
                verdict.kind.replace("_", "-"),
                _describe_learned_window(prepared_request, prompt_tokens, limit),
            )
        )
    return verdict


def _infer_window_from_usage(
    prepared_request: PreparedRequest, verdict: Verdict, prompt_tokens: int, settings: Settings
) -> int:
    """Return the window that an answer tells of without saying so, or 0.

    What was taken before fits too, and no guess ends a session.
    """
    if verdict.kind != "silent_truncation":
        return verdict.limit or 0
    state = prepared_request.plan.state
    if prompt_tokens < MIN_WINDOW_LIMIT or not _is_prompt_truncated(state, prepared_request.plan.after, prompt_tokens):
        return 0
    if prompt_tokens >= UNREAD_PROMPT_SHARE * estimate_request_tokens(
        state, prepared_request.target, state.view.shown_tokens - _measure_hidden_parts(state)
    ):
        return 0
    measured_request = get_valid_measured_request(state)
    return _drop_known_limit(
        state,
        max(
            prompt_tokens,
            measured_request.reported_tokens if measured_request else 0,
            compute_min_window(prepared_request.target, settings),
        ),
    )


def _is_prompt_truncated(state: ConversationState, size: int, prompt_tokens: int) -> bool:
    """Whether a prompt far smaller than its estimate of ``size`` was cut by the provider.

    Or else nothing has proven the estimate yet, or it is the count of what no cache held: at first all messages, later
    what is new.
    """
    measured_request, request_tokens = get_valid_measured_request(state), state.last_request.tokens
    if measured_request is None:
        return state.last_request.previous_coverage[0] == 0 and prompt_tokens < min(
            MIN_COUNT_SHARE * size, MIN_CALIBRATION_RATIO * request_tokens
        )
    is_proven = state.usage.calibration.estimated_tokens > 0 or prompt_tokens < MIN_COUNT_SHARE * size
    is_new = has_count_grown(measured_request, request_tokens, prompt_tokens) or not is_whole_prompt_count(
        measured_request, request_tokens, state.setup.tokens, measure_new_content(state), prompt_tokens
    )
    return is_proven and not is_new


def _infer_window_from_flat_usage(
    prepared_request: PreparedRequest, state: ConversationState, settings: Settings
) -> int:
    """Return the window that counts tell of which stand still while the conversation grows, or 0."""
    if not find_plateau_count(state, 0):
        return 0
    flat_tokens = find_plateau_count(state, _measure_hidden_parts(state))
    return (
        _drop_known_limit(state, max(flat_tokens, compute_min_window(prepared_request.target, settings)))
        if flat_tokens
        else 0
    )


def _measure_hidden_parts(state: ConversationState) -> int:
    """Return the size of reasoning, and of what is opaque: a provider may leave it out of older turns.

    Nothing of it is taken for read, and what is another model's never was.
    """
    shown_messages = state.history.messages.slice(state.view.first_kept)
    aside = [part for message in shown_messages for part in message.parts if isinstance(part, Thinking | Opaque)]
    return build_sized_message(Message("assistant", tuple(aside))).tokens


def _drop_known_limit(state: ConversationState, limit: int) -> int:
    """Return ``limit``, or 0 where as little was learned before: a policy that removes nothing meets it each time."""
    return 0 if 0 < state.usage.learned_limits.window_limit <= limit else limit


def _describe_learned_window(prepared_request: PreparedRequest, prompt_tokens: int, limit: int) -> str:
    """Return what is told of a window that an answer taught."""
    plan = prepared_request.plan
    size = max(
        plan.after, estimate_request_tokens(plan.state, prepared_request.target, plan.state.view.shown_tokens)
    )  # the last count may be a cut one
    return (
        f"the provider counted {prompt_tokens:,} tokens of a request of about {size:,}: {limit:,} count as its "
        "window now"
    )


async def _record_server_compaction(runtime: SessionRuntime, prepared_request: PreparedRequest) -> None:
    """Write down the compaction that the answer brought along, where the provider compacted by itself."""
    journal, target = runtime.journal, prepared_request.target
    compaction = extract_server_compaction(journal.state, target, journal.policy)
    if compaction is not None:
        await runtime.resources.run_in_worker(lambda: journal.record_compaction(compaction))
        await runtime.emit_compacted(
            events.CompactionEnded(
                runtime.key, "compacted", "native", compaction.tokens_before, compaction.tokens_after
            )
        )


async def _append_continue_message(runtime: SessionRuntime) -> None:
    """Let the next request go on where the window cut this answer, unless a hook says no."""
    if await runtime.call_hook("auto_continue") is not False:
        await runtime.resources.run_in_worker(lambda: runtime.journal.append(Message.from_text("user", CONTINUE_TEXT)))


# -- what a refusal leaves ---------------------------------------------------------------------------------------------


async def _record_partial_answer(runtime: SessionRuntime, attempt: Attempt, *, is_kept: bool) -> bool:
    """Return whether there is a part of an answer to keep; it is then in the log, as one that was interrupted."""
    partial_message, usage, _ = convert_answer_for_log(attempt.partial_answer, attempt.target.api, attempt.target.model)
    if not (is_kept and partial_message.message.parts):
        return False
    journal, as_planned = runtime.journal, attempt.is_as_planned
    await runtime.resources.run_in_worker(
        lambda: journal.record_answer(partial_message, usage, ABORTED_STOP, as_planned=as_planned)
    )
    return True


def _write_refusal(journal: Journal, verdict: Verdict, why: str, *, as_planned: bool = True) -> str:
    """Write a refusal into the log, as a lesson where it teaches one; return the entry's id."""
    reason = f"{verdict.kind}: {why}"
    if not _has_size_lesson(verdict, journal.state):
        return journal.record_failure(reason)
    numbers = (verdict.limit or 0, verdict.requested or 0, verdict.max_bytes or 0)
    return journal.record_overflow(reason, *numbers, as_planned=as_planned)


def _has_size_lesson(verdict: Verdict, state: ConversationState) -> bool:
    """Whether a refusal of what ``state`` shows says something of its tokens, or how many bytes it may have.

    Of tokens bytes say something where all they are is words, and most of them the conversation's.
    """
    if (
        not verdict.is_overflow
        or verdict.kind not in BYTE_OVERFLOWS
        or verdict.limit
        or verdict.requested
        or verdict.max_bytes
    ):
        return verdict.is_overflow
    shows_media = state.view.media_count and any(
        collect_media_in_messages(sized_message.message) for sized_message in build_projection(state)
    )
    is_talk = MESSAGES_TO_SETUP_RATIO * state.setup.tokens <= state.view.shown_tokens
    return verdict.kind == "request_bytes" and is_talk and not shows_media
