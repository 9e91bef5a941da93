"""The settings of our own policy in groups, each with the origin of its default and a reason.

The descriptions are data: docs/generate.py and ``holdfast policy show`` print them. Settings that only the policy of
another tool has are in its module in ``presets/``. The message budget is the window less the reserve less system prompt
and tools. A description begins with the origin of its number: ``[O]`` OpenClaw, ``[P]`` pi, ``[C]`` opencode, ``[K]``
Claude Code, ``[A]`` the pattern they have in common, ``[H]`` ours, tuned by replay.
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
            "[O] Use at most this much of the window, 0 = all of it. Larger requests cost more, and many models "
            "attend worse to their middle."
        ),
    ] = 0
    min_budget: Annotated[
        Tokens,
        describe(
            "[H] Refuse a window that leaves fewer tokens than this for messages: a task, one tool call and its "
            "result would not fit, and every step would compact."
        ),
    ] = 4_000
    # Measured by bench/estimator.py: the error of the estimator has a mean of 2.9 % over fifteen classes of content,
    # and a 95th percentile of 3 to 10 %.
    estimate_margin_share: Annotated[
        Share,
        describe(
            "[H] Add this share to the estimated part of a request, which no reported usage covers yet. An estimate "
            "that is too low ends in a refused request, one that is too high in an early compaction."
        ),
    ] = 0.055


class ReserveSettings(SettingsGroup, frozen=True):
    """The part of the window that is kept free for the answer."""

    floor: Annotated[
        Tokens,
        describe(
            "[A] Raise a smaller reserve.max to this, 0 = do not. An answer with thinking needs it. At most a quarter "
            "of the window, so that small windows stay usable."
        ),
    ] = 20_000
    max: Annotated[
        Tokens,
        describe(
            "[H] Keep at most this free, whatever output the caller allows. Clients ask for the model's maximum, "
            "which would take a third of some windows."
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
    """How many user turns are shown, for chats that never end."""

    max_turns: Annotated[
        Count,
        describe(
            "[O] Show at most this many user turns, 0 = all. Meant for chats; for agents compaction works better."
        ),
    ] = 0
    hysteresis: Annotated[
        bool,
        describe(
            "[H] When there are more turns, cut to half of the limit at once: cutting one turn with each request "
            "would break the prompt cache each time."
        ),
    ] = True
    channels: Annotated[
        dict[str, ChannelLimits],
        describe("[O] Limits by channel, for sessions whose key names one: group chats need fewer turns than others."),
    ] = {}


class ResultSettings(SettingsGroup, frozen=True):
    """When a new tool result, or a long text of the user, is spilled (stored, with a preview in its place)."""

    spill_chars: Annotated[
        Chars,
        describe(
            "[K] Spill results with more characters, 0 = never. They are usually logs and dumps, of which the "
            "model needs a part."
        ),
    ] = 50_000
    spill_share: Annotated[
        Share,
        describe(
            "[H] Also spill results over this share of the message budget, 0 = never. In a small window fewer "
            "characters are already too many."
        ),
    ] = 0.25
    spill_chars_by_tool: Annotated[
        dict[str, Chars],
        describe("[K] Limits in characters for single tools, 0 = never spill."),
    ] = {}
    spill_exempt_tools: Annotated[
        tuple[Name, ...],
        describe("[K] Tools whose results are never spilled: they page by themselves, and spilling them would loop."),
    ] = ("recall", "fetch_result")
    preview_chars: Annotated[
        Chars, describe("[K] Characters that the preview of a spilled text shows: enough to see what it is.")
    ] = 2_000
    preview_end_share: Annotated[
        Share,
        describe("[H] Share of the preview that shows the end of the text, where errors and totals are."),
    ] = 0.30
    outline_chars: Annotated[
        Chars,
        describe(
            "[H] Add an outline of the omitted part with at most this many characters, 0 = none. It lets the "
            "model recall the right lines instead of all."
        ),
    ] = 2_500
    append_chars: Annotated[
        Chars,
        describe(
            "[O] Cut longer texts to a preview when they are appended, 0 = never. It bounds an entry of the log; "
            "the full text is stored separately."
        ),
    ] = 8_000_000
    message_chars: Annotated[
        Chars,
        describe(
            "[K] When all results between two answers have more characters together, spill the largest of them, 0 "
            "= no limit. Parallel calls can fill a window with results that are small by themselves."
        ),
    ] = 200_000
    message_share: Annotated[
        Share,
        describe("[H] The same limit as a share of the message budget, 0 = none. The user's new texts count too."),
    ] = 0.50


class MediaSettings(SettingsGroup, frozen=True):
    """How many images and documents a request shows."""

    max_count: Annotated[
        Count, describe("[H] Show at most this many, newest first. 0 = as many as the API accepts.")
    ] = 0
    max_bytes: Annotated[
        Bytes, describe("[H] Show at most this many bytes of them. 0 = as many as the API accepts.")
    ] = 0


class PruneSettings(SettingsGroup, frozen=True):
    """When an old tool result becomes a one-line placeholder."""

    # docs/policies.md has the figures: with ``price`` cost .386 and recall .990, with ``space`` .392 and .978, against
    # .379 and .993 without both.
    when: Annotated[
        tuple[Literal["cold", "broken", "space", "price"], ...],
        describe(
            "[H] When to prune: cold = the cache is cold, broken = the cached prefix breaks anyway, space = "
            "before a compaction, price = as soon as it saves more than the broken cache costs; none = never. In "
            "replays the last two cost more and lost more facts."
        ),
    ] = ("cold", "broken")
    keep_tokens: Annotated[
        Tokens, describe("[H] Keep the newest results up to this many tokens, 0 = use keep_share.")
    ] = 0
    keep_share: Annotated[
        Share,
        describe("[H] Keep the newest results up to this share of the message budget: the current work needs them."),
    ] = 0.30
    min_tokens: Annotated[
        Tokens, describe("[C] Prune only if this frees more tokens: fewer are not worth a changed prefix.")
    ] = 20_000
    min_share: Annotated[
        Share,
        describe(
            "[H] The same as a share of the message budget; the smaller of the two counts. 20,000 tokens may be "
            "all of a small budget."
        ),
    ] = 0.20
    tools: Annotated[
        tuple[Name, ...],
        describe("[O][K] Prune only results of tools that match these patterns (fs_*), none = of all tools."),
    ] = ()
    exempt_tools: Annotated[
        tuple[Name, ...],
        describe(
            "[C] Never prune results of tools that match these patterns: a skill contains instructions that hold "
            "until the end."
        ),
    ] = ("skill",)


class CompactionSettings(SettingsGroup, frozen=True):
    """When a summary replaces older turns, how small the request must get, and what is kept."""

    # ``goal_share`` must stay below ``trigger_share``, or a compaction that just reaches its goal triggers the next one
    # (settings_check). Minimum gain and goal together make the invariant
    # compaction-must-gain (docs/invariants.md).

    enabled: Annotated[
        bool, describe("[H] Allow compactions, also manual ones. Off: a request that is too large is refused.")
    ] = True
    auto: Annotated[
        bool,
        describe(
            "[C] Compact, hide and clear automatically when space runs out. Off: only by hand or after an overflow."
        ),
    ] = True
    trigger_share: Annotated[
        Share,
        describe(
            "[H] Compact when messages take more than this share of the message budget. Late, because each "
            "compaction loses detail and breaks the cache. In large windows large_trigger_share counts."
        ),
    ] = 0.95
    # Replays of nine sessions at 200,000 tokens recalled .9948 of their facts for .607 of the cost of append-only with
    # .95, .9941 for .523 with .60, .9931 for .490 with .50.
    large_trigger_share: Annotated[
        Share,
        describe(
            "[H] The same for message budgets of 160,000 tokens and more, if it is less; from 60,000 on the share "
            "falls towards it. An agent needs little of what is so far back, and every request pays for it."
        ),
    ] = 0.60
    cold_trigger_share: Annotated[
        Share,
        describe(
            "[H] At most this share with a cold cache: the prefix must be written anew anyway, and a shorter one is "
            "cheaper."
        ),
    ] = 0.70
    model_trigger_share: Annotated[
        Share,
        describe(
            "[H] At most this share when a model or a hook writes the summary, which takes time and may fail; 0 = as "
            "without one."
        ),
    ] = 0.90
    goal_share: Annotated[
        Share,
        describe(
            "[H] Commit a compaction only if messages then take at most this share of the message budget, and no more "
            "than the trigger; 0 = any. What stays over the trigger would be compacted again at once."
        ),
    ] = 0.90
    min_gain_share: Annotated[
        Share,
        describe(
            "[H] With a goal, also require that messages shrink by this share: less does not pay for the broken cache."
        ),
    ] = 0.10
    min_gain_tokens: Annotated[
        Tokens, describe("[H] And by this many tokens, or by that share of the message budget if it is less.")
    ] = 2_000
    # A small tail with a large extract (``summary.max_share``) beats the reverse at every window. In replays of seven
    # real sessions at 64,000 tokens recall was .998 against .961, at the same cost.
    tail_share: Annotated[
        Share,
        describe(
            "[H] Keep the newest messages unchanged up to this share of the message budget: the current work. The "
            "more the tail takes, the less is left for the summary."
        ),
    ] = 0.06
    max_per_answer: Annotated[
        Count,
        describe(
            "[H] Compact automatically at most this often between two answers: what two compactions cannot make "
            "fit, a third cannot either."
        ),
    ] = 2
    breaker_failures: Annotated[
        Count,
        describe(
            "[K] Stop automatic attempts after this many failures in a row, 0 = never stop: each attempt costs a "
            "request."
        ),
    ] = 3
    breaker_cooldown_seconds: Annotated[
        Seconds, describe("[H] Then try once more after this many seconds: the cause may be gone.")
    ] = 600


class SummarySettings(SettingsGroup, frozen=True):
    """How large a summary may be and what it consists of."""

    max_tokens: Annotated[
        Tokens,
        describe(
            "[H] Upper limit of a summary, 0 = use the shares below. Models wrote 1,000 to 4,200 tokens when measured."
        ),
    ] = 0
    share: Annotated[
        Share,
        describe(
            "[H] Size of an extract without its quoted lines, as a share of the message budget: its sections get their "
            "shares of this, and the user's words may fill it."
        ),
    ] = 0.33
    # Long sessions need many lines again and short ones few: on those of agentv recall at 64,000 tokens was .937 with
    # this against .915 with .33, and no more expensive.
    max_share: Annotated[
        Share,
        describe(
            "[H] Largest extract with quoted lines, as a share of the message budget; it grows more slowly beyond a "
            "budget of 40,000. Only lines that are worth their tokens are quoted, so most are smaller."
        ),
    ] = 0.85
    model_total_share: Annotated[
        Share,
        describe(
            "[H] Largest total of a model's summary, the ledger and the extract, as a share of the message budget."
        ),
    ] = 0.30
    model_max_tokens: Annotated[
        Tokens, describe("[H] Largest part of it that a model writes: longer ones repeat what the extract quotes.")
    ] = 4_000
    model_max_share: Annotated[Share, describe("[H] The same as a share of the message budget, for small windows.")] = (
        0.10
    )
    user_share: Annotated[
        Share,
        describe(
            "[H] Share of the summary for the user's messages. They are the task, and few are long enough to fill it."
        ),
    ] = 0.15
    supplement: Annotated[
        bool,
        describe(
            "[H] Quote beside a model's summary what it leaves out: the user's words, files, commands and lines that "
            "are likely to be needed. Off: only the user's newest words, if the summary hides them."
        ),
    ] = True


class RestoreSettings(SettingsGroup, frozen=True):
    """Skills and rules that are read again from their source and shown after a summary."""

    source_tokens: Annotated[Tokens, describe("[K] Largest size of one of them: longer ones are cut.")] = 5_000
    total_tokens: Annotated[Tokens, describe("[K] Largest size of all together.")] = 25_000
    max_share: Annotated[
        Share,
        describe(
            "[H] The same as a share of the message budget, so that in a small window they leave room for the summary."
        ),
    ] = 0.10


class CacheSettings(SettingsGroup, frozen=True):
    """Where a request tells the provider to cache its prefix."""

    breakpoints: Annotated[
        Literal["none", "tail", "frontier"],
        describe(
            "[H] none = no breakpoints, tail = one at the end, frontier = also one at the newest change, so that "
            "the next change after it still finds a cached prefix."
        ),
    ] = "frontier"
    breakpoint_interval_blocks: Annotated[
        Count,
        describe(
            "[H] Blocks between two breakpoints in new content, 0 = no further ones. Anthropic looks back over 20 "
            "blocks only, and one turn of parallel calls can have more."
        ),
    ] = 15


class SummarizerSettings(SettingsGroup, frozen=True):
    """The request that asks a model for a summary."""

    result_chars: Annotated[
        Chars,
        describe(
            "[C][P] Characters of each result that the model sees: it needs to know what happened, not every line."
        ),
    ] = 2_000
    argument_chars: Annotated[
        Chars,
        describe("[H] Characters of each call argument that the model sees, 0 = all: a written file is one argument."),
    ] = 2_000
    merge_mode: Annotated[
        Literal["merge", "fold"],
        describe(
            "[O] How to summarize a history that does not fit one request: merge = in parts that are merged at "
            "the end, fold = each part on top of the summary before, which is slower and keeps order better."
        ),
    ] = "merge"
    min_tokens: Annotated[
        Tokens,
        describe(
            "[H] Reject summaries with fewer tokens, or with less than half of their source if that is less: they "
            "say nothing."
        ),
    ] = 200
    max_identifiers: Annotated[
        Count, describe("[O] Number of names in the newest messages that a summary must keep word for word, 0 = none.")
    ] = 12
    focus_chars: Annotated[Chars, describe("[O] Characters of the user's own instructions that are passed on.")] = 800
    max_attempts: Annotated[Count, describe("[O] Attempts of one request when the provider fails.")] = 3
    retry_base_seconds: Annotated[Seconds, describe("[O] Wait before the second attempt; it doubles each time.")] = 0.5
    retry_cap_seconds: Annotated[Seconds, describe("[O] Longest wait: the user's request is waiting too.")] = 5.0
    timeout_seconds: Annotated[
        Seconds, describe("[O] Time for all requests of one summary; after that an extract replaces it.")
    ] = 180.0
    when_too_large: Annotated[
        Literal["extract", "stop"],
        describe(
            "[H] After an overflow, if the summary request itself is too large: extract = an extract replaces the "
            "summary, which needs no request; stop = the run ends, as in opencode and Claude Code."
        ),
    ] = "extract"


class RecoverySettings(SettingsGroup, frozen=True):
    """What happens after the provider refuses a request as too large."""

    enabled: Annotated[
        bool,
        describe(
            "[H] Send a request that was refused as too large again, smaller, and one refused for a signature "
            "again without it. Off: the error reaches the caller."
        ),
    ] = True
    max_compactions: Annotated[
        Count,
        describe(
            "[H] Compactions after overflows between two answers (OpenClaw 3, pi 1). After two, only results and "
            "media are left to cut."
        ),
    ] = 2
    steps: Annotated[
        tuple[Literal["compact", "truncate", "media", "fallback"], ...],
        describe("[H] The steps that may be tried, in their order (OpenClaw: compact and truncate, pi: compact)."),
    ] = ("compact", "truncate", "media", "fallback")
    result_share: Annotated[
        Share,
        describe(
            "[H] The step truncate cuts each result to this share of the message budget, so that no single result "
            "can be too large."
        ),
    ] = 0.30
    stops_at_rate_ceiling: Annotated[
        bool,
        describe(
            "[O] 2026.9: end the run if one request is over the provider's tokens a minute. Off in Holdfast, "
            "because a smaller request may pass."
        ),
    ] = False


class RetrySettings(SettingsGroup, frozen=True):
    """When the same bytes are sent again after a temporary failure."""

    max_retries: Annotated[
        Count,
        describe(
            "[H] Retries between two answers (pi 3, Claude Code 10). Our eight waits take a minute and a half together."
        ),
    ] = 8
    base_seconds: Annotated[
        Seconds,
        describe(
            "[H] The first wait; each is twice the one before (pi and opencode 2). A first retry should not be noticed."
        ),
    ] = 0.5
    cap_seconds: Annotated[Seconds, describe("[C] The longest wait that we choose ourselves (pi 60).")] = 30.0
    max_wait_seconds: Annotated[
        Seconds,
        describe(
            "[H] Longest wait that a provider may ask for; if it asks for more, the run ends with an error that "
            "says so."
        ),
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
