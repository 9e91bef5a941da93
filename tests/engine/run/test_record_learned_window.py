"""Servers that only resemble an API: what they answer is their own, and ends no session."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks
from holdfast.engine.upstream.upstream import Reply
from holdfast.errors import ContextOverflow, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolResult
from holdfast.providers.requests.request_body import parse_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream


def chat(*calls):
    """Return an answer of Chat Completions with these calls."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return json.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})


def responses(*items):
    """Return an answer of Responses with these items."""
    return json.dumps({"id": "r", "object": "response", "status": "completed", "model": "m", "output": items})


def messages(*blocks):
    """Return an answer of Messages with these blocks."""
    told = {"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": blocks}
    return json.dumps({"id": "m", "model": "m", **told, "usage": {"input_tokens": 10, "output_tokens": 5}})


def gemini(*parts):
    """Return an answer of Gemini with these parts."""
    return json.dumps({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]})


BASH = {"name": "bash", "arguments": "{}"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "arguments": "{}"}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
ODD = [
    ("openai-chat", chat({"id": "c1", "type": "", "function": BASH})),
    ("openai-chat", chat({"id": "c1", "type": None, "function": BASH})),
    ("openai-chat", chat({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {}}})),
    ("openai-chat", chat({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": None}})),
    ("openai-responses", responses({"type": "reasoning", "id": "rs_1", "encrypted_content": "abc"}, SAID)),
    ("openai-responses", responses({**SAID, "id": ""}, {**CALL, "id": ""})),
    ("openai-responses", responses({**SAID, "id": "msg:1/2"}, {**CALL, "id": "call:1/2"})),
    ("anthropic", messages({"type": "tool_use", "id": "t1", "name": "bash"})),
    ("anthropic", messages({"type": "tool_use", "id": "bash:0", "name": "bash", "input": {}})),
    ("gemini", gemini({"text": "x"}, {})),
]


def read(message):
    """Return what a message says, its ids too; where a cache is marked is no matter."""
    return message.role, message.text, [(call.id, call.name, call.arguments) for call in message.calls], message.results


@pytest.mark.parametrize(("api", "answer"), ODD, ids=[f"{number}-{api}" for number, (api, _) in enumerate(ODD)])
def test_an_odd_answer_ends_no_session(api, answer):
    """What follows it is valid, is said to be mended where it had to be, and is mended in the same way each time."""
    upstream, heard = ScriptedUpstream([answer.encode(), "Well.", "Well."]), []

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api=api, model=STRICTEST_MODELS[api], listen=heard.append
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("Go.", stream=False) as going:
                async for _ in going:
                    pass
            calls = session.journal.state.history.messages[-1].calls
            results = [ToolResult(call.id, call.name, (Text("done"),)) for call in calls]
            await session.append(*[Message("tool", tuple(results))] if results else [])
            await session.ask("And now?")
            await session.ask("And then?")

    run_on_fake_clock(go)
    bodies = [sent.body for sent in upstream.sent[1:]]
    assert [
        found
        for body in bodies
        for found in validate_request(body, api, model=STRICTEST_MODELS[api])
        if found.level == "error"
    ] == []
    told = [event.rule for event in heard if isinstance(event, events.NoticeGiven)]
    assert len(told) == len(set(told))
    first, second = [[read(slot.message) for slot in parse_request(body, api).messages] for body in bodies]
    assert second[: len(first)] == first


TOO_MUCH = {
    "anthropic": {"max_tokens": 9_000},
    "openai-chat": {"max_tokens": 9_000},
    "openai-responses": {"max_output_tokens": 9_000},
    "gemini": {"generationConfig": {"maxOutputTokens": 9_000}},
}


@pytest.mark.parametrize(("api", "fields"), TOO_MUCH.items(), ids=TOO_MUCH)
def test_a_refusal_of_so_much_output_is_no_answer(api, fields):
    """It is an error that says what can be done, and nothing of it is in the log as the model's."""
    upstream, heard, store = ProviderUpstream(Provider(ProviderSettings(max_output=4_096))), [], MemoryStore()

    async def go():
        goal = get_target(api, "house-model", window=64_000)
        async with Engine.open(store, upstream=upstream, target=goal, fields=fields, listen=heard.append) as engine:
            with pytest.raises(UpstreamError, match="ask for less output") as raised:
                await (await engine.session(SAMPLE_KEY)).ask("Why is the build slow?")
            return raised.value.kind

    assert run_on_fake_clock(go) == "output_limit"
    assert [event.kind for event in heard if isinstance(event, events.RequestRefused)] == ["output_limit"]
    assert [entry for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == []
    assert len(upstream.sent) == 1


class Counting:
    """A server that counts four bytes of a body as a token, and says in its own way how many a prompt has."""

    def __init__(self, tell, *, thought=""):
        self.tell = tell
        self.thought = thought
        """What it reasons before each answer."""
        self.keeps = 16
        """Messages of the longest prompt of which it reads that."""
        self.sizes = []
        """Tokens of each prompt."""
        self.messages = 0
        """How many the newest request showed."""

    @asynccontextmanager
    async def send(self, sent):
        """Return an answer with what it tells of its prompt."""
        said = json.loads(sent.body)["messages"]
        self.messages = len(said)
        read = [{name: value for name, value in one.items() if name != "reasoning_content"} for one in said]
        self.sizes.append(len(json.dumps(read if len(said) > self.keeps else said)) // 4)
        told = {"prompt_tokens": self.tell(self.sizes), "completion_tokens": 5}
        beside = {"reasoning_content": self.thought} if self.thought else {}
        answer = {"role": "assistant", "content": "fine", **beside}
        choice = {"index": 0, "finish_reason": "stop", "message": answer}

        async def chunks():
            yield json.dumps({"id": "x", "choices": [choice], "usage": told}).encode()

        yield Reply(200, {"content-type": "application/json"}, chunks())


def counted(tell, said, *, thought="", hooks=Hooks(), policy="holdfast", fields=None):
    """Return what a session knows behind ``said``, what its server saw, and what was told."""
    upstream, heard = Counting(tell, thought=thought), []

    async def go():
        goal = get_target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=goal,
            listen=heard.append,
            hooks=hooks,
            policy=policy,
            fields=fields or {},
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in said:
                await session.ask(words)
            return session.report()

    report = run_on_fake_clock(go)
    return report, upstream, [event.rule for event in heard if isinstance(event, events.NoticeGiven)]


def words(*times):
    """Return something to say for each of ``times``, that many lines long."""
    return [f"step {number}: {'lorem ipsum dolor sit amet ' * many}" for number, many in enumerate(times)]


NOT_CACHED = [
    (10, 2_500, 250, 250, 250),
    (2_500, 250, 250, 250, 250),
    (300, 250, 250, 250, 250),
    (500, 250, 250, 250, 250),
    (230, 240, 250, 260, 270),
]


@pytest.mark.parametrize("times", NOT_CACHED)
def test_a_count_of_what_was_not_cached_is_no_window(times):
    """The conversation grew, so that its prompt cannot have shrunk: nothing is learned of that, nothing left out."""
    report, upstream, told = counted(lambda sizes: sizes[-1] - sum(sizes[-2:-1]), words(*times))
    assert report.window == 200_000
    assert report.tokens > 0.8 * upstream.sizes[-1]
    assert upstream.messages == 9
    assert told == []


def test_a_frame_that_others_had_cached_is_not_missed():
    """What a server counts of the first request is all of its messages, and of later ones what is new."""
    tool = {"type": "function", "function": {"name": "ls", "description": "lorem ipsum dolor sit amet " * 1_500}}
    report, upstream, told = counted(
        lambda sizes: sizes[-1] - sum(sizes[-2:-1]), words(*[250] * 14), fields={"tools": [tool]}
    )
    assert report.window == 200_000
    assert upstream.messages == 27
    assert told == []


def test_a_whole_count_is_no_window_however_far_off_the_estimate():
    """What was lost from the cache is counted whole, and is of a text with half of the tokens that the first had."""
    said = [*words(100, 100), *[f"{number} 1 2 3 lorem ipsum dolor " * 150 for number in range(12)]]

    def tell(sizes):
        first, cached = sizes[:2][-1], sizes[-2] if 2 < len(sizes) < len(said) else 0
        return sizes[-1] + first - cached

    report, _, told = counted(tell, said)
    assert report.window == 200_000
    assert told == []


def test_a_long_first_prompt_that_is_cut_teaches_the_window_at_once():
    """Nothing of it was counted before, and no text has so few tokens."""
    report, upstream, told = counted(lambda sizes: min(sizes[-1], 8_192), words(6_000))
    assert upstream.sizes[-1] > 4 * 8_192
    assert (report.window, told.count("silent-truncation")) == (8_192, 1)


def test_a_prompt_that_is_cut_unseen_teaches_the_window():
    """It is told once, before twice the window was said, and what is sent from then on is read whole."""
    window = 16_000
    report, upstream, told = counted(lambda sizes: min(sizes[-1], window), words(*[500] * 14))
    assert report.window == window
    assert told.count("silent-truncation") == 1
    assert window < max(upstream.sizes) < 1.8 * window
    assert max(upstream.sizes[-3:]) <= window


def alternating(tell, said, thought=""):
    """Return what a session knows behind ``said``, to two models in turn; the second has a ``thought`` at few words."""
    upstream, heard, talk = Counting(tell), [], []
    upstream.keeps = 0

    async def go():
        goal = get_target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(MemoryStore(), upstream=upstream, target=goal, listen=heard.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for at, words in enumerate(said):
                upstream.thought = thought if at % 2 and len(words) < 5_000 else ""
                talk.append({"role": "user", "content": words})
                body = {"model": ("qwen3:8b", "big")[at % 2], "messages": [*talk]}
                async with session.run(body, stream=False) as going:
                    async for _ in going:
                        pass
                beside = {"reasoning_content": upstream.thought} if upstream.thought else {}
                talk.append({"role": "assistant", "content": going.answer.message.text, **beside})
            return session.report()

    report = run_on_fake_clock(go)
    return report, upstream, [event.rule for event in heard if isinstance(event, events.NoticeGiven)]


def test_a_server_that_is_asked_every_second_turn_is_judged_by_its_own_counts():
    """Another model answers between, and reads all: what is sent to the one that cuts is read whole from then on."""
    window = 16_000
    report, upstream, told = alternating(
        lambda sizes: min(sizes[-1], window) if len(sizes) % 2 else sizes[-1], words(*[500] * 22)
    )
    assert (report.window, told.count("silent-truncation")) == (window, 1)
    assert max(upstream.sizes[-4::2]) <= window


@pytest.mark.parametrize("thought", ["", "lorem ipsum dolor sit amet " * 1_700], ids=["plain", "reasoning"])
def test_who_is_asked_every_second_turn_is_shown_no_reasoning_of_others(thought):
    """All else is counted, however little that is of what was said: nothing is learned of that."""
    report, _, told = alternating(lambda sizes: sizes[-1], words(*[500] * 8, *[50] * 40), thought)
    assert report.window == 200_000
    assert told == []


def test_what_is_known_of_a_window_is_not_told_again():
    """A policy that removes nothing is cut at every request from then on."""
    report, upstream, told = counted(lambda sizes: min(sizes[-1], 16_000), words(*[100] * 60), policy="append-only")
    assert report.window == 16_000
    assert upstream.sizes[-1] > 40_000
    assert told.count("silent-truncation") == 1


def test_a_prompt_that_is_cut_between_messages_teaches_the_window():
    """Its counts differ: the largest of them is what fits."""
    window = 16_000

    def tell(sizes):
        return sizes[-1] if sizes[-1] < window else window - 97 * len(sizes) % 1_500

    report, upstream, told = counted(tell, words(*[500] * 14))
    assert 0.9 * window <= report.window <= window
    assert told.count("silent-truncation") == 1
    assert max(upstream.sizes) < 2 * window


HONEST = {
    "whole": lambda sizes: sizes[-1],
    "in blocks of 128": lambda sizes: -(-sizes[-1] // 128) * 128,
    "in blocks of 1,024": lambda sizes: -(-sizes[-1] // 1_024) * 1_024,
    "what was not cached": lambda sizes: sizes[-1] - sum(sizes[-2:-1]),
    "always the same": lambda sizes: 5_000,
}


@pytest.mark.parametrize("lines", [30, 250])
@pytest.mark.parametrize("tell", HONEST.values(), ids=HONEST)
def test_an_honest_count_is_no_window(tell, lines):
    """Messages of one size each: nothing is learned of how they are counted, and nothing left out."""
    report, upstream, told = counted(tell, words(*[lines] * 14))
    assert report.window == 200_000
    assert upstream.messages == 27
    assert told == []


def test_reasoning_that_a_provider_leaves_out_is_no_window():
    """It was read, and later it is not: for some turns the count is less than it was."""
    report, upstream, told = counted(
        lambda sizes: sizes[-1], words(*[150] * 17), thought="lorem ipsum dolor sit amet " * 145
    )
    assert report.window == 200_000
    assert upstream.messages == 33
    assert told == []


def test_a_session_whose_hook_shows_less_learns_no_window():
    """What the hook leaves out was not cut by anybody else."""
    hooks = Hooks(transform_messages=lambda messages: messages[-2:])
    report, upstream, told = counted(lambda sizes: sizes[-1], words(*[500] * 12), hooks=hooks)
    assert report.window == 200_000
    assert upstream.messages == 2
    assert told == []


def test_small_pictures_are_no_window():
    """What is reckoned for a picture is far more than a small one has: that is no prompt that was cut."""
    icon = (Media("image", "image/png", 70, source="AAAA"),)
    said = [Message("user", (*icon * 3, Text("What are these?"))), *words(*[200] * 6)]
    report, upstream, told = counted(lambda sizes: sizes[-1] + 255, said)
    assert report.window == 200_000
    assert upstream.messages == 13
    assert told == []


@pytest.mark.parametrize("told_always", [0, 1, 100])
def test_a_server_that_does_not_count_teaches_nothing(told_always):
    """Some tell the same small number of every prompt: our own estimate stands, nothing is left out."""
    report, upstream, told = counted(lambda sizes: told_always, words(*[250] * 10))
    assert report.window == 200_000
    assert report.tokens > 0.8 * upstream.sizes[-1]
    assert upstream.messages == 19
    assert told == []


@pytest.mark.parametrize("at", [1, 2, 14])
@pytest.mark.parametrize("times", [100, 7, 0.01, 0])
def test_one_wild_count_changes_nothing(times, at):
    """Nothing gives way after it, the window is what it was, and the next request is estimated as without it."""
    said = words(*[1_000] * 15)
    wild = counted(lambda sizes: round(sizes[-1] * (times if len(sizes) == at else 1)), said)
    honest = counted(lambda sizes: sizes[-1], said)
    assert [one.messages for _, one, _ in (wild, honest)] == [29, 29]
    assert wild[0].window == honest[0].window
    assert wild[0].tokens == pytest.approx(honest[0].tokens, rel=0.02)
    assert wild[2] == []


ABSURD = {
    "twice": lambda sizes: 500_000 if len(sizes) in {5, 6} else sizes[-1],
    "from the first on": lambda sizes: 500_000,
    "more each time": lambda sizes: 200_000 + 100 * sizes[-1],
}


@pytest.mark.parametrize("policy", ["holdfast", "opencode", "claude-code", "pi"])
@pytest.mark.parametrize("tell", ABSURD.values(), ids=ABSURD)
def test_what_no_window_holds_was_never_counted(tell, policy):
    """The request was taken, so its window held it: however often such a count is told, nothing is left out for it."""
    said = words(*[250] * 15)
    absurd, honest = counted(tell, said, policy=policy), counted(lambda sizes: sizes[-1], said)
    assert (absurd[1].messages, absurd[0].window) == (29, 200_000)
    assert absurd[0].tokens == pytest.approx(honest[0].tokens, rel=0.2)
    assert absurd[2] == ["usage"]


def test_a_count_that_is_told_twice_is_believed():
    """What nobody told may be in every request from some point on: the second count of it is the size."""
    report, upstream, _ = counted(lambda sizes: sizes[-1] + 90_000 * (len(sizes) > 5), words(*[300] * 9))
    assert report.tokens == pytest.approx(upstream.sizes[-1] + 90_000, rel=0.02)


@pytest.mark.parametrize("text", ["The tide " * 2_000, ""], ids=["words", "nothing"])
@pytest.mark.parametrize("stream", [True, False])
def test_what_was_said_before_the_window_ended_is_the_answer(text, stream):
    """An answer that the window cut stays, streamed or not; one that says nothing at all is an overflow."""
    blocks = [{"type": "text", "text": text}] if text else []
    usage = {"input_tokens": 30_000, "output_tokens": 2_000}
    told = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    cut = json.dumps(told | {"stop_reason": "model_context_window_exceeded", "usage": usage}).encode()
    upstream = ScriptedUpstream([cut] * 9)

    async def go():
        where = get_target("anthropic", "claude-opus-4-6", window=32_000)
        async with Engine.open(MemoryStore(), upstream=upstream, target=where, fields={"max_tokens": 4_000}) as engine:
            session = await engine.session(SAMPLE_KEY)
            body = {"model": "claude-opus-4-6", "max_tokens": 4_000, "stream": stream, "messages": []}
            asked = body | {"messages": [{"role": "user", "content": "How high?"}]}
            async with session.run(asked) as going:
                async for _ in going:
                    pass
            return going.answer.message.text, [one.text for one in session.journal.state.history.messages]

    if text:
        said, log = run_on_fake_clock(go)
        assert said == text
        assert log[1] == text
        assert len(upstream.sent) == 1
        return
    with pytest.raises(ContextOverflow):
        run_on_fake_clock(go)
