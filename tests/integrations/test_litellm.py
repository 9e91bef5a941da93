"""The client and the callback with the real LiteLLM: library, router and proxy server, against the strict provider."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import json
import logging
import os
import re
import runpy
from pathlib import Path

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM would ask the network for its table of prices
pytest.importorskip("litellm", reason="LiteLLM is not installed (pip install 'holdfast[litellm]')")

import litellm
from litellm.exceptions import ContextWindowExceededError

from holdfast.events import CompactionEnded
from holdfast.integrations.litellm import HoldfastCallback, HoldfastClient
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "litellm_agent.py"
OPENAI, CLAUDE = "openai/gpt-4.1", "anthropic/claude-opus-4-5"
WINDOW = 30_000
SMALL_WINDOW = 20_000
RULE = "Never restart the server."
PROMPT = f"Find out why it is slow. {RULE}"
READ_LOG = {
    "type": "function",
    "function": {
        "name": "read_log",
        "description": "Reads the log of one step.",
        "parameters": {"type": "object", "properties": {"step": {"type": "integer"}}},
    },
}


@pytest.fixture(autouse=True)
def _quiet_litellm(monkeypatch):
    """No callbacks of another test, and none of LiteLLM's advice on the console."""
    monkeypatch.setattr(litellm, "callbacks", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


def make_call(step, name="read_log", arguments=None):
    """Return the message with one tool call."""
    function = {"name": name, "arguments": json.dumps(arguments or {"step": step})}
    return {"role": "assistant", "content": "I look.", "tool_calls": [make_call_object(step, function)]}


def make_call_object(step, function):
    """Return a tool call of the API."""
    return {"id": f"call_{step}", "type": "function", "function": function}


def make_conversation(steps=30, prompt=PROMPT, lines=120):
    """Return a conversation with as many tool results; 30 of them have some 45,000 tokens."""
    messages = [{"role": "system", "content": "You repair servers."}, {"role": "user", "content": prompt}]
    for step in range(steps):
        messages += [
            make_call(step),
            {"role": "tool", "tool_call_id": f"call_{step}", "content": write_log(step, lines)},
        ]
    return messages


def make_client(router=None, **options):
    """Return a client with a store of its own."""
    return HoldfastClient(router, **{"window": WINDOW, "store": MemoryStore(), **options})


def make_router(access, model=OPENAI, **options):
    """Return a router with one deployment."""
    deployment = {"model_name": "group", "litellm_params": {"model": model, **access}}
    return litellm.Router(model_list=[deployment], num_retries=0, **options)


def run(coroutine):
    """Run a coroutine, and close the connections that LiteLLM leaves open."""

    async def run_and_close():
        from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

        try:
            return await coroutine
        finally:
            await close_litellm_async_clients()
            await asyncio.sleep(0.05)

    result = asyncio.run(run_and_close())
    gc.collect()
    return result


class Served:
    """A strict provider on a port, and how LiteLLM reaches it."""

    def __init__(self, provider, url):
        self.provider = provider
        self.openai = {"api_base": f"{url}/v1", "api_key": "any"}
        self.anthropic = {"api_base": url, "api_key": "any", "max_tokens": 1_000}

    @property
    def refusals(self):
        """The refused requests."""
        return [request for request in self.provider.requests if isinstance(request.reply, RefusalReply)]

    @property
    def bodies(self):
        """The bodies of the accepted requests."""
        accepted = [request for request in self.provider.requests if not isinstance(request.reply, RefusalReply)]
        return [json.loads(request.incoming.body) for request in accepted]


@pytest.fixture
def serve():
    """Start strict providers; they stop at the end of the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(window=WINDOW, script=(), **settings):
            provider = Provider(ProviderSettings(window=window, **settings), script)
            return Served(provider, stack.enter_context(serve_provider(provider)))

        yield start


class LogReader:
    """A scripted model that reads one log after the other; in ``recalls`` it calls ``recall`` in place of a step."""

    def __init__(self, steps=40, recalls=None, calls_per_step=1):
        self.steps = steps
        self.recalls = recalls or {}
        self.calls_per_step = calls_per_step
        self.done = 0

    def choose_next_answer(self, request, _):
        """Return the next call, or the end."""
        step, self.done = self.done, self.done + 1
        if step in self.recalls:
            return ScriptedAnswer(calls=(("recall", self.recalls[step]),))
        if step >= self.steps:
            return ScriptedAnswer("done")
        return ScriptedAnswer("I look.", calls=(("read_log", {"step": step}),) * self.calls_per_step)


def answer_calls(client, messages, answer, options):
    """Append an answer and the results of its calls to the conversation; return whether there were calls."""
    calls = answer.tool_calls or []
    asked_messages = list(messages)
    messages.append(answer)
    for call in calls:
        if call.function.name == "recall":
            messages.append(client.answer_recall(call, asked_messages, **options))
        else:
            step = json.loads(call.function.arguments)["step"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": write_log(step)})
    return bool(calls)


def run_agent(client, served, *, messages=None, model=OPENAI, access=None, **options):
    """Let the model read logs until it is done; return the whole conversation."""
    messages = messages or make_conversation(0)
    call_options = {"tools": [READ_LOG, client.recall_tool], **(served.openai if access is None else access), **options}
    while True:
        response = client.completion(model, messages, **call_options)
        if options.get("stream"):
            response = litellm.stream_chunk_builder(list(response))
        if not answer_calls(client, messages, response.choices[0].message, options):
            return messages


async def run_agent_async(client, served, *, model=OPENAI, access=None, **options):
    """Do the same with ``acompletion``."""
    messages = make_conversation(0)
    call_options = {"tools": [READ_LOG, client.recall_tool], **(served.openai if access is None else access), **options}
    while True:
        response = await client.acompletion(model, messages, **call_options)
        if options.get("stream"):
            response = litellm.stream_chunk_builder([chunk async for chunk in response])
        if not answer_calls(client, messages, response.choices[0].message, options):
            return messages


def list_texts(message):
    """Return the texts of a message of a request."""
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def check_agent_stayed_inside(served, messages, steps=40):
    """Check what a run must have: nothing refused, nothing lost, the cache used, the rule in sight."""
    assert not served.refusals
    assert len(messages) == 2 + 2 * steps + 1
    logs = [message["content"] for message in messages[2:] if message["role"] == "tool"]
    assert logs == [write_log(step) for step in range(steps)]
    sent = [body["messages"] for body in served.bodies]
    breaks = sum(after[: len(before)] != before for before, after in itertools.pairwise(sent))
    assert 1 <= breaks <= 6
    assert RULE in json.dumps(sent[-1])
    assert any(is_extract(text) for message in sent[-1] for text in list_texts(message))


# -- the client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_client_keeps_an_agent_inside_the_window(serve, stream):
    """An agent that reads three windows of logs is never refused, and keeps its whole history. Each request begins as
    the one before it, except after a compaction.
    """
    served = serve(script=LogReader())
    messages = run_agent(make_client(), served, stream=stream)
    check_agent_stayed_inside(served, messages)


@pytest.mark.parametrize("stream", [False, True])
def test_client_keeps_an_asynchronous_agent_inside_the_window(serve, stream):
    """The same with ``acompletion``."""
    served = serve(script=LogReader())
    messages = run(run_agent_async(make_client(), served, stream=stream))
    check_agent_stayed_inside(served, messages)


def test_client_keeps_an_agent_behind_a_router_inside_the_window(serve):
    """The same with a router, whose groups have names of their own."""
    served = serve(script=LogReader())
    client = make_client(make_router(served.openai))
    check_agent_stayed_inside(served, run_agent(client, served, model="group", access={}))


def test_agent_without_the_client_dies(serve):
    """The same agent that calls LiteLLM itself is refused: the tests above prove something."""
    served = serve()
    with pytest.raises(ContextWindowExceededError):
        litellm.completion(OPENAI, make_conversation(), tools=[READ_LOG], **served.openai)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_client_recovers_from_an_overflow_inside_the_call(serve, model, stream):
    """If the window is smaller than anybody said, the call is made again with less, and the limit is known then. For
    Anthropic, LiteLLM sends a streamed request only when its stream is read.
    """
    served = serve(SMALL_WINDOW)
    client = make_client(window=200_000)
    messages = make_conversation()
    access = served.openai if model == OPENAI else served.anthropic
    response = client.completion(model, messages, tools=[READ_LOG, client.recall_tool], stream=stream, **access)
    answer = litellm.stream_chunk_builder(list(response)) if stream else response
    assert answer.choices[0].message.content.startswith("ok")
    assert len(served.refusals) == 1
    assert client.report(messages).window == SMALL_WINDOW


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [OPENAI, CLAUDE])
def test_client_recovers_from_an_overflow_inside_an_asynchronous_call(serve, model, stream):
    """The same with ``acompletion``."""
    served = serve(SMALL_WINDOW)
    client = make_client(window=200_000)
    access = served.openai if model == OPENAI else served.anthropic

    async def ask():
        options = {"tools": [READ_LOG, client.recall_tool], "stream": stream, **access}
        response = await client.acompletion(model, make_conversation(), **options)
        return [chunk async for chunk in response] if stream else [response]

    assert run(ask())
    assert len(served.refusals) == 1
    assert len(served.bodies) == 1


def test_client_makes_a_call_again_that_is_refused_inside_of_its_stream(serve):
    """Some servers refuse in a stream that has begun with status 200: the caller gets the chunks of the second call."""
    served = serve(SMALL_WINDOW, overflow="stream")
    options = {"tools": [READ_LOG], "stream": True, **served.openai}

    async def ask():
        stream = await make_client(window=200_000).acompletion(OPENAI, make_conversation(), **options)
        return [chunk async for chunk in stream]

    for chunks in (list(make_client(window=200_000).completion(OPENAI, make_conversation(), **options)), run(ask())):
        assert litellm.stream_chunk_builder(chunks).choices[0].message.content.startswith("ok")
    assert len(served.refusals) == 2
    assert len(served.bodies) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_client_recovers_from_an_overflow_behind_a_router(serve, stream):
    """A router's own retries and fallbacks come first; what they cannot do is done here."""
    served = serve(SMALL_WINDOW)
    client = make_client(make_router(served.openai), window=200_000)

    async def ask():
        response = await client.acompletion("group", make_conversation(), tools=[READ_LOG], stream=stream)
        return [chunk async for chunk in response] if stream else [response]

    assert run(ask())
    response = client.completion("group", make_conversation(prompt="Another."), tools=[READ_LOG], stream=stream)
    assert list(response)
    assert len(served.refusals) == 2


def test_client_raises_other_errors_and_overflows_that_nothing_cures(serve):
    """An error that is no overflow, and a message that fits no window, reach the caller as LiteLLM raises them."""
    served = serve(2_000, models=("gpt-4.1",))
    client = make_client(window=200_000)
    with pytest.raises(litellm.NotFoundError):
        client.completion("openai/nothing", make_conversation(1), **served.openai)
    tools = [{**READ_LOG, "function": {**READ_LOG["function"], "description": write_log(0, 500)}}]
    with pytest.raises(ContextWindowExceededError):
        client.completion(OPENAI, make_conversation(1), tools=tools, **served.openai)


def test_usage_calibrates(serve):
    """What the provider counted is in the log, of streams only if the caller asks for it."""
    store = MemoryStore()
    served = serve(script=LogReader(steps=3))
    client = make_client(store=store)
    messages = run_agent(client, served)
    key = client.report(messages).session
    usages = [entry.body.usage for entry in store.read_entries(key) if isinstance(entry.body, AnswerEntry)]
    assert [usage.input for usage in usages] == [request.tokens for request in served.provider.requests[:3]]


def test_window_comes_from_the_router_or_from_litellms_table(serve):
    """What the configuration of a router states counts first; of a model that our catalogue does not know, LiteLLM's
    table may know the window.
    """
    served = serve()
    model_info = {"max_input_tokens": 12_345}
    deployment = {"model_name": "group", "litellm_params": {"model": OPENAI, **served.openai}, "model_info": model_info}
    client = make_client(litellm.Router(model_list=[deployment]), window=None)
    client.completion("group", make_conversation(1))
    assert client.report(make_conversation(1)).window == 12_345
    litellm.model_cost["our-own-model"] = {"max_input_tokens": 23_456}
    client = make_client(window=None)
    client.completion("openai/our-own-model", make_conversation(1), **served.openai)
    assert client.report(make_conversation(1)).window == 23_456


# -- whose conversation it is, and reading back ------------------------------------------------------------------------


def ask_and_recall(client, served, messages, arguments, **options):
    """Make one call, and return what ``recall`` then gives."""
    client.completion(OPENAI, messages, tools=[READ_LOG, client.recall_tool], **served.openai, **options)
    call = make_call_object(99, {"name": "recall", "arguments": json.dumps(arguments)})
    return client.answer_recall(call, messages, **options)["content"]


def test_short_answers_leave_more_room_for_the_history(serve):
    """A limit of the answer is what is kept free for it; without one it is a larger share of the window."""
    served, usable_tokens = serve(), []
    for limit in ({}, {"max_tokens": 500}):
        client = make_client()
        client.completion(OPENAI, make_conversation(1), **limit, **served.openai)
        usable_tokens.append(client.report(make_conversation(1)).usable_tokens)
    assert usable_tokens[1] > usable_tokens[0]


def test_model_reads_back_what_it_is_not_shown(serve):
    """A result over its budget is a preview with an id, and ``recall`` gives the text."""
    served = serve(script=LogReader(steps=0))
    client = make_client()
    messages = make_conversation(1, lines=3_000)
    client.completion(OPENAI, messages, tools=[READ_LOG, client.recall_tool], **served.openai)
    preview = served.bodies[0]["messages"][-1]["content"]
    handle = re.search(r'recall\(id="(\w+)"', preview.replace("'", '"'))[1]
    text = ask_and_recall(client, served, messages, {"id": handle, "lines": "2000-2002"})
    assert "step 000, line 2000:" in text


@pytest.mark.parametrize("names", [{}, {"litellm_session_id": "s"}, {"metadata": {"session_id": "s"}}])
def test_users_with_the_same_words_read_only_their_own_texts(serve, names):
    """Two users who begin with the same words are two conversations: by ``user`` if the caller names them, and if
    nobody is named as soon as they go on differently.
    """
    served = serve(script=LogReader(steps=0))
    client = make_client()
    users = [{**names, "user": user} if names else {} for user in ("ann", "ben")]
    first = make_conversation(0)
    for user in users:
        client.completion(OPENAI, first, **served.openai, **user)
    secret = [*first, make_call(0), {"role": "tool", "tool_call_id": "call_0", "content": "The password is kelp."}]
    other = [*first, make_call(0), {"role": "tool", "tool_call_id": "call_0", "content": "Nothing."}]
    assert "kelp" in ask_and_recall(client, served, secret, {"search": "password"}, **users[0])
    assert "kelp" not in ask_and_recall(client, served, other, {"search": "password"}, **users[1])


def test_decisions_of_a_named_conversation_outlast_the_process(serve):
    """Another client on the same store, as after a restart, shows byte for byte what was shown."""
    served = serve(script=LogReader(steps=0))
    store = MemoryStore()
    for _ in range(2):
        client = make_client(store=store)
        options = {"tools": [READ_LOG, client.recall_tool], "litellm_session_id": "s", **served.openai}
        client.completion(OPENAI, make_conversation(), **options)
    first, second = served.bodies
    assert first["messages"] == second["messages"]
    assert len(first["messages"]) < len(make_conversation())


def test_sub_agents_of_a_session_are_conversations_of_their_own(serve):
    """They share the session's name, and begin with another message."""
    served = serve(script=LogReader(steps=0))
    client = make_client()
    reports = []
    for prompt in (PROMPT, "Read the disk's log."):
        messages = make_conversation(1, prompt)
        client.completion(OPENAI, messages, litellm_session_id="s", **served.openai)
        reports.append(client.report(messages, litellm_session_id="s"))
    assert reports[0].session != reports[1].session


def test_parallel_calls_and_forks_of_one_conversation(serve):
    """Calls at the same time, and an edited past, are planned each for its own messages."""
    served = serve(SMALL_WINDOW)
    client = make_client(window=200_000)

    async def ask(step):
        messages = [*make_conversation(), {"role": "user", "content": f"And step {step}?"}]
        options = {"tools": [READ_LOG, client.recall_tool], "litellm_session_id": "s", **served.openai}
        return await client.acompletion(OPENAI, messages, **options)

    async def ask_all():
        return await asyncio.gather(*map(ask, range(6)))

    assert len(run(ask_all())) == 6
    asked = sorted(body["messages"][-1]["content"] for body in served.bodies)
    assert asked == [f"And step {step}?" for step in range(6)]


# -- what is in messages -----------------------------------------------------------------------------------------------


def test_messages_that_are_shown_go_out_as_the_caller_wrote_them(serve):
    """Pictures, names, marks of the cache and fields that nobody interprets stay, also beside a shortened result."""
    served = serve(script=LogReader(steps=0))
    client = make_client()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Rules.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Look."}, picture]},
        *make_conversation(1, lines=3_000)[2:],
    ]
    messages[-1]["cache_control"] = {"type": "ephemeral"}
    call = client._plan(OPENAI, messages, {})
    assert all(sent is given for sent, given in zip(call.messages[:3], messages[:3], strict=True))
    assert len(call.messages[3]["content"]) < 20_000
    assert {**call.messages[3], "content": ""} == {**messages[3], "content": ""}
    assert served.provider.requests == []


def test_a_message_that_the_caller_changes_in_place_is_read_again(serve):
    """What was read for the call before is used for messages that are as they were, down to their parts."""
    served, client = serve(), make_client()
    messages = make_conversation(steps=3)
    messages[3]["content"] = [{"type": "text", "text": messages[3]["content"]}]
    for text in ("short", write_log(0, lines=5_000)):
        messages[3]["content"][0]["text"] = text
        client.completion(OPENAI, messages, tools=[READ_LOG, client.recall_tool], **served.openai)
    assert not served.refusals
    assert "recall" in str(served.bodies[-1]["messages"][3])


def test_signed_thinking_is_sent_back_unchanged(serve):
    """Claude's thinking, which LiteLLM keeps in ``thinking_blocks``, is accepted in later requests: its provider
    checks each signature.
    """
    answers = [ScriptedAnswer(thinking=f"Think {n}.", calls=(("read_log", {"step": n}),)) for n in range(12)]
    served = serve(script=[*answers, ScriptedAnswer("done")])
    client = make_client()
    options = {"thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 2_000}
    access = {**served.anthropic, **options}
    messages = run_agent(client, served, model=CLAUDE, access=access)
    assert not served.refusals
    assert messages[2].thinking_blocks[0]["thinking"] == "Think 0."
    blocks = [block for message in served.bodies[5]["messages"] for block in message["content"] if "type" in block]
    assert [block["type"] for block in blocks].count("thinking") == 5


def test_structured_answers_and_parallel_calls(serve):
    """The form of an answer is passed on, and calls stay with their results."""
    served = serve(script=LogReader(steps=10, calls_per_step=3))
    client = make_client()
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": {"type": "object"}}}
    messages = run_agent(client, served, response_format=schema)
    assert not served.refusals
    assert sum(message["role"] == "tool" for message in messages[2:]) == 30
    assert served.bodies[-1]["response_format"]["json_schema"]["name"] == "verdict"


def test_events_reach_the_listener(serve):
    """A compaction is told to the listener, with its sizes."""
    events = []
    served = serve(script=LogReader(steps=0))
    client = make_client(listener=events.append)
    client.completion(OPENAI, make_conversation(), tools=[READ_LOG, client.recall_tool], **served.openai)
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert compactions[0].tokens_after < compactions[0].tokens_before


# -- what goes wrong on our side ---------------------------------------------------------------------------------------


def test_calls_go_out_as_they_are_if_holdfast_fails(serve, caplog):
    """A store of an unknown kind: LiteLLM gets the messages as they are, and the log one warning."""
    served = serve(200_000)
    client = make_client(store="unknown://store")
    for _ in range(2):
        client.completion(OPENAI, make_conversation(), tools=[READ_LOG, client.recall_tool], **served.openai)
    assert [body["messages"] for body in served.bodies] == [make_conversation()] * 2
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1


def test_calls_stay_inside_the_window_if_the_store_is_damaged(serve, tmp_path, caplog):
    """A file that is no store: the provider refuses no call, and the log has one warning."""
    served = serve()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is no database" * 100)
    client = make_client(store=damaged)
    for _ in range(2):
        client.completion(OPENAI, make_conversation(), tools=[READ_LOG, client.recall_tool], **served.openai)
    assert not served.refusals
    assert len(served.bodies) == 2
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1


def test_client_warns_of_tools_without_recall(serve, caplog):
    """A model with tools that lacks ``recall`` is helped all the same, and the log says what to add, once."""
    served = serve()
    client = make_client()
    for _ in range(2):
        client.completion(OPENAI, make_conversation(), tools=[READ_LOG], **served.openai)
    assert not served.refusals
    assert [record.message for record in caplog.records if "recall_tool" in record.message] == [
        "a call has tools, but not 'recall', which previews name: add recall_tool to them"
    ]


# -- the callback ------------------------------------------------------------------------------------------------------


def use_callback(monkeypatch, **options):
    """Register a callback with LiteLLM."""
    callback = HoldfastCallback(**{"window": WINDOW, "store": MemoryStore(), **options})
    monkeypatch.setattr(litellm, "callbacks", [callback])
    return callback


async def run_hooked_agent(ask):
    """Let the model read logs until it is done; ``ask`` makes each call with LiteLLM's own functions."""
    messages = make_conversation(0)
    while True:
        response = await ask(list(messages))
        if not isinstance(response, litellm.ModelResponse):
            response = litellm.stream_chunk_builder([chunk async for chunk in response])
        if not answer_calls(None, messages, response.choices[0].message, {}):
            return messages


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("caller", ["library", "router"])
def test_callback_keeps_an_agent_inside_the_window(serve, monkeypatch, caller, stream):
    """An agent that calls LiteLLM or its router, and knows nothing of Holdfast, is never refused."""
    use_callback(monkeypatch)
    served = serve(script=LogReader())
    router = make_router(served.openai)

    def ask(messages):
        if caller == "router":
            return router.acompletion(model="group", messages=messages, tools=[READ_LOG], stream=stream)
        return litellm.acompletion(model=OPENAI, messages=messages, tools=[READ_LOG], stream=stream, **served.openai)

    check_agent_stayed_inside(served, run(run_hooked_agent(ask)))


@pytest.mark.parametrize("stream", [False, True])
def test_callback_recovers_from_an_overflow_of_the_library(serve, monkeypatch, stream):
    """LiteLLM makes the refused call again, by its own ``context_window_fallback_dict``, with less."""
    use_callback(monkeypatch, window=200_000)
    served = serve(SMALL_WINDOW)
    call = litellm.acompletion(
        model=OPENAI, messages=make_conversation(), tools=[READ_LOG], stream=stream, **served.openai
    )
    run(call)
    assert len(served.refusals) == 1
    assert len(served.bodies) == 1


def test_callback_recovers_by_a_routers_fallback(serve, monkeypatch):
    """A router calls its fallback for overflows, which the callback gives less."""
    use_callback(monkeypatch, window=200_000)
    served = serve(SMALL_WINDOW)
    deployments = [
        {"model_name": name, "litellm_params": {"model": OPENAI, **served.openai}} for name in ("group", "again")
    ]
    router = litellm.Router(model_list=deployments, num_retries=0, context_window_fallbacks=[{"group": ["again"]}])
    response = run(router.acompletion(model="group", messages=make_conversation(), tools=[READ_LOG]))
    assert response.choices[0].message.content.startswith("ok")
    assert len(served.refusals) == 1


def test_callback_answers_recall_inside_the_call(serve, monkeypatch):
    """The model gets the tool, its call is answered before the caller sees it, and the conversation goes on as if
    nothing had been: it is one conversation, also if it has no name.
    """
    store = MemoryStore()
    use_callback(monkeypatch, store=store)
    served = serve(script=LogReader(steps=4, recalls={1: {"search": "kelp"}}))

    async def work():
        messages = [*make_conversation(0), make_call(9)]
        messages.append({"role": "tool", "tool_call_id": "call_9", "content": "The kelp is green."})
        for _ in range(3):
            options = {"model": OPENAI, "messages": list(messages), "tools": [READ_LOG], **served.openai}
            answer = (await litellm.acompletion(**options)).choices[0].message
            assert [call.function.name for call in answer.tool_calls] == ["read_log"]
            answer_calls(None, messages, answer, {})

    run(work())
    sent = [body["messages"] for body in served.bodies]
    assert len(sent) == 4
    assert [tool["function"]["name"] for tool in served.bodies[0]["tools"]] == ["read_log", "recall"]
    assert "is green." in sent[2][-1]["content"]
    assert sent[2][-2]["tool_calls"][0]["function"]["name"] == "recall"
    assert "recall" not in json.dumps(sent[3])
    assert len(list(store.list_sessions())) == 1


def test_callback_takes_recall_out_of_an_answer_with_other_calls(serve, monkeypatch):
    """The caller gets the calls that are its own."""
    use_callback(monkeypatch)
    calls = (("recall", {"search": "kelp"}), ("read_log", {"step": 1}))
    served = serve(script=[ScriptedAnswer(calls=calls)])
    options = {"model": OPENAI, "messages": make_conversation(1), "tools": [READ_LOG], **served.openai}
    answer = run(litellm.acompletion(**options)).choices[0].message
    assert [call.function.name for call in answer.tool_calls] == ["read_log"]


def test_callback_leaves_a_callers_own_recall_to_it(serve, monkeypatch):
    """A caller that has the tool answers its calls itself."""
    use_callback(monkeypatch)
    client = make_client()
    served = serve(script=[ScriptedAnswer(calls=(("recall", {"search": "kelp"}),))])
    tools = [READ_LOG, client.recall_tool]
    options = {"model": OPENAI, "messages": make_conversation(1), "tools": tools, **served.openai}
    answer = run(litellm.acompletion(**options)).choices[0].message
    assert [call.function.name for call in answer.tool_calls] == ["recall"]
    assert len(served.bodies[0]["tools"]) == 2


def test_callback_leaves_calls_of_a_client_alone(serve, monkeypatch):
    """With both, a call is planned once: by the client, which sees the whole history."""
    callback_store = MemoryStore()
    use_callback(monkeypatch, store=callback_store)
    served = serve(script=LogReader())
    check_agent_stayed_inside(served, run(run_agent_async(make_client(), served)))
    assert not list(callback_store.list_sessions())


def test_callback_says_that_it_needs_arguments_by_name(serve, monkeypatch, caplog):
    """LiteLLM does not show its hooks positional arguments: the call goes out as it is, with one warning."""
    use_callback(monkeypatch)
    served = serve(200_000)

    async def ask_twice():
        for _ in range(2):
            await litellm.acompletion(OPENAI, make_conversation(), **served.openai)

    run(ask_twice())
    assert served.bodies[0]["messages"] == make_conversation()
    assert len([record for record in caplog.records if "by name" in record.message]) == 1


PROXY_CONFIG = """\
model_list:
  - model_name: group
    litellm_params: {{model: openai/gpt-4.1, api_base: "{api_base}", api_key: any}}
litellm_settings:
  callbacks: holdfast_callback.holdfast
"""
CALLBACK_MODULE = """\
from holdfast.integrations.litellm import HoldfastCallback
from holdfast.store.memory import MemoryStore

holdfast = HoldfastCallback(window=200_000, store=MemoryStore())
"""


def test_callback_serves_the_proxy_server(serve, monkeypatch, tmp_path, caplog):
    """Two lines in the proxy's configuration: an overflow is recovered from before the client gets a byte, streamed or
    not, and the limit is known in the next request of the session.
    """
    caplog.set_level(logging.CRITICAL)
    reason = "what LiteLLM's proxy server imports is not installed (pip install 'litellm[proxy]')"
    proxy_server = pytest.importorskip("litellm.proxy.proxy_server", reason=reason, exc_type=ImportError)
    import httpx

    served = serve(SMALL_WINDOW)
    config = tmp_path / "config.yaml"
    config.write_text(PROXY_CONFIG.format(api_base=served.openai["api_base"]))
    (tmp_path / "holdfast_callback.py").write_text(CALLBACK_MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    async def ask():
        await proxy_server.initialize(config=str(config))
        transport = httpx.ASGITransport(app=proxy_server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=60) as client:
            for stream, session in ((False, "a"), (True, "b"), (True, "b")):
                body = {"model": "group", "messages": make_conversation(), "tools": [READ_LOG], "stream": stream}
                headers = {"x-litellm-session-id": session}
                yield await client.post("/v1/chat/completions", json=body, headers=headers)

    async def collect():
        return [response async for response in ask()]

    responses = run(collect())
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert "ok" in responses[0].json()["choices"][0]["message"]["content"]
    assert responses[1].text.rstrip().endswith("[DONE]")
    assert len(served.refusals) == 2
    assert len(served.bodies) == 3


def test_example_runs(capsys):
    """The example of the documentation runs offline, and says what it shows."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "characters" in capsys.readouterr().out


def test_lone_surrogates_and_copies(caplog):
    """A result with half a character is no reason to send everything, and a client can be copied."""
    messages = make_conversation()
    messages[3]["content"] = "\ud800" + messages[3]["content"]
    sent = []

    class Handler(litellm.CustomLLM):
        def completion(self, *_, **options):
            sent.append(options["messages"])
            return litellm.completion(model=OPENAI, messages=[{"role": "user", "content": "x"}], mock_response="ok")

    litellm.custom_provider_map = [{"provider": "strict", "custom_handler": Handler()}]
    try:
        copy.copy(make_client()).completion("strict/any", messages)
    finally:
        litellm.custom_provider_map = []
    assert len(str(sent[0])) < len(str(messages)) / 2
    assert "whole history" not in caplog.text
