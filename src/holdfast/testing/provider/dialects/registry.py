"""All servers by name. A new server is a module beside this one and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.provider.dialects.deepseek import DEEPSEEK
from holdfast.testing.provider.dialects.mistral import MISTRAL
from holdfast.testing.provider.dialects.server_dialect import ServerDialect

_DIALECTS = (MISTRAL, DEEPSEEK)

SERVERS: Mapping[str, ServerDialect] = {dialect.name: dialect for dialect in _DIALECTS}
"""The servers by name."""
SERVER_NAMES = tuple(SERVERS)
"""The allowed values of ``ProviderSettings.server``, beside the empty string for the API's own provider."""


def find_server(name: str) -> ServerDialect | None:
    """Return the server with this name, or None for the empty string."""
    return SERVERS[name] if name else None
