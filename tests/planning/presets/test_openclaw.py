"""OpenClaw's preset: the guard in the loop, the check before a request, pruning by the cache's time, seen images."""

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
COLD = PlanInputs("cold")
IMAGE = Media("image", "image/png", 3, source="AAAA")


def place(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window)


def words(size, letter="x"):
    return f"{letter} " * (size // 2)


def read(*sizes, tool="read", ask="go"):
    said = [Message.from_text("user", ask)] if ask else []
    for number, size in enumerate(sizes):
        parts = size if isinstance(size, tuple) else (Text(words(size)),)
        said += [
            Message("assistant", (ToolCall(f"c{number}", tool),)),
            Message("tool", (ToolResult(f"c{number}", tool, parts),)),
        ]
    return said


def shown(said, policy, window, world=PlanInputs()):
    made = plan(said, place(window), policy, inputs=world)
    return [slot.message for slot in build_projection(made.state)]


def states(said, policy, window, world=PlanInputs()):
    """Return for each result whether it is shown whole, trimmed, cut, or as a line."""
    before = [get_result_text(one) for message in said for one in message.results]
    after = [get_result_text(one) for message in shown(said, policy, window, world) for one in message.results]
    return [_state(old, new) for old, new in zip(before, after, strict=True)]


def _state(old, new):
    named = {old: "whole", REMOVED_RESULT_TEXT: "removed", CLEARED_RESULT_TEXT: "cleared"}
    return named.get(new) or ("trimmed" if "Tool result trimmed" in new else "cut")


# -- the guard in the loop ---------------------------------------------------------------------------------------------

LOOP = BARE.with_settings(preset={"loop_share": 0.75, "prune": False})


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
def test_the_oldest_results_make_room(window, sizes, expected):
    """[O] 2026.3: tools count twice; one result may take half of the window, all 0.75; the oldest go first."""
    assert states(read(*sizes), LOOP, window) == expected


@pytest.mark.parametrize("window", [16_000, 50_000, 200_000, 1_000_000])
def test_the_guard_cuts_no_result_that_the_limit_under_pressure_allows(window):
    """[O] a result within 0.3 of the window, at most 400,000 characters, stays whole; one over what the guard has goes.

    The guard's own half of the window, where words of tools count twice, is more than that in large windows only.
    """
    policy = OPENCLAW.with_settings(compaction={"enabled": False}, preset={"prune": False}, results={"append_chars": 0})
    limit = policy.rules.get_result_limits(window).per_result
    assert states(read(limit), policy, window) == ["whole"]
    most = max(limit, window)
    assert states(read(most), policy, window) == ["whole"]
    assert states(read(most + 200), policy, window) == ["cut"]


def test_what_the_guard_took_stays_taken():
    """A decision is made once: what gave way says the same in the next request, and more gives way behind it."""
    said = read(6_000, 6_000, 6_000)
    first = plan(said, place(10_000), LOOP)
    more = [*said, *read(100, 6_000, 6_000, 6_000, ask="")[2:]]
    second = plan(more, place(10_000), LOOP, state=first.state)
    assert all(edit.rule == "loop" for edit in (*first.record, *second.record))
    assert {edit.span.start for edit in first.record} == {2}
    assert 2 not in {edit.span.start for edit in second.record}


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=7), st.integers(1_000, 12_000))
def test_the_guard_never_adds(sizes, window):
    """No result gets longer, and planning again over what was decided decides nothing more."""
    said = read(*sizes)
    made = plan(said, place(window), LOOP)
    after = [get_result_text(one) for message in apply(said, made) for one in message.results]
    assert all(len(text) <= max(size, 0) for text, size in zip(after, sizes, strict=True))
    assert plan(said, place(window), LOOP, state=made.state).record == ()


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
def test_the_way_to_fit(estimated, reducible, expected):
    """[O] 2026.9: results are cut instead where that frees half more than is too much, and 2,048 characters more."""
    assert decide_precheck(estimated, 100_000, 20_000, reducible) == expected


def test_a_window_that_is_all_reserve():
    """A reserve larger than the window leaves one token."""
    assert decide_precheck(2, 10, 20, 0) == PrecheckDecision("compact_only", 1)


NEW = OPENCLAW.with_settings(**OPENCLAW_2026_9)


@pytest.mark.parametrize(("words_each", "results", "way"), [(15_000, 3, "truncate"), (2_600, 18, "compact")])
def test_cutting_results_instead_of_compacting(words_each, results, way):
    """[O] 2026.9: where cutting is enough nothing is compacted; where nothing may be cut a compaction is needed."""
    said = [
        *read(*((Text("lorem " * words_each),),) * results),
        Message.from_text("assistant", "done"),
        Message.from_text("user", "?"),
    ]
    made = plan(said, place(60_000), NEW.with_settings(preset={"truncate_total_factor": 20}))
    assert made.before > 45_000 > made.after
    assert (made.compaction is not None) is (way == "compact")
    assert {edit.rule for edit in made.record} == ({"truncate"} if way == "truncate" else set())
    old = plan(said, place(60_000), NEW.with_settings(preset={"truncate_total_factor": 20, "precheck": False}))
    assert old.compaction is not None


# -- pruning -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (PlanInputs(), "whole"),
        (PlanInputs(idle_seconds=299), "whole"),
        (PlanInputs(idle_seconds=300), "trimmed"),
        (COLD, "trimmed"),
    ],
)
def test_pruning_waits_for_the_cache(world, expected):
    """[O] nothing is pruned before five minutes have passed, or the cache is known to be cold."""
    said = read(40_000, 100, 100, 100)
    assert states(said, BARE, 20_000, world)[0] == expected


@pytest.mark.parametrize(("size", "expected"), [(23_900, "whole"), (24_100, "trimmed")])
def test_trimming_begins_at_a_share_of_the_window(size, expected):
    """[O] under 0.3 of the window nothing is trimmed."""
    said = read(size - 40, 10, 10, 10, ask="")
    assert states([Message.from_text("user", "go"), *said], BARE, 20_000, COLD)[0] == expected


def test_a_trimmed_result_keeps_both_ends():
    """[O] results over 4,000 characters keep 1,500 of each end and say so; shorter ones stay."""
    said = read(4_001 * 2, 4_000, 40_000, 10, 10, 10)
    sent = [get_result_text(one) for message in shown(said, BARE, 20_000, COLD) for one in message.results]
    assert states(said, BARE, 20_000, COLD) == ["trimmed", "whole", "trimmed", "whole", "whole", "whole"]
    assert sent[0].startswith(words(1_500))
    assert "kept first 1500 chars and last 1500 chars of 8002 chars" in sent[0]


def test_the_oldest_are_cleared_over_half_of_the_window():
    """[O] still over half: the oldest go until it is less; trimmed ones that stay are trimmed."""
    said = read(4_000, *(3_900,) * 15, 30_000, 10, 10, 10)
    found = states(said, BARE, 20_000, COLD)
    cleared = found.count("cleared")
    assert found == ["cleared"] * cleared + ["whole"] * (16 - cleared) + ["trimmed"] + ["whole"] * 3
    total = sum(len(get_result_text(one)) for message in shown(said, BARE, 20_000, COLD) for one in message.results)
    assert 32_000 < total < 40_000


def test_nothing_is_cleared_where_little_may_go():
    """[O] results are cleared only where those that may go still have 50,000 characters."""
    said = [*read(30_000, 3_000, 3_000, 10, 10, 10), Message.from_text("user", words(60_000))]
    assert "cleared" not in states(said, BARE, 20_000, COLD)
    assert "trimmed" in states(said, BARE, 20_000, COLD)


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
def test_what_may_be_pruned(settings, expected):
    """[O] tools by pattern, in any case, those to be spared win; with fewer answers than are kept nothing goes."""
    said = read(40_000, 100, 100, 100)
    assert states(said, BARE.with_settings(**settings), 20_000, COLD)[0] == expected


def test_what_stands_before_the_first_user_is_not_pruned():
    """[O] the beginning of a session, before a user spoke, stays as it is."""
    said = [*read(40_000, ask=""), *read(40_000, 10, 10, 10)[:1], *read(100, 40_000, 10, 10, 10, ask="")[2:]]
    assert states(said, BARE, 20_000, COLD)[:2] == ["whole", "trimmed"]


def test_images_go_with_the_middle():
    """[O] an image in a trimmed result becomes words, before its ends are cut."""
    said = read((Text(words(9_000)), IMAGE), 40_000, 10, 10, 10)
    sent = shown(said, BARE.with_settings(preset={"image_keep_turns": -1}), 20_000, COLD)
    assert not collect_media_in_messages(sent[2])
    assert TRIMMED_IMAGE_TEXT in get_result_text(sent[2].results[0])


def test_what_was_trimmed_may_be_cleared_and_come_back():
    """A later decision about a result stands over the earlier one; taken back, the earlier one is shown again."""
    said = read(*(30_000,) * 4, 10, 10, 10)
    entries = [Entry(f"e{at}", None, MessageEntry(build_sized_message(message))) for at, message in enumerate(said)]
    first = plan(said, place(100_000), BARE, inputs=COLD)
    second = plan(
        said, place(2_500), BARE.with_settings(preset={"prune_clear_min_chars": 0}), state=first.state, inputs=COLD
    )
    assert [edit.rule for edit in first.record] == ["trim"] * 4
    assert {edit.rule for edit in second.record} == {"prune"}
    decided = [Entry("one", None, DecisionEntry(first.record)), Entry("two", None, DecisionEntry(second.record))]
    both = ConversationState.from_entries([*entries, *decided])
    undone = apply_entry(both, Entry("undo", None, RevokeEntry("two")))
    assert [slot.message for slot in build_projection(both)] == [
        slot.message for slot in build_projection(second.state)
    ]
    assert build_projection(undone) == build_projection(ConversationState.from_entries([*entries, decided[0]]))
    assert both.view.shown_tokens == sum(slot.tokens for slot in build_projection(both))
    assert undone.view.shown_tokens == sum(slot.tokens for slot in build_projection(undone))


# -- images ------------------------------------------------------------------------------------------------------------


def talk(*turns):
    """Return turns that each show an image, those marked ``a`` answered."""
    said = []
    for turn in turns:
        said.append(Message("user", (Text("see"), IMAGE)))
        said += [Message.from_text("assistant", "yes")] if turn == "a" else []
    return said


@pytest.mark.parametrize(
    ("turns", "keep", "left"),
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
def test_images_that_were_answered(turns, keep, left):
    """[O] what a model has seen and answered goes at once in 2026.3, and behind three answered turns in 2026.9."""
    said = talk(*turns)
    sent = shown(said, BARE.with_settings(preset={"image_keep_turns": keep}), 200_000)
    assert [len(collect_media_in_messages(message)) for message in sent if message.role == "user"] == left
    assert sum(SEEN_IMAGE_TEXT in message.text for message in sent) == left.count(0)


def test_images_in_results_go_too():
    """An image that a tool showed goes with the others; the result's words stay."""
    said = [*read((Text("a plot"), IMAGE)), Message.from_text("assistant", "nice"), Message.from_text("user", "more")]
    sent = shown(said, BARE, 200_000)
    assert get_result_text(sent[2].results[0]) == f"a plot\n{SEEN_IMAGE_TEXT}"


# -- what is stored, and what waits ------------------------------------------------------------------------------------


def test_the_cap_at_append():
    """[O] a result over 400,000 characters is cut when it is stored, and says so; the whole text is told apart."""
    (said,) = read(400_002, ask="")[1:]
    short, (blob,) = cap_message_texts(said, OPENCLAW.settings)
    assert "Content truncated during persistence" in get_result_text(short.results[0])
    assert len(get_result_text(short.results[0])) <= 400_000 < len(blob.text)
    (said,) = read(400_000, ask="")[1:]
    assert cap_message_texts(said, OPENCLAW.settings) == (said, ())


@pytest.mark.parametrize(("stop", "waits"), [("tool_use", ("c0",)), ("error", ()), ("aborted", ())])
def test_calls_of_a_broken_answer_are_not_waited_for(stop, waits):
    """[O] calls of an answer that failed or was interrupted never ran: nothing is open."""
    said = read(10)[:2]
    entries = [Entry(str(at), None, MessageEntry(build_sized_message(message))) for at, message in enumerate(said)]
    assert (
        ConversationState.from_entries(
            [*entries, Entry("a", None, AnswerEntry("", stop_reason=stop))]
        ).history.open_call_ids
        == waits
    )
