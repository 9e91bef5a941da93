"""Refusals of the strict provider in the words and codes of each API; the rules themselves are tested elsewhere."""

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
ODD_VALUES = (
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
SMALL_SETTINGS = ProviderSettings(tokenizer="words", cache_minimum=1, window=5_000)


def send_body(api, body, **settings):
    model = "gemini-3-pro" if api == "gemini" else ""
    return Provider(ProviderSettings(tokenizer="words", **settings)).answer_body(api, body, model=model)


def build_body(*turns, **fields):
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"model": "claude-opus-5", "max_tokens": 10, "messages": messages, **fields}


# -- before the rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud83d"}', b"[" * 5_000])
def test_provider_refuses_bytes_that_are_no_json_object(api, data):
    """The refusal is a client error in the API's words."""
    reply = send_body(api, data)
    assert (reply.status, "JSON" in reply.message) == (400, True)


@pytest.mark.parametrize(
    ("api", "body", "message"),
    [
        ("anthropic", {"max_tokens": 1, "messages": []}, "model: Field required"),
        ("anthropic", {"model": "m", "messages": []}, "max_tokens: Field required"),
        ("anthropic", {"model": "m", "max_tokens": 1}, "messages: Field required"),
        ("openai-chat", {"messages": []}, "Missing required parameter: 'model'."),
        ("openai-responses", {"model": "m"}, "Missing required parameter: 'input'."),
        ("gemini", {}, "* GenerateContentRequest.contents: contents is not specified"),
    ],
)
def test_provider_names_a_missing_required_field(api, body, message):
    """A missing model, limit or history is refused by its name, in the API's words."""
    assert send_body(api, body).message == message


COMPLETE_BODIES = {
    "anthropic": build_body(("user", "x")),
    "openai-chat": {"model": "gpt-5", "messages": [{"role": "user", "content": "x"}]},
    "openai-responses": {"model": "gpt-5.5", "input": "x"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
}


@pytest.mark.parametrize("api", APIS)
def test_provider_and_validate_request_agree_on_required_fields(api):
    """Both accept a complete request and refuse it when any field is missing or null."""
    complete = COMPLETE_BODIES[api]
    parts = [{key: value for key, value in complete.items() if key != missing} for missing in complete]
    for body in (complete, *parts, *({**complete, missing: None} for missing in complete)):
        problems = validate_request(body, api, model="gemini-3-pro" if api == "gemini" else "", complete=True)
        assert bool(problems) is isinstance(send_body(api, body), RefusalReply) is (body is not complete), (
            body,
            problems,
        )


def test_count_request_needs_no_max_tokens():
    """A limit is only required where an answer is requested."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert isinstance(
        Provider(ProviderSettings(tokenizer="words")).answer_body("anthropic", body, endpoint="count"), TokenCountReply
    )


@pytest.mark.parametrize("api", APIS)
def test_provider_refuses_models_outside_its_list(api):
    """Any model exists, unless the settings name some: then others are not found."""
    provider = Provider(ProviderSettings(tokenizer="words", models=("mine",)))
    for model, kind in (("mine", ModelAnswer), ("yours", RefusalReply)):
        reply = ProviderClient(provider, api, model=model).send_user_text("x")
        assert isinstance(reply, kind)
        assert isinstance(reply, ModelAnswer) or (reply.status, "yours" in reply.message) == (404, True)


def test_provider_refuses_duplicate_json_fields():
    """A duplicate field would hide one of its values."""
    assert send_body("anthropic", b'{"model": "m", "max_tokens": 1, "max_tokens": 2, "messages": []}').status == 400


# -- rules in words ----------------------------------------------------------------------------------------------------


def test_refusal_wordings_belong_to_existing_rules():
    """Every wording, code and detail belongs to a rule of the validator."""
    assert {*RULE_WORDINGS, *OPENAI_ERROR_CODES, *ANTHROPIC_ERROR_CODES} <= {rule.name for rule in ALL_RULES}


def test_refusal_of_open_calls_names_all_of_a_message():
    """Anthropic's refusal names every open call of one message, and the message's place."""
    uses = [{"type": "tool_use", "id": id_, "name": "ls", "input": {}} for id_ in ("t1", "t2", "t3")]
    result = {"type": "tool_result", "tool_use_id": "t2", "content": "ok"}
    reply = send_body("anthropic", build_body(("user", "x"), ("assistant", uses), ("user", [result])))
    assert reply.message == (
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t1, t3. Each `tool_use`"
        " block must have a corresponding `tool_result` block in the next message."
    )


TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
FETCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_fetch", "input": {}}
FETCHED = {
    "type": "web_fetch_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "web_fetch_tool_result_error"},
}


def test_server_call_may_wait_for_the_results_of_the_client():
    """A server tool that runs after the client's tools waits for their results only."""
    use, result = (
        {"type": "tool_use", "id": "t1", "name": "ls", "input": {}},
        {"type": "tool_result", "tool_use_id": "t1"},
    )
    turns = (("user", "x"), ("assistant", [FETCH, use]), ("user", [result]))
    assert isinstance(send_body("anthropic", build_body(*turns)), ModelAnswer)
    text = {"type": "text", "text": "so"}
    assert isinstance(
        send_body("anthropic", build_body(*turns, ("assistant", [FETCHED, text]), ("user", "y"))), ModelAnswer
    )
    assert isinstance(send_body("anthropic", build_body(*turns[:2], ("user", [result, text]))), RefusalReply)


def test_refusal_of_open_chat_calls_names_their_ids():
    """The refusal names the calls without a tool message right behind them."""
    calls = [{"id": id_, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id_ in ("c1", "c2")]
    conversation = [{"role": "assistant", "content": None, "tool_calls": calls}]
    conversation.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
    reply = send_body("openai-chat", {"model": "m", "messages": conversation})
    assert reply.message.endswith("did not have response messages: c2")
    assert reply.details == {"param": "messages[0].tool_calls"}


@pytest.mark.parametrize(
    ("api", "fields", "words"),
    [
        (
            "openai-chat",
            {"model": "gpt-5.6-sol", "tools": [TOOL]},
            "use /v1/responses or set reasoning_effort to 'none'",
        ),
        ("openai-chat", {"model": "gpt-6.2-sol", "tools": [TOOL]}, "Please use /v1/responses instead."),
        ("openai-responses", {"model": "o3", "temperature": 0}, "Unsupported parameter: 'temperature'"),
        (
            "openai-responses",
            {"model": "gpt-6.2-sol", "reasoning": {"effort": "none"}},
            "Supported values are: 'low', 'medium', 'high', 'xhigh', 'max'.",
        ),
        (
            "openai-responses",
            {"model": "m", "input": [{"type": "reasoning", "id": "rs_1"}, {"role": "user", "content": "x"}]},
            "Missing required parameter: 'input[0].summary'.",
        ),
    ],
)
def test_refusal_by_model_is_worded_as_openai_does(api, fields, words):
    """What a model of OpenAI's refuses, and a missing summary, are refused in OpenAI's words."""
    reply = send_body(api, {**COMPLETE_BODIES[api], **fields})
    assert words in reply.message


def test_json_place_is_formatted_as_its_api_does():
    """A JSON path becomes ``messages.1.content.0.tool_use.id``, ``messages[1].content`` or snake case."""
    body = build_body(("user", "x"), ("assistant", [{"type": "tool_use", "id": "a b"}]))
    assert (
        parse_json_place("$.messages[1].content[0].id", body).format_path("anthropic")
        == "messages.1.content.0.tool_use.id"
    )
    assert parse_json_place("$.messages[1].content", body).format_path("openai-chat") == "messages[1].content"
    parts = parse_json_place("$.contents[2].parts[0].functionResponse.response", {})
    assert (parts.format_path("gemini"), parts.get_value()) == ("contents[2].parts[0].function_response.response", None)


def test_refusal_without_a_known_wording_gives_the_place():
    """A rule whose provider wording is unknown is refused with its place and the validator's text."""
    reply = send_body("anthropic", build_body(("user", "x"), temperature=7))
    assert (reply.code, reply.message.startswith("temperature: ")) == ("invalid_request_error", True)


def test_provider_accepts_requests_with_warnings_only():
    """The validator's warnings are only inferred, so they are not refused."""
    unknown = {"type": "some_new_block"}
    assert isinstance(
        send_body("anthropic", build_body(("user", [{"type": "text", "text": "x"}, unknown]))), ModelAnswer
    )


def test_beta_feature_needs_its_header_or_betas_field():
    """Clouds take the betas in the body instead of the header."""
    binding = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    body = build_body(("user", "x"), thinking=binding)
    beta = "thinking-binding-controls-2026-08-01"
    provider = Provider(ProviderSettings(tokenizer="words"))
    assert isinstance(provider.answer_body("anthropic", body), RefusalReply)
    assert isinstance(
        provider.answer_body("anthropic", body, headers={"anthropic-beta": f"other, {beta}"}), ModelAnswer
    )
    assert isinstance(provider.answer_body("anthropic", body | {"betas": [beta]}), ModelAnswer)
    assert provider.answer_body("anthropic", body | {"betas": 1}).message == "betas: Input should be a valid list"


# -- arbitrary bodies --------------------------------------------------------------------------------------------------


@given(st.sampled_from(APIS), st.binary(max_size=300), st.sampled_from(["generate", "count", "compact"]))
def test_provider_replies_to_any_bytes(api, data, endpoint):
    """No bytes at any endpoint raise an error."""
    assert isinstance(
        Provider(SMALL_SETTINGS).answer(IncomingRequest(api, endpoint, data, "gemini-3-pro")), RefusalReply
    )


def iter_paths(value, path=()):
    """Yield the paths of everything inside a body."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from iter_paths(item, (*path, key))


def mangle_body(body, random_source):
    """Return a copy of a body with an odd value at one place, or without that value."""
    copy = json.loads(json.dumps(body))
    path = random_source.choice(list(iter_paths(copy)))
    owner = copy
    for step in path[:-1]:
        owner = owner[step]
    if random_source.random() < 0.3:
        del owner[path[-1]]
    else:
        owner[path[-1]] = random_source.choice(ODD_VALUES)
    return copy


def build_full_body(api):
    """Return a body with text, thinking, calls and results."""
    client = ProviderClient(Provider(SMALL_SETTINGS), api, tools=["ls"])
    if api == "anthropic":
        client.body |= {"thinking": {"type": "adaptive"}, "system": "be brief", "cache_control": {"type": "ephemeral"}}
        client.body["betas"] = ["some-beta-2026-01-01"]
    if api == "openai-responses":
        client.body |= {"reasoning": {}, "include": ["reasoning.encrypted_content"], "instructions": "be brief"}
    client.send_results(client.send_user_text("call ls {}"))
    client.send_user_text("and")
    return client.body


FULL_BODIES = {api: build_full_body(api) for api in APIS}


@given(st.sampled_from(APIS), st.integers(0, 2**32), st.sampled_from(["generate", "count", "compact"]))
def test_provider_replies_to_any_damaged_request(api, seed, endpoint):
    """A valid request with odd values in it is answered or refused, and nothing is raised."""
    random_source = random.Random(seed)
    body = FULL_BODIES[api]
    for _ in range(random_source.randint(1, 3)):
        body = mangle_body(body, random_source)
    reply = Provider(SMALL_SETTINGS).answer_body(api, body, endpoint=endpoint, model="gemini-3-pro")
    assert isinstance(reply, RefusalReply | ModelAnswer | TokenCountReply | CompactReply)
    assert not isinstance(reply, RefusalReply) or (reply.message and msgspec.json.encode(reply))
