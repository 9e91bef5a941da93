"""What the strict provider says: its script, its own rule, ids, limits, usage; and that a growing history passes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.testing.provider.calls import ModelAnswer, RefusalReply, ScriptedAnswer, TokenCountReply
from holdfast.testing.provider.client import STRICTEST_MODELS, ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

APIS = tuple(STRICTEST_MODELS)
WORDS = ProviderSettings(tokenizer="words")
each_api = pytest.mark.parametrize("api", APIS)


def words(reply):
    return "".join(part.text for part in reply.parts if isinstance(part, Text))


@each_api
def test_a_script_is_said_in_order_then_the_rule(api):
    """Scripted answers come first, then ``ok`` with the number of the answer."""
    client = ProviderClient(Provider(WORDS, [ScriptedAnswer("one"), ScriptedAnswer("two")]), api)
    assert [words(client.send_user_text("x")) for _ in range(3)] == ["one", "two", "ok 3"]


@each_api
def test_a_line_of_the_user_calls_a_tool_that_is_offered(api):
    """``call NAME {json}`` makes that call where the tool is there, and words where it is not."""
    client = ProviderClient(Provider(WORDS), api, tools=["ls"])
    reply = client.send_user_text('please\ncall ls {"path": "/"}\ncall rm {}')
    assert [(call.name, call.arguments) for call in reply.parts if isinstance(call, ToolCall)] == [
        ("ls", '{"path":"/"}')
    ]
    assert (reply.stop, words(client.send_results(reply, "call ls {}"))) == ("tool", "ok 2")
    assert words(client.send_user_text('call rm {"a": 1}')) == "ok 3"


@each_api
def test_a_client_that_sends_all_back_is_never_refused(api):
    """A conversation of words, thinking and parallel calls passes every rule and signature, turn after turn."""
    calls = (("ls", {"path": "/"}), ("cat", {"file": "a"}))
    script = [
        ScriptedAnswer("", calls, "hm"),
        ScriptedAnswer("so", calls),
        ScriptedAnswer("done", (), "ha"),
        ScriptedAnswer("", calls[:1], "more"),
        ScriptedAnswer("end"),
    ]
    client = ProviderClient(Provider(WORDS, script), api, tools=["ls", "cat"])
    reply = client.send_user_text("go")
    for step in range(7):
        assert isinstance(reply, ModelAnswer), reply
        reply = client.send_results(reply) if reply.stop == "tool" else client.send_user_text(f"next {step}")


WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORD, lambda one: st.lists(one, max_size=3), max_leaves=4
)
CALL = st.tuples(st.sampled_from(["ls", "cat"]), st.dictionaries(WORD, JSON, max_size=2))
SAID = st.builds(ScriptedAnswer, WORD, st.lists(CALL, max_size=3).map(tuple), st.just("") | WORD)


@given(st.sampled_from(APIS), st.lists(SAID, max_size=5), st.lists(WORD, min_size=1, max_size=5))
def test_whatever_is_said_comes_back_well(api, script, texts):
    """Any words, calls and thinking of a model, sent back unchanged, are accepted; ids and signatures hold."""
    client = ProviderClient(Provider(WORDS, script), api, tools=["ls", "cat"])
    for text in texts:
        reply = client.send_user_text(text)
        while isinstance(reply, ModelAnswer) and reply.stop == "tool":
            reply = client.send_results(reply, text)
        assert isinstance(reply, ModelAnswer), reply


@each_api
def test_ids_are_given_once(api):
    """Equal providers give equal ids; within a conversation, and to a repeated request, no id is given twice."""
    script = [ScriptedAnswer("", (("ls", {}), ("ls", {})))] * 3
    found = []
    for _ in range(2):
        client = ProviderClient(Provider(WORDS, script), api, tools=["ls"])
        reply, ids = client.send_user_text("go"), []
        for _ in range(2):
            ids += [reply.id, *(part.id for part in reply.parts if isinstance(part, ToolCall) and api != "gemini")]
            reply = client.send_results(reply)
        assert len(set(ids)) == len(ids)
        found.append(ids)
    assert found[0] == found[1]
    provider = Provider(WORDS)
    assert ProviderClient(provider, api).send_user_text("x").id != ProviderClient(provider, api).send_user_text("x").id


def test_an_answer_ends_where_its_limit_is():
    """What does not fit in ``max_tokens`` is cut, and the stop says so; thinking counts as output."""
    client = ProviderClient(
        Provider(WORDS, [ScriptedAnswer("word " * 200, (), "hm " * 10)]), "anthropic", max_tokens=60
    )
    reply = client.send_user_text("x")
    assert (reply.stop, reply.usage.output <= 60, reply.usage.reasoning) == ("length", True, 10)
    assert 0 < len(words(reply)) < 1000
    whole = ProviderClient(Provider(WORDS, [ScriptedAnswer("word " * 200)]), "anthropic").send_user_text("x")
    assert (whole.stop, words(whole)) == ("end", "word " * 200)


def test_a_call_is_whole_or_not_there():
    """A limit never cuts the arguments of a call."""
    script = [ScriptedAnswer("", (("ls", {"path": "a" * 10}), ("ls", {"path": "b " * 500})))]
    reply = ProviderClient(
        Provider(WORDS, script), "openai-chat", tools=["ls"], max_completion_tokens=50
    ).send_user_text("x")
    assert (reply.stop, len(reply.parts)) == ("length", 1)


def test_thinking_is_said_where_it_is_asked_for():
    """With no script the model thinks when the request turns thinking on."""
    client = ProviderClient(Provider(WORDS), "anthropic", thinking={"type": "adaptive"})
    assert isinstance(client.send_user_text("x").parts[0], Thinking)
    assert isinstance(client.send_user_text("y"), ModelAnswer)
    assert not any(
        isinstance(part, Thinking) for part in ProviderClient(Provider(WORDS), "anthropic").send_user_text("x").parts
    )


@each_api
def test_a_count_is_the_number_of_the_answer(api):
    """The count endpoint and the usage of the same request agree, and a count says nothing and caches nothing."""
    provider = Provider(ProviderSettings(tokenizer="words", cache_minimum=1))
    client = ProviderClient(provider, api, tools=["ls"])
    client.history.append(
        {"parts": [{"text": "hello there"}]} if api == "gemini" else {"role": "user", "content": "hello"}
    )
    counted = client.send_history("count")
    assert isinstance(counted, TokenCountReply)
    reply = client.send_history()
    assert (reply.usage.total_input, reply.usage.cache_read) == (counted.tokens, 0)
    assert [(one.incoming.endpoint, one.tokens) for one in provider.requests] == [
        ("count", counted.tokens),
        ("generate", counted.tokens),
    ]
    assert provider.incoming_requests == [one.incoming for one in provider.requests]


def test_a_count_may_be_of_a_whole_request_to_come():
    """Gemini's is told one inside its body, with instructions and tools, and judges it as if it were sent."""
    provider = Provider(ProviderSettings(tokenizer="words"))
    client = ProviderClient(provider, "gemini", tools=["ls"])
    client.history.append({"role": "user", "parts": [{"text": "hello there"}]})
    inside = {"generateContentRequest": {"model": f"models/{client.model}", **client.body}}
    counted = provider.answer_body("gemini", inside, endpoint="count", model=client.model)
    assert isinstance(counted, TokenCountReply)
    assert counted == client.send_history("count")
    client.history[0]["role"] = "nobody"
    refused = provider.answer_body(
        "gemini", {"generateContentRequest": client.body}, endpoint="count", model=client.model
    )
    assert isinstance(refused, RefusalReply)


@given(st.floats(0.5, 3.0), st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6))
def test_input_is_counted_whole_whatever_is_cached(factor, texts):
    """Uncached, read and written tokens add up to the count, for any factor."""
    provider = Provider(ProviderSettings(tokenizer="words", factor=factor, cache_minimum=1))
    client = ProviderClient(provider, "anthropic", cache_control={"type": "ephemeral"})
    for text in texts:
        reply = client.send_user_text(text)
        assert isinstance(reply, ModelAnswer)
        assert reply.usage.total_input == provider.requests[-1].tokens > 0
        assert min(reply.usage.input, reply.usage.cache_read, reply.usage.cache_write) >= 0


def test_wrong_settings_are_told_at_once():
    """An overflow nobody says is an error before any request."""
    with pytest.raises(ConfigError, match="nobody"):
        Provider(ProviderSettings(overflow="nobody"))


def test_a_body_may_be_bytes():
    """``ask`` takes a value or its bytes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    value, data = Provider(WORDS), Provider(WORDS)
    assert value.answer_body("openai-chat", body) == data.answer_body("openai-chat", msgspec.json.encode(body))
    assert isinstance(value.answer_body("openai-chat", b"{"), RefusalReply)


def test_a_script_is_made_of_answers():
    """A text alone is none: that is told where the provider is made, not at its first answer."""
    with pytest.raises(ConfigError, match=r"script\[1\] is of type str; give a value of type ScriptedAnswer"):
        Provider(script=[ScriptedAnswer("yes"), "no"])
