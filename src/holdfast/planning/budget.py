"""The guard: how much room there is, and whether anything useful fits into it."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import WindowTooSmall
from holdfast.planning.presets.triggers import reserve_floor
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.calibration import HIGHEST, LEAST_LIMIT, LOWEST, Learned
from holdfast.state.calibration.model_stats import known_of
from holdfast.state.calibration.token_estimate import frame_tokens, is_same_model, ratio, refused_size
from holdfast.state.entries import Frame
from holdfast.state.plan import Notice
from holdfast.state.target import Target

DEFAULT_WINDOW = 200_000
"""[O] Tokens assumed of a window that nobody knows, that of most current models or less: the guard is never off."""


class Window(Struct, frozen=True):
    """A window in tokens, and what the guard makes of it."""

    tokens: int
    origin: str
    """Where ``tokens`` came from."""
    refuse_below: int = 0
    warn_below: int = 0

    @property
    def is_refused(self) -> bool:
        """Whether nothing is sent to it."""
        return self.tokens < self.refuse_below and self.refuse_below > 0

    @property
    def is_small(self) -> bool:
        """Whether the caller is warned of it."""
        return self.tokens < self.warn_below


def told_window(*told: tuple[str, float | None]) -> tuple[str, int]:
    """Return who says the window and its tokens: the first of ``told``, names and sizes, that has a size to say.

    What is no number, not finite or under 1 says nothing; where nobody does it is ``DEFAULT_WINDOW``.
    """
    return next(((name, size) for name, number in told if (size := _tokens(number))), ("default", DEFAULT_WINDOW))


def _tokens(number: float | None) -> int:
    """Return a told number as whole tokens; 0 where it is none."""
    return int(number) if number is not None and math.isfinite(number) and number >= 1 else 0


class Room(Struct, frozen=True):
    """The sizes every share is taken of, in tokens."""

    window: int
    reserve: int
    """Kept free for the answer."""
    usable: int
    """Window less reserve: what a request may hold."""
    frame: int
    size: int
    """Usable less frame: what messages may hold. ``M`` in the settings."""

    def share(self, part: float) -> int:
        """Return ``part`` of the room."""
        return int(self.size * part)


def measure_room(target: Target, settings: Settings) -> Room:
    """Return the sizes for requests to ``target``; nothing is judged yet."""
    window = target.limits.window
    frame = frame_tokens(target)
    spare = window - frame - max(LEAST_ROOM, settings.room_min)
    # A reserve that was configured small may be what makes a small window usable: no floor takes that room away.
    most_reserved = max(settings.reserve_max, min(reserve_floor(window, settings), spare))
    ceiling = max(settings.reserve_min, min(most_reserved, int(window * settings.reserve_share)))
    asked = target.limits.asked_output or most_reserved
    reserve = min(ceiling, max(settings.reserve_min, asked))
    # An answer cannot be limited to less than its model may think in, so what the provider counts beside the prompt is
    # kept free, also where that is most of the window: with less room free each request past it would be refused first.
    reserve = max(reserve, min(target.limits.least_output, spare))
    usable = min(window - reserve, target.limits.max_input or window)
    return Room(window, reserve, usable, frame, usable - frame)


def window_of(target: Target, settings: Settings) -> Window:
    """Return the window of requests to ``target``: as its limits tell it, also where that is none, and capped."""
    tokens, limits = target.limits.window, in_window(target, settings).limits
    refuse = max(settings.window_min, int(tokens * settings.window_min_share))
    warn = max(settings.window_warn, int(tokens * settings.window_warn_share))
    return Window(limits.window, limits.origin, refuse, warn)


def in_window(target: Target, settings: Settings) -> Target:
    """Return ``target`` with the window in force as its own, for all that is measured by it."""
    cap, most = _tokens(settings.window_cap), target.limits.max_input
    if not 0 < cap < target.limits.window:
        return target
    most = min(most, cap) if most else most
    return replace(target, limits=replace(target.limits, window=cap, max_input=most, origin="cap"))


def in_force(target: Target, branch: Branch, settings: Settings) -> Target:
    """Return ``target`` as requests of ``branch`` are planned for it: with what was learned of it, in its window."""
    return in_window(learned(target, branch, settings), settings)


REFUSED = 0.8
"""[H] Where a request was refused without any number the window counts as this much of it, as estimated."""
UNDER = 0.95
"""[H] Where a size was refused that no limit explains the window counts as this much of that size."""
LEAST_ROOM = 4_000
"""[H] What nobody told leaves this room at least: no guess may end a session."""
LEAST_TOLD = 500
"""[H] Room enough in a window that a provider told of: who learns of it is under way, and what fits is answered. The
proxy tries any window with so much: its client is under way too."""
LEARNED = "learned"
"""Origin of a window that an overflow told."""


def learned(target: Target, branch: Branch, settings: Settings = Settings()) -> Target:
    """Return ``target`` with what this model taught ``branch``: less room, more tokens for a text, its frame.

    That is a smaller window, and fewer bytes of a body.

    No window changes where there was no overflow of it, or where another window was configured for it since: then
    somebody knows better.
    """
    known = known_of(branch, target.model)
    told = known.learned
    if told == Learned() or 0 < known.window != target.limits.window:
        return replace(target, frame=_bounded(sized(target, branch), target, settings))
    if told.bytes:
        target = replace(target, dialect=replace(target.dialect, max_bytes=min(target.dialect.max_bytes, told.bytes)))
    target = replace(target, prior=max(target.prior, told.prior))
    target = replace(target, frame=_bounded(sized(target, branch), target, settings))
    guessed = [int(UNDER * told.below)] if told.below else []
    if told.refused:
        guessed.append(int(REFUSED * refused_size(branch, target)))
    most = [max(least_window(target, settings), min(guessed))] if guessed else []
    return _under(target, min([*most, *([told.limit] if told.limit else [])], default=target.limits.window))


def _bounded(frame: Frame, target: Target, settings: Settings) -> Frame:
    """Return ``frame`` no larger than leaves room for a conversation: what an answer tells of it is a guess.

    Media that are counted higher than estimated would count as frame, and no guess may end a session.
    """
    room = measure_room(in_window(target, settings), settings)
    most = max(room.frame, room.usable - max(LEAST_ROOM, settings.room_min))
    return frame if target.frame.exact or frame.tokens <= most else replace(frame, tokens=most)


def sized(target: Target, branch: Branch) -> Frame:
    """Return the frame of ``target`` in tokens of its model: what the last reported usage had beside its messages.

    That stands whatever became of them: behind a compaction it is nearer than the estimate. That one, by the ratio that
    was reported so far, counts for another frame; where nothing was reported it stays what it is.
    """
    frame, scale = target.frame, ratio(branch, target)
    told = branch.measured if is_same_model(branch, target) and branch.frame == frame else None
    left = told.tokens - round(scale * told.held) if told is not None else 0
    if frame == Frame():
        return Frame("", left, exact=True) if left > 0 else frame
    if frame.exact or not frame.tokens or not (told or known_of(branch, target.model).gauge.estimated):
        return frame
    tokens = left if told is not None else round(scale * frame.tokens)
    return replace(frame, tokens=round(min(HIGHEST * frame.tokens, max(LOWEST * frame.tokens, tokens))), exact=True)


def least_window(target: Target, settings: Settings) -> int:
    """Return the smallest window in which there is room for a conversation: no guess makes it smaller than that."""
    needed = frame_tokens(target) + max(LEAST_ROOM, settings.room_min)
    share = min(settings.reserve_share, 0.5)
    return max(LEAST_LIMIT, needed + settings.reserve_min, math.ceil(needed / (1 - share))) + 1


def _under(target: Target, most: int) -> Target:
    """Return ``target`` with a window of at most ``most`` tokens, as an overflow told it."""
    limits = target.limits
    if most >= limits.window:
        return target
    prompt = min(limits.max_input, most) if limits.max_input else limits.max_input
    return replace(target, limits=replace(limits, window=most, max_input=prompt, origin=LEARNED))


def guard(target: Target, settings: Settings) -> tuple[Room, tuple[Notice, ...]]:
    """Return the room, with a warning if it is small.

    Raises ``WindowTooSmall`` before any call where the window, or the room in it, is under the minimum.
    """
    found = window_of(target, settings)
    room = measure_room(in_window(target, settings), settings)
    window, origin = found.tokens, found.origin
    least = min(settings.room_min, LEAST_TOLD) if origin == LEARNED else settings.room_min
    if found.is_refused:
        msg = f"Model context window too small ({window} tokens). Minimum is {found.refuse_below}."
        raise WindowTooSmall(f"{msg} The window came from: {origin}. Set a larger one, or use a larger model.")
    if room.size < least:
        msg = (
            f"No room for a conversation: window {window} ({origin}) less {room.reserve} for the answer and "
            f"{room.frame} for system and tools leaves {room.size} tokens; {least} are needed."
        )
        anew = " Another window that you configure ends what was learned." if origin == LEARNED else ""
        raise WindowTooSmall(f"{msg} Use a larger window, a shorter system prompt or fewer tools.{anew}")
    if found.is_small:
        why = f"window of {window} tokens ({origin}) is under {found.warn_below}"
        return room, (Notice("small-window", why),)
    return room, ()
