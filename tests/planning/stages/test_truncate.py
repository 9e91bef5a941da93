"""Truncation of texts, of results, of all results together, once between two answers, and in a copied branch."""

from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.size.weighted_chars import (
    IMAGE_CHARS,
    count_end_chars,
    count_start_chars,
    weigh_message,
    weigh_text,
)
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.pipeline import plan_request
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.stages.truncate import (
    MAX_END_CHARS,
    MIN_OLD_RESULT_CHARS,
    OMITTED_MIDDLE_TEXT,
    ResultLimits,
    allocate_result_weights,
    format_truncation_notice,
    has_important_end,
    has_oversized_results,
    truncate_entry_messages,
    truncate_result_to_weight,
    truncate_text_to_weight,
    weigh_result_text,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, Usage
from holdfast.state.fold.fold_entries import TRUNCATE_RULE, apply_entry
from holdfast.store.memory import MemoryStore

IMAGE = Media("image", "image/png", 3, source="AAAA")
BASE64 = base64.b64encode(random.Random(1).randbytes(3_000)).decode()
TEXTS = st.lists(
    st.sampled_from(["x" * 700, "word\n", "漢字" * 90, BASE64[:900], "error: no\n", "}"]), max_size=40
).map("".join)
WEIGHTS = st.integers(0, 12_000)


# -- weighted characters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("", 0),
        ("plain words", 11),
        ("漢字かなカナ한글", 32),
        ("a漢b", 6),
        ("a" * 500, 500),
        ("é" * 10, 10),
        (BASE64, 10_000),
        (BASE64[:63], 63),
        (BASE64[:64].lower(), 64),
        (f"see {BASE64[:100]} there", 260),
    ],
)
def test_weigh_text_weighs_wide_and_base64_characters_more(text, weight):
    """A wide character weighs four, one of base64 two and a half, any other one; a short run is no base64."""
    assert weigh_text(text) == weight


@given(TEXTS, WEIGHTS)
def test_count_end_chars_stays_within_the_weight(text, budget):
    """The ends that fit weigh no more than allowed, and the whole text fits its own weight."""
    head, tail = text[: count_start_chars(text, budget)], text[len(text) - count_end_chars(text, budget) :]
    assert weigh_text(head) <= budget
    assert weigh_text(tail) <= budget
    assert count_start_chars(text, weigh_text(text)) == count_end_chars(text, weigh_text(text)) == len(text)


def test_weigh_message_sums_texts_calls_and_results():
    """Texts, calls and results weigh their characters, tool text times the given factor, an image a fixed weight."""
    messages = [
        Message.from_text("user", "four"),
        Message("assistant", (ToolCall("c", "read", "{}"),)),
        Message("tool", (ToolResult("c", "read", (Text("x" * 10), IMAGE)),)),
    ]
    assert sum(weigh_message(message) for message in messages) == 4 + 6 + 10 + IMAGE_CHARS
    assert sum(weigh_message(message, 2) for message in messages) == 4 + 6 + 20 + IMAGE_CHARS


# -- texts -------------------------------------------------------------------------------------------------------------


@given(TEXTS, WEIGHTS, st.sampled_from(["", "0123456789ab"]))
def test_truncate_text_to_weight_stays_in_budget(text, budget, handle):
    """The result is within its budget, consists of the text's own ends and a notice, and is stable."""
    short = truncate_text_to_weight(text, budget, handle)
    assert weigh_text(short) <= budget
    assert truncate_text_to_weight(short, budget, handle) == short
    assert (short == text) is (weigh_text(text) <= budget)
    if short != text:
        head, _, rest = short.partition(OMITTED_MIDDLE_TEXT)
        end = rest.rpartition("\n[... ")[0] if rest else ""
        start = head if rest else head.rpartition("\n[... ")[0] or head
        assert text.startswith(start)
        assert text.endswith(end)
        assert len(start) + len(end) < len(text)


def test_truncate_text_to_weight_states_what_is_missing():
    """The notice has the number of missing characters, and the handle if there is one."""
    text = "x" * 9_000
    short = truncate_text_to_weight(text, 5_000, "cafe")
    missing_count = 9_000 - short.count("x")
    assert short.endswith(format_truncation_notice(missing_count, "cafe"))
    assert f"{missing_count:,}" in short
    assert 'recall(id="cafe")' in short
    assert "recall" not in truncate_text_to_weight(text, 5_000)


def test_truncate_text_to_weight_prefers_line_ends():
    """A cut moves back to a line end in the last fifth of the budget, and no further."""
    near, far = "x" * 4_500 + "\n" + "y" * 4_500, "x" * 3_000 + "\n" + "y" * 6_000
    assert truncate_text_to_weight(near, 5_000).count("y") == 0
    assert truncate_text_to_weight(far, 5_000).count("y") > 1_800


@pytest.mark.parametrize(
    ("end", "is_kept"),
    [
        ("\nTypeError: boom", True),
        ("\nexit code 2", True),
        ('\n "b": 1\n}\n', True),
        ("\nTotal: 7 files", True),
        ("\nand so on", False),
        ("\nterrific", False),
    ],
)
def test_truncate_text_to_weight_keeps_an_important_end(end, is_kept):
    """An end with an error, an outcome or a closing brace stays, at most 4,000 characters of it."""
    text = "word " * 9_000 + end
    short = truncate_text_to_weight(text, 20_000)
    assert has_important_end(text) is is_kept
    assert (OMITTED_MIDDLE_TEXT in short) is is_kept
    assert (end.strip() in short) is is_kept
    assert len(short.partition(OMITTED_MIDDLE_TEXT)[2]) <= MAX_END_CHARS + len(format_truncation_notice(len(text)))


def test_truncate_text_to_weight_keeps_one_end_in_a_small_budget():
    """Twice the minimum is not enough for both a head and an end."""
    text = "x" * 9_000 + " error"
    assert OMITTED_MIDDLE_TEXT not in truncate_text_to_weight(text, 4_000 + len(format_truncation_notice(len(text))))
    assert OMITTED_MIDDLE_TEXT in truncate_text_to_weight(text, 4_800 + len(format_truncation_notice(len(text))))


@pytest.mark.parametrize("budget", [0, 1, 30, 100, 1_999])
def test_truncate_text_to_weight_never_exceeds_its_budget(budget):
    """However small, the budget holds; one too small for a notice gets the start alone."""
    short = truncate_text_to_weight("漢字" * 4_000, budget)
    assert weigh_text(short) <= budget


# -- results -----------------------------------------------------------------------------------------------------------


def build_result(*parts, id_="c"):
    return ToolResult(id_, "read", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def test_truncate_result_to_weight_divides_the_budget_among_texts():
    """Texts are shortened by their share; images, the other fields and a result within budget stay unchanged."""
    old = build_result("a" * 6_000, IMAGE, "b" * 2_000)
    new = truncate_result_to_weight(old, 4_000)
    assert [type(part) for part in new.content] == [Text, Media, Text]
    assert new.content[1] is IMAGE
    assert weigh_result_text(new) <= 4_000
    assert get_result_text(new).count("a") > 2 * get_result_text(new).count("b") > 0
    assert (new.call_id, new.name, new.is_error) == (old.call_id, old.name, old.is_error)
    assert weigh_result_text(old) == 8_000
    assert truncate_result_to_weight(old, 8_000) is old


def test_truncate_entry_messages_skips_messages_within_the_limits():
    """A message within the limits is not rewritten; of several results only those over the limit are shortened."""
    message = Message("tool", (build_result("a" * 3_000), build_result("b" * 300, id_="d")))
    entry = Entry("e", None, MessageEntry(build_sized_message(message)))
    assert truncate_entry_messages([entry], ResultLimits(3_000)) == {}
    short = truncate_entry_messages([entry], ResultLimits(2_000))["e"]
    assert short.parts[1] is message.parts[1]
    assert weigh_result_text(short.results[0]) <= 2_000


@pytest.mark.parametrize(
    ("window", "per_result"), [(200_000, 240_000), (128_000, 153_600), (1_000_000, 400_000), (1_001, 1_200)]
)
def test_get_result_limits_follows_openclaw(window, per_result):
    """[O] 0.3 of the window in tokens, four characters each, at most 400,000; all together no more than one."""
    assert PRESETS["openclaw"].rules.get_result_limits(window) == ResultLimits(per_result, per_result)


@pytest.mark.parametrize(
    ("window", "per_result", "total"),
    [
        (8_000, 9_600, 38_400),
        (99_999, 16_000, 199_998),
        (100_000, 32_000, 200_000),
        (200_000, 64_000, 400_000),
        (50_000, 16_000, 100_000),
        (20_000, 16_000, 64_000),
    ],
)
def test_get_result_limits_follows_openclaw_2026_9(window, per_result, total):
    """[O] 2026.9: 16,000, 32,000 and 64,000 by the window; together four times that, or half of the window."""
    newer = Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9)
    assert newer.rules.get_result_limits(window) == ResultLimits(per_result, total)


@pytest.mark.parametrize(
    ("sizes", "is_over"), [((1_200,), False), ((1_201,), True), ((600, 600), False), ((600, 601), True), ((), False)]
)
def test_has_oversized_results_compares_strictly(sizes, is_over):
    """Only strictly more than one result or all together may have is oversized; images do not count."""
    messages = [Message("tool", (build_result("x" * size, IMAGE),)) for size in sizes]
    assert has_oversized_results(messages, PRESETS["openclaw"].rules.get_result_limits(1_000)) is is_over


SIZES = st.lists(st.integers(0, 30_000), max_size=8)


@given(SIZES, st.integers(MIN_OLD_RESULT_CHARS, 20_000), st.integers(0, 60_000), st.integers(0, 3))
def test_allocate_result_weights_shortens_the_oldest_first(sizes, per_result, total, fresh_count):
    """No result keeps more than its limit, and the sum is within its limit while old results can be shortened."""
    found = allocate_result_weights(sizes, ResultLimits(per_result, total), fresh_count)
    kept = [found.get(index, size) for index, size in enumerate(sizes)]
    assert all(new <= min(old, per_result) for new, old in zip(kept, sizes, strict=True))
    assert all(found[index] < sizes[index] for index in found)
    old = kept[: max(0, len(kept) - fresh_count)]
    assert not total or sum(kept) <= total or all(size <= MIN_OLD_RESULT_CHARS for size in old)
    assert all(new == min(size, per_result) for new, size in zip(kept[len(old) :], sizes[len(old) :], strict=True))
    shortened = [index for index, size in enumerate(old) if size < min(sizes[index], per_result)]
    assert shortened == [index for index in shortened if index <= max(shortened)]
    assert allocate_result_weights(kept, ResultLimits(per_result, total), fresh_count) == {}


# -- in the plan -------------------------------------------------------------------------------------------------------

POLICY = Policy.preset("openclaw").with_settings(
    compaction={"enabled": False}, preset={"loop_share": 0.0, "prune": False}
)
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=20_000)


def build_reads(*sizes):
    """Return a conversation in which each read returns a result of one of ``sizes`` characters."""
    messages = [Message.from_text("user", "go")]
    for number, size in enumerate(sizes):
        text = "".join(chr(97 + (at + number) % 26) + " " for at in range(size // 2))
        messages += [
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(text),)),)),
        ]
    return messages


def list_result_texts(messages, new_plan):
    return [get_result_text(result) for message in apply(messages, new_plan) for result in message.results]


def test_plan_truncates_nothing_while_the_request_fits():
    """A result over its limit stays whole while the request fits, or where the policy truncates nothing."""
    roomy = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    messages = build_reads(60_000)
    assert plan(messages, roomy, POLICY).record == ()
    assert plan(messages, TARGET, POLICY.with_settings(preset={"truncate_share": 0.0})).record == ()


def test_plan_truncates_a_result_under_pressure():
    """Under pressure a result keeps its share of the window; the decision is recorded with its text and stays."""
    messages = build_reads(60_000)
    new_plan = plan(messages, TARGET, POLICY)
    (text,) = list_result_texts(messages, new_plan)
    assert weigh_text(text) <= 24_000
    (edit,), (blob,) = new_plan.record, new_plan.blobs
    assert (edit.rule, edit.blob_hash, blob.text) == (TRUNCATE_RULE, blob.hash, get_result_text(messages[2].results[0]))
    assert f'recall(id="{blob.hash[:HANDLE_CHARS]}")' in text
    second_plan = plan(messages, TARGET, POLICY, state=new_plan.state)
    assert second_plan.record == ()
    assert list_result_texts(messages, second_plan) == [text]


def test_plan_truncates_without_a_handle_when_nothing_can_be_stored():
    """Without a store the log keeps the text, and no handle that leads nowhere is shown."""
    messages = build_reads(60_000)
    new_plan = plan(messages, TARGET, POLICY, inputs=PlanInputs(can_spill=False))
    assert new_plan.blobs == ()
    assert new_plan.record[0].blob_hash == ""
    assert "recall" not in list_result_texts(messages, new_plan)[0]


def test_plan_truncates_once_between_two_answers():
    """bounded-attempts: new results are not truncated again before the next answer; after it they may be."""
    messages = build_reads(60_000)
    new_plan = plan(messages, TARGET, POLICY)
    assert new_plan.state.counters.truncations_since_answer == 1
    longer = [*messages, Message("tool", (ToolResult("x", "read", messages[2].results[0].content),))]
    assert plan(longer, TARGET, POLICY, state=new_plan.state).record == ()
    answered_state = apply_entry(
        new_plan.state, Entry("", None, AnswerEntry(new_plan.state.last_request.prefix_digest, Usage(9_000)))
    )
    assert answered_state.counters.truncations_since_answer == 0
    assert (
        apply_entry(
            new_plan.state, Entry("", None, MessageEntry(build_sized_message(Message.from_text("assistant", "ok"))))
        ).counters.truncations_since_answer
        == 0
    )
    assert ConversationState.load(new_plan.state.dump()).counters.truncations_since_answer == 1
    later = plan(build_reads(60_000, 60_000), TARGET, POLICY, state=answered_state)
    assert [edit.span.start for edit in later.record] == [2, 4]
    assert later.blobs[0] == new_plan.blobs[0]


def test_plan_truncates_old_results_before_new_ones():
    """Of many results that are each within the limit the oldest are shortened, and unread ones stay."""
    messages = build_reads(20_000, 20_000, 20_000, 20_000)
    new_plan = plan(messages, TARGET, POLICY)
    sizes = [len(text) for text in list_result_texts(messages, new_plan)]
    assert sizes[-1] == 20_000
    assert sizes[0] <= MIN_OLD_RESULT_CHARS
    assert sum(sizes) <= 24_000
    assert new_plan.after <= new_plan.before


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
def test_plan_truncates_the_same_step_by_step_and_at_once(sizes):
    """The state recorded step by step equals the one rebuilt from the log, and no text gets longer."""
    messages = build_reads(*sizes)
    state, log = ConversationState(), []
    for number, message in enumerate(messages):
        log.append(Entry(f"e{number}", None, MessageEntry(build_sized_message(message))))
        state = apply_entry(state, log[-1])
        if message.role == "assistant":
            continue
        new_plan = plan_request(state, TARGET, POLICY.with_settings(preset={"window_min": 0}))
        state = new_plan.state
    sizes_before = [len(get_result_text(result)) for message in messages for result in message.results]
    new_plan = plan(messages, TARGET, POLICY, state=state)
    assert all(
        len(text) <= size for text, size in zip(list_result_texts(messages, new_plan), sizes_before, strict=True)
    )
    assert ConversationState.load(new_plan.state.dump()) == new_plan.state


# -- in the store ------------------------------------------------------------------------------------------------------


def test_copy_branch_contains_the_truncated_entries():
    """Entries with an oversized result are truncated on a new branch; the old branch stays whole."""
    messages = build_reads(500, 9_000, 700)
    store = MemoryStore()
    store.create_session("s")
    entries = [
        Entry(f"e{at}", f"e{at - 1}" if at else None, MessageEntry(build_sized_message(message)))
        for at, message in enumerate(messages)
    ]
    store.append_entries("s", entries)
    limits = ResultLimits(3_000)
    replacements = truncate_entry_messages(store.read_path("s"), limits)
    assert list(replacements) == ["e4"]
    leaf = store.copy_branch("s", replacements)
    new = [entry.body.sized_message.message for entry in store.read_path("s", leaf)]
    assert not has_oversized_results(new, limits)
    assert new[:4] == messages[:4]
    assert new[5:] == messages[5:]
    assert [entry.id for entry in store.read_path("s", leaf)][:4] == ["e0", "e1", "e2", "e3"]
    assert [entry.body.sized_message.message for entry in store.read_path("s", "e6")] == messages
    assert truncate_entry_messages(store.read_path("s", leaf), limits) == {}
    assert store.copy_branch("s", {}) is None
