"""What a request is, by its address: which API, which endpoint, and who is to answer it.

Paths are told as they stand in the request, percent signs and all, and without their query.

A web framework's router maps decoded paths to handlers. Here a path is classified and passed on byte for byte, behind
whatever prefix or version the client put before it, so no router of a library fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config.addresses import is_base_url
from holdfast.providers.api_spec import Endpoints
from holdfast.providers.registry import API_SPECS

RouteEndpoint: TypeAlias = Literal["generate", "count", "compact", "models", "probe", "other"]
"""An answer, a count of tokens, a compaction, the list of models, a WebSocket that is asked for, anything else."""

_ENDPOINTS: tuple[RouteEndpoint, ...] = ("generate", "count", "compact")
"""What bodies are sent for."""


def _list_posted_paths() -> dict[str, tuple[str, RouteEndpoint]]:
    """Return what bodies are sent to, below the version, with the API and what is asked for there."""
    posted_paths: dict[str, tuple[str, RouteEndpoint]] = {}
    for spec in API_SPECS.values():
        for endpoint in _ENDPOINTS:
            path = spec.endpoints.get_path(endpoint)
            if path and not spec.endpoints.names_model:
                posted_paths[path.removeprefix(spec.endpoints.version)] = (spec.api, endpoint)
    return posted_paths


def _list_model_actions() -> dict[str, tuple[str, RouteEndpoint, bool]]:
    """Return what models are asked for at an address that names them: the API, what it is, and whether it streams."""
    actions: dict[str, tuple[str, RouteEndpoint, bool]] = {}
    for spec in API_SPECS.values():
        if spec.endpoints.names_model:
            for endpoint in _ENDPOINTS:
                for stream in (False, True):
                    action = _get_action(spec.endpoints.get_path(endpoint, stream=stream))
                    if action and action not in actions:
                        actions[action] = (spec.api, endpoint, stream)
    return actions


def _get_action(path: str) -> str:
    """Return what stands behind the model in a path, without its query."""
    return path.partition("?")[0].partition("{model}:")[2]


_POST_ENDPOINTS = _list_posted_paths()
_MODEL_ACTIONS = _list_model_actions()
_APIS_KNOWN_BY_HEADER = [spec for spec in reversed(API_SPECS.values()) if spec.endpoints.client_headers]
_APIS_KNOWN_BY_PATH = [spec for spec in reversed(API_SPECS.values()) if not spec.endpoints.client_headers]
"""The APIs in the order in which a request is looked at that is for no known endpoint: the last row goes first."""

_TAIL_PATTERN = re.compile(
    r"(?P<version>/v1(?:alpha|beta)?)?"
    rf"(?:(?P<posted>{'|'.join(_POST_ENDPOINTS)})|/models/(?P<model>[^/]+?)(?::|%3[aA])(?P<asked>{'|'.join(_MODEL_ACTIONS)})|"
    r"/models(?:/[^/:]+)?)/?"
)
"""A path that is known, whole; or the end of one that names its upstream."""
_VERTEX_PATTERN = re.compile(r"/(?:publishers/[^/]+|projects/[^/]+/locations/[^/]+)/")
"""Google Cloud serves models in folders of these names, with other bodies or none of our concern."""
_SERVER_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""What stands before the path in a request to a relay."""
_NAMED_UPSTREAM_PATTERN = re.compile(
    r"/u/(?P<scheme>https?)(?::|%3A)(?:/|%2F){1,2}(?P<host>[^/?#@%\\\s]+)(?P<path>/[^?#\s]*)?", re.IGNORECASE
)
"""A path that names its upstream; some clients make one stroke of two."""
_ENCODED_UPSTREAM_PATTERN = re.compile(r"(?<=\A/u/)https?%3A[^/]*", re.IGNORECASE)
"""The same, as one who encodes all of an address writes it."""
_LEADING_VERSION_PATTERN = re.compile(r"/v\d\w*(?=/)")
"""A path that begins with a version."""
_REPEATED_VERSION_PATTERN = re.compile(r"(?:/v1(?:alpha|beta)?)+(?=/v1(?:alpha|beta)?/)")
"""Versions before another one: a client adds its own to the one in its base address."""
_USUAL_VERSION = "/v1"
"""The version of a path of which nothing tells the API."""
_TRAILING_VERSION_PATTERN = re.compile(r"/v\d\w*\Z")
"""A base address that names a version of its own (``…/v1``, ``…/paas/v4``)."""


class Route(Struct, frozen=True):
    """What a request is. ``api`` is empty where nothing tells whose it is."""

    api: str = ""
    endpoint: RouteEndpoint = "other"
    model: str = ""
    """The model, where the address names it."""
    stream: bool = False
    """Whether the address asks for events."""
    base: str = ""
    """The upstream that the path names, or nothing."""
    path: str = ""
    """What is asked of the upstream, with its query, as it came. A query may hold a key."""

    @property
    def shown_path(self) -> str:
        """What may be shown and logged: the path without its query."""
        return self.path.partition("?")[0]

    @property
    def upstream_setting(self) -> str:
        """The setting that names who answers: ``anthropic``, ``openai``, ``gemini``, or nothing."""
        return API_SPECS[self.api].endpoints.provider if self.api in API_SPECS else ""


def parse_route(method: str, path: str, query: str = "", headers: Mapping[str, str] = {}) -> Route:
    """Return what a request is; the names of ``headers`` are in lower case.

    A path that names an upstream and no known endpoint is relayed there; one that names an impossible upstream has
    neither an API nor a base.
    """
    query_suffix = f"?{query}" if query else ""
    path = _ENCODED_UPSTREAM_PATTERN.sub(lambda match: unquote(match[0]), _clean_path(path))
    url_match = _NAMED_UPSTREAM_PATTERN.fullmatch(path)
    if url_match is None and path.lower().startswith("/u/http"):
        return Route(path=path + query_suffix)
    if url_match is None:
        tail_match = None if _VERTEX_PATTERN.search(path) else _TAIL_PATTERN.fullmatch(path)
        return replace(_classify_path(method, tail_match, query, headers, path), path=path + query_suffix)
    server, inner = f"{url_match['scheme'].lower()}://{url_match['host']}", url_match["path"] or "/"
    if not is_base_url(server):
        return Route(path=path + query_suffix)
    tail_match = None if _VERTEX_PATTERN.search(inner) else _match_known_tail(inner)
    start = tail_match.start() if tail_match else 0
    match = _classify_path(method, tail_match, query, headers, inner)
    return replace(match, base=server + inner[:start], path=inner[start:] + query_suffix)


def build_upstream_url(base: str, target_route: Route) -> str:
    """Return the whole address of ``target_route`` below ``base``; below the upstream that it names itself, if it does.

    Where both name a version, the base's counts; where neither does, the usual one of a known endpoint is added.
    """
    if target_route.base:
        return target_route.base + target_route.path
    path, base = target_route.path, base.rstrip("/")
    version_match = _LEADING_VERSION_PATTERN.match(path)
    if _TRAILING_VERSION_PATTERN.search(base):
        return base + (path[version_match.end() :] if version_match else path)
    if version_match or target_route.endpoint == "other":
        return base + path
    version = API_SPECS[target_route.api].endpoints.version if target_route.api in API_SPECS else _USUAL_VERSION
    return base + version + path


def make_model_answer_route(route: Route, model: str) -> Route:
    """Return where ``model`` is asked for a whole answer, at an API whose addresses name the model.

    It is asked by whom ``route`` asks, and with all that it says.
    """
    path, _, query = route.path.partition("?")
    remaining_query = "&".join(pair for pair in query.split("&") if pair and not pair.startswith("alt="))
    action = _get_action(API_SPECS[route.api].endpoints.generate)
    new_path = f"{path.rpartition('/')[0]}/{quote(model, safe='')}:{action}"
    return replace(route, path=f"{new_path}?{remaining_query}" if remaining_query else new_path, stream=False)


def _clean_path(path: str) -> str:
    """Return the path alone, beginning with one stroke, and with one version at most."""
    server = _SERVER_PATTERN.match(path)
    own = "/" + path[server.end() if server else 0 :].lstrip("/")
    twice = _REPEATED_VERSION_PATTERN.match(own)
    return own[twice.end() :] if twice else own


def _match_known_tail(path: str) -> re.Match[str] | None:
    """Return the longest end of ``path`` that is a known one."""
    starts = (slash.start() for slash in re.finditer("/", path))
    return next(filter(None, (_TAIL_PATTERN.fullmatch(path, start) for start in starts)), None)


def _classify_path(method: str, tail: re.Match[str] | None, query: str, headers: Mapping[str, str], path: str) -> Route:
    """Return what is asked at ``tail``, a known path, or at ``path`` where there is none."""
    if method == "POST" and tail is not None and (tail["posted"] or tail["asked"]):
        return Route(*_POST_ENDPOINTS[tail["posted"]]) if tail["posted"] else _parse_model_route(tail, query)
    fallback = Route(_guess_api(path if tail is None else tail[0], headers))
    if tail is None:
        return fallback
    if method in {"GET", "HEAD"} and not tail["posted"] and not tail["asked"]:
        return replace(fallback, endpoint="models")
    if method == "GET" and tail["posted"] and headers.get("upgrade", "").lower() == "websocket":
        api, endpoint = _POST_ENDPOINTS[tail["posted"]]
        if endpoint == "generate" and API_SPECS[api].endpoints.offers_websocket:
            return Route(api, "probe")
    return fallback


def _parse_model_route(tail: re.Match[str], query: str) -> Route:
    """Return what a model is asked for; answers that stream as one long array are not ours to read."""
    api, endpoint, streams = _MODEL_ACTIONS[tail["asked"]]
    forms = parse_qs(query)
    if streams and "sse" not in forms.get("alt", []) + forms.get("$alt", []):
        return Route(api)
    return Route(api, endpoint, unquote(tail["model"]), streams)


def _guess_api(path: str, headers: Mapping[str, str]) -> str:
    """Return the API that a request belongs to of which no more is known: by its path, else by its headers."""
    if _VERTEX_PATTERN.search(path):
        return ""
    for spec in (*_APIS_KNOWN_BY_HEADER, *_APIS_KNOWN_BY_PATH):
        if _is_likely_for(spec.endpoints, path, headers):
            return spec.api
    return ""


def _is_likely_for(endpoints: Endpoints, path: str, headers: Mapping[str, str]) -> bool:
    if endpoints.relayed_path and re.match(endpoints.relayed_path, path):
        return True
    program = headers.get("user-agent", "").lower()
    return not endpoints.client_headers.isdisjoint(headers) or program.startswith(endpoints.client_programs)
