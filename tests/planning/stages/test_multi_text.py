"""A message of many texts is shortened as a whole: its ends stay, and one line stands for its middle and names
its blob.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.recall import iter_recall_pages
from holdfast.messages.message import Message, format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.budget import compute_budget
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages.multi_text import MAX_SEPARATE_TEXTS, select_middle_texts
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
WITHOUT_SPILLING = Policy().with_settings(
    results={"spill_chars": 0, "message_chars": 0, "spill_share": 0.0, "message_share": 0.0}, compaction={"auto": False}
)
PHOTO = Media("image", "image/png", 900, "wall.png", "iVBORw0KGgo=")
LINE = re.compile(
    r'\[([\d,]+) texts of this message, ([\d,]+) characters, are left out here; (?:recall\(id="(\w+)"\))?'
)
OLD_MESSAGES = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "look"),))]
SHORT_RESULT = ToolResult("t", "look", (Text("found"),))


def build_texts(number, chars):
    return tuple(Text(f"{at:05} " + ("kelp and rope\n" * 300)[:chars]) for at in range(number))


def parse_replacing_line(message):
    """Return what the replacing line of a message states: the number of texts, their characters, the handle."""
    [found] = [found for part in message.parts if (found := LINE.match(get_part_text(part)))]
    return int(found[1].replace(",", "")), int(found[2].replace(",", "")), found[3]


def count_kept_ends(parts, shown):
    """Return how many parts stay at the start and the end of a message; each is unchanged or shortened to its start."""
    start_count = next(start_count for start_count, part in enumerate(shown) if LINE.match(get_part_text(part)))
    end_count = len(shown) - start_count - 1
    for new, old in zip(
        (*shown[:start_count], *shown[start_count + 1 :]),
        (*parts[:start_count], *parts[len(parts) - end_count :]),
        strict=True,
    ):
        assert new == old or "characters left out" in new.text
        assert new.text[:300] == old.text[:300]
    return start_count, end_count


@given(
    st.integers(200, 1_500),
    st.integers(10, 900),
    st.sampled_from([PlanInputs(), PlanInputs(can_spill=False, overflow_step="fallback")]),
)
def test_multi_text_replaces_the_middle_of_a_message(number, chars, inputs):
    """newest-user-message, degenerate-is-defined: an oversized message is shown by whole texts of both ends and a line,
    and it fits.
    """
    parts = build_texts(number, chars)
    new_plan = plan([Message("user", parts)], TARGET, inputs=inputs)
    budget = compute_budget(TARGET, Policy().settings)
    assert new_plan.after <= budget.usable
    assert new_plan.after == estimate_request_tokens(new_plan.state, TARGET)
    [shown] = apply([Message("user", parts)], new_plan)
    if not new_plan.record:
        assert new_plan.before <= budget.usable
        return
    start, end = count_kept_ends(parts, shown.parts)
    assert min(start, end) >= 1
    omitted_count, length, handle = parse_replacing_line(shown)
    omitted_text = "\n".join(part.text for part in parts[start : number - end])
    assert (omitted_count, length) == (number - start - end, len(omitted_text))
    assert [blob.text for blob in new_plan.blobs] == ([omitted_text] if inputs.can_spill else [])
    assert new_plan.blobs[0].hash.startswith(handle) if inputs.can_spill else handle is None
    assert (
        sum(edit.saves for edit in new_plan.record)
        == new_plan.state.history.sized_messages[0].tokens - new_plan.state.view.shown_tokens
    )


def test_multi_text_keeps_a_message_that_fits():
    """The newest message stays whole where it fits, however many texts it has."""
    messages = [Message("user", build_texts(400, 10))]
    assert plan(messages, TARGET).record == ()


@pytest.mark.parametrize("number", [MAX_SEPARATE_TEXTS, MAX_SEPARATE_TEXTS + 1])
def test_multi_text_shortens_few_texts_one_by_one(number):
    """A few texts, or long ones, each get a preview or line of their own; of many small ones the middle goes."""
    messages = [Message("user", build_texts(number, 3_900))]
    [shown] = apply(messages, new_plan := plan(messages, TARGET))
    if number == MAX_SEPARATE_TEXTS:
        assert len(shown.parts) == number
        assert len({edit.blob_hash for edit in new_plan.record}) == len(new_plan.record)
    else:
        assert parse_replacing_line(shown)[0] == number + 1 - len(shown.parts)
    long = Text(make_text(1, 400_000))
    messages = [Message("user", (*build_texts(20, 100), long, *build_texts(20, 100)))]
    [shown] = apply(messages, plan(messages, TARGET))
    assert [at for at, part in enumerate(shown.parts) if part != messages[0].parts[at]] == [20]


def test_multi_text_fits_beside_results_and_media():
    """Results keep their places when texts around them go; pictures go with the texts when nothing else is left."""
    messages = [*OLD_MESSAGES, Message("user", (SHORT_RESULT, *build_texts(900, 100), PHOTO, *build_texts(900, 100)))]
    new_plan = plan(messages, TARGET)
    shown = apply(messages, new_plan)[-1].parts
    assert (shown[0], shown[-1], PHOTO in shown) == (SHORT_RESULT, messages[-1].parts[-1], True)
    pictures = [*OLD_MESSAGES, Message("user", (SHORT_RESULT, *([PHOTO] * 3_000), Text("What is on them?")))]
    new_plan = plan(pictures, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
    shown = apply(pictures, new_plan)[-1]
    assert (shown.parts[0], shown.parts[1], shown.parts[-1]) == (
        SHORT_RESULT,
        Text(format_part_placeholder(PHOTO)),
        pictures[-1].parts[-1],
    )
    assert parse_replacing_line(shown)[0] == 3_003 - len(shown.parts)
    assert new_plan.after <= compute_budget(TARGET, Policy().settings).usable


def test_multi_text_merges_with_an_earlier_replacement():
    """Shortened further, the message has one line for everything that is gone, and one blob to read it back."""
    messages = [Message("user", build_texts(900, 400))]
    large = get_target("anthropic", "claude-sonnet-4-5", window=64_000)
    first = plan(messages, large)
    before = parse_replacing_line(apply(messages, first)[0])[0]
    second_plan = plan_request(first.state, TARGET, Policy(), PlanInputs(overflow_step="fallback"))
    [shown] = apply(messages, second_plan)
    omitted_count, length, handle = parse_replacing_line(shown)
    start, end = count_kept_ends(messages[0].parts, shown.parts)
    [blob] = second_plan.blobs
    assert omitted_count == 900 - start - end > before > 0
    assert blob.text == "\n".join(part.text for part in messages[0].parts[start : 900 - end])
    assert (len(blob.text), blob.hash.startswith(handle)) == (length, True)
    assert (
        second_plan.after
        == estimate_request_tokens(second_plan.state, TARGET)
        <= compute_budget(TARGET, Policy().settings).usable
    )
    assert second_plan.state.view.shown_tokens == pytest.approx(
        sum(build_sized_message(message).tokens for message in apply(messages, second_plan)), abs=8
    )


def test_multi_text_does_not_replace_by_something_larger():
    """A line that is no shorter than what it would replace is not used."""
    messages = [Message("user", tuple(Text("x") for _ in range(MAX_SEPARATE_TEXTS + 2)))]
    new_plan = plan(messages, TARGET, WITHOUT_SPILLING, inputs=PlanInputs(overflow_step="fallback"))
    assert new_plan.record == ()


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 400), st.floats(0, 1))
def test_select_middle_texts_keeps_both_ends(sizes, budget, tail):
    """The first and last texts stay, and as many from both ends as fit; each end has its share."""
    middle = select_middle_texts(len(sizes), sizes.__getitem__, budget, tail)
    start, end = sizes[: middle.start], sizes[middle.stop :]
    assert 0 <= middle.start <= middle.stop <= len(sizes)
    assert min(1, len(sizes)) <= len(start) + len(end)
    assert bool(start) == (len(sizes) > 1)
    assert bool(end) == bool(sizes)
    assert sum(start[1:]) + min(start[:1], default=0) <= max(budget * (1 - tail), *start[:1], 0)
    assert sum(end) <= max(budget * tail, *end[-1:], 0)
    if middle and len(start) > 1:
        assert sum(start) + sizes[middle.start] > budget * (1 - tail)


BLOCKS = {
    "anthropic": {"type": "text"},
    "openai-chat": {"type": "text"},
    "openai-responses": {"type": "input_text"},
    "gemini": {},
}


@pytest.mark.parametrize("api", BLOCKS)
def test_multi_text_keeps_the_bytes_of_shown_blocks(api):
    """valid-request, signed-bytes-intact: on every API the request is valid, shown blocks keep their bytes, and recall
    returns the rest.
    """
    blocks = [BLOCKS[api] | {"text": part.text} for part in build_texts(3_000, 60)]
    message = {"role": "user", "parts" if api == "gemini" else "content": blocks}
    body = {API_SPECS[api].messages_field: [message]}
    body |= {} if api == "gemini" else {"model": STRICTEST_MODELS[api]}
    body |= {"max_tokens": 900} if api == "anthropic" else {}
    parsed = measure_parsed_request(parse_request(json.dumps(body, indent=1).encode(), api))
    with MemoryStore() as store:
        journal = Journal.open(store, "s")
        journal.append(*parsed.messages)
        body_sent = render_request(
            parsed, journal.prepare_request(get_target(api, STRICTEST_MODELS[api], window=12_000)).messages
        )
        assert validate_request(body_sent, api) == ()
        [shown] = parse_request(body_sent, api).messages
        start, end = count_kept_ends(parsed.messages[0].message.parts, shown.message.parts)
        handle = parse_replacing_line(shown.message)[2]
        recalled = "".join(page.text for page in iter_recall_pages(store, "s", handle))
        assert recalled == "\n".join(block["text"] for block in blocks[start : len(blocks) - end])
        assert estimate_text_tokens(recalled) > 10_000
