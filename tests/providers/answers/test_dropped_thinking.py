"""Thinking that the provider kept from the model is read from a body and from a stream alike."""

from __future__ import annotations

import pytest
from msgspec.json import encode

from holdfast.messages.parts import Text
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.common.sse import SseReader
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, TokenUse

ANSWER = ModelAnswer(
    "x_1", "m", (Text("a"),), "end", TokenUse(1, 1), dropped_blocks=(("messages.1.content.0", "prefix_mismatch"),) * 2
)


@pytest.mark.parametrize(
    ("api", "reason"), [("anthropic", "prefix_binding_mismatch"), ("openai-responses", "prefix_mismatch")]
)
def test_answer_has_the_reason_of_each_dropped_thought(api, reason):
    """Each piece of thinking counts once, with the provider's word for the reason."""
    request = IncomingRequest(api, "generate", b'{"model": "m"}')
    body = encode(API_ENCODERS[api].encode_answer(request, ANSWER))
    assert parse_answer(api, body).dropped_thinking == (reason, reason)
    answer_stream, reader = AnswerStream(api), SseReader()
    stream = b"".join(API_ENCODERS[api].encode_stream(request, ANSWER).events)
    for event in [*reader.feed(stream), *reader.close()]:
        answer_stream.add_event(event)
    assert answer_stream.build_answer().dropped_thinking == (reason, reason)


@pytest.mark.parametrize("value", [None, "x", 5, {}, [1], [{}], [{"reason": 5}], [{"reason": "turn_boundary"}]])
def test_answer_without_a_loss_has_none(value):
    """Values of other types, and reasoning of earlier turns that no model sees, count as nothing."""
    body = encode(
        {"id": "r", "object": "response", "status": "completed", "output": [], "input_transformations": value}
    )
    assert parse_answer("openai-responses", body).dropped_thinking == ()
