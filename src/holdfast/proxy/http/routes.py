"""Classify a request by its address: which API, which endpoint, and which server is to answer it.

Paths are matched as they are in the request, without decoding and without the query.

A web framework's router maps decoded paths to handlers. Here a path is classified and passed on byte for byte, after
any prefix or version that the client put before it, so no library's router fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config.addresses import is_base_url
from holdfast.providers.api_spec import Endpoints
from holdfast.providers.registry import API_SPECS

RouteEndpoint: TypeAlias = Literal["generate", "count", "compact", "models", "probe", "other"]
"""An answer, a token count, a compaction, the list of models, a WebSocket upgrade, or anything else."""

_ENDPOINTS: tuple[RouteEndpoint, ...] = ("generate", "count", "compact")
"""Endpoints that take a request body of the API."""


def _list_posted_paths() -> dict[str, tuple[str, RouteEndpoint]]:
    """Return the endpoints with fixed paths: path without version → API and endpoint."""
    posted_paths: dict[str, tuple[str, RouteEndpoint]] = {}
    for spec in API_SPECS.values():
        for endpoint in _ENDPOINTS:
            path = spec.endpoints.get_path(endpoint)
            if path and not spec.endpoints.names_model:
                posted_paths[path.removeprefix(spec.endpoints.version)] = (spec.api, endpoint)
    return posted_paths


def _list_model_actions() -> dict[str, tuple[str, RouteEndpoint, bool]]:
    """Return the endpoints with the model in the path: action → API, endpoint, and whether it streams."""
    actions: dict[str, tuple[str, RouteEndpoint, bool]] = {}
    for spec in API_SPECS.values():
        if not spec.endpoints.names_model:
            continue
        for endpoint, stream in product(_ENDPOINTS, (False, True)):
            action = _get_action(spec.endpoints.get_path(endpoint, stream=stream))
            # An endpoint without a path of its own for streams has the same action twice.
            if action and action not in actions:
                actions[action] = (spec.api, endpoint, stream)
    return actions


def _get_action(path: str) -> str:
    """Return the action that follows the model in a path template, without the query."""
    return path.partition("?")[0].partition("{model}:")[2]


_POST_ENDPOINTS = _list_posted_paths()
_MODEL_ACTIONS = _list_model_actions()
_APIS_KNOWN_BY_HEADER = [spec for spec in reversed(API_SPECS.values()) if spec.endpoints.client_headers]
_APIS_KNOWN_BY_PATH = [spec for spec in reversed(API_SPECS.values()) if not spec.endpoints.client_headers]
"""The APIs in the order in which they are tried for a request to no known endpoint: the last registered first."""

_TAIL_PATTERN = re.compile(
    r"(?P<version>/v1(?:alpha|beta)?)?"
    rf"(?:(?P<posted>{'|'.join(_POST_ENDPOINTS)})|/models/(?P<model>[^/]+?)(?::|%3[aA])(?P<asked>{'|'.join(_MODEL_ACTIONS)})|"
    r"/models(?:/[^/:]+)?)/?"
)
"""A known path; with a named upstream, the end of the path."""
_CLOUD_PATTERNS = {
    spec.api: re.compile(rf"{spec.endpoints.cloud_path}\Z") for spec in API_SPECS.values() if spec.endpoints.cloud_path
}
"""Ends of paths at which a cloud serves an API."""
_VERTEX_PATTERN = re.compile(r"/(?:publishers/[^/]+|projects/[^/]+/locations/[^/]+)/")
"""Folders in which Google Cloud serves models, mostly with bodies that we do not parse."""
_SERVER_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""Scheme and host before the path, which clients send to an HTTP proxy."""
_NAMED_UPSTREAM_PATTERN = re.compile(
    r"/u/(?P<scheme>https?)(?::|%3A)(?:/|%2F){1,2}(?P<host>[^/?#@%\\\s]+)(?P<path>/[^?#\s]*)?", re.IGNORECASE
)
"""A path that names its upstream. Some clients collapse the two slashes into one."""
_ENCODED_UPSTREAM_PATTERN = re.compile(r"(?<=\A/u/)https?%3A[^/]*", re.IGNORECASE)
"""The same with the whole address percent-encoded."""
_LEADING_VERSION_PATTERN = re.compile(r"/v\d\w*(?=/)")
"""A version at the beginning of a path."""
_REPEATED_VERSION_PATTERN = re.compile(r"(?:/v1(?:alpha|beta)?)+(?=/v1(?:alpha|beta)?/)")
"""Versions before another one: some clients add their own to the one in their base address."""
_USUAL_VERSION = "/v1"
"""The version for a path of an unknown API."""
_TRAILING_VERSION_PATTERN = re.compile(r"/v\d\w*\Z")
"""A version at the end of a base address (``…/v1``, ``…/paas/v4``)."""


class Route(Struct, frozen=True):
    """A classified request. ``api`` is empty if it is unknown."""

    api: str = ""
    endpoint: RouteEndpoint = "other"
    model: str = ""
    """The model, if the address names it."""
    stream: bool = False
    """Whether the address asks for a stream of events."""
    base: str = ""
    """The upstream that the path names, or ``""``."""
    path: str = ""
    """The path for the upstream, with the query, unchanged. A query may contain a key."""

    @property
    def is_cloud(self) -> bool:
        """Whether a cloud serves the API here under a path of its own, which names the model."""
        return bool(self.model and self.api in API_SPECS and not API_SPECS[self.api].endpoints.names_model)

    @property
    def shown_path(self) -> str:
        """The path without the query, which is safe to show and to log."""
        return self.path.partition("?")[0]

    @property
    def upstream_setting(self) -> str:
        """The setting with the address of the provider: ``anthropic``, ``openai``, ``gemini``, or ``""`` if unknown."""
        if self.api not in API_SPECS:
            return ""
        return API_SPECS[self.api].endpoints.provider


def parse_route(method: str, path: str, query: str = "", headers: Mapping[str, str] = {}) -> Route:
    """Classify a request; names of ``headers`` are in lower case.

    A path that names an upstream but no known endpoint is relayed there. One that names an impossible upstream gets
    neither an API nor a base, and is refused.
    """
    query_suffix = f"?{query}" if query else ""
    path = _ENCODED_UPSTREAM_PATTERN.sub(lambda match: unquote(match[0]), _clean_path(path))
    url_match = _NAMED_UPSTREAM_PATTERN.fullmatch(path)
    # Meant to name an upstream, but impossible. It must not be taken for a path of the default provider.
    if url_match is None and path.lower().startswith("/u/http"):
        return Route(path=path + query_suffix)
    if url_match is None:
        tail_match = None
        if not _VERTEX_PATTERN.search(path):
            tail_match = _TAIL_PATTERN.fullmatch(path)
        route = _classify_path(method, tail_match, query, headers, path)
        return replace(route, path=path + query_suffix)
    server = f"{url_match['scheme'].lower()}://{url_match['host']}"
    inner = url_match["path"] or "/"
    # The pattern accepts hosts and ports that cannot exist.
    if not is_base_url(server):
        return Route(path=path + query_suffix)
    cloud_route = _find_cloud_route(method, server, inner)
    if cloud_route is not None:
        return replace(cloud_route, path=cloud_route.path + query_suffix)
    tail_match = None
    tail_start = 0
    if not _VERTEX_PATTERN.search(inner):
        tail_match = _match_known_tail(inner)
    if tail_match is not None:
        tail_start = tail_match.start()
    route = _classify_path(method, tail_match, query, headers, inner)
    return replace(route, base=server + inner[:tail_start], path=inner[tail_start:] + query_suffix)


def _find_cloud_route(method: str, server: str, path: str) -> Route | None:
    """Return the route for a path at which a cloud serves an API, or None for any other.

    Only a named upstream says which region and project are meant.
    """
    if method != "POST":
        return None
    for api, pattern in _CLOUD_PATTERNS.items():
        match = pattern.search(path)
        if match is not None:
            base = server + path[: match.start()]
            return Route(api, "generate", unquote(match["model"]), base=base, path=match[0])
    return None


def build_upstream_url(base: str, target_route: Route) -> str:
    """Return the full address for ``target_route``: below the upstream that it names, else below ``base``.

    If both have a version, that of ``base`` wins; if neither has, the API's own is added for a known endpoint.
    """
    if target_route.base:
        return target_route.base + target_route.path
    path = target_route.path
    base = base.rstrip("/")
    version_match = _LEADING_VERSION_PATTERN.match(path)
    # The user who set a base with a version knows what that server wants.
    if _TRAILING_VERSION_PATTERN.search(base):
        if version_match is not None:
            path = path[version_match.end() :]
        return base + path
    if version_match is not None or target_route.endpoint == "other":
        return base + path
    version = _USUAL_VERSION
    if target_route.api in API_SPECS:
        version = API_SPECS[target_route.api].endpoints.version
    return base + version + path


def make_model_answer_route(route: Route, model: str) -> Route:
    """Return the route that asks ``model`` for a whole answer, for an API with the model in the address.

    Server and query are those of ``route``, except that no stream is asked for.
    """
    path, _, query = route.path.partition("?")
    # ``alt=sse`` asks for a stream of events.
    remaining_query = "&".join(pair for pair in query.split("&") if pair and not pair.startswith("alt="))
    action = _get_action(API_SPECS[route.api].endpoints.generate)
    models_path = path.rpartition("/")[0]
    new_path = f"{models_path}/{quote(model, safe='')}:{action}"
    if remaining_query:
        new_path = f"{new_path}?{remaining_query}"
    return replace(route, path=new_path, stream=False)


def _clean_path(path: str) -> str:
    """Return the path alone, with one leading slash and at most one version."""
    server = _SERVER_PATTERN.match(path)
    if server is not None:
        path = path[server.end() :]
    path = "/" + path.lstrip("/")
    repeated_version = _REPEATED_VERSION_PATTERN.match(path)
    if repeated_version is not None:
        path = path[repeated_version.end() :]
    return path


def _match_known_tail(path: str) -> re.Match[str] | None:
    """Return the longest end of ``path`` that is a known path, or None."""
    # From the left, so that the first match is the longest one.
    for slash in re.finditer("/", path):
        tail_match = _TAIL_PATTERN.fullmatch(path, slash.start())
        if tail_match is not None:
            return tail_match
    return None


def _classify_path(
    method: str,
    tail: re.Match[str] | None,
    query: str,
    headers: Mapping[str, str],
    path: str,
) -> Route:
    """Return the route for ``tail``, the match of a known path, or for ``path`` without a match."""
    if method == "POST" and tail is not None:
        if tail["posted"]:
            return Route(*_POST_ENDPOINTS[tail["posted"]])
        if tail["asked"]:
            return _parse_model_route(tail, query)
    if tail is None:
        return Route(_guess_api(path, headers))
    fallback = Route(_guess_api(tail[0], headers))
    is_models_path = not tail["posted"] and not tail["asked"]
    if method in {"GET", "HEAD"} and is_models_path:
        return replace(fallback, endpoint="models")
    is_websocket_upgrade = method == "GET" and headers.get("upgrade", "").lower() == "websocket"
    if is_websocket_upgrade and tail["posted"]:
        api, endpoint = _POST_ENDPOINTS[tail["posted"]]
        if endpoint == "generate" and API_SPECS[api].endpoints.offers_websocket:
            return Route(api, "probe")
    return fallback


def _parse_model_route(tail: re.Match[str], query: str) -> Route:
    """Return the route for a path that names a model. A stream as one long JSON array is only relayed."""
    api, endpoint, streams = _MODEL_ACTIONS[tail["asked"]]
    parameters = parse_qs(query)
    is_event_stream = "sse" in parameters.get("alt", []) + parameters.get("$alt", [])
    if streams and not is_event_stream:
        return Route(api)
    return Route(api, endpoint, unquote(tail["model"]), streams)


def _guess_api(path: str, headers: Mapping[str, str]) -> str:
    """Return the likely API of a request to no known endpoint, by its path or its headers; ``""`` if unknown."""
    if _VERTEX_PATTERN.search(path):
        return ""
    for spec in (*_APIS_KNOWN_BY_HEADER, *_APIS_KNOWN_BY_PATH):
        if _is_likely_for(spec.endpoints, path, headers):
            return spec.api
    return ""


def _is_likely_for(endpoints: Endpoints, path: str, headers: Mapping[str, str]) -> bool:
    if endpoints.relayed_path and re.match(endpoints.relayed_path, path):
        return True
    user_agent = headers.get("user-agent", "").lower()
    has_client_header = not endpoints.client_headers.isdisjoint(headers)
    return has_client_header or user_agent.startswith(endpoints.client_programs)
