"""Results that the model has not read yet: the next request contains them."""

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


def build_file_text(build_step, number, chars):
    """Return the text of a source file of about ``chars`` characters."""
    return "".join(f"def f{n}(x): return x*{n}+{build_step}*{number}\n" for n in range(chars // 26))


def build_step(count, chars, number=0):
    """Return ``count`` parallel reads and their results."""
    calls = tuple(ToolCall(f"c{number}_{index}", "read", f'{{"path":"f{index}.py"}}') for index in range(count))
    results = [
        Message("tool", (ToolResult(call.id, "read", (Text(build_file_text(number, index, chars)),)),))
        for index, call in enumerate(calls)
    ]
    return [Message("assistant", calls), *results]


def build_target(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window, asked_output=1_000)


def map_shown_results(messages, new_plan):
    """Return the text of each result in the request, by call id."""
    return {
        result.call_id: get_result_text(result) for message in apply(messages, new_plan) for result in message.results
    }


def list_notice_rules(new_plan):
    return [notice.rule for notice in new_plan.notices]


REQUEST = [Message.from_text("user", "Read the files.")]


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
def test_unread_results_shows_every_result_of_a_parallel_step(window, count, chars):
    """However many calls are answered at once, each result is shown whole or as a part that names its whole text."""
    messages = [*REQUEST, *build_step(count, chars)]
    new_plan = plan(messages, build_target(window))
    assert new_plan.after <= window - 1_024
    found = map_shown_results(messages, new_plan)
    assert len(found) == count
    for index in range(count):
        text, whole_text = found[f"c0_{index}"], build_file_text(0, index, chars)
        blobs = [blob for blob in new_plan.blobs if blob.text == whole_text]
        assert text == whole_text or (text.count("def f") >= 1 and any(blob.hash[:12] in text for blob in blobs))
    assert "unread" not in list_notice_rules(new_plan)


def test_unread_results_shows_each_step_of_a_tool_loop():
    """In a small window older messages are shortened, not the results that were just returned."""
    messages, state = list(REQUEST), None
    for number in range(6):
        messages += build_step(8, 4_000, number)
        new_plan = plan(messages, build_target(8_192), state=state)
        state = new_plan.state
        found = map_shown_results(messages, new_plan)
        assert {f"c{number}_{index}" for index in range(8)} <= found.keys()
        assert new_plan.after <= 8_192 - 1_024
        assert all("def f" in found[f"c{number}_{index}"] for index in range(8))


def test_unread_results_are_not_cut_when_they_fit():
    """Over the cold-cache trigger with nothing to summarize before them, results that fit are sent unchanged."""
    messages = [*REQUEST, *build_step(5, 3_000)]
    new_plan = plan(messages, build_target(8_192), inputs=PlanInputs(cache_state="cold"))
    assert new_plan.compaction is None
    assert not any(edit.rule == "unread" for edit in new_plan.record)
    assert len(map_shown_results(messages, new_plan)) == 5


def test_unread_results_that_cannot_be_shown_give_a_notice():
    """When hundreds of calls alone exceed the budget, they are summarized and a notice says so."""
    messages = [*REQUEST, *build_step(200, 1_000)]
    new_plan = plan(messages, build_target(8_192))
    assert new_plan.compaction is not None
    assert new_plan.after <= 8_192 - 1_024
    assert list_notice_rules(new_plan) == ["unread"]


def test_unread_results_stores_nothing_without_a_store():
    """Without a store results are shortened all the same, and no edit names a missing blob."""
    messages = [*REQUEST, *build_step(8, 8_000)]
    new_plan = plan(messages, build_target(16_000), inputs=PlanInputs(can_spill=False))
    assert len(map_shown_results(messages, new_plan)) == 8
    assert new_plan.blobs == ()
    assert not any(edit.blob_hash for edit in new_plan.record)


def test_summary_request_stops_before_unread_results():
    """The writer is asked for the messages before the newest calls, and the unread results follow its summary."""
    messages = [*REQUEST, *build_step(8, 4_000), *build_step(8, 4_000, 1)]
    requesting_plan = plan(messages, build_target(8_192), inputs=PlanInputs(can_summarize=True))
    assert requesting_plan.summary_request is not None
    assert requesting_plan.summary_request.stop <= find_answer_with_unread_results(requesting_plan.state) == 10
    text = "## Goal\nRead the files.\n" + "All of f0.py to f7.py were read.\n" * 10
    new_plan = plan(
        messages,
        build_target(8_192),
        inputs=PlanInputs(can_summarize=True, summary=SummaryResult(requesting_plan.summary_request.stop, text)),
    )
    assert new_plan.compaction is not None
    assert {f"c1_{index}" for index in range(8)} <= map_shown_results(messages, new_plan).keys()


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9_000)), min_size=1, max_size=4),
    st.sampled_from([8_192, 16_000]),
    st.booleans(),
)
def test_unread_results_are_never_lost_before_they_were_shown(steps, window, force_compaction):
    """Whatever came before, and even in a forced compaction, no result is gone before a request showed it."""
    messages = list(REQUEST)
    for number, (count, chars) in enumerate(steps):
        messages += build_step(count, chars, number)
    new_plan = plan(messages, build_target(window), Policy(), inputs=PlanInputs(force_compaction=force_compaction))
    last = len(steps) - 1
    expected_ids = {f"c{last}_{index}" for index in range(steps[-1][0])}
    assert expected_ids <= map_shown_results(messages, new_plan).keys()
    assert "unread" not in list_notice_rules(new_plan)
    assert new_plan.after <= window - 1_024


@pytest.mark.parametrize(("count", "are_results_shown"), [(5, True), (60, False)])
def test_smallest_request_reports_results_that_are_gone(count, are_results_shown):
    """Unread results are in the smallest request, or a notice says that they are not."""
    messages = [*REQUEST, *build_step(count, 4_000)]
    new_plan = plan(messages, build_target(8_192), inputs=PlanInputs(overflow_step="fallback"))
    assert (bool(map_shown_results(messages, new_plan)), "unread" in list_notice_rules(new_plan)) == (
        are_results_shown,
        not are_results_shown,
    )
