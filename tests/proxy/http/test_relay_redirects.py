"""A redirect to the same provider leads through the proxy."""

from __future__ import annotations

import pytest

from holdfast.proxy.http.relay import rewrite_redirects

REQUESTED = "http://gateway.example:8080/api/v1/chat/completions?q=1"


@pytest.mark.parametrize(
    ("url", "location", "rewritten"),
    [
        (REQUESTED, "/api/v1/chat/completions/", "/u/http://gateway.example:8080/api/v1/chat/completions/"),
        (REQUESTED, "../v2?x=1#top", "/u/http://gateway.example:8080/api/v1/v2?x=1"),
        (REQUESTED, "http://GATEWAY.example:8080/x", "/u/http://GATEWAY.example:8080/x"),
        (REQUESTED, "https://gateway.example/x", None),
        (REQUESTED, "https://elsewhere.example/x", None),
        (REQUESTED, "//elsewhere.example/x", None),
        (REQUESTED, "http://u:p@gateway.example:8080/x", None),
        (REQUESTED, "http://gateway.example:kelp/x", None),
        (REQUESTED, "mailto:somebody", None),
        (REQUESTED, "http://[::1/x", None),
        (REQUESTED, "/\u00e9", None),
        ("http://h/v1/messages", "https://h/v1/messages", "/u/https://h/v1/messages"),
        ("https://h/v1/messages", "http://h/v1/messages", None),
        ("https://h:443/v1/messages", "https://h/v1/messages/", "/u/https://h/v1/messages/"),
    ],
)
def test_rewrite_redirects_names_the_same_server(url, location, rewritten):
    """A redirect to the same server, also from http to https, leads through the proxy; no key goes to another server or
    loses TLS.
    """
    headers = [(b"Location", location.encode("latin-1")), (b"x-request-id", b"/v1")]
    expected = [(b"Location", (rewritten or location).encode("latin-1")), (b"x-request-id", b"/v1")]
    assert rewrite_redirects(307, headers, url) == expected
    assert rewrite_redirects(201, headers, url) is headers
