"""Where a provider sends a client on to leads through the proxy, as long as it is the same provider."""

from __future__ import annotations

import pytest

from holdfast.proxy.http.relay import rewrite_redirects

ASKED = "http://gateway.example:8080/api/v1/chat/completions?q=1"


@pytest.mark.parametrize(
    ("url", "place", "told"),
    [
        (ASKED, "/api/v1/chat/completions/", "/u/http://gateway.example:8080/api/v1/chat/completions/"),
        (ASKED, "../v2?x=1#top", "/u/http://gateway.example:8080/api/v1/v2?x=1"),
        (ASKED, "http://GATEWAY.example:8080/x", "/u/http://GATEWAY.example:8080/x"),
        (ASKED, "https://gateway.example/x", None),
        (ASKED, "https://elsewhere.example/x", None),
        (ASKED, "//elsewhere.example/x", None),
        (ASKED, "http://u:p@gateway.example:8080/x", None),
        (ASKED, "http://gateway.example:kelp/x", None),
        (ASKED, "mailto:somebody", None),
        (ASKED, "http://[::1/x", None),
        (ASKED, "/\u00e9", None),
        ("http://h/v1/messages", "https://h/v1/messages", "/u/https://h/v1/messages"),
        ("https://h/v1/messages", "http://h/v1/messages", None),
        ("https://h:443/v1/messages", "https://h/v1/messages/", "/u/https://h/v1/messages/"),
    ],
)
def test_rewrite_redirects_names_the_same_server(url, place, told):
    """A redirect to the same server, also from http to https, leads through the proxy; no key goes to another server or
    loses TLS.
    """
    headers = [(b"Location", place.encode("latin-1")), (b"x-request-id", b"/v1")]
    given = [(b"Location", (told or place).encode("latin-1")), (b"x-request-id", b"/v1")]
    assert rewrite_redirects(307, headers, url) == given
    assert rewrite_redirects(201, headers, url) is headers
