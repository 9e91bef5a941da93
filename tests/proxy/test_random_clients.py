"""Clients that do anything clients do, for a long time, through a proxy that is restarted: each request is answered.

They use all four APIs in a window that is soon full: parallel tools, results of any length, images, thinking, other
models and system prompts; they repeat requests, go back, edit messages, lose a message, disconnect in the middle of an
answer, interrupt a tool call, and start again with a summary of their own. The provider is the strict one. One seed of
120 steps; 3 with HOLDFAST_COUNTS=ci, 40 of 300 with HOLDFAST_COUNTS=thorough.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import struct
from contextlib import suppress

import example_counts
import msgspec
import pytest

from holdfast.messages.parts import ToolCall
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.common.sse import SseReader
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider
from holdfast.testing.provider import ProviderSettings as Strict
from holdfast.testing.provider.calls import ScriptedAnswer

SEEDS, STEPS = example_counts.choose(quick=(range(1), 120), ci=(range(3), 120), thorough=(range(40), 300))
WINDOW = 24_000
"""Tokens: some ten steps."""
FIELDS = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
PATHS = {"anthropic": "/v1/messages", "openai-chat": "/v1/chat/completions", "openai-responses": "/v1/responses"}
MODELS = {
    "anthropic": ["claude-opus-5-5", "claude-sonnet-4-5"],
    "openai-chat": ["gpt-5.5", "gpt-4o"],
    "openai-responses": ["gpt-5.5", "gpt-5.1"],
    "gemini": ["gemini-3-pro", "gemini-2.5-flash"],
}
SIZES = [5, 200, 2_000, 9_000, 40_000]
"""Characters of results."""
MAX_REFUSED_SHARE = 0.15
"""Refused requests allowed for each request of a client: 0.01 to 0.06 were measured."""
TAG = re.compile(r"<tag [\d-]+>")


def make_png_head(width, height):
    """Return the head of a PNG, which is all that is ever read of it."""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\0" * 60).decode()


IMAGES = [make_png_head(800, 600), make_png_head(2_600, 1_200)]


class RandomAnswers:
    """Gives another answer each time: thinking where it is enabled, calls where there are tools."""

    def __init__(self, pick):
        self.pick, self.number = pick, 0

    def choose_next_answer(self, request, _):
        """Return the next answer."""
        self.number += 1
        words = f"answer {self.number}. " + "The holdfast holds what the tide would take. " * self.pick.choice(
            [0, 1, 20]
        )
        thinking_is_enabled = (
            request.body.get("thinking") or request.body.get("reasoning") or request.body.get("generationConfig")
        )
        thought = f"thought {self.number} " * self.pick.choice([1, 60]) if thinking_is_enabled else ""
        calls = self.pick.choice([0, 1, 1, 3])
        tool_calls = [
            (self.pick.choice(["bash", "read"]), {"command": f"echo {self.number}-{at}"}) for at in range(calls)
        ]
        return ScriptedAnswer("" if calls and self.pick.random() < 0.5 else words, tuple(tool_calls), thought)


class RandomClient:
    """One client with its conversation."""

    def __init__(self, pick, api, number):
        self.pick, self.api, self.number = pick, api, number
        self.model, self.day, self.thinks, self.streams = MODELS[api][0], 1, pick.random() < 0.6, pick.random() < 0.5
        self.history, self.turns, self.open_calls = [], [], []
        self.count, self.standing_rule = 0, ""
        """The rule in the summary that the client last started again with."""
        self.tags, self.actions = [], []

    # -- what it sends -------------------------------------------------------------------------------------------------

    def make_tag(self):
        """Return a unique marker."""
        self.count += 1
        self.tags.append(f"<tag {self.number}-{self.count}>")
        return self.tags[-1]

    def make_user_message(self, text, data=""):
        """Return a user message, with an image if there is ``data``."""
        if self.api == "gemini":
            shown = [{"inlineData": {"mimeType": "image/png", "data": data}}] if data else []
            return {"role": "user", "parts": [{"text": text}, *shown]}
        source = {"type": "base64", "media_type": "image/png", "data": data}
        url = f"data:image/png;base64,{data}"
        shown = {
            "anthropic": [{"type": "text", "text": text}, {"type": "image", "source": source}],
            "openai-chat": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}],
            "openai-responses": [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}],
        }
        return {"role": "user", "content": shown[self.api] if data else text}

    def make_results(self, calls):
        """Return the messages with the results of ``calls``."""
        texts = [f"{self.make_tag()} " + "line of output\n" * (self.pick.choice(SIZES) // 15) for _ in calls]
        pairs = [*zip(calls, texts, strict=True)]
        if self.api == "openai-responses":
            return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in pairs]
        if self.api == "openai-chat":
            return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs]
        if self.api == "gemini":
            parts = [{"functionResponse": {"name": call.name, "response": {"output": text}}} for call, text in pairs]
            return [{"role": "user", "parts": parts}]
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in pairs]
        return [{"role": "user", "content": blocks}]

    def body(self):
        """Return the next request."""
        system, schema = f"You are agent {self.number}. It is day {self.day}.", {"type": "object", "properties": {}}
        tools = [{"name": name, "parameters": schema} for name in ("bash", "read")]
        thinks, stream = self.thinks, {"stream": True} if self.streams and self.api != "gemini" else {}
        if self.api == "gemini":
            config = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}} if thinks else {}
            about = {"systemInstruction": {"parts": [{"text": system}]}, "tools": [{"functionDeclarations": tools}]}
            return {"contents": self.history, **about, **config}
        whole = {"model": self.model, FIELDS[self.api]: self.history, **stream}
        if self.api == "openai-chat":
            functions = [{"type": "function", "function": tool} for tool in tools]
            return whole | {"messages": [{"role": "system", "content": system}, *self.history], "tools": functions}
        if self.api == "openai-responses":
            about = {"instructions": system, "store": False, "include": ["reasoning.encrypted_content"]}
            reasoning = {"reasoning": {"effort": "low"}} if thinks else {}
            return whole | about | reasoning | {"tools": [{"type": "function", **tool} for tool in tools]}
        mode = {"type": "enabled", "budget_tokens": 1_024} if "4-5" in self.model else {"type": "adaptive"}
        anthropic_tools = [{"name": tool["name"], "input_schema": schema} for tool in tools]
        return (
            whole
            | {"system": system, "max_tokens": 3_000, "tools": anthropic_tools}
            | ({"thinking": mode} if thinks else {})
        )

    @property
    def path(self):
        """The path that requests are posted to."""
        verb = "streamGenerateContent?alt=sse" if self.streams else "generateContent"
        return PATHS.get(self.api) or f"/v1beta/models/{self.model}:{verb}"

    # -- what it does --------------------------------------------------------------------------------------------------

    def step(self):
        """Continue the conversation in a random way."""
        if self.open_calls:
            calls, self.open_calls = self.open_calls, []
            if self.pick.random() < 0.08:
                self._note_action("is interrupted")
                self.history.append(self.make_user_message(f"{self.make_tag()} Stop that."))
                return
            if self.pick.random() < 0.05:
                self._toggle_thinking()
            self._note_action("gives results")
            self.history += self.make_results(calls[1:] if len(calls) > 1 and self.pick.random() < 0.05 else calls)
            return
        actions = [
            self._go_back,
            self._edit_message,
            self._start_again,
            self._change_system_prompt,
            self._change_model,
            self._toggle_thinking,
            self._lose_message,
        ]
        if len(self.turns) > 3 and self.pick.random() < 0.25:
            self.pick.choice(actions)()
        self.turns.append(len(self.history))
        data = self.pick.choice(IMAGES) if self.pick.random() < 0.15 else ""
        length = self.pick.choice([1, 1, 1, 20, 400 if data == "" else 1])
        self._note_action("says something")
        self.history.append(
            self.make_user_message(f"{self.make_tag()} " + "Go on with the work, please. " * length, data)
        )

    def _note_action(self, what):
        self.actions.append(what)

    def _go_back(self):
        self._note_action("goes back")
        at = self.pick.choice(self.turns[1:])
        self.history, self.turns = self.history[:at], [turn for turn in self.turns if turn < at]

    def _edit_message(self):
        self._note_action("changes old words")
        self.history = [*self.history]
        self.history[self.pick.choice(self.turns[1:])] = self.make_user_message("It was meant otherwise.")

    def _start_again(self):
        self._note_action("begins anew")
        self.standing_rule = f"Never touch the harbour wall {len(self.actions)}."
        opening = "This session is being continued from a previous conversation."
        summary = f"{opening}\n\nSummary:\n1. Constraints:\n{self.standing_rule}"
        self.history, self.turns = [self.make_user_message(summary)], [0]

    def _change_system_prompt(self):
        self._note_action("has another system prompt")
        self.day += 1

    def _change_model(self):
        self._note_action("has another model")
        self.model = self.pick.choice(MODELS[self.api])

    def _toggle_thinking(self):
        self._note_action("thinks, or does not")
        self.thinks = not self.thinks

    def _lose_message(self):
        self._note_action("loses a message")
        at = self.pick.randrange(1, len(self.history))
        self.history = self.history[:at] + self.history[at + 1 :]
        self.turns = [turn - (turn > at) for turn in self.turns if turn != at]

    def add_answer(self, data):
        """Append an answer to the conversation; return whether it is complete."""
        answer = self._parse(data)
        self.history += [json.loads(element) for element in answer.history_elements]
        self.open_calls = [part for part in answer.message.parts if isinstance(part, ToolCall)]
        return answer.is_complete

    def _parse(self, data):
        if not self.streams:
            return parse_answer(self.api, data)
        fold, reader = AnswerStream(self.api), SseReader()
        for event in [*reader.feed(data), *reader.close()]:
            fold.add_event(event)
        return fold.build_answer()


class Scenario:
    """Six clients of one proxy, and the failures seen."""

    def __init__(self, seed, upstream):
        self.pick, self.upstream = random.Random(seed), upstream
        self.clients = [RandomClient(self.pick, [*FIELDS][number % 4], number) for number in range(6)]
        self.requests, self.failures = 0, []

    async def run_steps(self, client, steps):
        """Let random clients take steps, now and then two at once."""
        for _ in range(steps):
            some = self.pick.sample(self.clients, 1 + (self.pick.random() < 0.15))
            await asyncio.gather(*(self._step(client, chosen) for chosen in some))

    async def _step(self, client, random_client):
        random_client.step()
        body = json.dumps(random_client.body()).encode()
        if self.pick.random() < 0.06:
            await self._send_and_leave(client, random_client, body)
        for _ in range(1 + (self.pick.random() < 0.08)):
            reply = await self._send(client, random_client, body)
        if reply.status_code == 200 and not random_client.add_answer(reply.content):
            self.failures.append((random_client.api, random_client.actions[-5:], reply.content[-200:]))

    async def _send(self, client, random_client, body):
        before, newest = len(self.upstream.bodies), TAG.findall(body.decode())[-1:]
        reply = await client.post(random_client.path, body)
        self.requests += 1
        sent_bodies = self.upstream.bodies[before:]
        if reply.status_code != 200:
            self.failures.append((random_client.api, random_client.actions[-5:], reply.content[:300]))
        elif missing := [
            text
            for text in (*newest, random_client.standing_rule)
            if not any(text.encode() in sent for sent in sent_bodies)
        ]:
            self.failures.append((random_client.api, random_client.actions[-5:], f"{missing} was not sent"))
        return reply

    async def _send_and_leave(self, client, random_client, body):
        """Send a request and disconnect at some moment."""
        sending = asyncio.ensure_future(client.post(random_client.path, body))
        for _ in range(self.pick.choice([1, 3, 8, 20, 40, 80])):
            await asyncio.sleep(0)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


@pytest.mark.counts
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_proxy_answers_random_clients_and_loses_nothing(seed, open_client, make_upstream, tmp_path):
    """Whatever clients do, no refusal reaches them, their newest text and standing rules are sent, and everything they
    sent is in a sound log.
    """
    upstream = make_upstream(Provider(Strict(window=WINDOW), RandomAnswers(random.Random(seed))))
    scenario = Scenario(seed, upstream)

    async def run_all_steps():
        done = 0
        while done < STEPS:
            steps = scenario.pick.randrange(15, 90)
            with open_store(tmp_path / "store.db") as store:
                async with open_client(upstream, store, window=WINDOW if seed % 2 else 0) as client:
                    await scenario.run_steps(client, steps)
            done += steps

    asyncio.run(run_all_steps())
    assert not scenario.failures, scenario.failures[:3]
    assert len(upstream.bodies) < (1 + MAX_REFUSED_SHARE) * scenario.requests, "requests were repeated too often"
    with open_store(tmp_path / "store.db") as store:
        keys = [info.key for info in store.list_sessions()]
        assert [damage for key in keys for damage in store.find_damage(key)] == []
        stored = b"".join(msgspec.json.encode(entry) for key in keys for entry in store.read_entries(key)).decode()
    assert [tag for random_client in scenario.clients for tag in random_client.tags if tag not in stored] == []
