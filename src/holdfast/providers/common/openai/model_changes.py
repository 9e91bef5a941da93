"""What must change in the options of a request so that a model of OpenAI's accepts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.providers.common.openai.model_traits import (
    OpenAIModelTraits,
    find_nearest_effort,
    find_refused_sampling,
    get_openai_traits,
)
from holdfast.providers.common.option_changes import OptionChange

LOGPROBS_INCLUDE = "message.output_text.logprobs"
"""The entry of ``include`` in Responses that asks for log probabilities."""
LIMIT_FIELD, OLD_LIMIT_FIELD = "max_completion_tokens", "max_tokens"
"""The limit of an answer in Chat Completions; reasoning models refuse the older name."""
_CHAT_EFFORT_PATH = "reasoning_effort"
_RESPONSES_EFFORT_PATH = "reasoning.effort"


def find_chat_model_changes(fields: Mapping[str, Any], model: str, _version: str = "") -> tuple[OptionChange, ...]:
    """Find the changes that ``model`` needs in the decoded options of a Chat Completions request."""
    traits = get_openai_traits(model)
    if traits is None:
        return ()
    changes = [*_find_chat_tool_changes(traits, fields, model)]
    effort = fields.get(_CHAT_EFFORT_PATH)
    if changes:
        effort = changes[0].value
    else:
        changes += _find_effort_changes(traits.get_efforts(is_chat=True), _CHAT_EFFORT_PATH, effort, model)
    changes += _find_sampling_changes(traits, fields, effort, model)
    changes += _find_limit_changes(fields, model)
    return (*changes, *_find_cache_changes(traits, fields, model), *_find_tier_changes(traits, fields, model))


def find_responses_model_changes(fields: Mapping[str, Any], model: str, _version: str = "") -> tuple[OptionChange, ...]:
    """Find the changes that ``model`` needs in the decoded options of a Responses request."""
    traits = get_openai_traits(model)
    if traits is None:
        return ()
    reasoning = fields.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    changes = [*_find_effort_changes(traits.get_efforts(is_chat=False), _RESPONSES_EFFORT_PATH, effort, model)]
    changes += _find_sampling_changes(traits, fields, effort, model)
    entries = fields.get("include")
    if isinstance(entries, list) and LOGPROBS_INCLUDE in entries and traits.is_reasoning_at(effort):
        other_entries = [entry for entry in entries if entry != LOGPROBS_INCLUDE]
        note = f"{LOGPROBS_INCLUDE} in include: left out, {model} gives no log probabilities while it reasons"
        changes.append(OptionChange("model-sampling", "include", other_entries or None, note))
    return (*changes, *_find_cache_changes(traits, fields, model), *_find_tier_changes(traits, fields, model))


def describe_unfit_tools(fields: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return a note if ``model`` takes no tools in Chat Completions at all, so that no change of options helps."""
    traits = get_openai_traits(model)
    if traits is None or traits.chat_tools != "never" or not _has_tools(fields):
        return ()
    return (f"{model} takes tools only in the Responses API: this request will be refused, convert it to that",)


def _has_tools(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(fields.get(key), list) and fields[key] for key in ("tools", "functions"))


def _find_chat_tool_changes(traits: OpenAIModelTraits, fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    """Yield the change of the effort without which Chat Completions refuses the tools of a request."""
    effort = fields.get(_CHAT_EFFORT_PATH)
    if not _has_tools(fields):
        return
    if traits.chat_tools == "only_none" and effort != "none":
        why = f"{model} takes tools in Chat Completions only without reasoning; Responses takes both"
        yield OptionChange("model-tools", _CHAT_EFFORT_PATH, "none", f"{_CHAT_EFFORT_PATH}: set to none, {why}")
    elif traits.chat_tools == "no_effort" and effort not in (None, "none"):
        why = f"{model} takes tools in Chat Completions only without it; Responses takes both"
        yield OptionChange("model-tools", _CHAT_EFFORT_PATH, None, f"{_CHAT_EFFORT_PATH} {effort!r}: left out, {why}")


def _find_effort_changes(efforts: tuple[str, ...], path: str, effort: object, model: str) -> Iterator[OptionChange]:
    """Yield the change to the nearest effort that the model has."""
    if not efforts or not isinstance(effort, str) or effort in efforts:
        return
    nearest = find_nearest_effort(efforts, effort)
    if nearest:
        note = f"{path} {effort!r}: set to {nearest}, {model} has {', '.join(efforts)}"
        yield OptionChange("model-effort", path, nearest, note)


def _find_limit_changes(fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    """Yield the changes that give the limit of an answer the name that reasoning models know."""
    limit = fields.get(OLD_LIMIT_FIELD)
    if limit is None:
        return
    yield OptionChange("model-limit", OLD_LIMIT_FIELD, None, f"{OLD_LIMIT_FIELD}: left out, {model} does not take it")
    if fields.get(LIMIT_FIELD) is None:
        note = f"{LIMIT_FIELD}: set to {limit}, which {OLD_LIMIT_FIELD} was"
        yield OptionChange("model-limit", LIMIT_FIELD, limit, note)


def _find_sampling_changes(
    traits: OpenAIModelTraits, fields: Mapping[str, Any], effort: object, model: str
) -> Iterator[OptionChange]:
    for field, reason in find_refused_sampling(traits, fields, effort):
        yield OptionChange("model-sampling", field, None, f"{field}: left out, {reason} ({model})")


def _find_cache_changes(traits: OpenAIModelTraits, fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    if traits.needs_long_cache and fields.get("prompt_cache_retention") == "in_memory":
        note = f"prompt_cache_retention: left out, {model} does not take in_memory"
        yield OptionChange("cache-retention", "prompt_cache_retention", None, note)


def _find_tier_changes(traits: OpenAIModelTraits, fields: Mapping[str, Any], model: str) -> Iterator[OptionChange]:
    if not traits.takes_flex_tier and fields.get("service_tier") == "flex":
        note = f"service_tier: left out, {model} has no flex; the request costs the standard price"
        yield OptionChange("service-tier", "service_tier", None, note)
