"""A body that extends an earlier one is parsed incrementally to the same result."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.incremental import count_shared_prefix_bytes, index_request, parse_appended_request
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.testing.provider.client import STRICTEST_MODELS


def build_body(api, messages: list[Message]) -> bytes:
    """Build a request body with ``messages``."""
    return build_request_body(
        api,
        STRICTEST_MODELS[api],
        [build_sized_message(message) for message in messages],
        setup_fields={"temperature": 1},
    )


@pytest.mark.parametrize("api", API_NAMES)
@given(data=st.data())
def test_parse_appended_request_equals_parsing_the_whole_body(api, data):
    """Law: whatever was added, removed, changed or spaced otherwise, the result is the same, or None."""
    messages = data.draw(conversation_strategy())
    before = json.loads(build_body(api, messages)) | data.draw(st.sampled_from([{}, {"tools": [{"name": "read"}]}]))
    field = {"openai-responses": "input", "gemini": "contents"}.get(api, "messages")
    after = dict(before)
    listed = list(before[field])
    kind = data.draw(st.sampled_from(["more", "fewer", "other", "same", "setup"]))
    if kind == "more":
        listed += json.loads(build_body(api, data.draw(conversation_strategy())))[field]
    elif kind == "fewer":
        listed = listed[: data.draw(st.integers(0, len(listed)))]
    elif kind == "other" and listed:
        at = data.draw(st.integers(0, len(listed) - 1))
        listed[at] = {"role": "user", "content": "otherwise", "parts": [{"text": "otherwise"}]}
    elif kind == "setup":
        after |= data.draw(st.sampled_from([{"temperature": 0}, {"tools": [{"name": "write"}]}]))
    indent = data.draw(st.sampled_from([None, 1]))
    earlier_body = json.dumps(before, indent=indent).encode()
    later_body = json.dumps({**after, field: listed}, indent=indent).encode()
    first = index_request(measure_parsed_request(parse_request(earlier_body, api)))
    if first is None:
        return
    try:
        whole = measure_parsed_request(parse_request(later_body, api))
    except FormatError:
        return
    found = parse_appended_request(later_body, api, first)
    if found is None:
        return
    parsed_request, same = found
    assert parsed_request == whole
    assert parsed_request.messages[:same] == first.request.messages[:same]
    assert index_request(parsed_request, first, same) == index_request(whole)


@pytest.mark.parametrize("api", API_NAMES)
def test_parse_appended_request_reuses_known_messages(api):
    """Known messages are not parsed again: they are the same objects."""
    messages = [Message.from_text("user" if at % 2 == 0 else "assistant", f"words {at}") for at in range(41)]
    more = [*messages, Message.from_text("assistant", "an answer"), Message.from_text("user", "and now?")]
    first = index_request(measure_parsed_request(parse_request(build_body(api, messages), api)))
    parsed_request, same = parse_appended_request(build_body(api, more), api, first)
    assert same >= 38
    assert all(a is b for a, b in zip(parsed_request.messages[:same], first.request.messages[:same], strict=True))


def test_parse_appended_request_rejects_a_repeated_message_list():
    """What makes the whole body invalid makes the appended part invalid too."""
    earlier_body = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}'
    later_body = earlier_body[:-1] + b',"messages":[{"role":"user","content":"c"}]}'
    for read in (
        parse_request,
        lambda body, api: parse_appended_request(
            body, api, index_request(measure_parsed_request(parse_request(earlier_body, api)))
        ),
    ):
        with pytest.raises(FormatError, match="twice"):
            read(later_body, "openai-chat")


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 3))
def test_count_shared_prefix_bytes_finds_the_longest_prefix(shared, first_rest, second_rest, blocks):
    """Holds across the blocks in which the bytes are compared."""
    shared = shared + b"x" * (blocks * 65_536)
    found = count_shared_prefix_bytes(shared + first_rest, shared + second_rest)
    assert (shared + first_rest)[:found] == (shared + second_rest)[:found]
    assert (
        found == min(len(shared + first_rest), len(shared + second_rest))
        or (shared + first_rest)[found] != (shared + second_rest)[found]
    )
