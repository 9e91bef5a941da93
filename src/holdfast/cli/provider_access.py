"""How the command line reaches providers: their addresses, and the variables that hold their keys."""

from __future__ import annotations

import os

from msgspec import Struct

from holdfast.cli.output.errors import CommandError
from holdfast.config.providers import PROVIDERS
from holdfast.providers.registry import API_SPECS


class ProviderAccess(Struct, frozen=True):
    """How the APIs of one provider are reached."""

    provider: str
    """The name of the provider."""
    key_variables: tuple[str, ...]
    """The variables that may hold a key, in the order they are tried."""
    header: str
    """The header that carries the key."""
    key_prefix: str = ""
    """Text before the key in that header."""

    @property
    def url(self) -> str:
        """The address of the provider itself."""
        return PROVIDERS[self.provider].official

    @property
    def url_variable(self) -> str:
        """The variable that points the provider's SDK to another address."""
        return PROVIDERS[self.provider].variables[0].name


_ACCESS_BY_PROVIDER = {
    "anthropic": ProviderAccess("anthropic", ("ANTHROPIC_API_KEY",), "x-api-key"),
    "openai": ProviderAccess("openai", ("OPENAI_API_KEY",), "authorization", "Bearer "),
    "gemini": ProviderAccess("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "x-goog-api-key"),
}
PROVIDER_ACCESS = {api: _ACCESS_BY_PROVIDER[spec.endpoints.provider] for api, spec in API_SPECS.items()}
"""How each API is reached, by the API's name."""
KEY_VARIABLES = frozenset(name for access in PROVIDER_ACCESS.values() for name in access.key_variables)
"""All variables that hold keys."""


def get_api_url(api: str, option: str | None) -> str:
    """Return the address of ``api``: the given one, else the one in its SDK's variable, else its provider's own."""
    return option or os.environ.get(PROVIDER_ACCESS[api].url_variable) or PROVIDER_ACCESS[api].url


def make_auth_headers(api: str, url: str) -> dict[str, str]:
    """Return the headers that authorize requests to ``url``, empty if no key is set.

    Raises ``CommandError`` if the provider's own address is used without a key; a server of your own may need none.
    """
    access = PROVIDER_ACCESS[api]
    key = ""
    for name in access.key_variables:
        if os.environ.get(name):
            key = os.environ[name]
            break
    if not key and url == access.url:
        names = " or ".join(access.key_variables)
        raise CommandError(f"{url} needs a key and none is set; set {names}, or give --base-url for another server")
    if not (key.isascii() and key.isprintable()):
        raise CommandError(
            f"the key in {access.key_variables[0]} has characters that a header cannot hold; set it again"
        )
    return {access.header: f"{access.key_prefix}{key}"} if key else {}
