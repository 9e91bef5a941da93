"""Servers that deviate from their API: odd answers end no session, and odd token counts teach no wrong window."""

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
from holdfast.planning.pipeline import Policy
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream


def build_chat_answer(*calls):
    """Return an answer of Chat Completions with these calls."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return json.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]})


def build_responses_answer(*items):
    """Return an answer of Responses with these items."""
    return json.dumps({"id": "r", "object": "response", "status": "completed", "model": "m", "output": items})


def build_messages_answer(*blocks):
    """Return an answer of Messages with these blocks."""
    fields = {"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": blocks}
    return json.dumps({"id": "m", "model": "m", **fields, "usage": {"input_tokens": 10, "output_tokens": 5}})


def build_gemini_answer(*parts):
    """Return an answer of Gemini with these parts."""
    return json.dumps({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]})


BASH = {"name": "bash", "arguments": "{}"}
CALL_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "arguments": "{}"}
MESSAGE_ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hi"}],
}
ODD_ANSWERS = [
    ("openai-chat", build_chat_answer({"id": "c1", "type": "", "function": BASH})),
    ("openai-chat", build_chat_answer({"id": "c1", "type": None, "function": BASH})),
    ("openai-chat", build_chat_answer({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {}}})),
    (
        "openai-chat",
        build_chat_answer({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": None}}),
    ),
    (
        "openai-responses",
        build_responses_answer({"type": "reasoning", "id": "rs_1", "encrypted_content": "abc"}, MESSAGE_ITEM),
    ),
    ("openai-responses", build_responses_answer({**MESSAGE_ITEM, "id": ""}, {**CALL_ITEM, "id": ""})),
    ("openai-responses", build_responses_answer({**MESSAGE_ITEM, "id": "msg:1/2"}, {**CALL_ITEM, "id": "call:1/2"})),
    ("anthropic", build_messages_answer({"type": "tool_use", "id": "t1", "name": "bash"})),
    ("anthropic", build_messages_answer({"type": "tool_use", "id": "bash:0", "name": "bash", "input": {}})),
    ("gemini", build_gemini_answer({"text": "x"}, {})),
]


def summarize_message(message):
    """Return role, text, calls and results of a message, without cache breakpoints."""
    return message.role, message.text, [(call.id, call.name, call.arguments) for call in message.calls], message.results


@pytest.mark.parametrize(
    ("api", "answer"), ODD_ANSWERS, ids=[f"{number}-{api}" for number, (api, _) in enumerate(ODD_ANSWERS)]
)
def test_session_continues_behind_an_odd_answer(api, answer):
    """Later requests are valid, and an odd part is fixed in the same way each time, with one notice."""
    upstream, seen_events = ScriptedUpstream([answer.encode(), "Well.", "Well."]), []

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api=api, model=STRICTEST_MODELS[api], listen=seen_events.append
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            async with session.run("Go.", stream=False) as run:
                async for _ in run:
                    pass
            calls = session.journal.state.history.messages[-1].calls
            results = [ToolResult(call.id, call.name, (Text("done"),)) for call in calls]
            await session.append(*[Message("tool", tuple(results))] if results else [])
            await session.ask("And now?")
            await session.ask("And then?")

    run_on_fake_clock(run_scenario)
    bodies = [sent.body for sent in upstream.sent[1:]]
    assert [
        problem
        for body in bodies
        for problem in validate_request(body, api, model=STRICTEST_MODELS[api])
        if problem.level == "error"
    ] == []
    notice_rules = [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)]
    assert len(notice_rules) == len(set(notice_rules))
    first, second = [[summarize_message(slot.message) for slot in parse_request(body, api).messages] for body in bodies]
    assert second[: len(first)] == first


OUTPUT_FIELDS = {
    "anthropic": {"max_tokens": 9_000},
    "openai-chat": {"max_tokens": 9_000},
    "openai-responses": {"max_output_tokens": 9_000},
    "gemini": {"generationConfig": {"maxOutputTokens": 9_000}},
}


@pytest.mark.parametrize(("api", "fields"), OUTPUT_FIELDS.items(), ids=OUTPUT_FIELDS)
def test_output_limit_refusal_raises_and_records_no_answer_without_recovery(api, fields):
    """Where requests may not change, the error says what can be done, and the log has no answer."""
    upstream, seen_events, store = ProviderUpstream(Provider(ProviderSettings(max_output=4_096))), [], MemoryStore()
    policy = Policy().with_settings(recovery={"enabled": False})

    async def run_scenario():
        target = get_target(api, "house-model", window=64_000)
        async with Engine.open(
            store, policy=policy, upstream=upstream, target=target, fields=fields, listen=seen_events.append
        ) as engine:
            with pytest.raises(UpstreamError, match="ask for less output") as raised:
                await (await engine.session(SAMPLE_KEY)).ask("Why is the build slow?")
            return raised.value.kind

    assert run_on_fake_clock(run_scenario) == "output_limit"
    assert [event.kind for event in seen_events if isinstance(event, events.RequestRefused)] == ["output_limit"]
    assert [entry for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, AnswerEntry)] == []
    assert len(upstream.sent) == 1


@pytest.mark.parametrize(("api", "fields"), OUTPUT_FIELDS.items(), ids=OUTPUT_FIELDS)
def test_output_limit_refusal_is_answered_with_the_cap_it_names(api, fields):
    """The cap in the refusal is asked for once, and from then on at once."""
    upstream, seen_events = ProviderUpstream(Provider(ProviderSettings(max_output=4_096))), []

    async def run_scenario():
        target = get_target(api, "house-model", window=64_000)
        async with Engine.open(
            MemoryStore(), upstream=upstream, target=target, fields=fields, listen=seen_events.append
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.ask("Why is the build slow?")
            await session.ask("And now?")

    run_on_fake_clock(run_scenario)
    assert [b"9000" in sent.body for sent in upstream.sent] == [True, False, False]
    assert [b"4096" in sent.body for sent in upstream.sent] == [False, True, True]
    assert [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)] == ["field"]


class CountingServer:
    """A server that counts four bytes of a body as a token, and reports the counts in its own way."""

    def __init__(self, count_tokens, *, reasoning=""):
        self.count_tokens = count_tokens
        self.reasoning = reasoning
        """The reasoning before each answer."""
        self.max_messages_with_reasoning = 16
        """Number of messages up to which a prompt is counted with its reasoning."""
        self.sizes = []
        """Tokens of each prompt."""
        self.message_count = 0
        """Number of messages in the newest request."""

    @asynccontextmanager
    async def send(self, request):
        """Return an answer with the reported count of its prompt."""
        messages = json.loads(request.body)["messages"]
        self.message_count = len(messages)
        without_reasoning = [
            {name: value for name, value in message.items() if name != "reasoning_content"} for message in messages
        ]
        self.sizes.append(
            len(json.dumps(without_reasoning if len(messages) > self.max_messages_with_reasoning else messages)) // 4
        )
        usage = {"prompt_tokens": self.count_tokens(self.sizes), "completion_tokens": 5}
        reasoning_field = {"reasoning_content": self.reasoning} if self.reasoning else {}
        answer = {"role": "assistant", "content": "fine", **reasoning_field}
        choice = {"index": 0, "finish_reason": "stop", "message": answer}

        async def chunks():
            yield json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()

        yield Reply(200, {"content-type": "application/json"}, chunks())


def ask_counting_server(count_tokens, inputs, *, reasoning="", hooks=Hooks(), policy="holdfast", fields=None):
    """Ask each input; return the session's report, the server, and the rules of the notices."""
    upstream, seen_events = CountingServer(count_tokens, reasoning=reasoning), []

    async def run_scenario():
        target = get_target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=target,
            listen=seen_events.append,
            hooks=hooks,
            policy=policy,
            fields=fields or {},
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for item in inputs:
                await session.ask(item)
            return session.report()

    report = run_on_fake_clock(run_scenario)
    return report, upstream, [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)]


def build_inputs(*line_counts):
    """Return a text for each of ``line_counts``, with that many lines."""
    return [
        f"step {number}: {'lorem ipsum dolor sit amet ' * line_count}" for number, line_count in enumerate(line_counts)
    ]


UNCACHED_LINE_COUNTS = [
    (10, 2_500, 250, 250, 250),
    (2_500, 250, 250, 250, 250),
    (300, 250, 250, 250, 250),
    (500, 250, 250, 250, 250),
    (230, 240, 250, 260, 270),
]


@pytest.mark.parametrize("line_counts", UNCACHED_LINE_COUNTS)
def test_count_of_uncached_tokens_teaches_no_window(line_counts):
    """The conversation grew, so its prompt cannot have shrunk: nothing is learned and nothing left out."""
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: sizes[-1] - sum(sizes[-2:-1]), build_inputs(*line_counts)
    )
    assert report.window == 200_000
    assert report.tokens > 0.8 * upstream.sizes[-1]
    assert upstream.message_count == 9
    assert notice_rules == []


def test_count_without_a_cached_setup_teaches_no_window():
    """The first request is counted in full and later ones by their new tokens, so nothing is missing."""
    tool = {"type": "function", "function": {"name": "ls", "description": "lorem ipsum dolor sit amet " * 1_500}}
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: sizes[-1] - sum(sizes[-2:-1]), build_inputs(*[250] * 14), fields={"tools": [tool]}
    )
    assert report.window == 200_000
    assert upstream.message_count == 27
    assert notice_rules == []


def test_full_count_after_a_lost_cache_teaches_no_window():
    """After a lost cache the whole text is counted, at half the tokens per character of the first."""
    inputs = [*build_inputs(100, 100), *[f"{number} 1 2 3 lorem ipsum dolor " * 150 for number in range(12)]]

    def count_tokens(sizes):
        first, cached = sizes[:2][-1], sizes[-2] if 2 < len(sizes) < len(inputs) else 0
        return sizes[-1] + first - cached

    report, _, notice_rules = ask_counting_server(count_tokens, inputs)
    assert report.window == 200_000
    assert notice_rules == []


def test_truncated_first_prompt_teaches_the_window_at_once():
    """No text has so few tokens, so a first count far below the size shows the window."""
    report, upstream, notice_rules = ask_counting_server(lambda sizes: min(sizes[-1], 8_192), build_inputs(6_000))
    assert upstream.sizes[-1] > 4 * 8_192
    assert (report.window, notice_rules.count("silent-truncation")) == (8_192, 1)


def test_silent_truncation_teaches_the_window():
    """It is reported once, before twice the window was sent, and later requests fit."""
    window = 16_000
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: min(sizes[-1], window), build_inputs(*[500] * 14)
    )
    assert report.window == window
    assert notice_rules.count("silent-truncation") == 1
    assert window < max(upstream.sizes) < 1.8 * window
    assert max(upstream.sizes[-3:]) <= window


def ask_two_models_in_turn(count_tokens, inputs, reasoning=""):
    """Ask two models in turn; return the report, the server, and the rules of the notices.

    The second model answers short inputs with ``reasoning``.
    """
    upstream, seen_events, conversation = CountingServer(count_tokens), [], []
    upstream.max_messages_with_reasoning = 0

    async def run_scenario():
        target = get_target("openai-chat", "qwen3:8b", window=200_000)
        async with Engine.open(MemoryStore(), upstream=upstream, target=target, listen=seen_events.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for at, text in enumerate(inputs):
                upstream.reasoning = reasoning if at % 2 and len(text) < 5_000 else ""
                conversation.append({"role": "user", "content": text})
                body = {"model": ("qwen3:8b", "big")[at % 2], "messages": [*conversation]}
                async with session.run(body, stream=False) as run:
                    async for _ in run:
                        pass
                reasoning_field = {"reasoning_content": upstream.reasoning} if upstream.reasoning else {}
                conversation.append({"role": "assistant", "content": run.answer.message.text, **reasoning_field})
            return session.report()

    report = run_on_fake_clock(run_scenario)
    return report, upstream, [event.rule for event in seen_events if isinstance(event, events.NoticeGiven)]


def test_silent_truncation_is_learned_from_the_counts_of_the_same_model():
    """A second model answers in between and reads everything; requests to the truncating one fit from then on."""
    window = 16_000
    report, upstream, notice_rules = ask_two_models_in_turn(
        lambda sizes: min(sizes[-1], window) if len(sizes) % 2 else sizes[-1], build_inputs(*[500] * 22)
    )
    assert (report.window, notice_rules.count("silent-truncation")) == (window, 1)
    assert max(upstream.sizes[-4::2]) <= window


@pytest.mark.parametrize("reasoning", ["", "lorem ipsum dolor sit amet " * 1_700], ids=["plain", "reasoning"])
def test_uncounted_reasoning_of_another_model_teaches_no_window(reasoning):
    """A model is not sent the other model's reasoning, so its smaller count is right."""
    report, _, notice_rules = ask_two_models_in_turn(
        lambda sizes: sizes[-1], build_inputs(*[500] * 8, *[50] * 40), reasoning
    )
    assert report.window == 200_000
    assert notice_rules == []


def test_silent_truncation_is_reported_once():
    """A policy that removes nothing is truncated at every later request, without another notice."""
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: min(sizes[-1], 16_000), build_inputs(*[100] * 60), policy="append-only"
    )
    assert report.window == 16_000
    assert upstream.sizes[-1] > 40_000
    assert notice_rules.count("silent-truncation") == 1


def test_truncation_between_messages_teaches_the_largest_count():
    """The counts differ from request to request, and the largest of them is the window."""
    window = 16_000

    def count_tokens(sizes):
        return sizes[-1] if sizes[-1] < window else window - 97 * len(sizes) % 1_500

    report, upstream, notice_rules = ask_counting_server(count_tokens, build_inputs(*[500] * 14))
    assert 0.9 * window <= report.window <= window
    assert notice_rules.count("silent-truncation") == 1
    assert max(upstream.sizes) < 2 * window


HONEST_COUNTS = {
    "whole": lambda sizes: sizes[-1],
    "in blocks of 128": lambda sizes: -(-sizes[-1] // 128) * 128,
    "in blocks of 1,024": lambda sizes: -(-sizes[-1] // 1_024) * 1_024,
    "what was not cached": lambda sizes: sizes[-1] - sum(sizes[-2:-1]),
    "always the same": lambda sizes: 5_000,
}


@pytest.mark.parametrize("lines", [30, 250])
@pytest.mark.parametrize("count_tokens", HONEST_COUNTS.values(), ids=HONEST_COUNTS)
def test_honest_counts_teach_no_window(count_tokens, lines):
    """For messages of equal size no way of counting looks like a truncation."""
    report, upstream, notice_rules = ask_counting_server(count_tokens, build_inputs(*[lines] * 14))
    assert report.window == 200_000
    assert upstream.message_count == 27
    assert notice_rules == []


def test_reasoning_that_a_provider_drops_teaches_no_window():
    """Reasoning is counted at first and not later, so some counts are smaller than the ones before."""
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: sizes[-1], build_inputs(*[150] * 17), reasoning="lorem ipsum dolor sit amet " * 145
    )
    assert report.window == 200_000
    assert upstream.message_count == 33
    assert notice_rules == []


def test_requests_shortened_by_a_hook_teach_no_window():
    """The server did not cut what the hook left out."""
    hooks = Hooks(transform_messages=lambda messages: messages[-2:])
    report, upstream, notice_rules = ask_counting_server(
        lambda sizes: sizes[-1], build_inputs(*[500] * 12), hooks=hooks
    )
    assert report.window == 200_000
    assert upstream.message_count == 2
    assert notice_rules == []


def test_small_images_teach_no_window():
    """An image is estimated far above a small one's tokens, which is no truncation."""
    icon = (Media("image", "image/png", 70, source="AAAA"),)
    inputs = [Message("user", (*icon * 3, Text("What are these?"))), *build_inputs(*[200] * 6)]
    report, upstream, notice_rules = ask_counting_server(lambda sizes: sizes[-1] + 255, inputs)
    assert report.window == 200_000
    assert upstream.message_count == 13
    assert notice_rules == []


@pytest.mark.parametrize("reported_count", [0, 1, 100])
def test_constant_counts_teach_no_window(reported_count):
    """Some servers report the same small number for every prompt; the estimate stays, and nothing is left out."""
    report, upstream, notice_rules = ask_counting_server(lambda sizes: reported_count, build_inputs(*[250] * 10))
    assert report.window == 200_000
    assert report.tokens > 0.8 * upstream.sizes[-1]
    assert upstream.message_count == 19
    assert notice_rules == []


@pytest.mark.parametrize("request_number", [1, 2, 14])
@pytest.mark.parametrize("factor", [100, 7, 0.01, 0])
def test_single_wild_count_changes_nothing(factor, request_number):
    """Nothing is dropped after it, the window stays, and the next estimate is as without it."""
    inputs = build_inputs(*[1_000] * 15)
    wild = ask_counting_server(lambda sizes: round(sizes[-1] * (factor if len(sizes) == request_number else 1)), inputs)
    honest = ask_counting_server(lambda sizes: sizes[-1], inputs)
    assert [server.message_count for _, server, _ in (wild, honest)] == [29, 29]
    assert wild[0].window == honest[0].window
    assert wild[0].tokens == pytest.approx(honest[0].tokens, rel=0.02)
    assert wild[2] == []


ABSURD_COUNTS = {
    "twice": lambda sizes: 500_000 if len(sizes) in {5, 6} else sizes[-1],
    "from the first on": lambda sizes: 500_000,
    "more each time": lambda sizes: 200_000 + 100 * sizes[-1],
}


@pytest.mark.parametrize("policy", ["holdfast", "opencode", "claude-code", "pi"])
@pytest.mark.parametrize("count_tokens", ABSURD_COUNTS.values(), ids=ABSURD_COUNTS)
def test_counts_above_the_window_are_ignored(count_tokens, policy):
    """The request was accepted, so it fit: however often such a count is reported, nothing is left out."""
    inputs = build_inputs(*[250] * 15)
    absurd, honest = (
        ask_counting_server(count_tokens, inputs, policy=policy),
        ask_counting_server(lambda sizes: sizes[-1], inputs),
    )
    assert (absurd[1].message_count, absurd[0].window) == (29, 200_000)
    assert absurd[0].tokens == pytest.approx(honest[0].tokens, rel=0.2)
    assert absurd[2] == ["usage"]


def test_repeated_count_is_believed():
    """A proxy may add text to every request from some point on: the second such count is the size."""
    report, upstream, _ = ask_counting_server(
        lambda sizes: sizes[-1] + 90_000 * (len(sizes) > 5), build_inputs(*[300] * 9)
    )
    assert report.tokens == pytest.approx(upstream.sizes[-1] + 90_000, rel=0.02)


@pytest.mark.parametrize("text", ["The tide " * 2_000, ""], ids=["words", "nothing"])
@pytest.mark.parametrize("stream", [True, False])
def test_answer_cut_by_the_window_is_kept_and_an_empty_one_is_an_overflow(text, stream):
    """The text before the cut is the answer, streamed or not; without any text the request overflowed."""
    blocks = [{"type": "text", "text": text}] if text else []
    usage = {"input_tokens": 30_000, "output_tokens": 2_000}
    notice_rules = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    cut = json.dumps(notice_rules | {"stop_reason": "model_context_window_exceeded", "usage": usage}).encode()
    upstream = ScriptedUpstream([cut] * 9)

    async def run_scenario():
        target = get_target("anthropic", "claude-opus-4-6", window=32_000)
        async with Engine.open(MemoryStore(), upstream=upstream, target=target, fields={"max_tokens": 4_000}) as engine:
            session = await engine.session(SAMPLE_KEY)
            body = {"model": "claude-opus-4-6", "max_tokens": 4_000, "stream": stream, "messages": []}
            full_body = body | {"messages": [{"role": "user", "content": "How high?"}]}
            async with session.run(full_body) as run:
                async for _ in run:
                    pass
            return run.answer.message.text, [message.text for message in session.journal.state.history.messages]

    if text:
        answer_text, log = run_on_fake_clock(run_scenario)
        assert answer_text == text
        assert log[1] == text
        assert len(upstream.sent) == 1
        return
    with pytest.raises(ContextOverflow):
        run_on_fake_clock(run_scenario)
