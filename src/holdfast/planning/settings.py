"""The settings of our own policy in groups, each with the origin of its default and a reason.

The descriptions are data: docs/generate.py and ``holdfast policy show`` print them. Settings that only the policy of
another tool has stand with that policy in ``presets/``. ``M`` is the message budget: the window less the reserve less
system prompt and tools. A description begins with the origin of its number: ``[O]`` OpenClaw, ``[P]`` pi, ``[C]``
opencode, ``[K]`` Claude Code, ``[A]`` the pattern they have in common, ``[H]`` ours, tuned by replay.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

MAX_SETTING_VALUE = 1_000_000_000_000
"""Largest value of any setting: a million times the largest window, so a larger one is a mistake."""

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A share of something, from 0 to 1."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_SETTING_VALUE)]
Tokens: TypeAlias = Count
Chars: TypeAlias = Count
Bytes: TypeAlias = Count
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_SETTING_VALUE)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]


def describe(text: str) -> Meta:
    """Return the annotation that describes a setting: the origin of its default, its meaning and the reason."""
    return Meta(description=text)


class UserLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limit of one user of a channel in direct messages; without one the channel's own limit holds."""

    history_limit: Count | None = None


class ChannelLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of user turns for the sessions of one channel, by kind of session; 0 shows all, None sets no limit."""

    history_limit: Count | None = None
    """In channels and groups."""
    dm_history_limit: Count | None = None
    """In direct messages."""
    dms: dict[str, UserLimits] = {}
    """Users with a limit of their own."""


class SettingsGroup(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A group of settings. Sizes are tokens unless the name ends with another unit."""


class WindowSettings(SettingsGroup, frozen=True):
    """How much of the model's window may be used."""

    cap: Annotated[
        Tokens,
        describe(
            "[O] Use no more of a window than this, 0 = all of it. Large windows cost more at each request, and many "
            "models attend worse to the middle of them."
        ),
    ] = 0
    min_budget: Annotated[
        Tokens,
        describe(
            "[H] Refuse a window that leaves less than this for messages: a task, one tool call and its result would "
            "not fit, and every step would compact."
        ),
    ] = 4_000
    # Measured by bench/estimator.py: the error of the estimator has a mean of 2.9 % over fifteen classes of content,
    # and a 95th percentile of 3 to 10 %.
    estimate_margin_share: Annotated[
        Share,
        describe(
            "[H] Add this share to the estimated part of a request, which no reported usage covers yet: an estimate "
            "that is too low is a refused request, one that is too high an early compaction."
        ),
    ] = 0.055


class ReserveSettings(SettingsGroup, frozen=True):
    """What is kept free of the window for the answer."""

    floor: Annotated[
        Tokens,
        describe(
            "[A] Raise a smaller reserve to this, 0 = do not. An answer that thinks needs it. [H] But to no more than "
            "a quarter of the window, so that small windows stay usable."
        ),
    ] = 20_000
    max: Annotated[
        Tokens,
        describe(
            "[H] Keep at most this free, whatever output the caller allows: clients ask for the model's maximum, and "
            "to keep all of that free would take a third of some windows."
        ),
    ] = 20_000
    max_share: Annotated[
        Share, describe("[H] Keep at most this share of the window free: three quarters are for the conversation.")
    ] = 0.25
    min: Annotated[
        Tokens,
        describe("[H] Keep at least this free: a shorter answer hardly holds a tool call with its arguments."),
    ] = 1_024


class HistorySettings(SettingsGroup, frozen=True):
    """How many turns of the user are shown, for chats that never end."""

    max_turns: Annotated[
        Count,
        describe("[O] Show at most this many user turns, 0 = all. Compaction serves agents better; chats may want it."),
    ] = 0
    hysteresis: Annotated[
        bool,
        describe(
            "[H] When there are more, cut to half at once: cutting one turn with each request would break the prompt "
            "cache each time."
        ),
    ] = True
    channels: Annotated[
        dict[str, ChannelLimits],
        describe(
            "[O] The same by channel, for sessions whose key names one: group chats need fewer turns than others."
        ),
    ] = {}


class ResultSettings(SettingsGroup, frozen=True):
    """When a new tool result, or a long text of the user, is spilled, and what its preview shows."""

    spill_chars: Annotated[
        Chars,
        describe(
            "[K] Spill a result of more characters, 0 = never. Longer ones are logs and dumps as a rule, of which the "
            "model needs a part."
        ),
    ] = 50_000
    spill_share: Annotated[
        Share,
        describe(
            "[H] Or of more than this share of M, 0 = not looked at: in a small window fewer characters are many."
        ),
    ] = 0.25
    spill_chars_by_tool: Annotated[
        dict[str, Chars],
        describe("[K] Tools with a limit of their own in characters, 0 = never spilled."),
    ] = {}
    spill_exempt_tools: Annotated[
        tuple[Name, ...],
        describe("[K] Tools that are never spilled: they page by themselves, and spilling them would loop."),
    ] = ("recall", "fetch_result")
    preview_chars: Annotated[
        Chars, describe("[K] Show this many characters of a spilled text: enough to see what it is.")
    ] = 2_000
    preview_end_share: Annotated[
        Share,
        describe("[H] Take this share of the preview from the end of the text: errors and totals stand there."),
    ] = 0.30
    outline_chars: Annotated[
        Chars,
        describe(
            "[H] Add an outline of the part that is left out, of at most this many characters, 0 = none. It lets the "
            "model recall the right lines instead of all."
        ),
    ] = 2_500
    append_chars: Annotated[
        Chars,
        describe(
            "[O] Cut a longer text when it is appended, 0 = never. [H] To a preview. It bounds an entry of the log; "
            "the whole text is stored beside."
        ),
    ] = 8_000_000
    message_chars: Annotated[
        Chars,
        describe(
            "[K] Spill the largest of the results between two answers where all have more characters, 0 = no limit: "
            "parallel calls can fill a window with results that are each small."
        ),
    ] = 200_000
    message_share: Annotated[
        Share, describe("[H] Or more than this share of M, 0 = not looked at, the user's new texts counted too.")
    ] = 0.50


class MediaSettings(SettingsGroup, frozen=True):
    """How many images and documents a request shows."""

    max_count: Annotated[
        Count, describe("[H] Show at most this many, the newest first; 0 = what the API takes, which is in its rules.")
    ] = 0
    max_bytes: Annotated[Bytes, describe("[H] Of at most this many bytes together; 0 = what the API takes.")] = 0


class PruneSettings(SettingsGroup, frozen=True):
    """When an old tool result becomes a one-line placeholder."""

    # docs/policies.md has the figures: with ``price`` cost .386 and recall .990, with ``space`` .392 and .978, against
    # .379 and .993 without both.
    when: Annotated[
        tuple[Literal["cold", "broken", "space", "price"], ...],
        describe(
            "[H] Prune when the cache is cold, when the cached prefix breaks anyway, before compacting for space, or "
            "where the price of a break pays; none = never. In replays the last two cost more and lost more facts."
        ),
    ] = ("cold", "broken")
    keep_tokens: Annotated[
        Tokens, describe("[H] Keep this many tokens of the newest results, 0 = the share below instead.")
    ] = 0
    keep_share: Annotated[
        Share, describe("[H] Keep the newest results up to this share of M: the work in hand needs them.")
    ] = 0.30
    min_tokens: Annotated[
        Tokens, describe("[C] Prune only where more tokens go than this: a few are not worth a changed prefix.")
    ] = 20_000
    min_share: Annotated[
        Share, describe("[H] Or more than this share of M, whichever is less: 20,000 tokens may be all of a small one.")
    ] = 0.20
    tools: Annotated[
        tuple[Name, ...],
        describe("[O][K] Prune results of these tools only, by pattern (fs_*); none = of every tool."),
    ] = ()
    exempt_tools: Annotated[
        tuple[Name, ...],
        describe("[C] Never prune results of these, by pattern: a skill is instructions that hold until the end."),
    ] = ("skill",)


class CompactionSettings(SettingsGroup, frozen=True):
    """When older turns give way to a summary, how small the request must get, and what stays."""

    # ``goal_share`` must stay below ``trigger_share``, or a compaction that just reaches its goal triggers the next one
    # (settings_check). Minimum gain and goal together are invariant compaction-must-gain.

    enabled: Annotated[
        bool, describe("[H] Compact at all, also where it is asked for. Off: a request that is too big is refused.")
    ] = True
    auto: Annotated[
        bool, describe("[C] Compact, hide and clear for space unasked. Off: only by hand, or after an overflow.")
    ] = True
    trigger_share: Annotated[
        Share,
        describe(
            "[H] Compact when messages take more than this share of M: each compaction loses detail and breaks the "
            "cache, so it comes late."
        ),
    ] = 0.95
    cold_trigger_share: Annotated[
        Share,
        describe(
            "[H] The same where the cache is cold: the prefix is written anew anyway, and a shorter one is cheaper."
        ),
    ] = 0.70
    model_trigger_share: Annotated[
        Share,
        describe(
            "[H] The same where a model or a hook writes the summary, which takes time and may be rejected; 0 = as "
            "without."
        ),
    ] = 0.90
    goal_share: Annotated[
        Share,
        describe(
            "[H] Commit a compaction only if messages then take at most this share of M, 0 = any. What is left over "
            "the trigger would be compacted again at once."
        ),
    ] = 0.90
    min_gain_share: Annotated[
        Share,
        describe(
            "[H] And, where there is a goal, only if messages get smaller by this share: less does not pay for the "
            "broken cache."
        ),
    ] = 0.10
    min_gain_tokens: Annotated[
        Tokens, describe("[H] And by this many tokens, or that share of M where it is less.")
    ] = 2_000
    # A small tail with a large extract (``summary.share``) beats the reverse at every window. In replays of seven real
    # sessions at 64,000 tokens recall was .998 against .961, at the same cost.
    tail_share: Annotated[
        Share,
        describe(
            "[H] Keep the newest messages up to this share of M as they were said: the work in hand. What the tail "
            "takes the summary cannot have."
        ),
    ] = 0.15
    max_per_answer: Annotated[
        Count,
        describe(
            "[H] Compact by itself at most this often between two answers: what two could not make fit a third will "
            "not either."
        ),
    ] = 2
    breaker_failures: Annotated[
        Count,
        describe("[K] After this many failures in a row do not try by itself, 0 = always try: each costs a request."),
    ] = 3
    breaker_cooldown_seconds: Annotated[
        Seconds, describe("[H] But once more so long after the last of them: the cause may be gone by then.")
    ] = 600


class SummarySettings(SettingsGroup, frozen=True):
    """How large a summary may be, and what it is made of."""

    max_tokens: Annotated[
        Tokens,
        describe("[H] Cap of a summary in tokens, 0 = the shares below. Models wrote 1,000 to 4,200 when measured."),
    ] = 0
    share: Annotated[
        Share,
        describe(
            "[H] An extract with its ledger has at most this share of M; more where M is small, since what an agent "
            "needs grows more slowly than its window."
        ),
    ] = 0.33
    model_total_share: Annotated[
        Share, describe("[H] A model's summary, ledger and extract together have at most this share of M.")
    ] = 0.30
    model_max_tokens: Annotated[
        Tokens, describe("[H] Of that a model writes at most this: longer ones repeat what the extract quotes.")
    ] = 4_000
    model_max_share: Annotated[Share, describe("[H] And at most this share of M, for small windows.")] = 0.10
    user_share: Annotated[
        Share,
        describe(
            "[H] Share of the summary for the user's words: they are the task, and few are long enough to fill it."
        ),
    ] = 0.15


class RestoreSettings(SettingsGroup, frozen=True):
    """Skills and rules that are read from their source again behind a summary."""

    source_tokens: Annotated[Tokens, describe("[K] At most this of one of them: a longer one is cut.")] = 5_000
    total_tokens: Annotated[Tokens, describe("[K] And of all together.")] = 25_000
    max_share: Annotated[
        Share, describe("[H] But at most this share of M, so that in a small window they leave room for the summary.")
    ] = 0.10


class CacheSettings(SettingsGroup, frozen=True):
    """Where a request tells the provider to remember its prefix."""

    breakpoints: Annotated[
        Literal["none", "tail", "frontier"],
        describe(
            "[H] No breakpoints, one at the end, or one also where the last change was made: the next change behind "
            "it then leaves a cached prefix."
        ),
    ] = "frontier"
    breakpoint_interval_blocks: Annotated[
        Count,
        describe(
            "[H] Blocks between two breakpoints in new content, 0 = none: Anthropic looks back over 20 blocks only, "
            "and one turn of parallel calls can have more."
        ),
    ] = 15


class SummarizerSettings(SettingsGroup, frozen=True):
    """The request that asks a model for a summary."""

    result_chars: Annotated[
        Chars, describe("[C][P] Show the model this much of each result: it is told what happened, not every line.")
    ] = 2_000
    argument_chars: Annotated[
        Chars, describe("[H] And this much of each argument of a call, 0 = all: a written file is one argument.")
    ] = 2_000
    merge_mode: Annotated[
        Literal["merge", "fold"],
        describe(
            "[O] A history that does not fit one request is summarized in parts, which are merged at the end, or each "
            "on top of the one before (fold), which is slower and keeps order better."
        ),
    ] = "merge"
    min_tokens: Annotated[
        Tokens,
        describe("[H] Reject a summary of fewer tokens, or of half its source where that is less: it says nothing."),
    ] = 200
    max_identifiers: Annotated[
        Count, describe("[O] Names in the newest messages that a summary must keep word for word, 0 = none.")
    ] = 12
    focus_chars: Annotated[Chars, describe("[O] Pass on this much of the user's own instructions.")] = 800
    max_attempts: Annotated[Count, describe("[O] Attempts of one request where the provider fails.")] = 3
    retry_base_seconds: Annotated[Seconds, describe("[O] Wait before the second attempt, doubled each time.")] = 0.5
    retry_cap_seconds: Annotated[
        Seconds, describe("[O] But wait no longer than this: the user's request is waiting too.")
    ] = 5.0
    timeout_seconds: Annotated[
        Seconds, describe("[O] For all requests of one summary together; then an extract stands in its place.")
    ] = 180.0
    when_too_large: Annotated[
        Literal["extract", "stop"],
        describe(
            "[H] After an overflow, where the summary's own request is too large: an extract takes its place, or the "
            "run stops as [C] and [K] do. An extract needs no request."
        ),
    ] = "extract"


class RecoverySettings(SettingsGroup, frozen=True):
    """What is done about a request that the provider refused as too large."""

    enabled: Annotated[
        bool,
        describe(
            "[H] Send a request that was refused as too large again smaller, and one refused for a signature without "
            "it. Off: the error reaches the caller."
        ),
    ] = True
    max_compactions: Annotated[
        Count,
        describe(
            "[H] An overflow asks for a compaction up to so many since the last answer; [O] 3, [P] 1. After two, "
            "results and media are what is left."
        ),
    ] = 2
    steps: Annotated[
        tuple[Literal["compact", "truncate", "media", "fallback"], ...],
        describe("[H] The steps that may be tried, in their order; [O] compact and truncate, [P] compact alone."),
    ] = ("compact", "truncate", "media", "fallback")
    result_share: Annotated[
        Share,
        describe(
            "[H] The step truncate cuts each result to this share of M: no single one can then be what does not fit."
        ),
    ] = 0.30
    stops_at_rate_ceiling: Annotated[
        bool,
        describe(
            "[O] 2026.9: end the run where one request is over the provider's tokens a minute. [H] Off: a smaller "
            "request may pass."
        ),
    ] = False


class RetrySettings(SettingsGroup, frozen=True):
    """When the same bytes are sent again after a failure that may pass."""

    max_retries: Annotated[
        Count,
        describe(
            "[H] Retries between two answers; [P] 3, [K] 10. The eight waits of ours last a minute and a half together."
        ),
    ] = 8
    base_seconds: Annotated[
        Seconds,
        describe("[H] The first wait; each is twice the one before; [P][C] 2. A first retry should not be felt."),
    ] = 0.5
    cap_seconds: Annotated[Seconds, describe("[C] The longest wait of our own choice; [P] 60.")] = 30.0
    max_wait_seconds: Annotated[
        Seconds,
        describe("[H] Wait as long as a provider asks, up to this; where it asks for more, the run ends and says so."),
    ] = 300.0


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings of a policy by group. Use ``Policy.with_settings`` to change some; it checks them."""

    window: WindowSettings = WindowSettings()
    reserve: ReserveSettings = ReserveSettings()
    history: HistorySettings = HistorySettings()
    results: ResultSettings = ResultSettings()
    media: MediaSettings = MediaSettings()
    prune: PruneSettings = PruneSettings()
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    restore: RestoreSettings = RestoreSettings()
    cache: CacheSettings = CacheSettings()
    summarizer: SummarizerSettings = SummarizerSettings()
    recovery: RecoverySettings = RecoverySettings()
    retry: RetrySettings = RetrySettings()
