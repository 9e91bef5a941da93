"""Truncation: texts, results, all results together, once between two answers, and what a copied branch says."""

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
BUDGETS = st.integers(0, 12_000)


# -- weighted characters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "weighs"),
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
def test_what_characters_weigh(text, weighs):
    """A wide character weighs four, one of base64 two and a half, any other one; what is short is no base64."""
    assert weigh_text(text) == weighs


@given(TEXTS, BUDGETS)
def test_what_fits_within_a_weight(text, most):
    """The ends that fit weigh no more than asked, and all of a text fits within its own weight."""
    head, tail = text[: count_start_chars(text, most)], text[len(text) - count_end_chars(text, most) :]
    assert weigh_text(head) <= most
    assert weigh_text(tail) <= most
    assert count_start_chars(text, weigh_text(text)) == count_end_chars(text, weigh_text(text)) == len(text)


def test_the_weight_of_messages():
    """Words, calls and results weigh their characters, those of tools as often as asked, an image its own."""
    said = [
        Message.from_text("user", "four"),
        Message("assistant", (ToolCall("c", "read", "{}"),)),
        Message("tool", (ToolResult("c", "read", (Text("x" * 10), IMAGE)),)),
    ]
    assert sum(weigh_message(one) for one in said) == 4 + 6 + 10 + IMAGE_CHARS
    assert sum(weigh_message(one, 2) for one in said) == 4 + 6 + 20 + IMAGE_CHARS


# -- texts -------------------------------------------------------------------------------------------------------------


@given(TEXTS, BUDGETS, st.sampled_from(["", "0123456789ab"]))
def test_a_text_within_its_budget(text, most, handle):
    """It weighs no more than its budget, is its own ends and a notice, and cutting it again changes nothing."""
    short = truncate_text_to_weight(text, most, handle)
    assert weigh_text(short) <= most
    assert truncate_text_to_weight(short, most, handle) == short
    assert (short == text) is (weigh_text(text) <= most)
    if short != text:
        head, _, rest = short.partition(OMITTED_MIDDLE_TEXT)
        end = rest.rpartition("\n[... ")[0] if rest else ""
        start = head if rest else head.rpartition("\n[... ")[0] or head
        assert text.startswith(start)
        assert text.endswith(end)
        assert len(start) + len(end) < len(text)


def test_the_notice_tells_what_is_gone():
    """The notice has the number of characters that are missing, and the handle if there is one."""
    text = "x" * 9_000
    short = truncate_text_to_weight(text, 5_000, "cafe")
    gone = 9_000 - short.count("x")
    assert short.endswith(format_truncation_notice(gone, "cafe"))
    assert f"{gone:,}" in short
    assert 'recall(id="cafe")' in short
    assert "recall" not in truncate_text_to_weight(text, 5_000)


def test_a_cut_at_a_line():
    """A cut goes back to a line end in the last fifth of the budget, and no further."""
    near, far = "x" * 4_500 + "\n" + "y" * 4_500, "x" * 3_000 + "\n" + "y" * 6_000
    assert truncate_text_to_weight(near, 5_000).count("y") == 0
    assert truncate_text_to_weight(far, 5_000).count("y") > 1_800


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        ("\nTypeError: boom", True),
        ("\nexit code 2", True),
        ('\n "b": 1\n}\n', True),
        ("\nTotal: 7 files", True),
        ("\nand so on", False),
        ("\nterrific", False),
    ],
)
def test_an_important_end_stays(end, kept):
    """An end that tells of an error, a result or a closing brace stays, at most 4,000 characters of it."""
    text = "word " * 9_000 + end
    short = truncate_text_to_weight(text, 20_000)
    assert has_important_end(text) is kept
    assert (OMITTED_MIDDLE_TEXT in short) is kept
    assert (end.strip() in short) is kept
    assert len(short.partition(OMITTED_MIDDLE_TEXT)[2]) <= MAX_END_CHARS + len(format_truncation_notice(len(text)))


def test_a_small_budget_has_no_room_for_two_ends():
    """Twice the least that is kept is not enough for a head and an end."""
    text = "x" * 9_000 + " error"
    assert OMITTED_MIDDLE_TEXT not in truncate_text_to_weight(text, 4_000 + len(format_truncation_notice(len(text))))
    assert OMITTED_MIDDLE_TEXT in truncate_text_to_weight(text, 4_800 + len(format_truncation_notice(len(text))))


@pytest.mark.parametrize("most", [0, 1, 30, 100, 1_999])
def test_a_budget_is_a_real_bound(most):
    """However small, a budget is kept; one without room for a notice gets the start alone."""
    short = truncate_text_to_weight("漢字" * 4_000, most)
    assert weigh_text(short) <= most


# -- results -----------------------------------------------------------------------------------------------------------


def result(*parts, id_="c"):
    return ToolResult(id_, "read", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def test_texts_of_a_result_share_its_budget():
    """Texts get shorter by their share; images, the other fields and the result itself stay as they were."""
    old = result("a" * 6_000, IMAGE, "b" * 2_000)
    new = truncate_result_to_weight(old, 4_000)
    assert [type(part) for part in new.content] == [Text, Media, Text]
    assert new.content[1] is IMAGE
    assert weigh_result_text(new) <= 4_000
    assert get_result_text(new).count("a") > 2 * get_result_text(new).count("b") > 0
    assert (new.call_id, new.name, new.is_error) == (old.call_id, old.name, old.is_error)
    assert weigh_result_text(old) == 8_000
    assert truncate_result_to_weight(old, 8_000) is old


def test_a_message_in_which_nothing_is_over():
    """It is not said anew; of several results only those that are over get shorter."""
    said = Message("tool", (result("a" * 3_000), result("b" * 300, id_="d")))
    entry = Entry("e", None, MessageEntry(build_sized_message(said)))
    assert truncate_entry_messages([entry], ResultLimits(3_000)) == {}
    short = truncate_entry_messages([entry], ResultLimits(2_000))["e"]
    assert short.parts[1] is said.parts[1]
    assert weigh_result_text(short.results[0]) <= 2_000


@pytest.mark.parametrize(
    ("window", "each"), [(200_000, 240_000), (128_000, 153_600), (1_000_000, 400_000), (1_001, 1_200)]
)
def test_the_limit_of_a_window(window, each):
    """[O] 0.3 of the window in tokens, four characters each, at most 400,000; all together no more than one may."""
    assert PRESETS["openclaw"].rules.get_result_limits(window) == ResultLimits(each, each)


@pytest.mark.parametrize(
    ("window", "each", "together"),
    [
        (8_000, 9_600, 38_400),
        (99_999, 16_000, 199_998),
        (100_000, 32_000, 200_000),
        (200_000, 64_000, 400_000),
        (50_000, 16_000, 100_000),
        (20_000, 16_000, 64_000),
    ],
)
def test_the_limits_since_2026_9(window, each, together):
    """[O] 2026.9: 16,000, 32,000 and 64,000 by the window; together four times that, or half of the window."""
    newer = Policy.preset("openclaw").with_settings(**OPENCLAW_2026_9)
    assert newer.rules.get_result_limits(window) == ResultLimits(each, together)


@pytest.mark.parametrize(
    ("sizes", "is_over"), [((1_200,), False), ((1_201,), True), ((600, 600), False), ((600, 601), True), ((), False)]
)
def test_a_look_at_a_snapshot(sizes, is_over):
    """Strictly more than one result may have, or than all may together; images are not counted."""
    said = [Message("tool", (result("x" * size, IMAGE),)) for size in sizes]
    assert has_oversized_results(said, PRESETS["openclaw"].rules.get_result_limits(1_000)) is is_over


SIZES = st.lists(st.integers(0, 30_000), max_size=8)


@given(SIZES, st.integers(MIN_OLD_RESULT_CHARS, 20_000), st.integers(0, 60_000), st.integers(0, 3))
def test_the_oldest_give_first(sizes, each, together, fresh):
    """No result keeps more than one may; together they are within their limit where old ones still have to give."""
    found = allocate_result_weights(sizes, ResultLimits(each, together), fresh)
    kept = [found.get(index, size) for index, size in enumerate(sizes)]
    assert all(new <= min(old, each) for new, old in zip(kept, sizes, strict=True))
    assert all(found[index] < sizes[index] for index in found)
    old = kept[: max(0, len(kept) - fresh)]
    assert not together or sum(kept) <= together or all(size <= MIN_OLD_RESULT_CHARS for size in old)
    assert all(new == min(size, each) for new, size in zip(kept[len(old) :], sizes[len(old) :], strict=True))
    given = [index for index, size in enumerate(old) if size < min(sizes[index], each)]
    assert given == [index for index in given if index <= max(given)]
    assert allocate_result_weights(kept, ResultLimits(each, together), fresh) == {}


# -- in memory ---------------------------------------------------------------------------------------------------------

POLICY = Policy.preset("openclaw").with_settings(
    compaction={"enabled": False}, preset={"loop_share": 0.0, "prune": False}
)
PLACE = get_target("anthropic", "claude-sonnet-4-5", window=20_000)


def read(*sizes):
    """A user asks, and each read gives so many characters."""
    said = [Message.from_text("user", "go")]
    for number, size in enumerate(sizes):
        text = "".join(chr(97 + (at + number) % 26) + " " for at in range(size // 2))
        said += [
            Message("assistant", (ToolCall(f"c{number}", "read"),)),
            Message("tool", (ToolResult(f"c{number}", "read", (Text(text),)),)),
        ]
    return said


def texts(said, made):
    return [get_result_text(one) for message in apply(said, made) for one in message.results]


def test_nothing_is_cut_while_the_request_fits():
    """A result over its limit stays whole while the request is usable, and where the policy cuts nothing."""
    roomy = get_target("anthropic", "claude-sonnet-4-5", window=60_000)
    said = read(60_000)
    assert plan(said, roomy, POLICY).record == ()
    assert plan(said, PLACE, POLICY.with_settings(preset={"truncate_share": 0.0})).record == ()


def test_a_result_is_cut_once_it_is_too_much():
    """Under pressure a result keeps its share of the window; the decision is recorded with its text and repeated."""
    said = read(60_000)
    made = plan(said, PLACE, POLICY)
    (text,) = texts(said, made)
    assert weigh_text(text) <= 24_000
    (edit,), (blob,) = made.record, made.blobs
    assert (edit.rule, edit.blob_hash, blob.text) == (TRUNCATE_RULE, blob.hash, get_result_text(said[2].results[0]))
    assert f'recall(id="{blob.hash[:HANDLE_CHARS]}")' in text
    again = plan(said, PLACE, POLICY, state=made.state)
    assert again.record == ()
    assert texts(said, again) == [text]


def test_where_nothing_can_be_stored_away_the_notice_names_no_handle():
    """The text stays in the log either way; a handle that leads nowhere is not shown."""
    said = read(60_000)
    made = plan(said, PLACE, POLICY, inputs=PlanInputs(can_spill=False))
    assert made.blobs == ()
    assert made.record[0].blob_hash == ""
    assert "recall" not in texts(said, made)[0]


def test_once_between_two_answers():
    """bounded-attempts: what is new before the next answer is not cut again; behind an answer it may be."""
    said = read(60_000)
    made = plan(said, PLACE, POLICY)
    assert made.state.counters.truncations_since_answer == 1
    more = [*said, Message("tool", (ToolResult("x", "read", said[2].results[0].content),))]
    assert plan(more, PLACE, POLICY, state=made.state).record == ()
    answered = apply_entry(
        made.state, Entry("", None, AnswerEntry(made.state.last_request.prefix_digest, Usage(9_000)))
    )
    assert answered.counters.truncations_since_answer == 0
    assert (
        apply_entry(
            made.state, Entry("", None, MessageEntry(build_sized_message(Message.from_text("assistant", "ok"))))
        ).counters.truncations_since_answer
        == 0
    )
    assert ConversationState.load(made.state.dump()).counters.truncations_since_answer == 1
    later = plan(read(60_000, 60_000), PLACE, POLICY, state=answered)
    assert [edit.span.start for edit in later.record] == [2, 4]
    assert later.blobs[0] == made.blobs[0]


def test_old_results_give_way_to_new_ones():
    """Many results that are each within the limit: the oldest get shorter, those nobody has read stay."""
    said = read(20_000, 20_000, 20_000, 20_000)
    made = plan(said, PLACE, POLICY)
    sizes = [len(text) for text in texts(said, made)]
    assert sizes[-1] == 20_000
    assert sizes[0] <= MIN_OLD_RESULT_CHARS
    assert sum(sizes) <= 24_000
    assert made.after <= made.before


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
def test_growing_one_by_one_is_building_at_once(sizes):
    """What is recorded step by step is what a branch rebuilt from the log shows, and no text gets longer."""
    said = read(*sizes)
    branch, log = ConversationState(), []
    for number, message in enumerate(said):
        log.append(Entry(f"e{number}", None, MessageEntry(build_sized_message(message))))
        branch = apply_entry(branch, log[-1])
        if message.role == "assistant":
            continue
        made = plan_request(branch, PLACE, POLICY.with_settings(preset={"window_min": 0}))
        branch = made.state
    whole = [len(get_result_text(one)) for message in said for one in message.results]
    made = plan(said, PLACE, POLICY, state=branch)
    assert all(len(text) <= size for text, size in zip(texts(said, made), whole, strict=True))
    assert ConversationState.load(made.state.dump()) == made.state


# -- in session --------------------------------------------------------------------------------------------------------


def test_a_copied_branch_says_it_shorter():
    """Entries with a result over its limit are said again shorter on a new branch; the old branch stays whole."""
    said = read(500, 9_000, 700)
    store = MemoryStore()
    store.create_session("s")
    entries = [
        Entry(f"e{at}", f"e{at - 1}" if at else None, MessageEntry(build_sized_message(message)))
        for at, message in enumerate(said)
    ]
    store.append_entries("s", entries)
    limits = ResultLimits(3_000)
    asked = truncate_entry_messages(store.read_path("s"), limits)
    assert list(asked) == ["e4"]
    leaf = store.copy_branch("s", asked)
    new = [entry.body.sized_message.message for entry in store.read_path("s", leaf)]
    assert not has_oversized_results(new, limits)
    assert new[:4] == said[:4]
    assert new[5:] == said[5:]
    assert [entry.id for entry in store.read_path("s", leaf)][:4] == ["e0", "e1", "e2", "e3"]
    assert [entry.body.sized_message.message for entry in store.read_path("s", "e6")] == said
    assert truncate_entry_messages(store.read_path("s", leaf), limits) == {}
    assert store.copy_branch("s", {}) is None
