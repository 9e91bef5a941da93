"""The guard: how much room there is, and whether anything useful fits into it."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import WindowTooSmall
from holdfast.model.plan import Notice
from holdfast.model.target import Target
from holdfast.policy.settings import Settings
from holdfast.view.tokens import frame_tokens


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
    ceiling = max(settings.reserve_min, min(settings.reserve_max, int(window * settings.reserve_share)))
    asked = target.limits.asked_output or settings.reserve_max
    reserve = min(ceiling, max(settings.reserve_min, asked))
    usable = window - reserve
    frame = frame_tokens(target)
    return Room(window, reserve, usable, frame, usable - frame)


def guard(target: Target, settings: Settings) -> tuple[Room, tuple[Notice, ...]]:
    """Return the room, with a warning if it is small.

    Raises ``WindowTooSmall`` before any call where the window, or the room in it, is under the minimum.
    """
    room = measure_room(target, settings)
    window, origin = room.window, target.limits.origin
    if 0 < window < settings.window_min:
        msg = f"Model context window too small ({window} tokens). Minimum is {settings.window_min}."
        raise WindowTooSmall(f"{msg} The window came from: {origin}. Set a larger one, or use a larger model.")
    if room.size < settings.room_min:
        msg = (
            f"No room for a conversation: window {window} ({origin}) less {room.reserve} for the answer and "
            f"{room.frame} for system and tools leaves {room.size} tokens; {settings.room_min} are needed."
        )
        raise WindowTooSmall(f"{msg} Use a larger window, or send fewer tools.")
    if 0 < window < settings.window_warn:
        why = f"window of {window} tokens ({origin}) is under {settings.window_warn}"
        return room, (Notice("small-window", why),)
    return room, ()
