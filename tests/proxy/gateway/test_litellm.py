"""The real LiteLLM, with its guardrail, in front of a real proxy and the strict provider, over sockets.

Runs where LiteLLM is installed (`uv sync --group hosts`); `.ci/run --thorough` installs it. Importing LiteLLM takes
seconds, so these tests are long ones.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import re

import pytest
import socket_proxy

from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.server.local_server import serve_provider

pytestmark = [pytest.mark.long, pytest.mark.uncounted, pytest.mark.filterwarnings("ignore")]

WINDOW = 48_000
STEPS = 9
LONG = 2_600
"""Lines of a result that is shortened in any window."""
MODEL = "gpt-4.1"
RETRIEVE_TOOL = "headroom_retrieve"


def make_tool(name, *arguments):
    """Return the definition of a tool with text arguments."""
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def make_log(step, lines=700):
    """Return a tool result; one of 700 lines has some 12,000 tokens."""
    return "\n".join(f"step {step}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


def run(function):
    """Run a coroutine function, and close the connections that LiteLLM leaves open."""

    async def run_and_close():
        from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

        try:
            return await function()
        finally:
            await close_litellm_async_clients()
            await asyncio.sleep(0.1)  # connections close in the background

    result = asyncio.run(run_and_close())
    gc.collect()  # while warnings about what is still open are ignored
    return result


@pytest.fixture(scope="module")
def litellm():
    """LiteLLM, which is not to ask the network for its table of prices."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    reason = "LiteLLM is not installed; install the group hosts to run this test"
    module = pytest.importorskip("litellm", reason=reason)
    pytest.importorskip("backoff", reason=reason)
    return module


class Agent:
    """An agent whose model is behind LiteLLM's router, with a guardrail that asks the proxy."""

    def __init__(self, litellm, proxy, provider_url, *, token="", tools=(), session="session-1"):
        from litellm.proxy._types import UserAPIKeyAuth
        from litellm.proxy.guardrails.guardrail_hooks.headroom import HeadroomGuardrail

        # A caller's key and session, from which LiteLLM makes the name of the conversation.
        self.metadata = {"user_api_key_auth": UserAPIKeyAuth(api_key="sk-caller"), "session_id": session}
        self.guardrail = HeadroomGuardrail(
            api_base=f"http://127.0.0.1:{proxy.port}",
            api_key=token or None,
            guardrail_name="holdfast",
            event_hook="pre_call",
        )
        litellm.callbacks = [self.guardrail]
        upstream = {"model": f"openai/{MODEL}", "api_base": f"{provider_url}/v1", "api_key": "sk-provider"}
        self.router = litellm.Router(model_list=[{"model_name": MODEL, "litellm_params": upstream}], num_retries=0)
        self.tools = [make_tool("read", "path"), *tools]
        self.messages = [{"role": "system", "content": "You repair programs."}]

    def add_step(self, step, result):
        """Append a call and its result."""
        function = {"name": "read", "arguments": json.dumps({"path": f"log-{step}"})}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": f"call_{step}", "content": result})

    async def ask(self):
        """Send the conversation, with the guardrail, and return the answer."""
        return await self.router.acompletion(
            MODEL,
            messages=[*self.messages],
            tools=self.tools,
            guardrails=["holdfast"],
            metadata={**self.metadata},
        )


def list_sent_messages(provider):
    """Return the messages of each request that the provider accepted."""
    return [json.loads(request.incoming.body)["messages"] for request in provider.requests]


def test_litellm_guardrail_keeps_an_agent_inside_the_window(litellm):
    """An agent that reads more than two windows of logs is never refused: every request is valid and fits. What LiteLLM
    withholds (system prompt, task, answers, newest result) arrives verbatim, and each request extends the one before
    it but for the result that was the newest then.
    """
    provider = Provider(Strict(window=WINDOW))
    with (
        socket_proxy.run_proxy(window=WINDOW, token="the-token") as proxy,
        serve_provider(provider) as provider_url,
    ):
        agent = Agent(litellm, proxy, provider_url, token="the-token")

        async def work():
            agent.messages.append({"role": "user", "content": "Find out why the tests are slow."})
            for step in range(STEPS):
                agent.add_step(step, make_log(step))
                if step == STEPS // 2:
                    agent.messages.append({"role": "assistant", "content": "The disk is slow."})
                    agent.messages.append({"role": "user", "content": "And the network?"})
                    agent.add_step("extra", "The network is fast.")
                answer = await agent.ask()
                assert answer.choices[0].finish_reason == "stop"

        run(work)
        stats = proxy.send(socket_proxy.build_request("/stats", method="GET", x_holdfast_token="the-token")).json
    sent = list_sent_messages(provider)
    assert len(sent) == STEPS
    assert all(request.tokens <= WINDOW for request in provider.requests)
    for messages in sent:
        assert messages[0]["content"] == "You repair programs."
        assert messages[1]["content"] == "Find out why the tests are slow."
    assert sent[-1][-1]["content"] == make_log(STEPS - 1)
    assert f"{RETRIEVE_TOOL}(hash=" in sent[-1][3]["content"]
    for before, after in itertools.pairwise(sent):
        assert after[: len(before) - 1] == before[:-1]
    # The first request has nothing that LiteLLM lets anybody shorten, so it does not ask.
    assert stats["requests"]["compress"]["managed"] == STEPS - 1


class RetrievingModel:
    """A model that reads back the first text that it sees left out, and then answers."""

    def __init__(self):
        self.hash = ""

    def choose_next_answer(self, request, _):
        """Return a call of the tool for the first hash that is seen, or an answer."""
        match = re.search(rf'{RETRIEVE_TOOL}\(hash=\\*"([0-9a-f]+)', json.dumps(request.body))
        if match and not self.hash:
            self.hash = match[1]
            return ScriptedAnswer(calls=((RETRIEVE_TOOL, {"hash": self.hash}),))
        return ScriptedAnswer("done")


def test_litellm_model_reads_a_shortened_result_back(litellm):
    """LiteLLM answers the model's call of its tool with the whole text, which it gets from the proxy under the name of
    the same conversation; the client sees the final answer alone.
    """
    model = RetrievingModel()
    provider = Provider(Strict(window=200_000), model)
    with socket_proxy.run_proxy() as proxy, serve_provider(provider) as provider_url:
        agent = Agent(litellm, proxy, provider_url, tools=[make_tool(RETRIEVE_TOOL, "hash", "query")])
        agent.messages.append({"role": "user", "content": "Read both."})

        async def work():
            for step in range(2):
                agent.add_step(step, make_log(step, LONG))
            return await agent.ask()

        answer = run(work)
        retrieved = proxy.stats()["requests"]["retrieve"]["managed"]
    sent = list_sent_messages(provider)
    assert model.hash
    assert answer.choices[0].message.content == "done"
    assert retrieved == 1
    assert sent[0][3]["content"] != make_log(0, LONG)
    assert sent[1][-1]["role"] == "tool"
    assert sent[1][-1]["content"] == make_log(0, LONG)
