"""What the fold learns of sizes: from the usage of an answer, and from the numbers of an overflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.messages.message import media_of
from holdfast.state.branch.view import basis_at, mark_at
from holdfast.state.calibration.calibration import (
    FEWEST,
    HIGHEST,
    JUMP,
    LARGEST,
    LEAST_LIMIT,
    SENSIBLE,
    Anchor,
    is_flat,
    is_sensible,
    is_whole,
    raised,
    smaller,
    stretched,
    taught,
)
from holdfast.state.entries import Answer, Failure
from holdfast.state.target import CacheRules

if TYPE_CHECKING:
    from holdfast.state.branch.branch import Branch


HOUR = 3_600
"""Seconds that a cache keeps what is written to it for an hour (Anthropic)."""


def cache_lives(branch: Branch, rules: CacheRules) -> int:
    """Return the seconds that the provider's cache keeps what the newest request of ``branch`` showed."""
    return max(rules.ttl, HOUR) if branch.learned.hour else rules.ttl


def is_newest(branch: Branch, answer: Answer) -> bool:
    """Return whether ``answer`` tells what the newest request of ``branch`` cost."""
    return bool(branch.seen) and answer.basis == branch.basis and answer.usage.input > 0


def from_usage(branch: Branch, body: Answer) -> Branch:
    """Return the branch knowing what its newest request cost: anchored there, its estimates calibrated.

    What the provider took disproves a limit that was told before; nothing else is taught by less than the whole prompt,
    and nothing at all by one wild count.
    """
    tokens = body.usage.input
    if body.usage.cache_write:
        branch = replace(branch, learned=replace(branch.learned, hour=body.usage.cache_write_1h > 0))
    if not is_newest(branch, body):
        return replace(branch, learned=replace(branch.learned, overflows=0))
    gauge, anchor = branch.gauge, branch.anchor
    leaps = _leaps(branch, anchor, tokens)
    if leaps and not _is_explained(branch, tokens):
        return replace(branch, learned=replace(branch.learned, overflows=0, doubted=tokens))
    branch = _disproved(branch, tokens)
    if not _is_of_all(branch, anchor, tokens):
        return branch
    true = tokens - (anchor.tokens if anchor else branch.frame.tokens)
    estimated = branch.asked - (anchor.held if anchor else 0)
    if not leaps and (anchor is not None or branch.frame.exact) and (anchor is None or true <= LARGEST):
        gauge = taught(gauge, true, estimated)
    newest = _anchored(branch, tokens, body.basis)
    if newest.mark:
        newest = replace(newest, stretch=stretched(anchor, branch.asked + branch.frame.tokens, fresh(branch), tokens))
    return replace(branch, gauge=gauge, measured=newest)


def _leaps(branch: Branch, anchor: Anchor | None, tokens: int) -> bool:
    """Return whether the newest prompt has more than the count before it, and what was said since, account for.

    Where there was no count the estimate accounts for it, and half of the window for a frame that nobody told.
    """
    frame = branch.frame
    if anchor is not None:
        return tokens > (1 + JUMP) * anchor.tokens + SENSIBLE * HIGHEST * max(0, branch.asked - anchor.held)
    unknown = 0 if frame.tokens else branch.window / 2 or math.inf
    return tokens > SENSIBLE * HIGHEST * (branch.asked + frame.tokens) + unknown


def _is_explained(branch: Branch, tokens: int) -> bool:
    """Return whether a leap is believed: the estimate says so, the count before did, or media have what they have."""
    estimated = (1 + JUMP) * (branch.asked + branch.frame.tokens)
    again = 0 < branch.learned.doubted <= tokens and not is_absurd(branch, tokens)
    return tokens <= estimated or again or _shows_new_media(branch)


def is_absurd(branch: Branch, tokens: int) -> bool:
    """Return whether the newest request, which was taken, cannot have had ``tokens``, however often they are told.

    No tokenizer makes so many of what it says, and its window does not hold them.
    """
    estimated = branch.asked + branch.frame.tokens
    return 0 < branch.window < tokens and tokens > SENSIBLE * HIGHEST * estimated


def _disproved(branch: Branch, tokens: int) -> Branch:
    """Return the branch without what overflows told and a request of ``tokens`` or more, now taken, disproves."""
    old = branch.learned
    learned = replace(
        old,
        limit=0 if tokens > old.limit else old.limit,
        below=0 if tokens >= old.below else old.below,
        refused=0 if branch.asked >= old.refused else old.refused,
        bytes=0 if branch.media_bytes > old.bytes else old.bytes,
        overflows=0,
        doubted=0,
    )
    return replace(branch, learned=learned)


def _shows_new_media(branch: Branch) -> bool:
    """Return whether the newest request has media that no count covers yet."""
    start = branch.anchor.slots if branch.anchor else branch.keep
    return branch.media > 0 and any(media_of(message) for message in branch.messages.slice(start, branch.seen))


def cut_at(branch: Branch, dropped: int) -> int:
    """Return the most tokens that were counted of a conversation that grows while its counts do not; 0 where they do.

    Counts that never grew are no counts. ``dropped`` tokens may be left out of the newest prompt, and media have fewer
    than is reckoned for them.
    """
    anchor = branch.anchor
    stretch = anchor.stretch if anchor and (anchor.slots, anchor.held) == (branch.seen, branch.asked) else None
    if stretch is None or branch.media or not branch.gauge.estimated:
        return 0
    return stretch.most if is_flat(stretch, branch.asked + branch.frame.tokens - dropped) else 0


def _is_of_all(branch: Branch, anchor: Anchor | None, tokens: int) -> bool:
    """Return whether ``tokens`` can be all of the newest prompt. Media may have far fewer than is reckoned for them."""
    if anchor is None:
        return tokens >= FEWEST * ((0 if branch.media else branch.asked) + branch.frame.tokens)
    new = 0 if branch.media else fresh(branch)
    return is_whole(anchor, branch.asked, branch.frame.tokens, new, tokens)


def fresh(branch: Branch) -> int:
    """Return the size of what the newest request showed and none before it that its model counted, as it was said."""
    anchor, stop = branch.anchor, branch.seen
    shown = branch.found[0] if anchor is None else min(anchor.slots, branch.found[0])
    before = max(shown, branch.keep)
    return (branch.sums[stop - 1] if stop else 0) - (branch.sums[before - 1] if before else 0)


def from_overflow(branch: Branch, body: Failure) -> Branch:
    """Return the branch knowing that its newest request was refused as too large, by the numbers that were told.

    A told size is the request's: an anchor, and a ratio no less from here on. A told limit is the window's, and the
    size was over it. A size within its limit is explained by the room for the answer, once. Where neither is told, or
    what is told makes no sense, the request as estimated was too large. Bytes are the body's: of one with media they
    tell how many these may have, of words alone that there were too many.
    """
    if body.bytes:
        branch = replace(branch, learned=replace(branch.learned, bytes=smaller(branch.learned.bytes, body.bytes)))
    if body.bytes and branch.media:
        return branch
    if body.elsewhere:
        limit = smaller(branch.learned.limit, body.limit if body.limit >= LEAST_LIMIT else 0)
        return replace(branch, learned=replace(branch.learned, limit=limit))
    if not branch.seen or branch.asked <= 0:
        return branch
    estimated = branch.asked + branch.frame.tokens
    requested = body.requested if is_sensible(body.requested, estimated) else 0
    limit = body.limit if body.limit >= LEAST_LIMIT else 0
    again = branch.learned.overflows > 0
    explained = limit and (requested > limit or not again)
    branch = _limited(branch, limit, 0 if explained else requested)
    if requested:
        return replace(_weighed(branch, requested), measured=_anchored(branch, requested, branch.basis))
    if not limit or again:
        branch = _refused(branch)
    heavier = is_sensible(limit, estimated) and _ratio(branch, limit) > _known_ratio(branch)
    return replace(_weighed(branch, limit), measured=None) if heavier else branch


def _limited(branch: Branch, limit: int, below: int) -> Branch:
    """Return the branch knowing of one overflow more, of a ``limit``, and of a size that no limit explains."""
    old = branch.learned
    told = replace(old, limit=smaller(old.limit, limit), below=smaller(old.below, below), overflows=old.overflows + 1)
    return replace(branch, learned=told)


def _refused(branch: Branch) -> Branch:
    """Return the branch knowing that its newest request was too large, by how much nobody said."""
    least = smaller(branch.learned.refused, branch.asked)
    return replace(branch, learned=replace(branch.learned, refused=least))


def _weighed(branch: Branch, tokens: int) -> Branch:
    """Return the branch counting as if its newest request had ``tokens``, in the frame as in the messages."""
    ratio = min(HIGHEST, _ratio(branch, tokens))
    return replace(
        branch, gauge=raised(branch.gauge, ratio, branch.asked), learned=replace(branch.learned, prior=ratio)
    )


def _ratio(branch: Branch, tokens: int) -> float:
    """Return the real tokens for one estimated token where the newest request has ``tokens``.

    Where the frame's size is no fact it is wrong by the same ratio as that of the messages.
    """
    frame = branch.frame
    if frame.exact:
        return max(0, tokens - frame.tokens) / branch.asked
    return tokens / (branch.asked + frame.tokens)


def _known_ratio(branch: Branch) -> float:
    """Return the ratio that was reported so far; 1 where nothing was."""
    gauge = branch.gauge
    return max(gauge.true / gauge.estimated if gauge.estimated else 1.0, branch.learned.prior)


def _anchored(branch: Branch, tokens: int, basis: str) -> Anchor:
    """Return the measure of the newest request, with the digest of what it showed where that still stands."""
    stands = not basis or basis == basis_at(branch, branch.seen)
    mark = mark_at(branch, branch.seen) if stands else b""
    return Anchor(branch.seen, branch.asked, tokens, mark=mark, native=branch.native)
