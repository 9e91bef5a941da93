"""Find out whether a request is for one of the endpoints that work on messages without asking a provider."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from holdfast.proxy.http.access import AccessRefusal
from holdfast.proxy.http.routes import Route

_PATH_PATTERN = re.compile(r"/v1/(?:(?P<name>compress|compact|plan|recall)|retrieve/(?P<hash>[^/]+))/?\Z")


class LocalEndpoint(Struct, frozen=True):
    """An endpoint for gateways (``compress``, ``retrieve``) or for plugins of coding agents (the others)."""

    name: Literal["compress", "retrieve", "compact", "plan", "recall"]
    method: str = "POST"
    hash_segment: str = ""
    """The last segment of the path of ``retrieve``."""

    @property
    def is_for_gateways(self) -> bool:
        """Whether gateways ask here."""
        return self.name in {"compress", "retrieve"}

    def find_refusal(self, method: str) -> AccessRefusal | None:
        """Return why a request with ``method`` is refused, or None if it is the right one."""
        if method == self.method:
            return None
        why = f"{method[:20]} is not supported at this path; send {self.method}"
        return AccessRefusal("invalid_request", why, 405)


_POSTED_ENDPOINTS = {
    "compress": LocalEndpoint("compress"),
    "compact": LocalEndpoint("compact"),
    "plan": LocalEndpoint("plan"),
    "recall": LocalEndpoint("recall"),
}


def find_local_endpoint(route: Route) -> LocalEndpoint | None:
    """Return the endpoint at the path of ``route``, or None for any other path and for one below another server."""
    if route.base:
        return None
    match = _PATH_PATTERN.match(route.shown_path)
    if match is None:
        return None
    if match["hash"]:
        return LocalEndpoint("retrieve", "GET", match["hash"])
    return _POSTED_ENDPOINTS[match["name"]]
