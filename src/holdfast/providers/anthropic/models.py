"""Rules of the Messages API by Claude model, in one small table.

Only rules are here; windows and prices are in the catalog. A name that no row matches gets the strictest values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.providers.anthropic.messages import API_NAME
from holdfast.providers.common.dialects import lift_known_limits, relax_turn_order
from holdfast.state.dialect import Dialect

SamplingRule: TypeAlias = Literal["any", "one", "default"]
"""Which of temperature, top_p and top_k a model takes: any of them; only one of temperature and top_p; only the default
values."""


MAX_IMAGES = 600
"""Images, and pages of PDFs, in one request (release notes of 2026-03-13)."""
MAX_IMAGES_SHORT_WINDOW = 100
"""The same for models with a window of 200,000 tokens."""


class ClaudeTraits(Struct, frozen=True):
    """The differences between Claude models. The defaults are for an unknown name."""

    allows_prefill: bool = False
    """The last message may be the assistant's (models up to 4.5)."""
    allows_inline_system: bool = False
    """``system`` messages may stand between a user's message and an answer."""
    binds_thinking: bool = True
    """Thinking is signed over everything before it ("preserved thinking"), so that an edit of the history invalidates
    it."""
    max_images: int = MAX_IMAGES
    """Images in one request: 100 for a window of 200,000 tokens, 600 otherwise. An unknown name gets the higher number,
    since a wrong guess would drop images that the model accepts."""
    manual_thinking: bool | None = None
    """``thinking.type`` may be ``enabled``, with a budget; None if unknown."""
    adaptive_thinking: bool | None = None
    """``thinking.type`` may be ``adaptive``; None if unknown."""
    can_disable_thinking: bool | None = None
    """``thinking.type`` may be ``disabled``; None if unknown."""
    can_disable_at_any_effort: bool = True
    """Thinking may be disabled at the efforts ``xhigh`` and ``max`` too."""
    compacts_on_demand: bool = False
    """The server compacts on demand: models from 4.6 on, as the page on compaction lists them."""
    sampling: SamplingRule = "any"
    """Which sampling options are accepted. Pages "Migration guide" and "Messages" (2026-08-21, 2026-10-21)."""
    takes_forced_tools: bool = True
    """``tool_choice`` may be ``any`` or ``tool``. Pages "What's new" of each model (2026-09-01 to 2026-11-09)."""
    thinks_between_tools: bool = False
    """``thinking.type`` is ``between_tools`` where older models have ``disabled``, up to effort ``high``."""
    takes_old_computer_tool: bool = True
    """Tools of the types ``computer_2…`` are accepted; newer models take ``computer_toolset_20260801``."""
    takes_fast_speed: bool = True
    """``speed`` may be ``fast``: an error on Opus 4.7 since 2026-07-24 (release notes)."""
    needs_fast_beta: bool = False
    """``speed`` ``fast`` needs a beta (page on fast mode, 2026-11: Opus 5 and 4.8; not Opus 5.5 and Fable 5.2)."""


_TRAITS_UP_TO_4_5 = ClaudeTraits(
    allows_prefill=True,
    binds_thinking=False,
    max_images=MAX_IMAGES_SHORT_WINDOW,
    manual_thinking=True,
    adaptive_thinking=False,
    can_disable_thinking=True,
)
_TRAITS_OF_ONE_SAMPLING_OPTION = replace(_TRAITS_UP_TO_4_5, sampling="one")
_ONE_SAMPLING_OPTION_SINCE = {"opus": (4, 1), "sonnet": (4, 5), "haiku": (4, 5)}
"""The first version of each family that refuses temperature beside top_p: "cannot both be specified for this model".
Migration guide; bedrock-chat#979 (Opus 4.1, 2025-11-25), AionUi#912 (2026-02-20), OpenHands#12909 (2026-02-18)."""
_LAST_OLD_VERSION = (4, 5)
"""Up to 4.5, all families have the same traits: prefill, thinking with a budget, a window of 200,000 tokens."""

_CLAUDE_TRAITS: dict[str, ClaudeTraits] = {
    "opus 4.6": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=True,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
        sampling="one",
    ),
    "opus 4.7": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
        sampling="default",
        takes_fast_speed=False,
    ),
    "opus 4.8": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
        sampling="default",
        needs_fast_beta=True,
    ),
    "opus 5.0": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        can_disable_at_any_effort=False,
        compacts_on_demand=True,
        sampling="default",
        needs_fast_beta=True,
    ),
    "opus 5.5": ClaudeTraits(
        allows_inline_system=True,
        manual_thinking=False,
        adaptive_thinking=True,
        compacts_on_demand=True,
        can_disable_thinking=False,
        sampling="default",
        takes_forced_tools=False,
        takes_old_computer_tool=False,
    ),
    "sonnet 4.6": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=True,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
        sampling="one",
    ),
    "sonnet 5.0": ClaudeTraits(
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=True,
        compacts_on_demand=True,
        sampling="default",
    ),
    "sonnet 5.5": ClaudeTraits(
        allows_inline_system=True,
        manual_thinking=False,
        adaptive_thinking=True,
        compacts_on_demand=True,
        can_disable_thinking=False,
        thinks_between_tools=True,
        sampling="default",
        takes_forced_tools=False,
        takes_old_computer_tool=False,
    ),
    "haiku 5.5": ClaudeTraits(
        allows_inline_system=True,
        adaptive_thinking=True,
        compacts_on_demand=True,
        manual_thinking=False,
        sampling="default",
        takes_old_computer_tool=False,
    ),
    "fable 5.0": ClaudeTraits(
        allows_inline_system=True,
        binds_thinking=False,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=False,
        compacts_on_demand=True,
        sampling="default",
    ),
    "fable 5.1": ClaudeTraits(
        allows_inline_system=True,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=False,
        compacts_on_demand=True,
        sampling="default",
        takes_forced_tools=False,
    ),
    "fable 5.2": ClaudeTraits(
        allows_inline_system=True,
        manual_thinking=False,
        adaptive_thinking=True,
        can_disable_thinking=False,
        sampling="default",
        takes_forced_tools=False,
        takes_old_computer_tool=False,
    ),
}
"""Traits by family and version, as documented up to 2026-11. Mythos is Fable under another name.

The page that lists models with system messages inside the conversation is older than the 5.5 family and Fable 5.2.
Recorded requests of Claude Code 2.1.332 contain such messages for each of these models by default, with the effort of
the turn and changes of tools, which can stand nowhere else.
"""

_FAMILY_FIRST_NAME = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
"""Matches ``claude-opus-4-5-20251101``, ``claude-opus-4.5``, ``eu.anthropic.claude-sonnet-4-20250514-v1:0``."""
_VERSION_FIRST_NAME = re.compile(r"claude-(?:v?[12](?!\d)|instant|3(?!\d))")
"""Matches ``claude-3-5-sonnet-20241022``, ``claude-2.1``."""


_RETIRED_MODELS: tuple[tuple[str, str, str], ...] = (
    (r"claude-opus-4-1(?!\d)", "August 5, 2026", "claude-opus-4-8"),
    (r"claude-(?:opus-4-(?:0|20250514)|opus-4|4-opus-20250514)\Z", "June 15, 2026", "claude-opus-4-8"),
    (r"claude-(?:sonnet-4-(?:0|20250514)|sonnet-4|4-sonnet-20250514)\Z", "June 15, 2026", "claude-sonnet-4-6"),
    (r"claude-3-haiku", "April 20, 2026", "claude-haiku-4-5"),
    (r"claude-3-5-haiku", "February 19, 2026", "claude-haiku-4-5"),
    (r"claude-3-7-sonnet", "February 19, 2026", "claude-sonnet-4-6"),
    (r"claude-3-opus", "January 5, 2026", "claude-opus-4-8"),
    (r"claude-3-5-sonnet", "October 28, 2025", "claude-sonnet-4-6"),
)
"""Patterns of Anthropic's own names, the day of the retirement, and what to use. Release notes and page on model
deprecations; for Opus 4.1 multidotdev/cli v0.0.135 (2026-09-24) and Metaculus/forecasting-tools#321. Models that retire
later (Sonnet 4.5 on November 30) still answer."""
_COMPILED_RETIRED_MODELS = tuple([(re.compile(pattern), day, successor) for pattern, day, successor in _RETIRED_MODELS])


def find_retirement(model: str) -> tuple[str, str] | None:
    """Return the day on which Anthropic retired ``model``, and its successor; None if it did not, or on a cloud.

    Bedrock and Google Cloud, whose names for models are others, retire on days of their own.
    """
    name = model.lower()
    if is_cloud_model(name):
        return None
    for pattern, day, successor in _COMPILED_RETIRED_MODELS:
        if pattern.match(name):
            return day, successor
    return None


def get_claude_traits(model: str) -> ClaudeTraits | None:
    """Return the traits of Claude model ``model``, or None for an unknown name."""
    name = model.lower()
    parsed_name = _parse_model_name(name)
    if parsed_name is None:
        if _VERSION_FIRST_NAME.search(name):
            return _TRAITS_UP_TO_4_5
        return None
    family, version = parsed_name
    if version <= _LAST_OLD_VERSION:
        if version >= _ONE_SAMPLING_OPTION_SINCE.get(family, _LAST_OLD_VERSION):
            return _TRAITS_OF_ONE_SAMPLING_OPTION
        return _TRAITS_UP_TO_4_5
    return _CLAUDE_TRAITS.get(f"{family} {version[0]}.{version[1]}")


def _parse_model_name(name: str) -> tuple[str, tuple[int, int]] | None:
    """Return family and version from a lower-case name of the new style, or None for any other name."""
    match = _FAMILY_FIRST_NAME.search(name)
    if match is None:
        return None
    family = "fable" if match[1] == "mythos" else match[1]
    return family, (int(match[2]), int(match[3] or 0))


def _is_later_claude(model: str) -> bool:
    """Return whether ``model`` is a Claude model newer than this table."""
    parsed_name = _parse_model_name(model.lower())
    if parsed_name is None:
        return False
    _, version = parsed_name
    return version > _LAST_OLD_VERSION and get_claude_traits(model) is None


_FAMILY_RANKS = {"haiku": 1, "sonnet": 2, "opus": 3, "fable": 4}
"""The families, the most capable last."""


def can_advise(advisor: str, model: str) -> bool | None:
    """Return whether ``advisor`` may be the advisor tool's model in a request to ``model``; None for an unknown name.

    An advisor is of a more capable family than the model that asks it, or of the same and no older. Not all that this
    allows is accepted, but what it forbids is refused: code.claude.com/docs/en/advisor (2026-10: Opus may be advised by
    Opus of its version or later, Fable by Fable), page on Sonnet 5.5 (not by Sonnet 5), page on Fable 5.2 (by 5.2
    only); "'claude-opus-4-8' cannot be used as an advisor when the request model is 'claude-fable-5'"
    (claude-code#67764, 2026-06-12).
    """
    advisor_name, model_name = _parse_model_name(advisor.lower()), _parse_model_name(model.lower())
    if advisor_name is None or model_name is None:
        return None
    if advisor_name[0] == model_name[0]:
        return advisor_name[1] >= model_name[1]
    return _FAMILY_RANKS[advisor_name[0]] > _FAMILY_RANKS[model_name[0]]


FORCED_TOOL_CHOICES = ("any", "tool")
"""Types of ``tool_choice`` that make the model call a tool."""
_STRICT_SAMPLING_VERSION = "2026-10-21"
"""The first ``anthropic-version`` that refuses all three sampling options for every model, at any value. Pages
"Versioning" and "Migrating to API version 2026-10-21"."""
_DEFAULT_TEMPERATURE = 1
_MIN_DEFAULT_TOP_P = 0.99


def is_strict_version(version: str) -> bool:
    """Return whether ``version``, the header ``anthropic-version``, has the rules of 2026-10-21 (empty: unknown)."""
    return version >= _STRICT_SAMPLING_VERSION


def find_refused_sampling(fields: Mapping[str, Any], model: str, version: str = "") -> dict[str, str]:
    """Find the sampling options in the decoded ``fields`` that ``model`` refuses: name and reason.

    Models from Opus 4.7 on take the default values: temperature 1 and top_p from 0.99 on, but no top_k.
    """
    given = {name: fields[name] for name in ("temperature", "top_p", "top_k") if fields.get(name) is not None}
    if is_strict_version(version):
        return dict.fromkeys(given, f"is refused by anthropic-version {version}")
    traits = get_claude_traits(model)
    if traits is None or traits.sampling == "any":
        return {}
    if traits.sampling == "one":
        if "temperature" in given and "top_p" in given:
            return {"top_p": f"is refused beside temperature by {model}"}
        return {}
    refused: dict[str, str] = {}
    for name, value in given.items():
        is_number = isinstance(value, int | float)
        is_default_temperature = name == "temperature" and value == _DEFAULT_TEMPERATURE
        is_default_top_p = name == "top_p" and is_number and value >= _MIN_DEFAULT_TOP_P
        if not is_default_temperature and not is_default_top_p:
            refused[name] = f"is refused by {model}"
    return refused


_BEDROCK_NAME = re.compile(r"(?:^|[./])anthropic\.claude")
"""Matches Bedrock's names (``eu.anthropic.claude-opus-5-5-v1:0``). Bedrock has no compaction on demand."""


def is_cloud_model(model: str) -> bool:
    """Return whether ``model`` is named as on Bedrock or Google Cloud."""
    return _CLOUD_NAME.search(model.lower()) is not None


def is_bedrock_model(model: str) -> bool:
    """Return whether ``model`` is named as on Bedrock."""
    return _BEDROCK_NAME.search(model.lower()) is not None


# -- the dialect -------------------------------------------------------------------------------------------------------


_BLOCKS_NOT_IN_RESULTS = (
    "server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result",
    "advisor_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result", "tool_search_tool_result", "container_upload", "compaction",
    "tool_addition", "tool_removal", "mcp_tool_listing", "fallback",
)  # fmt: skip
"""Known block types that are refused inside a ``tool_result``."""


MAX_PIXELS_FEW_IMAGES = 8_000
"""Pixels a side of an image in a request with up to ``MAX_LARGE_IMAGES`` images (documented)."""
MAX_LARGE_IMAGES = 20
MAX_PIXELS_MANY_IMAGES = 2_000
"""The same in a request with more images (documented)."""


MAX_IMAGE_BYTES = 10 * 1024 * 1024
"""Characters of base64 of one image (vision page, 2026-08)."""
_MAX_CLOUD_IMAGE_BYTES = 5 * 1024 * 1024
"""The same on Bedrock and Google Cloud."""
_CLOUD_NAME = re.compile(r"(?:^|[./])anthropic\.claude|claude-[\w.-]+@\d")
"""Matches names on Bedrock, and on Google Cloud (``claude-opus-4-5@20251101``)."""


def build_dialect(model: str, _provider: str = "") -> Dialect:
    """Return the rules of the Messages API for ``model``; an unknown name gets the strictest."""
    model_traits = get_claude_traits(model) or ClaudeTraits()
    # A model newer than the table most likely accepts the same as the newest in it. Under the strictest rule, each
    # system message that Claude Code writes for it would be rewritten. If the guess is wrong and the model refuses
    # them, Claude Code sends its next request without.
    is_system_inside = model_traits.allows_inline_system or _is_later_claude(model)
    return Dialect(
        API_NAME,
        model,
        allows_thinking_only=True,
        has_system_field=True,
        clients_drop_thinking=True,
        must_end_with_user=not model_traits.allows_prefill,
        # Anthropic joins neighbours of one role itself. An unknown model may run on a server that demands alternation.
        merges_same_role=get_claude_traits(model) is None,
        server_joins_same_role=True,
        allows_empty_results=True,
        allows_empty_last_answer=model_traits.allows_prefill,
        # No limit on the length of ids is documented; a thousand characters only stop garbage.
        id_max=1_000,
        # 64 in the specification of 2024, 128 later. The validator warns between the two.
        name_max=128,
        system_position="turn" if is_system_inside else "first",
        max_images=model_traits.max_images,
        max_image_pixels=MAX_PIXELS_FEW_IMAGES,
        max_image_bytes=_MAX_CLOUD_IMAGE_BYTES if is_cloud_model(model) else MAX_IMAGE_BYTES,
        large_image_pixels=MAX_PIXELS_MANY_IMAGES,
        max_images_with_large=MAX_LARGE_IMAGES,
        # All three as documented.
        max_bytes=33_554_432,
        max_cache_breakpoints=4,
        cache_lookback=20,
        binds_thinking=model_traits.binds_thinking,
        supports_compaction=model_traits.compacts_on_demand and not is_bedrock_model(model),
        refused_result_kinds=_BLOCKS_NOT_IN_RESULTS,
        allowed_kinds_by_role={"system": ("tool_addition", "tool_removal", "options")},
    )


def relax_dialect(dialect: Dialect) -> Dialect:
    """Relax the rules for a message list that a client wrote for a model unknown to Holdfast.

    A new Claude runs on Anthropic's servers, so their rules hold, except the order of turns. Any other model runs on a
    server about which nothing can be assumed.
    """
    if not dialect.merges_same_role:
        return dialect
    relaxed = relax_turn_order(dialect)
    if "claude" in dialect.model.lower():
        return relaxed
    return lift_known_limits(relaxed)
