"""What providers told about the size of requests, and what that teaches about our estimates."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

CALIBRATION_DECAY = 0.97
"""Weight of older evidence at each new usage (measured on 1,698 request pairs of seven real sessions)."""
MIN_SAMPLE_TOKENS, MAX_SAMPLE_TOKENS = 30, 60_000
"""Growth of a prompt outside these bounds teaches nothing: rounding below, a switch of something above."""


class CountPlateau(
    Struct,
    frozen=True,
    rename={
        "largest_count": "most",
        "estimate_at_largest": "start",
        "smallest_count": "least",
        "counts_since_largest": "counts",
    },
):
    """The counts of a conversation that only grew, from the largest one on."""

    largest_count: int
    estimate_at_largest: int
    """Our estimate of the request that was counted at ``largest_count``."""
    smallest_count: int
    counts_since_largest: int = 0
    """How many behind the largest are of more than what was new in their request."""


class MeasuredRequest(
    Struct,
    frozen=True,
    rename={
        "message_count": "slots",
        "shown_tokens": "held",
        "reported_tokens": "tokens",
        "plateau": "stretch",
        "projection_digest": "mark",
        "native_tokens": "native",
    },
):
    """A request whose size the provider told: ``reported_tokens`` for ``message_count`` slots that we held at
    ``shown_tokens``.
    """

    message_count: int
    shown_tokens: int
    reported_tokens: int
    plateau: CountPlateau | None = None
    projection_digest: bytes = b""
    """Digest of what it showed; nothing where that was changed before the answer came."""
    native_tokens: int = 0
    """Size of what stood for the head in it, where a provider compacted."""


SETUP_CHANGE_DIVISOR = 16
"""[H] A frame that changed by less than one in so many tokens of the request is another clock in the same one."""


def adjust_for_setup_change(measured_request: MeasuredRequest | None, added_tokens: int) -> MeasuredRequest | None:
    """Return ``measured_request`` where the frame has ``added_tokens`` tokens now; nothing where that is much, and
    only estimated.
    """
    if measured_request is None or abs(added_tokens) * SETUP_CHANGE_DIVISOR > measured_request.reported_tokens:
        return None
    return replace(measured_request, reported_tokens=measured_request.reported_tokens + added_tokens)


PARTIAL_COUNT_SHARE = 0.5
"""[H] A prompt that says more than one before it and has less than so much of its tokens, and of our estimate, was not
counted whole: some servers tell only what their cache did not hold, others read no more than fits. Thinking that a
provider leaves out of older turns makes up less; one count that was too high is no measure for those behind it."""

MIN_COUNT_SHARE = 0.25
"""[H] Share of our estimate below which nothing is the count of a prompt of words, also before any usage told how good
the estimate is: no text of the corpus is estimated at four times its tokens."""


def is_whole_prompt_count(
    measured_request: MeasuredRequest, shown_tokens: int, frame: int, new: int, tokens: int
) -> bool:
    """Return whether ``tokens`` can be all of a prompt that is estimated at ``shown_tokens`` and ``frame``.

    ``measured_request`` is the one measured before it, ``new`` what no request had before. What has not grown as it
    must is whole if it is neither of what is new alone nor far too little: thinking was left out, or the front was cut.
    """
    if has_count_grown(measured_request, shown_tokens, tokens):
        return True
    return tokens > MAX_CALIBRATION_RATIO * new and tokens >= PARTIAL_COUNT_SHARE * min(
        measured_request.reported_tokens, shown_tokens + frame
    )


def has_count_grown(measured_request: MeasuredRequest, shown_tokens: int, tokens: int) -> bool:
    """Return whether a prompt of ``tokens`` has more than ``measured_request`` told by as much as was said since, at
    least.
    """
    return tokens >= measured_request.reported_tokens + MIN_CALIBRATION_RATIO * (
        shown_tokens - measured_request.shown_tokens
    )


class LastAnswerUsage(
    Struct, frozen=True, rename={"message_count": "slots", "window_tokens": "tokens", "base_digest": "mark"}
):
    """The newest answer that ended well: ``window_tokens`` of the window were in use then, with the first
    ``message_count`` slots.
    """

    message_count: int
    window_tokens: int
    base_digest: bytes = b""
    """Digest of what stood before the first kept slot: another summary is another request."""


class Calibration(Struct, frozen=True, rename={"real_tokens": "true", "estimated_tokens": "estimated"}):
    """How many real tokens there were for how many estimated ones, older evidence decayed."""

    real_tokens: float = 0.0
    estimated_tokens: float = 0.0


def add_calibration_sample(calibration: Calibration, true: int, estimated_tokens: int) -> Calibration:
    """Return the gauge with one more pair of sizes, where they are large enough to teach anything."""
    if estimated_tokens < MIN_SAMPLE_TOKENS or true < MIN_SAMPLE_TOKENS:
        return calibration
    return Calibration(
        CALIBRATION_DECAY * calibration.real_tokens + true,
        CALIBRATION_DECAY * calibration.estimated_tokens + estimated_tokens,
    )


MIN_CALIBRATION_RATIO, MAX_CALIBRATION_RATIO = 0.5, 2.5
"""The calibration never leaves these bounds, whatever is reported."""
PLAUSIBLE_FACTOR = 2.0
"""[H] A told size is believed up to so many times what the highest calibration would make of the request."""
DOUBTED_JUMP_SHARE = 0.25
"""[H] Share of the last count by which the next one may be more than what was said since makes it: thinking that is
not shown, a frame that nobody told. One count over that is doubted, so that no wild one lets a session compact."""
MIN_WINDOW_LIMIT = 1_024
"""[H] A told limit under this is no window: it is a limit of something else, and no answer would go into it."""


class LearnedLimits(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "window_limit": "limit",
        "smallest_refused_tokens": "below",
        "smallest_refused_estimate": "refused",
        "min_ratio": "prior",
        "overflows_since_answer": "overflows",
        "doubted_tokens": "doubted",
        "max_body_bytes": "bytes",
        "uses_hour_cache": "hour",
        "fixes_client_content": "mends",
        "validates_client_content": "judges",
    },
):
    """What overflows and answers told of a model, and what is not believed yet; else the target's own numbers stand."""

    window_limit: int = 0
    """Most tokens of the window, 0 where none was told."""
    smallest_refused_tokens: int = 0
    """Tokens of the smallest request that was refused by its size alone: the window is smaller. 0 where none was."""
    smallest_refused_estimate: int = 0
    """``held`` of the smallest request that was refused without any number; 0 where none was."""
    min_ratio: float = 0.0
    """Real tokens for one estimated token at least, before any usage was reported."""
    overflows_since_answer: int = 0
    """Overflows since the last answer."""
    doubted_tokens: int = 0
    """Tokens of the newest prompt, where nothing explains so many: they are believed if the next one has no fewer, and
    its window holds them."""
    max_body_bytes: int = 0
    """Bytes of the largest body, 0 where none were told."""
    uses_hour_cache: bool = False
    """Whether the newest answer that wrote to the provider's cache wrote for an hour."""
    fixes_client_content: bool = False
    """Whether a server that we do not know refused what its client wrote: the API's maker's rules hold there."""
    validates_client_content: bool = False
    """Whether its API refused what its client wrote, for a rule that we know: it is judged like what is ours."""


PLATEAU_COUNTS = 3
"""[H] Counts that must not grow before a prompt counts as cut: no one odd count decides."""
PLATEAU_GROWTH = 4_096
"""[H] Estimated tokens that were said meanwhile, at least: with ``MIN_COUNT_SHARE`` real ones each they are the
largest step to which servers round their counts (1,024), so that an honest count has grown by then.
"""
PLATEAU_GROWTH_SHARE = 0.5
"""[H] And so much of the largest count, where the counts differ: cut between messages they do, by one message or so."""


def extend_plateau(before: MeasuredRequest | None, estimated_tokens: int, new: int, tokens: int) -> CountPlateau:
    """Return the stretch of ``before`` with one more count: of a request of ``estimated_tokens`` tokens, ``new``
    ones new.
    """
    old = before.plateau if before else None
    if old is None or tokens > old.largest_count:
        return CountPlateau(tokens, estimated_tokens, tokens)
    return CountPlateau(
        old.largest_count,
        old.estimate_at_largest,
        min(old.smallest_count, tokens),
        old.counts_since_largest + (0 < MAX_CALIBRATION_RATIO * new < tokens),
    )


def is_plateau(stretch: CountPlateau, estimated_tokens: int) -> bool:
    """Return whether the counts of ``stretch`` stand still while ``estimated_tokens`` tokens, far more, are to be
    counted.
    """
    growth = estimated_tokens - stretch.estimate_at_largest
    return (
        stretch.counts_since_largest >= PLATEAU_COUNTS
        and growth >= PLATEAU_GROWTH
        and (stretch.smallest_count == stretch.largest_count or growth >= PLATEAU_GROWTH_SHARE * stretch.largest_count)
        and stretch.smallest_count >= max(MIN_WINDOW_LIMIT, PARTIAL_COUNT_SHARE * stretch.largest_count)
        and is_plausible_count(stretch.largest_count, stretch.estimate_at_largest)
    )


def raise_calibration_to(calibration: Calibration, ratio: float, estimated_tokens: int) -> Calibration:
    """Return the gauge with one more pair of sizes, and a ratio no less than theirs."""
    new_calibration = add_calibration_sample(calibration, round(ratio * estimated_tokens), estimated_tokens)
    return Calibration(
        max(new_calibration.real_tokens, ratio * new_calibration.estimated_tokens), new_calibration.estimated_tokens
    )


def is_plausible_count(reported: int, estimated_tokens: int) -> bool:
    """Return whether a provider can have meant ``reported`` tokens for a request of ``estimated_tokens`` ones."""
    return (
        MIN_CALIBRATION_RATIO * estimated_tokens
        <= reported
        <= PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * estimated_tokens
    )


def min_known_size(old: int, new: int) -> int:
    """Return the smaller of two sizes, of which 0 is none."""
    return min(old or new, new or old)


class ModelStats(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename={"calibration": "gauge", "learned_limits": "learned", "measured_request": "measured"},
):
    """What was told of one model, in the window that was configured for it: it counts when that is asked again."""

    model: str
    window: int = 0
    """As ``Request.window`` of the newest request to it."""
    calibration: Calibration = Calibration()
    learned_limits: LearnedLimits = LearnedLimits()
    measured_request: MeasuredRequest | None = None
    """As of the branch: of another one no count is a measure."""
