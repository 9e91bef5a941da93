"""Access is decided by the requested host, by the page that asks, and by the token."""

from __future__ import annotations

from socket import gethostname

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.addresses import is_local_url, is_loopback_host, is_url_of_server
from holdfast.proxy.http.access import check_access, explain_foreign_request, is_token_valid

LOOPBACK_HOSTS = [
    "localhost",
    "LocalHost",
    "127.0.0.1",
    "127.8.9.10",
    "[::1]",
    "localhost.",
    "one.localhost",
    "[::ffff:127.0.0.1]",
]
FOREIGN_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "evil.example.",
    "127.0.0.1.evil.example",
    "0.0.0.0",
    "192.168.1.5",
    "[::2]",
    "[::ffff:8.8.8.8]",
    "127.0.0.1@evil.example",
    "evil.example#localhost",
    "localhost, evil.example",
    "evil.example:80:localhost",
    "[::1",
    "::1",
    "2130706433",
    " ",
]
PORTS = st.integers(0, 65_535).map(lambda port: f":{port}")


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
@pytest.mark.parametrize("port", ["", ":", ":80", ":8642", ":50123"])
def test_explain_foreign_request_accepts_loopback_names(host, port):
    """Any name of loopback is accepted with any port, because another local port may be forwarded to ours."""
    assert not explain_foreign_request(host + port, None, "127.0.0.1")
    assert not explain_foreign_request(host + port, f"http://{host}{port}", "localhost")


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_explain_foreign_request_rejects_foreign_hosts(host):
    """A foreign name that resolves to this machine is refused; beyond loopback names prove nothing, and the token
    decides.
    """
    assert host[:50] in explain_foreign_request(host, None, "::1")
    assert explain_foreign_request(f"{host}:8642", None, "127.0.0.1")
    assert not explain_foreign_request(host, None, "0.0.0.0")


@pytest.mark.parametrize("host", [None, ""])
def test_explain_foreign_request_accepts_a_missing_host(host):
    """HTTP/1.0 has no host header, and no browser sends HTTP/1.0."""
    assert not explain_foreign_request(host, None, "127.0.0.1")
    assert explain_foreign_request(host, "https://evil.example", "127.0.0.1")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "box.lan"])
@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_explain_foreign_request_rejects_foreign_origins(bound, scheme, host):
    """A page from elsewhere is refused whatever address the server is bound to, also when the host is ours."""
    assert explain_foreign_request("localhost:8642", f"{scheme}://{host}", bound)


@pytest.mark.parametrize(
    "origin", ["null", "", "file://", "http://", "http://[::1", "localhost", "app://x", "http://a b"]
)
def test_explain_foreign_request_rejects_opaque_origins(origin):
    """An origin that hides where the page comes from is refused."""
    assert explain_foreign_request("localhost", origin, "127.0.0.1")


@given(
    st.text(max_size=30) | st.sampled_from(["localhost", "127.0.0.1", "[::1]"]),
    st.text(max_size=30),
    st.sampled_from(["127.0.0.1", "::1", "localhost"]),
)
def test_explain_foreign_request_never_raises(host, origin, bound):
    """No header value raises, and a name that passes without a port passes with one."""
    assert isinstance(explain_foreign_request(host, origin, bound), str)
    if ":" not in host and host and not explain_foreign_request(host, None, bound):
        assert not explain_foreign_request(f"{host}:1", None, bound)


@given(st.text(max_size=20), st.text(max_size=20))
def test_is_token_valid_compares_exactly(candidate, token):
    """Only the exact token is valid; where none is set, any is."""
    assert is_token_valid(candidate, token) == (not token or candidate.encode() == token.encode())
    assert is_token_valid(token, token)
    assert is_token_valid(None, token) == (not token)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost", "origin": "https://evil.example"}, 403),
        ({"host": "localhost", "sec-fetch-mode": "navigate"}, 403),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example", "x-holdfast-token": "kelp"}, 403),
        ({"host": "localhost"}, 401),
        ({"host": "localhost", "x-holdfast-token": "help"}, 401),
        ({"host": "localhost", "x-holdfast-token": "kelp"}, None),
        ({"host": "localhost", "x-holdfast-token": "kelp", "sec-fetch-mode": "cors"}, None),
        ({"x-holdfast-token": "kelp"}, None),
    ],
)
def test_check_access_judges_the_page_before_the_token(headers, status):
    """A page is refused with 403 whatever its token; then a program without the token gets 401."""
    found = check_access(headers, "127.0.0.1", "kelp")
    assert (found and found.status) == status


def test_refusals_are_short_and_never_show_the_token():
    """A refusal names only the host and the page, truncated."""
    assert len(explain_foreign_request("x" * 5_000, None, "127.0.0.1")) < 300
    assert len(explain_foreign_request(None, "x" * 5_000, "127.0.0.1")) < 300
    assert "kelp" not in str(check_access({"x-holdfast-token": "help"}, "127.0.0.1", "kelp"))


@given(st.sampled_from(["http", "https"]), st.sampled_from(LOOPBACK_HOSTS), PORTS)
def test_is_local_url_accepts_loopback_with_any_port(scheme, host, port):
    """A loopback URL is local whatever its port (except 0), and no other is."""
    assert is_loopback_host(host)
    assert is_local_url(f"{scheme}://{host}{port}/v1") == (port != ":0")
    assert not is_local_url(f"{scheme}://evil.example{port}/localhost")


@pytest.mark.parametrize(
    ("base", "host", "port", "leads"),
    [
        ("http://127.0.0.1:8642", "127.0.0.1", 8642, True),
        ("http://localhost:8642/v1", "127.0.0.1", 8642, True),
        ("http://[::1]:8642", "0.0.0.0", 8642, True),
        ("http://0.0.0.0:8642", "localhost", 8642, True),
        ("http://Box.lan:8642/u/https://h", "box.LAN", 8642, True),
        ("http://box.lan:8642", "127.0.0.1", 8642, False),
        (f"http://{gethostname()}:8642", "0.0.0.0", 8642, True),
        (f"http://{gethostname()}:8642", "127.0.0.1", 8642, False),
        ("http://localhost", "localhost", 80, True),
        ("https://localhost", "localhost", 443, True),
        ("http://localhost:8642", "localhost", 0, False),
        ("http://localhost:8643", "localhost", 8642, False),
        ("http://localhost:99999", "localhost", 99999, False),
    ],
)
def test_is_url_of_server_compares_port_and_machine(base, host, port, leads):
    """A URL leads to a server when the port is the same and its host may be the same machine."""
    assert is_url_of_server(base, host, port) == leads
