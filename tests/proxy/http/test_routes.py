"""The path of a request says what it asks for and where it goes."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.http.routes import Route, build_upstream_url, parse_route

SOCKET = {"upgrade": "websocket", "connection": "Upgrade", "openai-beta": "responses_websockets=2026-02-06"}
KNOWN = (
    ("/v1/messages", "anthropic", "generate"),
    ("/v1/messages/count_tokens", "anthropic", "count"),
    ("/v1/chat/completions", "openai-chat", "generate"),
    ("/v1/responses", "openai-responses", "generate"),
    ("/v1/responses/compact", "openai-responses", "compact"),
    ("/v1/responses/input_tokens", "openai-responses", "count"),
    ("/v1beta/models/gemini-x:generateContent", "gemini", "generate"),
    ("/v1beta/models/gemini-x:countTokens", "gemini", "count"),
)
pieces = st.text("abz/.:%2Fu?v1 @\\#é", max_size=12)


@pytest.mark.parametrize(("path", "api", "endpoint"), KNOWN)
@pytest.mark.parametrize("query", ["", "beta=true", "alt=sse&key=/v1/other"])
def test_parse_route_recognizes_every_endpoint(path, api, endpoint, query):
    """Every endpoint is recognized by its path, with and without version and query, under any host, with an escaped
    colon or a doubled version.
    """
    bare = path.replace("/v1beta", "").replace("/v1", "", 1)
    twice = (f"/v1{path}", f"/v1beta{path}", f"//v1/v1{path}")
    for spelling in (
        path,
        bare,
        f"{path}/",
        f"/{path}",
        path.replace(":", "%3A"),
        f"http://localhost:8642{path}",
        *twice,
    ):
        found = parse_route("POST", spelling, query)
        assert (found.api, found.endpoint, found.base) == (api, endpoint, "")
        assert found.path.partition("?")[2] == query
    for named in (f"/u/https://host.example/x{path}", f"/u/https:/host.example/x{path}"):
        found = parse_route("POST", named, query)
        assert (found.api, found.endpoint, found.base) == (api, endpoint, "https://host.example/x")
        assert found.path == path + (f"?{query}" if query else "")


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "route"),
    [
        ("POST", "/v1/messages", "beta=true", {}, Route("anthropic", "generate", path="/v1/messages?beta=true")),
        ("GET", "/v1/responses", "", SOCKET, Route("openai-responses", "probe", path="/v1/responses")),
        ("GET", "/responses", "", {"upgrade": "WebSocket"}, Route("openai-responses", "probe", path="/responses")),
        ("GET", "/v1/responses", "", {}, Route("openai-responses", path="/v1/responses")),
        ("GET", "/v1/responses/resp_1", "", {}, Route("openai-responses", path="/v1/responses/resp_1")),
        ("GET", "/v1/messages", "", {}, Route("anthropic", path="/v1/messages")),
        ("GET", "/v1/models", "", {}, Route("openai-chat", "models", path="/v1/models")),
        ("GET", "/v1/models/m-1", "", {"x-api-key": "k"}, Route("anthropic", "models", path="/v1/models/m-1")),
        ("GET", "/models", "", {"x-goog-api-key": "k"}, Route("gemini", "models", path="/models")),
        ("GET", "/v1beta/models", "", {}, Route("gemini", "models", path="/v1beta/models")),
        ("POST", "/v1/messages/batches", "", {}, Route("anthropic", path="/v1/messages/batches")),
        ("POST", "/v1/conversations", "", {}, Route("openai-responses", path="/v1/conversations")),
        ("POST", "/v1/embeddings", "", {}, Route("openai-chat", path="/v1/embeddings")),
        ("POST", "/upload/v1beta/files", "", {}, Route("gemini", path="/upload/v1beta/files")),
        ("POST", "/api/events", "", {"anthropic-version": "2026-10-21"}, Route("anthropic", path="/api/events")),
        ("GET", "/api/oauth", "", {"user-agent": "claude-cli/2.1"}, Route("anthropic", path="/api/oauth")),
        ("POST", "/v1beta/interactions", "", {}, Route("gemini", path="/v1beta/interactions")),
        ("POST", "/v1/interactions", "", {}, Route("gemini", path="/v1/interactions")),
        ("GET", "/v1/interactions/a1", "", {}, Route("gemini", path="/v1/interactions/a1")),
        ("HEAD", "/", "", {}, Route(path="/")),
        ("OPTIONS", "*", "", {}, Route(path="/*")),
        ("POST", "/model/anthropic.claude/invoke", "", {}, Route(path="/model/anthropic.claude/invoke")),
        ("POST", "/v1internal:generateContent", "", {}, Route(path="/v1internal:generateContent")),
        ("POST", "/v1/messagesx", "", {}, Route(path="/v1/messagesx")),
        ("POST", "/x/v1/messages", "", {}, Route(path="/x/v1/messages")),
    ],
)
def test_parse_route_recognizes_models_probes_and_relayed_paths(method, path, query, headers, route):
    """Model lists, the websocket probe and relayed paths get the provider that the path or a header names."""
    assert parse_route(method, path, query, headers) == route


CLOUD = "/u/https://eu-aiplatform.googleapis.com"


@pytest.mark.parametrize(
    ("host", "model"),
    [
        ("", "google/models/gemini-x:generateContent"),
        (CLOUD, "google/models/gemini-x:generateContent"),
        ("", "anthropic/models/claude:rawPredict"),
        (CLOUD, "anthropic/models/count-tokens:rawPredict"),
        (CLOUD, "anthropic/models/claude:predict"),
        (CLOUD, "anthropic/models/claude:rawPredict/x"),
    ],
)
def test_parse_route_relays_google_cloud_models(host, model):
    """A Google Cloud path that only ends like another provider's endpoint is relayed."""
    found = parse_route("POST", f"{host}/v1/projects/p/locations/l/publishers/{model}")
    assert (found.api, found.endpoint) == ("", "other")
    assert parse_route("POST", "/u/https://gateway/projects/one/v1/messages").endpoint == "generate"


@pytest.mark.parametrize("action", ["rawPredict", "streamRawPredict"])
@pytest.mark.parametrize("name", ["claude-opus-4-5@20251101", "claude-opus-4-5%4020251101"])
def test_parse_route_takes_claude_on_google_cloud(action, name):
    """The model is in the address, which names the server, and is forwarded unchanged; Gemini's stays relayed."""
    folder, path = "/v1/projects/p/locations/l", f"/publishers/anthropic/models/{name}:{action}"
    found = parse_route("POST", f"{CLOUD}{folder}{path}")
    base = f"https://eu-aiplatform.googleapis.com{folder}"
    assert found == Route("anthropic", "generate", "claude-opus-4-5@20251101", base=base, path=path)
    assert found.is_cloud
    assert not parse_route("POST", "/v1/messages").is_cloud
    assert parse_route("GET", f"{CLOUD}{folder}{path}").endpoint == "other"


@given(st.text("abc-.19/@ %", min_size=1, max_size=12), st.booleans())
def test_parse_route_reads_model_and_stream_from_gemini_paths(model, streams):
    """The model and streaming come from the path, which is forwarded unchanged, and the shown path hides the key."""
    method = "streamGenerateContent" if streams else "generateContent"
    path = f"/v1beta/models/{quote(model, safe='')}:{method}"
    found = parse_route("POST", path, "alt=sse&key=secret")
    assert found == Route("gemini", "generate", model, streams, path=f"{path}?alt=sse&key=secret")
    assert "secret" not in found.shown_path


def test_parse_route_relays_gemini_streams_without_sse():
    """Gemini's streamed JSON array is not parsed, so its request is relayed."""
    path = "/v1beta/models/m:streamGenerateContent"
    assert parse_route("POST", path) == Route("gemini", path=path)
    assert parse_route("POST", path, "%24alt=sse").endpoint == "generate"


@pytest.mark.parametrize(
    ("path", "base", "rest"),
    [
        ("/u/https://h/api/paas/v4/chat/completions", "https://h/api/paas/v4", "/chat/completions"),
        ("/u/https://h:81/backend-api/codex/responses", "https://h:81/backend-api/codex", "/responses"),
        ("/u/HTTPS://[::1]:80/messages", "https://[::1]:80", "/messages"),
        ("/u/http%3A%2F%2Fh/v1/messages", "http://h", "/v1/messages"),
        ("/u/https%3A%2F%2Fh%3A81%2Fapi%2Fv1/chat/completions", "https://h:81/api", "/v1/chat/completions"),
        ("/u/https%3a%2f%2fh%2Fa%2520b/v1/messages", "https://h/a%20b", "/v1/messages"),
        ("/u/https://h/v1/models/v1/messages", "https://h/v1/models", "/v1/messages"),
        ("/u/https://h/a/v1/embeddings", "https://h", "/a/v1/embeddings"),
        ("/u/https://h", "https://h", "/"),
    ],
)
def test_parse_route_splits_the_named_upstream_from_the_path(path, base, rest):
    """The known ending is the path and everything before it the base; without a known ending the base is the host."""
    found = parse_route("POST", path, "q=1")
    assert (found.base, found.path) == (base, f"{rest}?q=1")
    assert build_upstream_url("https://other.example", found) == f"{base}{rest}?q=1"


@pytest.mark.parametrize(
    "name",
    [
        "https://",
        "https:///v1/messages",
        "https%3A%2F%2Fh%3Fa%3D1/v1/messages",
        "https%3A%2F%2Fu:p%40h/v1/messages",
        "https%3A%2F%2Fh%0d%0ax/v1/messages",
        "https://u:p@h/v1/messages",
        "httpx://h",
        "http",
        "http://h:99999/v1/messages",
        "http://h:0/v1/messages",
        "http://h:x/v1/messages",
        "http://h:9:9/v1/messages",
        "http://[::1/v1/messages",
    ],
)
def test_parse_route_ignores_invalid_upstreams(name):
    """A path with an invalid upstream has no API and no base, whatever its ending and headers."""
    found = parse_route("POST", f"/u/{name}", "", {"x-api-key": "k"})
    assert (found.api, found.endpoint, found.base) == ("", "other", "")


@pytest.mark.parametrize(
    ("base", "path", "whole"),
    [
        ("https://h", "/v1/messages", "https://h/v1/messages"),
        ("https://h/", "/messages", "https://h/v1/messages"),
        ("https://h/v1", "/v1/messages?beta=true", "https://h/v1/messages?beta=true"),
        ("https://h/v1/", "/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/api/paas/v4", "/v1/chat/completions", "https://h/api/paas/v4/chat/completions"),
        ("https://h", "/models/m:generateContent", "https://h/v1beta/models/m:generateContent"),
        ("https://h/v1beta", "/v1beta/models/m:countTokens", "https://h/v1beta/models/m:countTokens"),
        ("https://h", "/embeddings", "https://h/embeddings"),
        ("https://h/v1", "/v1internal:x", "https://h/v1/v1internal:x"),
        ("https://h", "/v1/v1/messages", "https://h/v1/messages"),
        ("https://h/v1", "/v1/v1/embeddings", "https://h/v1/embeddings"),
        ("https://h", "/v1/v1beta/models/m:generateContent", "https://h/v1beta/models/m:generateContent"),
    ],
)
def test_build_upstream_url_keeps_one_version(base, path, whole):
    """The version occurs once, and a known endpoint without one gets its usual one."""
    assert build_upstream_url(base, parse_route("POST", path)) == whole


@given(st.sampled_from(["GET", "POST", "HEAD", "PUT"]), pieces, pieces)
def test_parse_route_accepts_any_path(method, path, query):
    """No path raises, and only a named or configured host is ever used."""
    for spelling in (path, f"/u/https://h{path}", f"/u/{path}", f"/v1/{path}"):
        found = parse_route(method, spelling, query)
        assert found.path.startswith("/")
        assert found.base == "" or found.base.startswith(("http://", "https://"))
        if not found.base:
            assert build_upstream_url("https://host.example", found).startswith("https://host.example/")
