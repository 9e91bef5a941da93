"""The guard: how much room there is, and whether anything useful fits into it."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import WindowTooSmall
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings
from holdfast.state.calibration.calibration import (
    MAX_CALIBRATION_RATIO,
    MIN_CALIBRATION_RATIO,
    MIN_WINDOW_LIMIT,
    LearnedLimits,
)
from holdfast.state.calibration.model_stats import get_model_stats
from holdfast.state.calibration.token_estimate import (
    estimate_smallest_refused_request,
    get_calibrated_ratio,
    get_setup_tokens,
    is_last_model,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import RequestSetup
from holdfast.state.plan import Notice
from holdfast.state.target import Target

DEFAULT_WINDOW = 200_000
"""[O] Tokens assumed of a window that nobody knows, that of most current models or less: the guard is never off."""


def choose_window(*candidates: tuple[str, float | None]) -> tuple[str, int]:
    """Return who says the window and its tokens: the first of ``candidates``, names and sizes, that has a size to say.

    What is no number, not finite or under 1 says nothing; where nobody does it is ``DEFAULT_WINDOW``.
    """
    return next(
        ((name, size) for name, number in candidates if (size := _to_token_count(number))), ("default", DEFAULT_WINDOW)
    )


def _to_token_count(number: float | None) -> int:
    """Return a told number as whole tokens; 0 where it is none."""
    return int(number) if number is not None and math.isfinite(number) and number >= 1 else 0


class TokenBudget(Struct, frozen=True):
    """The sizes every share is taken of, in tokens."""

    window: int
    reserve: int
    """Kept free for the answer."""
    usable: int
    """Window less reserve: what a request may hold."""
    setup_tokens: int
    message_tokens: int
    """Usable less frame: what messages may hold. ``M`` in the settings."""

    def compute_share(self, part: float) -> int:
        """Return ``part`` of the room."""
        return int(self.message_tokens * part)


MAX_FLOOR_SHARE = 0.25
"""[H] The floor of the reserve takes at most this share of a window: 20,000 tokens would be more than a small one has,
and a conversation in it would be compacted from its first request on."""


def compute_reserve_floor(window: int, settings: Settings) -> int:
    """Return the tokens that are held back of ``window`` at least, whatever reserve is configured; 0 where none is."""
    return min(settings.reserve.floor, int(window * MAX_FLOOR_SHARE))


def compute_budget(target: Target, settings: Settings) -> TokenBudget:
    """Return the sizes for requests to ``target``; nothing is judged yet."""
    window = target.limits.window
    frame = get_setup_tokens(target)
    spare = window - frame - max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    # A reserve that was configured small may be what makes a small window usable: no floor takes that room away.
    most_reserved = max(settings.reserve.max, min(compute_reserve_floor(window, settings), spare))
    ceiling = max(settings.reserve.min, min(most_reserved, int(window * settings.reserve.max_share)))
    output_tokens = target.limits.requested_output or most_reserved
    reserve = min(ceiling, max(settings.reserve.min, output_tokens))
    # An answer cannot be limited to less than its model may think in, so what the provider counts beside the prompt is
    # kept free, also where that is most of the window: with less room free each request past it would be refused first.
    reserve = max(reserve, min(target.limits.min_output, spare))
    usable = min(window - reserve, target.limits.max_input or window)
    return TokenBudget(window, reserve, usable, frame, usable - frame)


def apply_window_cap(target: Target, settings: Settings) -> Target:
    """Return ``target`` with the window in force as its own, for all that is measured by it."""
    cap, max_input = _to_token_count(settings.window.cap), target.limits.max_input
    if not 0 < cap < target.limits.window:
        return target
    max_input = min(max_input, cap) if max_input else max_input
    return replace(target, limits=replace(target.limits, window=cap, max_input=max_input, window_source="cap"))


def compute_effective_target(target: Target, state: ConversationState, settings: Settings) -> Target:
    """Return ``target`` as requests of ``state`` are planned for it: with what was learned of it, in its window."""
    return apply_window_cap(apply_learned_limits(target, state, settings), settings)


REFUSED_WINDOW_SHARE = 0.8
"""[H] Where a request was refused without any number the window counts as this much of it, as estimated."""
REFUSED_SIZE_SHARE = 0.95
"""[H] Where a size was refused that no limit explains the window counts as this much of that size."""
MIN_GUESSED_BUDGET = 4_000
"""[H] What nobody told leaves this room at least: no guess may end a session."""
MIN_REPORTED_BUDGET = 500
"""[H] Room enough in a window that a provider told of: who learns of it is under way, and what fits is answered. The
proxy tries any window with so much: its client is under way too."""
LEARNED_ORIGIN = "learned"
"""Origin of a window that an overflow told."""


def apply_learned_limits(target: Target, state: ConversationState, settings: Settings = Settings()) -> Target:
    """Return ``target`` with what this model taught ``state``: less room, more tokens for a text, its frame.

    That is a smaller window, and fewer bytes of a body.

    No window changes where there was no overflow of it, or where another window was configured for it since: then
    somebody knows better.
    """
    model_stats = get_model_stats(state, target.model)
    learned_limits = model_stats.learned_limits
    if learned_limits == LearnedLimits() or 0 < model_stats.window != target.limits.window:
        return replace(target, setup=_cap_setup_size(calibrate_setup(target, state), target, settings))
    if learned_limits.max_body_bytes:
        target = replace(
            target,
            dialect=replace(target.dialect, max_bytes=min(target.dialect.max_bytes, learned_limits.max_body_bytes)),
        )
    target = replace(target, prior_ratio=max(target.prior_ratio, learned_limits.min_ratio))
    target = replace(target, setup=_cap_setup_size(calibrate_setup(target, state), target, settings))
    window_guesses = (
        [int(REFUSED_SIZE_SHARE * learned_limits.smallest_refused_tokens)]
        if learned_limits.smallest_refused_tokens
        else []
    )
    if learned_limits.smallest_refused_estimate:
        window_guesses.append(int(REFUSED_WINDOW_SHARE * estimate_smallest_refused_request(state, target)))
    window_limits = [max(compute_min_window(target, settings), min(window_guesses))] if window_guesses else []
    return _lower_window(
        target,
        min(
            [*window_limits, *([learned_limits.window_limit] if learned_limits.window_limit else [])],
            default=target.limits.window,
        ),
    )


def _cap_setup_size(setup: RequestSetup, target: Target, settings: Settings) -> RequestSetup:
    """Return ``setup`` no larger than leaves room for a conversation: what an answer tells of it is a guess.

    Media that are counted higher than estimated would count as frame, and no guess may end a session.
    """
    budget = compute_budget(apply_window_cap(target, settings), settings)
    max_tokens = max(budget.setup_tokens, budget.usable - max(MIN_GUESSED_BUDGET, settings.window.min_budget))
    return setup if target.setup.is_exact or setup.tokens <= max_tokens else replace(setup, tokens=max_tokens)


def calibrate_setup(target: Target, state: ConversationState) -> RequestSetup:
    """Return the frame of ``target`` in tokens of its model: what the last reported usage had beside its messages.

    That stands whatever became of them: behind a compaction it is nearer than the estimate. That one, by the ratio that
    was reported so far, counts for another frame; where nothing was reported it stays what it is.
    """
    setup, scale = target.setup, get_calibrated_ratio(state, target)
    measurement = state.usage.measured_request if is_last_model(state, target) and state.setup == setup else None
    setup_tokens = (
        measurement.reported_tokens - round(scale * measurement.shown_tokens) if measurement is not None else 0
    )
    if setup == RequestSetup():
        return RequestSetup("", setup_tokens, is_exact=True) if setup_tokens > 0 else setup
    if (
        setup.is_exact
        or not setup.tokens
        or not (measurement or get_model_stats(state, target.model).calibration.estimated_tokens)
    ):
        return setup
    tokens = setup_tokens if measurement is not None else round(scale * setup.tokens)
    return replace(
        setup,
        tokens=round(min(MAX_CALIBRATION_RATIO * setup.tokens, max(MIN_CALIBRATION_RATIO * setup.tokens, tokens))),
        is_exact=True,
    )


def compute_min_window(target: Target, settings: Settings) -> int:
    """Return the smallest window in which there is room for a conversation: no guess makes it smaller than that."""
    needed_tokens = get_setup_tokens(target) + max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    share = min(settings.reserve.max_share, 0.5)
    return max(MIN_WINDOW_LIMIT, needed_tokens + settings.reserve.min, math.ceil(needed_tokens / (1 - share))) + 1


def _lower_window(target: Target, max_tokens: int) -> Target:
    """Return ``target`` with a window of at most ``max_tokens`` tokens, as an overflow told it."""
    limits = target.limits
    if max_tokens >= limits.window:
        return target
    prompt = min(limits.max_input, max_tokens) if limits.max_input else limits.max_input
    return replace(target, limits=replace(limits, window=max_tokens, max_input=prompt, window_source=LEARNED_ORIGIN))


def check_budget(
    target: Target, settings: Settings, rules: PolicyRules = PolicyRules()
) -> tuple[TokenBudget, tuple[Notice, ...]]:
    """Return the budget of requests to ``target``, with the warnings that the policy has about its window.

    Raises ``WindowTooSmall`` before any call where the policy refuses the window, or it leaves less than the minimum
    for messages.
    """
    capped_target = apply_window_cap(target, settings)
    notices = rules.check_window(target.limits, capped_target.limits)
    budget = compute_budget(capped_target, settings)
    window, origin = capped_target.limits.window, capped_target.limits.window_source
    min_tokens = settings.window.min_budget
    if origin == LEARNED_ORIGIN:
        min_tokens = min(min_tokens, MIN_REPORTED_BUDGET)
    if budget.message_tokens < min_tokens:
        msg = (
            f"No room for a conversation: window {window} ({origin}) less {budget.reserve} for the answer and "
            f"{budget.setup_tokens} for system and tools leaves {budget.message_tokens} tokens; {min_tokens} are "
            "needed."
        )
        anew = " Another window that you configure ends what was learned." if origin == LEARNED_ORIGIN else ""
        raise WindowTooSmall(f"{msg} Use a larger window, a shorter system prompt or fewer tools.{anew}")
    return budget, notices


def describe_raised_reserves(
    settings: Settings, rules: PolicyRules, preset: tuple[Settings, PolicyRules], window: int | None = None
) -> tuple[str, ...]:
    """Return a sentence for each reserve that was configured under the floor, and is raised in ``window``.

    A reserve was configured where it differs from that of ``preset``, from which the policy was made. Without a window
    the floor itself is what a reserve is compared with.
    """
    floor = settings.reserve.floor if window is None else compute_reserve_floor(window, settings)
    preset_settings, preset_rules = preset
    preset_reserves = preset_rules.list_reserves(preset_settings)
    return tuple(
        f"{name} = {tokens:,} is under reserve.floor = {settings.reserve.floor:,} and is raised to it,"
        " at most to a quarter of the window; set reserve.floor too if you want less held back"
        for name, tokens in rules.list_reserves(settings).items()
        if tokens != preset_reserves.get(name) and tokens < floor
    )
