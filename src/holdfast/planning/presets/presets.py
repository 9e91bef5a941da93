"""The policies people know, as settings; the number behind each word is in ``settings.py`` or beside it here."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.planning.settings import Settings

_BARE_SETTINGS = Settings(
    reserve_floor=0,
    room_min=0,
    history_hysteresis=False,
    spill_chars=0,
    spill_share=0.0,
    message_chars=0,
    message_share=0.0,
    preview_outline=0,
    append_chars=0,
    media_most=0,
    media_bytes=0,
    compactions_most=1_000,
    breaker_failures=0,
    prune="off",
    markers="tail",
    goal_share=0.0,
    gain_share=0.0,
    gain_tokens=0,
    margin=0.0,
)
"""No mechanism at all: what the presets start from."""

_CLEARED_TOOLS = ("Read", "Bash", "PowerShell", "Grep", "Glob", "WebSearch", "WebFetch", "Edit", "Write")
"""Tools whose old results Claude Code clears. [K]"""

PRESETS: dict[str, Settings] = {
    "append-only": replace(_BARE_SETTINGS, compact="off", recovery_rungs=()),
    "sliding": replace(_BARE_SETTINGS, compact="slide", margin=0.05),
    "opencode": replace(
        _BARE_SETTINGS,
        markers="frontier",
        measure="usage",
        trigger_share=0.0,
        trigger_rule="usable",
        trigger_output=32_000,
        trigger_inclusive=True,
        tail="turns",
        tail_tokens=8_000,
        summary_tokens=3_000,
        replay_pays_summaries=True,
        output_lines=2_000,
        output_bytes=51_200,
        prune_keep=40_000,
        prune_minimum=20_000,
        retry_base=2.0,
        overflow_replay=True,
        auto_continue=True,
        summary_overflow="stop",
    ),
    "pi": replace(
        _BARE_SETTINGS,
        markers="frontier",
        measure="usage+chars",
        trigger_share=0.0,
        trigger_reserve=16_384,
        tail="tokens",
        tail_tokens=20_000,
        summary_tokens=3_000,
        replay_pays_summaries=True,
        output_lines=2_000,
        output_bytes=51_200,
        output_tail=("bash",),
        recovery_compactions=1,
        recovery_rungs=("compact",),
        retries_most=3,
        retry_base=2.0,
        retry_cap=60.0,
    ),
    "claude-code": replace(
        _BARE_SETTINGS,
        markers="frontier",
        measure="usage+chars",
        trigger_share=0.0,
        chars_per_token=3,
        trigger_reserve=13_000,
        trigger_output=20_000,
        breaker_failures=3,
        tail="none",
        summary_tokens=4_000,
        replay_pays_summaries=True,
        restore_files=5,
        restore_tokens=5_000,
        prune="idle",
        prune_tools=_CLEARED_TOOLS,
        spill_chars=50_000,
        spill_exempt=("recall", "fetch_result", "Read"),
        preview_tail=0.0,
        message_chars=200_000,
        overflow_replay=True,
        auto_continue=True,
        summary_overflow="stop",
    ),
    "openclaw": replace(
        _BARE_SETTINGS,
        markers="frontier",
        window_min=16_000,
        window_warn=32_000,
        append_chars=400_000,
        measure="usage+chars",
        trigger_share=0.0,
        reserve_floor=20_000,
        trigger_reserve=16_384,
        trigger_reserve_share=0.25,
        tail="tokens",
        tail_tokens=20_000,
        summary_tokens=4_000,
        replay_pays_summaries=True,
        prune="ttl",
        prune_exempt=(),
        image_turns=0,
        truncate_share=0.3,
        loop_share=0.75,
        recovery_compactions=3,
        recovery_rungs=("compact", "truncate"),
        retries_most=31,
    ),
    "holdfast": Settings(),
}

OPENCODE_2: dict[str, Any] = {
    "measure": "usage+chars",
    "trigger_rule": "smaller",
    "trigger_reserve": 20_000,
    "compactions_most": 1,
}
"""When opencode 2 compacts: ``Policy.preset("opencode").with_settings(**OPENCODE_2)``; not twice between answers."""

OPENCLAW_2026_9: dict[str, Any] = {
    "window_min": 4_000,
    "window_min_share": 0.10,
    "window_warn": 8_000,
    "window_warn_share": 0.20,
    "image_turns": 3,
    "truncate_steps": ((0, 16_000), (100_000, 32_000), (200_000, 64_000)),
    "truncate_together": 4,
    "truncate_together_share": 0.5,
    "loop_share": 0.0,
    "precheck": True,
    "tpm_terminal": True,
}
"""What OpenClaw does otherwise since 2026.9: ``Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9)``."""
