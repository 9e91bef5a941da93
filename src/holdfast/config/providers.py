"""The providers: their addresses, and the environment variables that point their SDKs at another address."""

from __future__ import annotations

from msgspec import Struct


class AddressVariable(Struct, frozen=True):
    """An environment variable with the address of a provider."""

    name: str
    suffix: str = ""
    """Path that clients expect after the provider's address."""
    is_usual: bool = True
    """Whether to set it for a client that did not have it; otherwise it is only redirected if it is set."""


class ProviderInfo(Struct, frozen=True):
    """A provider that answers requests whose path names no server."""

    name: str
    """Its name in settings and options."""
    answers: str
    """The APIs that it answers, as people call them."""
    official: str
    """Its own address, without a version."""
    path: str
    """Path after it in a setting."""
    variables: tuple[AddressVariable, ...]
    """Variables that its SDKs, LiteLLM and LangChain were found to read, the strongest first."""

    @property
    def base_url(self) -> str:
        """Its own address in the form of a setting."""
        return self.official + self.path


_ALL_PROVIDERS = (
    ProviderInfo(
        "anthropic",
        "Messages",
        "https://api.anthropic.com",
        "",
        (
            AddressVariable("ANTHROPIC_BASE_URL"),
            AddressVariable("ANTHROPIC_API_BASE", is_usual=False),
            AddressVariable("ANTHROPIC_API_URL", is_usual=False),
        ),
    ),
    ProviderInfo(
        "openai",
        "Chat Completions and Responses",
        "https://api.openai.com",
        "/v1",
        (AddressVariable("OPENAI_BASE_URL", "/v1"), AddressVariable("OPENAI_API_BASE", "/v1")),
    ),
    ProviderInfo(
        "gemini",
        "Gemini",
        "https://generativelanguage.googleapis.com",
        "",
        (AddressVariable("GOOGLE_GEMINI_BASE_URL"), AddressVariable("GEMINI_API_BASE", "/v1beta")),
    ),
)
PROVIDERS = {provider.name: provider for provider in _ALL_PROVIDERS}
"""All providers by name."""


def _index_address_variables() -> dict[str, tuple[ProviderInfo, AddressVariable]]:
    variables = {}
    for provider in _ALL_PROVIDERS:
        for variable in provider.variables:
            variables[variable.name] = (provider, variable)
    return variables


ADDRESS_VARIABLES = _index_address_variables()
"""All variables by name, each with its provider."""


def build_sdk_variables(address: str) -> dict[str, str]:
    """Return the variables that point the SDK of each provider at a server at ``address``."""
    values = {}
    for provider in _ALL_PROVIDERS:
        strongest = provider.variables[0]
        values[strongest.name] = address + strongest.suffix
    return values
