"""Calls in the old form of Chat Completions are sent as calls and results where they are refused; nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.dialects.request_provider import find_request_provider
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.registry import get_api_dialect, relax_for_unknown_server
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.state.view import apply_normalization
from holdfast.testing.provider.calls import ModelAnswer
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from tests.support.example_counts import choose

MODELS = {
    "mistral": "mistral-large-2512",
    "deepseek": "deepseek-chat",
    "kimi": "moonshot-v1-128k",
    "cerebras": "gpt-oss-120b",
    "llamacpp": "local",
    "ollama": "qwen3",
}
"""Servers that refuse the old form, with a model that does not think."""


def user(text="Is the attic tidy?"):
    return {"role": "user", "content": text}


def old_call(name="look", arguments="{}", **fields):
    return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}, **fields}


def old_result(text="two socks", name="look"):
    return {"role": "function", "name": name, "content": text}


def send(provider, messages, *, keeps_client_content=False):
    """Return the messages as they are sent to ``provider``, and the edits."""
    model = MODELS.get(provider, "m")
    dialect = get_api_dialect("openai-chat", model, find_request_provider("openai-chat", model, named=provider))
    if keeps_client_content:
        dialect = relax_for_unknown_server(dialect)
    parsed = parse_request(json.dumps({"model": model, "messages": messages}).encode(), "openai-chat")
    edits = normalize_history([sized.message for sized in parsed.messages], dialect)
    body = render_request(parsed, apply_normalization(list(parsed.messages), edits))
    return json.loads(body)["messages"], edits


@pytest.mark.parametrize("provider", MODELS)
def test_normalize_history_sends_an_old_call_and_its_result_in_the_new_form(provider):
    """The call is in ``tool_calls``, the result a tool message with its id; the report says so."""
    sent, edits = send(provider, [user(), old_call(arguments='{"at": 1}'), old_result()])
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    (call,) = sent[1]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert sent[2] == {"role": "tool", "tool_call_id": call["id"], "content": "two socks"}
    assert "function_call" not in sent[1]
    assert [edit.rule.split(", ")[0] for edit in edits] == ["old-call", "old-call"]


@pytest.mark.parametrize("provider", ["llamacpp", "ollama"])
def test_normalize_history_changes_a_clients_old_calls_at_a_server_that_refuses_them(provider):
    """A local server gets a client's messages as they are, but for what it is known to refuse."""
    odd = [user("a"), user("b")]
    sent, _ = send(provider, [*odd, old_call(), old_result(), user("thanks")], keeps_client_content=True)
    assert sent[:2] == odd
    assert [message["role"] for message in sent[2:]] == ["assistant", "tool", "user"]


@pytest.mark.parametrize("provider", ["", "openai", "groq", "vllm", "openrouter"])
def test_normalize_history_keeps_the_old_form_where_it_may_be_taken(provider):
    """Where nothing says that the old form is refused, it goes as the client wrote it."""
    messages = [user(), old_call(), old_result(), user("thanks")]
    sent, _ = send(provider, messages, keeps_client_content=provider != "openai")
    assert sent == messages


def test_normalize_history_pairs_results_with_calls_by_name_and_order():
    """A result answers the first open call of its function; equal calls get ids of their own."""
    messages = [user(), old_call(), old_result("one"), old_call(), old_result("two"), user("thanks")]
    sent, _ = send("mistral", messages)
    pairs = [(sent[1]["tool_calls"][0]["id"], "one"), (sent[3]["tool_calls"][0]["id"], "two")]
    assert [(message["tool_call_id"], message["content"]) for message in sent if message["role"] == "tool"] == pairs
    assert pairs[0][0] != pairs[1][0]


def test_normalize_history_tells_a_result_without_its_call_as_text():
    """What cannot be paired is a line of text."""
    sent, _ = send("mistral", [user("go"), old_result("two socks", "sniff")])
    assert "[Result of the function sniff, whose call is not here]\ntwo socks" in json.dumps(sent).replace("\\n", "\n")


def test_normalize_history_tells_a_call_that_cannot_be_read_as_text():
    """A call without a name is told with its bytes."""
    sent, _ = send(
        "mistral", [user("go"), {"role": "assistant", "content": None, "function_call": {"args": 1}}, user()]
    )
    assert sent[1]["content"] == '[Call of a function] {"args": 1}'


def test_normalize_history_sends_a_call_in_both_forms_once():
    """A client that sends a call in both forms means one call."""
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    sent, _ = send("mistral", [user(), old_call(tool_calls=[call]), old_result(), user("thanks")])
    assert sent[1]["tool_calls"] == [call]
    assert sent[2] == {"role": "tool", "tool_call_id": "abcdefgh1", "content": "two socks"}


@pytest.mark.parametrize("api", ["anthropic", "openai-responses", "gemini"])
def test_convert_request_keeps_old_calls(api):
    """Call, result and choice of the old form reach the other API."""
    body = {
        "model": "m",
        "messages": [user(), old_call(arguments='{"at": 1}'), old_result(), user("thanks")],
        "functions": [{"name": "look", "parameters": {"type": "object", "properties": {}}}],
        "function_call": {"name": "look"},
    }
    converted, notes = convert_request(json.dumps(body).encode(), api)
    text = converted.decode()
    assert "two socks" in text
    assert '"at"' in text.replace("\\", "")
    assert text.count("look") >= 3  # declared, called, chosen
    assert not any("function_call" in note or "message" in note for note in notes)


TEXTS = st.text("abc ", min_size=1, max_size=6).filter(str.strip)
MESSAGES = st.one_of(
    TEXTS.map(user),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS),
    st.builds(old_call, st.sampled_from(["look", "sniff"]), st.sampled_from(["{}", '{"at": 1}'])),
    st.builds(old_result, TEXTS, st.sampled_from(["look", "sniff", None])),
)


@pytest.mark.counts
@settings(max_examples=choose(quick=30, ci=150, thorough=3_000))
@given(provider=st.sampled_from(sorted(MODELS)), messages=st.lists(MESSAGES, min_size=1, max_size=7))
def test_normalize_history_leaves_no_old_call_and_loses_no_word(provider, messages):
    """Whatever order the old form comes in, the strict provider takes what is sent, and every result is in it."""
    sent, _ = send(provider, [user(), *messages, user("thanks")])
    text = json.dumps(sent)
    assert "function_call" not in text
    assert '"role": "function"' not in text
    for message in messages:
        if message["role"] == "function":
            assert json.dumps(message["content"])[1:-1] in text
    strict = Provider(ProviderSettings(server=provider, tokenizer="words"))
    reply = strict.answer_body("openai-chat", {"model": MODELS[provider], "messages": sent})
    assert isinstance(reply, ModelAnswer), reply
    again, edits = send(provider, sent)
    assert again == sent
    assert not edits


@pytest.mark.counts
@settings(max_examples=choose(quick=20, ci=80, thorough=1_500))
@given(provider=st.sampled_from(["mistral", "deepseek", "ollama"]), messages=st.lists(MESSAGES, min_size=1, max_size=6))
def test_fix_request_is_idempotent_for_old_calls(provider, messages):
    """A fixed body is valid and a second fix changes nothing."""
    body = {"model": MODELS[provider], "messages": [user(), *messages, user("thanks")], "functions": [{"name": "look"}]}
    fixed = fix_request(json.dumps(body).encode(), "openai-chat", provider=provider)
    assert fixed.is_valid, fixed.findings
    assert "functions" not in json.loads(fixed.body)
    assert fix_request(fixed.body, "openai-chat", provider=provider).body == fixed.body
