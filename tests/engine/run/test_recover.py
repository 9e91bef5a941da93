"""Recovery of a run: less output where only that is too much, retries of empty answers, and final errors."""

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
TURNS = [(role, "kelp on the rock " * 300) for role in ("user", "assistant")] * 5
EMPTY_ANSWER = {"type": "message", "role": "assistant", "content": [], "model": MODEL}


def build_output_refusal(tokens, output):
    """Return the refusal of a request whose input and output together exceed the window."""
    why = f"input length and `max_tokens` exceed context limit: {tokens} + {output} > {WINDOW}, decrease either"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    return ScriptedReply((msgspec.json.encode(error),), 400)


def ask_with_replies(replies, output, *, is_body, thinking_budget=0, as_it_is=False, expectation=nullcontext()):
    """Run one request; return the ``max_tokens`` of each try, and the events.

    ``is_body`` sends a whole body instead of a text. Asserts that a refused request is not sent again unchanged.
    """
    upstream, seen_events = ScriptedUpstream(replies), []
    messages = [{"role": role, "content": text} for role, text in [*TURNS, ("user", "And now?")]]
    fields = {
        "max_tokens": output,
        **({"thinking": {"type": "enabled", "budget_tokens": thinking_budget}} if thinking_budget else {}),
    }
    body = {"model": MODEL, **fields, "messages": messages}

    async def run_scenario():
        target = get_target("anthropic", MODEL, window=WINDOW)
        opening = Engine.open(MemoryStore(), upstream=upstream, target=target, fields=fields, listen=seen_events.append)
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            if not is_body:
                await session.append(*[Message.from_text(role, text) for role, text in TURNS])
            with expectation:
                async with session.run(body if is_body else "And now?", quiet=True, as_it_is=as_it_is) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(run_scenario)
    retried = any(isinstance(event, events.RetryScheduled) for event in seen_events)
    assert retried or len({sent.body for sent in upstream.sent}) == len(upstream.sent)
    return [msgspec.json.decode(sent.body)["max_tokens"] for sent in upstream.sent], seen_events


@pytest.mark.parametrize("is_body", [False, True], ids=["words", "body"])
@pytest.mark.parametrize(
    ("output", "input_tokens", "expected"),
    [(6_000, 27_000, 3_000), (6_000, 30_000, 2_000), (1_500, 30_900, 1_024)],
    ids=["half", "what is left", "no less than an answer needs"],
)
def test_recover_lowers_the_output_where_only_that_is_too_much(output, input_tokens, expected, is_body):
    """DESIGN 7: the next request is the same with less output, and nothing is compacted."""
    max_tokens, seen_events = ask_with_replies(
        [build_output_refusal(input_tokens, output), "yes"], output, is_body=is_body
    )
    assert max_tokens == [output, pytest.approx(expected, abs=150)]
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)] == ["output"]
    assert not [event for event in seen_events if isinstance(event, events.CompactionEnded)]


@pytest.mark.parametrize(
    ("output", "input_tokens"), [(1_024, 31_500), (6_000, 31_500)], ids=["it is least", "it is no help"]
)
def test_recover_compacts_where_less_output_does_not_help(output, input_tokens):
    """The requested output is kept, and the conversation is compacted."""
    max_tokens, seen_events = ask_with_replies(
        [build_output_refusal(input_tokens, output), "yes"], output, is_body=False
    )
    assert max_tokens == [output, output]
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)] == [
        "output",
        "compact",
    ]


@pytest.mark.parametrize("is_body", [False, True], ids=["words", "body"])
@pytest.mark.parametrize(
    ("thinking_budget", "input_tokens", "expected", "steps"),
    [
        (1_024, 27_000, 3_000, ["output"]),
        (4_000, 27_000, 4_001, ["output"]),
        (4_000, 29_000, 6_000, ["output", "compact"]),
        (5_999, 27_000, 6_000, ["output", "compact"]),
    ],
    ids=["room enough", "more than the half", "more than is left", "all of it"],
)
def test_recover_keeps_the_output_above_the_thinking_budget(thinking_budget, input_tokens, expected, steps, is_body):
    """Where the output cannot be lowered far enough for that, the conversation is compacted at once."""
    max_tokens, seen_events = ask_with_replies(
        [build_output_refusal(input_tokens, 6_000), "yes"], 6_000, is_body=is_body, thinking_budget=thinking_budget
    )
    assert max_tokens == [6_000, expected]
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)] == steps


def test_recover_does_not_change_a_request_sent_as_it_is():
    """A refusal of a request that must not change is final, and no step is reported."""
    expectation = pytest.raises(ContextOverflow, match="tried: nothing")
    max_tokens, seen_events = ask_with_replies(
        [build_output_refusal(27_000, 6_000)], 6_000, is_body=True, as_it_is=True, expectation=expectation
    )
    assert max_tokens == [6_000]
    assert [type(event).__name__ for event in seen_events] == ["RequestStarted", "RequestRefused"]


def test_final_overflow_error_gives_the_count_of_the_provider():
    """The error quotes the count even when it is not believed, such as more tokens than bytes."""
    counted = 9_000_000
    error = {"type": "invalid_request_error", "message": f"prompt is too long: {counted} tokens > {WINDOW} maximum"}
    refusal = ScriptedReply((msgspec.json.encode({"type": "error", "error": error}),), 400)
    expectation = pytest.raises(
        ContextOverflow, match=f"it counted {counted:,} tokens and named a limit of {WINDOW:,}; .*tried: .*fallback"
    )
    _, seen_events = ask_with_replies([refusal] * 9, 900, is_body=False, expectation=expectation)
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)][-1] == "fallback"


def test_recover_retries_an_empty_answer_without_a_stop_reason():
    """An empty message without a reason is a fault of the server, not an answer of the model."""
    max_tokens, seen_events = ask_with_replies(
        [ScriptedReply((msgspec.json.encode(EMPTY_ANSWER),)), "yes"], 900, is_body=False
    )
    assert max_tokens == [900, 900]
    (refused,) = [event for event in seen_events if isinstance(event, events.RequestRefused)]
    assert (refused.kind, "no finish reason" in refused.why) == ("server", True)


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("pieces", [(), (b"",), (b"  \r\n",), (b"{}",)])
def test_error_of_an_empty_refusal_says_that_no_reason_was_given(status, pieces):
    """The error has the status, the kind and what to do, and no empty sentence."""
    refusal = ScriptedReply(pieces, status)

    async def run_scenario():
        upstream = ScriptedUpstream([refusal] * 9)
        async with Engine.open(MemoryStore(), upstream=upstream, api="anthropic", model=MODEL) as engine:
            session = await engine.session(SAMPLE_KEY)
            with pytest.raises(UpstreamError) as raised:
                await session.ask("Go.")
            return str(raised.value)

    message = run_on_fake_clock(run_scenario)
    assert f"HTTP {status} (" in message
    assert "): it gave no reason; " in message


def test_recover_does_not_retry_a_refusal_about_the_account():
    """Neither waiting nor a smaller request helps, so the provider's words and advice are raised at once."""
    why = "Extra usage is required for long context requests."
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": why}}
    expectation = pytest.raises(UpstreamError, match=f"{why}.*check the account")
    max_tokens, seen_events = ask_with_replies(
        [ScriptedReply((msgspec.json.encode(error),), 429)] * 9, 1_024, is_body=True, expectation=expectation
    )
    assert max_tokens == [1_024]
    assert not [event for event in seen_events if isinstance(event, events.ShrinkStarted | events.RetryScheduled)]
