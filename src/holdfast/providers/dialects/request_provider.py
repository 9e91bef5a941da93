"""Find who serves a request: by what somebody said, by the address, by a field of the body, or by the model's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv6Address
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from msgspec import Raw, Struct

from holdfast.errors import ConfigError
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.dialects.registry import PROVIDER_NAMES, PROVIDER_SPECS
from holdfast.state.dialect import Dialect

ProviderSign: TypeAlias = Literal["", "option", "address", "setting", "body", "model", "guess"]
"""What told the provider: ``--provider`` or ``provider=``, the address of the request, a line of the catalogue, a field
of the body, or the model's name, which is but a guess at an address that is not known; empty if nothing did."""


class RequestProvider(Struct, frozen=True):
    """Who serves a request, and how that was told."""

    name: str = ""
    """One of ``PROVIDER_NAMES``; empty if the provider is not known."""
    told_by: ProviderSign = ""

    @property
    def is_guess(self) -> bool:
        """Whether the model's name alone told it, although the request goes to an address, which is not known.

        A gateway may pass such a request on to the maker, and then the maker's rules about messages hold: they cost
        little where they do not. But open weights are served under the same names, by servers that take other options
        (vLLM has ``seed``, ``top_k`` and ``min_p``), so no rule about fields beside the messages is applied.
        """
        return self.told_by == "guess"


_NO_FIELDS: Mapping[str, Raw] = MappingProxyType({})
_VENDOR_HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "generativelanguage.googleapis.com": "gemini",
}


def check_provider_name(name: str) -> None:
    """Raise ``ConfigError`` with the known providers, the nearest one last, unless ``name`` is one of them or empty."""
    if not name or name in PROVIDER_NAMES:
        return
    near = get_close_matches(str(name).lower(), PROVIDER_NAMES, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"no provider is called {name!r}; the providers are {', '.join(PROVIDER_NAMES)}{suggestion}")


def find_request_provider(
    api: str,
    model: str,
    *,
    named: str = "",
    address: str = "",
    configured: str = "",
    fields: Mapping[str, Raw] = _NO_FIELDS,
) -> RequestProvider:
    """Find who serves a request for ``model`` over ``api``; the strongest sign decides.

    ``named`` is the provider that the caller named, ``address`` the URL that the request goes to (empty if there is
    none, as for a body in a file), ``configured`` the provider by the catalogue, and ``fields`` the top-level fields of
    the body. Raises ``ConfigError`` for names that no provider has.
    """
    check_provider_name(named)
    check_provider_name(configured)
    if named:
        return RequestProvider(named, "option")
    by_host = _find_provider_by_host(address)
    if by_host:
        return RequestProvider(by_host, "address")
    if configured:
        return RequestProvider(configured, "setting")
    # After the setting: any server may listen at the usual port of another one.
    by_port = _find_provider_by_port(address)
    if by_port:
        return RequestProvider(by_port, "address")
    by_body = _find_provider_by_body(api, fields)
    if by_body:
        return RequestProvider(by_body, "body")
    by_model = _find_provider_by_model(api, model.lower())
    if by_model:
        return RequestProvider(by_model, "guess" if address else "model")
    return RequestProvider()


def get_dialect_provider(dialect: Dialect) -> RequestProvider:
    """Return the provider for which ``dialect`` was built.

    Of what told it a dialect keeps only whether that was the model's name (``model`` or ``guess``); else that is empty.
    """
    return RequestProvider(dialect.provider, dialect.provider_told_by)


@lru_cache(maxsize=1 << 10)
def _find_provider_by_host(address: str) -> str:
    url = _split_address(address)
    if url is None:
        return ""
    host = _get_host(url)
    if host in _VENDOR_HOSTS:
        return _VENDOR_HOSTS[host]
    for spec in PROVIDER_SPECS.values():
        is_known_host = any(_is_host_of(host, pattern) for pattern in spec.hosts)
        if is_known_host and re.search(spec.url_pattern, address.lower()):
            return spec.name
    return ""


@lru_cache(maxsize=1 << 10)
def _find_provider_by_port(address: str) -> str:
    url = _split_address(address)
    if url is None or not _is_private_name(_get_host(url)):
        return ""
    for spec in PROVIDER_SPECS.values():
        if url.port in spec.ports and re.search(spec.url_pattern, address.lower()):
            return spec.name
    return ""


def _split_address(address: str) -> SplitResult | None:
    """Return the parts of ``address``, or None if it is no valid URL."""
    try:
        url = urlsplit(address)
        _ = url.port  # raises ValueError for one that no server can have
    except ValueError:
        return None
    return url


def _get_host(url: SplitResult) -> str:
    return (url.hostname or "").removesuffix(".")


def _is_host_of(host: str, pattern: str) -> bool:
    if pattern.startswith("."):
        return host.endswith(pattern)
    return fnmatchcase(host, pattern)


def _is_private_name(host: str) -> bool:
    """Return whether ``host`` can only be a machine of the user's own: by its name or a private address."""
    if ":" in host:  # an IPv6 address, perhaps with a zone
        try:
            return IPv6Address(host.partition("%")[0]).is_private
        except ValueError:
            return False
    if host == "localhost" or "." not in host or host.endswith((".localhost", ".local", ".internal", ".lan")):
        return True
    return re.match(r"(?:127\.|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.)", host) is not None


def _find_provider_by_body(api: str, fields: Mapping[str, Raw]) -> str:
    """Return the provider that one of the top-level ``fields`` gives away, or an empty string."""
    for spec in PROVIDER_SPECS.values():
        field, beginning = spec.body_sign
        if field in fields and api in spec.rules_by_api and read_json_text(fields[field]).startswith(beginning):
            return spec.name
    return ""


# Weights are published under longer names than those by which their maker serves them: with what kind of checkpoint it
# is (``-instruct``, ``-base``), how it is stored (``-fp8``, ``-awq``, ``-gguf``) and how many parameters it has
# (``-24b``, ``-a3b``). Names on huggingface.co of mistralai, moonshotai, zai-org, deepseek-ai and MiniMaxAI, 2026-11.
_WEIGHTS_MARK = re.compile(
    r"[-.](?:instruct|base|chat-hf|hf|it|gguf|ggml|gptq|awq|exl[23]|mlx|fp[48]|nvfp4|mxfp4|int[48]|bf16|fp16|[248]bit|"
    r"q[2-8](?:[-.].*)?|a?\d+(?:\.\d+)?b|v0\.\d)(?=[-.]|$)"
)
# Hosted names with such a mark: docs.mistral.ai/getting-started/models (Ministral 3B and 8B, Pixtral 12B); Z.ai's
# GLM-4-32B-0414-128K (recalled); all names that Cerebras writes with its own hyphen ("qwen-3-235b-a22b-instruct-2507").
_HOSTED_NAMES_WITH_MARK = re.compile(
    r"ministral-\d+b(?:-latest|-\d{4})?|pixtral-12b(?:-latest|-\d{4})?|glm-4-32b-0414-128k|qwen-3[.-].+"
)


@lru_cache(maxsize=1 << 10)
def _find_provider_by_model(api: str, model: str) -> str:
    """Return the provider that alone offers ``model``, in lower case, under this name over ``api``, or "".

    A name with a slash (``vendor/model``) is that of a gateway or of an open model, so it names no provider.
    """
    if _WEIGHTS_MARK.search(model) and not _HOSTED_NAMES_WITH_MARK.fullmatch(model):
        return ""
    for spec in PROVIDER_SPECS.values():
        if api in spec.rules_by_api and spec.model_pattern and re.fullmatch(spec.model_pattern, model):
            return spec.name
    return ""
