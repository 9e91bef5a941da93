"""What the fold learns of sizes: from the usage of an answer, and from the numbers of an overflow."""

from __future__ import annotations

import math

from msgspec.structs import replace

from holdfast.messages.message import collect_media_in_messages
from holdfast.state.calibration.calibration import (
    DOUBTED_JUMP_SHARE,
    MAX_CALIBRATION_RATIO,
    MAX_SAMPLE_TOKENS,
    MIN_COUNT_SHARE,
    MIN_WINDOW_LIMIT,
    PLAUSIBLE_FACTOR,
    MeasuredRequest,
    add_calibration_sample,
    extend_plateau,
    is_plateau,
    is_plausible_count,
    is_whole_prompt_count,
    min_known_size,
    raise_calibration_to,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, FailureEntry
from holdfast.state.target import CacheRules
from holdfast.state.view import compute_prefix_digest_at, get_projection_digest_at, get_valid_measured_request

HOUR_CACHE_SECONDS = 3_600
"""Seconds that a cache keeps what is written to it for an hour (Anthropic)."""


def get_cache_lifetime(state: ConversationState, rules: CacheRules) -> int:
    """Return the seconds that the provider's cache keeps what the newest request of ``state`` showed."""
    return (
        max(rules.ttl_seconds, HOUR_CACHE_SECONDS) if state.usage.learned_limits.uses_hour_cache else rules.ttl_seconds
    )


def is_answer_to_last_request(state: ConversationState, answer: AnswerEntry) -> bool:
    """Return whether ``answer`` tells what the newest request of ``state`` cost."""
    return (
        bool(state.last_request.seen_count)
        and answer.prefix_digest == state.last_request.prefix_digest
        and answer.usage.input > 0
    )


def learn_from_usage(state: ConversationState, body: AnswerEntry) -> ConversationState:
    """Return the branch knowing what its newest request cost: anchored there, its estimates calibrated.

    What the provider took disproves a limit that was told before; nothing else is taught by less than the whole prompt,
    and nothing at all by one wild count.
    """
    tokens = body.usage.input
    if body.usage.cache_write:
        state = replace(
            state,
            usage=replace(
                state.usage,
                learned_limits=replace(state.usage.learned_limits, uses_hour_cache=body.usage.cache_write_1h > 0),
            ),
        )
    if not is_answer_to_last_request(state, body):
        return replace(
            state,
            usage=replace(state.usage, learned_limits=replace(state.usage.learned_limits, overflows_since_answer=0)),
        )
    calibration, measured_request = state.usage.calibration, get_valid_measured_request(state)
    leaps = _is_count_jump(state, measured_request, tokens)
    if leaps and not _is_jump_believed(state, tokens):
        return replace(
            state,
            usage=replace(
                state.usage,
                learned_limits=replace(state.usage.learned_limits, overflows_since_answer=0, doubted_tokens=tokens),
            ),
        )
    state = _drop_disproved_limits(state, tokens)
    if not _is_count_of_all(state, measured_request, tokens):
        return state
    true = tokens - (measured_request.reported_tokens if measured_request else state.setup.tokens)
    estimated_tokens = state.last_request.tokens - (measured_request.shown_tokens if measured_request else 0)
    if (
        not leaps
        and (measured_request is not None or state.setup.is_exact)
        and (measured_request is None or true <= MAX_SAMPLE_TOKENS)
    ):
        calibration = add_calibration_sample(calibration, true, estimated_tokens)
    newest = _measure_last_request(state, tokens, body.prefix_digest)
    if newest.projection_digest:
        newest = replace(
            newest,
            plateau=extend_plateau(
                measured_request, state.last_request.tokens + state.setup.tokens, measure_new_content(state), tokens
            ),
        )
    return replace(state, usage=replace(state.usage, calibration=calibration, measured_request=newest))


def _is_count_jump(state: ConversationState, measured_request: MeasuredRequest | None, tokens: int) -> bool:
    """Return whether the newest prompt has more than the count before it, and what was said since, account for.

    Where there was no count the estimate accounts for it, and half of the window for a frame that nobody told.
    """
    setup = state.setup
    if measured_request is not None:
        return tokens > (
            1 + DOUBTED_JUMP_SHARE
        ) * measured_request.reported_tokens + PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * max(
            0, state.last_request.tokens - measured_request.shown_tokens
        )
    unknown = 0 if setup.tokens else state.last_request.configured_window / 2 or math.inf
    return tokens > PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * (state.last_request.tokens + setup.tokens) + unknown


def _is_jump_believed(state: ConversationState, tokens: int) -> bool:
    """Return whether a leap is believed: the estimate says so, the count before did, or media have what they have."""
    plausible_tokens = (1 + DOUBTED_JUMP_SHARE) * (state.last_request.tokens + state.setup.tokens)
    again = 0 < state.usage.learned_limits.doubted_tokens <= tokens and not is_impossible_count(state, tokens)
    return tokens <= plausible_tokens or again or _has_unmeasured_media(state)


def is_impossible_count(state: ConversationState, tokens: int) -> bool:
    """Return whether the newest request, which was taken, cannot have had ``tokens``, however often they are told.

    No tokenizer makes so many of what it says, and its window does not hold them.
    """
    estimated_tokens = state.last_request.tokens + state.setup.tokens
    return (
        0 < state.last_request.configured_window < tokens
        and tokens > PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * estimated_tokens
    )


def _drop_disproved_limits(state: ConversationState, tokens: int) -> ConversationState:
    """Return the branch without what overflows told and a request of ``tokens`` or more, now taken, disproves."""
    old = state.usage.learned_limits
    limits = replace(
        old,
        window_limit=0 if tokens > old.window_limit else old.window_limit,
        smallest_refused_tokens=0 if tokens >= old.smallest_refused_tokens else old.smallest_refused_tokens,
        smallest_refused_estimate=0
        if state.last_request.tokens >= old.smallest_refused_estimate
        else old.smallest_refused_estimate,
        max_body_bytes=0 if state.view.media_bytes > old.max_body_bytes else old.max_body_bytes,
        overflows_since_answer=0,
        doubted_tokens=0,
    )
    return replace(state, usage=replace(state.usage, learned_limits=limits))


def _has_unmeasured_media(state: ConversationState) -> bool:
    """Return whether the newest request has media that no count covers yet."""
    measurement = get_valid_measured_request(state)
    start = state.view.first_kept if measurement is None else measurement.message_count
    return state.view.media_count > 0 and any(
        collect_media_in_messages(message)
        for message in state.history.messages.slice(start, state.last_request.seen_count)
    )


def find_plateau_count(state: ConversationState, dropped_tokens: int) -> int:
    """Return the most tokens that were counted of a conversation that grows while its counts do not; 0 where they do.

    Counts that never grew are no counts. ``dropped_tokens`` tokens may be left out of the newest prompt, and media have
    fewer than is reckoned for them.
    """
    measured_request = get_valid_measured_request(state)
    stretch = (
        measured_request.plateau
        if measured_request
        and (measured_request.message_count, measured_request.shown_tokens)
        == (state.last_request.seen_count, state.last_request.tokens)
        else None
    )
    if stretch is None or state.view.media_count or not state.usage.calibration.estimated_tokens:
        return 0
    return (
        stretch.largest_count
        if is_plateau(stretch, state.last_request.tokens + state.setup.tokens - dropped_tokens)
        else 0
    )


def _is_count_of_all(state: ConversationState, measured_request: MeasuredRequest | None, tokens: int) -> bool:
    """Return whether ``tokens`` can be all of the newest prompt. Media may have far fewer than is reckoned for them."""
    if measured_request is None:
        return tokens >= MIN_COUNT_SHARE * (
            (0 if state.view.media_count else state.last_request.tokens) + state.setup.tokens
        )
    new = 0 if state.view.media_count else measure_new_content(state)
    return is_whole_prompt_count(measured_request, state.last_request.tokens, state.setup.tokens, new, tokens)


def measure_new_content(state: ConversationState) -> int:
    """Return the size of what the newest request showed and none before it that its model counted, as it was said."""
    measured_request, stop = get_valid_measured_request(state), state.last_request.seen_count
    shown_count = (
        state.last_request.previous_coverage[0]
        if measured_request is None
        else min(measured_request.message_count, state.last_request.previous_coverage[0])
    )
    before = max(shown_count, state.view.first_kept)
    return (state.history.cumulative_tokens[stop - 1] if stop else 0) - (
        state.history.cumulative_tokens[before - 1] if before else 0
    )


def learn_from_overflow(state: ConversationState, body: FailureEntry) -> ConversationState:
    """Return the branch knowing that its newest request was refused as too large, by the numbers that were told.

    A told size is the request's: an anchor, and a ratio no less from here on. A told limit is the window's, and the
    size was over it. A size within its limit is explained by the room for the answer, once. Where neither is told, or
    what is told makes no sense, the request as estimated was too large. Bytes are the body's: of one with media they
    tell how many these may have, of words alone that there were too many.
    """
    if body.max_body_bytes:
        state = replace(
            state,
            usage=replace(
                state.usage,
                learned_limits=replace(
                    state.usage.learned_limits,
                    max_body_bytes=min_known_size(state.usage.learned_limits.max_body_bytes, body.max_body_bytes),
                ),
            ),
        )
    if body.max_body_bytes and state.view.media_count:
        return state
    if body.is_other_branch:
        limit = min_known_size(
            state.usage.learned_limits.window_limit, body.limit_tokens if body.limit_tokens >= MIN_WINDOW_LIMIT else 0
        )
        return replace(
            state, usage=replace(state.usage, learned_limits=replace(state.usage.learned_limits, window_limit=limit))
        )
    if not state.last_request.seen_count or state.last_request.tokens <= 0:
        return state
    estimated_tokens = state.last_request.tokens + state.setup.tokens
    requested_tokens = body.requested_tokens if is_plausible_count(body.requested_tokens, estimated_tokens) else 0
    limit = body.limit_tokens if body.limit_tokens >= MIN_WINDOW_LIMIT else 0
    again = state.usage.learned_limits.overflows_since_answer > 0
    has_explanation = limit and (requested_tokens > limit or not again)
    state = _record_limit(state, limit, 0 if has_explanation else requested_tokens)
    if requested_tokens:
        new_state = _raise_calibration(state, requested_tokens)
        return replace(
            new_state,
            usage=replace(
                new_state.usage,
                measured_request=_measure_last_request(state, requested_tokens, state.last_request.prefix_digest),
            ),
        )
    if not limit or again:
        state = _record_unexplained_refusal(state)
    heavier = is_plausible_count(limit, estimated_tokens) and _compute_reported_ratio(state, limit) > _get_known_ratio(
        state
    )
    if not heavier:
        return state
    new_state = _raise_calibration(state, limit)
    return replace(new_state, usage=replace(new_state.usage, measured_request=None))


def _record_limit(state: ConversationState, limit: int, below: int) -> ConversationState:
    """Return the branch knowing of one overflow more, of a ``limit``, and of a size that no limit explains."""
    old = state.usage.learned_limits
    new_limits = replace(
        old,
        window_limit=min_known_size(old.window_limit, limit),
        smallest_refused_tokens=min_known_size(old.smallest_refused_tokens, below),
        overflows_since_answer=old.overflows_since_answer + 1,
    )
    return replace(state, usage=replace(state.usage, learned_limits=new_limits))


def _record_unexplained_refusal(state: ConversationState) -> ConversationState:
    """Return the branch knowing that its newest request was too large, by how much nobody said."""
    min_refused = min_known_size(state.usage.learned_limits.smallest_refused_estimate, state.last_request.tokens)
    return replace(
        state,
        usage=replace(
            state.usage, learned_limits=replace(state.usage.learned_limits, smallest_refused_estimate=min_refused)
        ),
    )


def _raise_calibration(state: ConversationState, tokens: int) -> ConversationState:
    """Return the branch counting as if its newest request had ``tokens``, in the frame as in the messages."""
    ratio = min(MAX_CALIBRATION_RATIO, _compute_reported_ratio(state, tokens))
    return replace(
        state,
        usage=replace(
            state.usage,
            calibration=raise_calibration_to(state.usage.calibration, ratio, state.last_request.tokens),
            learned_limits=replace(state.usage.learned_limits, min_ratio=ratio),
        ),
    )


def _compute_reported_ratio(state: ConversationState, tokens: int) -> float:
    """Return the real tokens for one estimated token where the newest request has ``tokens``.

    Where the frame's size is no fact it is wrong by the same ratio as that of the messages.
    """
    setup = state.setup
    if setup.is_exact:
        return max(0, tokens - setup.tokens) / state.last_request.tokens
    return tokens / (state.last_request.tokens + setup.tokens)


def _get_known_ratio(state: ConversationState) -> float:
    """Return the ratio that was reported so far; 1 where nothing was."""
    calibration = state.usage.calibration
    return max(
        calibration.real_tokens / calibration.estimated_tokens if calibration.estimated_tokens else 1.0,
        state.usage.learned_limits.min_ratio,
    )


def _measure_last_request(state: ConversationState, tokens: int, basis: str) -> MeasuredRequest:
    """Return the measure of the newest request, with the digest of what it showed where that still stands."""
    stands = not basis or basis == compute_prefix_digest_at(state, state.last_request.seen_count)
    mark = get_projection_digest_at(state, state.last_request.seen_count) if stands else b""
    return MeasuredRequest(
        state.last_request.seen_count,
        state.last_request.tokens,
        tokens,
        projection_digest=mark,
        native_tokens=state.view.native_tokens,
    )
