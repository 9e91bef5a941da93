"""What the fold learns about sizes from the usage of an answer and from the numbers of an overflow error."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.messages.message import collect_media_in_messages
from holdfast.state.calibration.calibration import (
    DOUBTED_JUMP_SHARE,
    MAX_BELIEVED_TOKENS,
    MAX_CALIBRATION_RATIO,
    MAX_SAMPLE_TOKENS,
    MIN_COUNT_SHARE,
    MIN_WINDOW_LIMIT,
    PLAUSIBLE_FACTOR,
    Calibration,
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
"""Lifetime of a cache entry that was written with Anthropic's one-hour option."""


def get_cache_lifetime(state: ConversationState, rules: CacheRules) -> int:
    """Return for how many seconds the provider's cache keeps the newest request of ``state``."""
    if state.usage.learned_limits.uses_hour_cache:
        return max(rules.ttl_seconds, HOUR_CACHE_SECONDS)
    return rules.ttl_seconds


def is_answer_to_last_request(state: ConversationState, answer: AnswerEntry) -> bool:
    """Return whether ``answer`` reports the usage of the newest request of ``state``."""
    return (
        bool(state.last_request.seen_count)
        and answer.prefix_digest == state.last_request.prefix_digest
        and answer.usage.input > 0
    )


def learn_from_usage(state: ConversationState, body: AnswerEntry) -> ConversationState:
    """Return the state updated with the usage that ``body`` reports for the newest request.

    A believed count of the whole prompt becomes the measured request and a calibration sample. A count of a part of the
    prompt only disproves limits that were learned before. A count that nothing explains is remembered as doubted and
    teaches nothing else.
    """
    tokens = body.usage.input
    if body.usage.cache_write:
        state = _replace_learned_limits(state, uses_hour_cache=body.usage.cache_write_1h > 0)
    if not is_answer_to_last_request(state, body):
        return _replace_learned_limits(state, overflows_since_answer=0)
    measured_request = get_valid_measured_request(state)
    is_jump = _is_count_jump(state, measured_request, tokens)
    if is_jump and not _is_jump_believed(state, tokens):
        return _replace_learned_limits(state, overflows_since_answer=0, doubted_tokens=tokens)
    # A partial count is still a lower bound of what the server took, so it may disprove a limit.
    state = _drop_disproved_limits(state, tokens)
    if not _is_count_of_all(state, measured_request, tokens):
        return state
    calibration = state.usage.calibration
    # A jump that was confirmed becomes the new measurement but no sample: something we cannot see grew (a setup,
    # thinking), not the price of a word.
    if not is_jump:
        calibration = _calibrate_by_growth(state, measured_request, tokens)
    newest = _measure_last_request(state, tokens, body.prefix_digest)
    if newest.projection_digest:
        request_tokens = state.last_request.tokens + state.setup.tokens
        plateau = extend_plateau(measured_request, request_tokens, measure_new_content(state), tokens)
        newest = replace(newest, plateau=plateau)
    return _replace_usage(state, calibration=calibration, measured_request=newest)


def _calibrate_by_growth(
    state: ConversationState, measured_request: MeasuredRequest | None, tokens: int
) -> Calibration:
    """Return the calibration with a sample of the prompt's growth since ``measured_request``.

    Growth is used and not the whole prompt, since the setup and invisible parts of the prompt cancel out in it.
    """
    calibration = state.usage.calibration
    if measured_request is not None:
        real_growth = tokens - measured_request.reported_tokens
        if real_growth > MAX_SAMPLE_TOKENS:
            return calibration
        return add_calibration_sample(
            calibration, real_growth, state.last_request.tokens - measured_request.shown_tokens
        )
    # The first count: what is left after an exact setup is the messages. An estimated setup would blur the sample.
    if state.setup.is_exact:
        return add_calibration_sample(calibration, tokens - state.setup.tokens, state.last_request.tokens)
    return calibration


def _is_count_jump(state: ConversationState, measured_request: MeasuredRequest | None, tokens: int) -> bool:
    """Return whether ``tokens`` are more than the previous count and the messages since can account for.

    Without a previous count the estimate has to account for them, plus half of the window if the setup is unknown.
    """
    max_factor = PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO
    if measured_request is not None:
        added_tokens = max(0, state.last_request.tokens - measured_request.shown_tokens)
        return tokens > (1 + DOUBTED_JUMP_SHARE) * measured_request.reported_tokens + max_factor * added_tokens
    unknown_setup_tokens: float = 0
    if not state.setup.tokens:
        # Nobody told the size of system prompt and tools. A setup over half of the window would leave no room to talk;
        # without a known window any setup is possible that some model has room for.
        unknown_setup_tokens = state.last_request.configured_window / 2 or MAX_BELIEVED_TOKENS
    return tokens > max_factor * (state.last_request.tokens + state.setup.tokens) + unknown_setup_tokens


def _is_jump_believed(state: ConversationState, tokens: int) -> bool:
    """Return whether to believe a count that jumped.

    It is believed if it is close to our own estimate, if the count before it was doubted and no larger, or if new media
    explain it: a document may have a hundred times the tokens that we assume.
    """
    request_tokens = state.last_request.tokens + state.setup.tokens
    if tokens <= (1 + DOUBTED_JUMP_SHARE) * request_tokens:
        return True
    is_confirmed = 0 < state.usage.learned_limits.doubted_tokens <= tokens
    if is_confirmed and not is_impossible_count(state, tokens):
        return True
    return _has_unmeasured_media(state) and tokens <= MAX_BELIEVED_TOKENS


def is_impossible_count(state: ConversationState, tokens: int) -> bool:
    """Return whether the newest request, which was answered, cannot have had ``tokens``, however often it is reported.

    Both must hold: no tokenizer makes so many of its text, and its window could not have held them.
    """
    request_tokens = state.last_request.tokens + state.setup.tokens
    is_over_window = tokens > (state.last_request.configured_window or MAX_BELIEVED_TOKENS)
    return is_over_window and tokens > PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * request_tokens


def _drop_disproved_limits(state: ConversationState, tokens: int) -> ConversationState:
    """Return the state without the learned limits that a request of ``tokens`` or more, now answered, disproves."""
    old = state.usage.learned_limits
    # The provider accepted this much, so no limit below it can be true, whatever an error message said.
    is_over_limit = tokens > old.window_limit
    is_over_refused_size = tokens >= old.smallest_refused_tokens
    is_over_refused_estimate = state.last_request.tokens >= old.smallest_refused_estimate
    is_over_body_limit = state.view.media_bytes > old.max_body_bytes
    return _replace_learned_limits(
        state,
        window_limit=0 if is_over_limit else old.window_limit,
        smallest_refused_tokens=0 if is_over_refused_size else old.smallest_refused_tokens,
        smallest_refused_estimate=0 if is_over_refused_estimate else old.smallest_refused_estimate,
        max_body_bytes=0 if is_over_body_limit else old.max_body_bytes,
        overflows_since_answer=0,
        doubted_tokens=0,
    )


def _has_unmeasured_media(state: ConversationState) -> bool:
    """Return whether the newest request showed media that no measured request covers yet."""
    if not state.view.media_count:
        return False
    measurement = get_valid_measured_request(state)
    if measurement is None:
        start = state.view.first_kept
    else:
        start = measurement.message_count
    new_messages = state.history.messages.slice(start, state.last_request.seen_count)
    return any(collect_media_in_messages(message) for message in new_messages)


def find_plateau_count(state: ConversationState, dropped_tokens: int) -> int:
    """Return the largest count of a conversation that grows while its counts do not, or 0 if they do grow.

    The result is the most that a server which cuts prompts silently reads, in its tokens. ``dropped_tokens`` is our
    estimate of the thinking of older turns, which the provider may leave out of the newest prompt.
    """
    measured_request = get_valid_measured_request(state)
    if measured_request is None or measured_request.plateau is None:
        return 0
    # Only the newest request is judged. If its own count is unknown, the plateau was judged at an earlier one.
    measured_size = (measured_request.message_count, measured_request.shown_tokens)
    if measured_size != (state.last_request.seen_count, state.last_request.tokens):
        return 0
    # Media may have far fewer tokens than we assume, so that counts rightly stay below the estimate. And counts that
    # never grew, not even once, come from a server that does not count.
    if state.view.media_count or not state.usage.calibration.estimated_tokens:
        return 0
    request_tokens = state.last_request.tokens + state.setup.tokens - dropped_tokens
    plateau = measured_request.plateau
    return plateau.largest_count if is_plateau(plateau, request_tokens) else 0


def _is_count_of_all(state: ConversationState, measured_request: MeasuredRequest | None, tokens: int) -> bool:
    """Return whether ``tokens`` can be the count of the whole newest prompt.

    Media are left out of the comparison: small images have far fewer tokens than we assume for them.
    """
    has_media = state.view.media_count > 0
    if measured_request is None:
        message_tokens = 0 if has_media else state.last_request.tokens
        return tokens >= MIN_COUNT_SHARE * (message_tokens + state.setup.tokens)
    new_tokens = 0 if has_media else measure_new_content(state)
    return is_whole_prompt_count(
        measured_request,
        state.last_request.tokens,
        state.setup.tokens,
        new_tokens,
        tokens,
    )


def measure_new_content(state: ConversationState) -> int:
    """Return the estimated size, before edits, of the messages that the newest request showed for the first time.

    Messages of earlier requests count as new until the model has counted one of those requests.
    """
    measured_request = get_valid_measured_request(state)
    shown_before = state.last_request.previous_coverage[0]
    if measured_request is not None:
        shown_before = min(measured_request.message_count, shown_before)
    # Hidden messages are not shown at all, so they are not new either.
    start = max(shown_before, state.view.first_kept)
    stop = state.last_request.seen_count
    cumulative_tokens = state.history.cumulative_tokens
    tokens_until_stop = cumulative_tokens[stop - 1] if stop else 0
    tokens_until_start = cumulative_tokens[start - 1] if start else 0
    return tokens_until_stop - tokens_until_start


def learn_from_overflow(state: ConversationState, body: FailureEntry) -> ConversationState:
    """Return the state updated after the newest request was refused as too large.

    The error may name the window's ``limit_tokens``, the ``requested_tokens`` of the prompt, both or neither, and
    numbers that are no token counts at all; those that make no sense for this request count as not named. A limit is
    *explained away* once: a prompt within the named limit is refused because prompt and answer together exceed it, and
    the request that follows asks for a shorter answer. If that one is refused too, the size of the prompt itself was
    too much.

    ========== ============== ========= ==========================================================
    limit      requested      repeated  learned, beside the limit itself
    ========== ============== ========= ==========================================================
    not named  not named      any       our estimate of the messages is too large
    not named  named          any       request has ``requested`` tokens; that many are too large
    named      not named      no        request has more than ``limit`` tokens
    named      not named      yes       the same, and our estimate of the messages is too large
    named      over limit     any       request has ``requested`` tokens
    named      within limit   no        request has ``requested`` tokens (the answer took the rest)
    named      within limit   yes       the same, and that many are too large
    ========== ============== ========= ==========================================================

    *Repeated* means that another request was refused since the last answer. An error may name bytes instead of tokens.
    With media in the request they limit the media alone; without any, the text was too long and the table applies. A
    refusal on another branch teaches only its limit, since the request was not this one.
    """
    limits = state.usage.learned_limits
    if body.max_body_bytes:
        state = _replace_learned_limits(
            state, max_body_bytes=min_known_size(limits.max_body_bytes, body.max_body_bytes)
        )
        if state.view.media_count:
            return state
    limit = body.limit_tokens if body.limit_tokens >= MIN_WINDOW_LIMIT else 0
    if body.is_other_branch:
        return _replace_learned_limits(state, window_limit=min_known_size(limits.window_limit, limit))
    if not state.last_request.seen_count or state.last_request.tokens <= 0:
        return state

    estimated_tokens = state.last_request.tokens + state.setup.tokens
    if is_plausible_count(body.requested_tokens, estimated_tokens):
        requested = body.requested_tokens
    else:
        requested = 0
    is_repeated = limits.overflows_since_answer > 0
    is_explained_by_limit = limit > 0 and (requested > limit or not is_repeated)
    state = _record_limit(state, limit, 0 if is_explained_by_limit else requested)

    if requested:
        measured_request = _measure_last_request(state, requested, state.last_request.prefix_digest)
        return _replace_usage(_raise_calibration(state, requested), measured_request=measured_request)

    if not limit or is_repeated:
        state = _record_unexplained_refusal(state)
    # Only a limit is known: the request had more tokens than that. It teaches something if we thought it had fewer.
    if not is_plausible_count(limit, estimated_tokens):
        return state
    if _compute_reported_ratio(state, limit) <= _get_known_ratio(state):
        return state
    # The measured request contradicts the refusal: with it the same request would be planned again.
    return _replace_usage(_raise_calibration(state, limit), measured_request=None)


def _record_limit(state: ConversationState, limit: int, refused_tokens: int) -> ConversationState:
    """Return the state with one more overflow: the ``limit`` it named, and a size too large by itself (0: none)."""
    old = state.usage.learned_limits
    return _replace_learned_limits(
        state,
        window_limit=min_known_size(old.window_limit, limit),
        smallest_refused_tokens=min_known_size(old.smallest_refused_tokens, refused_tokens),
        overflows_since_answer=old.overflows_since_answer + 1,
    )


def _record_unexplained_refusal(state: ConversationState) -> ConversationState:
    """Return the state knowing that the newest request was too large by an unknown amount."""
    smallest_refused = min_known_size(state.usage.learned_limits.smallest_refused_estimate, state.last_request.tokens)
    return _replace_learned_limits(state, smallest_refused_estimate=smallest_refused)


def _raise_calibration(state: ConversationState, tokens: int) -> ConversationState:
    """Return the state calibrated as if its newest request had at least ``tokens``, setup included."""
    ratio = min(MAX_CALIBRATION_RATIO, _compute_reported_ratio(state, tokens))
    calibration = raise_calibration_to(state.usage.calibration, ratio, state.last_request.tokens)
    return _replace_learned_limits(_replace_usage(state, calibration=calibration), min_ratio=ratio)


def _compute_reported_ratio(state: ConversationState, tokens: int) -> float:
    """Return the real tokens for one estimated token if the newest request has ``tokens``.

    An exact setup is subtracted first; an estimated one is taken to be wrong by the same ratio as the messages.
    """
    setup = state.setup
    if setup.is_exact:
        return max(0, tokens - setup.tokens) / state.last_request.tokens
    return tokens / (state.last_request.tokens + setup.tokens)


def _get_known_ratio(state: ConversationState) -> float:
    """Return the highest ratio that usage or an overflow showed so far, or 1 without any evidence."""
    calibration = state.usage.calibration
    ratio = 1.0
    if calibration.estimated_tokens:
        ratio = calibration.real_tokens / calibration.estimated_tokens
    return max(ratio, state.usage.learned_limits.min_ratio)


def _measure_last_request(state: ConversationState, tokens: int, prefix_digest: str) -> MeasuredRequest:
    """Return the newest request as measured at ``tokens``.

    It has no digest if its content was edited while its answer was on the way: then the measurement counts for
    nothing later, since the digest never matches.
    """
    seen_count = state.last_request.seen_count
    is_unchanged = not prefix_digest or prefix_digest == compute_prefix_digest_at(state, seen_count)
    return MeasuredRequest(
        seen_count,
        state.last_request.tokens,
        tokens,
        projection_digest=get_projection_digest_at(state, seen_count) if is_unchanged else b"",
        native_tokens=state.view.native_tokens,
    )


def _replace_usage(state: ConversationState, **changes: Any) -> ConversationState:
    """Return ``state`` with fields of its ``usage`` replaced."""
    return replace(state, usage=replace(state.usage, **changes))


def _replace_learned_limits(state: ConversationState, **changes: Any) -> ConversationState:
    """Return ``state`` with fields of the learned limits of its last model replaced."""
    return _replace_usage(state, learned_limits=replace(state.usage.learned_limits, **changes))
