"""The policies people know, as settings; the number behind each word is in ``settings.py`` or beside it here."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.policy.settings import Settings

_PLAIN = Settings(
    room_min=0,
    spill_chars=0,
    spill_share=0.0,
    message_chars=0,
    message_share=0.0,
    preview_outline=0,
    media_most=0,
    media_bytes=0,
    compactions_most=1_000,
    breaker_failures=1_000,
    prune="off",
    markers="tail",
    goal_share=0.0,
    gain_share=0.0,
    gain_tokens=0,
    margin=0.0,
)
"""No mechanism at all: what the presets start from."""

PRESETS: dict[str, Settings] = {
    "append-only": replace(_PLAIN, compact="off"),
    "sliding": replace(_PLAIN, compact="slide", margin=0.05),
    "opencode": replace(
        _PLAIN,
        markers="frontier",
        measure="usage",
        trigger_share=0.0,
        trigger_output=32_000,
        trigger_inclusive=True,
        tail="turns",
        tail_tokens=8_000,
        summary_tokens=3_000,
        summary_model=True,
        spill_chars=51_200,
        preview_chars=51_200,
        preview_tail=0.0,
    ),
    "pi": replace(
        _PLAIN,
        markers="frontier",
        measure="usage+chars",
        trigger_share=0.0,
        trigger_reserve=16_384,
        tail="tokens",
        tail_tokens=20_000,
        summary_tokens=3_000,
        summary_model=True,
    ),
    "claude-code": replace(
        _PLAIN,
        markers="frontier",
        measure="usage+chars",
        trigger_share=0.0,
        trigger_reserve=13_000,
        trigger_output=20_000,
        tail="none",
        summary_tokens=4_000,
        summary_model=True,
        restore_files=5,
        restore_tokens=5_000,
        prune="idle",
        spill_chars=50_000,
        preview_tail=0.0,
        message_chars=200_000,
    ),
    "openclaw": replace(
        _PLAIN,
        markers="frontier",
        window_min=16_000,
        window_warn=32_000,
        measure="usage+chars",
        trigger_share=0.0,
        trigger_reserve=20_000,
        trigger_reserve_share=0.25,
        tail="tokens",
        tail_tokens=20_000,
        summary_tokens=4_000,
        summary_model=True,
        prune="ttl",
        spill_chars=0,
    ),
    "holdfast": Settings(),
}
