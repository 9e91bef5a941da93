"""What the strict provider refuses, in the words and codes of each API. The rules themselves are proven elsewhere."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.rules.validate import ALL_RULES, validate_request
from holdfast.testing.provider.calls import CompactReply, IncomingRequest, ModelAnswer, RefusalReply, TokenCountReply
from holdfast.testing.provider.checks.refusals import parse_json_place
from holdfast.testing.provider.checks.rule_wordings import ANTHROPIC_ERROR_CODES, OPENAI_ERROR_CODES, RULE_WORDINGS
from holdfast.testing.provider.client import STRICTEST_MODELS, ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

APIS = tuple(STRICTEST_MODELS)
ODD = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    " ",
    "x",
    "text",
    [],
    {},
    [[]],
    [{}],
    {"type": "text"},
    {"type": []},
    2**70,
    "\u4f60",
)
SIMPLE = ProviderSettings(tokenizer="words", cache_minimum=1, window=5_000)


def ask(api, body, **settings):
    model = "gemini-3-pro" if api == "gemini" else ""
    return Provider(ProviderSettings(tokenizer="words", **settings)).answer_body(api, body, model=model)


def messages(*turns, **fields):
    said = [{"role": role, "content": content} for role, content in turns]
    return {"model": "claude-opus-5", "max_tokens": 10, "messages": said, **fields}


# -- before the rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud83d"}', b"[" * 5_000])
def test_what_is_no_json_object_is_refused(api, data):
    """Bytes that are no JSON object are an error of the client, in the API's words."""
    reply = ask(api, data)
    assert (reply.status, "JSON" in reply.message) == (400, True)


@pytest.mark.parametrize(
    ("api", "body", "said"),
    [
        ("anthropic", {"max_tokens": 1, "messages": []}, "model: Field required"),
        ("anthropic", {"model": "m", "messages": []}, "max_tokens: Field required"),
        ("anthropic", {"model": "m", "max_tokens": 1}, "messages: Field required"),
        ("openai-chat", {"messages": []}, "Missing required parameter: 'model'."),
        ("openai-responses", {"model": "m"}, "Missing required parameter: 'input'."),
        ("gemini", {}, "* GenerateContentRequest.contents: contents is not specified"),
    ],
)
def test_what_an_api_cannot_do_without_is_asked_for(api, body, said):
    """A missing model, limit or history is refused by its name; a count needs no limit."""
    assert ask(api, body).message == said


WHOLE = {
    "anthropic": messages(("user", "x")),
    "openai-chat": {"model": "gpt-5", "messages": [{"role": "user", "content": "x"}]},
    "openai-responses": {"model": "gpt-5.5", "input": "x"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
}


@pytest.mark.parametrize("api", APIS)
def test_lint_and_the_provider_agree_on_what_is_required(api):
    """A whole request is taken by both; without any one of its fields, or with nothing in it, neither takes it."""
    whole = WHOLE[api]
    parts = [{key: value for key, value in whole.items() if key != gone} for gone in whole]
    for body in (whole, *parts, *({**whole, gone: None} for gone in whole)):
        found = validate_request(body, api, model="gemini-3-pro" if api == "gemini" else "", complete=True)
        assert bool(found) is isinstance(ask(api, body), RefusalReply) is (body is not whole), (body, found)


def test_a_count_needs_no_limit():
    """max_tokens belongs to answers alone."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words")).answer_body("anthropic", body, endpoint="count"), TokenCountReply
    )


@pytest.mark.parametrize("api", APIS)
def test_models_may_be_listed(api):
    """Any model exists, unless some are named: then others are not found."""
    provider = Provider(ProviderSettings(tokenizer="words", models=("mine",)))
    for model, kind in (("mine", ModelAnswer), ("yours", RefusalReply)):
        reply = ProviderClient(provider, api, model=model).send_user_text("x")
        assert isinstance(reply, kind)
        assert isinstance(reply, ModelAnswer) or (reply.status, "yours" in reply.message) == (404, True)


def test_a_field_that_stands_twice_is_refused():
    """JSON that says a field twice is no request."""
    assert ask("anthropic", b'{"model": "m", "max_tokens": 1, "max_tokens": 2, "messages": []}').status == 400


# -- rules in words ----------------------------------------------------------------------------------------------------


def test_words_belong_to_rules():
    """Every wording, code and detail is of a rule that there is."""
    assert {*RULE_WORDINGS, *OPENAI_ERROR_CODES, *ANTHROPIC_ERROR_CODES} <= {rule.name for rule in ALL_RULES}


def test_all_open_calls_are_named():
    """Anthropic's refusal of open calls names all of one message, and where it stands."""
    uses = [{"type": "tool_use", "id": id_, "name": "ls", "input": {}} for id_ in ("t1", "t2", "t3")]
    result = {"type": "tool_result", "tool_use_id": "t2", "content": "ok"}
    reply = ask("anthropic", messages(("user", "x"), ("assistant", uses), ("user", [result])))
    assert reply.message == (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1, t3. Each `tool_use`"
        " block must have a corresponding `tool_result` block in the next message."
    )


FETCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {}}
FETCHED = {
    "type": "web_fetch_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "web_fetch_tool_result_error"},
}


def test_a_deferred_server_call_is_answered():
    """What the server does once it has the client's results waits for them, and for nothing else."""
    use, result = (
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {}},
        {"type": "tool_result", "tool_use_id": "t1"},
    )
    asked = (("user", "x"), ("assistant", [FETCH, use]), ("user", [result]))
    assert isinstance(ask("anthropic", messages(*asked)), ModelAnswer)
    text = {"type": "text", "text": "so"}
    assert isinstance(ask("anthropic", messages(*asked, ("assistant", [FETCHED, text]), ("user", "y"))), ModelAnswer)
    assert isinstance(ask("anthropic", messages(*asked[:2], ("user", [result, text]))), RefusalReply)


def test_open_calls_of_chat_are_named():
    """Chat's refusal names the ids without a tool message right behind."""
    calls = [{"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id_ in ("c1", "c2")]
    said = [{"role": "assistant", "content": None, "tool_calls": calls}]
    said.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
    reply = ask("openai-chat", {"model": "m", "messages": said})
    assert reply.message.endswith("did not have response messages: c2")
    assert reply.details == {"param": "messages[0].tool_calls"}


def test_a_refusal_says_the_place_as_its_api_does():
    """A JSON path becomes ``messages.1.content.0.tool_use.id``, ``messages[1].content`` or snake case."""
    body = messages(("user", "x"), ("assistant", [{"type": "tool_use", "id": "a b"}]))
    assert (
        parse_json_place("$.messages[1].content[0].id", body).format_path("anthropic")
        == "messages.1.content.0.tool_use.id"
    )
    assert parse_json_place("$.messages[1].content", body).format_path("openai-chat") == "messages[1].content"
    parts = parse_json_place("$.contents[2].parts[0].functionResponse.response", {})
    assert (parts.format_path("gemini"), parts.get_value()) == ("contents[2].parts[0].function_response.response", None)


def test_what_has_no_words_says_its_place():
    """A rule whose wording nobody has seen is refused with the place and what lint says."""
    reply = ask("anthropic", messages(("user", "x"), temperature=7))
    assert (reply.code, reply.message.startswith("temperature: ")) == ("invalid_request_error", True)


def test_a_warning_is_no_refusal():
    """What lint only infers is not refused."""
    unknown = {"type": "some_new_block"}
    assert isinstance(ask("anthropic", messages(("user", [{"type": "text", "text": "x"}, unknown]))), ModelAnswer)


def test_betas_come_in_the_header():
    """A feature in beta needs its header, or betas in the body as clouds have it."""
    binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    body = messages(("user", "x"), thinking=binding)
    beta = "thinking-binding-controls-2026-08-01"
    provider = Provider(ProviderSettings(tokenizer="words"))
    assert isinstance(provider.answer_body("anthropic", body), RefusalReply)
    assert isinstance(
        provider.answer_body("anthropic", body, headers={"anthropic-beta": f"other, {beta}"}), ModelAnswer
    )
    assert isinstance(provider.answer_body("anthropic", body | {"betas": [beta]}), ModelAnswer)
    assert provider.answer_body("anthropic", body | {"betas": 1}).message == "betas: Input should be a valid list"


# -- anything at all ---------------------------------------------------------------------------------------------------


@given(st.sampled_from(APIS), st.binary(max_size=300), st.sampled_from(["generate", "count", "compact"]))
def test_any_bytes_have_a_reply(api, data, endpoint):
    """Whatever the bytes are, there is a reply and nothing is raised."""
    assert isinstance(Provider(SIMPLE).answer(IncomingRequest(api, endpoint, data, "gemini-3-pro")), RefusalReply)


def _spots(value, path=()):
    """Yield the paths of everything inside a body."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _spots(one, (*path, key))


def _mangled(body, chance):
    """Return a copy of a body with something odd in one place, or one thing less."""
    copy = json.loads(json.dumps(body))
    spot = chance.choice(list(_spots(copy)))
    owner = copy
    for step in spot[:-1]:
        owner = owner[step]
    if chance.random() < 0.3:
        del owner[spot[-1]]
    else:
        owner[spot[-1]] = chance.choice(ODD)
    return copy


def _full(api):
    """Return a body with words, thinking, calls and results."""
    client = ProviderClient(Provider(SIMPLE), api, tools=["ls"])
    if api == "anthropic":
        client.body |= {"thinking": {"type": "adaptive"}, "system": "be brief", "cache_control": {"type": "ephemeral"}}
        client.body["betas"] = ["some-beta-2026-01-01"]
    if api == "openai-responses":
        client.body |= {"reasoning": {}, "include": ["reasoning.encrypted_content"], "instructions": "be brief"}
    client.send_results(client.send_user_text("call ls {}"))
    client.send_user_text("and")
    return client.body


FULL = {api: _full(api) for api in APIS}


@given(st.sampled_from(APIS), st.integers(0, 2**32), st.sampled_from(["generate", "count", "compact"]))
def test_any_mangled_request_has_a_reply(api, seed, endpoint):
    """A good request with odd things in it is answered or refused; never is anything raised."""
    chance = random.Random(seed)
    body = FULL[api]
    for _ in range(chance.randint(1, 3)):
        body = _mangled(body, chance)
    reply = Provider(SIMPLE).answer_body(api, body, endpoint=endpoint, model="gemini-3-pro")
    assert isinstance(reply, RefusalReply | ModelAnswer | TokenCountReply | CompactReply)
    assert not isinstance(reply, RefusalReply) or (reply.message and msgspec.json.encode(reply))
