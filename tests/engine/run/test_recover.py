"""Recovery, driven: less output where only that is too much, and an answer that is none is asked for again."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import ContextOverflow, UpstreamError
from holdfast.messages.message import Message
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedReply, ScriptedUpstream

WINDOW = 32_000
MODEL = "claude-sonnet-4-5"
TALK = [(role, "kelp on the rock " * 300) for role in ("user", "assistant")] * 5
NOTHING = {"type": "message", "role": "assistant", "content": [], "model": MODEL}


def too_much(read, output):
    """Return the refusal of a request that reads and asks for more than the window together."""
    why = f"input length and `max_tokens` exceed context limit: {read} + {output} > {WINDOW}, decrease either"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    return ScriptedReply((msgspec.json.encode(error),), 400)


def asked(replies, output, *, whole, thought=0, as_it_is=False, ends=nullcontext()):
    """Return what each request asked for as output, and what happened; ``whole`` sends a body instead of words.

    Where the model may think in ``thought`` tokens, the request says so. What was too large never goes out again as it
    was.
    """
    upstream, heard = ScriptedUpstream(replies), []
    said = [{"role": role, "content": text} for role, text in [*TALK, ("user", "And now?")]]
    fields = {"max_tokens": output, **({"thinking": {"type": "enabled", "budget_tokens": thought}} if thought else {})}
    body = {"model": MODEL, **fields, "messages": said}

    async def go():
        goal = get_target("anthropic", MODEL, window=WINDOW)
        opened = Engine.open(MemoryStore(), upstream=upstream, target=goal, fields=fields, listen=heard.append)
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            if not whole:
                await session.append(*[Message.from_text(role, text) for role, text in TALK])
            with ends:
                async with session.run(body if whole else "And now?", quiet=True, as_it_is=as_it_is) as going:
                    async for _ in going:
                        pass

    run_on_fake_clock(go)
    retried = any(isinstance(event, events.RetryScheduled) for event in heard)
    assert retried or len({sent.body for sent in upstream.sent}) == len(upstream.sent)
    return [msgspec.json.decode(sent.body)["max_tokens"] for sent in upstream.sent], heard


@pytest.mark.parametrize("whole", [False, True], ids=["words", "body"])
@pytest.mark.parametrize(
    ("output", "read", "then"),
    [(6_000, 27_000, 3_000), (6_000, 30_000, 2_000), (1_500, 30_900, 1_024)],
    ids=["half", "what is left", "no less than an answer needs"],
)
def test_less_output_is_asked_for_where_only_that_is_too_much(output, read, then, whole):
    """DESIGN 7: the next request is the same with less room for its answer; nothing is compacted for that."""
    wanted, heard = asked([too_much(read, output), "yes"], output, whole=whole)
    assert wanted == [output, pytest.approx(then, abs=150)]
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)] == ["output"]
    assert not [event for event in heard if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize(("output", "read"), [(1_024, 31_500), (6_000, 31_500)], ids=["it is least", "it is no help"])
def test_where_less_output_does_not_help_less_is_sent(output, read):
    """What was asked for is kept, and the conversation gives way."""
    wanted, heard = asked([too_much(read, output), "yes"], output, whole=False)
    assert wanted == [output, output]
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)] == ["output", "compact"]


@pytest.mark.parametrize("whole", [False, True], ids=["words", "body"])
@pytest.mark.parametrize(
    ("thought", "read", "then", "steps"),
    [
        (1_024, 27_000, 3_000, ["output"]),
        (4_000, 27_000, 4_001, ["output"]),
        (4_000, 29_000, 6_000, ["output", "compact"]),
        (5_999, 27_000, 6_000, ["output", "compact"]),
    ],
    ids=["room enough", "more than the half", "more than is left", "all of it"],
)
def test_an_answer_keeps_more_room_than_its_model_may_think_in(thought, read, then, steps, whole):
    """Where the output cannot be lowered for that, or not far enough, the conversation gives way at once."""
    wanted, heard = asked([too_much(read, 6_000), "yes"], 6_000, whole=whole, thought=thought)
    assert wanted == [6_000, then]
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)] == steps


def test_nothing_is_pressed_of_what_is_only_looked_at():
    """It may not change, so that its refusal is the end, and nobody is told that anything was tried."""
    ends = pytest.raises(ContextOverflow, match="tried: nothing")
    wanted, heard = asked([too_much(27_000, 6_000)], 6_000, whole=True, as_it_is=True, ends=ends)
    assert wanted == [6_000]
    assert [type(event).__name__ for event in heard] == ["RequestStarted", "RequestRefused"]


def test_the_last_word_tells_what_the_provider_counted():
    """Whether that is believed or not, as more tokens than there are bytes: nobody is told that there was no count."""
    counted = 9_000_000
    error = {"type": "invalid_request_error", "message": f"prompt is too long: {counted} tokens > {WINDOW} maximum"}
    refusal = ScriptedReply((msgspec.json.encode({"type": "error", "error": error}),), 400)
    ends = pytest.raises(
        ContextOverflow, match=f"it counted {counted:,} tokens and named a limit of {WINDOW:,}; .*tried: .*fallback"
    )
    _, heard = asked([refusal] * 9, 900, whole=False, ends=ends)
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)][-1] == "fallback"


def test_an_answer_that_says_nothing_not_even_why_is_asked_for_again():
    """An empty message without a reason is the server's fault, not the model's answer."""
    wanted, heard = asked([ScriptedReply((msgspec.json.encode(NOTHING),)), "yes"], 900, whole=False)
    assert wanted == [900, 900]
    (refused,) = [event for event in heard if isinstance(event, events.RequestRefused)]
    assert (refused.kind, "no finish reason" in refused.why) == ("server", True)


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("pieces", [(), (b"",), (b"  \r\n",), (b"{}",)])
def test_a_refusal_without_a_word_is_told_as_such(status, pieces):
    """The error says the status, the kind, that no reason came, and what to do: no sentence of it is empty."""
    refusal = ScriptedReply(pieces, status)

    async def go():
        upstream = ScriptedUpstream([refusal] * 9)
        async with Engine.open(MemoryStore(), upstream=upstream, api="anthropic", model=MODEL) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError) as raised:
                await session.ask("Go.")
            return str(raised.value)

    said = run_on_fake_clock(go)
    assert f"HTTP {status} (" in said
    assert "): it gave no reason; " in said


def test_a_short_request_that_an_account_may_not_send_is_sent_once():
    """Neither waiting nor sending less cures it: who asks is told in the provider's words, and what to do."""
    why = "Extra usage is required for long context requests."
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": why}}
    ends = pytest.raises(UpstreamError, match=f"{why}.*check the account")
    wanted, heard = asked([ScriptedReply((msgspec.json.encode(error),), 429)] * 9, 1_024, whole=True, ends=ends)
    assert wanted == [1_024]
    assert not [event for event in heard if isinstance(event, events.ShrinkStarted | events.RetryScheduled)]
