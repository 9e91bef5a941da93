"""Headers are passed on unchanged, except hop-by-hop headers and our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.http.headers import (
    filter_request_headers,
    filter_response_headers,
    headers_to_dict,
    make_holdfast_headers,
)

HOP = b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer".split()
HOP += [b"transfer-encoding", b"upgrade", b"http2-settings", b"proxy-authentication-info"]
OWN = [b"host", b"content-length", b"expect"]
PACKED = [b"content-encoding", b"accept-encoding"]
SPECIAL = [*HOP, *OWN, *PACKED]
TOKENS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"
END_TO_END = [b"Authorization", b"x-api-key", b"x-goog-api-key", b"anthropic-beta", b"cookie", b"x-stainless-timeout"]

cased = st.tuples(st.sampled_from(SPECIAL), st.booleans()).map(lambda pair: pair[0].upper() if pair[1] else pair[0])
free = st.lists(st.sampled_from(list(TOKENS)), min_size=1, max_size=8).map(bytes)
names = st.one_of(cased, free, st.sampled_from(END_TO_END), free.map(lambda name: b"X-Holdfast-" + name))
values = st.binary(max_size=8).map(lambda raw: raw.translate(None, b"\r\n\0"))
pairs = st.lists(st.tuples(names, values), max_size=12)


def list_ordinary_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that no rule concerns."""
    return [
        pair for pair in headers if pair[0].lower() not in SPECIAL and not pair[0].lower().startswith(b"x-holdfast-")
    ]


@pytest.mark.parametrize("keeps_encoding", [False, True])
@pytest.mark.parametrize("filter_headers", [filter_request_headers, filter_response_headers])
@given(headers=pairs, data=st.data())
def test_filter_headers_drops_hop_by_hop_headers(filter_headers, keeps_encoding, headers, data):
    """Hop-by-hop headers, standard or named in ``Connection``, and our own are dropped; all others pass unchanged."""
    listed = data.draw(st.lists(st.sampled_from([name for name, _ in headers] or [b"x"]), max_size=2, unique=True))
    all_headers = [*headers, (b"CONNECTION", b" , ".join(listed).upper()), (b"Connection", b"close,\tx-Secret")]
    dropped = {name.lower() for name in listed} | {b"x-secret", b"close"}
    dropped |= {
        token.strip(b" \t").lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    found = filter_headers([*all_headers, (b"x-secret", b"1")], keeps_encoding=keeps_encoding)
    assert not {name.lower() for name, _ in found} & (set(HOP) | (dropped - {b"accept-encoding"}))
    assert not [name for name, _ in found if name.lower().startswith(b"x-holdfast-")]
    assert list_ordinary_headers(found) == [
        pair for pair in list_ordinary_headers(all_headers) if pair[0].lower() not in dropped
    ]


@given(pairs)
def test_filter_request_headers_drops_host_and_length(headers):
    """The next connection has its own host and length, and unless bodies are relayed unchanged no compression is
    requested.
    """
    found = headers_to_dict(filter_request_headers(headers))
    assert not {"host", "content-length", "content-encoding", "expect"} & set(found)
    assert found["accept-encoding"] == "identity"
    left = headers_to_dict(filter_request_headers(headers, keeps_encoding=True))
    assert not {"host", "expect"} & set(left)
    assert "accept-encoding" in left


def test_filter_headers_with_keeps_encoding_keeps_codings():
    """Where a body is relayed unread both sides keep their content coding, and a client that names none gets none."""
    packed = [(b"Content-Encoding", b"br"), (b"Accept-Encoding", b"br")]
    assert filter_request_headers(packed, keeps_encoding=True) == packed
    assert filter_request_headers([], keeps_encoding=True) == [(b"accept-encoding", b"identity")]
    length = [(b"content-encoding", b"br"), (b"content-length", b"5")]
    assert filter_response_headers(length, keeps_encoding=True) == filter_response_headers(length) == length
    assert filter_response_headers([(b"Content-Encoding", b"GZip"), (b"content-length", b"5")]) == []


def test_filter_headers_keeps_order_case_and_bytes():
    """Order, case, repetition and bytes beyond ASCII are kept."""
    odd = [
        (b"Set-Cookie", b"a=1"),
        (b"x", b"\xff\xfe"),
        (b"set-cookie", b"b=2"),
        (b"X", b""),
        (b"authorization", b"Bearer k"),
    ]
    assert filter_response_headers(odd) == odd
    assert filter_request_headers(odd)[:-1] == odd


@pytest.mark.parametrize("state", ["managed", "observed", "relayed", "bypassed", "unrecorded"])
def test_make_holdfast_headers_names_state_session_and_request(state):
    """The answer's headers name the state, the session and the request; an empty one is left out."""
    assert make_holdfast_headers(state) == [(b"x-holdfast-state", state.encode())]
    found = headers_to_dict(make_holdfast_headers(state, "pi--é\r\nx: y", "r1"))
    assert found == {"x-holdfast-state": state, "x-holdfast-session": "pi--???x:?y", "x-holdfast-request": "r1"}


@given(pairs)
def test_headers_to_dict_joins_values_by_lower_case_name(headers):
    """Every name occurs once in lower case with all its values in order, and any byte decodes."""
    found = headers_to_dict(headers)
    assert set(found) == {name.decode("latin-1").lower() for name, _ in headers}
    for name, text in found.items():
        every = [value.decode("latin-1") for key, value in headers if key.decode("latin-1").lower() == name]
        assert text == ", ".join(every)
