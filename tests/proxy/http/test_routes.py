"""An address says what a request is, and where it goes."""

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
def test_what_is_posted(path, api, endpoint, query):
    """Every endpoint is known by its path, with its version and without, with a query and without, beneath any host.

    A colon may be written as any other sign, and a version may stand before the one that the client adds.
    """
    bare = path.replace("/v1beta", "").replace("/v1", "", 1)
    twice = (f"/v1{path}", f"/v1beta{path}", f"//v1/v1{path}")
    for asked in (path, bare, f"{path}/", f"/{path}", path.replace(":", "%3A"), f"http://localhost:8642{path}", *twice):
        found = parse_route("POST", asked, query)
        assert (found.api, found.endpoint, found.base) == (api, endpoint, "")
        assert found.path.partition("?")[2] == query
    for named in (f"/u/https://host.example/x{path}", f"/u/https:/host.example/x{path}"):
        found = parse_route("POST", named, query)
        assert (found.api, found.endpoint, found.base) == (api, endpoint, "https://host.example/x")
        assert found.path == path + (f"?{query}" if query else "")


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "told"),
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
        ("HEAD", "/", "", {}, Route(path="/")),
        ("OPTIONS", "*", "", {}, Route(path="/*")),
        ("POST", "/model/anthropic.claude/invoke", "", {}, Route(path="/model/anthropic.claude/invoke")),
        ("POST", "/v1internal:generateContent", "", {}, Route(path="/v1internal:generateContent")),
        ("POST", "/v1/messagesx", "", {}, Route(path="/v1/messagesx")),
        ("POST", "/x/v1/messages", "", {}, Route(path="/x/v1/messages")),
    ],
)
def test_what_else_is_asked(method, path, query, headers, told):
    """The list of models, the probe, and what is only passed on: with whose it is, where the path or a header tells."""
    assert parse_route(method, path, query, headers) == told


@pytest.mark.parametrize("host", ["", "/u/https://eu-aiplatform.googleapis.com"])
@pytest.mark.parametrize("model", ["google/models/gemini-x:generateContent", "anthropic/models/claude:rawPredict"])
def test_models_of_google_cloud_are_passed_on(host, model):
    """What has the form of another provider's endpoint in its end alone is none."""
    found = parse_route("POST", f"{host}/v1/projects/p/locations/l/publishers/{model}")
    assert (found.api, found.endpoint) == ("", "other")
    assert parse_route("POST", "/u/https://gateway/projects/one/v1/messages").endpoint == "generate"


@given(st.text("abc-.19/@ %", min_size=1, max_size=12), st.booleans())
def test_gemini_says_it_in_the_address(model, streams):
    """The model is read as it was meant, and whether events are asked for; nothing of it is changed on the way."""
    asked = "streamGenerateContent" if streams else "generateContent"
    path = f"/v1beta/models/{quote(model, safe='')}:{asked}"
    found = parse_route("POST", path, "alt=sse&key=secret")
    assert found == Route("gemini", "generate", model, streams, path=f"{path}?alt=sse&key=secret")
    assert "secret" not in found.shown_path


def test_a_stream_that_is_no_events_is_passed_on():
    """Gemini's answer in one long array is not read, and its request is not ours."""
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
def test_the_path_names_the_upstream(path, base, rest):
    """Its known end is the path and all before it the base; where no end is known, the base is the host."""
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
def test_an_upstream_that_cannot_be(name):
    """Nothing is known of such a path, whatever its end and its headers: it goes nowhere by itself."""
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
def test_addresses_below_a_base(base, path, whole):
    """A version stands once; a known endpoint gets the usual one where nobody says any."""
    assert build_upstream_url(base, parse_route("POST", path)) == whole


@given(st.sampled_from(["GET", "POST", "HEAD", "PUT"]), pieces, pieces)
def test_any_path_is_something(method, path, query):
    """Nothing is refused, and what goes on is a path, so that no host but a named or a configured one is asked."""
    for asked in (path, f"/u/https://h{path}", f"/u/{path}", f"/v1/{path}"):
        found = parse_route(method, asked, query)
        assert found.path.startswith("/")
        assert found.base == "" or found.base.startswith(("http://", "https://"))
        if not found.base:
            assert build_upstream_url("https://host.example", found).startswith("https://host.example/")
