"""Values that record what providers reported about the size of requests, and the arithmetic on them.

Four kinds of evidence are kept for each model: a *measured request* (one size we know exactly), a *calibration* (real
tokens for each estimated one), *learned limits* (what refusals told about the window), and a *plateau* (counts that
stop growing, which betrays a server that cuts prompts silently). ``usage.py`` decides when each of them is updated;
this module only says what a single pair of numbers is worth. A provider's count is never taken at face value, because
one wrong count that is believed makes a session compact for nothing, or overflow again and again.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.changed_options import ChangedOption
from holdfast.state.field_lessons import FieldLesson

CALIBRATION_DECAY = 0.97
"""Weight that older samples keep when a new one is added, so that the newest 33 or so decide the ratio.

Measured on 1,698 pairs of consecutive requests in seven recorded sessions: with it the 95th percentile of the error of
a whole request was 0.2 to 3.3 %. A lower value follows a change of content faster and is noisier.
"""
MIN_SAMPLE_TOKENS, MAX_SAMPLE_TOKENS = 30, 60_000
"""Growth of a prompt outside these bounds is not used as a sample (same measurement as ``CALIBRATION_DECAY``).

Below, rounding and the markup around a message are as large as the text itself. Above, something else than appended
messages changed: a compaction, another model, other tools.
"""


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
    """The provider's counts of a growing conversation since the largest of them.

    A prompt that only gets longer must be counted ever higher. Counts that stay below an old maximum mean that the
    server reads no more than fits into its window and silently drops the rest.
    """

    largest_count: int
    """The largest count so far, in the provider's tokens."""
    estimate_at_largest: int
    """Our uncalibrated estimate of the request that was counted at ``largest_count``."""
    smallest_count: int
    """The smallest count since then; equal to ``largest_count`` where the server always cuts at the same place."""
    counts_since_largest: int = 0
    """How many later counts were too large to cover only what was new in their request.

    Counts that may be of the new messages alone (servers that leave out cached tokens) say nothing about a cut prompt.
    """


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
    """A request whose size the provider reported. Later estimates start from it and add only what came since."""

    message_count: int
    """How many messages of the history it covered."""
    shown_tokens: int
    """Our uncalibrated estimate of the messages it showed, without system prompt and tools."""
    reported_tokens: int
    """The provider's count of the whole prompt, system prompt and tools included."""
    plateau: CountPlateau | None = None
    projection_digest: bytes = b""
    """Digest of what it showed; empty if that was edited before the answer came."""
    native_tokens: int = 0
    """Estimated tokens of the provider's own compaction items in it; 0 without any."""


SETUP_CHANGE_DIVISOR = 16
"""A setup that changed by less than 1/16 of the measured request only shifts the measurement.

Coding agents put the time and the git status into their system prompt, so it changes by a few tokens at each request; a
larger change is a different set of tools, whose size is only an estimate. Chosen by judgement: at 1/16 an estimate that
is wrong by a quarter still moves the measurement by less than 2 %.
"""


def adjust_for_setup_change(measured_request: MeasuredRequest | None, added_tokens: int) -> MeasuredRequest | None:
    """Return ``measured_request`` with its size shifted by a setup that grew by ``added_tokens`` (negative: shrank).

    Return None if there is no measurement, or if the change is too large a part of it to be added as an estimate.
    """
    if measured_request is None:
        return None
    if abs(added_tokens) * SETUP_CHANGE_DIVISOR > measured_request.reported_tokens:
        return None
    return replace(measured_request, reported_tokens=measured_request.reported_tokens + added_tokens)


PARTIAL_COUNT_SHARE = 0.5
"""Least share of the previous count and of our estimate that a count must have to be one of the whole prompt.

Some servers report only what their cache did not hold, others cut the prompt to what fits. Thinking that a provider
drops from older turns makes up less than half. The share is taken of the smaller of both numbers, so that one count
that was too high does not make all later ones look partial. Chosen by judgement.
"""

MIN_COUNT_SHARE = 0.25
"""Share of our estimate below which a count cannot be of a whole prompt of text, even before any calibration.

No text of the estimator's corpus is estimated at four times its real tokens (see docs/estimator.md).
"""


def is_whole_prompt_count(
    measured_request: MeasuredRequest,
    shown_tokens: int,
    setup_tokens: int,
    new_tokens: int,
    tokens: int,
) -> bool:
    """Return whether the reported ``tokens`` can be the count of a whole prompt and not of a part of it.

    The prompt is estimated at ``shown_tokens`` of messages and ``setup_tokens``; ``new_tokens`` of the messages were in
    no earlier request. ``measured_request`` is the one that was counted before it.
    """
    if has_count_grown(measured_request, shown_tokens, tokens):
        return True
    # The count did not grow as it must. It is still whole if the provider dropped old thinking or cut the front, but
    # not if it may be of the new messages alone, nor if it is far below everything we know.
    is_more_than_new = tokens > MAX_CALIBRATION_RATIO * new_tokens
    known_tokens = min(measured_request.reported_tokens, shown_tokens + setup_tokens)
    return is_more_than_new and tokens >= PARTIAL_COUNT_SHARE * known_tokens


def has_count_grown(measured_request: MeasuredRequest, shown_tokens: int, tokens: int) -> bool:
    """Return whether a count of ``tokens`` exceeds the previous one by at least the growth since then.

    The growth is our estimate at the lowest ratio that the calibration allows.
    """
    added_tokens = shown_tokens - measured_request.shown_tokens
    return tokens >= measured_request.reported_tokens + MIN_CALIBRATION_RATIO * added_tokens


class LastAnswerUsage(
    Struct, frozen=True, rename={"message_count": "slots", "window_tokens": "tokens", "base_digest": "mark"}
):
    """How full the window was at the newest answer that ended normally."""

    message_count: int
    """How many messages of the history were in use then, the answer included."""
    window_tokens: int
    """Prompt and answer together, in the provider's tokens."""
    base_digest: bytes = b""
    """Digest of what was shown before the first kept message. With another summary there the usage no longer counts."""


class Calibration(Struct, frozen=True, rename={"real_tokens": "true", "estimated_tokens": "estimated"}):
    """How many real tokens were reported for how many estimated ones.

    Both are decayed sums over all samples, so their quotient is an average that favours large and recent samples.
    """

    real_tokens: float = 0.0
    estimated_tokens: float = 0.0


def add_calibration_sample(calibration: Calibration, real_tokens: int, estimated_tokens: int) -> Calibration:
    """Return the calibration with one more sample, or unchanged if the sample is too small to say anything."""
    if estimated_tokens < MIN_SAMPLE_TOKENS or real_tokens < MIN_SAMPLE_TOKENS:
        return calibration
    return Calibration(
        CALIBRATION_DECAY * calibration.real_tokens + real_tokens,
        CALIBRATION_DECAY * calibration.estimated_tokens + estimated_tokens,
    )


MIN_CALIBRATION_RATIO, MAX_CALIBRATION_RATIO = 0.5, 2.5
"""Bounds of the calibrated ratio, whatever providers report.

Real sessions end between 1.16 and 1.58 real tokens for an estimated one. The bounds leave room for unusual content and
keep a run of wrong counts from making every request look empty or full.
"""
PLAUSIBLE_FACTOR = 2.0
"""A reported size is believed up to this many times what the highest calibration would make of the request.

So up to five times our estimate. Error messages name other numbers too (bytes, characters, a daily quota), and these
are larger by far. Chosen by judgement.
"""
DOUBTED_JUMP_SHARE = 0.25
"""Share of the last count by which the next one may exceed what new messages explain.

Thinking that is not shown and a setup that nobody told add tokens which we cannot see. A larger jump is doubted until
the next count confirms it, so that no single wrong count starts a compaction. Of 734 counts in four recorded sessions
none was doubted.
"""
MAX_BELIEVED_TOKENS = 10_000_000
"""Most tokens of a prompt that are believed of a server whose window nobody knows.

No model has a larger window (Llama 4 Scout's is the largest). Gateways have reported 25 million for a request of 61,000
tokens, where they summed up a session or a month.
"""
MIN_WINDOW_LIMIT = 1_024
"""A reported limit below this is not a context window but a limit of something else, such as tools or stop sequences.

No model in use has so small a window, and an answer would not fit into it.
"""


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
        "requires_strict_form": "mends",
        "requires_check": "judges",
        "field_lessons": "fields",
        "changed_options": "options",
    },
):
    """What overflow errors and answers taught about a model. Where a field is 0 the target's own numbers stand."""

    window_limit: int = 0
    """Smallest limit of the window that an error named, in tokens; 0 if none did."""
    smallest_refused_tokens: int = 0
    """Tokens of the smallest request that was refused although no named limit explains it: the window must be smaller
    than that. 0 if there was none."""
    smallest_refused_estimate: int = 0
    """Our estimate of the messages of the smallest request that was refused without any number; 0 if there was none."""
    min_ratio: float = 0.0
    """Least number of real tokens for an estimated one, as overflow errors showed; 0 if none did."""
    overflows_since_answer: int = 0
    """Overflows since the last answer."""
    doubted_tokens: int = 0
    """A count that nothing explains, waiting for the next one to confirm it; 0 if the newest count was believed.

    It is confirmed by a count that is no smaller, unless the window could not have held so much.
    """
    max_body_bytes: int = 0
    """Largest request body that an error named, in bytes; 0 if none did."""
    uses_hour_cache: bool = False
    """Whether the newest answer that wrote to the provider's cache wrote for an hour."""
    requires_strict_form: bool = False
    """Whether a client's content is normalized by the rules of the API's maker although the server is another one.

    Set once such a server refused what its client wrote; until then a client's content is sent unchanged.
    """
    requires_check: bool = False
    """Whether a client's own bodies are checked by our lint rules before they are sent, as bodies of ours are.

    Set once the API refused such a body for a rule that we know.
    """
    field_lessons: tuple[FieldLesson, ...] = ()
    """Single fields that the server refused or missed, and what is done about them."""
    changed_options: tuple[ChangedOption, ...] = ()
    """Options of the client's that were changed because the provider is known to refuse them."""


PLATEAU_COUNTS = 3
"""Counts that must fail to grow before a prompt is taken to be cut silently.

One or two low counts also come from dropped thinking. Each further count costs a request whose front was lost unseen.
Chosen by judgement.
"""
PLATEAU_GROWTH = 4_096
"""Estimated tokens that the conversation must have grown meanwhile, at least.

Some servers round counts to steps of up to 1,024. At ``MIN_COUNT_SHARE``, the lowest ratio there is, 4,096 estimated
tokens are 1,024 real ones, so an honest count has risen by a step.
"""
PLATEAU_GROWTH_SHARE = 0.5
"""Growth that is needed where the counts differ, as a share of the largest one.

A server that cuts between messages reports counts that vary by about a message, which looks like ordinary noise; only a
conversation that has grown by half proves it. Chosen by judgement.
"""


def extend_plateau(
    before: MeasuredRequest | None,
    estimated_tokens: int,
    new_tokens: int,
    tokens: int,
) -> CountPlateau:
    """Return the plateau of ``before`` extended by a request that was counted at ``tokens``.

    The request is estimated at ``estimated_tokens``, of which ``new_tokens`` were in no earlier request. A count above
    the largest one so far begins a new plateau.
    """
    old = before.plateau if before else None
    if old is None or tokens > old.largest_count:
        return CountPlateau(tokens, estimated_tokens, tokens)
    # At the highest ratio that new messages can have; a count beyond that covers older messages too, so the server does
    # not just leave out what its cache holds.
    is_more_than_new = 0 < MAX_CALIBRATION_RATIO * new_tokens < tokens
    return CountPlateau(
        old.largest_count,
        old.estimate_at_largest,
        min(old.smallest_count, tokens),
        old.counts_since_largest + is_more_than_new,
    )


def is_plateau(plateau: CountPlateau, estimated_tokens: int) -> bool:
    """Return whether the counts of ``plateau`` show that the server cuts prompts silently.

    They do if they stood still while the conversation grew to ``estimated_tokens``.
    """
    if plateau.counts_since_largest < PLATEAU_COUNTS:
        return False
    growth = estimated_tokens - plateau.estimate_at_largest
    if growth < PLATEAU_GROWTH:
        return False
    is_same_count = plateau.smallest_count == plateau.largest_count
    if not is_same_count and growth < PLATEAU_GROWTH_SHARE * plateau.largest_count:
        return False
    # A count far below the largest covers only a part of its prompt (what a cache did not hold), so it is no sign of a
    # cut prompt. Neither are counts under MIN_WINDOW_LIMIT: no window is that small, and some servers report such a
    # constant for every prompt.
    least_count = max(MIN_WINDOW_LIMIT, PARTIAL_COUNT_SHARE * plateau.largest_count)
    if plateau.smallest_count < least_count:
        return False
    return is_plausible_count(plateau.largest_count, plateau.estimate_at_largest)


def raise_calibration_to(calibration: Calibration, ratio: float, estimated_tokens: int) -> Calibration:
    """Return the calibration with a sample of ``estimated_tokens`` at ``ratio``, and nowhere below that ratio.

    An overflow error is stronger evidence than the average of the past: with that average the same request would be
    planned again.
    """
    new_calibration = add_calibration_sample(calibration, round(ratio * estimated_tokens), estimated_tokens)
    return Calibration(
        max(new_calibration.real_tokens, ratio * new_calibration.estimated_tokens), new_calibration.estimated_tokens
    )


def is_plausible_count(reported: int, estimated_tokens: int) -> bool:
    """Return whether ``reported`` tokens can be the size of a request that we estimate at ``estimated_tokens``."""
    lowest = MIN_CALIBRATION_RATIO * estimated_tokens
    highest = PLAUSIBLE_FACTOR * MAX_CALIBRATION_RATIO * estimated_tokens
    return lowest <= reported <= highest


def min_known_size(old: int, new: int) -> int:
    """Return the smaller of two sizes, where 0 stands for an unknown one; 0 if both are unknown."""
    # An unknown size takes the other's value, so that 0 never wins over a known one.
    return min(old or new, new or old)


class ModelStats(
    Struct,
    frozen=True,
    omit_defaults=True,
    rename={"calibration": "gauge", "learned_limits": "learned", "measured_request": "measured"},
):
    """What was learned about one model with the window configured for it, kept for when the model is asked again."""

    model: str
    window: int = 0
    """``RequestEntry.window`` of the newest request to it."""
    calibration: Calibration = Calibration()
    learned_limits: LearnedLimits = LearnedLimits()
    measured_request: MeasuredRequest | None = None
    """The newest request to it on this branch; None on any other branch, whose requests it did not see."""
