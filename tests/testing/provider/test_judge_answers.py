"""What the strict provider says: its script, its own rule, ids, limits, usage; and that a growing history passes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.testing.provider.calls import Answered, Counted, Refusal, Said
from holdfast.testing.provider.client import MODELS, Client
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import Settings

APIS = tuple(MODELS)
WORDS = Settings(tokenizer="words")
each_api = pytest.mark.parametrize("api", APIS)


def words(reply):
    return "".join(part.text for part in reply.parts if isinstance(part, Text))


@each_api
def test_a_script_is_said_in_order_then_the_rule(api):
    """Scripted answers come first, then ``ok`` with the number of the answer."""
    client = Client(Provider(WORDS, [Said("one"), Said("two")]), api)
    assert [words(client.say("x")) for _ in range(3)] == ["one", "two", "ok 3"]


@each_api
def test_a_line_of_the_user_calls_a_tool_that_is_offered(api):
    """``call NAME {json}`` makes that call where the tool is there, and words where it is not."""
    client = Client(Provider(WORDS), api, tools=["ls"])
    reply = client.say('please\ncall ls {"path": "/"}\ncall rm {}')
    assert [(call.name, call.arguments) for call in reply.parts if isinstance(call, ToolCall)] == [
        ("ls", '{"path":"/"}')
    ]
    assert (reply.stop, words(client.answer(reply, "call ls {}"))) == ("tool", "ok 2")
    assert words(client.say('call rm {"a": 1}')) == "ok 3"


@each_api
def test_a_client_that_sends_all_back_is_never_refused(api):
    """A conversation of words, thinking and parallel calls passes every rule and signature, turn after turn."""
    calls = (("ls", {"path": "/"}), ("cat", {"file": "a"}))
    script = [
        Said("", calls, "hm"),
        Said("so", calls),
        Said("done", (), "ha"),
        Said("", calls[:1], "more"),
        Said("end"),
    ]
    client = Client(Provider(WORDS, script), api, tools=["ls", "cat"])
    reply = client.say("go")
    for step in range(7):
        assert isinstance(reply, Answered), reply
        reply = client.answer(reply) if reply.stop == "tool" else client.say(f"next {step}")


WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORD, lambda one: st.lists(one, max_size=3), max_leaves=4
)
CALL = st.tuples(st.sampled_from(["ls", "cat"]), st.dictionaries(WORD, JSON, max_size=2))
SAID = st.builds(Said, WORD, st.lists(CALL, max_size=3).map(tuple), st.just("") | WORD)


@given(st.sampled_from(APIS), st.lists(SAID, max_size=5), st.lists(WORD, min_size=1, max_size=5))
def test_whatever_is_said_comes_back_well(api, script, texts):
    """Any words, calls and thinking of a model, sent back unchanged, are accepted; ids and signatures hold."""
    client = Client(Provider(WORDS, script), api, tools=["ls", "cat"])
    for text in texts:
        reply = client.say(text)
        while isinstance(reply, Answered) and reply.stop == "tool":
            reply = client.answer(reply, text)
        assert isinstance(reply, Answered), reply


@each_api
def test_ids_are_given_once(api):
    """Equal providers give equal ids; within a conversation, and to a repeated request, no id is given twice."""
    script = [Said("", (("ls", {}), ("ls", {})))] * 3
    found = []
    for _ in range(2):
        client = Client(Provider(WORDS, script), api, tools=["ls"])
        reply, ids = client.say("go"), []
        for _ in range(2):
            ids += [reply.id, *(part.id for part in reply.parts if isinstance(part, ToolCall) and api != "gemini")]
            reply = client.answer(reply)
        assert len(set(ids)) == len(ids)
        found.append(ids)
    assert found[0] == found[1]
    provider = Provider(WORDS)
    assert Client(provider, api).say("x").id != Client(provider, api).say("x").id


def test_an_answer_ends_where_its_limit_is():
    """What does not fit in ``max_tokens`` is cut, and the stop says so; thinking counts as output."""
    client = Client(Provider(WORDS, [Said("word " * 200, (), "hm " * 10)]), "anthropic", max_tokens=60)
    reply = client.say("x")
    assert (reply.stop, reply.usage.output <= 60, reply.usage.reasoning) == ("length", True, 10)
    assert 0 < len(words(reply)) < 1000
    whole = Client(Provider(WORDS, [Said("word " * 200)]), "anthropic").say("x")
    assert (whole.stop, words(whole)) == ("end", "word " * 200)


def test_a_call_is_whole_or_not_there():
    """A limit never cuts the arguments of a call."""
    script = [Said("", (("ls", {"path": "a" * 10}), ("ls", {"path": "b " * 500})))]
    reply = Client(Provider(WORDS, script), "openai-chat", tools=["ls"], max_completion_tokens=50).say("x")
    assert (reply.stop, len(reply.parts)) == ("length", 1)


def test_thinking_is_said_where_it_is_asked_for():
    """With no script the model thinks when the request turns thinking on."""
    client = Client(Provider(WORDS), "anthropic", thinking={"type": "adaptive"})
    assert isinstance(client.say("x").parts[0], Thinking)
    assert isinstance(client.say("y"), Answered)
    assert not any(isinstance(part, Thinking) for part in Client(Provider(WORDS), "anthropic").say("x").parts)


@each_api
def test_a_count_is_the_number_of_the_answer(api):
    """The count endpoint and the usage of the same request agree, and a count says nothing and caches nothing."""
    provider = Provider(Settings(tokenizer="words", cache_minimum=1))
    client = Client(provider, api, tools=["ls"])
    client.history.append(
        {"parts": [{"text": "hello there"}]} if api == "gemini" else {"role": "user", "content": "hello"}
    )
    counted = client.send("count")
    assert isinstance(counted, Counted)
    reply = client.send()
    assert (reply.usage.counted, reply.usage.cache_read) == (counted.tokens, 0)
    assert [(one.asked.endpoint, one.tokens) for one in provider.requests] == [
        ("count", counted.tokens),
        ("generate", counted.tokens),
    ]
    assert provider.seen == [one.asked for one in provider.requests]


def test_a_count_may_be_of_a_whole_request_to_come():
    """Gemini's is told one inside its body, with instructions and tools, and judges it as if it were sent."""
    provider = Provider(Settings(tokenizer="words"))
    client = Client(provider, "gemini", tools=["ls"])
    client.history.append({"role": "user", "parts": [{"text": "hello there"}]})
    inside = {"generateContentRequest": {"model": f"models/{client.model}", **client.body}}
    counted = provider.ask("gemini", inside, endpoint="count", model=client.model)
    assert isinstance(counted, Counted)
    assert counted == client.send("count")
    client.history[0]["role"] = "nobody"
    refused = provider.ask("gemini", {"generateContentRequest": client.body}, endpoint="count", model=client.model)
    assert isinstance(refused, Refusal)


@given(st.floats(0.5, 3.0), st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6))
def test_input_is_counted_whole_whatever_is_cached(factor, texts):
    """Uncached, read and written tokens add up to the count, for any factor."""
    provider = Provider(Settings(tokenizer="words", factor=factor, cache_minimum=1))
    client = Client(provider, "anthropic", cache_control={"type": "ephemeral"})
    for text in texts:
        reply = client.say(text)
        assert isinstance(reply, Answered)
        assert reply.usage.counted == provider.requests[-1].tokens > 0
        assert min(reply.usage.input, reply.usage.cache_read, reply.usage.cache_write) >= 0


def test_wrong_settings_are_told_at_once():
    """An overflow nobody says is an error before any request."""
    with pytest.raises(ConfigError, match="nobody"):
        Provider(Settings(overflow="nobody"))


def test_a_body_may_be_bytes():
    """``ask`` takes a value or its bytes."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    value, data = Provider(WORDS), Provider(WORDS)
    assert value.ask("openai-chat", body) == data.ask("openai-chat", msgspec.json.encode(body))
    assert isinstance(value.ask("openai-chat", b"{"), Refusal)


def test_a_script_is_made_of_answers():
    """A text alone is none: that is told where the provider is made, not at its first answer."""
    with pytest.raises(ConfigError, match=r"script\[1\] is of type str; give a value of type Said"):
        Provider(script=[Said("yes"), "no"])
