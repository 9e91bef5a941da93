"""Whole bodies of clients: what an honest client sends back is never another conversation.

The official SDKs are the clients: each sends back its own types, over a transport that is a session. What goes out is
what they sent, and the log has one branch. A client of any other language may write the same in other bytes.
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
from holdfast.providers.answers.answer_stream import parse_answer as read
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.requests.message_dicts import encode_messages
from holdfast.providers.requests.request_body import parse_request
from holdfast.state.entries import MessageEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import ModelAnswer
from holdfast.testing.provider.calls import ScriptedAnswer as Says
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply, ScriptedUpstream

STEPS = 4
OTHER = {"anthropic": "claude-sonnet-5-5", "openai-chat": "gpt-5-mini", "openai-responses": "gpt-5-mini"}
"""Another model of the same API."""
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
RESULT = 'kelp 海藻 "quoted" \\ and a line\n\n' * 3


def script():
    """Yield what the model says: two calls and an answer for each step, thinking each time."""
    for step in range(STEPS):
        calls = (("read", {"path": f"a/{step}.py", "lines": [1, 2.5], "deep": {"b": 1, "a": "海"}}), ("read", {}))
        yield Says(f"Step {step}: {RESULT}", calls, f"Where is {step}?")
        yield Says(f"Step {step} is done.", (), f"Done with {step}.")


class Relay(httpx2.BaseTransport):
    """A transport that is a session: each request opens the store anew, as a proxy does after a restart."""

    def __init__(self, api: str) -> None:
        self.api, self.store = api, MemoryStore()
        self.provider = Provider(ProviderSettings(), list(script()))
        self.upstream = ProviderUpstream(self.provider)
        self.asked: list[bytes] = []

    def handle_request(self, request):
        """Return what the session answers to a body."""
        body, stream = request.read(), "stream" in request.url.path.lower()
        self.asked.append(body)
        content = anyio.run(self._answered, body, stream)
        kind = "application/json" if content.lstrip().startswith(b"{") else "text/event-stream"
        return httpx2.Response(200, headers={"content-type": kind}, content=content)

    async def _answered(self, body, stream):
        goal = get_target(self.api, STRICTEST_MODELS[self.api])
        async with (
            Engine.open(self.store, upstream=self.upstream, target=goal) as engine,
            (await engine.session(SAMPLE_KEY)).run(body, stream=stream if self.api == "gemini" else None) as run,
        ):
            return b"".join([event.raw async for event in run])


def judge(relay):
    """All is on one branch of the log, and nothing was refused."""
    said = [
        entry.body.sized_message.message
        for entry in relay.store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    assert len(list(relay.store.read_entries(SAMPLE_KEY, "message"))) == len(said)
    assert sum(message.role == "assistant" for message in said) == 2 * STEPS
    assert all(isinstance(one.reply, ModelAnswer) for one in relay.provider.requests)


def judge_bytes(relay):
    """What went out is what the client sent."""
    assert [unmarked(sent.body) for sent in relay.upstream.sent] == [unmarked(body) for body in relay.asked]


def unmarked(body):
    """Return a body as values, without the cache breakpoints that the planner sets, and the blocks they need."""
    return json.loads(body, object_hook=plain)


def plain(value):
    kept = {key: one for key, one in value.items() if key != "cache_control"}
    if kept.get("role") == "user" and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept


# -- the SDKs ----------------------------------------------------------------------------------------------------------


def claude(relay, *, stream, switch=False):
    """Let Anthropic's SDK work: it sends its own content blocks back, and moves its cache breakpoint on."""
    history = []
    tools = [{"name": "read", "input_schema": SCHEMA}]
    with anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=relay)) as client:
        for number in range(2 * STEPS):
            model = OTHER["anthropic"] if switch and number % 4 > 1 else STRICTEST_MODELS["anthropic"]
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "max_tokens": 500, "tools": tools, "thinking": {"type": "adaptive"}}
            if stream:
                with client.messages.stream(messages=marked(history), **settings) as events:
                    told = events.get_final_message()
            else:
                told = client.messages.create(messages=marked(history), **settings)
            history.append({"role": "assistant", "content": told.content})
            uses = [block for block in told.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": RESULT} for use in uses]
            history += [{"role": "user", "content": results}] if results else []


def marked(history):
    """Return the history with a breakpoint on its last message, where a client sets it: the others have none now."""
    last = history[-1]
    blocks = [{"type": "text", "text": last["content"]}] if isinstance(last["content"], str) else last["content"]
    marker = {"cache_control": {"type": "ephemeral"}}
    return [*history[:-1], {**last, "content": [*blocks[:-1], {**blocks[-1], **marker}]}]


def chat(relay, *, stream, switch=False):
    """Let OpenAI's SDK work with Chat Completions: the message goes back as the SDK's type."""
    history = [{"role": "system", "content": "Be brief."}]
    tools = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=relay)) as client:
        for number in range(2 * STEPS):
            model = OTHER["openai-chat"] if switch and number % 4 > 1 else STRICTEST_MODELS["openai-chat"]
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "messages": history, "tools": tools}
            if stream:
                with client.chat.completions.stream(**settings) as events:
                    told = events.get_final_completion().choices[0].message
            else:
                told = client.chat.completions.create(**settings).choices[0].message
            history.append(told)
            history += [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in told.tool_calls or ()]


def responses(relay, *, stream, switch=False):
    """Let OpenAI's SDK work with Responses: the items of the output go back."""
    history = []
    tools = [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}]
    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=relay)) as client:
        for number in range(2 * STEPS):
            model = OTHER["openai-responses"] if switch and number % 4 > 1 else STRICTEST_MODELS["openai-responses"]
            if number % 2 == 0:
                history.append({"role": "user", "content": f"Go on with {number}."})
            settings = {"model": model, "input": history, "tools": tools, "store": False}
            settings["include"] = ["reasoning.encrypted_content"]
            if stream:
                with client.responses.stream(**settings) as events:
                    told = events.get_final_response()
            else:
                told = client.responses.create(**settings)
            history += told.output
            calls = [item for item in told.output if item.type == "function_call"]
            history += [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]


def google(relay, *, stream):
    """Let Google's SDK keep the history itself: its chat sends a stream back chunk by chunk."""
    tools = types.Tool(function_declarations=[{"name": "read", "parameters_json_schema": SCHEMA}])
    config = types.GenerateContentConfig(
        tools=[tools], automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    options = types.HttpOptions(httpx_client=httpx2.Client(transport=relay))
    with genai.Client(api_key="k", http_options=options) as client:
        talk = client.chats.create(model=STRICTEST_MODELS["gemini"], config=config)
        said = "Go on with 0."
        for number in range(2 * STEPS):
            if stream:
                parts = [part for chunk in talk.send_message_stream(said) for part in chunk.candidates[0].content.parts]
            else:
                parts = talk.send_message(said).candidates[0].content.parts
            calls = [part.function_call for part in parts if part.function_call]
            answers = [types.Part.from_function_response(name=one.name, response={"output": RESULT}) for one in calls]
            for one, made in zip(calls, answers, strict=True):
                made.function_response.id = one.id
            said = answers or f"Go on with {number}."


SDKS = {"anthropic": claude, "openai-chat": chat, "openai-responses": responses, "gemini": google}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", SDKS)
def test_what_an_sdk_sends_back_is_no_other_conversation(api, stream):
    """Each SDK's own types go back as they are: one branch, nothing refused, and the client's own body leaves."""
    relay = Relay(api)
    SDKS[api](relay, stream=stream)
    judge(relay)
    if (api, stream) != ("gemini", True):  # what came in chunks goes out in one piece
        judge_bytes(relay)


@pytest.mark.parametrize("api", OTHER)
def test_a_client_may_change_the_model(api):
    """signed-bytes-intact: the body names another model; what the first one sealed stays behind, and is there again
    when it is back.
    """
    relay = Relay(api)
    SDKS[api](relay, stream=False, switch=True)
    judge(relay)
    by_model = [
        (body["model"], thinking(body)) for body in map(json.loads, (sent.body for sent in relay.upstream.sent))
    ]
    assert {model for model, _ in by_model} == {STRICTEST_MODELS[api], OTHER[api]}
    said = thinking_said(relay)
    for model, sealed in by_model:
        assert sealed <= said[model]
    if api != "openai-chat":
        assert len(by_model[5][1]) > len(by_model[3][1]) > 0


def thinking(body):
    """Return what is sealed in a body."""
    blocks = [block for one in body.get("messages", []) for block in one["content"] if isinstance(block, dict)]
    sealed = [
        *(block.get("signature") for block in blocks),
        *(item.get("encrypted_content") for item in body.get("input", [])),
    ]
    return {one for one in sealed if one}


def thinking_said(relay):
    """Return what each model sealed, as the provider said it."""
    out = {model: set() for model in (STRICTEST_MODELS[relay.api], OTHER[relay.api])}
    for one in relay.provider.requests:
        out[one.reply.model] |= {part.signature.data for part in one.reply.parts if isinstance(part, Thinking)}
    return out


# -- the same in other bytes -------------------------------------------------------------------------------------------


ARGUMENTS = '{"path": "a.py",  "lines": [1, 2.0], "deep": {"b": 1, "a": "\\u6d77"}}'
OTHERWISE = '{"deep":{"a":"海","b":1},"lines":[1,2],"path":"a.py"}'
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


def but(value, *path, drop=(), **fields):
    """Return a JSON value with the object at ``path`` changed."""
    if path:
        copied = list(value) if isinstance(value, list) else dict(value)
        copied[path[0]] = but(value[path[0]], *path[1:], drop=drop, **fields)
        return copied
    return {key: one for key, one in {**value, **fields}.items() if key not in drop}


VARIANTS = {
    "anthropic": {
        "marked": [but(CLAUDE, "content", 1, cache_control={"type": "ephemeral"})],
        "empty fields": [but(CLAUDE, "content", 1, citations=None)],
        "arguments": [but(CLAUDE, "content", 2, input=json.loads(OTHERWISE))],
        "caller": [but(CLAUDE, "content", 2, caller={"type": "direct"})],
        "words in pieces": [
            but(
                CLAUDE,
                content=[
                    *CLAUDE["content"][:1],
                    *({"type": "text", "text": one} for one in ("He", "re.")),
                    CLAUDE["content"][2],
                ],
            )
        ],
        "no thinking": [but(CLAUDE, content=CLAUDE["content"][1:])],
    },
    "openai-chat": {
        "arguments": [but(CHAT, "tool_calls", 0, "function", arguments=OTHERWISE)],
        "pieces": [but(CHAT, content=[{"type": "text", "text": "Here."}])],
        "empty fields": [but(CHAT, refusal=None, annotations=[], audio=None, function_call=None)],
        "annotations": [but(CHAT, annotations=[{"type": "url_citation", "url_citation": {"url": "https://a.b"}}])],
        "no reasoning": [but(CHAT, drop=("reasoning_content",))],
        "index": [but(CHAT, "tool_calls", 0, index=0)],
    },
    "openai-responses": {
        "no ids": [but(item, drop=("id", "status")) for item in ITEMS],
        "no status": [but(item, drop=("status",)) for item in ITEMS],
        "content": [ITEMS[0], but(ITEMS[1], content="Here."), ITEMS[2]],
        "bare content": [ITEMS[0], but(ITEMS[1], content=[{"type": "output_text", "text": "Here."}]), ITEMS[2]],
        "arguments": [*ITEMS[:2], but(ITEMS[2], arguments=OTHERWISE)],
        "empty fields": [but(ITEMS[0], content=None, status=None), ITEMS[1], but(ITEMS[2], namespace=None)],
        "no reasoning": [but(item, drop=("id",)) for item in ITEMS[1:]],
    },
    "gemini": {
        "snake": [
            {
                "role": "model",
                "parts": [
                    *CONTENT["parts"][:2],
                    {"function_call": {"name": "read", "args": json.loads(OTHERWISE)}, "thought_signature": "a+/b"},
                ],
            }
        ],
        "other alphabet": [but(CONTENT, "parts", 2, thoughtSignature="a-_b")],
        "no thoughts": [but(CONTENT, parts=CONTENT["parts"][1:])],
        "empty fields": [but(CONTENT, "parts", 1, thought=None)],
        "contents": [{"role": "model", "parts": [part]} for part in CONTENT["parts"]],
    },
}
"""What comes back in place of what was said."""
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


def user(api, text):
    return {"role": "user", "parts": [{"text": text}]} if api == "gemini" else {"role": "user", "content": text}


async def drained(run):
    async with run:
        async for _ in run:
            pass


def told(api, *asked, policy=Policy(), answered=None):
    """Return the log and what was sent for these lists of messages; the first answer is ``answered``."""
    first = json.dumps(ANSWERS[api]).encode() if answered is None else answered
    store, upstream = MemoryStore(), ScriptedUpstream([first, *["yes"] * (len(asked) - 1)])

    async def go():
        for one in asked:
            goal = get_target(api, STRICTEST_MODELS[api])
            async with Engine.open(store, upstream=upstream, target=goal, policy=policy) as engine:
                body = {FIELD[api]: one} | ({} if api == "gemini" else {"model": STRICTEST_MODELS[api]})
                body |= {"max_tokens": 500} if api == "anthropic" else {}
                await drained((await engine.session(SAMPLE_KEY)).run(body))

    anyio.run(go)
    said = [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    return store, said, [json.loads(sent.body) for sent in upstream.sent]


@pytest.mark.parametrize(("api", "how"), [(api, how) for api, known in VARIANTS.items() for how in known])
def test_the_same_in_other_bytes_is_no_other_conversation(api, how):
    """What a client wrote anew, in whatever way, is what was said: no branch, and again none the next time."""
    history = [user(api, "Where?"), *VARIANTS[api][how], RESULTS[api]]
    store, said, sent = told(api, [user(api, "Where?")], history, [*history[:-1], RESULTS[api]])
    assert [message.role for message in said[:3]] == ["user", "assistant", "tool"]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 5
    whole = [user(api, "Where?"), *read_back(api), RESULTS[api]]
    assert unmarked(json.dumps(sent[1][FIELD[api]])) in [unmarked(json.dumps(one)) for one in (history, whole)]


def read_back(api):
    """Return the answer as it was said."""
    return [json.loads(one) for one in read(api, json.dumps(ANSWERS[api]).encode()).history_elements]


CHANGED = {
    "anthropic": [but(CLAUDE, "content", 1, text="There.")],
    "openai-chat": [but(CHAT, "tool_calls", 0, "function", arguments="{}")],
    "openai-responses": [*ITEMS[:2], but(ITEMS[2], name="write")],
    "gemini": [but(CONTENT, parts=CONTENT["parts"][:2])],
}


@pytest.mark.parametrize("api", CHANGED)
def test_other_words_are_another_conversation(api):
    """Other words, arguments or calls are an edited past: a branch beside what was said."""
    store, said, _ = told(api, [user(api, "Where?")], [user(api, "Where?"), *CHANGED[api], user(api, "And?")])
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) > len(said)


def test_a_text_that_was_cut_when_it_was_appended_is_the_same_the_next_time():
    """What is longer than an entry may hold comes whole in every body; that is no edit."""
    long, policy = (
        user("openai-chat", "kelp and rock " * 1_000),
        Policy().with_settings(results={"append_chars": 2_000}),
    )
    history = [long, CHAT, RESULTS["openai-chat"]]
    store, said, sent = told("openai-chat", [long], history, history, policy=policy)
    assert len(said[0].text) <= 2_000
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 5
    assert [body["messages"][0]["content"] for body in sent] == [said[0].text] * 3


def test_an_opened_body_is_measured_where_nobody_did():
    """A lens that was only opened says the same as its bytes: its messages have sizes, and go on where they stand."""
    history = [user("openai-chat", "Where?"), CHAT, RESULTS["openai-chat"]]
    body = {"model": "gpt-5.1", "messages": history}
    one, other = parse_and_measure_body(parse_request(json.dumps(body).encode())), parse_and_measure_body(body)
    assert [(slot.tokens, slot.digest) for slot in one.messages] == [
        (slot.tokens, slot.digest) for slot in other.messages
    ]
    assert all(slot.tokens and slot.digest for slot in one.messages)


def talked(api):
    """Return a body of ``api`` in which a call was answered."""
    body = {FIELD[api]: [user(api, "Where?"), *read_back(api), RESULTS[api]]}
    return body if api == "gemini" else {"model": STRICTEST_MODELS[api], **body}


@pytest.mark.parametrize("api", FIELD)
@pytest.mark.parametrize("likely", FIELD)
def test_a_body_is_of_the_api_that_only_its_marks_are_of(api, likely):
    """Whatever API is likely; where an address told which it is, only a list of another name tells more."""
    assert parse_and_measure_body(talked(api), likely, is_api_certain=False) == parse_and_measure_body(talked(api), api)
    assert parse_and_measure_body(talked(api), likely).api == (likely if FIELD[api] == FIELD[likely] else api)


@pytest.mark.parametrize("api", FIELD)
@pytest.mark.parametrize("own", FIELD)
def test_a_body_goes_out_by_the_api_that_it_speaks(own, api):
    """Whatever API the engine's own words go out by: what it says is in the log, and its bytes stay."""
    upstream, body = ScriptedUpstream(["yes"]), talked(api)

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, target=get_target(own, STRICTEST_MODELS[own])
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await drained(session.run(body, model=STRICTEST_MODELS[api]))
            return [message.role for message in session.journal.state.history.messages]

    assert anyio.run(go) == ["user", "assistant", "tool", "assistant"]
    assert [(sent.api, unmarked(sent.body.decode())) for sent in upstream.sent] == [(api, unmarked(json.dumps(body)))]


CUT = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "He"}},
    {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
    {"type": "message_stop"},
]


def test_what_the_window_cut_is_gone_on_with_by_the_client_alone():
    """Nothing is said in the client's name: its next body says it, and that is no other conversation."""
    stream = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in CUT).encode()
    answered = ScriptedReply((stream,), headers={"content-type": "text/event-stream"})
    first = [user("anthropic", "Where?")]
    history = [*first, {"role": "assistant", "content": "He"}, user("anthropic", "Go on there.")]
    store, said, _ = told("anthropic", first, history, answered=answered)
    assert [message.text for message in said[:3]] == ["Where?", "He", "Go on there."]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == 4


# -- engines that know no model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_an_answer_that_breaks_off_is_in_the_log_though_the_engine_names_no_model(api):
    """The body says who is asked: that is whose answer it is, whole or in part."""
    store, upstream = MemoryStore(), ProviderUpstream(Provider(script=list(script())), [Fault("cut", stage="middle")])

    async def go():
        body = {FIELD[api]: [user(api, "Where?")], "model": STRICTEST_MODELS[api], "stream": True}
        body |= {"max_tokens": 500, "thinking": {"type": "adaptive"}} if api == "anthropic" else {"store": False}
        async with Engine.open(store, upstream=upstream) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError):
                await drained(session.run(body))
            prepared = await session.prepare(body)
            assert (prepared.target.api, prepared.target.model) == (api, STRICTEST_MODELS[api])
            await session.record(read(api, json.dumps(ANSWERS[api]).encode()))

    anyio.run(go)
    slots = [
        entry.body.sized_message
        for entry in store.read_entries(SAMPLE_KEY, "message")
        if entry.body.sized_message.message.role == "assistant"
    ]
    assert [slot.api for slot in slots] == [api, api]
    sealed = [part.signature.model for part in slots[1].message.parts if isinstance(part, Thinking)]
    assert sealed == [STRICTEST_MODELS[api]]


HANDS = ("anthropic", "openai-responses", "openai-chat", "anthropic", "gemini", "openai-chat", "anthropic", "gemini")


def test_a_client_may_change_the_api():
    """The same conversation in another API's form is the same conversation: one branch, and every request is taken."""
    store, provider, said = MemoryStore(), Provider(script=list(script())), []
    upstream, own = ProviderUpstream(provider), get_target("gemini", STRICTEST_MODELS["gemini"])

    async def go():
        for api in HANDS:
            async with Engine.open(store, upstream=upstream, target=own) as engine:
                last = said[-1].calls if said else ()
                results = tuple(ToolResult(call.id, call.name, (Text(RESULT),)) for call in last)
                said.append(Message("tool", results) if results else Message.from_text("user", f"Go on, {api}."))
                tools = [{"name": "read", "input_schema": SCHEMA}]
                asked = {
                    "model": STRICTEST_MODELS[api],
                    "max_tokens": 500,
                    "tools": tools,
                    "messages": encode_messages("anthropic", said),
                }
                body, _ = convert_request(json.dumps(asked).encode(), api, STRICTEST_MODELS[api], api="anthropic")
                run = (await engine.session(SAMPLE_KEY)).run(body)
                await drained(run)
                said.append(strip_foreign_content(run.answer.message, "none"))

    anyio.run(go)
    assert {sent.api for sent in upstream.sent} == set(HANDS)
    assert all(isinstance(one.reply, ModelAnswer) for one in provider.requests)
    path = [
        entry.body.sized_message.message
        for entry in store.read_path(SAMPLE_KEY)
        if isinstance(entry.body, MessageEntry)
    ]
    assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == len(path)
    assert [one.text for one in path if one.role == "user"] == [one.text for one in said if one.role == "user"]
    assert sum(len(one.results) for one in path) == sum(len(one.results) for one in said) > 4
