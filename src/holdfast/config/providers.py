"""The providers that clients ask: where each of them is, and the variables by which its SDKs are led elsewhere."""

from __future__ import annotations

from msgspec import Struct


class AddressVariable(Struct, frozen=True):
    """A variable that holds an address."""

    name: str
    behind: str = ""
    """What clients want to stand behind the provider's address."""
    is_usual: bool = True
    """Whether a client is given it where it was not set; else it is only led through the proxy."""


class ProviderInfo(Struct, frozen=True):
    """Who answers requests that name nobody else."""

    name: str
    """What settings and options call it."""
    answers: str
    """The APIs that it answers, as people call them."""
    official: str
    """Its own address, without a version."""
    path: str
    """What stands behind that in a setting."""
    variables: tuple[AddressVariable, ...]
    """What its SDKs, LiteLLM and LangChain read, the strongest first. [M]"""

    @property
    def base_url(self) -> str:
        """Its own address as a setting holds it."""
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
"""The providers by their names."""
ADDRESS_VARIABLES = {
    variable.name: (provider, variable) for provider in _ALL_PROVIDERS for variable in provider.variables
}
"""The variables of them all, each with its provider."""


def build_sdk_variables(address: str) -> dict[str, str]:
    """Return the variables that lead the SDK of each provider to a server at ``address``."""
    return {provider.variables[0].name: address + provider.variables[0].behind for provider in _ALL_PROVIDERS}
