"""Triggers: the size at which the tools compact, each by its own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.planning.settings import Settings
from holdfast.state.target import ModelLimits

MAX_FLOOR_SHARE = 0.25
"""[H] The floor of the reserve takes at most this share of a window: 20,000 tokens would be more than a small one has,
and a conversation in it would be compacted from its first request on."""
OPENCODE_BUFFER_TOKENS = 20_000
"""Tokens that opencode holds back of an input limit where nothing is set, or the output if that is less. [C]"""


def is_over_rule_trigger(size: int, limits: ModelLimits, settings: Settings) -> bool:
    """Return whether a request of ``size`` tokens compacts by itself, where the trigger is no share of the room."""
    if settings.compact != "summary" or not limits.window:
        return False
    return is_over_policy_limit(size, compute_rule_trigger(limits, settings), settings)


def is_over_policy_limit(size: int, limit: int, settings: Settings) -> bool:
    """Return whether ``size`` is over ``limit`` as this policy means it: opencode compacts at it, the others above."""
    return size >= limit if settings.trigger_inclusive else size > limit


def compute_rule_trigger(limits: ModelLimits, settings: Settings) -> int:
    """Return the size in tokens at which a policy compacts whose trigger is no share of the room.

    Whatever its rule holds back of the window, the floor of the reserve is held back at least.
    """
    held_least = compute_reserve_floor(limits.window, settings)
    if settings.trigger_reserve_share:
        held_least = min(held_least, int(limits.window * settings.trigger_reserve_share))
    size = _TRIGGER_RULES[settings.trigger_rule](limits, settings)
    if not held_least:
        return size
    held_of = limits.window
    if settings.trigger_rule != "reserve" and limits.max_input:  # the other rules hold back of an input limit, too
        held_of = min(held_of, limits.max_input)
    return min(size, held_of - held_least)


def compute_reserve_floor(window: int, settings: Settings) -> int:
    """Return the tokens that are held back of ``window`` at least, whatever reserve is configured; 0 where none is."""
    return min(settings.reserve_floor, int(window * MAX_FLOOR_SHARE))


def describe_raised_reserves(settings: Settings, preset: Settings, window: int | None = None) -> tuple[str, ...]:
    """Return a sentence for each reserve that was configured under the floor, and counts for more in ``window``.

    A reserve was configured where it is another than that of ``preset``, from which ``settings`` were made. Without a
    window the floor itself is what a reserve is compared with.
    """
    names = ["reserve_max"]
    if settings.compact == "summary" and not settings.trigger_share:
        names.append("trigger_reserve")
    floor = settings.reserve_floor if window is None else compute_reserve_floor(window, settings)
    return tuple(
        f"{name} = {getattr(settings, name):,} is under reserve_floor = {settings.reserve_floor:,} and is raised to it,"
        " at most to a quarter of the window; set reserve_floor too if you want less held back"
        for name in names
        if getattr(settings, name) != getattr(preset, name) and getattr(settings, name) < floor
    )


def compute_effective_window(limits: ModelLimits, max_output: int) -> int:
    """Return the window less the model's output, of which no more than ``max_output`` is reserved."""
    return limits.window - compute_output_reserve(limits, max_output)


def compute_output_reserve(limits: ModelLimits, max_output: int) -> int:
    """Return the tokens kept free for an answer: what the model can say, at most ``max_output``."""
    return min(max_output, limits.max_output or max_output)


def compute_opencode_limit(limits: ModelLimits, settings: Settings) -> int:
    """Return what opencode lets a request hold: the input limit less a buffer, or the window less the output.

    A reserve in the settings counts in both cases; where nothing is left, or no window is known, it is 0.
    """
    if not limits.window:
        return 0
    output = compute_output_reserve(limits, settings.trigger_output)
    if limits.max_input:
        return max(0, limits.max_input - (settings.trigger_reserve or min(OPENCODE_BUFFER_TOKENS, output)))
    return max(0, limits.window - max(output, settings.trigger_reserve))


def compute_opencode2_limit(limits: ModelLimits, settings: Settings) -> int:
    """Return opencode 2's line: the smaller of input limit and window, each less a buffer or the output."""
    buffer = settings.trigger_reserve or OPENCODE_BUFFER_TOKENS
    window_limit = limits.window - max(compute_output_reserve(limits, settings.trigger_output), buffer)
    return max(0, min(limits.max_input - buffer, window_limit) if limits.max_input else window_limit)


def _compute_reserve_limit(limits: ModelLimits, settings: Settings) -> int:
    """The window less a reserve and, where that is wanted, less the output: pi, OpenClaw and Claude Code."""
    reserve = settings.trigger_reserve
    if settings.trigger_reserve_share:
        reserve = min(reserve, int(limits.window * settings.trigger_reserve_share))
    return compute_effective_window(limits, settings.trigger_output) - reserve


_TRIGGER_RULES: dict[str, Callable[[ModelLimits, Settings], int]] = {
    "reserve": _compute_reserve_limit,
    "usable": compute_opencode_limit,
    "smaller": compute_opencode2_limit,
}
