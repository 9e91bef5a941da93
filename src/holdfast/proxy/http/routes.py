"""What a request is, by its address: which API, which endpoint, and who is to answer it.

Paths are told as they stand in the request, percent signs and all, and without their query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config.addresses import is_base

Endpoint: TypeAlias = Literal["generate", "count", "compact", "models", "probe", "other"]
"""An answer, a count of tokens, a compaction, the list of models, a WebSocket that is asked for, anything else."""

_POSTED: dict[str, tuple[str, Endpoint]] = {
    "/messages": ("anthropic", "generate"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/chat/completions": ("openai-chat", "generate"),
    "/responses": ("openai-responses", "generate"),
    "/responses/compact": ("openai-responses", "compact"),
    "/responses/input_tokens": ("openai-responses", "count"),
}
"""What bodies are sent to, below the version."""
_GEMINI: dict[str, Endpoint] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
"""What Gemini's models are asked for."""
_UPSTREAMS = {"anthropic": "anthropic", "gemini": "gemini", "openai-chat": "openai", "openai-responses": "openai"}
"""The setting that names who answers an API."""

_TAIL = re.compile(
    r"(?P<version>/v1(?:alpha|beta)?)?"
    rf"(?:(?P<posted>{'|'.join(_POSTED)})|/models/(?P<model>[^/]+?)(?::|%3[aA])(?P<asked>{'|'.join(_GEMINI)})|"
    r"/models(?:/[^/:]+)?)/?"
)
"""A path that is known, whole; or the end of one that names its upstream."""
_VERTEX = re.compile(r"/(?:publishers/[^/]+|projects/[^/]+/locations/[^/]+)/")
"""Google Cloud serves models in folders of these names, with other bodies or none of our concern."""
_SERVER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
"""What stands before the path in a request to a relay."""
_NAMED = re.compile(
    r"/u/(?P<scheme>https?)(?::|%3A)(?:/|%2F){1,2}(?P<host>[^/?#@%\\\s]+)(?P<path>/[^?#\s]*)?", re.IGNORECASE
)
"""A path that names its upstream; some clients make one stroke of two."""
_ENCODED = re.compile(r"(?<=\A/u/)https?%3A[^/]*", re.IGNORECASE)
"""The same, as one who encodes all of an address writes it."""
_FIRST = re.compile(r"/v\d\w*(?=/)")
"""A path that begins with a version."""
_TWICE = re.compile(r"(?:/v1(?:alpha|beta)?)+(?=/v1(?:alpha|beta)?/)")
"""Versions before another one: a client adds its own to the one in its base address."""
_VERSION = re.compile(r"/v\d\w*\Z")
"""A base address that names a version of its own (``…/v1``, ``…/paas/v4``)."""
_OF_GOOGLE = re.compile(r"(?:/upload)?/v1(?:alpha|beta)/(?!projects/)")
_OF_OPENAI = re.compile(
    r"(?:/v1)?/(?:responses|conversations|chat|completions|embeddings|audio|images|videos|files|uploads|batches|"
    r"moderations|fine_tuning|vector_stores|assistants|threads|realtime|evals|containers|models)(?:/|\Z)"
)
_OF_ANTHROPIC = re.compile(r"(?:/v1)?/(?:messages|complete)(?:/|\Z)")


class Route(Struct, frozen=True):
    """What a request is. ``api`` is empty where nothing tells whose it is."""

    api: str = ""
    endpoint: Endpoint = "other"
    model: str = ""
    """The model, where the address names it."""
    stream: bool = False
    """Whether the address asks for events."""
    base: str = ""
    """The upstream that the path names, or nothing."""
    path: str = ""
    """What is asked of the upstream, with its query, as it came. A query may hold a key."""

    @property
    def place(self) -> str:
        """What may be shown and logged: the path without its query."""
        return self.path.partition("?")[0]

    @property
    def upstream(self) -> str:
        """The setting that names who answers: ``anthropic``, ``openai``, ``gemini``, or nothing."""
        return _UPSTREAMS.get(self.api, "")


def route(method: str, path: str, query: str = "", headers: Mapping[str, str] = {}) -> Route:
    """Return what a request is; the names of ``headers`` are in lower case.

    A path that names an upstream and no known endpoint is relayed there; one that names an impossible upstream has
    neither an API nor a base.
    """
    asked = f"?{query}" if query else ""
    path = _ENCODED.sub(lambda found: unquote(found[0]), _own(path))
    named = _NAMED.fullmatch(path)
    if named is None and path.lower().startswith("/u/http"):
        return Route(path=path + asked)
    if named is None:
        known = None if _VERTEX.search(path) else _TAIL.fullmatch(path)
        return replace(_known(method, known, query, headers, path), path=path + asked)
    server, inner = f"{named['scheme'].lower()}://{named['host']}", named["path"] or "/"
    if not is_base(server):
        return Route(path=path + asked)
    known = None if _VERTEX.search(inner) else _end(inner)
    start = known.start() if known else 0
    found = _known(method, known, query, headers, inner)
    return replace(found, base=server + inner[:start], path=inner[start:] + asked)


def address(base: str, found: Route) -> str:
    """Return the whole address of ``found`` below ``base``; below the upstream that it names itself, if it does.

    Where both name a version, the base's counts; where neither does, the usual one of a known endpoint is added.
    """
    if found.base:
        return found.base + found.path
    path, base = found.path, base.rstrip("/")
    told = _FIRST.match(path)
    if _VERSION.search(base):
        return base + (path[told.end() :] if told else path)
    added = "" if told or found.endpoint == "other" else "/v1beta" if found.api == "gemini" else "/v1"
    return base + added + path


def asking(route: Route, model: str) -> Route:
    """Return where Gemini's ``model`` is asked for a whole answer, by whom ``route`` asks and with all that it says."""
    path, _, query = route.path.partition("?")
    kept = "&".join(one for one in query.split("&") if one and not one.startswith("alt="))
    asked = f"{path.rpartition('/')[0]}/{quote(model, safe='')}:generateContent"
    return replace(route, path=f"{asked}?{kept}" if kept else asked, stream=False)


def _own(path: str) -> str:
    """Return the path alone, beginning with one stroke, and with one version at most."""
    server = _SERVER.match(path)
    own = "/" + path[server.end() if server else 0 :].lstrip("/")
    twice = _TWICE.match(own)
    return own[twice.end() :] if twice else own


def _end(path: str) -> re.Match[str] | None:
    """Return the longest end of ``path`` that is a known one."""
    starts = (one.start() for one in re.finditer("/", path))
    return next(filter(None, (_TAIL.fullmatch(path, start) for start in starts)), None)


def _known(method: str, tail: re.Match[str] | None, query: str, headers: Mapping[str, str], path: str) -> Route:
    """Return what is asked at ``tail``, a known path, or at ``path`` where there is none."""
    if method == "POST" and tail is not None and (tail["posted"] or tail["asked"]):
        return Route(*_POSTED[tail["posted"]]) if tail["posted"] else _gemini(tail, query)
    other = Route(_whose(path if tail is None else tail[0], headers))
    if tail is None:
        return other
    if method in {"GET", "HEAD"} and not tail["posted"] and not tail["asked"]:
        return replace(other, endpoint="models")
    if method == "GET" and tail["posted"] == "/responses" and headers.get("upgrade", "").lower() == "websocket":
        return Route("openai-responses", "probe")
    return other


def _gemini(tail: re.Match[str], query: str) -> Route:
    """Return what a model of Gemini is asked for; answers that stream as one long array are not ours to read."""
    streams = tail["asked"] == "streamGenerateContent"
    forms = parse_qs(query)
    if streams and "sse" not in forms.get("alt", []) + forms.get("$alt", []):
        return Route("gemini")
    return Route("gemini", _GEMINI[tail["asked"]], unquote(tail["model"]), streams)


def _whose(path: str, headers: Mapping[str, str]) -> str:
    """Return the API that a request belongs to of which no more is known: by its path, else by its headers."""
    if _VERTEX.search(path):
        return ""
    if _OF_GOOGLE.match(path) or "x-goog-api-key" in headers:
        return "gemini"
    if _OF_ANTHROPIC.match(path) or _speaks_to_anthropic(headers):
        return "anthropic"
    if not _OF_OPENAI.match(path):
        return ""
    return "openai-responses" if re.search(r"/(?:responses|conversations)(?:/|\Z)", path) else "openai-chat"


def _speaks_to_anthropic(headers: Mapping[str, str]) -> bool:
    program = headers.get("user-agent", "").lower()
    return "x-api-key" in headers or "anthropic-version" in headers or program.startswith(("claude", "anthropic"))
