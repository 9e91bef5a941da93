"""Answers of the strict provider: script, default rule, ids, limits and usage; a growing history is always accepted."""

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


def join_texts(reply):
    return "".join(part.text for part in reply.parts if isinstance(part, Text))


@each_api
def test_provider_gives_scripted_answers_in_order_and_then_ok(api):
    """After the script each answer is ``ok`` with its number."""
    client = ProviderClient(Provider(WORDS, [ScriptedAnswer("one"), ScriptedAnswer("two")]), api)
    assert [join_texts(client.send_user_text("x")) for _ in range(3)] == ["one", "two", "ok 3"]


@each_api
def test_provider_calls_an_offered_tool_that_the_user_names(api):
    """``call NAME {json}`` makes that call if the tool is offered, else the answer is text."""
    client = ProviderClient(Provider(WORDS), api, tools=["ls"])
    reply = client.send_user_text('please\ncall ls {"path": "/"}\ncall rm {}')
    assert [(call.name, call.arguments) for call in reply.parts if isinstance(call, ToolCall)] == [
        ("ls", '{"path":"/"}')
    ]
    assert (reply.stop, join_texts(client.send_results(reply, "call ls {}"))) == ("tool", "ok 2")
    assert join_texts(client.send_user_text('call rm {"a": 1}')) == "ok 3"


def test_provider_calls_a_tool_in_a_namespace():
    """``call NAMESPACE.NAME {json}`` makes the call as Responses writes it; without that namespace it is text."""
    provider = Provider(WORDS)
    tool = {"type": "function", "name": "recall", "parameters": {"type": "object", "properties": {}}}
    body = {
        "model": STRICTEST_MODELS["openai-responses"],
        "input": 'call old.recall {"id": "1"}\ncall new.recall {}\ncall recall {}',
        "tools": [{"type": "namespace", "name": "old", "description": "", "tools": [tool]}],
    }
    reply = provider.answer_body("openai-responses", body)
    (call,) = [msgspec.json.decode(part.raw) for part in reply.parts if isinstance(part, ToolCall)]
    assert (call["namespace"], call["name"], call["arguments"]) == ("old", "recall", '{"id":"1"}')


@each_api
def test_provider_accepts_its_own_answers_turn_after_turn(api):
    """A conversation of text, thinking and parallel calls passes every rule and signature check."""
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
    st.none() | st.booleans() | st.integers(-9, 9) | WORD, lambda children: st.lists(children, max_size=3), max_leaves=4
)
CALL = st.tuples(st.sampled_from(["ls", "cat"]), st.dictionaries(WORD, JSON, max_size=2))
ANSWER = st.builds(ScriptedAnswer, WORD, st.lists(CALL, max_size=3).map(tuple), st.just("") | WORD)


@given(st.sampled_from(APIS), st.lists(ANSWER, max_size=5), st.lists(WORD, min_size=1, max_size=5))
def test_provider_accepts_any_answer_that_is_sent_back_unchanged(api, script, texts):
    """Any text, calls and thinking pass with their ids and signatures."""
    client = ProviderClient(Provider(WORDS, script), api, tools=["ls", "cat"])
    for text in texts:
        reply = client.send_user_text(text)
        while isinstance(reply, ModelAnswer) and reply.stop == "tool":
            reply = client.send_results(reply, text)
        assert isinstance(reply, ModelAnswer), reply


@each_api
def test_provider_ids_are_reproducible_and_unique(api):
    """Equal providers give equal ids; within a provider no id is given twice, even for a repeated request."""
    script = [ScriptedAnswer("", (("ls", {}), ("ls", {})))] * 3
    ids_by_run = []
    for _ in range(2):
        client = ProviderClient(Provider(WORDS, script), api, tools=["ls"])
        reply, ids = client.send_user_text("go"), []
        for _ in range(2):
            ids += [reply.id, *(part.id for part in reply.parts if isinstance(part, ToolCall) and api != "gemini")]
            reply = client.send_results(reply)
        assert len(set(ids)) == len(ids)
        ids_by_run.append(ids)
    assert ids_by_run[0] == ids_by_run[1]
    provider = Provider(WORDS)
    assert ProviderClient(provider, api).send_user_text("x").id != ProviderClient(provider, api).send_user_text("x").id


def test_answer_is_cut_at_max_tokens():
    """The stop reason says so, and thinking counts as output."""
    client = ProviderClient(
        Provider(WORDS, [ScriptedAnswer("word " * 200, (), "hm " * 10)]), "anthropic", max_tokens=60
    )
    reply = client.send_user_text("x")
    assert (reply.stop, reply.usage.output <= 60, reply.usage.reasoning) == ("length", True, 10)
    assert 0 < len(join_texts(reply)) < 1000
    uncut = ProviderClient(Provider(WORDS, [ScriptedAnswer("word " * 200)]), "anthropic").send_user_text("x")
    assert (uncut.stop, join_texts(uncut)) == ("end", "word " * 200)


def test_answer_limit_never_cuts_a_call():
    """A call that does not fit is omitted with all its arguments."""
    script = [ScriptedAnswer("", (("ls", {"path": "a" * 10}), ("ls", {"path": "b " * 500})))]
    reply = ProviderClient(
        Provider(WORDS, script), "openai-chat", tools=["ls"], max_completion_tokens=50
    ).send_user_text("x")
    assert (reply.stop, len(reply.parts)) == ("length", 1)


def test_answer_without_a_script_thinks_when_the_request_asks_for_it():
    """The request's thinking field decides whether the default answer has thinking."""
    client = ProviderClient(Provider(WORDS), "anthropic", thinking={"type": "adaptive"})
    assert isinstance(client.send_user_text("x").parts[0], Thinking)
    assert isinstance(client.send_user_text("y"), ModelAnswer)
    assert not any(
        isinstance(part, Thinking) for part in ProviderClient(Provider(WORDS), "anthropic").send_user_text("x").parts
    )


@each_api
def test_count_endpoint_agrees_with_the_usage_of_the_answer(api):
    """Counting a request neither answers nor caches anything."""
    provider = Provider(ProviderSettings(tokenizer="words", cache_minimum=1))
    client = ProviderClient(provider, api, tools=["ls"])
    client.history.append(
        {"parts": [{"text": "hello there"}]} if api == "gemini" else {"role": "user", "content": "hello"}
    )
    counted = client.send_history("count")
    assert isinstance(counted, TokenCountReply)
    reply = client.send_history()
    assert (reply.usage.total_input, reply.usage.cache_read) == (counted.tokens, 0)
    assert [(request.incoming.endpoint, request.tokens) for request in provider.requests] == [
        ("count", counted.tokens),
        ("generate", counted.tokens),
    ]
    assert provider.incoming_requests == [request.incoming for request in provider.requests]


def test_gemini_count_accepts_a_generate_content_request():
    """The nested request is counted with its instructions and tools, and checked as if it were sent."""
    provider = Provider(ProviderSettings(tokenizer="words"))
    client = ProviderClient(provider, "gemini", tools=["ls"])
    client.history.append({"role": "user", "parts": [{"text": "hello there"}]})
    body = {"generateContentRequest": {"model": f"models/{client.model}", **client.body}}
    counted = provider.answer_body("gemini", body, endpoint="count", model=client.model)
    assert isinstance(counted, TokenCountReply)
    assert counted == client.send_history("count")
    client.history[0]["role"] = "nobody"
    refused = provider.answer_body(
        "gemini", {"generateContentRequest": client.body}, endpoint="count", model=client.model
    )
    assert isinstance(refused, RefusalReply)


@given(st.floats(0.5, 3.0), st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6))
def test_usage_input_equals_the_count_with_any_cache(factor, texts):
    """Uncached, read and written tokens add up to the count, for any factor."""
    provider = Provider(ProviderSettings(tokenizer="words", factor=factor, cache_minimum=1))
    client = ProviderClient(provider, "anthropic", cache_control={"type": "ephemeral"})
    for text in texts:
        reply = client.send_user_text(text)
        assert isinstance(reply, ModelAnswer)
        assert reply.usage.total_input == provider.requests[-1].tokens > 0
        assert min(reply.usage.input, reply.usage.cache_read, reply.usage.cache_write) >= 0


def test_provider_rejects_an_unknown_overflow_name():
    """The error is raised before any request."""
    with pytest.raises(ConfigError, match="nobody"):
        Provider(ProviderSettings(overflow="nobody"))


def test_answer_body_accepts_a_value_or_bytes():
    """Both forms of one body get the same answer."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    from_value, from_bytes = Provider(WORDS), Provider(WORDS)
    assert from_value.answer_body("openai-chat", body) == from_bytes.answer_body(
        "openai-chat", msgspec.json.encode(body)
    )
    assert isinstance(from_value.answer_body("openai-chat", b"{"), RefusalReply)


def test_provider_rejects_a_script_of_other_types():
    """A plain text is refused when the provider is made, not at its first answer."""
    with pytest.raises(ConfigError, match=r"script\[1\] is of type str; give a value of type ScriptedAnswer"):
        Provider(script=[ScriptedAnswer("yes"), "no"])
