"""Clients that do whatever clients do, for long, through a proxy that is restarted: each request is answered.

They speak all four APIs in a window that is soon full: tools beside each other, results of any length, pictures,
thinking, other models and system prompts; they ask twice, go back, change what was said, lose a message, leave in the
middle of an answer, are interrupted before a result is there, and begin anew with a summary of their own. The provider
is the strict one. One seed of 120 steps; 3 with HOLDFAST_COUNTS=ci, 40 of 300 with HOLDFAST_COUNTS=thorough.
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
MOST_REFUSED = 0.15
"""Requests that the provider may refuse first, for each that a client makes: 0.01 to 0.06 were measured."""
TAG = re.compile(r"<said [\d-]+>")


def picture(width, height):
    """Return the head of a PNG: as much as anybody looks at."""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\0" * 60).decode()


PICTURES = [picture(800, 600), picture(2_600, 1_200)]


class Speaker:
    """Says something else each time: thoughts where they are asked for, calls where there are tools."""

    def __init__(self, pick):
        self.pick, self.number = pick, 0

    def choose_next_answer(self, request, _):
        """Return the next answer."""
        self.number += 1
        words = f"answer {self.number}. " + "The holdfast holds what the tide would take. " * self.pick.choice(
            [0, 1, 20]
        )
        asked = request.body.get("thinking") or request.body.get("reasoning") or request.body.get("generationConfig")
        thought = f"thought {self.number} " * self.pick.choice([1, 60]) if asked else ""
        calls = self.pick.choice([0, 1, 1, 3])
        told = [(self.pick.choice(["bash", "read"]), {"command": f"echo {self.number}-{at}"}) for at in range(calls)]
        return ScriptedAnswer("" if calls and self.pick.random() < 0.5 else words, tuple(told), thought)


class Talker:
    """One client, with all that it remembers."""

    def __init__(self, pick, api, number):
        self.pick, self.api, self.number = pick, api, number
        self.model, self.day, self.thinks, self.streams = MODELS[api][0], 1, pick.random() < 0.6, pick.random() < 0.5
        self.history, self.turns, self.open = [], [], []
        self.count, self.law = 0, ""
        """What the summary lays down by which it began anew."""
        self.said, self.did = [], []

    # -- what it says ----------------------------------------------------------------------------------------------

    def tag(self):
        """Return a mark that nobody else says."""
        self.count += 1
        self.said.append(f"<said {self.number}-{self.count}>")
        return self.said[-1]

    def words(self, text, data=""):
        """Return a message of the user, perhaps with a picture."""
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

    def results(self, calls):
        """Return what the tools gave back."""
        texts = [f"{self.tag()} " + "line of output\n" * (self.pick.choice(SIZES) // 15) for _ in calls]
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
            functions = [{"type": "function", "function": one} for one in tools]
            return whole | {"messages": [{"role": "system", "content": system}, *self.history], "tools": functions}
        if self.api == "openai-responses":
            about = {"instructions": system, "store": False, "include": ["reasoning.encrypted_content"]}
            reasoning = {"reasoning": {"effort": "low"}} if thinks else {}
            return whole | about | reasoning | {"tools": [{"type": "function", **one} for one in tools]}
        mode = {"type": "enabled", "budget_tokens": 1_024} if "4-5" in self.model else {"type": "adaptive"}
        own = [{"name": one["name"], "input_schema": schema} for one in tools]
        return whole | {"system": system, "max_tokens": 3_000, "tools": own} | ({"thinking": mode} if thinks else {})

    @property
    def path(self):
        """Where it is sent."""
        verb = "streamGenerateContent?alt=sse" if self.streams else "generateContent"
        return PATHS.get(self.api) or f"/v1beta/models/{self.model}:{verb}"

    # -- what it does ----------------------------------------------------------------------------------------------

    def step(self):
        """Go on with the conversation in some way."""
        if self.open:
            calls, self.open = self.open, []
            if self.pick.random() < 0.08:
                self._did("is interrupted")
                self.history.append(self.words(f"{self.tag()} Stop that."))
                return
            if self.pick.random() < 0.05:
                self._thinks()
            self._did("gives results")
            self.history += self.results(calls[1:] if len(calls) > 1 and self.pick.random() < 0.05 else calls)
            return
        odd = [self._back, self._changed, self._anew, self._tomorrow, self._other_model, self._thinks, self._lost]
        if len(self.turns) > 3 and self.pick.random() < 0.25:
            self.pick.choice(odd)()
        self.turns.append(len(self.history))
        data = self.pick.choice(PICTURES) if self.pick.random() < 0.15 else ""
        length = self.pick.choice([1, 1, 1, 20, 400 if data == "" else 1])
        self._did("says something")
        self.history.append(self.words(f"{self.tag()} " + "Go on with the work, please. " * length, data))

    def _did(self, what):
        self.did.append(what)

    def _back(self):
        self._did("goes back")
        at = self.pick.choice(self.turns[1:])
        self.history, self.turns = self.history[:at], [one for one in self.turns if one < at]

    def _changed(self):
        self._did("changes old words")
        self.history = [*self.history]
        self.history[self.pick.choice(self.turns[1:])] = self.words("It was meant otherwise.")

    def _anew(self):
        self._did("begins anew")
        self.law = f"Never touch the harbour wall {len(self.did)}."
        told = f"This session is being continued from a previous conversation.\n\nSummary:\n1. Constraints:\n{self.law}"
        self.history, self.turns = [self.words(told)], [0]

    def _tomorrow(self):
        self._did("has another system prompt")
        self.day += 1

    def _other_model(self):
        self._did("has another model")
        self.model = self.pick.choice(MODELS[self.api])

    def _thinks(self):
        self._did("thinks, or does not")
        self.thinks = not self.thinks

    def _lost(self):
        self._did("loses a message")
        at = self.pick.randrange(1, len(self.history))
        self.history = self.history[:at] + self.history[at + 1 :]
        self.turns = [one - (one > at) for one in self.turns if one != at]

    def hear(self, data):
        """Take an answer into the conversation; return whether it is whole."""
        heard = self._read(data)
        self.history += [json.loads(one) for one in heard.history_elements]
        self.open = [part for part in heard.message.parts if isinstance(part, ToolCall)]
        return heard.is_complete

    def _read(self, data):
        if not self.streams:
            return parse_answer(self.api, data)
        fold, reader = AnswerStream(self.api), SseReader()
        for event in [*reader.feed(data), *reader.close()]:
            fold.add_event(event)
        return fold.build_answer()


class World:
    """Six clients, the proxy that they talk through, and what goes wrong."""

    def __init__(self, seed, upstream):
        self.pick, self.upstream = random.Random(seed), upstream
        self.talkers = [Talker(self.pick, [*FIELDS][number % 4], number) for number in range(6)]
        self.requests, self.wrong = 0, []

    async def live(self, client, steps):
        """Let the clients go on for some steps, two of them at once now and then."""
        for _ in range(steps):
            some = self.pick.sample(self.talkers, 1 + (self.pick.random() < 0.15))
            await asyncio.gather(*(self._step(client, one) for one in some))

    async def _step(self, client, talker):
        talker.step()
        body = json.dumps(talker.body()).encode()
        if self.pick.random() < 0.06:
            await self._left(client, talker, body)
        for _ in range(1 + (self.pick.random() < 0.08)):
            reply = await self._asked(client, talker, body)
        if reply.status_code == 200 and not talker.hear(reply.content):
            self.wrong.append((talker.api, talker.did[-5:], reply.content[-200:]))

    async def _asked(self, client, talker, body):
        before, newest = len(self.upstream.bodies), TAG.findall(body.decode())[-1:]
        reply = await client.post(talker.path, body)
        self.requests += 1
        went = self.upstream.bodies[before:]
        if reply.status_code != 200:
            self.wrong.append((talker.api, talker.did[-5:], reply.content[:300]))
        elif lacking := [one for one in (*newest, talker.law) if not any(one.encode() in body for body in went)]:
            self.wrong.append((talker.api, talker.did[-5:], f"{lacking} did not go up"))
        return reply

    async def _left(self, client, talker, body):
        """Ask, and leave at some moment."""
        asking = asyncio.ensure_future(client.post(talker.path, body))
        for _ in range(self.pick.choice([1, 3, 8, 20, 40, 80])):
            await asyncio.sleep(0)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


@pytest.mark.counts
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_proxy_answers_random_clients_and_loses_nothing(seed, open_client, make_upstream, tmp_path):
    """Whatever clients do, no refusal reaches them, their newest text and standing rules are sent, and everything they
    sent is in a sound log.
    """
    upstream = make_upstream(Provider(Strict(window=WINDOW), Speaker(random.Random(seed))))
    world = World(seed, upstream)

    async def go():
        done = 0
        while done < STEPS:
            life = world.pick.randrange(15, 90)
            with open_store(tmp_path / "store.db") as store:
                async with open_client(upstream, store, window=WINDOW if seed % 2 else 0) as client:
                    await world.live(client, life)
            done += life

    asyncio.run(go())
    assert not world.wrong, world.wrong[:3]
    assert len(upstream.bodies) < (1 + MOST_REFUSED) * world.requests, "each was sent again and again"
    with open_store(tmp_path / "store.db") as store:
        keys = [info.key for info in store.list_sessions()]
        assert [damage for key in keys for damage in store.find_damage(key)] == []
        held = b"".join(msgspec.json.encode(entry) for key in keys for entry in store.read_entries(key)).decode()
    assert [tag for talker in world.talkers for tag in talker.said if tag not in held] == []
