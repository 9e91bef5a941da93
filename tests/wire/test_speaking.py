"""Values that one API's reader made, planned for and written by another."""

from __future__ import annotations

import json
from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import apply, plan
from holdfast.config import target
from holdfast.model.messages import media_of, result_text
from holdfast.testing.provider.client import MODELS
from holdfast.testing.strategies import conversations
from holdfast.wire import anthropic, gemini, openai_chat, openai_responses
from holdfast.wire.apis import FORMS
from holdfast.wire.rules import validate
from holdfast.wire.speaking import speaking

WIRE = {
    "anthropic": anthropic,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "gemini": gemini,
}
PAIRS = list(permutations(WIRE, 2))


def exchanges(messages):
    """Return name and arguments of each call, with its result."""
    results = {result.call_id: result_text(result) for message in messages for result in message.results}
    calls = [call for message in messages for call in message.calls]
    return [(call.name, json.loads(call.arguments), results.get(call.id)) for call in calls]


@pytest.mark.parametrize(("of", "to"), PAIRS, ids=[" to ".join(pair) for pair in PAIRS])
@given(data=st.data())
def test_what_one_api_reads_another_writes(of, to, data):
    """Calls, results, words and pictures that one API's reader read go out in the form of the other, and are valid."""
    said = data.draw(conversations(turns=3, api=of, thinking=False, system=False))
    read = WIRE[of].messages(WIRE[of].dicts(said))
    sent = WIRE[to].dicts(apply(read, plan(read, target(to, MODELS[to]))))
    body = {"model": MODELS[to], FORMS[to].field: sent} | ({"max_tokens": 900} if to == "anthropic" else {})
    assert validate(msgspec.json.encode(body), to) == ()
    back = WIRE[to].messages(sent)
    for (name, arguments, told), (name_, arguments_, told_) in zip(exchanges(read), exchanges(back), strict=True):
        assert (name, arguments) == (name_, arguments_)
        assert all(line in told_ for line in told.splitlines())
    words = "\n".join(message.text for message in back)
    assert all(line in words for message in read for line in message.text.splitlines())
    shown = [one for one in read if to != "openai-chat" or not one.results]  # whose results hold no pictures
    assert {part.source for part in media_of(*shown)} <= {part.source for part in media_of(*back)}


@pytest.mark.parametrize("api", WIRE)
@given(data=st.data())
def test_an_apis_own_bytes_stay(api, data):
    """What was read by its own API is the same object."""
    said = data.draw(conversations(turns=3, api=api))
    for message in WIRE[api].messages(WIRE[api].dicts(said)):
        assert speaking(message, api) is message
