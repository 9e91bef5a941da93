"""Compactions by a provider: the request, its answer, the betas of later requests, and automatic thresholds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Catalog, get_target, load_shipped_catalog
from holdfast.config.catalog import CatalogModel
from holdfast.errors import ConfigError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Text, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.anthropic.compaction import build_result_clearing_fields, merge_context_edits
from holdfast.providers.common.compaction import add_beta_header
from holdfast.providers.common.sse import SseReader, StreamEvent
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.native_compaction import (
    NativeCompactionFailure,
    NativeCompactionResult,
    build_compaction_from_answer,
    build_native_compaction_request,
    build_server_compaction_fields,
    can_compact_natively,
    count_parts_before_compaction,
    find_required_betas,
    parse_native_compaction,
)
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.view import build_projection, get_shown_tokens
from holdfast.testing.provider.apis import API_ENCODERS
from holdfast.testing.provider.calls import CompactReply, IncomingRequest, ModelAnswer, RefusalReply
from holdfast.testing.provider.client import STRICTEST_MODELS, ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

WORDS = ProviderSettings(tokenizer="words")
ANTHROPIC, RESPONSES = "anthropic", "openai-responses"
CLAUDE, GPT = STRICTEST_MODELS[ANTHROPIC], STRICTEST_MODELS[RESPONSES]
TURNS = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}]
FULL = {
    "model": CLAUDE,
    "max_tokens": 900,
    "system": "be brief",
    "tools": [{"name": "ls", "input_schema": {"type": "object"}}],
    "thinking": {"type": "adaptive"},
    "stream": True,
    "stop_sequences": ["x"],
    "output_format": {"type": "json_schema"},
    "output_config": {"effort": "high", "format": {"type": "json_schema"}},
    "tool_choice": {"type": "any"},
    "fallbacks": [{"model": "m", "output_config": {"format": {}, "effort": "low"}}, {"model": "n"}],
    "context_management": {"edits": []},
    "messages": TURNS,
}
"""A request with every option that a compaction request must leave out."""


def encode(value):
    return msgspec.json.encode(value)


def decode(data):
    return msgspec.json.decode(data)


def encode_reply(api, reply):
    """Return the strict provider's reply as a body."""
    encoder = API_ENCODERS[api]
    if isinstance(reply, CompactReply):
        return encode(encoder.encode_compaction(reply))
    if isinstance(reply, RefusalReply):
        return encode(encoder.encode_error(reply, "req_1"))
    return encode(encoder.encode_answer(IncomingRequest(api, "generate", b"{}"), reply))


def build_client(api, provider=None, **fields):
    """Return a client with two turns behind it."""
    client = ProviderClient(provider or Provider(WORDS), api, **fields)
    client.send_user_text("go " * 300)
    client.send_user_text("on " * 50)
    return client


def compact(client, **options):
    """Return the provider's compaction of the conversation of ``client``, and the request for it."""
    compaction_request = build_native_compaction_request(client.api, encode(client.body), **options)
    reply = client.provider.answer_body(
        client.api,
        compaction_request.body,
        endpoint=compaction_request.endpoint,
        headers=dict(compaction_request.headers),
    )
    return parse_native_compaction(
        client.api, parse_answer(client.api, encode_reply(client.api, reply))
    ), compaction_request


# -- asking ------------------------------------------------------------------------------------------------------------


def test_compaction_request_of_anthropic_drops_answer_options():
    """Options that only shape an answer are left out, everything else stays, and the beta is requested."""
    compaction_request = build_native_compaction_request(ANTHROPIC, encode(FULL))
    kept = {key: FULL[key] for key in ("model", "max_tokens", "system", "tools", "thinking", "messages")}
    shaped = {
        "output_config": {"effort": "high"},
        "fallbacks": [{"model": "m", "output_config": {"effort": "low"}}, {"model": "n"}],
    }
    assert decode(compaction_request.body) == kept | shaped | {"compaction": {"type": "summarize"}}
    assert (compaction_request.endpoint, compaction_request.headers) == (
        "generate",
        {"anthropic-beta": "compact-2026-09-04"},
    )
    found = validate_request(compaction_request.body, ANTHROPIC, betas={"compact-2026-09-04"})
    assert not [finding for finding in found if "compaction" in finding.rule]


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}])
def test_compaction_request_keeps_a_tool_choice_that_forces_nothing(choice):
    """Only forced calls do not go with a compaction."""
    compaction_request = build_native_compaction_request(ANTHROPIC, encode({**FULL, "tool_choice": choice}))
    assert decode(compaction_request.body)["tool_choice"] == choice


def test_compaction_request_keeps_the_bytes_of_messages():
    """The compaction request has the messages as they are in the body, including spaces."""
    body = b'{"model":"m","max_tokens":9,"messages":[ {"role" : "user", "content":"\\u006b"} ]}'
    assert b'[ {"role" : "user", "content":"\\u006b"} ]' in build_native_compaction_request(ANTHROPIC, body).body


def test_compaction_request_of_responses_has_only_accepted_fields():
    """``/responses/compact`` gets model, input, instructions and cache fields, but no tools or stream option."""
    body = {
        "model": GPT,
        "input": [{"role": "user", "content": "go"}],
        "instructions": "be brief",
        "tools": [],
        "stream": True,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "store": False,
    }
    compaction_request = build_native_compaction_request(RESPONSES, encode(body))
    assert compaction_request.endpoint == "compact"
    assert decode(compaction_request.body) == {
        key: body[key] for key in ("model", "input", "instructions", "prompt_cache_key")
    }


@pytest.mark.parametrize("input_value", ["go", [{"role": "user", "content": "go"}]])
def test_compaction_request_in_band_appends_a_trigger(input_value):
    """An in-band request stays as it is, with the trigger after its input, which may be a string."""
    body = {
        "model": GPT,
        "input": input_value,
        "tools": [],
        "stream": True,
        "context_management": [{"type": "compaction"}],
    }
    compaction_request = build_native_compaction_request(RESPONSES, encode(body), in_band=True)
    assert compaction_request.endpoint == "generate"
    items = [{"role": "user", "content": "go"}, {"type": "compaction_trigger"}]
    assert decode(compaction_request.body) == {"model": GPT, "input": items, "tools": []}


def test_compaction_request_writes_the_instructions():
    """Instructions go into the field of each API, on Responses after the request's own; blank ones are ignored."""
    plain = build_native_compaction_request(ANTHROPIC, encode(FULL), instructions="  ")
    assert decode(plain.body)["compaction"] == {"type": "summarize"}
    written = decode(build_native_compaction_request(ANTHROPIC, encode(FULL), instructions="the kelp").body)[
        "compaction"
    ]["instructions"]
    assert written.endswith("Above all: the kelp")
    body = encode({"model": GPT, "input": "go", "instructions": "be brief"})
    for inside in (False, True):
        written = decode(
            build_native_compaction_request(RESPONSES, body, instructions="the kelp", in_band=inside).body
        )["instructions"]
        assert written.startswith("be brief\n\n")
        assert written.endswith("Above all: the kelp")


@pytest.mark.parametrize("api", ["openai-chat", "gemini"])
def test_compaction_request_is_rejected_for_other_apis(api):
    """The ``ConfigError`` for an API without compaction says what else is possible."""
    with pytest.raises(ConfigError, match="compact with a model"):
        build_native_compaction_request(api, b"{}")


@pytest.mark.parametrize(
    ("api", "model", "can"),
    [
        (ANTHROPIC, "claude-opus-4-6", True),
        (ANTHROPIC, "claude-haiku-5-5", True),
        (ANTHROPIC, "claude-mythos-5-1", True),
        (ANTHROPIC, "claude-sonnet-4-5", False),
        (ANTHROPIC, "eu.anthropic.claude-opus-5-5-v1:0", False),
        (ANTHROPIC, "kimi-k3", False),
        (RESPONSES, "gpt-5.5", True),
        (RESPONSES, "gpt-oss-120b", False),
        (RESPONSES, "qwen3-coder", False),
        ("openai-chat", "gpt-5.5", False),
        ("gemini", "gemini-3-pro", False),
    ],
)
def test_can_compact_natively_for_known_models(api, model, can):
    """Claude from 4.6 on except on Bedrock, OpenAI's models over Responses, and no others."""
    assert can_compact_natively(get_target(api, model)) is can


def test_can_compact_natively_prefers_the_users_catalog():
    """A catalog line of the user says what a server can do, if its name does not."""
    lines = (CatalogModel("qwen3-*", compacts=True), CatalogModel("claude-*", compacts=False))
    catalog = Catalog(lines).merge_before(load_shipped_catalog())
    assert can_compact_natively(get_target(RESPONSES, "qwen3-coder", catalog=catalog))
    assert not can_compact_natively(get_target(ANTHROPIC, "claude-opus-5-5", catalog=catalog))


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"in_band": True}])
@pytest.mark.parametrize("api", [ANTHROPIC, RESPONSES])
def test_native_compaction_starts_the_next_history(api, options):
    """The strict provider compacts, and accepts the items unchanged as the beginning of the next request."""
    client = build_client(api)
    found, compaction_request = compact(client, **options if api == RESPONSES else {})
    assert isinstance(found, NativeCompactionResult)
    native = decode(found.to_stored_json(api, client.model))
    assert (native["api"], native["model"], native["tokens"]) == (api, client.model, found.tokens)
    assert found.tokens > 0
    client.history[:] = native["items"]
    before = client.provider.requests[-1].tokens
    reply = client.send_user_text("next", anthropic_beta=compaction_request.headers.get("anthropic-beta", ""))
    assert isinstance(reply, ModelAnswer)
    if options or api == ANTHROPIC:
        assert client.provider.requests[-1].tokens < before


def test_parse_native_compaction_wraps_the_block_in_a_message():
    """On the Messages API the block comes back in an assistant message, byte for byte."""
    block = '{"type": "compaction", "content": "so far", "signature":"s"}'
    answer = parse_answer(ANTHROPIC, f'{{"role":"assistant","content":[{block}],"stop_reason":"compaction"}}'.encode())
    found = parse_native_compaction(ANTHROPIC, answer)
    assert found.items == (msgspec.Raw(f'{{"role":"assistant","content":[{block}]}}'.encode()),)
    assert found.tokens == 2


def test_parse_native_compaction_counts_readable_text():
    """A server that reports too few tokens does not make its compaction smaller than it is."""
    body = {"role": "assistant", "content": [{"type": "compaction", "content": "kelp " * 500}]}
    found = parse_native_compaction(
        ANTHROPIC, parse_answer(ANTHROPIC, msgspec.json.encode(body | {"usage": {"output_tokens": 5}}))
    )
    assert found.tokens > 400


def test_append_user_texts_adds_counted_user_messages():
    """Restored texts follow the compaction as user messages, and count."""
    for api, kind in ((ANTHROPIC, "text"), (RESPONSES, "input_text")):
        found = NativeCompactionResult((msgspec.Raw(b"{}"),), 5).append_user_texts(api, ("rules are rules", "skills"))
        assert found.tokens > 6
        message = decode(found.items[1])
        assert message["role"] == "user"
        assert [(block["type"], block["text"]) for block in message["content"]] == [
            (kind, "rules are rules"),
            (kind, "skills"),
        ]
        assert NativeCompactionResult((msgspec.Raw(b"{}"),)).append_user_texts(api, ()) == NativeCompactionResult(
            (msgspec.Raw(b"{}"),)
        )


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (ANTHROPIC, {"content": [{"type": "compaction", "content": None}], "stop_reason": "compaction"}),
        (ANTHROPIC, {"content": [{"type": "compaction", "content": ""}], "stop_reason": "compaction"}),
        (ANTHROPIC, {"content": [{"type": "text", "text": "a summary?"}], "stop_reason": "end_turn"}),
        (ANTHROPIC, {"content": [], "stop_reason": "end_turn"}),
        (RESPONSES, {"object": "response.compaction", "output": []}),
        (RESPONSES, {"object": "response.compaction", "output": [{"type": "compaction", "encrypted_content": ""}]}),
        (RESPONSES, {"output": [{"type": "message", "role": "assistant", "content": []}], "status": "completed"}),
    ],
)
def test_parse_native_compaction_rejects_an_empty_compaction(api, body):
    """Null, an empty text, text in place of a compaction, or nothing at all keeps the history."""
    found = parse_native_compaction(api, parse_answer(api, encode({"role": "assistant", **body})))
    assert isinstance(found, NativeCompactionFailure)
    assert (found.outcome, found.is_retryable) == ("summary_rejected", False)
    assert "history is unchanged" in found.reason


@pytest.mark.parametrize("api", [ANTHROPIC, RESPONSES])
def test_parse_native_compaction_retries_a_damaged_compaction(api):
    """Bytes that are no text may have broken the signed data, so the compaction is requested again."""
    client = build_client(api)
    compaction_request = build_native_compaction_request(api, encode(client.body))
    body = encode_reply(
        api,
        client.provider.answer_body(
            api, compaction_request.body, endpoint=compaction_request.endpoint, headers=dict(compaction_request.headers)
        ),
    )
    assert isinstance(parse_native_compaction(api, parse_answer(api, body)), NativeCompactionResult)
    found = parse_native_compaction(api, parse_answer(api, body.replace(b'"compaction"', b'"compaction","\xff":""', 1)))
    assert isinstance(found, NativeCompactionFailure)
    assert (found.outcome, found.is_retryable) == ("provider_error", True)
    assert "damaged" in found.reason


@pytest.mark.parametrize(
    ("code", "outcome", "again"),
    [
        ("compaction_unavailable", "provider_error", True),
        ("compaction_nothing_to_summarize", "nothing_to_compact", False),
        ("compaction_incomplete_turn", "provider_error", False),
        ("compaction_block_misplaced", "provider_error", False),
        ("compaction_too_many_tool_references", "provider_error", False),
    ],
)
@pytest.mark.parametrize("status", [400, 503])
def test_parse_native_compaction_maps_error_codes(code, outcome, again, status):
    """Only one of the codes is transient, whatever its status; nothing to summarize is no failure."""
    refusal = RefusalReply(status, "invalid_request_error", "no", details={"error_code": code})
    answer = parse_answer(ANTHROPIC, encode_reply(ANTHROPIC, refusal))
    found = parse_native_compaction(
        ANTHROPIC, msgspec.structs.replace(answer, error=msgspec.structs.replace(answer.error, status=status))
    )
    assert (found.outcome, found.is_retryable) == (outcome, again)
    assert code in found.reason


@pytest.mark.parametrize(
    ("status", "message", "again"),
    [
        (429, "slow down", True),
        (529, "overloaded", True),
        (500, "oops", True),
        (401, "bad key", False),
        (404, "model: kelp-1 was not found", False),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", False),
    ],
)
def test_parse_native_compaction_retries_provider_faults_only(status, message, again):
    """Rate limits and failing servers are transient; wrong keys, models and an overflow are not."""
    report = ErrorReport(ANTHROPIC, status, message=message, headers={"retry-after": "3"})
    found = parse_native_compaction(
        ANTHROPIC, msgspec.structs.replace(parse_answer(ANTHROPIC, b'{"content":[]}'), error=report)
    )
    assert (found.outcome, found.is_retryable) == ("provider_error", again)


@given(
    st.sampled_from([ANTHROPIC, RESPONSES]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["content", "type", "output", "encrypted_content", "error", "role", "usage"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ),
    st.sampled_from(["content", "output"]),
)
def test_parse_native_compaction_accepts_any_answer(api, value, field):
    """Whatever a server answers, the result is a compaction or the reason why there is none."""
    for content in (value, [{"type": "compaction", "content": value, "encrypted_content": value}]):
        found = parse_native_compaction(api, parse_answer(api, encode({field: content, "role": "assistant"})))
        assert isinstance(found, NativeCompactionResult | NativeCompactionFailure)


# -- at a threshold ----------------------------------------------------------------------------------------------------


def test_server_compaction_fields_are_valid():
    """The fields pass the validator and the strict provider, which then compacts above the threshold."""
    for api, tokens in ((ANTHROPIC, 50_000), (RESPONSES, 1_000)):
        client = ProviderClient(Provider(WORDS), api, **build_server_compaction_fields(api, tokens))
        beta = ",".join(find_required_betas(api, encode(client.body)))
        assert client.send_user_text("short", anthropic_beta=beta).compaction is None
        reply = client.send_user_text("lorem ipsum " * 30_000, anthropic_beta=beta)
        assert [part.kind for part in reply.parts if isinstance(part, Opaque)] == ["compaction"]
    paused = build_server_compaction_fields(ANTHROPIC, 60_000, pause=True, instructions="kelp")["context_management"][
        "edits"
    ][0]
    assert (paused["pause_after_compaction"], paused["instructions"]) == (True, "kelp")


def test_result_clearing_fields_are_valid():
    """All fields of clearing pass the validator with their beta, also beside a compaction, which comes second."""
    cleared = build_result_clearing_fields(30_000, keep=2, at_least=5_000, exclude=["todo"], inputs=True)
    edit = cleared["context_management"]["edits"][0]
    assert edit == {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 30_000},
        "keep": {"type": "tool_uses", "value": 2},
        "clear_at_least": {"type": "input_tokens", "value": 5_000},
        "exclude_tools": ["todo"],
        "clear_tool_inputs": True,
    }
    both = merge_context_edits(build_server_compaction_fields(ANTHROPIC, 80_000), build_result_clearing_fields())
    kinds = [edit["type"] for edit in both["context_management"]["edits"]]
    assert kinds == ["clear_tool_uses_20250919", "compact_20260112"]
    client = ProviderClient(Provider(WORDS), ANTHROPIC, **both)
    needed = find_required_betas(ANTHROPIC, encode(client.body))
    assert set(needed) == {"compact-2026-01-12", "context-management-2025-06-27"}
    assert isinstance(client.send_user_text("go", anthropic_beta=",".join(needed)), ModelAnswer)
    assert isinstance(client.send_user_text("go"), RefusalReply)


@pytest.mark.parametrize(("api", "tokens"), [(ANTHROPIC, 49_999), (RESPONSES, 999)])
def test_server_compaction_fields_reject_a_threshold_too_low(api, tokens):
    """The error for a threshold below the provider's minimum states the number."""
    with pytest.raises(ConfigError, match=f"{tokens:,}"):
        build_server_compaction_fields(api, tokens)
    assert build_server_compaction_fields(api, tokens + 1)


def test_server_compaction_fields_are_rejected_for_other_apis():
    """The error for an API without them says what else is possible."""
    with pytest.raises(ConfigError, match="compact with a model"):
        build_server_compaction_fields("gemini", 100_000)


# -- what later requests need ------------------------------------------------------------------------------------------

BLOCK = {"type": "compaction", "content": "so far", "signature": "s"}


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, ()),
        ({"compaction": None}, ()),
        ({"compaction": {"type": "summarize"}}, ("compact-2026-09-04",)),
        ({"messages": [{"role": "assistant", "content": [BLOCK]}]}, ("compact-2026-09-04",)),
        ({"messages": [{"role": "user", "content": '{"type": "compaction"}'}]}, ()),
        (build_server_compaction_fields(ANTHROPIC, 50_000), ("compact-2026-01-12",)),
        (
            {
                **build_server_compaction_fields(ANTHROPIC, 50_000),
                "messages": [{"role": "assistant", "content": [BLOCK]}],
            },
            ("compact-2026-01-12",),
        ),
        (build_result_clearing_fields(), ("context-management-2025-06-27",)),
        ({"context_management": 7}, ()),
    ],
)
def test_find_required_betas_reads_the_body(fields, needed):
    """The betas follow from the body; text that only quotes a block needs none, and other APIs have none."""
    assert find_required_betas(ANTHROPIC, encode({"model": CLAUDE, "messages": [], **fields})) == needed
    assert find_required_betas(RESPONSES, encode(fields)) == ()


def test_add_beta_header_merges_the_betas_of_the_caller():
    """The caller's betas stay, each once, whatever the case of the header; without any there is no header."""
    own = {"Anthropic-Beta": "a, b", "X-Kelp": "1"}
    assert add_beta_header(own, ["b", "c"]) == {"anthropic-beta": "a,b,c", "x-kelp": "1"}
    assert add_beta_header({}, ()) == {}
    assert add_beta_header({"x": "1"}, ()) == {"x": "1"}


# -- an answer that compacted by itself --------------------------------------------------------------------------------


def build_client_over_threshold(api):
    """Return a client whose last answer begins with a compaction, the answer parsed from its stream, and the beta."""
    tokens = {ANTHROPIC: 50_000, RESPONSES: 1_000}[api]
    client = ProviderClient(Provider(WORDS), api, **build_server_compaction_fields(api, tokens))
    beta = ",".join(find_required_betas(api, encode(client.body)))
    reply = client.send_user_text("lorem ipsum " * 30_000, anthropic_beta=beta)
    stream, reader = AnswerStream(api), SseReader()
    for chunk in API_ENCODERS[api].encode_stream(IncomingRequest(api, "generate", b"{}"), reply).events:
        for event in reader.feed(chunk):
            stream.add_event(event)
    return client, stream.build_answer(), beta


@pytest.mark.parametrize("api", [ANTHROPIC, RESPONSES])
def test_compaction_from_answer_replaces_the_head(api):
    """The compaction in a streamed answer becomes an entry of the log: its items come first and leave the answer."""
    client, answer, beta = build_client_over_threshold(api)
    assert count_parts_before_compaction(answer.message) == 1
    found = build_compaction_from_answer(api, client.model, answer.message, 7, Message.from_text("user", "the twin"))
    assert (found.first_kept, found.author, found.trigger, found.summary.text) == (7, "native", "native", "the twin")
    assert [(edit.span.start, edit.span.stop, edit.span.part, edit.replacement) for edit in found.edits] == [
        (7, 8, 0, ())
    ]
    native = decode(found.native)
    rest = decode(b"[" + b",".join(answer.history_elements) + b"]")
    if api == ANTHROPIC:
        rest[0]["content"] = rest[0]["content"][1:]
    else:
        rest = rest[1:]
    client.history[:] = [*native["items"], *rest]
    reply = client.send_user_text("next", anthropic_beta=beta)
    assert isinstance(reply, ModelAnswer), reply
    assert client.provider.requests[-1].tokens < 1_000


@pytest.mark.parametrize("api", [ANTHROPIC, RESPONSES])
def test_request_usage_of_a_compacting_answer_is_no_truncation(api):
    """The estimate is compared with everything the provider read, not with what a compaction left."""
    _, answer, _ = build_client_over_threshold(api)
    assert answer.request_usage.input > 50_000
    assert classify_error(answer.to_report(60_000, 200_000)).kind == "content"
    assert classify_error(answer.to_report(600_000, 900_000)).kind == "silent_truncation"


def test_request_usage_includes_cleared_tokens():
    """Tokens that context editing cleared count in the size of the request, streamed or not."""
    edits = [
        {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 9, "cleared_input_tokens": 40_000},
        {"type": "x"},
    ]
    body = {
        "role": "assistant",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 20_000, "output_tokens": 5},
        "context_management": {"applied_edits": edits},
    }
    answer = parse_answer(ANTHROPIC, encode(body))
    assert (answer.cleared_tokens, answer.usage.input, answer.request_usage.input) == (40_000, 20_000, 60_000)
    assert classify_error(answer.to_report(60_000, 200_000)).kind == "content"
    start = {"type": "message_start", "message": {**body, "content": [], "context_management": None}}
    end = {"type": "message_delta", "delta": {}, "context_management": body["context_management"]}
    stream = AnswerStream(ANTHROPIC)
    for event in (start, end, {"type": "message_stop"}):
        stream.add_event(StreamEvent(encode(event), event["type"]))
    assert stream.build_answer().cleared_tokens == 40_000
    assert (
        parse_answer(ANTHROPIC, encode({**body, "context_management": {"applied_edits": 7}})).request_usage.input
        == 20_000
    )


def test_compaction_from_answer_is_none_without_a_compaction():
    """A plain answer, or a compaction that failed (null), leaves the log as it is."""
    null = Opaque("compaction", msgspec.Raw(b'{"type":"compaction","content":null}'))
    for parts in ((Text("hi"),), (null, Text("hi")), (Opaque("other", msgspec.Raw(b"{}")),), ()):
        assert (
            build_compaction_from_answer(
                ANTHROPIC, "m", Message("assistant", parts), 1, Message.from_text("user", "twin")
            )
            is None
        )


def test_compaction_from_answer_takes_the_newest():
    """If an answer compacted twice, everything before the newer one is hidden; text in between stays in the readable
    summary.
    """
    older, newer = (Opaque("compaction", msgspec.Raw(encode({**BLOCK, "content": word}))) for word in ("one", "two"))
    parts = (older, Thinking("hm"), Text("said between"), newer, Text("at last"))
    found = build_compaction_from_answer(
        ANTHROPIC, "m", Message("assistant", parts), 3, Message.from_text("user", "the twin")
    )
    assert [edit.span.part for edit in found.edits] == [0, 1, 2, 3]
    assert [part.text for part in found.summary.parts] == ["the twin", "said between"]
    assert decode(found.native)["items"] == [{"role": "assistant", "content": [{**BLOCK, "content": "two"}]}]


def test_compaction_from_answer_is_counted_once():
    """What an answer compacted counts as the head and no longer in the answer; other models count the readable
    summary.
    """
    block = Opaque("compaction", msgspec.Raw(encode({**BLOCK, "content": "kelp on the rock " * 40})))
    answered = Message("assistant", (block, Text("at last")))
    twin = Message.from_text("user", "the twin " * 400)
    found = build_compaction_from_answer(ANTHROPIC, "m", answered, 1, twin)
    bodies = [
        MessageEntry(build_sized_message(Message.from_text("user", "go"))),
        MessageEntry(build_sized_message(answered)),
        found,
    ]
    state = ConversationState.from_entries(Entry(str(number), None, body) for number, body in enumerate(bodies))
    left = build_sized_message(Message("assistant", (Text("at last"),))).tokens
    assert found.readable_tokens == build_sized_message(twin).tokens
    assert (
        state.view.shown_tokens
        == sum(sized_message.tokens for sized_message in build_projection(state))
        == pytest.approx(found.head_tokens + left, abs=2)
    )
    assert (
        get_shown_tokens(state, "n", ANTHROPIC)
        == get_shown_tokens(state, "m", RESPONSES)
        == state.view.shown_tokens + found.readable_tokens - found.head_tokens
    )


def test_parse_request_reads_compaction_items():
    """The items are messages that ``parse_request`` reads: an opaque part of the API's own kind."""
    client = build_client(ANTHROPIC)
    found, _ = compact(client)
    body = encode({"model": CLAUDE, "max_tokens": 9, "messages": list(found.items)})
    assert [part.kind for part in parse_request(body).messages[0].message.parts] == ["compaction"]
