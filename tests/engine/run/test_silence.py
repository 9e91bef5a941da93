"""Empty answers: of a server that did not read its request, or of a model that has nothing to say."""

from __future__ import annotations

import json

import pytest
from sample_entries import SAMPLE_KEY
from simulated_gateways import EmptyAnswerGateway, FullWindowServer, UncachedCountGateway

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.run.silence import is_cut_short, is_empty_answer
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Text, Thinking, ToolCall, ToolResult
from holdfast.planning.pipeline import Policy
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.state.entries import Usage
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream

APIS = ["anthropic", "openai-chat", "openai-responses", "gemini"]
WINDOW = 128_000
"""The window that the engine assumes for the model."""


def build_notes(count):
    """Return ``count`` user texts of about 2,000 tokens each."""
    return [f"Note {number}: " + "kelp on the rock, and the tide comes in. " * 200 for number in range(count)]


def open_engine(upstream, api="openai-chat", window=WINDOW, policy=None, listen=None):
    """Return an engine to be opened that assumes a window of ``window`` tokens."""
    target = get_target(api, "house-model", window=window)
    return Engine.open(MemoryStore(), upstream=upstream, target=target, policy=policy or Policy(), listen=listen)


def run_inputs(upstream, inputs, *, api="openai-chat", stream=True, policy=None, as_it_is=False):
    """Run each input; return the answers as text and bytes, the events, and the session's report."""
    seen_events, answers = [], []

    async def run_scenario():
        async with open_engine(upstream, api, policy=policy, listen=seen_events.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for item in inputs:
                async with session.run(item, stream=stream, as_it_is=as_it_is) as run:
                    raw_events = [event.raw async for event in run]
                answers.append((run.answer.message.text, b"".join(raw_events)))
            return session.report()

    report = run_on_fake_clock(run_scenario)
    return answers, seen_events, report


def list_rules(seen_events, kind=events.NoticeGiven):
    """Return the rules of the notices, or the kinds of the refusals."""
    return [
        event.rule if kind is events.NoticeGiven else event.kind for event in seen_events if isinstance(event, kind)
    ]


@pytest.mark.parametrize("input_tokens", [0, 1])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_empty_answer_without_a_count_is_a_silent_overflow(api, stream, input_tokens):
    """A server that counted before gets a smaller request after an empty answer, and its window is learned."""
    gateway = EmptyAnswerGateway(Provider(ProviderSettings(window=16_000)), input_tokens)
    answers, seen_events, report = run_inputs(ProviderUpstream(gateway), build_notes(14), api=api, stream=stream)
    assert all(text and raw for text, raw in answers)
    assert gateway.empty_count == 1
    assert list_rules(seen_events, events.RequestRefused) == ["silent_overflow"]
    assert report.window_source == "learned"
    assert list_rules(seen_events) == []


@pytest.mark.parametrize("output_tokens", [0, 1])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_answer_cut_at_its_start_is_a_silent_overflow(api, stream, output_tokens):
    """An answer that a limit ended before any text, far below its limit, shows a full window smaller than assumed."""
    server = FullWindowServer(Provider(ProviderSettings(window=16_000)), output_tokens)
    answers, seen_events, report = run_inputs(ProviderUpstream(server), build_notes(14), api=api, stream=stream)
    assert all(text and raw for text, raw in answers)
    assert server.full_count == 1
    assert list_rules(seen_events, events.RequestRefused) == ["silent_overflow"]
    assert report.window_source == "learned"
    assert list_rules(seen_events) == []


@pytest.mark.parametrize("api", APIS)
def test_answer_cut_at_its_start_in_a_known_window_is_asked_again(api):
    """A text with more tokens than estimated fills a known window; its count measures the next request."""
    server = FullWindowServer(Provider(ProviderSettings(window=WINDOW, factor=3.0)))
    messages = [Message.from_text(("user", "assistant")[at % 2], words) for at, words in enumerate(build_notes(22))]

    async def run_scenario():
        async with open_engine(ProviderUpstream(server), api) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*messages)
            return (await session.ask()).message.text, session.report()

    text, report = run_on_fake_clock(run_scenario)
    assert (bool(text), server.full_count, report.window) == (True, 1, WINDOW)


def test_answers_always_cut_at_their_start_are_passed_on():
    """One smaller request is tried for each answer, never in a loop, and one notice is given."""
    replies, texts = (
        [
            build_chat_answer("yes", 1_900),
            build_chat_answer("yes", 3_800),
            *[build_chat_answer("", 5_000, finish="length")] * 19,
        ],
        build_notes(10),
    )
    upstream = ScriptedUpstream([*replies])
    answers, seen_events, report = run_inputs(upstream, texts, stream=False)
    assert [raw for _, raw in answers] == replies[:10]
    assert len(upstream.sent) <= 2 * len(texts)
    assert (report.window, list_rules(seen_events)) == (WINDOW, ["silence"])


def test_answer_that_ends_at_its_requested_limit_is_complete():
    """An answer that ends at ``max_tokens`` is complete, however small that is."""
    replies = [build_chat_answer("yes", 1_900), build_chat_answer("", 3_800, finish="length")]
    bodies = [body | {"max_tokens": 1} for body in build_growing_bodies(build_notes(2))]
    answers, seen_events, _ = run_inputs(ScriptedUpstream([*replies]), bodies, stream=False)
    assert [raw for _, raw in answers] == replies
    assert list_rules(seen_events) == list_rules(seen_events, events.RequestRefused) == []


def test_empty_answer_to_a_large_first_request_is_asked_again_smaller():
    """Before the server has counted anything only the request's size counts, and no window is learned."""
    gateway = EmptyAnswerGateway(Provider(ProviderSettings(window=16_000)), 0)
    messages = [Message.from_text(("user", "assistant")[at % 2], words) for at, words in enumerate(build_notes(11))]

    async def run_scenario():
        async with open_engine(ProviderUpstream(gateway), window=48_000) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*messages)
            return (await session.ask()).message.text, session.report().window

    text, window = run_on_fake_clock(run_scenario)
    assert (bool(text), gateway.empty_count, window) == (True, 1, 48_000)


@pytest.mark.parametrize("gateway", [UncachedCountGateway, None], ids=["what is new", "all"])
@pytest.mark.parametrize("api", APIS)
def test_empty_answer_with_the_usual_count_is_an_answer(api, gateway):
    """The counts are those of before, in full or of new tokens only, so nothing is dropped and nothing asked again."""
    provider = Provider(
        ProviderSettings(window=WINDOW), [ScriptedAnswer("", (("bash", {"command": "make"}),)), ScriptedAnswer("")] * 6
    )
    upstream, seen_events = ProviderUpstream(gateway(provider) if gateway else provider), []

    async def run_scenario():
        async with open_engine(upstream, api, listen=seen_events.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in build_notes(6):
                calls = (await session.ask(words)).message.calls
                results = [ToolResult(call.id, call.name, (Text("done " * 40),)) for call in calls]
                await session.append(Message("tool", tuple(results)))
                assert not (await session.ask()).message.text

    run_on_fake_clock(run_scenario)
    assert len(upstream.sent) == 12
    assert [
        event
        for event in seen_events
        if isinstance(event, events.RequestRefused | events.NoticeGiven | events.EditsDecided)
    ] == []


@pytest.mark.parametrize("input_tokens", [0, 1, 100])
def test_empty_answer_of_a_server_that_never_counts_is_an_answer(input_tokens):
    """Far from the window an empty answer is passed on as it came, and no message is left out."""
    upstream = ScriptedUpstream([build_chat_answer("" if step % 2 else "yes", input_tokens) for step in range(12)])
    answers, seen_events, report = run_inputs(upstream, build_notes(12), stream=False)
    assert [bool(text) for text, _ in answers] == [step % 2 == 0 for step in range(12)]
    assert report.window == WINDOW
    assert all(text.encode() in upstream.sent[-1].body for text in build_notes(12))
    assert list_rules(seen_events, events.RequestRefused) == list_rules(seen_events) == []


def build_chat_answer(text, input_tokens, *, finish="stop", has_usage=True):
    """Return a Chat Completions answer, with usage of ``input_tokens`` unless ``has_usage`` is false."""
    message = {"role": "assistant", "content": text}
    usage = {"usage": {"prompt_tokens": input_tokens, "completion_tokens": 1}} if has_usage else {}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return json.dumps({"id": "x", "choices": [choice], **usage}).encode()


NO_RECOVERY = [
    {"policy": Policy().with_settings(recovery={"enabled": False})},
    {"policy": Policy().with_settings(recovery={"steps": ()})},
    {"as_it_is": True},
]


def build_growing_bodies(texts):
    """Yield a body for each text, with the whole conversation before it."""
    messages = []
    for text in texts:
        messages += [{"role": "user", "content": text}]
        yield {"model": "house-model", "messages": [*messages]}
        messages += [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize("options", NO_RECOVERY, ids=["recovery is off", "no overflow step", "as it is"])
@pytest.mark.parametrize("has_usage", [True, False], ids=["counted", "no count"])
def test_empty_answers_are_passed_on_without_recovery(has_usage, options):
    """Each answer is passed on byte for byte, and one notice says what it may mean."""
    replies = [
        build_chat_answer("yes", 1_900),
        build_chat_answer("yes", 3_800),
        *[build_chat_answer("", 1, has_usage=has_usage)] * 3,
    ]
    answers, seen_events, _ = run_inputs(
        ScriptedUpstream([*replies]), build_growing_bodies(build_notes(5)), stream=False, **options
    )
    assert [raw for _, raw in answers] == replies
    assert list_rules(seen_events) == ["silence"]


def test_empty_answers_that_persist_are_passed_on():
    """One smaller request is tried and one notice given; nothing is learned, and later answers pass unchanged."""
    replies, texts = (
        [build_chat_answer("yes", 1_900), build_chat_answer("yes", 3_800), *[build_chat_answer("", 1)] * 9],
        build_notes(10),
    )
    upstream = ScriptedUpstream([*replies])
    answers, seen_events, report = run_inputs(upstream, texts, stream=False)
    assert [raw for _, raw in answers] == replies[:10]
    assert len(upstream.sent) == 11
    assert len(upstream.sent[3].body) < len(upstream.sent[2].body)
    assert (report.window, list_rules(seen_events)) == (WINDOW, ["silence"])
    assert all(text.encode() in upstream.sent[-1].body for text in texts[2:])


@pytest.mark.parametrize("text", ["", "yes"])
def test_empty_answer_is_asked_again_unchanged_when_nothing_can_shrink(text):
    """The second answer is passed on, empty or not, and no run ends with an error because of an empty answer."""
    replies = [
        build_chat_answer("yes", 1_900),
        build_chat_answer("yes", 3_800),
        build_chat_answer("", 1),
        build_chat_answer(text, 1),
    ]
    upstream = ScriptedUpstream([*replies])
    policy = Policy().with_settings(
        recovery={"steps": ("media",)},
        compaction={"enabled": False, "goal_share": 0.0},
        results=dict.fromkeys(("spill_chars", "message_chars", "spill_share", "message_share"), 0),
    )
    answers, seen_events, report = run_inputs(upstream, build_notes(3), stream=False, policy=policy)
    assert [raw for _, raw in answers] == [*replies[:2], replies[3]]
    assert upstream.sent[2].body == upstream.sent[3].body
    assert report.window == WINDOW
    assert list_rules(seen_events) == ([] if text else ["silence"])


def test_empty_answer_to_a_short_request_is_an_answer():
    """A short request cannot have overflowed, so the empty answer has another reason."""
    replies = [build_chat_answer("yes", 20), build_chat_answer("", 0)]
    answers, seen_events, _ = run_inputs(ScriptedUpstream([*replies]), ["Hello.", "Are you there?"], stream=False)
    assert [raw for _, raw in answers] == replies
    assert list_rules(seen_events) == list_rules(seen_events, events.RequestRefused) == []


NONEMPTY_ANSWERS = {
    "a word": ParsedAnswer(Message.from_text("assistant", "k"), stop_reason="end"),
    "a thought": ParsedAnswer(Message("assistant", (Thinking("hm"),)), stop_reason="end"),
    "a call": ParsedAnswer(Message("assistant", (ToolCall("c", "ls", "{}"),)), stop_reason="tool"),
    "something else": ParsedAnswer(Message("assistant", (Opaque("search"),)), stop_reason="end"),
    "hidden reasoning": ParsedAnswer(stop_reason="end", usage=Usage(1, 500, reasoning=500)),
    "a limit": ParsedAnswer(stop_reason="length"),
    "a refusal": ParsedAnswer(stop_reason="refusal"),
    "a filter": ParsedAnswer(stop_reason="content_filter"),
    "a stop sequence": ParsedAnswer(stop_reason="stop_sequence"),
    "a break": ParsedAnswer(stop_reason="end", is_complete=False),
}


@pytest.mark.parametrize("answer", NONEMPTY_ANSWERS.values(), ids=NONEMPTY_ANSWERS)
def test_is_empty_answer_needs_an_ordinary_end_without_content(answer):
    """Any content, hidden reasoning or special stop reason makes an answer non-empty."""
    assert not is_empty_answer(answer)
    assert is_empty_answer(ParsedAnswer(stop_reason="end"))
    assert is_empty_answer(ParsedAnswer(Message.from_text("assistant", " \n"), stop_reason="end"))


UNCUT_ANSWERS = {
    "a word": ParsedAnswer(Message.from_text("assistant", "k"), stop_reason="length", usage=Usage(9_000, 1)),
    "a thought": ParsedAnswer(Message("assistant", (Thinking("hm"),)), stop_reason="length", usage=Usage(9_000, 1)),
    "hidden reasoning": ParsedAnswer(stop_reason="length", usage=Usage(9_000, 500, reasoning=500)),
    "no count": ParsedAnswer(stop_reason="length"),
    "an end": ParsedAnswer(stop_reason="end", usage=Usage(9_000, 1)),
    "a break": ParsedAnswer(stop_reason="length", usage=Usage(9_000, 1), is_complete=False),
}


@pytest.mark.parametrize("answer", UNCUT_ANSWERS.values(), ids=UNCUT_ANSWERS)
def test_is_cut_short_needs_a_count_of_almost_no_output(answer):
    """Only an answer with a count of next to nothing, far below the requested limit, had no room."""
    assert not is_cut_short(answer, None)
    cut = ParsedAnswer(stop_reason="length", usage=Usage(9_000, 1))
    assert [is_cut_short(cut, max_tokens) for max_tokens in (None, 900, 1)] == [True, True, False]
