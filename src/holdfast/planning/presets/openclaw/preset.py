"""OpenClaw's policy as it is registered: its stages and its values of our settings."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.planning.presets.openclaw.precheck import reduce_results_at_precheck, truncate_results
from holdfast.planning.presets.openclaw.pruning import prune_images_and_results
from holdfast.planning.presets.openclaw.rules import OpenclawRules
from holdfast.planning.presets.preset import BARE_RESULTS, BARE_SETTINGS, Preset
from holdfast.planning.settings import PruneSettings, RecoverySettings, ReserveSettings, RetrySettings, SummarySettings
from holdfast.planning.stages.order import OWN_STAGES, insert_stages, replace_stages

OPENCLAW = Preset(
    "like OpenClaw: prunes when the cache has expired, and a model summarizes",
    replace(
        BARE_SETTINGS,
        reserve=ReserveSettings(floor=20_000),
        results=replace(BARE_RESULTS, append_chars=400_000),
        prune=PruneSettings(when=(), exempt_tools=()),
        summary=SummarySettings(max_tokens=4_000),
        recovery=RecoverySettings(max_compactions=3, steps=("compact", "truncate")),
        retry=RetrySettings(max_retries=31),
    ),
    OpenclawRules(),
    insert_stages(
        insert_stages(
            replace_stages(OWN_STAGES, prune=prune_images_and_results),
            "overflow",
            ("precheck", reduce_results_at_precheck),
        ),
        "largest",
        ("truncate", truncate_results),
    ),
)
