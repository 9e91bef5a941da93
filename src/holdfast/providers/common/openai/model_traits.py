"""Rules of OpenAI's APIs by model, in one small table.

Only rules are here; windows and prices are in the catalog. A name that no row matches has no rules of its own. Names
with a vendor before them (``openai/gpt-6-sol``) are those of gateways, which translate requests, so no row matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

SamplingSupport: TypeAlias = Literal["without_reasoning", "never"]
"""When a model takes sampling parameters: only at the effort ``none``, or at no effort."""
ChatToolSupport: TypeAlias = Literal["any", "no_effort", "only_none", "never"]
"""When a model takes tools in Chat Completions: at any effort; if no effort but ``none`` is given; only if ``none`` is
written; or never, so that tools need Responses."""


class OpenAIModelTraits(Struct, frozen=True):
    """The differences between OpenAI's reasoning models."""

    sampling: SamplingSupport
    efforts: tuple[str, ...] = ()
    """Reasoning efforts from low to high; empty if unknown."""
    chat_efforts: tuple[str, ...] = ()
    """The efforts in Chat Completions, if they differ."""
    default_effort: str = "medium"
    """The effort of a request that names none."""
    refuses_penalties: bool = False
    """Penalties other than 0 are refused."""
    chat_tools: ChatToolSupport = "any"
    needs_long_cache: bool = False
    """``prompt_cache_retention: in_memory`` is refused."""
    drops_edited_reasoning: bool = False
    """Reasoning after an edited part of the history is dropped without an error."""
    appends_instructions: bool = False
    """``instructions`` stand after the input, and are not cached."""
    takes_flex_tier: bool = True
    """``service_tier`` may be ``flex``."""
    takes_connectors: bool = True
    """MCP tools may name a ``connector_id``; deprecated for models after September 1, 2026 (SDK 3.57 types)."""

    def get_efforts(self, *, is_chat: bool) -> tuple[str, ...]:
        """Return the efforts that one of the two APIs accepts."""
        return (self.chat_efforts or self.efforts) if is_chat else self.efforts

    def is_reasoning_at(self, effort: object) -> bool:
        """Return whether the model reasons, and takes no sampling parameters, at the effort in a body or None."""
        return self.sampling == "never" or (effort or self.default_effort) != "none"


_UP_TO_HIGH = ("low", "medium", "high")
_UP_TO_XHIGH = (*_UP_TO_HIGH, "xhigh")
_UP_TO_MAX = (*_UP_TO_XHIGH, "max")

# Sources; the guides are those of developers.openai.com/api/docs, read 2026-11-28.
# Sampling: guides/deployment-checklist (GPT-6); gpt-5.1 to 5.6 vercel/ai#10932 (2025-12), langchain#35424 (2026-02-24)
# and vane#1173; gpt-5 "does not support 0.7 … only the default (1)"; o-series community.openai.com/t/1110750.
# Efforts: the SDK's ReasoningEffort (before gpt-5.1 no none; gpt-5-pro only high); gpt-5 qwen-code#11295 (2026-09-09);
# gpt-5.2 and 5.4 bolna#852 (2026-07-14); gpt-5.6 pydantic-ai#7081, and livekit/agents#7169 (2026-09-08) for Chat, which
# has no max; gpt-6-astra and 6.1-sol Prompture v1.15.1 (2026-10-21); gpt-6.1-terra apidog.com/blog (2026-10-27).
# Tools in Chat: guides/deployment-checklist; gpt-5.4 pipecat#4043 (2026-03-16) and openai-openapi#541; gpt-5.5
# crush#2913 (2026-05-14); gpt-5.6 litellm#34569 (2026-07-24); gpt-6.1-terra home-generative-agent v3.46.0-beta.1.
# gpt-6.2: guides/latest-model/gpt-6.2-astra (2026-11-17); penalties and Chat as probed on 2026-11-19
# (dev.to/routerbase_com). Cache: changelog of 2026-04-24, community.openai.com/t/1387096 for gpt-5.6, and the SDK 3.57
# types, "for gpt-5.5 and future models, only 24h is supported". There prompt_cache_options.ttl is a minimum, and this
# field a maximum, so one is not written as the other. Flex: the guide to gpt-6.2; a model without it is a 400,
# as learn.microsoft.com/azure/foundry/openai/how-to/flex-processing says.
_TRAITS_BY_PATTERN: tuple[tuple[str, OpenAIModelTraits], ...] = (
    (
        r"gpt-6\.2(-[a-z]+)?",
        OpenAIModelTraits(
            "never",
            _UP_TO_MAX,
            _UP_TO_XHIGH,
            refuses_penalties=True,
            chat_tools="never",
            needs_long_cache=True,
            takes_flex_tier=False,
            drops_edited_reasoning=True,
            appends_instructions=True,
            takes_connectors=False,
        ),
    ),
    (
        r"gpt-6-astra|gpt-6\.1-sol",
        OpenAIModelTraits(
            "never", _UP_TO_MAX, _UP_TO_XHIGH, chat_tools="never", needs_long_cache=True, takes_connectors=False
        ),
    ),
    (
        r"gpt-6-(sol|luna)|gpt-6\.1-terra",
        OpenAIModelTraits(
            "without_reasoning",
            ("none", *_UP_TO_MAX),
            chat_tools="only_none",
            needs_long_cache=True,
            takes_connectors=False,
        ),
    ),
    (
        r"gpt-5\.6(-(sol|terra|luna))?",
        OpenAIModelTraits(
            "without_reasoning",
            ("none", *_UP_TO_MAX),
            ("none", *_UP_TO_XHIGH),
            chat_tools="only_none",
            needs_long_cache=True,
        ),
    ),
    (
        r"gpt-5\.5",
        OpenAIModelTraits("without_reasoning", ("none", *_UP_TO_XHIGH), chat_tools="no_effort", needs_long_cache=True),
    ),
    (
        r"gpt-5\.4(-mini|-nano)?",
        OpenAIModelTraits("without_reasoning", ("none", *_UP_TO_XHIGH), default_effort="none", chat_tools="no_effort"),
    ),
    (r"gpt-5\.2", OpenAIModelTraits("without_reasoning", ("none", *_UP_TO_XHIGH), default_effort="none")),
    (r"gpt-5\.1", OpenAIModelTraits("without_reasoning", ("none", *_UP_TO_HIGH), default_effort="none")),
    (r"gpt-5\.2-pro", OpenAIModelTraits("never", ("medium", "high", "xhigh"))),
    (r"gpt-5-pro", OpenAIModelTraits("never", ("high",), default_effort="high", refuses_penalties=True)),
    (r"gpt-5(-mini|-nano)?", OpenAIModelTraits("never", ("minimal", *_UP_TO_HIGH), refuses_penalties=True)),
    (r"o1|o1-pro|o3|o3-mini|o3-pro|o4-mini", OpenAIModelTraits("never", _UP_TO_HIGH, refuses_penalties=True)),
)
"""Traits by a pattern of the whole name; the first that matches counts."""
_SNAPSHOT_DATE = re.compile(r"-20\d\d-\d\d-\d\d\Z")
_COMPILED_TRAITS = tuple([(re.compile(rf"(?:{pattern})\Z"), traits) for pattern, traits in _TRAITS_BY_PATTERN])

REASONING_SAMPLING_FIELDS: Mapping[str, Any] = {"temperature": 1, "top_p": 1, "top_logprobs": 0, "logprobs": False}
"""Sampling fields that need a request without reasoning, with the value that is accepted nevertheless."""
PENALTY_FIELDS: Mapping[str, Any] = {"frequency_penalty": 0, "presence_penalty": 0}
"""Penalties, with the value that is accepted nevertheless."""


def get_openai_traits(model: str) -> OpenAIModelTraits | None:
    """Return the rules of a model of OpenAI's, or None if it has none of its own or is not known."""
    name = _SNAPSHOT_DATE.sub("", model.lower())
    for pattern, traits in _COMPILED_TRAITS:
        if pattern.match(name):
            return traits
    return None


def find_refused_sampling(
    traits: OpenAIModelTraits, body: Mapping[str, Any], effort: object
) -> Iterator[tuple[str, str]]:
    """Yield each sampling field of a body that a model refuses, with the reason.

    ``effort`` is the effort in the body, or None. Values that are the default pass: gpt-5 says itself that "only the
    default (1) value is supported", and gpt-6.2 was seen to accept 1 as well.
    """
    if traits.is_reasoning_at(effort):
        if traits.sampling == "never":
            reason = "the model does not take it"
        else:
            reason = "the model takes it only at the reasoning effort none"
        for field in _iter_changed_fields(body, REASONING_SAMPLING_FIELDS):
            yield field, reason
    if traits.refuses_penalties:
        for field in _iter_changed_fields(body, PENALTY_FIELDS):
            yield field, "the model does not take it"


def _iter_changed_fields(body: Mapping[str, Any], default_by_field: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a body that have a value other than the default."""
    for field, default in default_by_field.items():
        if body.get(field) is not None and body[field] != default:
            yield field


def find_nearest_effort(efforts: tuple[str, ...], effort: str) -> str:
    """Return the accepted effort nearest to ``effort``, the lower one of two; empty if the effort is not known."""
    if effort not in _ALL_EFFORTS:
        return ""
    rank = _ALL_EFFORTS.index(effort)
    return min(efforts, key=lambda accepted: abs(_ALL_EFFORTS.index(accepted) - rank), default="")


_ALL_EFFORTS = ("none", "minimal", *_UP_TO_MAX)
"""The efforts of all models, from low to high."""
