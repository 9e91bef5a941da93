"""Results that the model waits for: the request that should show them does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.stages.tail_selection import find_answer_with_unread_results
from holdfast.state.target import SummaryResult


def code(step, number, chars):
    """Return a file of about ``chars`` characters."""
    return "".join(f"def f{n}(x): return x*{n}+{step}*{number}\n" for n in range(chars // 26))


def step(count, chars, number=0):
    """Return ``count`` parallel reads and their results."""
    calls = tuple(ToolCall(f"c{number}_{i}", "read", f'{{"path":"f{i}.py"}}') for i in range(count))
    results = [
        Message("tool", (ToolResult(call.id, "read", (Text(code(number, i, chars)),)),)) for i, call in enumerate(calls)
    ]
    return [Message("assistant", calls), *results]


def to(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window, asked_output=1_000)


def shown(messages, made):
    """Return the results that the request shows, by call."""
    return {result.call_id: get_result_text(result) for one in apply(messages, made) for result in one.results}


def rules(made):
    return [notice.rule for notice in made.notices]


ASKED = [Message.from_text("user", "Read the files.")]


@pytest.mark.parametrize(
    ("window", "count", "chars"),
    [
        (8_192, 4, 4_000),
        (8_192, 8, 20_000),
        (16_000, 16, 4_000),
        (32_000, 12, 8_000),
        (32_000, 16, 20_000),
        (64_000, 24, 8_000),
    ],
)
def test_what_the_model_waits_for_is_shown(window, count, chars):
    """However many calls are answered at once, each result is shown: whole, or in a part that names its whole text."""
    messages = [*ASKED, *step(count, chars)]
    made = plan(messages, to(window))
    assert made.after <= window - 1_024
    found = shown(messages, made)
    assert len(found) == count
    for i in range(count):
        text, whole = found[f"c0_{i}"], code(0, i, chars)
        blobs = [blob for blob in made.blobs if blob.text == whole]
        assert text == whole or (text.count("def f") >= 1 and any(blob.hash[:12] in text for blob in blobs))
    assert "unread" not in rules(made)


def test_in_a_tool_loop_every_step_shows_its_results():
    """What a small window held before gives way, not what was just read."""
    messages, branch = list(ASKED), None
    for number in range(6):
        messages += step(8, 4_000, number)
        made = plan(messages, to(8_192), state=branch)
        branch = made.state
        found = shown(messages, made)
        assert {f"c{number}_{i}" for i in range(8)} <= found.keys()
        assert made.after <= 8_192 - 1_024
        assert all("def f" in found[f"c{number}_{i}"] for i in range(8))


def test_what_fits_is_not_cut_to_make_room():
    """Over the trigger of a cold cache, with nothing to fold before them, results that fit go out as they are."""
    messages = [*ASKED, *step(5, 3_000)]
    made = plan(messages, to(8_192), inputs=PlanInputs(cache_state="cold"))
    assert made.compaction is None
    assert not any(edit.rule == "unread" for edit in made.record)
    assert len(shown(messages, made)) == 5


def test_what_cannot_be_shown_even_short_gives_way_with_a_notice():
    """Hundreds of calls alone are more than the room: they go into the summary, and the caller is told."""
    messages = [*ASKED, *step(200, 1_000)]
    made = plan(messages, to(8_192))
    assert made.compaction is not None
    assert made.after <= 8_192 - 1_024
    assert rules(made) == ["unread"]


def test_nothing_is_stored_where_nothing_can_be():
    """Without a store results are cut all the same, and name no text that nobody holds."""
    messages = [*ASKED, *step(8, 8_000)]
    made = plan(messages, to(16_000), inputs=PlanInputs(can_spill=False))
    assert len(shown(messages, made)) == 8
    assert made.blobs == ()
    assert not any(edit.blob_hash for edit in made.record)


def test_a_written_summary_ends_before_them():
    """A model is asked for what stands before the newest calls, and what it wrote is committed with them behind it."""
    messages = [*ASKED, *step(8, 4_000), *step(8, 4_000, 1)]
    asked = plan(messages, to(8_192), inputs=PlanInputs(can_summarize=True))
    assert asked.summary_request is not None
    assert asked.summary_request.stop <= find_answer_with_unread_results(asked.state) == 10
    text = "## Goal\nRead the files.\n" + "All of f0.py to f7.py were read.\n" * 10
    made = plan(
        messages,
        to(8_192),
        inputs=PlanInputs(can_summarize=True, summary=SummaryResult(asked.summary_request.stop, text)),
    )
    assert made.compaction is not None
    assert {f"c1_{i}" for i in range(8)} <= shown(messages, made).keys()


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9_000)), min_size=1, max_size=4),
    st.sampled_from([8_192, 16_000]),
    st.booleans(),
)
def test_they_are_shown_or_a_notice_tells(steps, window, force):
    """Whatever came before, and also where a compaction is asked for: no result is gone before a request showed it."""
    messages = list(ASKED)
    for number, (count, chars) in enumerate(steps):
        messages += step(count, chars, number)
    made = plan(messages, to(window), Policy(), inputs=PlanInputs(force_compaction=force))
    last = len(steps) - 1
    wanted = {f"c{last}_{i}" for i in range(steps[-1][0])}
    assert wanted <= shown(messages, made).keys()
    assert "unread" not in rules(made)
    assert made.after <= window - 1_024


@pytest.mark.parametrize(("count", "waits"), [(5, True), (60, False)])
def test_the_smallest_request_says_where_results_are_gone(count, waits):
    """Those that the model waits for are in it, or a notice says that they are not."""
    messages = [*ASKED, *step(count, 4_000)]
    made = plan(messages, to(8_192), inputs=PlanInputs(overflow_step="fallback"))
    assert (bool(shown(messages, made)), "unread" in rules(made)) == (waits, not waits)
