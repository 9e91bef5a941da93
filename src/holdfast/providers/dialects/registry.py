"""The registered providers, one row each, and how the provider of a request is found.

To add a provider, write its file and add a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.providers.common.json.lenient_json import read_json_text
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
from holdfast.providers.dialects.requirement import Requirement
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


def check_provider_name(name: str) -> None:
    """Raise ``ConfigError`` with the list of known providers unless ``name`` is one of them, or empty."""
    if name and name not in PROVIDER_NAMES:
        raise ConfigError(f"no provider is called {name!r}; the providers are {', '.join(PROVIDER_NAMES)}")


def find_provider_by_url(base_url: str) -> str:
    """Return the name of the provider at ``base_url``, or an empty string for an unknown one."""
    return _find_provider_by_url(base_url)


@lru_cache(maxsize=1 << 10)
def _find_provider_by_url(base_url: str) -> str:
    try:
        url = urlsplit(base_url)
        host, port = (url.hostname or "").removesuffix("."), url.port
    except ValueError:
        return ""
    for name, vendor_host in _VENDOR_HOSTS.items():
        if host == vendor_host:
            return name
    for spec in PROVIDER_SPECS.values():
        is_known_host = any(_is_host_of(host, pattern) for pattern in spec.hosts)
        is_known_port = port in spec.ports and _is_private_name(host)
        if (is_known_host or is_known_port) and re.search(spec.url_pattern, base_url.lower()):
            return spec.name
    return ""


_VENDOR_HOSTS = {
    "anthropic": "api.anthropic.com",
    "openai": "api.openai.com",
    "gemini": "generativelanguage.googleapis.com",
}


def _is_host_of(host: str, pattern: str) -> bool:
    if pattern.startswith("."):
        return host.endswith(pattern)
    return fnmatchcase(host, pattern)


def _is_private_name(host: str) -> bool:
    """Return whether ``host`` can only be a machine of the user's own: by its name or a private IPv4 address."""
    if host == "localhost" or "." not in host or host.endswith((".localhost", ".local", ".internal", ".lan")):
        return True
    return re.match(r"(?:127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.)", host) is not None


def find_provider_by_model(api: str, model: str) -> str:
    """Return the provider that alone offers ``model`` under this name over ``api``; an empty string if none is known.

    A name with a slash (``vendor/model``) is that of a gateway or of an open model, so it names no provider.
    """
    return _find_provider_by_model(api, model.lower())


@lru_cache(maxsize=1 << 10)
def _find_provider_by_model(api: str, model: str) -> str:
    for spec in PROVIDER_SPECS.values():
        if api in spec.rules_by_api and spec.model_pattern and re.fullmatch(spec.model_pattern, model):
            return spec.name
    return ""


def find_provider_by_body(api: str, body: Mapping[str, object]) -> str:
    """Return the provider that a field of ``body`` gives away, or an empty string."""
    for spec in PROVIDER_SPECS.values():
        field, beginning = spec.body_sign
        value = body.get(field) if field else None
        if api in spec.rules_by_api and isinstance(value, str) and value.startswith(beginning):
            return spec.name
    return ""


def find_provider(api: str, model: str, body: Mapping[str, object] | None = None) -> str:
    """Return the provider that a field of the body or the model gives away, or an empty string."""
    by_body = find_provider_by_body(api, body) if body is not None else ""
    return by_body or find_provider_by_model(api, model)


def has_unknown_message_rules(provider: str) -> bool:
    """Return whether what ``provider`` accepts is not known well enough to change a client's messages for it."""
    spec = PROVIDER_SPECS.get(provider)
    return spec is None or spec.keeps_client_content


def find_provider_by_fields(api: str, fields: Mapping[str, Raw]) -> str:
    """Return the provider that one of the raw top-level fields of a body gives away, or an empty string."""
    signs = {}
    for spec in PROVIDER_SPECS.values():
        field = spec.body_sign[0]
        if field in fields:
            signs[field] = read_json_text(fields[field])
    return find_provider_by_body(api, signs) if signs else ""


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
    refused_kinds = (
        *(kind for kind in dialect.refused_kinds if kind not in rules.accepted_kinds),
        *rules.refused_kinds,
    )
    if not rules.keeps_size_limits:
        dialect = replace(dialect, max_images=NO_LIMIT, max_bytes=NO_LIMIT)
    return replace(dialect, provider=provider, refused_kinds=refused_kinds, **rules.dialect_changes)
