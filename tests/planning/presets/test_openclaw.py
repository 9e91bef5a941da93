"""OpenClaw's preset: the guard in the loop, the check before a request, pruning by cache time, images already seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.presets.openclaw.precheck import REMOVED_RESULT_TEXT, PrecheckDecision, decide_precheck
from holdfast.planning.presets.openclaw.pruning import TRIMMED_IMAGE_TEXT
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.presets.openclaw.seen_images import SEEN_IMAGE_TEXT
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, DecisionEntry, Entry, MessageEntry, RevokeEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import build_projection

OPENCLAW = Policy.preset("openclaw")
BARE = OPENCLAW.with_settings(
    compaction={"enabled": False},
    preset={"window_min": 0, "loop_share": 0.0, "truncate_share": 0.0},
    reserve={"min": 0},
)
COLD_CACHE = PlanInputs("cold")
IMAGE = Media("image", "image/png", 3, source="AAAA")


def build_target(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window)


def make_words(size, letter="x"):
    return f"{letter} " * (size // 2)


def build_reads(*sizes, tool="read", request_text="go"):
    messages = [Message.from_text("user", request_text)] if request_text else []
    for number, size in enumerate(sizes):
        parts = size if isinstance(size, tuple) else (Text(make_words(size)),)
        messages += [
            Message("assistant", (ToolCall(f"c{number}", tool),)),
            Message("tool", (ToolResult(f"c{number}", tool, parts),)),
        ]
    return messages


def list_shown_messages(messages, policy, window, inputs=PlanInputs()):
    new_plan = plan(messages, build_target(window), policy, inputs=inputs)
    return [sized.message for sized in build_projection(new_plan.state)]


def list_result_states(messages, policy, window, inputs=PlanInputs()):
    """Return for each result whether it is shown whole, trimmed, cut, removed or cleared."""
    before = [get_result_text(result) for message in messages for result in message.results]
    after = [
        get_result_text(result)
        for message in list_shown_messages(messages, policy, window, inputs)
        for result in message.results
    ]
    return [_classify_result(old, new) for old, new in zip(before, after, strict=True)]


def _classify_result(old, new):
    named = {old: "whole", REMOVED_RESULT_TEXT: "removed", CLEARED_RESULT_TEXT: "cleared"}
    return named.get(new) or ("trimmed" if "Tool result trimmed" in new else "cut")


# -- the guard in the loop ---------------------------------------------------------------------------------------------

LOOP_GUARD = BARE.with_settings(preset={"loop_share": 0.75, "prune": False})


@pytest.mark.parametrize(
    ("window", "sizes", "expected"),
    [
        (10_000, (4_000, 4_000, 4_000), ["whole"] * 3),
        (10_000, (6_000, 6_000, 6_000), ["removed", "whole", "whole"]),
        (10_000, (9_000, 9_000, 9_000), ["removed", "removed", "whole"]),
        (10_000, (5_000, 5_000, 4_990), ["whole"] * 3),
        (10_000, (5_000, 5_000, 4_992), ["removed", "whole", "whole"]),
        (10_000, (10_001,), ["whole"]),
        (10_000, (10_002,), ["cut"]),
        (1_000, (1_024,), ["whole"]),
    ],
)
def test_loop_guard_removes_the_oldest_results_first(window, sizes, expected):
    """[O] 2026.3: tool text counts twice; one result may take half of the window, all of them 0.75; the oldest go
    first.
    """
    assert list_result_states(build_reads(*sizes), LOOP_GUARD, window) == expected


@pytest.mark.parametrize("window", [16_000, 50_000, 200_000, 1_000_000])
def test_loop_guard_allows_results_within_the_pressure_limit(window):
    """[O] A result within 0.3 of the window, at most 400,000 characters, stays whole; one over the guard's limit is
    cut. The guard's own half of the window, where tool text counts twice, exceeds that in large windows only.
    """
    policy = OPENCLAW.with_settings(compaction={"enabled": False}, preset={"prune": False}, results={"append_chars": 0})
    limit = policy.rules.get_result_limits(window).per_result
    assert list_result_states(build_reads(limit), policy, window) == ["whole"]
    guard_limit = max(limit, window)
    assert list_result_states(build_reads(guard_limit), policy, window) == ["whole"]
    assert list_result_states(build_reads(guard_limit + 200), policy, window) == ["cut"]


def test_loop_guard_decisions_stay_in_later_requests():
    """A removed result reads the same in the next request, and only newer results are removed after it."""
    messages = build_reads(6_000, 6_000, 6_000)
    first = plan(messages, build_target(10_000), LOOP_GUARD)
    more = [*messages, *build_reads(100, 6_000, 6_000, 6_000, request_text="")[2:]]
    second = plan(more, build_target(10_000), LOOP_GUARD, state=first.state)
    assert all(edit.rule == "loop" for edit in (*first.record, *second.record))
    assert {edit.span.start for edit in first.record} == {2}
    assert 2 not in {edit.span.start for edit in second.record}


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=7), st.integers(1_000, 12_000))
def test_loop_guard_never_lengthens_results(sizes, window):
    """No result gets longer, and planning again over the decisions decides nothing more."""
    messages = build_reads(*sizes)
    new_plan = plan(messages, build_target(window), LOOP_GUARD)
    after = [get_result_text(result) for message in apply(messages, new_plan) for result in message.results]
    assert all(len(text) <= max(size, 0) for text, size in zip(after, sizes, strict=True))
    assert plan(messages, build_target(window), LOOP_GUARD, state=new_plan.state).record == ()


# -- the check before a request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimated", "reducible", "expected"),
    [
        (80_000, 9_999, PrecheckDecision("fits")),
        (80_001, 0, PrecheckDecision("compact_only", 1)),
        (80_001, 2_051, PrecheckDecision("compact_then_truncate", 1)),
        (80_001, 2_052, PrecheckDecision("truncate_tool_results_only", 1)),
        (82_000, 11_999, PrecheckDecision("compact_then_truncate", 2_000)),
        (82_000, 12_000, PrecheckDecision("truncate_tool_results_only", 2_000)),
        (82_000, -5, PrecheckDecision("compact_only", 2_000)),
    ],
)
def test_decide_precheck_chooses_between_compacting_and_truncating(estimated, reducible, expected):
    """[O] 2026.9: results are truncated instead if that frees half more than the excess plus 2,048 characters."""
    assert decide_precheck(estimated, 100_000, 20_000, reducible) == expected


def test_decide_precheck_leaves_one_token_when_the_reserve_exceeds_the_window():
    """A reserve larger than the window leaves one token."""
    assert decide_precheck(2, 10, 20, 0) == PrecheckDecision("compact_only", 1)


NEW = OPENCLAW.with_settings(**OPENCLAW_2026_9)


@pytest.mark.parametrize(("words_each", "results", "way"), [(15_000, 3, "truncate"), (2_600, 18, "compact")])
def test_plan_openclaw_truncates_results_instead_of_compacting(words_each, results, way):
    """[O] 2026.9: nothing is compacted where truncating results is enough; a compaction follows where nothing may be
    cut.
    """
    messages = [
        *build_reads(*((Text("lorem " * words_each),),) * results),
        Message.from_text("assistant", "done"),
        Message.from_text("user", "?"),
    ]
    new_plan = plan(messages, build_target(60_000), NEW.with_settings(preset={"truncate_total_factor": 20}))
    assert new_plan.before > 45_000 > new_plan.after
    assert (new_plan.compaction is not None) is (way == "compact")
    assert {edit.rule for edit in new_plan.record} == ({"truncate"} if way == "truncate" else set())
    without_precheck = plan(
        messages, build_target(60_000), NEW.with_settings(preset={"truncate_total_factor": 20, "precheck": False})
    )
    assert without_precheck.compaction is not None


# -- pruning -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (PlanInputs(), "whole"),
        (PlanInputs(idle_seconds=299), "whole"),
        (PlanInputs(idle_seconds=300), "trimmed"),
        (COLD_CACHE, "trimmed"),
    ],
)
def test_plan_openclaw_prunes_only_after_the_cache_expired(inputs, expected):
    """[O] Nothing is pruned before five minutes have passed or the cache is known to be cold."""
    messages = build_reads(40_000, 100, 100, 100)
    assert list_result_states(messages, BARE, 20_000, inputs)[0] == expected


@pytest.mark.parametrize(("size", "expected"), [(23_900, "whole"), (24_100, "trimmed")])
def test_plan_openclaw_trims_from_a_share_of_the_window(size, expected):
    """[O] Under 0.3 of the window nothing is trimmed."""
    messages = build_reads(size - 40, 10, 10, 10, request_text="")
    assert list_result_states([Message.from_text("user", "go"), *messages], BARE, 20_000, COLD_CACHE)[0] == expected


def test_plan_openclaw_keeps_both_ends_of_a_trimmed_result():
    """[O] Results over 4,000 characters keep 1,500 of each end and say so; shorter ones stay."""
    messages = build_reads(4_001 * 2, 4_000, 40_000, 10, 10, 10)
    sent = [
        get_result_text(result)
        for message in list_shown_messages(messages, BARE, 20_000, COLD_CACHE)
        for result in message.results
    ]
    assert list_result_states(messages, BARE, 20_000, COLD_CACHE) == [
        "trimmed",
        "whole",
        "trimmed",
        "whole",
        "whole",
        "whole",
    ]
    assert sent[0].startswith(make_words(1_500))
    assert "kept first 1500 chars and last 1500 chars of 8002 chars" in sent[0]


def test_plan_openclaw_clears_the_oldest_results_over_half_the_window():
    """[O] Above half of the window the oldest results are cleared until the total is below it; the rest stay
    trimmed.
    """
    messages = build_reads(4_000, *(3_900,) * 15, 30_000, 10, 10, 10)
    found = list_result_states(messages, BARE, 20_000, COLD_CACHE)
    cleared_count = found.count("cleared")
    assert found == ["cleared"] * cleared_count + ["whole"] * (16 - cleared_count) + ["trimmed"] + ["whole"] * 3
    total = sum(
        len(get_result_text(result))
        for message in list_shown_messages(messages, BARE, 20_000, COLD_CACHE)
        for result in message.results
    )
    assert 32_000 < total < 40_000


def test_plan_openclaw_clears_nothing_when_little_may_be_cleared():
    """[O] Results are cleared only if those that may be cleared have 50,000 characters."""
    messages = [*build_reads(30_000, 3_000, 3_000, 10, 10, 10), Message.from_text("user", make_words(60_000))]
    assert "cleared" not in list_result_states(messages, BARE, 20_000, COLD_CACHE)
    assert "trimmed" in list_result_states(messages, BARE, 20_000, COLD_CACHE)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "trimmed"),
        ({"prune": {"exempt_tools": ("re*",)}}, "whole"),
        ({"prune": {"exempt_tools": ("READ",)}}, "whole"),
        ({"prune": {"tools": ("bash", "Rea?")}}, "trimmed"),
        ({"prune": {"tools": ("bash",)}}, "whole"),
        ({"prune": {"tools": ("read",), "exempt_tools": ("read",)}}, "whole"),
        ({"preset": {"prune_keep_answers": 5}}, "whole"),
    ],
)
def test_plan_openclaw_prunes_tools_by_pattern(settings, expected):
    """[O] Tools match by pattern in any case, exempt tools win, and nothing goes with fewer answers than are kept."""
    messages = build_reads(40_000, 100, 100, 100)
    assert list_result_states(messages, BARE.with_settings(**settings), 20_000, COLD_CACHE)[0] == expected


def test_plan_openclaw_never_prunes_before_the_first_user_message():
    """[O] The beginning of a session, before the first user message, stays unchanged."""
    messages = [
        *build_reads(40_000, request_text=""),
        *build_reads(40_000, 10, 10, 10)[:1],
        *build_reads(100, 40_000, 10, 10, 10, request_text="")[2:],
    ]
    assert list_result_states(messages, BARE, 20_000, COLD_CACHE)[:2] == ["whole", "trimmed"]


def test_plan_openclaw_replaces_images_in_trimmed_results():
    """[O] An image in a trimmed result becomes text before its ends are cut."""
    messages = build_reads((Text(make_words(9_000)), IMAGE), 40_000, 10, 10, 10)
    sent = list_shown_messages(messages, BARE.with_settings(preset={"image_keep_turns": -1}), 20_000, COLD_CACHE)
    assert not collect_media_in_messages(sent[2])
    assert TRIMMED_IMAGE_TEXT in get_result_text(sent[2].results[0])


def test_plan_openclaw_clears_trimmed_results_and_revoking_restores_them():
    """A later decision about a result overrides the earlier one; revoking it shows the earlier one again."""
    messages = build_reads(*(30_000,) * 4, 10, 10, 10)
    entries = [Entry(f"e{at}", None, MessageEntry(build_sized_message(message))) for at, message in enumerate(messages)]
    first = plan(messages, build_target(100_000), BARE, inputs=COLD_CACHE)
    second = plan(
        messages,
        build_target(2_500),
        BARE.with_settings(preset={"prune_clear_min_chars": 0}),
        state=first.state,
        inputs=COLD_CACHE,
    )
    assert [edit.rule for edit in first.record] == ["trim"] * 4
    assert {edit.rule for edit in second.record} == {"prune"}
    decided = [Entry("one", None, DecisionEntry(first.record)), Entry("two", None, DecisionEntry(second.record))]
    both = ConversationState.from_entries([*entries, *decided])
    undone = apply_entry(both, Entry("undo", None, RevokeEntry("two")))
    assert [sized.message for sized in build_projection(both)] == [
        sized.message for sized in build_projection(second.state)
    ]
    assert build_projection(undone) == build_projection(ConversationState.from_entries([*entries, decided[0]]))
    assert both.view.shown_tokens == sum(sized.tokens for sized in build_projection(both))
    assert undone.view.shown_tokens == sum(sized.tokens for sized in build_projection(undone))


# -- images ------------------------------------------------------------------------------------------------------------


def build_image_turns(*turns):
    """Return turns that each show an image; those marked ``a`` are answered."""
    messages = []
    for turn in turns:
        messages.append(Message("user", (Text("see"), IMAGE)))
        messages += [Message.from_text("assistant", "yes")] if turn == "a" else []
    return messages


@pytest.mark.parametrize(
    ("turns", "keep", "images_left"),
    [
        ("u", 0, [1]),
        ("a", 0, [0]),
        ("au", 0, [0, 1]),
        ("aaa", -1, [1, 1, 1]),
        ("aaa", 3, [1, 1, 1]),
        ("aaaa", 3, [0, 1, 1, 1]),
        ("aaaau", 3, [0, 1, 1, 1, 1]),
        ("aau", 1, [0, 1, 1]),
    ],
)
def test_plan_openclaw_removes_answered_images(turns, keep, images_left):
    """[O] Images that a model answered go at once in 2026.3, and after three answered turns in 2026.9."""
    messages = build_image_turns(*turns)
    sent = list_shown_messages(messages, BARE.with_settings(preset={"image_keep_turns": keep}), 200_000)
    assert [len(collect_media_in_messages(message)) for message in sent if message.role == "user"] == images_left
    assert sum(SEEN_IMAGE_TEXT in message.text for message in sent) == images_left.count(0)


def test_plan_openclaw_removes_answered_images_in_results():
    """An image in a tool result goes like the others; the result's text stays."""
    messages = [
        *build_reads((Text("a plot"), IMAGE)),
        Message.from_text("assistant", "nice"),
        Message.from_text("user", "more"),
    ]
    sent = list_shown_messages(messages, BARE, 200_000)
    assert get_result_text(sent[2].results[0]) == f"a plot\n{SEEN_IMAGE_TEXT}"


# -- appending, and open calls -----------------------------------------------------------------------------------------


def test_cap_message_texts_cuts_at_append():
    """[O] A result over 400,000 characters is cut when it is stored and says so; the whole text becomes a blob."""
    (message,) = build_reads(400_002, request_text="")[1:]
    capped, (blob,) = cap_message_texts(message, OPENCLAW.settings)
    assert "Content truncated during persistence" in get_result_text(capped.results[0])
    assert len(get_result_text(capped.results[0])) <= 400_000 < len(blob.text)
    (message,) = build_reads(400_000, request_text="")[1:]
    assert cap_message_texts(message, OPENCLAW.settings) == (message, ())


@pytest.mark.parametrize(("stop", "open_call_ids"), [("tool_use", ("c0",)), ("error", ()), ("aborted", ())])
def test_open_call_ids_ignores_calls_of_a_broken_answer(stop, open_call_ids):
    """[O] Calls of an answer that failed or was aborted never ran, so none is open."""
    messages = build_reads(10)[:2]
    entries = [Entry(str(at), None, MessageEntry(build_sized_message(message))) for at, message in enumerate(messages)]
    assert (
        ConversationState.from_entries(
            [*entries, Entry("a", None, AnswerEntry("", stop_reason=stop))]
        ).history.open_call_ids
        == open_call_ids
    )
