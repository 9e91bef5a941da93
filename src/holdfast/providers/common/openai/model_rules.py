"""Checks by model that the rules of Chat Completions and of Responses share."""

from __future__ import annotations

import re

from holdfast.providers.common.openai.model_traits import find_refused_sampling, get_openai_traits
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations, format_json_value

OPENAI_MODEL_SOURCES = "guides and model pages of 2026-11, error texts in public issues"
"""Where the traits come from; each is named in ``model_traits``."""
OPENAI_NOVEMBER_DOCS = "SDK 3.57 types, November 2026"
_MAX_SAFETY_IDENTIFIER_CHARS = 128
"""Characters of a ``safety_identifier`` (SDK 3.57 types)."""
_MAX_CACHE_BREAKPOINTS = 4
"""Breakpoints that one request writes (SDK 3.57 types, ``PromptCacheOptions``)."""

# developers.openai.com/api/docs/deprecations, as copied on 2026-10-15 (importstatic.com) and 2026-10-27
# (dev.to/max_bob). A request to a model that is gone is a 404. Azure and gateways may serve it longer, so this is only
# a warning.
_SHUT_DOWN_MODELS: tuple[tuple[str, str], ...] = (
    (r"gpt-5\.[23]-chat-latest", "August 10, 2026"),
    (r"o1|o1-pro|o3-mini|o4-mini|gpt-3\.5-turbo|gpt-4|gpt-4-0613|gpt-4-turbo|gpt-4\.1-nano", "October 23, 2026"),
)
"""Patterns of names without a date, and the day on which the models were shut down."""
_COMPILED_SHUT_DOWN_MODELS = tuple(
    [(re.compile(rf"(?:{pattern})(?:-20\d\d-\d\d-\d\d)?\Z"), day) for pattern, day in _SHUT_DOWN_MODELS]
)


def check_model_sampling(request: RequestView, effort: object) -> Violations:
    """Yield the sampling fields that the model of a request refuses at ``effort``, the effort in the body or None."""
    traits = get_openai_traits(request.model)
    if traits is None:
        return
    for field, reason in find_refused_sampling(traits, request.body, effort):
        value = format_json_value(request.body[field])
        yield f"$.{field}", f"{field} is {value}, but {reason} ({request.model}); leave it out"


def check_model_effort(request: RequestView, path: str, effort: object, *, is_chat: bool) -> Violations:
    """Yield ``path`` if the model of a request does not have the reasoning effort."""
    traits = get_openai_traits(request.model)
    efforts = () if traits is None else traits.get_efforts(is_chat=is_chat)
    if efforts and isinstance(effort, str) and effort not in efforts:
        problem = f"the reasoning effort {format_json_value(effort)} is not one of {request.model}"
        yield path, f"{problem}; send {' or '.join(efforts)}"


def check_cache_retention(request: RequestView) -> Violations:
    """Yield ``prompt_cache_retention`` if the model of a request refuses its value."""
    traits = get_openai_traits(request.model)
    if traits is None or not traits.needs_long_cache:
        return
    if request.body.get("prompt_cache_retention") == "in_memory":
        problem = f"prompt_cache_retention is in_memory, but {request.model} keeps caches for 24 hours only"
        yield "$.prompt_cache_retention", f"{problem}; leave it out"


def check_service_tier(request: RequestView) -> Violations:
    """Yield ``service_tier`` if the model of a request does not have the tier."""
    traits = get_openai_traits(request.model)
    if traits is not None and not traits.takes_flex_tier and request.body.get("service_tier") == "flex":
        yield "$.service_tier", f"{request.model} has no service tier 'flex'; leave it out, at the standard price"


def check_safety_identifier(request: RequestView) -> Violations:
    """Yield ``safety_identifier`` if it is too long."""
    value = request.body.get("safety_identifier")
    if isinstance(value, str) and len(value) > _MAX_SAFETY_IDENTIFIER_CHARS:
        problem = f"safety_identifier has {len(value)} characters, but {_MAX_SAFETY_IDENTIFIER_CHARS} are allowed"
        yield "$.safety_identifier", f"{problem}; send a hash of it"


def check_breakpoint_count(breakpoint_paths: list[str]) -> Violations:
    """Yield the first of the breakpoints that the server will not write, of all in a request, oldest first.

    The documentation says that the latest are written. A request with more is not known to be refused.
    """
    surplus_count = len(breakpoint_paths) - _MAX_CACHE_BREAKPOINTS
    if surplus_count > 0:
        problem = f"{len(breakpoint_paths)} cache breakpoints, but a request writes {_MAX_CACHE_BREAKPOINTS}"
        yield breakpoint_paths[0], f"{problem}; leave out the oldest {surplus_count}"


def check_model_shut_down(request: RequestView) -> Violations:
    """Yield ``$.model`` if OpenAI does not serve the model any more."""
    name = request.model.lower()
    for pattern, day in _COMPILED_SHUT_DOWN_MODELS:
        if pattern.match(name):
            yield "$.model", f"OpenAI shut {request.model} down on {day}; choose a newer model"
