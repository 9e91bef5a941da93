"""OpenClaw's decisions where they differ from ours, and its settings; the defaults are those of version 2026.3."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta
from msgspec.structs import replace

from holdfast.errors import WindowTooSmall
from holdfast.messages.message import Message
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules, ResultLimits
from holdfast.planning.presets.common.request_measures import measure_usage_and_chars
from holdfast.planning.presets.common.reserve_trigger import ReserveTriggerRules, apply_reserve_floor
from holdfast.planning.presets.common.tail_by_tokens import select_tail_by_tokens
from holdfast.planning.presets.preset import OWN_PRUNE_SETTINGS
from holdfast.planning.settings import Chars, Count, Seconds, Settings, Share, Tokens, describe
from holdfast.state.plan import Notice
from holdfast.state.target import ModelLimits


class OpenclawRules(ReserveTriggerRules, frozen=True):
    """OpenClaw's decisions where they differ from ours, and its settings."""

    unused_settings: ClassVar[frozenset[str]] = ReserveTriggerRules.unused_settings | OWN_PRUNE_SETTINGS

    window_min: Annotated[Tokens, describe("[O] Refuse smaller windows, 0 = none; 2026.9: 4,000.")] = 16_000
    window_min_share: Annotated[
        Share,
        describe("[O] Also refuse if window.cap leaves less than this share of the window, 0 = never; 2026.9: 0.10."),
    ] = 0.0
    window_warn: Annotated[Tokens, describe("[O] Warn of smaller windows, 0 = never; 2026.9: 8,000.")] = 32_000
    window_warn_share: Annotated[
        Share,
        describe("[O] Also warn if window.cap leaves less than this share of the window, 0 = never; 2026.9: 0.20."),
    ] = 0.0

    image_keep_turns: Annotated[
        int,
        Meta(ge=-1),
        describe(
            "[O] Remove images before this many of the newest answered turns, 0 = before the newest answer, -1 = "
            "never; 2026.9: 3."
        ),
    ] = 0
    prune: Annotated[bool, describe("[O] Trim and clear old results when the cache has expired.")] = True
    prune_ttl_seconds: Annotated[
        Seconds, describe("[O] Seconds since the last request after which the cache counts as cold.")
    ] = 300
    prune_trim_share: Annotated[
        Share, describe("[O] Trim long results if all messages take this share of the window.")
    ] = 0.3
    prune_trim_min_chars: Annotated[Chars, describe("[O] A result with more characters than this is long.")] = 4_000
    prune_trim_end_chars: Annotated[Chars, describe("[O] Characters of each end that a trimmed result keeps.")] = 1_500
    prune_clear_share: Annotated[
        Share,
        describe("[O] If messages still take this share of the window, clear the oldest results until they take less."),
    ] = 0.5
    prune_clear_min_chars: Annotated[
        Chars, describe("[O] Clear only if the results that may be cleared have this many characters together.")
    ] = 50_000
    prune_keep_answers: Annotated[
        Count, describe("[O] Never trim or clear results after this answer, counted from the end.")
    ] = 3

    loop_share: Annotated[
        Share,
        describe(
            "[O] Before each request, clear the oldest results until messages take at most this share of the window, "
            "0 = never; 2026.9: 0. Characters of tool results count twice."
        ),
    ] = 0.75
    loop_result_share: Annotated[
        Share, describe("[O] With loop_share, also cut each result over this share of the window.")
    ] = 0.5
    precheck: Annotated[
        bool, describe("[O] Cut results instead of compacting if that frees more than enough; 2026.9: on.")
    ] = False

    trigger_reserve: Annotated[
        Tokens,
        describe("[O] Compact when a request is over the window less this, or less reserve.floor if that is more."),
    ] = 16_384
    trigger_reserve_share: Annotated[
        Share, describe("[O] Let that reserve take at most this share of the window, 0 = any: for small windows.")
    ] = 0.25
    tail_tokens: Annotated[Tokens, describe("[O] Keep about this many tokens of the newest messages unchanged.")] = (
        20_000
    )

    truncate_share: Annotated[
        Share, describe("[O] If a request is too large, cut results over this share of the window, 0 = never.")
    ] = 0.3
    truncate_max_chars: Annotated[Chars, describe("[O] Or over this many weighted characters, 0 = no such limit.")] = (
        400_000
    )
    truncate_window_steps: Annotated[
        tuple[tuple[Count, Count], ...],
        describe(
            "[O] Or over a limit for windows from a size on, as pairs of window and characters; 2026.9 has three."
        ),
    ] = ()
    truncate_total_factor: Annotated[
        Count, describe("[O] Let all results together have this many times the limit of one; 2026.9: 4.")
    ] = 1
    truncate_total_share: Annotated[
        Share, describe("[O] Or this share of the window, if that is more; 2026.9: 0.5.")
    ] = 0.0

    def check_window(self, configured: ModelLimits, limits: ModelLimits) -> tuple[Notice, ...]:
        """Return a warning if the window is small; raise ``WindowTooSmall`` if it is under the minimum."""
        window, origin = limits.window, limits.window_source
        refuse_below = max(self.window_min, int(configured.window * self.window_min_share))
        warn_below = max(self.window_warn, int(configured.window * self.window_warn_share))
        if window < refuse_below:
            msg = f"Model context window too small ({window} tokens). Minimum is {refuse_below}."
            raise WindowTooSmall(f"{msg} The window came from: {origin}. Set a larger one, or use a larger model.")
        if window < warn_below:
            return (
                Notice(
                    "small-window",
                    f"the window of {window:,} tokens ({origin}) is under {warn_below:,}, which is small",
                ),
            )
        return ()

    def without_window_minimum(self) -> PolicyRules:
        """Return these rules without a minimum window."""
        return replace(self, window_min=0, window_min_share=0.0)

    def list_ordered_settings(self) -> tuple[tuple[str, str, str], ...]:
        """Return the pairs of limits of which the first must not exceed the second."""
        why = "smaller windows are refused under the first, and warned of under the second"
        pairs = [
            ("preset.window_min", "preset.window_warn", why),
            ("preset.window_min_share", "preset.window_warn_share", why),
        ]
        if self.prune:
            trimmed_first = "results are trimmed from the first on, and cleared from the second on"
            pairs.append(("preset.prune_trim_share", "preset.prune_clear_share", trimmed_first))
        return tuple(pairs)

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the last answer's usage plus the messages after it, at four characters a token."""
        return measure_usage_and_chars(builder)

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the tokens above which a request is compacted: the window less a reserve with a ceiling."""
        # A fixed reserve would leave a small window nothing to work with; the ceiling holds for the floor as well.
        max_share = self.trigger_reserve_share or 1.0
        reserve = min(self.trigger_reserve, int(limits.window * max_share))
        return apply_reserve_floor(limits.window - reserve, limits.window, settings, max_share)

    def select_tail_starts(
        self,
        builder: PlanBuilder,
        messages: list[Message],
        cut_points: list[int],
    ) -> list[int]:
        """Return the one offset from which enough of the newest messages stand, if it exists."""
        return select_tail_by_tokens(messages, self.tail_tokens, cut_points)

    def get_min_tail_tokens(self) -> int:
        """Return the least tokens of a kept tail."""
        return self.tail_tokens

    def get_result_limits(self, window: int) -> ResultLimits | None:
        """Return the limits of results in a ``window`` of tokens, or None if truncation is off."""
        if not self.truncate_share:
            return None
        per_result = int(window * self.truncate_share) * CHARS_PER_TOKEN
        if self.truncate_max_chars:
            per_result = min(per_result, self.truncate_max_chars)
        # The step of the largest window size that this window reaches.
        step_limits = []
        for min_window, max_chars in sorted(self.truncate_window_steps):
            if window >= min_window:
                step_limits.append(max_chars)
        if step_limits and step_limits[-1]:
            per_result = min(per_result, step_limits[-1])
        total_by_share = int(window * self.truncate_total_share * CHARS_PER_TOKEN)
        return ResultLimits(per_result, max(per_result * self.truncate_total_factor, total_by_share))


OPENCLAW_2026_9: dict[str, Any] = {
    "recovery": {"stops_at_rate_ceiling": True},
    "preset": {
        "window_min": 4_000,
        "window_min_share": 0.10,
        "window_warn": 8_000,
        "window_warn_share": 0.20,
        "image_keep_turns": 3,
        "truncate_window_steps": ((0, 16_000), (100_000, 32_000), (200_000, 64_000)),
        "truncate_total_factor": 4,
        "truncate_total_share": 0.5,
        "loop_share": 0.0,
        "precheck": True,
    },
}
"""Settings of OpenClaw since version 2026.9: ``Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9)``."""
