"""Every number of every policy, with its origin.

The defaults are Holdfast's own preset; ``presets.py`` changes some of them. ``M`` is the *room*: window less reserve
less frame. Origins: ``[O]`` OpenClaw, ``[P]`` pi, ``[C]`` opencode, ``[K]`` Claude Code, ``[H]`` ours, tuned by replay.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, get_type_hints

from msgspec import Meta, Struct


def _describe_origin(text: str) -> Meta:
    return Meta(description=text)


class UserLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one user of a channel gets in direct messages; nothing said is the channel's own limit."""

    history_limit: int | None = None


class ChannelLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """User turns that sessions of one channel show, by kind; 0 is all of them, nothing said is no limit."""

    history_limit: int | None = None
    """In channels and groups."""
    dm_history_limit: int | None = None
    """In direct messages."""
    dms: dict[str, UserLimits] = {}
    """Users with a limit of their own."""


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The numbers of one policy. Sizes are tokens unless the name says ``chars``."""

    # -- the window ----------------------------------------------------------------------------------------------
    window_min: Annotated[int, _describe_origin("[O] refuse smaller windows; 0 = only the floor is checked")] = 0
    window_warn: Annotated[int, _describe_origin("[O] warn below this window")] = 0
    window_min_share: Annotated[
        float, _describe_origin("[O] 2026.9: or under this share of the window before the cap")
    ] = 0.0
    window_warn_share: Annotated[float, _describe_origin("[O] 2026.9: the same for the warning")] = 0.0
    window_cap: Annotated[int, _describe_origin("[O] use no more of a window than this; 0 = all of it")] = 0
    reserve_floor: Annotated[
        int,
        _describe_origin("[A] a lower reserve is raised to this, [H] but to a quarter of the window at most; 0 = none"),
    ] = 20_000
    reserve_max: Annotated[int, _describe_origin("[H] tokens kept free for an answer, at most")] = 20_000
    reserve_share: Annotated[float, _describe_origin("[H] the reserve is at most a quarter of the window")] = 0.25
    reserve_min: Annotated[int, _describe_origin("[H] an answer needs at least this much")] = 1_024
    room_min: Annotated[int, _describe_origin("[H] under this room nothing useful fits")] = 4_000

    # -- history limit -------------------------------------------------------------------------------------------
    history_turns: Annotated[int, _describe_origin("[O] user turns shown; 0 = all")] = 0
    history_hysteresis: Annotated[bool, _describe_origin("[H] when over, cut to half in one step")] = True
    channels: Annotated[
        dict[str, ChannelLimits], _describe_origin("[O] user turns shown by channel, for sessions with its key")
    ] = {}

    # -- tool results at creation --------------------------------------------------------------------------------
    spill_chars: Annotated[int, _describe_origin("[K] results over 50,000 characters are spilled; 0 = never")] = 50_000
    spill_share: Annotated[float, _describe_origin("[H] or over this share of M in tokens; 0 = not looked at")] = 0.25
    preview_chars: Annotated[int, _describe_origin("[K] first 2,000 characters are shown")] = 2_000
    preview_tail: Annotated[float, _describe_origin("[H] share of the preview that shows the end")] = 0.30
    preview_outline: Annotated[
        int, _describe_origin("[H] characters of an outline of what a preview leaves out; 0 = none")
    ] = 2_500
    preview_outline_share: Annotated[
        float, _describe_origin("[H] or characters for each token of M, if that is less")
    ] = 0.08
    spill_tools: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        _describe_origin("[K] tools with a limit of their own; 0 = never spilled"),
    ] = {}
    spill_exempt: Annotated[tuple[str, ...], _describe_origin("[K] tools that page themselves")] = (
        "recall",
        "fetch_result",
    )
    append_chars: Annotated[
        int, _describe_origin("[O] cut longer texts when appended, [H] to a preview; 0 = never")
    ] = 8_000_000
    message_chars: Annotated[
        int, _describe_origin("[K] results of one message together, where any are spilled; 0 = unlimited")
    ] = 200_000
    message_share: Annotated[float, _describe_origin("[H] or this share of M in tokens; 0 = not looked at")] = 0.50

    # -- tool results cut where they arrive ----------------------------------------------------------------------
    output_lines: Annotated[int, _describe_origin("[C][P] a result shows 2,000 whole lines; 0 = all")] = 0
    output_bytes: Annotated[int, _describe_origin("[C][P] and 51,200 bytes; 0 = all")] = 0
    output_tail: Annotated[tuple[str, ...], _describe_origin("[P] tools whose output shows its end: bash")] = ()

    # -- media ---------------------------------------------------------------------------------------------------
    media_most: Annotated[int, _describe_origin("[H] images and documents a request; 0 = what the API takes")] = 0
    media_bytes: Annotated[int, _describe_origin("[H] and their bytes; 0 = what the API takes")] = 0

    # -- prune ---------------------------------------------------------------------------------------------------
    prune: Annotated[
        Literal["off", "epoch", "opencode", "idle", "ttl"], _describe_origin("whose rule clears old results")
    ] = "epoch"
    prune_when: Annotated[
        tuple[Literal["cold", "broken", "space", "price"], ...],
        _describe_origin(
            "[H] ours only: the cache is cold, the prefix breaks anyway, before compacting, or where it pays"
        ),
    ] = ("cold", "broken")
    prune_requests: Annotated[int, _describe_origin("[H] requests to come that a price is reckoned for, at least")] = 10
    prune_keep: Annotated[int, _describe_origin("[C] newest 40,000 tokens of results are safe; 0 = use the share")] = 0
    prune_keep_share: Annotated[float, _describe_origin("[H] newest share of M in results that is safe")] = 0.30
    prune_minimum: Annotated[int, _describe_origin("[C] clear only if more than 20,000 go")] = 20_000
    prune_minimum_share: Annotated[float, _describe_origin("[H] or this share of M, whichever is smaller")] = 0.20
    prune_keep_results: Annotated[int, _describe_origin("[K] newest results kept when the cache is cold")] = 5
    prune_idle: Annotated[int, _describe_origin("[K] seconds after which the cache is surely cold")] = 3_600
    prune_soft_share: Annotated[float, _describe_origin("[O] trim long results from this share of the window on")] = 0.3
    prune_hard_share: Annotated[float, _describe_origin("[O] clear results from this share of the window on")] = 0.5
    prune_trim_chars: Annotated[int, _describe_origin("[O] a trimmed result keeps this much of each end")] = 1_500
    prune_trim_over: Annotated[int, _describe_origin("[O] only results longer than this are trimmed")] = 4_000
    prune_hard_chars: Annotated[int, _describe_origin("[O] clear only where at least this many characters may go")] = (
        50_000
    )
    prune_keep_answers: Annotated[
        int, _describe_origin("[O] nothing behind the third answer from the end is touched")
    ] = 3
    prune_exempt: Annotated[tuple[str, ...], _describe_origin("[C] tools whose results are never cleared")] = ("skill",)
    prune_ttl: Annotated[int, _describe_origin("[O] seconds after which the cache counts as cold")] = 300
    prune_tools: Annotated[
        tuple[str, ...], _describe_origin("[O][K] prune results of these tools only; none = of all")
    ] = ()
    prune_spared: Annotated[tuple[str, ...], _describe_origin("[O] and of these never")] = ()
    image_turns: Annotated[
        int,
        _describe_origin("[O] answered turns whose images stay: 0 in 2026.3, 3 in 2026.9; -1 = images never go by age"),
    ] = -1

    # -- results under pressure ----------------------------------------------------------------------------------
    truncate_share: Annotated[float, _describe_origin("[O] cut results over this share of the window; 0 = never")] = 0.0
    truncate_most: Annotated[int, _describe_origin("[O] or over this many weighted characters; 0 = any number")] = (
        400_000
    )
    truncate_steps: Annotated[
        tuple[tuple[int, int], ...], _describe_origin("[O] 2026.9: or over so many from windows of this size on")
    ] = ()
    truncate_together: Annotated[
        int, _describe_origin("[O] all results: this many times the limit of one; 2026.9: 4")
    ] = 1
    truncate_together_share: Annotated[float, _describe_origin("[O] 2026.9: or this share of the window")] = 0.0
    pressure_share: Annotated[
        float, _describe_origin("[H] after an overflow to this share of M, where no limit is set")
    ] = 0.30
    pressure_least: Annotated[int, _describe_origin("[H] but never under so many weighted characters")] = 500
    loop_share: Annotated[
        float, _describe_origin("[O] 2026.3: clear results over this share of the window; 0 = not")
    ] = 0.0
    loop_one_share: Annotated[float, _describe_origin("[O] 2026.3: and cut a result over this share of the window")] = (
        0.5
    )
    precheck: Annotated[
        bool, _describe_origin("[O] 2026.9: cut results instead of compacting where that is enough")
    ] = False

    # -- when to compact -----------------------------------------------------------------------------------------
    auto: Annotated[bool, _describe_origin("[C] off: nothing is compacted, hidden or cleared for space unasked")] = True
    compact: Annotated[
        Literal["off", "slide", "summary"], _describe_origin("what happens when a request is too big")
    ] = "summary"
    measure: Annotated[Literal["request", "usage+chars", "usage"], _describe_origin("what the trigger looks at")] = (
        "request"
    )
    chars_per_token: Annotated[int, _describe_origin("[P] where characters are counted, 4 for a token; [K] 3")] = 4
    trigger_share: Annotated[
        float, _describe_origin("[H] compact over F + this share of M; 0 = use trigger_reserve")
    ] = 0.95
    trigger_cold_share: Annotated[
        float, _describe_origin("[H] the same where the cache is cold: the prefix is written anyway")
    ] = 0.70
    trigger_written_share: Annotated[
        float,
        _describe_origin(
            "[H] the same where somebody writes the summary, which takes time and may be refused; 0 = no other"
        ),
    ] = 0.90
    trigger_rule: Annotated[
        Literal["reserve", "usable", "smaller"],
        _describe_origin(
            "how the next three count: [P][O][K] both go from the window; [C] the larger, or of an input limit"
        ),
    ] = "reserve"
    trigger_reserve: Annotated[int, _describe_origin("[P] or over window − this; see trigger_output")] = 0
    trigger_reserve_share: Annotated[
        float, _describe_origin("[O] but at most this share of the window; 0 = no cap")
    ] = 0.0
    trigger_output: Annotated[int, _describe_origin("[C][K] and less the model's output, at most this; 0 = not")] = 0
    trigger_inclusive: Annotated[bool, _describe_origin("[C] compacts at the limit, the others above it")] = False
    margin: Annotated[float, _describe_origin("[H] error of the estimate of what no usage covers yet")] = 0.055
    compactions_most: Annotated[int, _describe_origin("[H] automatic compactions between two answers")] = 2
    breaker_failures: Annotated[
        int, _describe_origin("[K] failures in a row after which none is tried; 0 = none stops it")
    ] = 3
    breaker_cooldown: Annotated[int, _describe_origin("[H] and one again so many seconds after the last of them")] = 600
    goal_share: Annotated[
        float, _describe_origin("[H] commit only if the request is then under F + this share of M; 0 = always")
    ] = 0.90
    gain_share: Annotated[float, _describe_origin("[H] and, where there is a goal, at least this share smaller")] = 0.10
    gain_tokens: Annotated[int, _describe_origin("[H] and by this many tokens, or a tenth of M")] = 2_000

    # -- what to keep --------------------------------------------------------------------------------------------
    tail: Annotated[Literal["share", "tokens", "turns", "none"], _describe_origin("how the kept tail is chosen")] = (
        "share"
    )
    tail_share: Annotated[float, _describe_origin("[H] tail of at most this share of M")] = 0.15
    tail_tokens: Annotated[int, _describe_origin("[P] 20,000; [C] at most 8,000")] = 20_000
    tail_tokens_min: Annotated[int, _describe_origin("[C] at least 2,000")] = 2_000
    tail_turns: Annotated[int, _describe_origin("[C] last two turns")] = 2
    tail_usable_share: Annotated[
        float, _describe_origin("[C] a quarter of usable, clamped; 0 = tail_tokens as it is")
    ] = 0.25

    # -- the summary ---------------------------------------------------------------------------------------------
    summary_tokens: Annotated[
        int, _describe_origin("cap where a model writes it (measured: 1.0k to 4.2k); 0 = share")
    ] = 0
    summary_share: Annotated[float, _describe_origin("[H] summary, ledger and extract together, of M")] = 0.33
    summary_small_room: Annotated[int, _describe_origin("[H] rooms up to this give the larger share")] = 14_000
    summary_large_room: Annotated[
        int, _describe_origin("[H] rooms from this on the smaller; between them it falls evenly")
    ] = 23_000
    summary_share_small: Annotated[float, _describe_origin("[H] the same where the room is small")] = 0.80
    summary_written_share: Annotated[
        float, _describe_origin("[H] a written summary, ledger and extract together, of M; summary_tokens goes before")
    ] = 0.30
    summary_model_tokens: Annotated[int, _describe_origin("[H] of that a model writes at most so many tokens")] = 4_000
    summary_model_share: Annotated[float, _describe_origin("[H] and at most this share of M")] = 0.10
    summary_user_share: Annotated[float, _describe_origin("[H] of the summary, for the user's words")] = 0.15
    summary_ledger_share: Annotated[float, _describe_origin("[H] of the summary, for files and commands")] = 0.11
    summary_decision_share: Annotated[float, _describe_origin("[H] of the summary, for decisions")] = 0.03
    summary_index_share: Annotated[
        float, _describe_origin("[H] of the summary, for pointers to results worth reading again")
    ] = 0.07
    replay_pays_summaries: Annotated[
        bool, _describe_origin("replay charges for the call of a model that writes it")
    ] = False
    restore_files: Annotated[int, _describe_origin("[K] files read again behind the summary")] = 0
    restore_tokens: Annotated[int, _describe_origin("[K] each at most this long; a longer one is only named")] = 5_000

    # -- cache breakpoints ---------------------------------------------------------------------------------------
    markers: Annotated[
        Literal["none", "tail", "frontier"], _describe_origin("[H] none, tail alone, or the mutation frontier too")
    ] = "frontier"
    markers_every: Annotated[
        int, _describe_origin("[H] blocks between two in what is new, where the provider looks back over 20; 0 = not")
    ] = 15

    # -- the summary call ----------------------------------------------------------------------------------------
    summary_result_chars: Annotated[int, _describe_origin("[C][P] characters of a result that the writer sees")] = 2_000
    summary_argument_chars: Annotated[int, _describe_origin("[H] and of one argument of a call; 0 = all")] = 2_000
    summary_stages: Annotated[
        Literal["merge", "fold"],
        _describe_origin("[O] parts are summarised apart and merged, or each on top of the one before"),
    ] = "merge"
    summary_safety: Annotated[float, _describe_origin("[O] what the writer reads counts for this much more")] = 1.2
    summary_overhead: Annotated[
        int, _describe_origin("[O] tokens of its window left to the instructions, [H] but at most an eighth")
    ] = 4_096
    summary_spare: Annotated[
        int,
        _describe_origin(
            "[H] output asked for beside the summary, since models think; at most an eighth of the window"
        ),
    ] = 4_096
    summary_least: Annotated[
        int, _describe_origin("[H] a summary has this many tokens, or half of what it is made from")
    ] = 200
    summary_identifiers: Annotated[
        int, _describe_origin("[O] identifiers of the newest messages it must keep; 0 = none")
    ] = 12
    summary_newest: Annotated[int, _describe_origin("[O] messages that count as the newest")] = 10
    summary_reminders: Annotated[
        int, _describe_origin("[O] requests that give the reasons why the last was refused")
    ] = 1
    summary_focus_chars: Annotated[int, _describe_origin("[O] characters of the user's own instructions")] = 800
    summary_tries: Annotated[int, _describe_origin("[O] tries of one request where the provider fails")] = 3
    summary_wait_least: Annotated[float, _describe_origin("[O] seconds before the second, doubled each time")] = 0.5
    summary_wait_most: Annotated[float, _describe_origin("[O] but at most")] = 5.0
    summary_deadline: Annotated[float, _describe_origin("[O] seconds for all requests of one summary together")] = 180.0
    restore_source_tokens: Annotated[
        int, _describe_origin("[K] tokens of one skill, or of the rules, behind a summary")
    ] = 5_000
    restore_sources_together: Annotated[int, _describe_origin("[K] and of all of them together")] = 25_000
    restore_share: Annotated[float, _describe_origin("[H] but at most this share of M")] = 0.10

    # -- recovery ------------------------------------------------------------------------------------------------
    emergency: Annotated[
        bool,
        _describe_origin(
            "[H] requests refused as too large go out again smaller, those refused for seals without these"
        ),
    ] = True
    recovery_compactions: Annotated[
        int,
        _describe_origin(
            "[H] compactions since the last answer up to which an overflow asks for one more; [O] 3, [P] 1"
        ),
    ] = 2
    recovery_rungs: Annotated[
        tuple[Literal["compact", "truncate", "media", "fallback"], ...],
        _describe_origin("[H] what an overflow may try; [O] compact and truncate, [P] compact alone"),
    ] = ("compact", "truncate", "media", "fallback")
    overflow_replay: Annotated[
        bool,
        _describe_origin(
            "[C] a compaction after an overflow keeps the user's newest message, less its media, and what follows"
        ),
    ] = False
    auto_continue: Annotated[
        bool,
        _describe_origin("[C] an automatic compaction that cuts a turn ends with a sentence to go on; a hook says no"),
    ] = False
    summary_overflow: Annotated[
        Literal["extract", "stop"],
        _describe_origin(
            "[H] after an overflow, where the summary's own request is too large: an extract; [C] the run stops"
        ),
    ] = "extract"
    tpm_terminal: Annotated[bool, _describe_origin("[O] 2026.9: a request over the limit of a minute ends the run")] = (
        False
    )
    retries_most: Annotated[int, _describe_origin("[H] the same bytes again, between two answers; [P] 3, [K] 10")] = 8
    retry_base: Annotated[
        float, _describe_origin("[H] seconds of the first wait; each is twice the last; [P][C] 2")
    ] = 0.5
    retry_cap: Annotated[float, _describe_origin("[C] seconds of the longest wait of our own; [P] 60")] = 30.0
    retry_wait_most: Annotated[
        float, _describe_origin("[H] seconds that a provider may ask for; where it wants more, the run ends")
    ] = 300.0


def get_setting_origin(name: str) -> str:
    """Return where the number behind setting ``name`` came from."""
    return read_setting_origins()[name]


@cache
def read_setting_origins() -> dict[str, str]:
    """Return the origin of each setting by its name; the annotations of all are evaluated at once, which takes 8 ms."""
    return {
        name: next((meta.description or "" for meta in hint.__metadata__ if isinstance(meta, Meta)), "")
        for name, hint in get_type_hints(Settings, include_extras=True).items()
    }


# -- constants of the extract: fitted or measured once, the same for every policy --------------------------------------

MAX_SCANNED_TOKENS = 160_000
"""Estimator tokens of the head that are searched for lines: nine of ten references that were needed again had last
stood within 30,000 (4,750 measured), so this is generous, and it bounds what a compaction costs."""
MIN_SUMMARY_SHARE = 0.10
"""Share of the room under which an extract holds too little to be worth a compaction."""
SUMMARY_SLACK_SHARE = 0.01
"""Share of the room by which an extract may miss its budget."""
MAX_QUOTED_LINE_CHARS = 130
"""Characters of a quoted line; a longer one is cut into pieces. Evidence needs some four words around a name."""
MAX_OUTLINE_LINE_CHARS = 110
"""Characters of a line in the outline of a preview; the rest can be read back."""
MAX_OUTLINE_SCAN_CHARS, OUTLINE_SAMPLES = 1_000_000, 16
"""Characters of a text that an outline looks at, and at how many places where the text is longer. [H] A million cost
some 0.2 s and 30 MB."""
MAX_JSON_CHARS = 8_000_000
"""Characters up to which a text beyond ASCII, which must be encoded for it, is tried as JSON. [H]"""
RECALL_POINTER_CHARS = 50_000
"""Characters of a result that one pointer stands for: what a single recall shows at most."""
HANDLE_CHARS = 12
"""Characters of a blob's hash that name it to the model: 48 bits, ambiguous once in millions of blobs."""
MAX_SMALL_TEXT_CHARS = 4_000
"""Characters up to which a spilled text leaves a line and no preview, which would be hardly shorter."""
MIN_REPLACEABLE_CHARS = 400
"""A text shorter than this gains nothing by giving way to a line about itself."""
MAX_COMMAND_CHARS = 160
"""A command is told in this many characters; longer ones are scripts whose text stands in the log."""

AGE_DECAY_EXPONENT, IDLE_DECAY_EXPONENT = 0.65, 0.2
"""How fast a reference loses weight with the thousands of tokens since it last stood, and was last used: rounded from
a logistic fit over some 90,000 references of three recorded sessions, each judged by the fit to the other two."""
UNUSED_IDLE_KTOKENS = 40
"""Thousands of tokens since the last use that a reference which was never used counts for."""
SINGLE_USE_WEIGHT = 0.4
"""Weight of a reference that stood in one message only, in the agent's own: it is often spent."""
LIST_ITEM_WEIGHT = 2.0
"""Weight of what stood in a list of points (a plan, a to-do, a requirement): needed about twice as often."""
REFERENCE_KIND_WEIGHTS = {"number": 0.3, "hex": 0.05, "url": 0.8, "file": 1.4, "kebab": 1.2}
"""Weight by kind, 1.0 for the others: numbers and hashes are rarely used twice."""
