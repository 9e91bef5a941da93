"""Providers as people reach them: addresses, and the variables that hold their keys."""

from __future__ import annotations

import os

from msgspec import Struct

from holdfast.cli.output.errors import CommandError
from holdfast.config.providers import PROVIDERS
from holdfast.providers.registry import API_SPECS


class ProviderAccess(Struct, frozen=True):
    """How the APIs of one provider are reached."""

    provider: str
    """Whose it is."""
    key_variables: tuple[str, ...]
    """The variables that may hold a key, the first one first."""
    header: str
    """The header that carries the key."""
    key_prefix: str = ""
    """What stands before the key there."""

    @property
    def url(self) -> str:
        """Where its own provider is."""
        return PROVIDERS[self.provider].official

    @property
    def url_variable(self) -> str:
        """The variable that points its SDK elsewhere."""
        return PROVIDERS[self.provider].variables[0].name


_ACCESS_BY_PROVIDER = {
    "anthropic": ProviderAccess("anthropic", ("ANTHROPIC_API_KEY",), "x-api-key"),
    "openai": ProviderAccess("openai", ("OPENAI_API_KEY",), "authorization", "Bearer "),
    "gemini": ProviderAccess("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "x-goog-api-key"),
}
PROVIDER_ACCESS = {api: _ACCESS_BY_PROVIDER[spec.endpoints.provider] for api, spec in API_SPECS.items()}
"""How each API is reached: as its provider is."""
KEY_VARIABLES = frozenset(name for access in PROVIDER_ACCESS.values() for name in access.key_variables)
"""All variables that hold keys."""


def get_api_url(api: str, option: str | None) -> str:
    """Return where ``api`` is reached: as given, else as its SDK's variable says, else at its own provider."""
    return option or os.environ.get(PROVIDER_ACCESS[api].url_variable) or PROVIDER_ACCESS[api].url


def make_auth_headers(api: str, url: str) -> dict[str, str]:
    """Return the headers of requests to ``url``, with the key if there is one.

    Raises ``CommandError`` where there is none and its own provider wants one; a server of your own may want none.
    """
    access = PROVIDER_ACCESS[api]
    key = next((os.environ[name] for name in access.key_variables if os.environ.get(name)), "")
    if not key and url == access.url:
        names = " or ".join(access.key_variables)
        raise CommandError(f"{url} wants a key and there is none; set {names}, or give --base-url for another server")
    if not (key.isascii() and key.isprintable()):
        raise CommandError(
            f"the key in {access.key_variables[0]} is none: it holds letters that no header takes; set it again"
        )
    return {access.header: f"{access.key_prefix}{key}"} if key else {}
