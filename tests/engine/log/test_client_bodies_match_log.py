"""Whole request bodies: the history that a client sends back matches the log and makes no branch.

The clients are the official SDKs, which send back their own types over a transport that is a session. The requests
sent upstream are theirs, and the log has one branch. Clients in other languages may encode the same differently.
"""

from __future__ import annotations

import json

import anthropic
import anyio
import httpx2
import openai
import pytest
from google import genai
from google.genai import types
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.request_template import parse_and_measure_body
from holdfast.errors import UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, Thinking, ToolResult
from holdfast.messages.strip_foreign import strip_foreign_content
from holdfast.planning.pipeline import Policy
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.requests.message_dicts import encode_messages
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.state.entries import MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import ModelAnswer, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

STEPS = 4
OTHER_MODELS = {"anthropic": "claude-sonnet-5-5", "openai-chat": "gpt-5-mini", "openai-responses": "gpt-5-mini"}
"""A second model of each API that signs its thinking."""
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
RESULT = 'kelp 海藻 "quoted" \\ and a line\n\n' * 3


def build_script():
    """Yield the model's answers: for each step two calls, then a text, each with thinking."""
    for step in range(STEPS):
        calls = (("read", {"path": f"a/{step}.py", "lines": [1, 2.5], "deep": {"b": 1, "a": "海"}}), ("read", {}))
        yield ScriptedAnswer(f"Step {step}: {RESULT}", calls, f"Where is {step}?")
        yield ScriptedAnswer(f"Step {step} is done.", (), f"Done with {step}.")


class SessionTransport(httpx2.BaseTransport):
    """A transport that answers from a session, and opens the store for each request as a restarted proxy does."""

    def __init__(self, api: str) -> None:
        self.api, self.store = api, MemoryStore()
        self.provider = Provider(ProviderSettings(), list(build_script()))
        self.upstream = ProviderUpstream(self.provider)
        self.bodies: list[bytes] = []

    def handle_request(self, request):
        """Return the session's answer to a body."""
        body, stream = request.read(), "stream" in request.url.path.lower()
        self.bodies.append(body)
        content = anyio.run(self._answer, body, stream)
        kind = "application/json" if content.lstrip().startswith(b"{") else "text/event-stream"
        return httpx2.Response(200, headers={"content-type": kind}, content=content)

    async def _answer(self, body, stream):
        target = get_target(self.api, STRICTEST_MODELS[self.api])
        async with (
            Engine.open(self.store, upstream=self.upstream, target=target) as engine,
            (await engine.session(SAMPLE_KEY)).run(body, stream=stream if self.api == "gemini" else None) as run,
        ):
            return b"".join([event.raw async for event in run])


def assert_one_branch(transport):
    """Assert that the log has a single branch and the provider refused nothing."""
    messages = [
        entry.body.sized_message.message
        for entry in transport.store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    assert len(list(transport.store.read_entries(SAMPLE_KEY, "message"))) == len(messages)
    assert sum(message.role == "assistant" for message in messages) == 2 * STEPS
    assert all(isinstance(request.reply, ModelAnswer) for request in transport.provider.requests)


def assert_bodies_forwarded(transport):
    """Assert that the requests sent upstream are the client's, apart from cache breakpoints."""
    assert [decode_without_breakpoints(sent.body) for sent in transport.upstream.sent] == [
        decode_without_breakpoints(body) for body in transport.bodies
    ]


def decode_without_breakpoints(body):
    """Decode a body without the cache breakpoints that the planner sets, and the blocks they need."""
    return json.loads(body, object_hook=drop_breakpoint)


def drop_breakpoint(value):
    kept = {key: item for key, item in value.items() if key != "cache_control"}
    if kept.get("role") == "user" and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept


# -- the SDKs ----------------------------------------------------------------------------------------------------------


def run_anthropic_sdk(transport, *, stream, switch=False):
    """Run the Anthropic SDK, which sends back its own content blocks and moves its cache breakpoint on."""
    history = []
    tools = [{"name": "read", "input_schema": SCHEMA}]
    with anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=transport)) as client:
        for number in range(2 * STEPS):
            model = OTHER_MODELS["anthropic"] if switch and number % 4 > 1 else STRICTEST_MODELS["anthropic"]
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "max_tokens": 500, "tools": tools, "thinking": {"type": "adaptive"}}
            if stream:
                with client.messages.stream(messages=mark_last_message(history), **settings) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(messages=mark_last_message(history), **settings)
            history.append({"role": "assistant", "content": answer.content})
            uses = [block for block in answer.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": RESULT} for use in uses]
            history += [{"role": "user", "content": results}] if results else []


def mark_last_message(history):
    """Return the history with a cache breakpoint on its last message only, as a client sets it."""
    last = history[-1]
    blocks = [{"type": "text", "text": last["content"]}] if isinstance(last["content"], str) else last["content"]
    marker = {"cache_control": {"type": "ephemeral"}}
    return [*history[:-1], {**last, "content": [*blocks[:-1], {**blocks[-1], **marker}]}]


def run_chat_sdk(transport, *, stream, switch=False):
    """Run the OpenAI SDK with Chat Completions; messages go back as the SDK's type."""
    history = [{"role": "system", "content": "Be brief."}]
    tools = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=transport)) as client:
        for number in range(2 * STEPS):
            model = OTHER_MODELS["openai-chat"] if switch and number % 4 > 1 else STRICTEST_MODELS["openai-chat"]
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "messages": history, "tools": tools}
            if stream:
                with client.chat.completions.stream(**settings) as events:
                    answer = events.get_final_completion().choices[0].message
            else:
                answer = client.chat.completions.create(**settings).choices[0].message
            history.append(answer)
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in answer.tool_calls or ()
            ]


def run_responses_sdk(transport, *, stream, switch=False):
    """Run the OpenAI SDK with Responses; the output items go back."""
    history = []
    tools = [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}]
    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=transport)) as client:
        for number in range(2 * STEPS):
            model = (
                OTHER_MODELS["openai-responses"] if switch and number % 4 > 1 else STRICTEST_MODELS["openai-responses"]
            )
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "input": history, "tools": tools, "store": False}
            settings["include"] = ["reasoning.encrypted_content"]
            if stream:
                with client.responses.stream(**settings) as events:
                    answer = events.get_final_response()
            else:
                answer = client.responses.create(**settings)
            history += answer.output
            calls = [item for item in answer.output if item.type == "function_call"]
            history += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]


def run_google_sdk(transport, *, stream):
    """Run the Google SDK, whose chat keeps the history and sends a stream back chunk by chunk."""
    tools = types.Tool(function_declarations=[{"name": "read", "parameters_json_schema": SCHEMA}])
    config = types.GenerateContentConfig(
        tools=[tools], automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    options = types.HttpOptions(httpx_client=httpx2.Client(transport=transport))
    with genai.Client(api_key="k", http_options=options) as client:
        chat = client.chats.create(model=STRICTEST_MODELS["gemini"], config=config)
        message = "Go on with 0."
        for number in range(2 * STEPS):
            if stream:
                parts = [
                    part for chunk in chat.send_message_stream(message) for part in chunk.candidates[0].content.parts
                ]
            else:
                parts = chat.send_message(message).candidates[0].content.parts
            calls = [part.function_call for part in parts if part.function_call]
            answers = [types.Part.from_function_response(name=call.name, response={"output": RESULT}) for call in calls]
            for call, answer in zip(calls, answers, strict=True):
                answer.function_response.id = call.id
            message = answers or f"Go on with {number}."


SDKS = {
    "anthropic": run_anthropic_sdk,
    "openai-chat": run_chat_sdk,
    "openai-responses": run_responses_sdk,
    "gemini": run_google_sdk,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", SDKS)
def test_session_run_matches_the_history_an_sdk_sends_back(api, stream):
    """Each SDK's own types match the log: one branch, nothing refused, and the client's body is forwarded."""
    transport = SessionTransport(api)
    SDKS[api](transport, stream=stream)
    assert_one_branch(transport)
    if (api, stream) != ("gemini", True):  # a streamed answer is sent back in one piece
        assert_bodies_forwarded(transport)


@pytest.mark.parametrize("api", OTHER_MODELS)
def test_session_run_follows_a_model_switch_of_the_client(api):
    """signed-bytes-intact: signatures go only to the model that made them, and are there again when it is back."""
    transport = SessionTransport(api)
    SDKS[api](transport, stream=False, switch=True)
    assert_one_branch(transport)
    by_model = [
        (body["model"], collect_signatures(body))
        for body in map(json.loads, (sent.body for sent in transport.upstream.sent))
    ]
    assert {model for model, _ in by_model} == {STRICTEST_MODELS[api], OTHER_MODELS[api]}
    signatures_by_model = collect_signatures_by_model(transport)
    for model, signatures in by_model:
        assert signatures <= signatures_by_model[model]
    if api != "openai-chat":
        assert len(by_model[5][1]) > len(by_model[3][1]) > 0


def collect_signatures(body):
    """Return the thinking signatures and encrypted contents in a body."""
    blocks = [block for message in body.get("messages", []) for block in message["content"] if isinstance(block, dict)]
    signatures = [
        *(block.get("signature") for block in blocks),
        *(item.get("encrypted_content") for item in body.get("input", [])),
    ]
    return {signature for signature in signatures if signature}


def collect_signatures_by_model(transport):
    """Return the signatures that the provider made for each model."""
    out = {model: set() for model in (STRICTEST_MODELS[transport.api], OTHER_MODELS[transport.api])}
    for request in transport.provider.requests:
        out[request.reply.model] |= {part.signature.data for part in request.reply.parts if isinstance(part, Thinking)}
    return out


# -- the same in other bytes -------------------------------------------------------------------------------------------


ARGUMENTS = '{"path": "a.py",  "lines": [1, 2.0], "deep": {"b": 1, "a": "\\u6d77"}}'
REENCODED_ARGUMENTS = '{"deep":{"a":"海","b":1},"lines":[1,2],"path":"a.py"}'
CLAUDE = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Where?", "signature": "c2ln"},
        {"type": "text", "text": "Here."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": json.loads(ARGUMENTS)},
    ],
}
CHAT = {
    "role": "assistant",
    "content": "Here.",
    "reasoning_content": "Where?",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}],
}
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Here.", "annotations": [], "logprobs": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "read",
        "arguments": ARGUMENTS,
        "status": "completed",
    },
]
CONTENT = {
    "role": "model",
    "parts": [
        {"text": "Where?", "thought": True},
        {"text": "Here."},
        {"functionCall": {"name": "read", "args": json.loads(ARGUMENTS)}, "thoughtSignature": "a+/b"},
    ],
}


def edit_json(value, *path, drop=(), **fields):
    """Return a copy of a JSON value with the object at ``path`` changed."""
    if path:
        copied = list(value) if isinstance(value, list) else dict(value)
        copied[path[0]] = edit_json(value[path[0]], *path[1:], drop=drop, **fields)
        return copied
    return {key: item for key, item in {**value, **fields}.items() if key not in drop}


VARIANTS = {
    "anthropic": {
        "marked": [edit_json(CLAUDE, "content", 1, cache_control={"type": "ephemeral"})],
        "empty fields": [edit_json(CLAUDE, "content", 1, citations=None)],
        "arguments": [edit_json(CLAUDE, "content", 2, input=json.loads(REENCODED_ARGUMENTS))],
        "caller": [edit_json(CLAUDE, "content", 2, caller={"type": "direct"})],
        "words in pieces": [
            edit_json(
                CLAUDE,
                content=[
                    *CLAUDE["content"][:1],
                    *({"type": "text", "text": text} for text in ("He", "re.")),
                    CLAUDE["content"][2],
                ],
            )
        ],
        "no thinking": [edit_json(CLAUDE, content=CLAUDE["content"][1:])],
    },
    "openai-chat": {
        "arguments": [edit_json(CHAT, "tool_calls", 0, "function", arguments=REENCODED_ARGUMENTS)],
        "pieces": [edit_json(CHAT, content=[{"type": "text", "text": "Here."}])],
        "empty fields": [edit_json(CHAT, refusal=None, annotations=[], audio=None, function_call=None)],
        "annotations": [
            edit_json(CHAT, annotations=[{"type": "url_citation", "url_citation": {"url": "https://a.b"}}])
        ],
        "no reasoning": [edit_json(CHAT, drop=("reasoning_content",))],
        "index": [edit_json(CHAT, "tool_calls", 0, index=0)],
    },
    "openai-responses": {
        "no ids": [edit_json(item, drop=("id", "status")) for item in ITEMS],
        "no status": [edit_json(item, drop=("status",)) for item in ITEMS],
        "content": [ITEMS[0], edit_json(ITEMS[1], content="Here."), ITEMS[2]],
        "bare content": [ITEMS[0], edit_json(ITEMS[1], content=[{"type": "output_text", "text": "Here."}]), ITEMS[2]],
        "arguments": [*ITEMS[:2], edit_json(ITEMS[2], arguments=REENCODED_ARGUMENTS)],
        "empty fields": [edit_json(ITEMS[0], content=None, status=None), ITEMS[1], edit_json(ITEMS[2], namespace=None)],
        "no reasoning": [edit_json(item, drop=("id",)) for item in ITEMS[1:]],
    },
    "gemini": {
        "snake": [
            {
                "role": "model",
                "parts": [
                    *CONTENT["parts"][:2],
                    {
                        "function_call": {"name": "read", "args": json.loads(REENCODED_ARGUMENTS)},
                        "thought_signature": "a+/b",
                    },
                ],
            }
        ],
        "other alphabet": [edit_json(CONTENT, "parts", 2, thoughtSignature="a-_b")],
        "no thoughts": [edit_json(CONTENT, parts=CONTENT["parts"][1:])],
        "empty fields": [edit_json(CONTENT, "parts", 1, thought=None)],
        "contents": [{"role": "model", "parts": [part]} for part in CONTENT["parts"]],
    },
}
"""Other encodings in which a client may send an answer back, for each API."""
ANSWERS = {
    "anthropic": {**CLAUDE, "id": "msg_1", "type": "message", "model": "m", "stop_reason": "tool_use"},
    "openai-chat": {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": CHAT, "finish_reason": "tool_calls"}],
    },
    "openai-responses": {"id": "r", "object": "response", "status": "completed", "output": ITEMS},
    "gemini": {"candidates": [{"content": CONTENT, "finishReason": "STOP"}]},
}
FIELD = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
RESULTS = {
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "kelp"}]},
    "openai-chat": {"role": "tool", "tool_call_id": "call_1", "content": "kelp"},
    "openai-responses": {"type": "function_call_output", "call_id": "call_1", "output": "kelp"},
    "gemini": {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "kelp"}}}]},
}


def build_user_message(api, text):
    return {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}


async def read_run(run):
    async with run:
        async for _ in run:
            pass


def run_conversations(api, *conversations, policy=Policy(), first_answer=None):
    """Run a body for each list of messages; return the store, the logged messages and the bodies sent."""
    first = json.dumps(ANSWERS[api]).encode() if first_answer is None else first_answer
    store, upstream = MemoryStore(), ScriptedUpstream([first, *["yes"] * (len(conversations) - 1)])

    async def run_scenario():
        for messages in conversations:
            target = get_target(api, STRICTEST_MODELS[api])
            async with Engine.open(store, upstream=upstream, target=target, policy=policy) as engine:
                body = {FIELD[api]: messages} | ({} if api == "gemini" else {"model": STRICTEST_MODELS[api]})
                body |= {"max_tokens": 500} if api == "anthropic" else {}
                await read_run((await engine.session(SAMPLE_KEY)).run(body))

    anyio.run(run_scenario)
    logged = [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    return store, logged, [json.loads(sent.body) for sent in upstream.sent]


@pytest.mark.parametrize(("api", "variant"), [(api, variant) for api, known in VARIANTS.items() for variant in known])
def test_session_run_matches_an_answer_in_another_encoding(api, variant):
    """An answer that the client encoded differently makes no branch, also the next time."""
    history = [build_user_message(api, "Where?"), *VARIANTS[api][variant], RESULTS[api]]
    store, messages, sent = run_conversations(
        api, [build_user_message(api, "Where?")], history, [*history[:-1], RESULTS[api]]
    )
    assert [message.role for message in messages[:3]] == ["user", "assistant", "tool"]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 5
    logged_history = [build_user_message(api, "Where?"), *build_answer_elements(api), RESULTS[api]]
    assert decode_without_breakpoints(json.dumps(sent[1][FIELD[api]])) in [
        decode_without_breakpoints(json.dumps(elements)) for elements in (history, logged_history)
    ]


def build_answer_elements(api):
    """Return the history elements of the original answer."""
    return [json.loads(element) for element in parse_answer(api, json.dumps(ANSWERS[api]).encode()).history_elements]


CHANGED = {
    "anthropic": [edit_json(CLAUDE, "content", 1, text="There.")],
    "openai-chat": [edit_json(CHAT, "tool_calls", 0, "function", arguments="{}")],
    "openai-responses": [*ITEMS[:2], edit_json(ITEMS[2], name="write")],
    "gemini": [edit_json(CONTENT, parts=CONTENT["parts"][:2])],
}


@pytest.mark.parametrize("api", CHANGED)
def test_session_run_branches_on_changed_text_arguments_or_calls(api):
    """Other text, arguments or calls are an edited history, which gets a branch of its own."""
    store, messages, _ = run_conversations(
        api,
        [build_user_message(api, "Where?")],
        [build_user_message(api, "Where?"), *CHANGED[api], build_user_message(api, "And?")],
    )
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) > len(messages)


def test_session_run_matches_a_text_that_was_capped_on_append():
    """A text over the cap comes whole in every body, and still matches the capped entry."""
    long, policy = (
        build_user_message("openai-chat", "kelp and rock " * 1_000),
        Policy().with_settings(results={"append_chars": 2_000}),
    )
    history = [long, CHAT, RESULTS["openai-chat"]]
    store, messages, sent = run_conversations("openai-chat", [long], history, history, policy=policy)
    assert len(messages[0].text) <= 2_000
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 5
    assert [body["messages"][0]["content"] for body in sent] == [messages[0].text] * 3


def test_parse_and_measure_body_measures_a_parsed_request():
    """A request that was only parsed gets the same sizes and digests as its body."""
    history = [build_user_message("openai-chat", "Where?"), CHAT, RESULTS["openai-chat"]]
    body = {"model": "gpt-5.1", "messages": history}
    from_parsed, from_dict = (
        parse_and_measure_body(parse_request(json.dumps(body).encode())),
        parse_and_measure_body(body),
    )
    assert [(slot.tokens, slot.digest) for slot in from_parsed.messages] == [
        (slot.tokens, slot.digest) for slot in from_dict.messages
    ]
    assert all(slot.tokens and slot.digest for slot in from_parsed.messages)


def build_body_with_call(api):
    """Return a body of ``api`` with a tool call and its result."""
    body = {FIELD[api]: [build_user_message(api, "Where?"), *build_answer_elements(api), RESULTS[api]]}
    return body if api == "gemini" else {"model": STRICTEST_MODELS[api], **body}


@pytest.mark.parametrize("api", FIELD)
@pytest.mark.parametrize("assumed_api", FIELD)
def test_parse_and_measure_body_detects_the_api_of_a_body(api, assumed_api):
    """With an uncertain API the body decides; with a certain one only another name of the message list does."""
    assert parse_and_measure_body(
        build_body_with_call(api), assumed_api, is_api_certain=False
    ) == parse_and_measure_body(build_body_with_call(api), api)
    assert parse_and_measure_body(build_body_with_call(api), assumed_api).api == (
        assumed_api if FIELD[api] == FIELD[assumed_api] else api
    )


@pytest.mark.parametrize("api", FIELD)
@pytest.mark.parametrize("engine_api", FIELD)
def test_session_run_sends_a_body_to_the_api_it_is_written_for(engine_api, api):
    """Whatever API the engine uses itself, a body keeps its API and its bytes, and its messages are logged."""
    upstream, body = ScriptedUpstream(["yes"]), build_body_with_call(api)

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, target=get_target(engine_api, STRICTEST_MODELS[engine_api])
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await read_run(session.run(body, model=STRICTEST_MODELS[api]))
            return [message.role for message in session.journal.state.history.messages]

    assert anyio.run(run_scenario) == ["user", "assistant", "tool", "assistant"]
    assert [(sent.api, decode_without_breakpoints(sent.body.decode())) for sent in upstream.sent] == [
        (api, decode_without_breakpoints(json.dumps(body)))
    ]


CUT_STREAM_EVENTS = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "He"}},
    {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
    {"type": "message_stop"},
]


def test_session_run_adds_nothing_to_an_answer_cut_by_the_window():
    """The client continues a cut answer itself, and its next body matches the log."""
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in CUT_STREAM_EVENTS).encode()
    first_answer = ScriptedReply((stream,), headers={"content-type": "text/event-stream"})
    first = [build_user_message("anthropic", "Where?")]
    history = [*first, {"role": "assistant", "content": "He"}, build_user_message("anthropic", "Go on there.")]
    store, messages, _ = run_conversations("anthropic", first, history, first_answer=first_answer)
    assert [message.text for message in messages[:3]] == ["Where?", "He", "Go on there."]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 4


# -- engines that know no model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_session_records_the_model_of_a_body_with_a_partial_answer(api):
    """The body names the model, so a partial or complete answer is recorded as that model's."""
    store, upstream = (
        MemoryStore(),
        ProviderUpstream(Provider(script=list(build_script())), [Fault("cut", stage="middle")]),
    )

    async def run_scenario():
        body = {FIELD[api]: [build_user_message(api, "Where?")], "model": STRICTEST_MODELS[api], "stream": True}
        body |= {"max_tokens": 500, "thinking": {"type": "adaptive"}} if api == "anthropic" else {"store": False}
        async with Engine.open(store, upstream=upstream) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError):
                await read_run(session.run(body))
            prepared = await session.prepare(body)
            assert (prepared.target.api, prepared.target.model) == (api, STRICTEST_MODELS[api])
            await session.record(parse_answer(api, json.dumps(ANSWERS[api]).encode()))

    anyio.run(run_scenario)
    slots = [
        entry.body.sized_message
        for entry in store.read_entries(SAMPLE_KEY, "message")
        if entry.body.sized_message.message.role == "assistant"
    ]
    assert [slot.api for slot in slots] == [api, api]
    signing_models = [part.signature.model for part in slots[1].message.parts if isinstance(part, Thinking)]
    assert signing_models == [STRICTEST_MODELS[api]]


API_SEQUENCE = (
    "anthropic",
    "openai-responses",
    "openai-chat",
    "anthropic",
    "gemini",
    "openai-chat",
    "anthropic",
    "gemini",
)


def test_session_run_follows_an_api_switch_of_the_client():
    """The same conversation in another API's form stays on one branch, and the provider accepts every request."""
    store, provider, messages = MemoryStore(), Provider(script=list(build_script())), []
    upstream, default_target = ProviderUpstream(provider), get_target("gemini", STRICTEST_MODELS["gemini"])

    async def run_scenario():
        for api in API_SEQUENCE:
            async with Engine.open(store, upstream=upstream, target=default_target) as engine:
                last_calls = messages[-1].calls if messages else ()
                results = tuple(ToolResult(call.id, call.name, (Text(RESULT),)) for call in last_calls)
                messages.append(Message("tool", results) if results else Message.from_text("user", f"Go on, {api}."))
                tools = [{"name": "read", "input_schema": SCHEMA}]
                anthropic_body = {
                    "model": STRICTEST_MODELS[api],
                    "max_tokens": 500,
                    "tools": tools,
                    "messages": encode_messages("anthropic", messages),
                }
                body, _ = convert_request(
                    json.dumps(anthropic_body).encode(), api, STRICTEST_MODELS[api], api="anthropic"
                )
                run = (await engine.session(SAMPLE_KEY)).run(body)
                await read_run(run)
                messages.append(strip_foreign_content(run.answer.message, "none"))

    anyio.run(run_scenario)
    assert {sent.api for sent in upstream.sent} == set(API_SEQUENCE)
    assert all(isinstance(request.reply, ModelAnswer) for request in provider.requests)
    path = [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == len(path)
    assert [message.text for message in path if message.role == "user"] == [
        message.text for message in messages if message.role == "user"
    ]
    assert sum(len(message.results) for message in path) == sum(len(message.results) for message in messages) > 4
