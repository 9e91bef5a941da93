"""The token budget of a request: which window is in force, how it is divided, and whether it is usable at all.

The window of a target passes through two steps before it is divided. ``apply_learned_limits`` lowers it to what
overflow errors taught about the model, ``apply_window_cap`` to what the settings allow. ``compute_budget`` then takes
the reserve for the answer and the setup (system prompt and tools) off; messages get the rest.
"""

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
"""Window in tokens of a model that neither the user nor the catalog knows: that of most current models, or less. A
default rather than "unknown" keeps the overflow guard on for every model (OpenClaw's choice)."""


def choose_window(*candidates: tuple[str, float | None]) -> tuple[str, int]:
    """Return the origin and size in tokens of the first candidate that has a usable size.

    ``candidates`` are pairs of origin and size, the most trusted first. A size that is missing, not finite or under 1
    does not count. If no candidate has one, the result is ``("default", DEFAULT_WINDOW)``.
    """
    for origin, size in candidates:
        tokens = _to_token_count(size)
        if tokens:
            return origin, tokens
    return "default", DEFAULT_WINDOW


def _to_token_count(number: float | None) -> int:
    """Return ``number`` as whole tokens, or 0 if it is missing, not finite or under 1."""
    if number is None or not math.isfinite(number) or number < 1:
        return 0
    return int(number)


class TokenBudget(Struct, frozen=True):
    """How the window of a request is divided, in tokens. Shares in the settings are shares of these."""

    window: int
    reserve: int
    """Kept free for the answer."""
    usable: int
    """Window less reserve, or the model's input limit if that is lower: the largest request."""
    setup_tokens: int
    """System prompt and tools."""
    message_tokens: int
    """Usable less setup: what all messages may have together. ``M`` in the settings; negative if the setup is larger
    than the window."""

    def compute_share(self, part: float) -> int:
        """Return the share ``part`` (0 to 1) of the message budget, in tokens."""
        return int(self.message_tokens * part)


MAX_FLOOR_SHARE = 0.25
"""Largest share of a window that the floor of the reserve takes. A small window may have less than the 20,000 tokens of
the floor, and a conversation in it would be compacted from its first request on. A quarter, as in
``reserve.max_share``, is chosen by judgement."""


def compute_reserve_floor(window: int, settings: Settings) -> int:
    """Return the smallest reserve in tokens that a ``window`` is planned with; 0 if the settings have no floor."""
    return min(settings.reserve.floor, int(window * MAX_FLOOR_SHARE))


def compute_budget(target: Target, settings: Settings) -> TokenBudget:
    """Divide the window of ``target`` into reserve, setup and messages.

    Nothing is checked here: ``check_budget`` refuses a budget that leaves too little for messages.
    """
    limits = target.limits
    window = limits.window
    setup_tokens = get_setup_tokens(target)
    max_harmless_reserve = window - setup_tokens - max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    # The floor raises a reserve only as far as a usable conversation remains: somebody who configured a small reserve
    # may have done so because it is what makes a small window usable.
    floor = min(compute_reserve_floor(window, settings), max_harmless_reserve)
    max_reserve = max(settings.reserve.max, floor)
    ceiling = max(settings.reserve.min, min(max_reserve, int(window * settings.reserve.max_share)))
    wanted_reserve = limits.requested_output or max_reserve
    reserve = min(ceiling, max(settings.reserve.min, wanted_reserve))
    # The answer of a thinking model cannot be limited to less than it may think in, and the provider counts that
    # beside the prompt. It is kept free even where it is most of the window: with less, every request past it would be
    # refused once before it is made smaller.
    reserve = max(reserve, min(limits.min_output, max_harmless_reserve))
    usable = min(window - reserve, limits.max_input or window)
    return TokenBudget(window, reserve, usable, setup_tokens, usable - setup_tokens)


def apply_window_cap(target: Target, settings: Settings) -> Target:
    """Return ``target`` with its window lowered to ``window.cap``; the same object if the cap is off or not lower."""
    cap = _to_token_count(settings.window.cap)
    limits = target.limits
    if not 0 < cap < limits.window:
        return target
    max_input = min(limits.max_input, cap) if limits.max_input else limits.max_input
    return replace(
        target,
        limits=replace(
            limits,
            window=cap,
            max_input=max_input,
            window_source="cap",
        ),
    )


def compute_effective_target(target: Target, state: ConversationState, settings: Settings) -> Target:
    """Return ``target`` with the limits learned in ``state`` applied, then the configured window cap."""
    return apply_window_cap(apply_learned_limits(target, state, settings), settings)


REFUSED_WINDOW_SHARE = 0.8
"""After an overflow error without any number the window is taken for this share of the refused request, as we estimate
it. All we know is that the window is smaller: a larger share risks another refusal, a smaller one compacts more than
was needed. Chosen by judgement."""
REFUSED_SIZE_SHARE = 0.95
"""The same where the provider counted the refused request but named no limit: the count is exact, so the share can be
closer to 1. Chosen by judgement."""
MIN_GUESSED_BUDGET = 4_000
"""Tokens of messages that any guessed limit leaves: a task, one call and its result. A wrong guess may cost a
compaction, but it may not end a session; the default of ``window.min_budget`` is the same number."""
MIN_REPORTED_BUDGET = 500
"""Tokens of messages that are enough in a window that a provider reported itself. The conversation is under way then
and cannot choose another window, so a request that fits is sent, however short. The proxy tries any window with this
much for the same reason: its client cannot choose either."""
LEARNED_ORIGIN = "learned"
"""``window_source`` of a window that an overflow error taught."""


def apply_learned_limits(target: Target, state: ConversationState, settings: Settings = Settings()) -> Target:
    """Return ``target`` adjusted by the usage and the overflow errors of its model in ``state``.

    That can be a smaller window, fewer bytes a body, more real tokens for an estimated one, and the size of the setup.
    Only the setup is adjusted if no overflow is recorded for this model, or if another window was configured for it
    since: then the configuration is newer than the evidence.
    """
    model_stats = get_model_stats(state, target.model)
    learned_limits = model_stats.learned_limits
    has_other_window_now = model_stats.window > 0 and model_stats.window != target.limits.window
    if learned_limits == LearnedLimits() or has_other_window_now:
        return _with_calibrated_setup(target, state, settings)
    if learned_limits.max_body_bytes:
        max_bytes = min(target.dialect.max_bytes, learned_limits.max_body_bytes)
        target = replace(target, dialect=replace(target.dialect, max_bytes=max_bytes))
    # Each step uses the one before it: the setup is estimated with the learned ratio, and the window guesses below are
    # bounded by the size of the setup.
    target = replace(target, prior_ratio=max(target.prior_ratio, learned_limits.min_ratio))
    target = _with_calibrated_setup(target, state, settings)
    return _lower_window(target, _compute_learned_window(target, state, learned_limits, settings))


def _compute_learned_window(
    target: Target,
    state: ConversationState,
    learned_limits: LearnedLimits,
    settings: Settings,
) -> int:
    """Return the smallest window in tokens that an overflow of this model gives reason for, or the target's own."""
    guesses: list[int] = []
    if learned_limits.smallest_refused_tokens:
        guesses.append(int(REFUSED_SIZE_SHARE * learned_limits.smallest_refused_tokens))
    if learned_limits.smallest_refused_estimate:
        guesses.append(int(REFUSED_WINDOW_SHARE * estimate_smallest_refused_request(state, target)))
    windows = [target.limits.window]
    if guesses:
        # A guess stops at the smallest usable window; a limit that the provider stated itself, below, does not.
        windows.append(max(compute_min_window(target, settings), min(guesses)))
    if learned_limits.window_limit:
        windows.append(learned_limits.window_limit)
    return min(windows)


def _with_calibrated_setup(target: Target, state: ConversationState, settings: Settings) -> Target:
    """Return ``target`` with the size of its setup calibrated, but small enough to leave a conversation some room."""
    setup = _cap_setup_size(calibrate_setup(target, state), target, settings)
    return replace(target, setup=setup)


def _cap_setup_size(setup: RequestSetup, target: Target, settings: Settings) -> RequestSetup:
    """Return ``setup``, no larger than leaves the minimum message budget, unless the target states its exact size.

    A calibrated size is the reported usage less our count of the messages. Images that cost more than we count
    would therefore appear as setup, and that error must not end a session.
    """
    if target.setup.is_exact:
        return setup
    budget = compute_budget(apply_window_cap(target, settings), settings)
    max_tokens = max(budget.setup_tokens, budget.usable - max(MIN_GUESSED_BUDGET, settings.window.min_budget))
    if setup.tokens <= max_tokens:
        return setup
    return replace(setup, tokens=max_tokens)


def calibrate_setup(target: Target, state: ConversationState) -> RequestSetup:
    """Return the setup of ``target`` with its size in real tokens, as far as reported usage tells it.

    If the last measured request went to this model with this setup, the size is the reported tokens less our calibrated
    count of that request's messages. That holds after a compaction too, where the messages are gone. For another setup
    the estimate is multiplied by the calibrated ratio. Without any usage the setup is returned as it is.
    """
    setup = target.setup
    ratio = get_calibrated_ratio(state, target)
    measurement = None
    measured_tokens = 0
    if is_last_model(state, target) and state.setup.has_same_content(setup):
        measurement = state.usage.measured_request
    if measurement is not None:
        measured_tokens = measurement.reported_tokens - round(ratio * measurement.shown_tokens)

    if setup == RequestSetup():
        # The caller told us nothing of system prompt and tools. Usage reveals their size all the same.
        if measured_tokens > 0:
            return RequestSetup("", measured_tokens, is_exact=True)
        return setup
    has_usage = measurement is not None or get_model_stats(state, target.model).calibration.estimated_tokens > 0
    if setup.is_exact or not setup.tokens or not has_usage:
        return setup
    if measurement is not None:
        tokens = measured_tokens
    else:
        tokens = round(ratio * setup.tokens)
    # The same bounds as for messages: one odd count must not make the setup vanish or swallow the window.
    min_tokens = MIN_CALIBRATION_RATIO * setup.tokens
    max_tokens = MAX_CALIBRATION_RATIO * setup.tokens
    return replace(setup, tokens=round(min(max_tokens, max(min_tokens, tokens))), is_exact=True)


def compute_min_window(target: Target, settings: Settings) -> int:
    """Return the smallest window in tokens that a guess may assume: one that still holds a conversation."""
    needed_tokens = get_setup_tokens(target) + max(MIN_GUESSED_BUDGET, settings.window.min_budget)
    # The reserve takes its share of this window too, so the window must be larger than what is needed. The share is
    # limited to a half here, since a setting near 1 would ask for an endless window.
    reserve_share = min(settings.reserve.max_share, 0.5)
    window_with_share = math.ceil(needed_tokens / (1 - reserve_share))
    return max(MIN_WINDOW_LIMIT, needed_tokens + settings.reserve.min, window_with_share) + 1


def _lower_window(target: Target, max_tokens: int) -> Target:
    """Return ``target`` with a learned window of ``max_tokens``; the same object if its window is not larger."""
    limits = target.limits
    if max_tokens >= limits.window:
        return target
    max_input = limits.max_input
    if max_input:
        max_input = min(max_input, max_tokens)
    return replace(
        target,
        limits=replace(
            limits,
            window=max_tokens,
            max_input=max_input,
            window_source=LEARNED_ORIGIN,
        ),
    )


def check_budget(
    target: Target, settings: Settings, rules: PolicyRules = PolicyRules()
) -> tuple[TokenBudget, tuple[Notice, ...]]:
    """Return the budget of requests to ``target``, and the warnings that the policy has about its window.

    Raises ``WindowTooSmall``, before any call, if the policy refuses the window or if it leaves less than
    ``window.min_budget`` for messages.
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
        if origin == LEARNED_ORIGIN:
            hint = " Configure another window to discard the learned limit."
        else:
            hint = ""
        raise WindowTooSmall(f"{msg} Use a larger window, a shorter system prompt or fewer tools.{hint}")
    return budget, notices


def describe_raised_reserves(
    settings: Settings,
    rules: PolicyRules,
    preset: tuple[Settings, PolicyRules],
    window: int | None = None,
) -> tuple[str, ...]:
    """Return a sentence for each reserve that the user configured below the floor, so that it is raised.

    A reserve counts as configured if it differs from that of ``preset``, the settings and rules that the policy was
    made from: nobody needs to hear about a preset's own numbers. Without a ``window`` reserves are compared with the
    floor as configured, else with its size in that window.
    """
    if window is None:
        floor = settings.reserve.floor
    else:
        floor = compute_reserve_floor(window, settings)
    preset_settings, preset_rules = preset
    preset_reserves = preset_rules.list_reserves(preset_settings)
    sentences: list[str] = []
    for name, tokens in rules.list_reserves(settings).items():
        is_configured = tokens != preset_reserves.get(name)
        if is_configured and tokens < floor:
            sentences.append(
                f"{name} = {tokens:,} is under reserve.floor = {settings.reserve.floor:,} and is raised to it,"
                " at most to a quarter of the window; set reserve.floor too if you want less held back"
            )
    return tuple(sentences)
