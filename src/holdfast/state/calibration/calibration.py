"""What providers told about the size of requests, and what that teaches about our estimates."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

DECAY = 0.97
"""Weight of older evidence at each new usage (measured on 1,698 request pairs of seven real sessions)."""
SMALLEST, LARGEST = 30, 60_000
"""Growth of a prompt outside these bounds teaches nothing: rounding below, a switch of something above."""


class Stretch(Struct, frozen=True):
    """The counts of a conversation that only grew, from the largest one on."""

    most: int
    start: int
    """Our estimate of the request that was counted at ``most``."""
    least: int
    counts: int = 0
    """How many behind the largest are of more than what was new in their request."""


class Anchor(Struct, frozen=True):
    """A request whose size the provider told: ``tokens`` for ``slots`` slots that we held at ``held``."""

    slots: int
    held: int
    tokens: int
    stretch: Stretch | None = None
    mark: bytes = b""
    """Digest of what it showed; nothing where that was changed before the answer came."""
    native: int = 0
    """Size of what stood for the head in it, where a provider compacted."""


FEW = 16
"""[H] A frame that changed by less than one in so many tokens of the request is another clock in the same one."""


def reframed(anchor: Anchor | None, more: int) -> Anchor | None:
    """Return ``anchor`` where the frame has ``more`` tokens now; nothing where that is much, and only estimated."""
    if anchor is None or abs(more) * FEW > anchor.tokens:
        return None
    return replace(anchor, tokens=anchor.tokens + more)


SHRUNK = 0.5
"""[H] A prompt that says more than one before it and has less than so much of its tokens, and of our estimate, was not
counted whole: some servers tell only what their cache did not hold, others read no more than fits. Thinking that a
provider leaves out of older turns makes up less; one count that was too high is no measure for those behind it."""

FEWEST = 0.25
"""[H] Share of our estimate below which nothing is the count of a prompt of words, also before any usage told how good
the estimate is: no text of the corpus is estimated at four times its tokens."""


def is_whole(anchor: Anchor, held: int, frame: int, new: int, tokens: int) -> bool:
    """Return whether ``tokens`` can be all of a prompt that is estimated at ``held`` and ``frame``.

    ``anchor`` is the one measured before it, ``new`` what no request had before. What has not grown as it must is
    whole if it is neither of what is new alone nor far too little: thinking was left out, or the front was cut.
    """
    if has_grown(anchor, held, tokens):
        return True
    return tokens > HIGHEST * new and tokens >= SHRUNK * min(anchor.tokens, held + frame)


def has_grown(anchor: Anchor, held: int, tokens: int) -> bool:
    """Return whether a prompt of ``tokens`` has more than ``anchor`` told by as much as was said since, at least."""
    return tokens >= anchor.tokens + LOWEST * (held - anchor.held)


class Used(Struct, frozen=True):
    """The newest answer that ended well: ``tokens`` of the window were in use then, with the first ``slots`` slots."""

    slots: int
    tokens: int
    mark: bytes = b""
    """Digest of what stood before the first kept slot: another summary is another request."""


class Gauge(Struct, frozen=True):
    """How many real tokens there were for how many estimated ones, older evidence decayed."""

    true: float = 0.0
    estimated: float = 0.0


def taught(gauge: Gauge, true: int, estimated: int) -> Gauge:
    """Return the gauge with one more pair of sizes, where they are large enough to teach anything."""
    if estimated < SMALLEST or true < SMALLEST:
        return gauge
    return Gauge(DECAY * gauge.true + true, DECAY * gauge.estimated + estimated)


LOWEST, HIGHEST = 0.5, 2.5
"""The calibration never leaves these bounds, whatever is reported."""
SENSIBLE = 2.0
"""[H] A told size is believed up to so many times what the highest calibration would make of the request."""
JUMP = 0.25
"""[H] Share of the last count by which the next one may be more than what was said since makes it: thinking that is
not shown, a frame that nobody told. One count over that is doubted, so that no wild one lets a session compact."""
LEAST_LIMIT = 1_024
"""[H] A told limit under this is no window: it is a limit of something else, and no answer would go into it."""


class Learned(Struct, frozen=True, omit_defaults=True):
    """What overflows and answers told of a model, and what is not believed yet; else the target's own numbers stand."""

    limit: int = 0
    """Most tokens of the window, 0 where none was told."""
    below: int = 0
    """Tokens of the smallest request that was refused by its size alone: the window is smaller. 0 where none was."""
    refused: int = 0
    """``held`` of the smallest request that was refused without any number; 0 where none was."""
    prior: float = 0.0
    """Real tokens for one estimated token at least, before any usage was reported."""
    overflows: int = 0
    """Overflows since the last answer."""
    doubted: int = 0
    """Tokens of the newest prompt, where nothing explains so many: they are believed if the next one has no fewer, and
    its window holds them."""
    bytes: int = 0
    """Bytes of the largest body, 0 where none were told."""
    hour: bool = False
    """Whether the newest answer that wrote to the provider's cache wrote for an hour."""
    mends: bool = False
    """Whether a server that we do not know refused what its client wrote: the API's maker's rules hold there."""
    judges: bool = False
    """Whether its API refused what its client wrote, for a rule that we know: it is judged like what is ours."""


FLAT_COUNTS = 3
"""[H] Counts that must not grow before a prompt counts as cut: no one odd count decides."""
FLAT_GROWTH = 4_096
"""[H] Estimated tokens that were said meanwhile, at least: with ``FEWEST`` real ones each they are the largest step to
which servers round their counts (1,024), so that an honest count has grown by then."""
FLAT_SHARE = 0.5
"""[H] And so much of the largest count, where the counts differ: cut between messages they do, by one message or so."""


def stretched(before: Anchor | None, estimated: int, new: int, tokens: int) -> Stretch:
    """Return the stretch of ``before`` with one more count: of a request of ``estimated`` tokens, ``new`` ones new."""
    old = before.stretch if before else None
    if old is None or tokens > old.most:
        return Stretch(tokens, estimated, tokens)
    return Stretch(old.most, old.start, min(old.least, tokens), old.counts + (0 < HIGHEST * new < tokens))


def is_flat(stretch: Stretch, estimated: int) -> bool:
    """Return whether the counts of ``stretch`` stand still while ``estimated`` tokens, far more, are to be counted."""
    more = estimated - stretch.start
    return (
        stretch.counts >= FLAT_COUNTS
        and more >= FLAT_GROWTH
        and (stretch.least == stretch.most or more >= FLAT_SHARE * stretch.most)
        and stretch.least >= max(LEAST_LIMIT, SHRUNK * stretch.most)
        and is_sensible(stretch.most, stretch.start)
    )


def raised(gauge: Gauge, ratio: float, estimated: int) -> Gauge:
    """Return the gauge with one more pair of sizes, and a ratio no less than theirs."""
    grown = taught(gauge, round(ratio * estimated), estimated)
    return Gauge(max(grown.true, ratio * grown.estimated), grown.estimated)


def is_sensible(told: int, estimated: int) -> bool:
    """Return whether a provider can have meant ``told`` tokens for a request of ``estimated`` ones."""
    return LOWEST * estimated <= told <= SENSIBLE * HIGHEST * estimated


def smaller(known: int, told: int) -> int:
    """Return the smaller of two sizes, of which 0 is none."""
    return min(known or told, told or known)
