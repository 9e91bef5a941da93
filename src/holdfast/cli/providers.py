"""Providers as people reach them: addresses, and the variables that hold their keys."""

from __future__ import annotations

import os

from msgspec import Struct

from holdfast.cli.output.errors import Stopped
from holdfast.config.providers import PROVIDERS


class Access(Struct, frozen=True):
    """How one API is reached."""

    provider: str
    """Whose it is."""
    keys: tuple[str, ...]
    """The variables that may hold a key, the first one first."""
    header: str
    """The header that carries the key."""
    before: str = ""
    """What stands before the key there."""

    @property
    def url(self) -> str:
        """Where its own provider is."""
        return PROVIDERS[self.provider].official

    @property
    def url_variable(self) -> str:
        """The variable that points its SDK elsewhere."""
        return PROVIDERS[self.provider].variables[0].name


_OPENAI = Access("openai", ("OPENAI_API_KEY",), "authorization", "Bearer ")
ACCESS = {
    "anthropic": Access("anthropic", ("ANTHROPIC_API_KEY",), "x-api-key"),
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
    "gemini": Access("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "x-goog-api-key"),
}
"""The four APIs."""
KEYS = frozenset(name for one in ACCESS.values() for name in one.keys)
"""All variables that hold keys."""


def address(api: str, given: str | None) -> str:
    """Return where ``api`` is reached: as given, else as its SDK's variable says, else at its own provider."""
    return given or os.environ.get(ACCESS[api].url_variable) or ACCESS[api].url


def headers(api: str, url: str) -> dict[str, str]:
    """Return the headers of requests to ``url``, with the key if there is one.

    Raises ``Stopped`` where there is none and its own provider wants one; a server of your own may want none.
    """
    access = ACCESS[api]
    key = next((os.environ[name] for name in access.keys if os.environ.get(name)), "")
    if not key and url == access.url:
        names = " or ".join(access.keys)
        raise Stopped(f"{url} wants a key and there is none; set {names}, or give --base-url for another server")
    if not (key.isascii() and key.isprintable()):
        raise Stopped(f"the key in {access.keys[0]} is none: it holds letters that no header takes; set it again")
    return {access.header: f"{access.before}{key}"} if key else {}
