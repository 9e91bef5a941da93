"""Silence: an answer without a word, of a server that did not read its request, or of a model with nothing to say."""

from __future__ import annotations

import json

import pytest
from sample_entries import SAMPLE_KEY
from simulated_gateways import Full, Silent, Uncached

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
"""What is believed of the model."""


def notes(count):
    """Return so many things to say, each of some 2,000 tokens."""
    return [f"Note {number}: " + "kelp on the rock, and the tide comes in. " * 200 for number in range(count)]


def opened(upstream, api="openai-chat", window=WINDOW, policy=None, listen=None):
    """Return an engine that believes in a window of ``window`` tokens."""
    goal = get_target(api, "house-model", window=window)
    return Engine.open(MemoryStore(), upstream=upstream, target=goal, policy=policy or Policy(), listen=listen)


def said(upstream, words, *, api="openai-chat", stream=True, policy=None, as_it_is=False):
    """Return what each of ``words`` was answered, what happened, and what the session knows then."""
    heard, answers = [], []

    async def go():
        async with opened(upstream, api, policy=policy, listen=heard.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for one in words:
                async with session.run(one, stream=stream, as_it_is=as_it_is) as going:
                    passed = [event.raw async for event in going]
                answers.append((going.answer.message.text, b"".join(passed)))
            return session.report()

    report = run_on_fake_clock(go)
    return answers, heard, report


def rules(heard, kind=events.NoticeGiven):
    """Return the rules of what was noticed, or the kinds of what was refused."""
    return [event.rule if kind is events.NoticeGiven else event.kind for event in heard if isinstance(event, kind)]


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_nothing_said_to_what_was_not_read_is_an_overflow(api, stream, read):
    """Who counted until now, and says nothing and counts nothing, was sent too much: less is asked, and then known."""
    gateway = Silent(Provider(ProviderSettings(window=16_000)), read)
    answers, heard, report = said(ProviderUpstream(gateway), notes(14), api=api, stream=stream)
    assert all(text and passed for text, passed in answers)
    assert gateway.silent == 1
    assert rules(heard, events.RequestRefused) == ["silent_overflow"]
    assert report.window_source == "learned"
    assert rules(heard) == []


@pytest.mark.parametrize("made", [0, 1])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_had_no_room_is_asked_for_with_less(api, stream, made):
    """Ended by a limit before a word, far short of what was asked for: the window is full, a smaller one than known."""
    server = Full(Provider(ProviderSettings(window=16_000)), made)
    answers, heard, report = said(ProviderUpstream(server), notes(14), api=api, stream=stream)
    assert all(text and passed for text, passed in answers)
    assert server.full == 1
    assert rules(heard, events.RequestRefused) == ["silent_overflow"]
    assert report.window_source == "learned"
    assert rules(heard) == []


@pytest.mark.parametrize("api", APIS)
def test_a_window_that_is_known_may_be_full_too(api):
    """Where a text has more tokens than it was estimated at; its count is the measure of the next request."""
    server = Full(Provider(ProviderSettings(window=WINDOW, factor=2.0)))
    talk = [Message.from_text(("user", "assistant")[at % 2], words) for at, words in enumerate(notes(31))]

    async def go():
        async with opened(ProviderUpstream(server), api) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk)
            return (await session.ask()).message.text, session.report()

    text, report = run_on_fake_clock(go)
    assert (bool(text), server.full, report.window) == (True, 1, WINDOW)


def test_a_server_whose_window_is_always_full_is_believed():
    """It is asked for less once for each answer, never in a loop; what that is answered is passed on, and told once."""
    replies, talk = [spoken("yes", 1_900), spoken("yes", 3_800), *[spoken("", 5_000, finish="length")] * 19], notes(10)
    upstream = ScriptedUpstream([*replies])
    answers, heard, report = said(upstream, talk, stream=False)
    assert [passed for _, passed in answers] == replies[:10]
    assert len(upstream.sent) <= 2 * len(talk)
    assert (report.window, rules(heard)) == (WINDOW, ["silence"])


def test_who_asks_for_a_word_or_two_is_answered():
    """An answer that ends at the limit that its request asked for is whole, however little was asked for."""
    replies = [spoken("yes", 1_900), spoken("", 3_800, finish="length")]
    bodies = [body | {"max_tokens": 1} for body in whole(notes(2))]
    answers, heard, _ = said(ScriptedUpstream([*replies]), bodies, stream=False)
    assert [passed for _, passed in answers] == replies
    assert rules(heard) == rules(heard, events.RequestRefused) == []


def test_a_large_first_request_is_asked_smaller():
    """Of a server that counted nothing yet only the size tells something, and nothing is learned by that."""
    gateway = Silent(Provider(ProviderSettings(window=16_000)), 0)
    talk = [Message.from_text(("user", "assistant")[at % 2], words) for at, words in enumerate(notes(11))]

    async def go():
        async with opened(ProviderUpstream(gateway), window=48_000) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk)
            return (await session.ask()).message.text, session.report().window

    text, window = run_on_fake_clock(go)
    assert (bool(text), gateway.silent, window) == (True, 1, 48_000)


@pytest.mark.parametrize("gateway", [Uncached, None], ids=["what is new", "all"])
@pytest.mark.parametrize("api", APIS)
def test_a_model_that_has_nothing_to_say_has_answered(api, gateway):
    """All was counted as ever, or what no cache held: nothing is left out for that, and nobody is asked again."""
    provider = Provider(
        ProviderSettings(window=WINDOW), [ScriptedAnswer("", (("bash", {"command": "make"}),)), ScriptedAnswer("")] * 6
    )
    upstream, heard = ProviderUpstream(gateway(provider) if gateway else provider), []

    async def go():
        async with opened(upstream, api, listen=heard.append) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in notes(6):
                calls = (await session.ask(words)).message.calls
                results = [ToolResult(call.id, call.name, (Text("done " * 40),)) for call in calls]
                await session.append(Message("tool", tuple(results)))
                assert not (await session.ask()).message.text

    run_on_fake_clock(go)
    assert len(upstream.sent) == 12
    assert [
        event for event in heard if isinstance(event, events.RequestRefused | events.NoticeGiven | events.EditsDecided)
    ] == []


@pytest.mark.parametrize("read", [0, 1, 100])
def test_a_server_that_never_counts_is_believed(read):
    """It may have nothing to say to what is far from its window: that is its answer, as it came, and all is shown."""
    upstream = ScriptedUpstream([spoken("" if step % 2 else "yes", read) for step in range(12)])
    answers, heard, report = said(upstream, notes(12), stream=False)
    assert [bool(text) for text, _ in answers] == [step % 2 == 0 for step in range(12)]
    assert report.window == WINDOW
    assert all(one.encode() in upstream.sent[-1].body for one in notes(12))
    assert rules(heard, events.RequestRefused) == rules(heard) == []


def spoken(words, read, *, finish="stop", told=True):
    """Return an answer of Chat Completions with a count of ``read`` tokens, where it is ``told``."""
    message = {"role": "assistant", "content": words}
    usage = {"usage": {"prompt_tokens": read, "completion_tokens": 1}} if told else {}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return json.dumps({"id": "x", "choices": [choice], **usage}).encode()


NEVER = [
    {"policy": Policy().with_settings(recovery={"enabled": False})},
    {"policy": Policy().with_settings(recovery={"steps": ()})},
    {"as_it_is": True},
]


def whole(words):
    """Return a body for each of ``words``, with all that was said before it."""
    talk = []
    for one in words:
        talk += [{"role": "user", "content": one}]
        yield {"model": "house-model", "messages": [*talk]}
        talk += [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize("given", NEVER, ids=["recovery is off", "no overflow step", "as it is"])
@pytest.mark.parametrize("told", [True, False], ids=["counted", "no count"])
def test_where_nothing_is_made_smaller_silence_is_passed_on(told, given):
    """Each answer is what came, byte for byte, and it is said once what that may mean."""
    replies = [spoken("yes", 1_900), spoken("yes", 3_800), *[spoken("", 1, told=told)] * 3]
    answers, heard, _ = said(ScriptedUpstream([*replies]), whole(notes(5)), stream=False, **given)
    assert [passed for _, passed in answers] == replies
    assert rules(heard) == ["silence"]


def test_silence_that_asking_for_less_does_not_end_is_passed_on():
    """It is asked once more, and said once; nothing is learned, and each answer after it is what came."""
    replies, talk = [spoken("yes", 1_900), spoken("yes", 3_800), *[spoken("", 1)] * 9], notes(10)
    upstream = ScriptedUpstream([*replies])
    answers, heard, report = said(upstream, talk, stream=False)
    assert [passed for _, passed in answers] == replies[:10]
    assert len(upstream.sent) == 11
    assert len(upstream.sent[3].body) < len(upstream.sent[2].body)
    assert (report.window, rules(heard)) == (WINDOW, ["silence"])
    assert all(one.encode() in upstream.sent[-1].body for one in talk[2:])


@pytest.mark.parametrize("words", ["", "yes"])
def test_where_nothing_smaller_can_be_asked_the_same_is_asked_once_more(words):
    """What comes then is the answer, whether it says anything or not; and no run ends by an error for silence."""
    replies = [spoken("yes", 1_900), spoken("yes", 3_800), spoken("", 1), spoken(words, 1)]
    upstream = ScriptedUpstream([*replies])
    policy = Policy().with_settings(
        recovery={"steps": ("media",)},
        compaction={"enabled": False, "goal_share": 0.0},
        results=dict.fromkeys(("spill_chars", "message_chars", "spill_share", "message_share"), 0),
    )
    answers, heard, report = said(upstream, notes(3), stream=False, policy=policy)
    assert [passed for _, passed in answers] == [*replies[:2], replies[3]]
    assert upstream.sent[2].body == upstream.sent[3].body
    assert report.window == WINDOW
    assert rules(heard) == ([] if words else ["silence"])


def test_few_words_are_not_too_many():
    """A server that says nothing to them has another reason: that is its answer."""
    replies = [spoken("yes", 20), spoken("", 0)]
    answers, heard, _ = said(ScriptedUpstream([*replies]), ["Hello.", "Are you there?"], stream=False)
    assert [passed for _, passed in answers] == replies
    assert rules(heard) == rules(heard, events.RequestRefused) == []


SAYING = {
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


@pytest.mark.parametrize("told", SAYING.values(), ids=SAYING)
def test_who_says_anything_is_not_silent(told):
    """Nor is who was stopped before a word."""
    assert not is_empty_answer(told)
    assert is_empty_answer(ParsedAnswer(stop_reason="end"))
    assert is_empty_answer(ParsedAnswer(Message.from_text("assistant", " \n"), stop_reason="end"))


ROOM = {
    "a word": ParsedAnswer(Message.from_text("assistant", "k"), stop_reason="length", usage=Usage(9_000, 1)),
    "a thought": ParsedAnswer(Message("assistant", (Thinking("hm"),)), stop_reason="length", usage=Usage(9_000, 1)),
    "hidden reasoning": ParsedAnswer(stop_reason="length", usage=Usage(9_000, 500, reasoning=500)),
    "no count": ParsedAnswer(stop_reason="length"),
    "an end": ParsedAnswer(stop_reason="end", usage=Usage(9_000, 1)),
    "a break": ParsedAnswer(stop_reason="length", usage=Usage(9_000, 1), is_complete=False),
}


@pytest.mark.parametrize("told", ROOM.values(), ids=ROOM)
def test_who_had_room_or_does_not_tell_was_not_cut_short(told):
    """Only who counted next to nothing made, short of what was asked for, had no room."""
    assert not is_cut_short(told, None)
    cut = ParsedAnswer(stop_reason="length", usage=Usage(9_000, 1))
    assert [is_cut_short(cut, most) for most in (None, 900, 1)] == [True, True, False]
