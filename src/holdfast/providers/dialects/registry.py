"""The registered providers, one row each, and their rules. To add a provider, write its file and add a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from holdfast.providers.dialects.azure import AZURE
from holdfast.providers.dialects.bedrock import BEDROCK
from holdfast.providers.dialects.cerebras import CEREBRAS
from holdfast.providers.dialects.deepseek import DEEPSEEK
from holdfast.providers.dialects.glm import GLM
from holdfast.providers.dialects.groq import GROQ
from holdfast.providers.dialects.kimi import KIMI
from holdfast.providers.dialects.llamacpp import LLAMACPP
from holdfast.providers.dialects.lmstudio import LMSTUDIO
from holdfast.providers.dialects.minimax import MINIMAX
from holdfast.providers.dialects.mistral import MISTRAL
from holdfast.providers.dialects.ollama import OLLAMA
from holdfast.providers.dialects.openrouter import OPENROUTER
from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.qwen import QWEN
from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.providers.dialects.sglang import SGLANG
from holdfast.providers.dialects.vertex import VERTEX
from holdfast.providers.dialects.vllm import VLLM
from holdfast.providers.dialects.xai import XAI
from holdfast.state.dialect import NO_LIMIT, Dialect

PROVIDER_SPECS: dict[str, ProviderSpec] = {
    spec.name: spec
    for spec in (
        MISTRAL,
        DEEPSEEK,
        KIMI,
        GLM,
        QWEN,
        MINIMAX,
        XAI,
        GROQ,
        CEREBRAS,
        OPENROUTER,
        BEDROCK,
        VERTEX,
        AZURE,
        VLLM,
        SGLANG,
        LLAMACPP,
        OLLAMA,
        LMSTUDIO,
    )
}
API_VENDORS = ("anthropic", "openai", "gemini")
"""Providers that serve their own APIs: nothing differs from these."""
PROVIDER_NAMES = (*API_VENDORS, *PROVIDER_SPECS)
"""The names that ``--provider`` takes."""


def has_unknown_message_rules(provider: str) -> bool:
    """Return whether what ``provider`` accepts is not known well enough to change a client's messages for it."""
    spec = PROVIDER_SPECS.get(provider)
    return spec is None or spec.keeps_client_content


def get_provider_rules(api: str, model: str, provider: str) -> ProviderRules | None:
    """Return the rules of ``provider`` for ``model`` over ``api``; None if they are the API's own, or not known."""
    spec = PROVIDER_SPECS.get(provider)
    if spec is None or api not in spec.rules_by_api:
        return None
    return _build_rules(api, model.lower(), provider)


@lru_cache(maxsize=1 << 10)
def _build_rules(api: str, model: str, provider: str) -> ProviderRules:
    return PROVIDER_SPECS[provider].rules_by_api[api](model)


def find_open_model_provider(api: str, model: str) -> str:
    """Return the provider whose open model ``model`` is, wherever it is served; an empty string if none is known."""
    for spec in PROVIDER_SPECS.values():
        if api in spec.rules_by_api and spec.open_model_pattern and re.search(spec.open_model_pattern, model.lower()):
            return spec.name
    return ""


def iter_requirements(api: str, model: str, provider: str) -> Iterator[Requirement]:
    """Yield what ``provider`` asks of a request beyond the rules of ``api``."""
    rules = get_provider_rules(api, model, provider)
    if rules is not None:
        yield from rules.requirements


def adapt_dialect(dialect: Dialect, provider: str, rules: ProviderRules) -> Dialect:
    """Return the dialect of an API by ``rules``; ``provider`` is empty for an open model whose server is not known."""
    changes = rules.merge_dialect_changes()
    api_refused_kinds = [kind for kind in dialect.refused_kinds if kind not in rules.accepted_kinds]
    changes["refused_kinds"] = tuple(dict.fromkeys((*api_refused_kinds, *changes["refused_kinds"])))
    if not rules.keeps_size_limits:
        dialect = replace(dialect, max_images=NO_LIMIT, max_bytes=NO_LIMIT)
    return replace(dialect, provider=provider, **changes)
